"""The roles as Ray actors: how they are started, found, called, and replaced by a new release. In: settings and the
number of actors of each kind. Out: running named actors, and a `Net` over which peers call each other.

Public: `actors`, `rollout`.
"""
