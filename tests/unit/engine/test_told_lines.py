"""A line for each stored transition and each change of configuration; never for what was undone, never without end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from breaker_actors.journal.transition_lines import LINES_AT_ONCE, LINES_PER_S, TransitionLines
from breaker_actors.messages import Commit, EventDraft
from breaker_actors.store.config.audit_log import LINES_MAX, Note, Place, write_down
from breaker_actors.store.rows import BreakerItem
from breaker_actors.telemetry.after_commit import after_commit, said_at_the_end
from breaker_actors.telemetry.meters import Meters
from tests.support.cluster import FAST_RULE, service


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with capture_logs() as found:
        yield found


def of(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


async def test_each_stored_transition_and_each_change_has_a_line(tmp_path: Path, lines: list[Any]) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker("checkout", cooldown_ms=60_000)
        await s.send(row.router_ids[0], [900.0] * 3)
        await s.in_state(row.id, "open")
        (event,) = await s.events(row.id)
    (line,) = of(lines, "transition")
    told = {"name": "checkout", "prev": "closed", "curr": "open", "value": 900.0, "allow_rate": 0.0}
    told |= {"breaker_id": row.id, "project_id": s.project.id, "reason": event.reason, "transition_seq": 1}
    assert told.items() <= line.items()
    changes = {(line["action"], line.get("name")) for line in of(lines, "change")}
    assert {("breaker.create", "checkout"), ("router.create", "checkout")} & changes


async def test_what_was_undone_has_no_line(tmp_path: Path, lines: list[Any]) -> None:
    def work(c: Connection) -> None:
        write_down(c, Place("key k", 1, s.project.id), [Note("breaker.create", "b", None, {"name": "b"})])
        raise Invalid("no")

    async with service(tmp_path) as s:
        with pytest.raises(Invalid):
            await s.store._db.write(work)
    assert "b" not in [line["target_id"] for line in of(lines, "change")]


async def test_of_many_changes_at_once_a_few_have_lines(tmp_path: Path, lines: list[Any]) -> None:
    rule = parse_rule(FAST_RULE)
    many = [BreakerItem(rule=rule, name=f"b{n}") for n in range(3 * LINES_MAX)]
    async with service(tmp_path) as s:
        lines.clear()
        await s.store.replace_breakers(s.project.id, many, lambda rows, removed: None, 1)
        rows = await s.store.audit(s.project.id, 1_000)
    assert len(of(lines, "change")) == LINES_MAX
    made = [row for row in rows if row.action != "project.create"]
    assert sum(line["n"] for line in of(lines, "changes_unlogged")) + LINES_MAX == len(made)


def commits(n: int) -> list[Commit]:
    event = EventDraft(
        name="b", prev="closed", curr="open", ts_ms=1, transition_seq=1, reason="trip", allow_rate=0.0, value=1.0,
        rule={}, agg={},
    )  # fmt: skip
    one = Commit(
        breaker_id="b", project_id="p", epoch=1, events=(event,), state="open", allow_rate=0.0, transition_seq=1,
        record=b"", applied_offsets={},
    )  # fmt: skip
    return [one] * n


def test_a_storm_of_transitions_is_none_of_lines(lines: list[Any]) -> None:
    meters = Meters("journal", "journal-0")
    told = TransitionLines(meters)
    told.write(commits(LINES_AT_ONCE + 300), 100.0)
    assert len(of(lines, "transition")) == LINES_AT_ONCE
    assert meters.value("breakers_transitions_unlogged_total") == 300
    told.write(commits(LINES_PER_S + 10), 101.0)
    assert len(of(lines, "transition")) == LINES_AT_ONCE + LINES_PER_S
    assert [line["n"] for line in of(lines, "transitions_unlogged")] == [300]


def test_what_is_said_waits_for_the_end() -> None:
    said: list[str] = []

    @said_at_the_end()
    def undone() -> None:
        after_commit(lambda: said.append("undone"))
        raise KeyError

    with pytest.raises(KeyError):
        undone()
    with said_at_the_end():
        after_commit(lambda: said.append("held"))
        assert said == []
    after_commit(lambda: said.append("outside"))
    assert said == ["held", "outside"]


async def test_a_line_names_who_made_the_change(tmp_path: Path, lines: list[Any]) -> None:
    """By the name of the key, whose id alone tells a reader of the log nothing."""
    async with service(tmp_path) as s:
        row, _ = await s.store.create_key(s.project.org_id, "user", "ana", 1)
        lines.clear()
        await s.store.update_project(s.project.id, {"name": "shop"}, 2, by=row.id)
        await s.store.update_project(s.project.id, {"name": "store"}, 3, by="command line")
    assert [(line["who"], line.get("who_name")) for line in of(lines, "change")] == [
        (row.id, "ana"),
        ("command line", None),
    ]
