"""A shadow beside what it watches: stretches in which they differ."""

from __future__ import annotations

from api.wire.comparison import Course, compare, course_of
from breaker_actors.core.model import StateWord
from breaker_actors.store.rows import EventRow


def event(ts_ms: int, prev: StateWord, curr: StateWord, reason: str = "threshold_exceeded") -> EventRow:
    return EventRow(
        name="a",
        prev=prev,
        curr=curr,
        ts_ms=ts_ms,
        transition_seq=1,
        reason=reason,
        allow_rate=0.0,
        value=None,
        rule={},
        agg={},
        sequence=1,
        project_id="p",
        breaker_id="b",
    )


def test_moves_by_hand_are_none_of_the_machine() -> None:
    """The state before the span is that of the last move of the machine."""
    rows = [event(20, "closed", "open", "forced_open"), event(30, "open", "half_open")]
    assert course_of(rows, [event(5, "open", "closed", "override_ended"), event(3, "closed", "open")], 10) == [
        (10, "open"),
        (30, "half_open"),
    ]
    assert course_of([], [], 10) == [(10, "closed")]


def test_stretches_that_differ() -> None:
    """Neighbours of one kind are one stretch; the end of the span ends the last."""
    shadow: Course = [(0, "closed"), (10, "open"), (40, "half_open"), (60, "closed")]
    watched: Course = [(0, "closed"), (20, "open"), (40, "half_open"), (90, "open")]
    found = compare(("s", "w"), shadow, watched, 0, 100)
    told = [(one.from_ms, one.to_ms, one.shadow, one.watched) for one in found.differences]
    assert told == [(10, 20, "open", "closed"), (60, 90, "closed", "half_open"), (90, 100, "closed", "open")]
    assert (found.differing, found.differing_ms) == (3, 50)
    assert (found.shadow.trips, found.shadow.open_ms, found.shadow.closed_ms) == (1, 30, 50)
    assert (found.watched.trips, found.watched.open_ms, found.watched.half_open_ms) == (2, 30, 50)


def test_alike_all_the_time() -> None:
    found = compare(("s", "w"), [(0, "closed")], [(0, "closed")], 0, 50)
    assert (found.differing, found.differences, found.shadow.closed_ms) == (0, [], 50)
