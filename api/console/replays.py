"""A breaker's recorded samples, read once and kept in memory, and what rules do on them: values, stays and moves.

Polars comes with this module, so it is imported with the first chart that somebody opens, and not before. All of it
runs in the thread of `recorded.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import Transition
from breaker_actors.errors import Invalid, Overloaded
from pipelines.candidates import Candidate
from pipelines.replay.downsample import Sketch
from pipelines.replay.memory import rows_within
from pipelines.replay.results import cause, moves
from pipelines.replay.run import Run, replayed
from pipelines.replay.scoring import EffectBudget, Labelled, Tally
from pipelines.replay.vectorized.engine import WindowsTooLarge
from pipelines.sources.files import Born, ControlSet, InForce
from pipelines.sources.service_log import Recorded

SAMPLES_MAX = 500_000
"""Of one breaker that are kept; of more the newest ones."""
MEMORY_MB = 456
"""What a replay may take, as `pipelines.replay.memory` counts: 400,000 samples at a time."""
EFFECTS_MAX = 50_000
EVALUATIONS = 64
"""Between two looks at whether it takes too long: 10 ms at most."""
LOOKS = 9_600
"""Instants of a chart at which the value is looked at, where there are samples."""
POINTS = 1_200
"""Of them those that a chart gets: lowest and highest of each stretch."""
BANDS = 400
"""Stays that a chart gets; shorter ones are drawn as one, of the worst state among them."""
MOVES_MAX = 20_000
WORST = {"closed": 0, "half_open": 1, "open": 2}
Item = pl.DataFrame | Born | ControlSet | Gap | InForce
Point = tuple[int, float | None]
Band = tuple[str, int, int]


class TooSlow(Exception):
    """Reading takes longer than it may; `covered_ms`: how long a span was read until then."""

    def __init__(self, covered_ms: int) -> None:
        super().__init__(covered_ms)
        self.covered_ms = covered_ms


class Kept:
    """A source: what was read of one breaker's samples. `left_out`: older ones that are not among them."""

    def __init__(self, items: Sequence[Item], log: Recorded, left_out: int) -> None:
        self.names, self.breaker, self.window_samples_max = log.names, log.breaker, log.window_samples_max
        self.remarks, self.passed_over = list(log.remarks), log.passed_over
        self.left_out, self._items = left_out, items
        frames = [item for item in items if isinstance(item, pl.DataFrame) and len(item)]
        self.samples = sum(map(len, frames))
        self.bytes = int(sum(frame.estimated_size() for frame in frames))
        self.first_ms = int(frames[0]["received_ms"][0]) if frames else 0
        self.last_ms = int(frames[-1]["received_ms"][-1]) if frames else 0
        self.gaps = [(item.from_ms, item.to_ms) for item in items if isinstance(item, Gap)]
        self.end_ms = max([self.last_ms, *map(_until, items)])

    def rows(self) -> int | None:
        return self.samples

    def batches(self) -> Iterator[pl.DataFrame]:
        return (item for item in self._items if isinstance(item, pl.DataFrame))

    def items(self) -> Iterator[Item]:
        return iter(self._items)


def _until(item: Item) -> int:
    """How far the time of a replay goes on with something that is no sample."""
    if isinstance(item, Gap):
        return item.to_ms
    return item.at_ms if isinstance(item, ControlSet | InForce) else 0


def keep(log: Recorded, late: Callable[[], bool], most: int = SAMPLES_MAX) -> Kept:
    """Reads the samples of a breaker; of more than `most` the newest ones stay, with the rule and the control that were
    in force when they begin. Raises TooSlow once it is `late`."""
    items: deque[Item] = deque()
    rows = left_out = first_ms = 0

    def watch(received_ms: int) -> None:
        nonlocal first_ms
        first_ms = first_ms or received_ms
        if late():
            raise TooSlow(received_ms - first_ms)

    log.watch = watch
    for item in log.items():
        if isinstance(item, pl.DataFrame):
            unread = ["metric", "trace_id"]  # of a kilobyte each, if their sender likes
            item = item.drop([*unread, "count"] if (item["count"] == 1).all() else unread)
            rows += len(item)
        items.append(item)
        while rows > most:
            gone = _drop(items, rows - most)
            rows, left_out = rows - gone, left_out + gone
    return Kept(list(items), log, left_out)


def _drop(items: deque[Item], excess: int) -> int:
    """Takes the oldest samples away, at least one frame of them or `excess`; how many. What was said before the first
    that stays, still holds: of rules and controls the last ones."""
    empty, rule, control = items.popleft(), None, None
    assert isinstance(empty, pl.DataFrame), "a source begins with a frame that has all columns"
    gone = min(excess, len(empty))
    rest = empty[gone:]
    while items and not gone:
        item = items.popleft()
        if isinstance(item, InForce):
            rule = item if rule is None else InForce(item.at_ms, item.rule, rule.longest_ms)
        elif isinstance(item, ControlSet) or (isinstance(item, Born) and item.control is not None):
            assert item.control is not None
            control = ControlSet(item.at_ms, item.control)
        elif isinstance(item, pl.DataFrame):
            gone = min(excess, len(item))
            rest = item[gone:]
    items.extendleft(one for one in (rest, control, rule) if one is not None)
    items.appendleft(rest.clear())
    return gone


class Looks(Sketch):
    """The value that a breaker found at instants of a span, and nothing of the samples."""

    def __init__(self, from_ms: int, to_ms: int, last_ms: int) -> None:
        super().__init__(from_ms, max(min(to_ms, last_ms), from_ms + 1), LOOKS)
        self.ends = np.unique(np.append(self.ends, max(last_ms, to_ms) + 1))
        self.within = from_ms, to_ms

    def add(self, samples: Any) -> None:
        """Samples are not drawn."""

    def found(self) -> list[tuple[int, float]]:
        """Within the span."""
        from_ms, to_ms = self.within
        return [(at, value) for at, value in self.values if from_ms <= at <= to_ms]


class Course(NamedTuple):
    """What one rule does: its values within a span, its stays and its moves, and what they come to."""

    values: list[tuple[int, float]]
    stays: list[Band]
    moves: list[Transition]
    run: Run


def courses(
    kept: Kept,
    rules: Sequence[Candidate],
    late: Callable[[], bool],
    span: tuple[int, int] | None = None,
    windows: list[Labelled] | None = None,
    grace_ms: int = 0,
) -> list[Course]:
    """One pass of these rules over what is kept; `span`: of their values, or all. Raises Invalid, and Overloaded once
    it is `late`."""
    if not kept.samples:
        raise Invalid(f"{', '.join(kept.names)}: no sample of it is recorded")
    from_ms, to_ms = span or (kept.first_ms, kept.end_ms)
    from_ms = max(from_ms, min(kept.first_ms, to_ms))
    budget = EffectBudget(EFFECTS_MAX * len(rules))
    watch = _watch(late)
    runs = [
        Run(
            rule, Tally(windows or (), grace_ms, budget=budget), sketch=Looks(from_ms, to_ms, kept.last_ms), watch=watch
        )
        for rule in rules
    ]
    try:
        replayed(runs, kept, rows_within(MEMORY_MB), kept.window_samples_max, None)
    except WindowsTooLarge as error:
        words = f"The windows hold {error} samples or more, which is too much for a screen"
        raise Overloaded(f"{words}; `breakers backtest --from-service` takes them.") from None
    return [_course(run) for run in runs]


def _watch(late: Callable[[], bool]) -> Callable[[], None]:
    """Counts evaluations: with a short eval_interval_ms there may be thousands for each second of the samples."""
    left = EVALUATIONS

    def watch() -> None:
        nonlocal left
        left -= 1
        if not left:
            left = EVALUATIONS
            if late():
                words = "These rules are evaluated too often for a screen (eval_interval_ms)"
                raise Overloaded(f"{words}; `breakers backtest --from-service` takes them.", {"retry_after_s": 60})

    return watch


def _course(run: Run) -> Course:
    assert isinstance(run.sketch, Looks)
    stays, state, since_ms = list[Band](), "closed", run.first_ms
    for at_ms, curr in run.tally.course:
        stays.append((state, since_ms, at_ms))
        state, since_ms = curr, at_ms
    stays.append((state, since_ms, run.last_ms))
    return Course(run.sketch.found(), stays, moves(run)[:MOVES_MAX], run)


def thinned(values: Sequence[tuple[int, float]], gap_ms: int, most: int = POINTS) -> list[Point]:
    """At most `most` of the values: of each stretch the lowest and the highest, in their order, and a hole where there
    was nothing for longer than `gap_ms`."""
    if len(values) > most:
        stretches = max(1, most // 3)
        first, length = values[0][0], max(1, values[-1][0] - values[0][0])
        taken: list[tuple[int, float]] = []
        begin = 0
        for number in range(stretches):
            until = first + length * (number + 1) // stretches
            end = begin
            while end < len(values) and (values[end][0] <= until or number == stretches - 1):
                end += 1
            if part := values[begin:end]:
                chosen = {min(part, key=lambda one: one[1]), max(part, key=lambda one: one[1])}
                taken += sorted(chosen)
            begin = end
        values = taken
    found: list[Point] = []
    for at, value in values:
        if found and at - found[-1][0] > gap_ms and len(found) < most - 1:
            found.append((found[-1][0] + 1, None))
        found.append((at, value))
    return found


def banded(stays: Sequence[Band], from_ms: int, to_ms: int, most: int = BANDS) -> list[Band]:
    """The stays within a span, not too many: neighbours are one until it is long enough, of the worst among them."""
    inside = [(state, max(from_ms, begin), min(to_ms, end)) for state, begin, end in stays]
    inside = [one for one in inside if one[1] < one[2]]
    least_ms = 0 if len(inside) <= most else max(1, (to_ms - from_ms) // (most // 2))
    found: list[Band] = []
    for state, begin, end in inside:
        before = found[-1] if found else None
        if before is not None and (before[0] == state or before[2] - before[1] < least_ms):
            worst = max(before[0], state, key=WORST.__getitem__)
            found[-1] = worst, before[1], end
        else:
            found.append((state, begin, end))
    return found


def told(course: Course, windows: list[Labelled] | None) -> dict[str, Any]:
    """What a rule comes to, as `breakers backtest` counts it."""
    tally, run = course.run.tally, course.run
    row: dict[str, Any] = {
        "transitions": tally.transitions,
        "trips": tally.trips,
        "incidents": tally.incidents,
        "recoveries": tally.recoveries,
        "late": run.late,
        "truncated": run.truncated,
        **{f"{state}_ms": spent for state, spent in tally.time_in.items()},
    }
    if windows is not None:
        latencies = tally.latencies()
        row |= {
            "windows": len(run.judged()),
            "caught": len(latencies),
            "false_trips": tally.false_trips,
            "latency_ms": round(sum(latencies) / len(latencies)) if latencies else None,
        }
    return row


def told_move(move: Transition) -> dict[str, Any]:
    """A move as a row of a table."""
    return {
        "ts_ms": move.ts_ms,
        "prev": move.prev,
        "curr": move.curr,
        "seq": move.transition_seq,
        "reason": cause(move),
        "allow_rate": move.allow_rate,
        "value": move.value,
    }
