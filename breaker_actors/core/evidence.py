"""What a breaker knows of its samples, and the verdict on them (semantics.md section 3, "One evaluation").

Either a window with its accumulator, or, for consecutive_failures, the runs of failures in arrival order. Sits between
`core.window` and `core.machine`: the machine says when and in which state to judge, and acts on the verdict.
"""

from __future__ import annotations

import numpy as np

from breaker_actors.core.accumulators import COMPARE, accumulator_for
from breaker_actors.core.definitions import (
    P95,
    clamp,
    delta_params,
    exact_value,
    inner_kind,
    need_of,
    observations,
    percent_of,
    summary,
)
from breaker_actors.core.model import Agg, Batch, Counts, Flags, Int64, Record, Rows, Rule, Verdict
from breaker_actors.core.window import SampleWindow, Window

LONG_AGO = -(1 << 62)
FEW = 64
"""Up to so many samples an idle tick is shown by plain recomputation, with no thought of whether anything changed."""


class Evidence:
    """Samples or streaks, the baseline of a delta, and the last verdict, value and count drawn from them."""

    __slots__ = (
        "_alpha", "_compare", "_floor_ms", "_lazy", "_samples_max", "_value", "baseline", "count", "cut", "inner",
        "is_delta", "late", "need", "peak", "ranks", "ready_ms", "rule", "seen", "streak", "trace", "truncated",
        "verdict", "window",
    )  # fmt: skip

    def __init__(self, rule: Rule, record: Record, samples_max: int) -> None:
        self._samples_max = samples_max
        self.verdict: Verdict = record.verdict
        self._value, self.count, self._lazy = record.value, record.count, False
        self.streak, self.peak, self.seen = record.streak, record.peak, record.seen
        self.baseline = record.baseline
        self.late, self.truncated = record.late_count, record.truncated_count
        # truncated by the last refill; None: what the next one truncates was counted before
        self.cut: int | None = None if self.truncated else 0
        self.inner: float | None = None
        self.trace: tuple[int, str] | None = None
        self.window: SampleWindow | None = None
        self.use(rule, record)

    def use(self, rule: Rule, record: Record) -> None:
        """Takes a rule in: what is derived from it, and an accumulator over the columns held."""
        self.rule = rule
        self.need, self._compare = need_of(rule), COMPARE[rule.op]
        self.is_delta = rule.kind == "delta"
        self._alpha = delta_params(rule)[1] if self.is_delta else 0.0
        self.ranks = self.is_delta and inner_kind(rule) in ("p95", "max", "min")  # the window, at each evaluation
        if rule.kind == "consecutive_failures":
            self.window = None
        elif self.window is None:
            self.window = Window(accumulator_for(rule), self._samples_max)
        else:
            self.window.recount(accumulator_for(rule))
        self.date(record)

    def date(self, record: Record) -> None:
        """From when on samples count, and when few of them mean anything.

        count and sum with lt or lte need a whole window of listening: since creation, the floor, the end of a gap.
        """
        rule = self.rule
        self._floor_ms, self.ready_ms = record.evidence_floor_ms, LONG_AGO
        if rule.kind in ("count", "sum") and rule.op in ("lt", "lte"):
            self.ready_ms = max(record.created_ms, record.evidence_floor_ms, record.gap_end_ms) + rule.window_ms

    def low_ms(self, now: int) -> int:
        """Samples up to this effective time are not in the window at `now`."""
        low = now - self.rule.window_ms
        return low if low >= self._floor_ms else self._floor_ms - 1

    # -- coming and going ---------------------------------------------------------------------------------------------

    def add(self, batch: Batch, received_ms: int, now: int) -> None:
        """A batch comes in."""
        if batch.trace is not None:
            self.keep_trace(batch.trace, received_ms)
        window = self.window
        if window is None:
            if n := observations(len(batch), batch.count):
                self.seen += n
                self.streak, peak = _runs(self.streak, batch.ok, batch.count)
                self.peak = max(self.peak, peak)
            return
        low = self.low_ms(now)
        window.expire(low)
        late, truncated = window.add(batch, received_ms, low)
        self.late += late
        self.truncated += truncated

    def add_rows(self, rows: Rows, start: int, stop: int, now: int) -> None:
        """A piece of a metric comes in."""
        window = self.window
        if window is None:
            self.seen += stop - start
            self.streak, self.peak = _few_runs(self.streak, self.peak, rows.ok[start:stop])
            return
        low = self.low_ms(now)
        if not window.take(rows, start, stop, low):
            late, truncated = window.add(rows.batch.slice(start, stop), rows.received_ms, low)
            self.late += late
            self.truncated += truncated

    def load(self, batch: Batch, received_ms: int, now: int) -> None:
        """A logged batch comes back in. What does not fit counts as truncated, but not again after a restore."""
        if batch.trace is not None:
            self.keep_trace(batch.trace, received_ms)
        if self.window is not None and len(batch):
            _, cut = self.window.add(batch, received_ms, self.low_ms(now))
            if self.cut is not None:
                self.truncated, self.cut = self.truncated + cut, self.cut + cut

    def keep_trace(self, trace: tuple[int, str], received_ms: int) -> None:
        """The newest one is enough: when it leaves the window, all older ones have left."""
        time = min(trace[0], received_ms)
        if self.trace is None or time >= self.trace[0]:
            self.trace = (time, trace[1])

    def trace_id(self, now: int) -> str | None:
        """Of the newest sample in the window that has one; without a window, of the newest of all."""
        if self.trace is None or (self.window is not None and self.trace[0] <= self.low_ms(now)):
            return None
        return self.trace[1]

    def expire(self, now: int) -> None:
        """What has left the window at `now` goes."""
        if self.window is not None:
            self.window.expire(self.low_ms(now))

    def forget(self) -> None:
        """What was judged so far is no evidence any more; the baseline stays."""
        self.verdict, self._value, self._lazy, self.count = "indeterminate", None, False, 0
        self.inner = self.trace = None
        self.streak = self.peak = self.seen = 0

    # -- judging ------------------------------------------------------------------------------------------------------

    def assess(self, now: int, half_open: bool) -> None:
        """Count and verdict at `now`; a value is worked out only when somebody asks (see `value`)."""
        window = self.window
        if window is None:
            self._assess_streak(half_open)
            return
        self.count = n = window.observations
        if self.is_delta:
            self.inner = window.acc.value(n, window) if n else None
            self.verdict, self._value = self._compared(self.inner, n)
            return
        self._lazy = True
        if n < self.need or now < self.ready_ms:
            self.verdict = "indeterminate"
            return
        breach = window.acc.breach(n, window) if n else self.breaches(0.0)
        self.verdict = "breach" if breach else "healthy"

    def _assess_streak(self, half_open: bool) -> None:
        self.count = self.seen
        self._value = float(self.peak) if self.seen else None
        self.verdict = self.judge_streak(self.peak, half_open)
        self.peak = self.streak

    def judge_streak(self, highest: int, half_open: bool) -> Verdict:
        """The verdict on a run of failures."""
        if self.seen < self.need:
            return "indeterminate"
        if self.breaches(float(highest)):
            return "breach"
        return "unconfirmed" if half_open and self.streak else "healthy"

    def breaches(self, value: float) -> bool:
        """value <op> threshold."""
        return self._compare(value, self.rule.threshold)

    def value(self) -> float | None:
        """The value of the last evaluation, worked out from the window when it has not been yet."""
        if self._lazy and self.window is not None:
            n = self.window.observations
            self._value = self.window.acc.value(n, self.window) if n else _empty_value(self.rule, self.need)
            self._lazy = False
        return self._value

    def agg(self) -> Agg:
        """The `agg` object of an event, right after an evaluation."""
        window = self.window
        if window is None:
            return Agg(count=self.seen, error_count=int(self._value or 0))
        return summary(window.values(), window.flags(), window.counts()) if len(window) else Agg()

    # -- the baseline of a delta --------------------------------------------------------------------------------------

    def learn(self) -> None:
        """A tick in closed moves the baseline, or seeds it; never on a breach."""
        inner = self.inner
        if inner is None or self.count < self.need or self.verdict == "breach":
            return
        self.baseline = inner if self.baseline is None else _learned(self._alpha, inner, self.baseline)

    def learn_ticks(self, ticks: int) -> int:
        """Up to `ticks` healthy ticks over an aggregate that stands still, until the baseline does not move any more:
        how many were run. A tick that would breach is left to be run."""
        inner, baseline = self.inner, self.baseline
        if inner is None or baseline is None:
            return 0
        run, arrived = 0, False
        while run < ticks and not arrived and not self.breaches(value := clamp(inner - baseline)):
            self._value = value
            learned = _learned(self._alpha, inner, baseline)
            run, arrived, baseline = run + 1, learned == baseline, learned
        self.baseline = baseline
        return run

    def delta_tick_is_idle(self) -> bool:
        """Would a tick in closed leave verdict and baseline as they are?"""
        inner, baseline = self.inner, self.baseline
        if inner is None or baseline is None or self.count < self.need:
            return inner is None or self.count < self.need
        if self.breaches(clamp(inner - baseline)):
            return self.verdict == "breach"
        return _learned(self._alpha, inner, baseline) == baseline

    # -- looking ahead ------------------------------------------------------------------------------------------------

    def change_ms(self, last_eval: int) -> int | None:
        """When the verdict may differ without any input: the oldest sample leaves, or few samples come to mean
        something. None: never, there is nothing to leave or too little for good."""
        window = self.window
        if window is None or window.observations < self.need:
            return None
        oldest = window.oldest_ms
        change = None if oldest is None else oldest + self.rule.window_ms
        if last_eval < self.ready_ms:
            return self.ready_ms if change is None else min(change, self.ready_ms)
        return change

    def may_breach(self) -> bool:
        """May samples that leave turn a healthy verdict into a breach?"""
        window = self.window
        if window is None:
            return False
        n = window.observations
        return n > 0 and window.acc.may_breach(n)

    def glance(self, at: int, half_open: bool, unchanged: bool) -> tuple[Verdict, float | None, int]:
        """Verdict, value and count of an idle tick at `at`, without touching anything.

        `unchanged`: the window is as the last evaluation saw it.
        """
        window = self.window
        if window is None:
            value = float(self.streak) if self.seen else None
            return self.judge_streak(self.streak, half_open), value, self.seen
        if unchanged and len(window) > FEW:
            if not self.is_delta:
                return self.verdict, self.value(), self.count
            if self.inner is not None:
                return *self._compared(self.inner, self.count), self.count
        return self._recompute(window, at)

    def _compared(self, inner: float | None, n: int) -> tuple[Verdict, float | None]:
        """Verdict and value of a delta whose aggregate is `inner`, over n observations."""
        value = _difference(inner, self.baseline)
        if n < self.need or value is None:
            return "indeterminate", value
        return "breach" if self.breaches(value) else "healthy", value

    def _recompute(self, window: SampleWindow, at: int) -> tuple[Verdict, float | None, int]:
        rule = self.rule
        values, ok, counts = window.since(at - rule.window_ms)
        n, value = observations(len(values), counts), _empty_value(self.rule, self.need)
        if n:
            percent = percent_of(rule) if rule.kind == "percentile" else P95
            value = exact_value(inner_kind(rule), percent, values, ok, counts)
        if self.is_delta:
            return *self._compared(value, n), n
        if n < self.need or value is None or at < self.ready_ms:
            return "indeterminate", value, n
        return "breach" if self.breaches(value) else "healthy", value, n


def _few_runs(streak: int, peak: int, ok: bytes) -> tuple[int, int]:
    """The run of failures behind some samples, and the longest so far."""
    for good in ok:
        streak = 0 if good else streak + 1
        peak = max(peak, streak)
    return streak, peak


def _runs(streak: int, ok: Flags, counts: Counts) -> tuple[int, int]:
    """The run of failures (ok=false in arrival order) behind a batch, and the longest in it; `streak`: the run before
    it, as runs go over the ends of batches."""
    if counts is not None:
        return _counted_runs(streak, ok, counts)
    good = np.flatnonzero(ok)
    if not len(good):
        return streak + len(ok), streak + len(ok)
    inside = int(np.diff(good).max()) - 1 if len(good) > 1 else 0
    first, last = streak + int(good[0]), len(ok) - 1 - int(good[-1])
    return last, max(first, inside, last)


def _counted_runs(streak: int, ok: Flags, counts: Int64) -> tuple[int, int]:
    """The run of failures behind a batch, and the longest in it, where samples may stand for several observations: one
    of n that is not ok is a run of n. `streak`: the run before the batch."""
    failed = np.cumsum(np.where(ok, 0, counts))
    since_good = failed - np.maximum.accumulate(np.where(ok, failed, -streak))
    return int(since_good[-1]), int(since_good.max())


def _empty_value(rule: Rule, need: int) -> float | None:
    """Of nothing: a count of 0, a sum of 0 when min_count allows it, else no value."""
    return 0.0 if rule.kind == "count" or (rule.kind == "sum" and not need) else None


def _difference(inner: float | None, baseline: float | None) -> float | None:
    return None if inner is None or baseline is None else clamp(inner - baseline)


def _learned(alpha: float, inner: float, baseline: float) -> float:
    return clamp(alpha * inner + (1 - alpha) * baseline)
