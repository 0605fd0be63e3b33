"""The one door from the HTTP side to the actors, with the replica's reachability heartbeat and the cluster's status.
In: encoded samples, ids of breakers, changes to announce, and positions in the change feed. Out: outcomes of appends,
state readings, pages of the feed, and the status of every actor.

Public: `door.Door`, `gateway.ActorGateway`, `gateway.Gateway`, `status`,
`stored_states.stored_view`.
"""
