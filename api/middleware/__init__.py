"""What happens around every handler: rate limits, idempotency, the request log, the cost of bad requests, and addresses
that no handler has to look at. In: each request before its handler, and each answer after it. Out: the answer, a
refusal or a delay, and metrics and log lines about it.

Public: `connection`, `idempotency`, `nul`, `rate_limits`, `request_log`, `waste`.
"""
