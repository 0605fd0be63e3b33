"""What a setting can catch at most, and how often it trips falsely at least, told without moving a breaker.

Told from the values that whole windows took; nothing here repeats how a breaker moves but for these facts of
semantics.md section 3, which hold for the rules that `sound` lets pass:

- A breaker in closed opens at an instant at which its value breaches, and at the latest with the first batch that does.
  Half_open has lasted a whole window, so in closed its evidence floor cuts no window short.
- It has closed again once for so long (`quiet_ms`) no part of any window could breach.

So the bounds are never too strict, and a search that leaves out what they rule out finds what trying all would find; a
test holds it against that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from breaker_actors.core.definitions import P95, need_of, percent_of
from breaker_actors.core.model import Float64, Int64, Rule
from pipelines.replay.scoring import Labelled
from pipelines.replay.vectorized.aggregates import RANKED, value_bounds
from pipelines.replay.vectorized.exact_sums import TooWide
from pipelines.replay.vectorized.judge import Judge
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.suggest.measures import Measure

NEVER, ALWAYS = -np.inf, np.inf
UNTOLD = ("delta", "consecutive_failures")
"""Kinds whose value hangs on more than what is in the window."""


@dataclass(frozen=True, slots=True)
class Course:
    """The values of a measure's whole windows, times its sign, so that more is worse. One per instant at which it may
    change, and it stands until the next. `low` and `high` hold the value; NEVER where it is indeterminate. `arrival`:
    whether samples came then. `part`: what no part of the window exceeds."""

    times: Int64
    low: Float64
    high: Float64
    part: Float64
    arrival: np.typing.NDArray[np.bool_]


def sound(rule: Rule) -> bool:
    """Whether what the bounds rest on holds for the rule."""
    whole = (rule.recovery_allow_rate_ramp_steps + 1) * rule.eval_interval_ms >= rule.window_ms
    known = rule.kind not in UNTOLD and rule.op in ("gt", "lt")
    return whole and known and rule.half_open_indeterminate_policy != "pessimistic"


def course(judge: Judge, measure: Measure) -> Course | None:
    """The values of a measure; None where they can't be told in one go."""
    rule, sign = measure.rule, measure.sign
    bounds = judge.bounds(rule.window_ms) if rule.kind not in UNTOLD else None
    if bounds is None or judge.chunk.count is not None or not judge.chunk.in_order or bounds.truncated:
        return None
    arrivals = judge.chunk.times
    leaving = np.unique(judge.chunk.eff + rule.window_ms)
    times = np.union1d(arrivals, leaving[leaving <= judge.last_ms])
    points = bounds.at(times)
    try:
        low, high = _values(rule, bounds.prefixes, points.entered, points.left, judge.watch)
    except TooWide:
        return None
    part = _part(rule, sign, bounds.prefixes, points.entered, points.left, sign * (high if sign > 0 else low))
    unknown = points.entered - points.left < need_of(rule)
    if rule.kind in ("count", "sum") and sign < 0:
        unknown |= times < judge.first_ms + rule.window_ms
    low, high = (sign * low, sign * high) if sign > 0 else (sign * high, sign * low)
    low, high = np.where(unknown, NEVER, low), np.where(unknown, NEVER, high)
    return Course(times, low, high, np.where(unknown, ALWAYS, part), np.isin(times, arrivals, assume_unique=True))


def _values(
    rule: Rule, prefixes: PrefixColumns, entered: Int64, left: Int64, watch: Callable[[], None] | None
) -> tuple[Float64, Float64]:
    if rule.kind not in RANKED:
        low, high = value_bounds(rule.kind, prefixes, entered, left)
        return np.asarray(low, np.float64), np.asarray(high, np.float64)
    if rule.kind in ("max", "min"):
        found = _extremes(prefixes.value, entered, left, rule.kind == "max")
    else:
        found = _percentiles(
            prefixes.value, entered, left, percent_of(rule) if rule.kind == "percentile" else P95, watch
        )
    return found, found


def _extremes(values: Float64, entered: Int64, left: Int64, largest: bool) -> Float64:
    """The largest, or least, of values[left:entered]: of two runs of a power of two that cover it. Empty: 0."""
    pick, size = (np.maximum if largest else np.minimum), entered - left
    out, level, runs = np.zeros(len(size)), 0, values
    while len(runs):
        rows = np.flatnonzero((size >= 1 << level) & (size < 2 << level))
        out[rows] = pick(runs[left[rows]], runs[entered[rows] - (1 << level)])
        runs = pick(runs[: -(1 << level)], runs[1 << level :]) if len(runs) > 1 << level else runs[:0]
        level += 1
    return out


def _percentiles(
    values: Float64, entered: Int64, left: Int64, percent: Fraction, watch: Callable[[], None] | None
) -> Float64:
    """By nearest rank. Empty: 0."""
    out = np.zeros(len(entered))
    for i, (stop, start) in enumerate(zip(entered.tolist(), left.tolist(), strict=True)):
        if watch is not None:
            watch()
        if stop > start:
            place = -int(-(percent * (stop - start)) // 100) - 1
            out[i] = np.partition(values[start:stop], place)[place]
    return out


def _part(rule: Rule, sign: int, prefixes: PrefixColumns, entered: Int64, left: Int64, value: Float64) -> Float64:
    """What no part of each window exceeds, times the sign."""
    nothing = np.full(len(entered), ALWAYS)
    match rule.kind:
        case "avg" | "max" | "min" | "p95" | "percentile":
            return sign * _extremes(prefixes.value, entered, left, sign > 0)
        case "stddev" if sign > 0:  # at most half of the range
            spread = _extremes(prefixes.value, entered, left, True) - _extremes(prefixes.value, entered, left, False)
            return spread / 2 * (1 + 1e-9)
        case "error_rate" if sign > 0:
            return np.asarray(prefixes.errors(entered, left) > 0, np.float64)
        case "count":
            return value
        case _:
            return nothing


def quiet_ms(rule: Rule) -> int:
    """So long after the last sign of a breach it has closed for sure, and may trip again."""
    base = max(rule.cooldown_ms, rule.min_state_duration_ms, 100)
    wait = max(base, rule.half_open_backoff_cap_ms, rule.eval_interval_ms) if rule.half_open_backoff_enabled else base
    recovery = (rule.recovery_allow_rate_ramp_steps + 3) * rule.eval_interval_ms
    return wait + rule.window_ms + recovery + 2 * rule.min_state_duration_ms


class Limits:
    """Bounds of the settings of one measure against labelled windows, in order of their starts, that samples reach."""

    def __init__(self, course: Course, rule: Rule, windows: list[Labelled], grace_ms: int, first_ms: int) -> None:
        self._course, self._rule, self._first_ms = course, rule, first_ms
        reach = reaches(windows, grace_ms)
        self._spans = Spans(reach)
        times = course.times
        places = [max(0, int(np.searchsorted(times, begin, "right")) - 1) for begin, _ in reach]
        stops = [int(np.searchsorted(times, end, "right")) for _, end in reach]
        starts = [int(np.searchsorted(times, w.start_ms, "left")) for w in windows]
        self._worst = [_largest(course.high, place, stop) for place, stop in zip(places, stops, strict=True)]
        self._before = [_largest(course.high, place, start) for place, start in zip(places, starts, strict=True)]
        for i, (begin, _) in enumerate(reach):  # one that belongs to a window before may go on to this one
            led = max((self._worst[k] for k in range(i) if windows[k].end_ms >= begin), default=NEVER)
            self._worst[i], self._before[i] = max(self._worst[i], led), max(self._before[i], led)
        self._inside = [
            (np.maximum.accumulate(course.high[start:stop]), times[start:stop] - window.start_ms)
            for start, stop, window in zip(starts, stops, windows, strict=True)
        ]
        self._first_high = np.maximum.accumulate(course.high)
        self._arrivals = np.flatnonzero(course.arrival)
        self._first_low = np.maximum.accumulate(course.low[self._arrivals])

    def caught(self, extreme: float) -> int:
        """How many windows a threshold, times the sign, catches at most."""
        return sum(worst > extreme for worst in self._worst)

    def latency(self, extreme: float) -> float:
        """Mean time until they are caught, at least, if as many are caught as can be."""
        found = [
            0.0 if before > extreme else _passed(running, offsets, extreme)
            for worst, before, (running, offsets) in zip(self._worst, self._before, self._inside, strict=True)
            if worst > extreme
        ]
        return sum(found) / len(found) if found else np.inf

    def false_first(self, extreme: float) -> int:
        """1 where the first trip is false for sure, else 0."""
        times = self._course.times
        may = int(np.searchsorted(self._first_high, extreme, "right"))
        does = int(np.searchsorted(self._first_low, extreme, "right"))
        if does >= len(self._arrivals):
            return 0
        place = self._arrivals[does]
        if times[place] < self._first_ms + self._rule.min_state_duration_ms:
            return 0
        return int(self._spans.misses(times[[may]], times[[place]])[0])

    def false_trips(self, extreme: float) -> int:
        """How many trips are false for sure: those out of a quiet that was long enough."""
        times, course = self._course.times, self._course
        bad = np.flatnonzero(course.part > extreme)
        if not len(bad):
            return self.false_first(extreme)
        ended = np.append(times[1:], times[-1])[bad]
        heads = np.flatnonzero(times[bad[1:]] - ended[:-1] > quiet_ms(self._rule)) + 1
        may = np.flatnonzero(course.high > extreme)
        does = self._arrivals[course.low[self._arrivals] > extreme]
        if not len(does):
            return 0
        begins = bad[heads]
        stops = np.append(begins[1:], len(times))
        mays, doing = np.searchsorted(may, begins), np.searchsorted(does, begins)
        there = doing < len(does)
        there[there] = does[doing[there]] < stops[there]
        if not there.any():
            return self.false_first(extreme)
        false = self._spans.misses(times[may[mays[there]]], times[does[doing[there]]])
        head_end = int(begins[0]) if len(begins) else len(times)
        leads = self.false_first(extreme) if does[0] < head_end else 0
        return int(np.count_nonzero(false)) + leads


def reaches(windows: Sequence[Labelled], grace_ms: int) -> list[tuple[int, int]]:
    """Where an incident that belongs to a window, and to no other before it, begins: from when to when."""
    return [(w.start_ms - (w.end_ms - w.start_ms) - grace_ms, w.end_ms + grace_ms) for w in windows]


class Spans:
    """Spans of time as a set; both ends belong to one."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        merged: list[list[int]] = []
        for begin, end in sorted(spans):
            if merged and begin <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        whole = np.asarray(merged, np.int64).reshape(-1, 2)
        self._begins, self._ends = np.append(whole[:, 0], np.iinfo(np.int64).max), whole[:, 1]

    def misses(self, from_ms: Int64, to_ms: Int64) -> np.typing.NDArray[np.bool_]:
        """Whether each time between these, both included, is in no span."""
        return np.asarray(to_ms < self._begins[np.searchsorted(self._ends, from_ms, "left")])


def _largest(values: Float64, start: int, stop: int) -> float:
    return float(values[start:stop].max()) if stop > start else NEVER


def _passed(running: Float64, offsets: Int64, extreme: float) -> float:
    place = int(np.searchsorted(running, extreme, "right"))
    return float(max(0, int(offsets[place]))) if place < len(offsets) else 0.0
