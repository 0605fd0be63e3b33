"""The demo's rules on its series, offline: the core alone, with the arrival times of a bad day."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from api.demo.play import LENGTH, SECONDS, _follow
from api.demo.screen import Board, Screen, left, plot, report
from api.demo.series import (
    BREAKERS,
    DATA,
    FAILED_ABOVE_MS,
    NAME,
    POINTS,
    POINTS_PER_POST,
    STEP_MS,
    Course,
    Series,
    load,
    summary,
    verdict,
)
from breaker_actors.core.model import Batch, Transition
from breaker_actors.core.rules import parse_rule
from pipelines.replay.reference import replay

START_MS = 1_700_000_000_000
ORIGINAL = "98378580aa80157e057c61d59d81daddccc6c65a2c0c800e3f01f603b8215c3f"
"""SHA-256 of the series as it was published."""


@pytest.fixture(scope="module")
def series() -> Series:
    return load()


def arrivals(series: Series, seed: int) -> tuple[Course, list[tuple[int, Batch]]]:
    """Posts at the demo's pace, 3 to 150 ms until the log has them, every twentieth after a pause of up to 0.8 s."""
    chance, course, batches, received_ms = random.Random(seed), Course(), [], 0
    due_ms = float(START_MS)
    for first in range(0, len(series), POINTS_PER_POST):
        values = series.batch.value[first : first + POINTS_PER_POST]
        due_ms += len(values) * STEP_MS + (chance.uniform(100, 800) if chance.random() < 0.05 else 0)
        stamps = [int(due_ms) - STEP_MS * back for back in reversed(range(len(values)))]
        received_ms = max(received_ms, int(due_ms + chance.uniform(3, 150)))
        course.sent_ms += stamps
        batches.append((received_ms, Batch(np.array(stamps, np.int64), values, values <= FAILED_ABOVE_MS)))
    return course, batches


def played(series: Series, seed: int, **changes: Any) -> dict[str, Any]:
    """The demo's outcome if the service did what the core says; `changes` to the shown breaker's rule."""
    course, batches = arrivals(series, seed)
    events = {}
    for number, body in enumerate(BREAKERS):
        fields = {k: v for k, v in body.items() if k != "name"} | (changes if number == 0 else {})
        effects = replay(parse_rule(fields), START_MS, batches, course.sent_ms[-1] + 700)
        events[body["name"]] = [
            {"prev": e.prev, "curr": e.curr, "ts_ms": e.ts_ms} for e in effects if isinstance(e, Transition)
        ]
    return summary(series, course, events)


@pytest.mark.parametrize("seed", range(5))
def test_every_trip_lies_in_a_labelled_failure(series: Series, seed: int) -> None:
    """Of all breakers, however late the samples come; the shown one sees two failures and closes in between."""
    outcome = played(series, seed)
    assert outcome["ok"]
    assert outcome["failures_seen"] == [2, 3]
    assert all(trip["place"] == "failure" for trips in outcome["trips"].values() for trip in trips)
    assert outcome["trips"][outcome["shown"]][0]["recovered"]


@pytest.mark.parametrize("threshold", [53, 54, 55, 56, 57])
@pytest.mark.parametrize("points", [20, 24, 30])
def test_the_rule_has_room_around_it(series: Series, threshold: int, points: int) -> None:
    """Neighbouring thresholds and windows give the same verdict: the rule is not fitted to the series."""
    assert played(series, seed=1, threshold=threshold, window_ms=points * STEP_MS)["ok"]


def test_a_false_trip_fails_the_demo(series: Series) -> None:
    assert not played(series, seed=1, threshold=48)["ok"]


def test_the_series_is_the_original(series: Series) -> None:
    """Point for point, with the labels of the benchmark."""
    assert sha256((DATA / NAME).read_bytes()).hexdigest() == ORIGINAL
    assert len(series) == 4032
    assert series.failures == ((2014, 2148), (3328, 3462), (3956, 4031))


def test_verdict_on_a_point(series: Series) -> None:
    assert verdict(series, 2014) == ("failure", 1)
    assert verdict(series, 2013) == ("outside", None)
    assert verdict(series, 2149) == ("tail", 1)
    assert verdict(series, 2282) == ("tail", 1)
    assert verdict(series, 2283) == ("outside", None)


def test_times_map_back_to_points() -> None:
    course = Course([100, 117, 134])
    assert [course.point_at(t) for t in (0, 100, 116, 117, 500)] == [0, 0, 0, 1, 2]
    assert not course.ended_by(134)
    assert course.ended_by(134 + POINTS_PER_POST * STEP_MS + 1)


def test_the_plot_fits_its_width(series: Series) -> None:
    """Each line is as wide as asked; what has not passed yet is blank."""
    lines = plot(series, ["closed"] * 2000 + ["open"] * 10, 80).plain.splitlines()
    assert {len(line) for line in lines[:-1]} == {80}
    assert all(line[60] in " ╌" for line in lines[:8])
    assert lines[7][10] != " "


def test_the_report_names_each_trip(series: Series) -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as capture:
        console.print(report(played(series, seed=2)))
    text = capture.get()
    assert "latency-p95 saw 2 of 3 labelled failures, 0 false trips." in text
    assert "in failure 3" in text
    assert re.search(r"latency-jitter saw [0-3] of 3\.", text)
    assert "open when the series" not in text


def test_an_unknown_state_is_closed_and_lets_all_pass() -> None:
    board = Board(words={"a": "open", "b": "half_open"}, rates={"a": None, "b": 0.4})
    assert [board.rate(name) for name in ("a", "b", "c")] == [0.0, 0.4, 1.0]


def test_it_says_how_long_it_takes(series: Series) -> None:
    assert len(series) == POINTS
    assert f" in {SECONDS} seconds" in LENGTH
    assert left(series, Board()) == "2014-03-07 03:41, 69 s left"
    assert left(series, Board(passed=["closed"] * POINTS)) == "2014-03-21 03:41, 0 s left"


async def test_a_transition_is_shown_at_the_time_of_its_event(series: Series) -> None:
    """As the summary has it, however late the stream tells it."""

    class Told:
        async def follow(self) -> AsyncIterator[dict[str, Any]]:
            for state in ("closed", "open"):
                yield {"breaker": "latency-p95", "state": state, "allow_rate": None}

        async def events(self, breaker_id: str) -> list[dict[str, Any]]:
            assert breaker_id == "id"
            return [{"curr": "open", "ts_ms": 17}, {"curr": "closed", "ts_ms": 34}]

    client: Any = Told()
    course, console = Course([0, 17, 34, 51]), Console(record=True, file=StringIO(), width=120)
    with Screen(series, board := Board(), console) as screen:
        await _follow(client, screen, board, course, {"latency-p95": "id"})
    assert series.time(1) in console.export_text()
