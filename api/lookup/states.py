"""States of many breakers, read for many callers at once: what one of them costs is not paid by each.

Few are read whenever they are asked for. Of more a project has one read at a time, and what is asked for meanwhile goes
with the next one. The counts of a large project are told again for STATUS_S: so much may they be behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from api.lookup.caches import Caches
from api.lookup.remembered import Remembered
from api.lookup.shared_loads import Shared
from breaker_actors.clock import Clock
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.messages import StateReading

Count = Callable[[Sequence[StateReading]], msgspec.Struct]

FEW = 200
STATUS_S = 0.5


class States:
    """Reads of one replica. `count`: what is told of all states of a project."""

    def __init__(self, gateway: Gateway, caches: Caches, clock: Clock, count: Count) -> None:
        self._gateway = gateway
        self._caches = caches
        self._told = count
        self._loads: Shared[StateReading] = Shared(self._load)
        self._statuses: Remembered[msgspec.Struct] = Remembered(STATUS_S, clock.monotonic)
        caches.watch(self._statuses.drop)

    async def read(self, project_id: str, breaker_ids: Sequence[str]) -> Mapping[str, StateReading]:
        """Those of the project's breakers that there are, maybe with others of it."""
        if len(breaker_ids) <= FEW:
            return await self._gateway.states(project_id, breaker_ids) if breaker_ids else {}
        return await self._loads.get(project_id, breaker_ids)

    async def find(self, project_id: str, ids: Sequence[str]) -> Mapping[str, StateReading]:
        """As `read`, of ids that somebody names: no owner is asked for what is no breaker of the project."""
        rows = await self._caches.breakers(project_id, ids) if ids else {}
        return await self.read(project_id, [id_ for id_ in ids if id_ in rows])

    async def status(self, project_id: str) -> msgspec.Struct:
        """The project's counts."""
        rows = await self._caches.breakers(project_id)
        if len(rows) <= FEW:
            return self._told(list((await self.read(project_id, list(rows))).values()))
        return await self._statuses.get(project_id, lambda: self._count(project_id))

    async def _count(self, project_id: str) -> msgspec.Struct:
        return self._told(list((await self._loads.get(project_id, None)).values()))

    async def _load(self, project_id: str, ids: Collection[str] | None) -> dict[str, StateReading]:
        wanted = await self._caches.breakers(project_id) if ids is None else ids
        return await self._gateway.states(project_id, list(wanted))
