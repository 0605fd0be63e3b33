"""What is told of stored rows that are not as they have to be: honest ones never, and nobody's hide another's."""

from __future__ import annotations

import dataclasses
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from breaker_actors.core.model import Agg, HiddenBy, StateWord, Transition
from breaker_actors.messages import EventDraft, MoreFaults
from breaker_actors.store import checksums, migrations
from breaker_actors.store.faults import TOLD_MAX, Found, faults
from breaker_actors.store.secrets import SecretBox
from tests.contract.backends import Backend
from tests.contract.store_world import RULE, World, draft, event

MINUTE = 60_000
MOVES: tuple[tuple[StateWord, StateWord], ...] = (("open", "closed"), ("closed", "open"))


@pytest.fixture
async def breaker_id(world: World) -> str:
    row = await world.breaker("a")
    await world.own(row.id)
    return row.id


def look(backend: Backend) -> Found:
    with migrations.engine_of(backend.url) as engine, engine.connect() as c:
        return faults(c, SecretBox(b"k" * 32), MINUTE, 30)


def changes(backend: Backend, sql: str) -> None:
    with migrations.engine_of(backend.url) as engine, engine.begin() as c:
        c.execute(sa.text(sql))


def words(found: Found) -> list[str]:
    """Of events; the contents of the builders' records are no records."""
    return [fault.words for fault in found.told if fault.kind == "event"]


def valued(value: Any, seq: int = 1, **fields: Any) -> EventDraft:
    return msgspec.structs.replace(event(seq, **fields), value=value, ts_ms=seq)


@pytest.mark.parametrize("value", [-0.0, 0.0, 0, -5e-324, 1.7e308, None])
@pytest.mark.parametrize("by", ["this version", "an earlier version"])
async def test_an_event_of_any_value_is_as_it_was_written(
    world: World, breaker_id: str, backend: Backend, monkeypatch: pytest.MonkeyPatch, value: float | None, by: str
) -> None:
    """SQLite has no -0.0. Earlier versions hashed its sign."""
    if by == "an earlier version" and str(value) == "-0.0":
        signed = partial(checksums.event_checksum, zero=-0.0)
        monkeypatch.setattr(checksums, "event_checksum", lambda row, before: signed(row, before))
    draft = msgspec.structs.replace(valued(value), agg={"avg": value, "p95": value})
    assert await world.write(world.commit(breaker_id, 1, draft)) == ["ok"]
    monkeypatch.undo()
    assert words(look(backend)) == []
    changes(backend, "UPDATE events SET value = 1.5")
    assert words(look(backend)) == ["event 1 is not what was written"]


@pytest.mark.parametrize("value", [-0.0, 0.0])
def test_a_move_at_minus_zero_is_told_as_zero(value: float) -> None:
    move = Transition(
        prev="closed", curr="open", ts_ms=1, transition_seq=1, reason="r", allow_rate=0.0, value=value, agg=Agg()
    )
    assert str(EventDraft.of("a", RULE, move).value) == "0.0"


@pytest.mark.parametrize(
    ("hidden_by", "told"), [("observe", []), (None, ["event 1 moves from half_open: a breaker begins closed"])]
)
async def test_the_first_move_that_callers_see_is_one_from_closed(
    world: World, breaker_id: str, backend: Backend, hidden_by: HiddenBy | None, told: list[str]
) -> None:
    """One that observes and was to begin a ramp behind an override came to half_open without a move."""
    draft = msgspec.structs.replace(event(1, "half_open", "open"), hidden_by=hidden_by)
    state: StateWord = "closed" if hidden_by else "open"
    assert await world.write(world.commit(breaker_id, 1, draft, state=state, allow_rate=float(state == "closed"))) == [
        "ok"
    ]
    assert words(look(backend)) == told


async def test_one_made_again_by_a_clock_hours_behind_is_none(world: World, breaker_id: str, backend: Backend) -> None:
    """Its predecessor was open. Nothing but what is written first of it tells that it is another."""
    now_ms = 5 * 3_600_000
    assert await world.write(world.commit(breaker_id, 1, event(1, ts_ms=now_ms), state="open")) == ["ok"]
    await world.store.delete_breaker(world.project_id, breaker_id, now_ms)
    await world.store.create_breaker(world.project_id, draft("a", id=breaker_id), 1)

    def told() -> list[str]:
        return [fault.words for fault in look(backend).told if fault.words.startswith(("event", "its state"))]

    assert told() == []
    epoch = await world.own(breaker_id)
    assert await world.write(world.commit(breaker_id, epoch, event(2, ts_ms=now_ms - 1), state="open")) == ["ok"]
    assert told() == []
    changes(backend, "UPDATE records SET state = 'closed'")
    assert told() == ["its state is closed after transition 2, its last event leads to open with transition 2"]


async def test_one_made_again_begins_closed(world: World, breaker_id: str, backend: Backend) -> None:
    assert await world.write(world.commit(breaker_id, 1, event(1))) == ["ok"]
    await world.store.delete_breaker(world.project_id, breaker_id, 2)
    await world.store.create_breaker(world.project_id, draft("a", id=breaker_id), MINUTE)
    epoch = await world.own(breaker_id)
    assert await world.write(world.commit(breaker_id, epoch, event(2, "open", "half_open"))) == ["ok"]
    assert words(look(backend)) == ["event 2 moves from open: a breaker begins closed"]


async def test_one_made_again_is_not_every_event_without_a_link(
    world: World, breaker_id: str, backend: Backend
) -> None:
    """One whose checksum went with its link was not written so."""
    moves = [event(1), event(2, "open", "half_open")]
    assert await world.write(world.commit(breaker_id, 1, *moves)) == ["ok"]
    changes(backend, "UPDATE events SET before = NULL, checksum = NULL, prev = 'closed' WHERE transition_seq = 2")
    told = words(look(backend))
    assert "event 2 was written behind another event 1 than the one that is there" in told
    assert "event 2 moves from closed, event 1 led to open" in told


async def test_a_project_with_many_faults_hides_no_other(world: World, breaker_id: str, backend: Backend) -> None:
    """Of a kind and project TOLD_MAX are told, and how many more there are."""
    project = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    other = dataclasses.replace(world, project_id=project.id)
    last = await other.breaker("last", now_ms=1)
    epoch = await other.own(last.id)
    moves = [event(seq, *(MOVES[seq % 2]), ts_ms=seq) for seq in range(1, TOLD_MAX + 8)]
    assert await world.write(world.commit(breaker_id, 1, *moves)) == ["ok"]
    other.journal = world.journal
    assert await other.write(other.commit(last.id, epoch, event(1))) == ["ok"]
    changes(backend, "UPDATE events SET reason = 'other'")
    changes(backend, f"UPDATE events SET breaker_id = '~' WHERE project_id = '{project.id}'")  # behind all others
    found = look(backend)
    whose = Counter(fault.project_id for fault in found.told if fault.kind == "event")
    assert whose == {world.project_id: TOLD_MAX, project.id: 1}
    # of each move back the allow_rate is none of a closed breaker's, and no breaker moves so
    assert found.more == [MoreFaults("event", world.project_id, 7 + 2 * (len(moves) // 2))]
