"""The store's running part: leases and epochs, the Journal's commits, reads of events and states, and retention. In:
claims under an epoch, commits, queries, and ages beyond which rows go. Out: leases, events, committed states, and
numbers of deleted rows.

Public: `leases`, `parts.Operations`.
"""
