"""How actors call each other: typed peers, lanes that coalesce calls, and RPC over direct connections. In: calls by
actor name and method, with values of `messages`. Out: answers, the callee's own error, or `Unavailable` when it is
unknown whether a call ran.

Public: `lane`, `peers`, `rpc`, `turns`.
"""
