"""The inside of a BreakerActor: it applies log entries to the breakers placed there, in the order of each router's
log. In: assignments of the Directory, deliveries of RouterActors, and entries read from the write-ahead log during
recovery. Out: commits to the Journal, questions to routers for their watermarks, and states for replicas.

Public: `host.BreakerHost`, `replayed`.
"""
