"""Store: reads of events and committed states."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select

from breaker_actors.errors import NotFound
from breaker_actors.sql.database import of_one_instant
from breaker_actors.store import migrations
from breaker_actors.store import tables as t
from breaker_actors.store.rows import EventQuery
from tests.contract.backends import Backend
from tests.contract.store_world import World, event


@pytest.fixture
async def pair(world: World) -> tuple[str, str]:
    """Two breakers with five events: times 10, 30, 30 and 30, 20; sequences 1 to 5."""
    ids = [(await world.breaker(name)).id for name in "ab"]
    await world.own(*ids)
    a, b = ids
    for id_, seq, ts_ms in ((a, 1, 10), (a, 2, 30), (b, 1, 30), (a, 3, 30), (b, 2, 20)):
        assert await world.write(world.commit(id_, 1, event(seq, ts_ms=ts_ms))) == ["ok"]
    return a, b


async def _sequences(world: World, **fields: Any) -> list[int]:
    rows = await world.store.events(EventQuery(project_id=world.project_id, **fields))
    return [row.sequence for row in rows]


async def test_newest_first_with_a_stable_cursor(world: World, pair: tuple[str, str]) -> None:
    """By time, then sequence; a page goes on exactly where the last one ended, also amid equal times."""
    assert await _sequences(world) == [4, 3, 2, 5, 1]
    assert await _sequences(world, limit=2) == [4, 3]
    assert await _sequences(world, limit=2, before=(30, 3)) == [2, 5]
    await world.write(world.commit(pair[0], 1, event(4, ts_ms=99)))
    assert await _sequences(world, before=(20, 5)) == [1]


async def test_filters(world: World, pair: tuple[str, str]) -> None:
    """since is exclusive, until inclusive, after_sequence turns the order round; the strange is empty."""
    a, b = pair
    assert await _sequences(world, breaker_id=b) == [3, 5]
    assert await _sequences(world, since_ms=20) == [4, 3, 2]
    assert await _sequences(world, until_ms=20) == [5, 1]
    assert await _sequences(world, after_sequence=2) == [3, 4, 5]
    assert await _sequences(world, after_sequence=2, breaker_id=a, limit=1) == [4]
    assert await _sequences(world, breaker_id="nothing") == []
    assert await _sequences(world, since_ms=10**30) == []
    assert await _sequences(world, since_ms=-(10**30), before=(10**30, 10**30)) == [4, 3, 2, 5, 1]
    assert await world.store.events(EventQuery(project_id="nothing")) == []


async def test_what_requests_ask_of_some_ids(world: World) -> None:
    """Of this project alone, whatever the number of ids; a router marked as deleted is not there."""
    a, b = [await world.breaker(name) for name in "ab"]
    both, gone = await world.router(b.id, a.id, mode="random"), await world.router()
    await world.store.delete_router(world.project_id, gone.id, 30)
    own = a.router_ids[0]
    many = [f"nothing-{n}" for n in range(600)]
    ids = [*many, own, both.id, gone.id]
    store, project_id = world.store, world.project_id
    assert await store.router_modes(project_id, ids) == {own: "static", both.id: "random"}
    assert await store.router_modes(project_id) == {own: "static", b.router_ids[0]: "static", both.id: "random"}
    assert await store.router_links(project_id, ids) == {own: (a.id,), both.id: (b.id, a.id)}
    briefs = await store.breaker_briefs(project_id)
    assert [brief.id for brief in briefs] == [a.id, b.id]
    assert await store.breaker_briefs(project_id, [*many, b.id]) == briefs[1:]
    for asked in (store.router_modes, store.router_links, store.breaker_briefs):
        assert not await asked("another", [*ids, a.id])  # type: ignore[operator]
        assert not await asked(project_id, [])  # type: ignore[operator]


async def test_what_metrics_show(world: World) -> None:
    """The oldest of all projects, and how many there are in all."""
    mine = [await world.breaker(name) for name in "ab"]
    shown, total = await world.store.scraped_breakers(10)
    rules = [(row.rule.metric, row.rule.kind, row.rule.threshold) for row in mine]
    assert [(one.id, one.name, one.project_id) for one in shown] == [(m.id, m.name, world.project_id) for m in mine]
    assert [(one.rule.metric, one.rule.kind, one.rule.threshold) for one in shown] == rules
    assert {one.project for one in shown} == {"shop"}
    assert total == 2
    assert await world.store.scraped_breakers(1) == (shown[:1], 2)
    assert await world.store.scraped_breakers(0) == ([], 2)


async def test_latest_event(world: World, pair: tuple[str, str]) -> None:
    """Newest time under the filter, whatever the page; None when there is none."""

    async def latest(**fields: Any) -> int | None:
        return await world.store.latest_event_ms(EventQuery(project_id=world.project_id, **fields))

    assert await latest(limit=1, before=(10, 1)) == 30
    assert await latest(until_ms=29) == 20
    assert await latest(breaker_id=pair[1], since_ms=30) is None


async def test_states_by_ids(world: World, pair: tuple[str, str]) -> None:
    """In creation order, each once, unknown ones and those of other projects left out."""
    a, b = pair
    states = await world.store.stored_states(world.project_id, [b, "nothing", a, b])
    assert [(state.breaker_id, state.transition_seq) for state in states] == [(a, 3), (b, 2)]
    assert await world.store.stored_states(world.project_id, []) == []
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    assert await world.store.stored_states(other.id, [a]) == []


async def test_snapshot(world: World, pair: tuple[str, str]) -> None:
    """All states with the journal position they were read at; an unknown project is NotFound."""
    snapshot = await world.store.stream_snapshot(world.project_id, 100)
    assert [state.breaker_id for state in snapshot.states] == list(pair)
    assert (snapshot.position, snapshot.gone) == (5, ())
    with pytest.raises(NotFound):
        await world.store.stream_snapshot("nothing", 100)


async def test_a_snapshot_is_of_one_instant(world: World) -> None:
    """While a journal commits, position and states always belong together."""
    row = await world.breaker("a")
    await world.own(row.id)

    async def commit() -> None:
        for seq in range(1, 101):
            await world.write(world.commit(row.id, 1, event(seq)))

    writing = asyncio.create_task(commit())
    seen = 0
    while not writing.done():
        snapshot = await world.store.stream_snapshot(world.project_id, 100)
        assert snapshot.states[0].transition_seq == snapshot.position
        seen += 1
    await writing
    assert seen > 1


async def test_all_questions_of_one_look_see_one_instant(world: World, backend: Backend) -> None:
    """What `breakers verify` counts and what it finds are of the same moment, beside a service that writes."""
    count = select(func.count()).select_from(t.breakers)
    with migrations.engine_of(backend.url) as engine, of_one_instant(engine).connect() as c, c.begin():
        before = c.execute(count).scalar_one()
        await world.breaker("meanwhile")
        assert c.execute(count).scalar_one() == before
