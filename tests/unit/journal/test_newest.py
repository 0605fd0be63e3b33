"""Commits that come again, behind what was stored since."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.journal import newest
from breaker_actors.journal.newest import Newest
from breaker_actors.messages import Commit
from breaker_actors.telemetry.meters import Meters
from tests.contract.store_world import event
from tests.unit.journal.test_groups import SlowStore, started


def commit(number: int, **fields: Any) -> Commit:
    values: dict[str, Any] = {
        "breaker_id": "b",
        "project_id": "p",
        "epoch": 1,
        "events": (),
        "state": "half_open",
        "allow_rate": 0.5,
        "transition_seq": 7,
        "record": b"",
        "applied_offsets": {},
        "number": number,
    }
    return Commit(**(values | fields))


def test_what_came_before_the_newest_is_late() -> None:
    known = Newest(Meters("journal", "journal-0"))
    known.note(commit(3))
    assert known.late([commit(2), commit(3), commit(4), commit(3, breaker_id="c")]) == ["ok", None, None, None]


def test_within_a_group_it_comes_again() -> None:
    """Nobody knows yet whether the later one is stored."""
    assert Newest(Meters("journal", "journal-0")).late([commit(3), commit(2), commit(3)]) == [None, "failed", None]


def test_a_move_that_comes_again_takes_nothing_back() -> None:
    """It is stored already, which the store says; what is newer stays so."""
    known, move = Newest(Meters("journal", "journal-0")), commit(1, events=(event(7),))
    for one in (commit(3), move):
        known.note(one)
    assert known.late([commit(2)]) == ["ok"]
    assert Newest(Meters("journal", "journal-0")).late([commit(3), move, commit(2)]) == [None, None, "failed"]


@pytest.mark.parametrize("fields", [{"epoch": 2}, {"epoch": 0}, {"number": 0}, {"events": (event(7),)}])
def test_epochs_and_moves_are_the_stores_affair(fields: dict[str, Any]) -> None:
    known = Newest(Meters("journal", "journal-0"))
    known.note(commit(3))
    assert known.late([commit(**({"number": 2} | fields))]) == [None]


def test_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest, "KNOWN_MAX", 2)
    known = Newest(Meters("journal", "journal-0"))
    for id_ in "abca":
        known.note(commit(3, breaker_id=id_))
    assert known.late([commit(2, breaker_id=id_) for id_ in "abc"]) == ["ok", None, "ok"]


async def test_a_call_that_arrives_again_takes_nothing_back() -> None:
    """Neither what is stored nor what streams show."""
    store = SlowStore()
    journal = await started(store)
    first, second = commit(1, announce=True), commit(2, allow_rate=1.0, announce=True)
    for one in (first, second, first):
        assert await journal.commit([one]) == ["ok"]
    assert len(store.groups) == 2
    page = await journal.poll(1, 0, 0.0)
    assert [entry.allow_rate for entry in page.entries] == [0.5, 1.0]
    await journal.stop()
