"""The push of states: one pump per Journal shard, one board per project, one writer per stream client. In: pages of
the change feed, and clients that subscribe. Out: server-sent events, bounded per client, and word to the caches of
what changed.

Public: `feed.Feed`, `listeners`, `sse`.
"""
