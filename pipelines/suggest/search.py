"""The best setting for labelled failures: most caught, then fewest false trips, earliest, least time open.

Settings are taken in the order of what their bounds promise (`pipelines.suggest.bounds`). Each is judged by the machine
that runs live, until nothing that is left can catch more, or as much with fewer false trips, than the best one judged:
in these two the result is that of judging them all, at a small part of the cost. Between those that are equal in both,
TIES_MOST more are judged. A limit in time ends the search with the best setting so far.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from breaker_actors.clock import Clock, SystemClock
from breaker_actors.core.model import Rule
from pipelines.replay.scoring import Labelled, Tally
from pipelines.replay.vectorized.judge import Judge
from pipelines.replay.vectorized.order_statistics import Cuts
from pipelines.suggest.bounds import Limits, Spans, course, reaches, sound
from pipelines.suggest.measures import SETTINGS, Measure, thresholds

PATIENCE = 2
"""A setting is followed up to so many times the false trips it promised, and from there on each time it comes up."""
TIES_MOST, COARSE = 100, 16
"""Settings that are judged only to find one that is earlier or open for less time; every 16th threshold comes first."""
TIME_LIMIT_S = 600.0
"""How long settings are looked for, if nothing else is said."""
PLATEAU_MOST = 64
"""Neighbours of a setting that are judged on each side."""

Key = tuple[float, float, float, float]
"""What makes a setting better, the least first: windows missed, false trips, mean latency, time open."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rule did on the history. `caught` of `windows`; times in milliseconds."""

    rule: Rule
    caught: int
    windows: int
    false_trips: int
    latency_ms: float | None
    open_ms: int
    incidents: int

    @property
    def key(self) -> Key:
        latency = math.inf if self.latency_ms is None else self.latency_ms
        return self.windows - self.caught, self.false_trips, latency, self.open_ms


@dataclass(frozen=True, slots=True)
class Found:
    """The best setting, and between which thresholds it catches as much with as few false trips. `settings`: how many
    there were; `judged`: how many had to be; `cut_short`: the limit in time was met, so that what was not judged may be
    better, and the plateau wider."""

    outcome: Outcome
    from_threshold: float
    to_threshold: float
    settings: int
    judged: int
    cut_short: bool = False


@dataclass(slots=True)
class Ladder:
    """The thresholds of a measure, the strictest first, and what is known of them."""

    measure: Measure
    steps: list[float]
    limits: Limits | None
    spread: float
    rules: list[Rule] = field(default_factory=list)
    cuts: Cuts | None = None
    known: dict[int, Outcome] = field(default_factory=dict)


class Search:
    """Settings over samples, judged against labelled windows, which are in order of their starts. `limit_s`: seconds
    from now on, after which no other setting is begun; `tell`: hears how many were judged, each time."""

    def __init__(
        self,
        judge: Judge,
        windows: list[Labelled],
        grace_ms: int = 0,
        settings: int = SETTINGS,
        *,
        limit_s: float = math.inf,
        tell: Callable[[str], None] = lambda words: None,
        clock: Clock | None = None,
    ) -> None:
        self._clock, self._tell = clock or SystemClock(), tell
        self._until_s, self.cut_short = self._clock.monotonic() + limit_s, False
        self._judge, self._grace_ms, self._settings = judge, grace_ms, settings
        reached = Tally(windows, grace_ms).reached(judge.first_ms, judge.last_ms)
        self.windows = [windows[i] for i in reached]
        self._spans = Spans(reaches(self.windows, grace_ms))
        self.judged = 0

    def best(self, tried: list[Measure]) -> Found | None:
        """The best of all settings of these measures; None where no one catches anything. Of those that are equal in
        all the one with the widest plateau."""
        ladders = [ladder for measure in tried if (ladder := self._ladder(measure, self._settings // len(tried))).steps]
        best, tied = None, list[tuple[Ladder, int]]()
        ladders.reverse()  # of those that promise the same, long windows are judged sooner
        queue = self._queue(ladders)
        spare = TIES_MOST
        while queue and spare and not self._is_over():
            promise, looked, rank, number, step = heapq.heappop(queue)
            if (best is not None and promise > best) or promise[0] == len(self.windows):
                break
            ladder = ladders[number]
            if not looked and ladder.limits is not None:
                heapq.heappush(queue, (self._promise(ladder, step, refined=True), True, rank, number, step))
                continue
            spare -= best is not None and promise[:2] == best[:2]
            most = PATIENCE * (int(promise[1]) + 1)
            open_most = math.inf
            if best is not None and promise[0] == best[0]:
                most = min(most, int(best[1]))
                open_most = best[3] if promise[:3] == best[:3] else open_most
            outcome = self._outcome(ladder, step, (promise[0], most, promise[2], open_most))
            if not isinstance(outcome, Outcome):  # it was given up, and is worse than it promised
                heapq.heappush(queue, (max(promise, outcome), True, rank, number, step))
            elif best is None or outcome.key < best:
                best, tied = outcome.key, [(ladder, step)]
            elif outcome.key == best:
                tied.append((ladder, step))
        plateaus = [(self._plateau(ladder, step), ladder, step) for ladder, step in tied]
        if not plateaus or best is None or best[0] == len(self.windows):
            return None
        (first, last), ladder, step = max(plateaus, key=lambda one: abs(one[0][1] - one[0][0]) / one[1].spread)
        outcome = self._rounded(ladder, step)
        return Found(outcome, first, last, sum(len(one.steps) for one in ladders), self.judged, self.cut_short)

    def _is_over(self) -> bool:
        """Whether the limit in time is met."""
        self.cut_short = self.cut_short or self._clock.monotonic() >= self._until_s
        return self.cut_short

    def outcome(self, rule: Rule) -> Outcome:
        """What one rule does."""
        tally = Tally(self.windows, self._grace_ms, kept=False)
        self._judge.follow(rule, tally)
        return _outcome_of(rule, tally)

    def _ladder(self, measure: Measure, count: int) -> Ladder:
        rule, values = measure.rule, course(self._judge, measure)
        extremes = values.high if values is not None else self._plain(measure)
        limits = None
        if values is not None and sound(rule):
            limits = Limits(values, rule, self.windows, self._grace_ms, self._judge.first_ms)
        steps = thresholds(extremes, max(1, count))
        finite = extremes[np.isfinite(extremes)]
        spread = float(np.subtract(*np.percentile(finite, [99, 1]))) if len(finite) else 0.0
        ladder = Ladder(measure, steps, limits, spread or 1.0)
        ladder.rules = [measure.at(measure.sign * step) for step in steps]
        if steps:
            ladder.cuts = self._judge.cuts(ladder.rules)
        return ladder

    def _plain(self, measure: Measure) -> np.typing.NDArray[np.float64]:
        """Where windows can't be told: the samples' own values, or small numbers for runs of failures."""
        if measure.rule.kind == "consecutive_failures":
            return np.arange(0.5, 50.0)
        return measure.sign * self._judge.chunk.value

    def _queue(self, ladders: list[Ladder]) -> list[tuple[Key, bool, int, int, int]]:
        """All settings, the most promising first: promise, whether it was looked at closely, ladder, step. Of those
        that promise the same, a coarse choice of thresholds is judged sooner."""
        queue = [
            (self._promise(ladder, step, refined=False), False, COARSE - math.gcd(step, COARSE), number, step)
            for number, ladder in enumerate(ladders)
            for step in range(len(ladder.steps))
        ]
        heapq.heapify(queue)
        return queue

    def _promise(self, ladder: Ladder, step: int, *, refined: bool) -> Key:
        """The best that a setting can be."""
        limits, extreme = ladder.limits, ladder.steps[step]
        if limits is None:
            return 0.0, 0.0, 0.0, 0.0
        caught = limits.caught(extreme)
        false = limits.false_trips(extreme) if refined else limits.false_first(extreme)
        return len(self.windows) - caught, false, limits.latency(extreme), 0.0

    def _outcome(self, ladder: Ladder, step: int, most: Key) -> Outcome | Key:
        """What a setting did; where it is worse than `most` in a way that time doesn't mend, the least it comes to."""
        found = ladder.known.get(step)
        if found is not None:
            return found
        self.judged += 1
        self._tell(f"{self.judged:,} settings judged")
        pursuit = Pursuit(self.windows, self._grace_ms, self._spans, most)
        if not self._judge.follow(ladder.rules[step], pursuit.tally, ladder.cuts, pursuit.enough):
            return pursuit.least
        ladder.known[step] = _outcome_of(ladder.rules[step], pursuit.tally)
        return ladder.known[step]

    def _plateau(self, ladder: Ladder, step: int) -> tuple[float, float]:
        """The outermost neighbours without a break that catch as much with as few false trips; signed thresholds."""
        mine = ladder.known[step]
        ends = []
        for way in (1, -1):
            at = step
            for _ in range(PLATEAU_MOST):
                if not 0 <= at + way < len(ladder.steps) or self._is_over():
                    break
                other = self._outcome(ladder, at + way, (*mine.key[:2], 0.0, math.inf))
                if not isinstance(other, Outcome) or other.key[:2] != mine.key[:2]:
                    break
                at += way
            ends.append(ladder.measure.sign * ladder.steps[at])
        return min(ends), max(ends)

    def _rounded(self, ladder: Ladder, step: int) -> Outcome:
        """The setting with a threshold of few digits, where that does the very same."""
        mine = ladder.known[step]
        here, steps = ladder.steps[step], ladder.steps
        below = steps[step + 1] if step + 1 < len(steps) else here
        above = steps[step - 1] if step else here
        low, high = (below + here) / 2, (above + here) / 2
        for digits in range(1, 8):
            short = float(f"{here:.{digits}g}")
            if low <= short <= high:
                other = self.outcome(ladder.measure.at(ladder.measure.sign * short))
                if other.key == mine.key:
                    return other
        return mine


class Pursuit:
    """A setting being judged, until it is worse than `most`. `least`: what it comes to at least."""

    def __init__(self, windows: list[Labelled], grace_ms: int, spans: Spans, most: Key) -> None:
        self.tally = Tally(windows, grace_ms, kept=False)
        self._spans, self._most = spans, most
        self.least: Key = (0.0, 0.0, 0.0, 0.0)

    def enough(self, now_ms: int) -> bool:
        """Whether more windows are missed for sure, more trips false, or the breaker is open longer, than is borne."""
        tally = self.tally
        began = tally.began_ms
        astray = began is not None and bool(self._spans.misses(np.array([began]), np.array([began]))[0])
        over_ms = (now_ms if began is None else began) - tally.grace_ms
        missed = sum(
            window.end_ms < over_ms and number not in tally.first_trips for number, window in enumerate(tally.windows)
        )
        most, false, open_ms = self._most, tally.false_trips + astray, tally.time_in["open"]
        if missed > most[0] or false > most[1]:
            self.least = (missed, false, 0.0, 0.0)
        elif open_ms > most[3]:
            self.least = (most[0], most[1], most[2], open_ms)
        return self.least > (0.0, 0.0, 0.0, 0.0)


def _outcome_of(rule: Rule, tally: Tally) -> Outcome:
    latencies = tally.latencies()
    mean = sum(latencies) / len(latencies) if latencies else None
    open_ms = tally.time_in["open"]
    return Outcome(rule, len(latencies), len(tally.windows), tally.false_trips, mean, open_ms, tally.incidents)
