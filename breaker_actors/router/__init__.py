"""The inside of a RouterActor: it appends samples to the routers' logs in group commits and hands them on. In: parts
of ingest requests, configuration changes, and subscriptions of BreakerActors. Out: outcomes once the write-ahead log
has the samples, deliveries to BreakerActors, and watermarks.

Public: `host.RouterHost`.
"""
