"""Tries of what can't be stored: each breaker's ever later, those of all of them one after the other."""

from __future__ import annotations

import pytest

from breaker_actors.journal import unstorable
from breaker_actors.journal.unstorable import GAP_S, PAUSE_MAX_S, PAUSE_S, Unstorable


def test_pauses_double_up_to_a_bound() -> None:
    tries, now = Unstorable(), 100.0
    waits = []
    for _ in range(12):
        tries.note("b", now)
        waits.append(tries.wait_s("b", now))
        now += waits[-1]
        assert tries.wait_s("b", now) == 0
    assert [round(wait, 6) for wait in waits[:4]] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S, 8 * PAUSE_S]
    assert waits[-2:] == [PAUSE_MAX_S] * 2
    assert "b" in tries
    tries.forget("b")
    assert "b" not in tries
    assert tries.wait_s("b", now) == 0


def test_many_are_tried_one_after_the_other_each_in_its_turn() -> None:
    tries = Unstorable()
    ids = [f"b{number}" for number in range(2_000)]
    for id_ in ids:
        tries.note(id_, 0.0)
    waits = [tries.wait_s(id_, 1.0) for id_ in ids]
    assert [round(wait / GAP_S) for wait in waits[:1_200]] == list(range(1_200))
    assert waits[-1] == PAUSE_MAX_S
    assert tries.wait_s(ids[100], 1.0 + 100 * GAP_S) == 0, "a turn is kept"
    assert tries.wait_s(ids[-1], 1.0 + PAUSE_MAX_S) > 0
    assert tries.wait_s("another", 1.0) == 0


def test_of_too_many_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstorable, "KNOWN_MAX", 2)
    tries = Unstorable()
    for id_ in ("a", "b", "a", "c"):
        tries.note(id_, 0.0)
    assert [id_ in tries for id_ in "abc"] == [True, False, True]
