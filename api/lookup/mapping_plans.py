"""What a replica knows of each project's mappings and routers, compiled, so that a series costs no query.

Dropped by the feed and by changes made here, read anew while the feed is silent and after KEPT_S in any case: a change
is told by its writer, who may die before. As long as nothing differs the plan is the same object, so who remembers what
became of series asks whether it `is`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from api.lookup.caches import Lru
from api.lookup.shared_loads import Shared
from api.protocols.mapping import Mappings, Routers
from breaker_actors.messages import EVERY_PROJECT, FeedEntry
from breaker_actors.store.rows import MappingRow

KEPT_S = 60.0
KEPT_MAX = 200_000
"""Mappings and routers of all projects together; the project asked for longest ago goes first."""


class PlanStore(Protocol):
    """What is read for a plan."""

    async def list_mappings(self, project_id: str) -> list[MappingRow]: ...
    async def router_names(self, project_id: str) -> dict[str, str]: ...


class MappingPlan(NamedTuple):
    """What decides of the series of a project: `resolve` takes `mappings` and `routers`. `rows`: what they were
    compiled from."""

    mappings: Mappings
    routers: Routers
    rows: list[MappingRow]


class _Kept(NamedTuple):
    plan: MappingPlan
    until_s: float
    """Until when it is believed; 0: it was changed."""


class MappingPlans:
    """Those of one replica. `fresh`: whether the feed was heard lately."""

    def __init__(self, store: PlanStore, fresh: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self._store, self._fresh, self._monotonic = store, fresh, monotonic
        self._kept: Lru[_Kept] = Lru(KEPT_MAX)
        self._loads: Shared[MappingPlan] = Shared(lambda project_id, _: self._load(project_id))
        self._drops = 0

    async def get(self, project_id: str) -> MappingPlan:
        """Raises Unavailable where the store has to be asked and does not answer."""
        kept = self._kept.get(project_id)
        if kept is not None and self._fresh() and self._monotonic() < kept.until_s:
            return kept.plan
        return (await self._loads.get(project_id, None))[project_id]

    def hear(self, entry: FeedEntry) -> None:
        """An entry of the feed; "config" of EVERY_PROJECT: anything may have changed."""
        if entry.kind != "config":
            return
        if entry.project_id == EVERY_PROJECT:
            self._drops += 1
            self._kept.clear()
        else:
            self.forget(entry.project_id)

    def forget(self, project_id: str) -> None:
        """The project's configuration changed. The plan stays to be compared with the next one."""
        self._drops += 1
        if (kept := self._kept.get(project_id)) is not None:
            self._kept.put(project_id, kept._replace(until_s=0.0), _weight(kept.plan))

    async def _load(self, project_id: str) -> dict[str, MappingPlan]:
        drops = self._drops
        rows, names = await self._store.list_mappings(project_id), await self._store.router_names(project_id)
        kept = self._kept.get(project_id)
        if kept is not None and kept.plan.rows == rows and kept.plan.routers.names == names:
            plan = kept.plan
        else:
            plan = MappingPlan(Mappings(rows), Routers(names), rows)
        until_s = self._monotonic() + KEPT_S if drops == self._drops else 0.0
        self._kept.put(project_id, _Kept(plan, until_s), _weight(plan))
        return {project_id: plan}


def _weight(plan: MappingPlan) -> int:
    return 1 + len(plan.rows) + len(plan.routers.names)
