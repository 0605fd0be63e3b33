"""Store: of names that went away as many are kept as are said, and they cost others nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sqlalchemy import func, insert, select

from breaker_actors.store import tables as t
from breaker_actors.store.config import change_rows
from breaker_actors.store.operational import retention
from breaker_actors.store.quotas import Shares
from breaker_actors.store.rows import BreakerItem
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from tests.contract.backends import Backend
from tests.contract.store_world import RULE, World
from tests.contract.test_outage_effort import Counted, counting

DAY_MS = 86_400_000
FEW, MANY = 20, 6_000


async def gone(world: World, now_ms: int = 100) -> tuple[str, ...]:
    return (await world.store.stream_snapshot(world.project_id, now_ms)).gone


async def kept(world: World) -> int:
    """Rows, also those that no stream begins with."""
    query = select(func.count()).select_from(t.gone_names)
    found: int = await world.store._db.read(lambda c: c.execute(query).scalar_one())  # type: ignore[attr-defined]
    return found


async def fill(world: World, count: int, until_ms: int) -> None:
    rows = [{"project_id": world.project_id, "name": f"old {n:05}", "until_ms": until_ms} for n in range(count)]
    await world.store._db.write(lambda c: c.execute(insert(t.gone_names), rows))  # type: ignore[attr-defined]


async def test_of_too_many_the_newest_stay(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more from earlier, as many more go as a step takes."""
    monkeypatch.setattr(change_rows, "STEP", 1)
    store = SqlStore(backend.url, SecretBox(b"k" * 32), shares=Shares(gone_names=3))
    await store.open()
    world = await World.make(store)
    row = await world.breaker("n0")
    for n in range(1, 6):
        await world.edit(row.id, name=f"n{n}", now_ms=100 + n)
    assert (await kept(world), await gone(world)) == (3, ("n2", "n3", "n4"))
    await fill(world, 4, 101 + DAY_MS)
    assert await gone(world) == ("n2", "n3", "n4")
    await world.edit(row.id, name="n6", now_ms=200)
    assert (await kept(world), await gone(world)) == (6, ("n3", "n4", "n5"))
    items = [BreakerItem(id=row.id, rule=RULE, name="n7"), BreakerItem(rule=RULE, name="more")]
    await store.replace_breakers(world.project_id, items, lambda *_: None, 300)
    assert (await kept(world), await gone(world)) == (5, ("n4", "n5", "n6"))
    await store.close()


async def test_upkeep_forgets_those_of_all_projects_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a project that is gone itself: its end does not wait for them."""
    monkeypatch.setattr(retention, "PAGE", 2)
    monkeypatch.setattr(retention, "PAGES_MAX", 2)
    other = await world.neighbour("other")
    for each in (world, other):
        row = await each.breaker("0")
        for n in range(1, 4):
            await each.edit(row.id, name=str(n), now_ms=100 + n)
    await other.store.delete_project(other.project_id, 200)
    assert (await world.store.prune_ended(100 + DAY_MS))["gone_names"] == 0
    assert [(await world.store.prune_ended(103 + DAY_MS))["gone_names"] for _ in range(3)] == [4, 2, 0]


@pytest.mark.parametrize("ask", ["rename", "create", "delete project", "prune"])
async def test_what_many_cost(backend: Backend, world: World, ask: str) -> None:
    """No more than few, but for a walk over those that may be kept where a name goes."""

    async def cost(world: World, count: int) -> Counted:
        row = await world.breaker("a")
        await fill(world, count, DAY_MS)
        with counting(world) as counted:
            if ask == "rename":
                await world.store.update_breaker(world.project_id, row.id, lambda row: replace(row, name="b"), 200)
            elif ask == "create":
                await world.breaker("c")
            elif ask == "delete project":
                await world.store.delete_project(world.project_id, 200)
            else:
                await world.store.prune_ended(200)
        return counted

    few = await cost(world, FEW)
    many = await cost(await world.neighbour("other"), MANY)
    assert many.statements <= few.statements  # the first one makes some counters
    if not backend.database:
        walked = 2 * MANY if ask == "rename" else 10  # instructions, by ten
        assert many.steps < 1.5 * few.steps + walked, (few.steps, many.steps)
