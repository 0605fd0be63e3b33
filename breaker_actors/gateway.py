"""The one typed door through which replicas and tools reach the actors (stop 5 of a sample's life)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from breaker_actors.messages import FeedPage, Outcome, Part, StateReading
from breaker_actors.stores.base import Store


class Gateway(Protocol):
    """Configuration is read and written through `store`; what runs is reached through the methods.

    Every method raises errors.Unavailable when the part it needs does not answer within its time.
    """

    store: Store

    async def ingest(self, parts: Sequence[Part]) -> list[Outcome]:
        """Appends each part to its router's log; one outcome per part, in order. "full" = try again later (429),
        "failed" = unavailable (503)."""
        ...

    async def configured(self, project_id: str, change_ids: Sequence[int]) -> None:
        """Tells the Directory of written changes; returns when they are in the routers' logs (or an owner is away)."""
        ...

    async def states(self, project_id: str, breaker_ids: Sequence[str]) -> dict[str, StateReading]:
        """Committed states of existing breakers; an owner that does not answer within owner_timeout_ms is replaced by
        the stored record, marked stale. Unknown ids are left out."""
        ...

    async def feed(self, shard: int, epoch: int, after: int, wait_s: float) -> FeedPage:
        """Long poll of one Journal shard: everything after a position, at once if there is something."""
        ...

    async def ready(self) -> None:
        """Returns when store, directory and every journal answer."""
        ...
