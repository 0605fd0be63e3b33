"""`breakers statsd`: StatsD and DogStatsD datagrams, summed up and sent on as OTLP. In: datagrams of UDP and Unix
sockets. Out: OTLP requests at each flush, repeated until they are taken, and counters of all that was not.

Public: `aggregation`, `encoding`, `lines`, `outbox`, `process`, `sockets`.
"""
