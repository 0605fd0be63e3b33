"""What happens around every handler: rate limits, idempotency, the request log, and the cost of bad requests. In: each
request before its handler, and each answer after it. Out: the answer, a refusal or a delay, and metrics and log lines
about it.

Public: `connection`, `idempotency`, `rate_limits`, `request_log`, `waste`.
"""
