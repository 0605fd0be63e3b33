"""What a replica remembers of mappings, and when it does not."""

from __future__ import annotations

import asyncio

import msgspec

from api.lookup.mapping_plans import KEPT_S, MappingPlans
from breaker_actors.messages import EVERY_PROJECT, FeedEntry
from breaker_actors.store.mappings.model import MappingTo, SeriesMatcher
from breaker_actors.store.rows import MappingRow

ROW = MappingRow(
    id="m",
    project_id="p",
    position=1,
    name="ours",
    matchers=(SeriesMatcher(field="name", op="=", value="x"),),
    to=MappingTo(router="label.router"),
    enabled=True,
    version=1,
    inserted_ms=0,
    updated_ms=0,
)


class Store:
    """Mappings and routers as a test sets them; counts reads."""

    def __init__(self) -> None:
        self.rows, self.names, self.reads = [ROW], {"r": "shop"}, 0
        self.gate: asyncio.Event | None = None

    async def list_mappings(self, project_id: str) -> list[MappingRow]:
        self.reads += 1
        rows = list(self.rows)
        if self.gate is not None:
            await self.gate.wait()
        return rows

    async def router_names(self, project_id: str) -> dict[str, str]:
        return dict(self.names)


class Replica:
    def __init__(self) -> None:
        self.store, self.fresh, self.now_s = Store(), True, 0.0
        self.plans = MappingPlans(self.store, lambda: self.fresh, lambda: self.now_s)


async def test_a_plan_is_read_once_until_something_changes() -> None:
    one = Replica()
    plan = await one.plans.get("p")
    assert await one.plans.get("p") is plan
    assert one.store.reads == 1
    for tell in (
        lambda: one.plans.forget("p"),
        lambda: one.plans.hear(FeedEntry(1, "config", "p")),
    ):
        tell()
        assert await one.plans.get("p") is plan, "nothing differs"
    assert one.store.reads == 3
    one.plans.hear(FeedEntry(1, "config", "another"))
    one.plans.hear(FeedEntry(1, "keys", "p"))
    assert await one.plans.get("p") is plan
    assert one.store.reads == 3
    one.store.rows = [msgspec.structs.replace(ROW, version=2)]
    one.plans.forget("p")
    newer = await one.plans.get("p")
    assert newer is not plan
    one.store.names = {"r": "renamed"}
    one.plans.hear(FeedEntry(0, "config", EVERY_PROJECT))
    assert (await one.plans.get("p")).routers.names == {"r": "renamed"}


async def test_a_silent_feed_and_age_mean_another_look() -> None:
    one = Replica()
    plan = await one.plans.get("p")
    one.fresh = False
    for _ in range(2):
        assert await one.plans.get("p") is plan
    assert one.store.reads == 3
    one.fresh, one.now_s = True, KEPT_S
    assert await one.plans.get("p") is plan
    assert one.store.reads == 4


async def test_a_read_that_began_before_a_change_is_not_kept() -> None:
    one = Replica()
    one.store.gate = asyncio.Event()
    reading = asyncio.create_task(one.plans.get("p"))
    for _ in range(3):
        await asyncio.sleep(0)
    one.store.rows = []
    one.plans.forget("p")
    one.store.gate.set()
    assert (await reading).rows == [ROW]
    assert (await one.plans.get("p")).rows == []
