"""Trips against labelled failures, and time in each state, from effects told by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breaker_actors.core.model import BY_HAND, Agg, RateChange, StateWord, Transition
from breaker_actors.errors import Invalid
from pipelines.candidates import candidates
from pipelines.replay.run import Run
from pipelines.replay.scoring import EffectBudget, Labelled, Tally, labelled
from pipelines.report.incidents import caught_by, incidents_of
from tests.support.history import log_walked, made_up, made_up_log


def move(ts_ms: int, prev: StateWord, curr: StateWord) -> Transition:
    return Transition(
        prev=prev, curr=curr, ts_ms=ts_ms, transition_seq=1, reason="r", allow_rate=0.0, value=None, agg=Agg()
    )


COURSE = [
    move(100, "closed", "open"),
    move(150, "open", "half_open"),
    RateChange(ts_ms=160, allow_rate=0.4),
    move(170, "half_open", "open"),
    move(300, "open", "half_open"),
    move(350, "half_open", "closed"),
    move(500, "closed", "open"),
]


def scored(windows: list[Labelled], course: list[Any] = COURSE, grace_ms: int = 0, last_ms: int = 700) -> Tally:
    tally = Tally(windows, grace_ms)
    tally.tell(course)
    tally.finish(last_ms)
    return tally


def test_time_trips_and_windows() -> None:
    """Every move to open is a trip; an incident belongs to the windows it begins in, their ends included, or it is
    false."""
    tally = scored([Labelled(90, 100), Labelled(95, 160), Labelled(400, 450), Labelled(500, 600)])
    assert tally.time_in == {"closed": 100 + 150, "open": 50 + 130 + 200, "half_open": 20 + 50}
    assert (tally.transitions, tally.trips, tally.incidents) == (6, 3, 2)
    assert (tally.recoveries, tally.false_trips) == (1, 0)
    assert tally.first_trips == {0: 100, 1: 100, 3: 500}
    assert tally.latencies() == [10, 5, 0]
    assert scored([Labelled(400, 450)]).false_trips == 2, "incidents, not trips"


def by_hand(ts_ms: int, prev: StateWord, curr: StateWord, reason: str) -> Transition:
    return replace(move(ts_ms, prev, curr), reason=reason, by="sam")


def test_the_machine_is_counted_and_what_callers_saw_beside_it() -> None:
    """A hidden trip counts, a forced one does not; what callers saw is told beside it."""
    tally = Tally([Labelled(190, 210)])
    tally.begin(0)
    tally.tell(
        [
            by_hand(100, "closed", "open", "forced_open"),
            replace(move(200, "closed", "open"), hidden_by="override"),
            replace(move(250, "open", "half_open"), hidden_by="override"),
            by_hand(300, "open", "half_open", "override_expired"),
            move(400, "half_open", "closed"),
        ]
    )
    tally.leave(500)
    assert tally.time_in == {"closed": 200 + 100, "open": 50, "half_open": 150}
    assert tally.shown_in == {"closed": 100 + 100, "open": 200, "half_open": 100}
    assert (tally.transitions, tally.trips, tally.shown_trips, tally.incidents, tally.recoveries) == (5, 1, 1, 1, 1)
    assert (tally.first_trips, tally.false_trips) == ({0: 200}, 0)
    assert tally.course == [(200, "open"), (250, "half_open"), (400, "closed")]


def test_an_override_that_ends_in_half_open_moves_the_machine() -> None:
    """Though nothing may tell it; it is no trip."""
    tally = Tally()
    tally.begin(0)
    tally.tell([replace(move(100, "closed", "open"), hidden_by="override")])
    tally.steer(200)
    tally.tell([RateChange(ts_ms=200, allow_rate=0.2), move(300, "half_open", "open")])
    tally.steer(350)
    tally.leave(400)
    assert tally.course == [(100, "open"), (200, "half_open"), (300, "open"), (350, "half_open")]
    assert tally.time_in == {"closed": 100, "open": 150, "half_open": 150}
    assert (tally.trips, tally.incidents) == (2, 1)


@pytest.mark.parametrize("seed", range(5000, 5060))
def test_the_course_of_the_machine_is_whole(seed: int) -> None:
    """Each of its moves begins where the last one ended, and in the end it is where the breaker is."""
    rule, samples = made_up(seed, 300)
    log, tally = made_up_log(seed, samples, controls=12), CheckedTally()
    tally.begin(log.created_ms)
    record = log_walked(rule, samples, log, chunk_rows=100, tally=tally)[1]
    tally.leave(log.until_ms)
    assert tally.state == record.state
    assert sum(tally.time_in.values()) == sum(tally.shown_in.values())


class CheckedTally(Tally):
    def _go(self, curr: StateWord, at_ms: int) -> None:
        assert at_ms >= self.since_ms
        super()._go(curr, at_ms)

    def _move(self, move: Transition) -> None:
        if move.reason not in BY_HAND:
            assert move.prev == self.state
        super()._move(move)


def test_grace() -> None:
    """Right behind a window an incident still belongs to it."""
    tally = scored([Labelled(90, 99), Labelled(400, 450)], grace_ms=50)
    assert (tally.false_trips, tally.first_trips) == (0, {0: 100, 1: 500})
    assert scored([Labelled(90, 99), Labelled(400, 450)]).false_trips == 2


@pytest.mark.parametrize(
    ("window", "grace_ms", "caught"),
    [
        (Labelled(106, 200), 0, True),  # tripped 6 before, open when it begins
        (Labelled(160, 200), 0, False),  # 60 before, for a failure of 40
        (Labelled(160, 200), 20, True),
        (Labelled(160, 230), 0, True),  # half_open just then
        (Labelled(350, 499), 0, False),  # closed again when it begins
        (Labelled(699, 1000), 0, True),  # not over when the samples end
    ],
)
def test_open_already_when_a_failure_begins(window: Labelled, grace_ms: int, caught: bool) -> None:
    """Then it is caught at once, if what opened it began at most as long before as the failure lasts."""
    tally = scored([window], grace_ms=grace_ms)
    assert tally.latencies() == [0] * caught
    assert tally.false_trips == 2 - caught


def test_re_trips_belong_to_their_incident() -> None:
    """Right behind the failure that it caught, they are not false."""
    assert scored([Labelled(90, 110), Labelled(500, 510)]).false_trips == 0


def test_failures_close_together() -> None:
    """An incident that caught one is open already for the next; one that never closes does not catch all."""
    tally = scored([Labelled(90, 150), Labelled(200, 260), Labelled(299, 310)])
    assert tally.first_trips == {0: 100, 1: 100}
    forever = scored([Labelled(k, k + 100) for k in range(1000, 9000, 1000)], [move(100, "closed", "open")], 0, 10_000)
    assert (forever.first_trips, forever.false_trips) == ({}, 1)
    nested = scored([Labelled(90, 600), Labelled(110, 120)])
    assert nested.first_trips == {0: 100, 1: 100}


def test_the_page_tells_the_same() -> None:
    """Which incidents belong to a failure."""
    for window in (Labelled(106, 200), Labelled(160, 200), Labelled(90, 110), Labelled(350, 360), Labelled(700, 900)):
        tally = scored([window])
        run = Run(candidates({"metric": "m", "kind": "avg", "op": "gt", "threshold": 1})[0], tally, last_ms=700)
        told = [bool(caught_by(one, [window], 0)) for one in incidents_of(run)]
        assert told.count(False) == tally.false_trips
        assert any(told) is bool(tally.first_trips)


def test_what_is_kept_is_bounded() -> None:
    """For all breakers together; what is only counted takes no budget."""
    budget = EffectBudget(10)
    one, other, counted = Tally(budget=budget), Tally(budget=budget), Tally(kept=False, budget=budget)
    one.tell(COURSE)
    counted.tell(COURSE)
    with pytest.raises(Invalid, match="what is tried moves more than 10 times"):
        other.tell(COURSE)
    assert (len(one.effects), len(other.effects), len(counted.effects), counted.transitions) == (7, 3, 0, 6)


def test_labelled_windows(tmp_path: Path) -> None:
    """A list, or an object of lists per file; milliseconds or ISO 8601."""
    path = tmp_path / "windows.json"
    path.write_text(
        json.dumps({"a.csv": [[5, 9], [1, 2]], "b.csv": [["1970-01-01T00:00:01", 2000]], "c.csv": [[7, 7]]})
    )
    assert labelled(path, ["a.csv", "b.csv"]) == [Labelled(1, 2), Labelled(5, 9), Labelled(1000, 2000)]
    assert labelled([(1, 2), Labelled(0, 5)], []) == [Labelled(0, 5), Labelled(1, 2)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"b.csv": []}, "windows: nothing for a.csv; there is b.csv; give the list of one alone where names differ"),
        (7, "windows: expected a list of [start, end]"),
        ([[1]], "windows, window 1: expected [start, end]"),
        ([[1, 2], [5, 4]], "windows, window 2: it ends before it starts"),
        ([[1, "later"]], 'window 1: "later" is not a time'),
        ([[True, 2]], "window 1: true is not a time"),
        ("none.json", "none.json can't be read"),
    ],
)
def test_wrong_windows_are_refused(given: Any, words: str) -> None:
    with pytest.raises(Invalid) as raised:
        labelled(given, ["a.csv"])
    assert words in str(raised.value)


def test_windows_that_are_not_json(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("[[1, 2],\n")
    with pytest.raises(Invalid, match=r"w\.json, line 2: not JSON"):
        labelled(tmp_path / "w.json", ["a.csv"])
