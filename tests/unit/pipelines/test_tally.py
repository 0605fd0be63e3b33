"""Trips against labelled failures, and time in each state, from effects told by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.model import Agg, RateChange, StateWord, Transition
from breaker_actors.errors import Invalid
from pipelines.replay.scoring import EffectBudget, Labelled, Tally, labelled


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


def test_time_trips_and_windows() -> None:
    """Every move to open is a trip; it belongs to the windows it lies in, their ends included, or it is false."""
    tally = Tally([Labelled(90, 100), Labelled(95, 160), Labelled(400, 450), Labelled(500, 600)], since_ms=0)
    tally.tell(COURSE)
    tally.leave(700)
    assert tally.time_in == {"closed": 100 + 150, "open": 50 + 130 + 200, "half_open": 20 + 50}
    assert (tally.transitions, tally.trips, tally.incidents) == (6, 3, 2)
    assert (tally.recoveries, tally.false_trips) == (1, 1)
    assert tally.first_trips == {0: 100, 1: 100, 3: 500}
    assert tally.latencies() == [10, 5, 0]


def test_grace() -> None:
    """Right behind a window a trip still belongs to it."""
    tally = Tally([Labelled(90, 160), Labelled(400, 450)], grace_ms=50)
    tally.tell(COURSE)
    assert (tally.false_trips, tally.first_trips) == (0, {0: 100, 1: 500})


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
        ({"b.csv": []}, "windows: nothing for a.csv; there is b.csv"),
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
