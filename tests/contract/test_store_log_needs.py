"""Store: what of the logs is still needed by links, by those that have ended, and when these are forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection, func, select

from breaker_actors.core.model import Record
from breaker_actors.errors import Invalid
from breaker_actors.messages import RouterRef
from breaker_actors.store import section
from breaker_actors.store.config import router_set
from breaker_actors.store.operational import log_needs
from breaker_actors.store.quotas import used
from breaker_actors.store.rows import BreakerRow, ForgottenLinks
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.tables import ended_links
from tests.contract.store_world import RULE, World

HOUR = 3_600_000
ENDED_AT = 30


def record(now_ms: int) -> bytes:
    return msgspec.msgpack.encode(Record(created_ms=0, now_ms=now_ms, grid_ms=0, state_since_ms=0))


async def left(world: World, count: int, now_ms: int, cut: int = 9) -> tuple[BreakerRow, list[str]]:
    """A breaker that has left so many routers, whose logs ended at 7, and what it has stored: up to `cut` of each was
    read by `now_ms`."""
    row = await world.breaker("a")
    routers = [(await world.router(row.id)).id for _ in range(count)]
    await world.store.claim(world.directory, "router", dict.fromkeys([*row.router_ids, *routers], "r-0"))
    await world.settle(3)
    for router_id in routers:
        await world.store.unlink_breaker(world.project_id, router_id, row.id, ENDED_AT)
    await world.settle(7)
    epoch = await world.own(row.id)
    cuts = dict.fromkeys([*row.router_ids, *routers], cut)
    await world.write(world.commit(row.id, epoch, record=record(now_ms), applied_offsets=cuts))
    return row, routers


def sql(world: World) -> SqlStore:
    assert isinstance(world.store, SqlStore)
    return world.store


async def forgotten(world: World) -> int:
    return (await world.store.forget_ended_links("")).count


def kept(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(ended_links)).scalar_one())


async def test_what_a_breaker_has_read_is_looked_at_once_however_many_links_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names all of their routers, so once for each of them would be the square."""
    _, routers = await left(world, 4, HOUR)
    asides, looked = sql(world).asides, list[Any]()
    attempt = asides.attempt

    def counted(work: Callable[[], Any], *where: Any) -> Any:
        looked.append(where)
        return attempt(work, *where)

    monkeypatch.setattr(asides, "attempt", counted)
    floors = {floor.router_id: floor for floor in await world.store.log_floors()}
    assert len(looked) == 1
    assert [(floors[id_].offset, floors[id_].since_ms) for id_ in routers] == [(9, HOUR - RULE.window_ms)] * 4


async def test_floors_are_those_of_all_breakers_however_few_are_read_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a router whose change waits nobody knows who needs what; one without readers needs nothing."""
    rows = [await world.breaker(name) for name in "abc"]
    shared, empty = await world.router(*(row.id for row in rows)), await world.router()
    routers = [shared.id, empty.id, *(row.router_ids[0] for row in rows)]
    await world.store.claim(world.directory, "router", dict.fromkeys(routers, "r-0"))
    await world.settle(3)
    for n, row in enumerate(rows, start=5):
        epoch = await world.own(row.id)
        await world.write(
            world.commit(row.id, epoch, record=record(HOUR + n), applied_offsets={shared.id: n, row.router_ids[0]: n})
        )
    await world.edit(rows[2].id, name="other")
    floors = {floor.router_id: (floor.offset, floor.since_ms) for floor in await world.store.log_floors()}
    since_ms = HOUR + 5 - RULE.window_ms
    assert floors == {
        shared.id: (0, since_ms),
        empty.id: (None, None),
        rows[0].router_ids[0]: (5, since_ms),
        rows[1].router_ids[0]: (6, since_ms + 1),
        rows[2].router_ids[0]: (0, since_ms + 2),
    }
    monkeypatch.setattr(log_needs, "_PAGE", log_needs._PAGE.limit(1))
    again = {floor.router_id: (floor.offset, floor.since_ms) for floor in await world.store.log_floors()}
    assert again == floors


async def test_ended_links_are_forgotten_in_small_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one transaction looks at thousands nobody else writes."""
    monkeypatch.setattr(section, "PARAMETERS_MAX", 2)
    await left(world, 5, 2 * HOUR)
    store, steps = sql(world), list[int]()
    write = store._db.write

    async def counted(work: Callable[[Connection], Any]) -> Any:
        before = await store._db.read(kept)
        done = await write(work)
        steps.append(before - await store._db.read(kept))
        return done

    monkeypatch.setattr(store._db, "write", counted)
    assert await forgotten(world) == 5
    assert [count for count in steps if count] == [2, 2, 1]


@pytest.mark.parametrize(("now_ms", "cut"), [(HOUR, 9), (2 * HOUR, 6)])
async def test_an_ended_link_is_kept_while_a_window_reaches_it_or_it_is_not_read_to_its_end(
    world: World, now_ms: int, cut: int
) -> None:
    row, routers = await left(world, 2, now_ms, cut)
    assert await forgotten(world) == 0
    (assigned,) = await world.store.breaker_assignments([row.id])
    assert [ref.router_id for ref in assigned.routers] == [*sorted(routers), *row.router_ids]


async def test_beside_many_links_that_ended_no_new_ones_are_made(small: Callable[..., Awaitable[World]]) -> None:
    """A project has as many as links. All goes through that makes none, and once they are forgotten links do, too."""
    world = await small(links=3)
    row, _ = await left(world, 2, 2 * HOUR)
    store, project_id = world.store, world.project_id
    other = await world.router(row.id)
    await store.unlink_breaker(project_id, other.id, row.id, 60)
    with pytest.raises(Invalid, match="3 links of this project have ended of late"):
        await world.router(row.id)
    with pytest.raises(Invalid, match="3 links of this project have ended of late"):
        await store.link_breakers(project_id, other.id, [row.id], 61)
    await world.router()
    await world.breaker("b")
    await store.unlink_breaker(project_id, row.router_ids[0], row.id, 62)
    assert await forgotten(world) == 2
    await store.link_breakers(project_id, other.id, [row.id], 63)
    await store.unlink_breaker(project_id, other.id, row.id, 64)
    await store.link_breakers(project_id, row.router_ids[0], [row.id], 65)
    await store.delete_breaker(project_id, row.id, 66)
    for _ in range(2):
        await world.breaker("c")
    assert await sql(world)._db.read(lambda c: used(c, project_id, "ended_links")) == 0


async def test_nor_beside_those_of_all_projects_of_an_organisation(small: Callable[..., Awaitable[World]]) -> None:
    world = await small(links=2, full_projects=1)
    store = world.store
    for name in "ab":
        project = await store.create_project(world.org_id, world.workspace_id, name, 1)
        one = replace(world, project_id=project.id)
        row = await one.breaker("a")
        await store.unlink_breaker(project.id, row.router_ids[0], row.id, 40)
    row = await world.breaker("a")
    with pytest.raises(Invalid, match="2 links of this organisation's projects"):
        await world.router(row.id)
    other = await world.neighbour("globex")
    await other.router((await other.breaker("a")).id)


async def test_a_breaker_gets_no_routers_beside_as_many_that_it_has_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names all of them each time it is stored."""
    monkeypatch.setattr(router_set, "ROUTERS_MAX", 3)
    row, _ = await left(world, 2, 2 * HOUR)
    await world.store.unlink_breaker(world.project_id, row.router_ids[0], row.id, 60)
    other = await world.breaker("b")
    with pytest.raises(Invalid, match="'a' has left 3 routers"):
        await world.router(other.id, row.id)
    await world.router(other.id)
    await forgotten(world)
    await world.router(row.id)


async def test_owners_hear_what_a_cut_names_for_nothing(world: World) -> None:
    """Routers that are linked, or whose ended links are kept, are none of that."""
    row, routers = await left(world, 3, 2 * HOUR)
    await world.store.unlink_breaker(world.project_id, row.router_ids[0], row.id, HOUR + 30)
    found = await world.store.forget_ended_links("")
    assert found.count == 3
    assert found.left == {"b-0": [(row.id, RouterRef(router_id, "", "", 0, 9)) for router_id in routers]}
    assert await world.store.forget_ended_links(found.after or "") == ForgottenLinks()
    await world.router(row.id)
    again = await world.store.forget_ended_links("")
    assert (again.count, again.left) == (0, found.left)
