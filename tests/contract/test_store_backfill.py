"""Store: events of history that was loaded afterwards, beside those that happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from breaker_actors.store.rows import EventQuery, EventRow, StoredState
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World, event

DAY_MS = 86_400_000


async def _read(world: World, **fields: Any) -> list[EventRow]:
    return await world.store.events(EventQuery(project_id=world.project_id, **fields))


async def _places(world: World, **fields: Any) -> list[tuple[str, int, int]]:
    return [(row.source, row.ts_ms, row.sequence) for row in await _read(world, **fields)]


async def _states(world: World) -> list[StoredState]:
    return sorted(await world.store.stored_states(world.project_id), key=lambda state: -state.transition_seq)


@pytest.fixture
async def breaker_id(world: World) -> str:
    """A breaker with live events at 10, 30, 30 (sequences 1 to 3) and loaded ones at 5, 30, 30 (numbers 1 to 3)."""
    row = await world.breaker("a")
    await world.own(row.id)
    for seq, ts_ms in enumerate((10, 30, 30), 1):
        assert await world.write(world.commit(row.id, 1, event(seq, ts_ms=ts_ms))) == ["ok"]
    loaded = [(row.id, event(seq, ts_ms=ts_ms)) for seq, ts_ms in enumerate((5, 30, 30), 1)]
    await world.store.add_backfill_events(world.project_id, "run-1", loaded, 100)
    return row.id


async def test_they_are_listed_only_when_asked_for(world: World, breaker_id: str) -> None:
    assert await _places(world) == [("live", 30, 3), ("live", 30, 2), ("live", 10, 1)]
    assert await _places(world, source="backfill") == [("backfill", 30, 3), ("backfill", 30, 2), ("backfill", 5, 1)]
    assert {row.run_id for row in await _read(world, source="backfill")} == {"run-1"}
    assert {row.run_id for row in await _read(world)} == {None}


async def test_both_in_one_list(world: World, breaker_id: str) -> None:
    """By time; at equal times what happened comes first. Pages of any size go on where the last one ended."""
    whole = await _places(world, source="all")
    assert whole == [
        ("live", 30, 3),
        ("live", 30, 2),
        ("backfill", 30, 3),
        ("backfill", 30, 2),
        ("live", 10, 1),
        ("backfill", 5, 1),
    ]
    for limit in (1, 2, 3, 5):
        page, paged = await _places(world, source="all", limit=limit), []
        while page:
            paged += page
            source, ts_ms, sequence = page[-1]
            page = await _places(world, source="all", limit=limit, before=(ts_ms, sequence), before_source=source)
        assert paged == whole


async def test_filters_and_the_latest(world: World, breaker_id: str) -> None:
    assert await _places(world, source="backfill", since_ms=5, until_ms=30, limit=1) == [("backfill", 30, 3)]
    assert await _places(world, source="backfill", after_sequence=1, limit=1) == [("backfill", 30, 2)]
    assert await _places(world, source="all", breaker_id="nothing") == []
    query = EventQuery(project_id=world.project_id, until_ms=9, source="all")
    assert await world.store.latest_event_ms(query) == 5
    assert await world.store.latest_event_ms(EventQuery(project_id=world.project_id, until_ms=9)) is None


async def test_a_run_may_be_repeated(world: World, breaker_id: str) -> None:
    """What it stored stays as it is, what was missing is added, also when two do it at once; another run is its own."""
    before = await _read(world, source="backfill")
    again = [(breaker_id, event(seq, ts_ms=1000 + seq)) for seq in range(1, 6)]
    await asyncio.gather(
        *(world.store.add_backfill_events(world.project_id, "run-1", again, 200) for _ in range(3)),
    )
    after = await _read(world, source="backfill")
    assert len(after) == 5
    assert [row for row in after if row.transition_seq <= 3] == before
    await world.store.add_backfill_events(world.project_id, "run-2", again[:1], 200)
    assert [row.run_id for row in await _read(world, source="backfill", limit=3)].count("run-2") == 1
    await world.store.add_backfill_events(world.project_id, "run-2", [], 200)


async def test_they_are_kept_by_when_they_were_loaded(world: World, breaker_id: str) -> None:
    """Old history that was loaded today stays as long as what happened today."""
    assert (await world.store.prune(100))["backfill_events"] == 0
    assert (await world.store.prune(101))["backfill_events"] == 3
    assert await _read(world, source="backfill") == []


async def test_nothing_goes_to_channels_or_streams(world: World, breaker_id: str) -> None:
    """A trip is told to a channel and to the project's Slack address; one of history is not: no outbox row is born, no
    sequence of the journal is taken, and states stay as they are."""
    told = OutboxWorld(world)
    await told.channel("trip", "recover")
    await world.store.update_project(world.project_id, {"slack_webhook_url": "https://hooks.slack.example/T0"}, 50)
    row = await told.breaker("b")
    await told.moves(row.id, "open")
    assert (await world.store.outbox_depth())[0] == 2
    head, states = await world.store.journal_head(world.journal.shard), await _states(world)
    assert [state.transition_seq for state in states] == [3, 1]
    trips = [(id_, event(seq, ts_ms=40 + seq)) for id_ in (breaker_id, row.id) for seq in range(4, 7)]
    await world.store.add_backfill_events(world.project_id, "run-2", trips, 200)
    assert len(await _read(world, source="backfill")) == 3 + 6
    assert (await world.store.outbox_depth())[0] == 2
    assert await world.store.journal_head(world.journal.shard) == head
    assert await _states(world) == states
