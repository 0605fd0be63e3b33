"""A naive model of semantics.md sections 1 to 5: keeps every sample, recomputes everything, runs every tick.

Independent of the core's code: it shares only the values of core.model. Slow and plain on purpose.
"""

from __future__ import annotations

import copy
import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from breaker_actors.core.model import Agg, Batch, Control, Effect, Override, RateChange, Record, Rule, Transition, View

MAX = 1.7976931348623157e308
BITS_OF_MAX = 0x7FEF_FFFF_FFFF_FFFF
OPS = {
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
    "gte": lambda a, b: a >= b,
    "lte": lambda a, b: a <= b,
}
TICK_ACTION = {"healthy": "pass", "breach": "fail", "unconfirmed": "hold"}
FORCED = {
    "force_open": ("open", "forced_open"),
    "force_closed": ("closed", "forced_closed"),
    "throttle": ("half_open", "throttled"),
}
POLICY_ACTION = {"optimistic": "pass", "conservative": "hold", "pessimistic": "fail"}


def clamped(value: float) -> float:
    return min(MAX, max(-MAX, value))


def to_float(exact: Fraction) -> float:
    try:
        return float(exact)
    except OverflowError:
        return MAX if exact > 0 else -MAX


def total(values: list[float]) -> float:
    return to_float(sum((Fraction(v) for v in values), Fraction(0)))


def mean(values: list[float]) -> float:
    exact = sum((Fraction(v) for v in values), Fraction(0))
    try:
        return float(exact) / len(values)
    except OverflowError:
        return to_float(exact / len(values))


def deviation(values: list[float]) -> float:
    """The float nearest to the root of the exact variance."""
    exact, n = [Fraction(v) for v in values], len(values)
    middle = sum(exact, Fraction(0)) / n
    return root(sum(((v - middle) ** 2 for v in exact), Fraction(0)) / n)


def root(square: Fraction) -> float:
    """Floats from 0 on are in the order of their bits: the last one not above the root, or the next one; ties to
    even."""
    last = bisect_right(range(BITS_OF_MAX + 1), square, key=lambda bits: Fraction(from_bits(bits)) ** 2) - 1
    if last == BITS_OF_MAX:
        return MAX
    middle = (Fraction(from_bits(last)) + Fraction(from_bits(last + 1))) / 2
    above = square > middle**2 or (square == middle**2 and last % 2 == 1)
    return from_bits(last + above)


def from_bits(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value


def nearest_rank(percent: object, values: list[float]) -> float:
    place = math.ceil(Fraction(repr(percent)) * len(values) / 100)
    return sorted(values)[place - 1]


def aggregate(kind: str, params: dict, samples: list[tuple[float, bool]], min_count: int) -> float | None:
    values = [v for v, _ in samples]
    if kind == "count":
        return float(len(values))
    if not values:
        return 0.0 if kind == "sum" and min_count == 0 else None
    if kind == "error_rate":
        return sum(1 for _, ok in samples if not ok) / len(samples)
    if kind == "p95":
        return nearest_rank(95, values)
    if kind == "percentile":
        return nearest_rank(params["percentile"], values)
    return {"avg": mean, "sum": total, "max": max, "min": min, "stddev": deviation}[kind](values)


def counts_of(batch: Batch) -> list[int]:
    """How many observations each sample stands for."""
    return [1] * len(batch) if batch.count is None else batch.count.tolist()


@dataclass
class Oracle:
    """One breaker. `logical` is the time before which every timer has fired."""

    rule: Rule
    created: int
    samples_max: int = 1_000_000
    seq: int = 0
    state: str = "closed"
    since: int = 0
    grid: int = 0
    step: int = 0
    passes: int = 0
    failed: int = 0
    floor: int = 0
    gap_end: int = 0
    cause: str | None = None
    verdict: str = "indeterminate"
    value: float | None = None
    count: int = 0
    last_eval: int = 0
    streak: int = 0
    peak: int = 0
    seen: int = 0
    baseline: float | None = None
    late: int = 0
    truncated: int = 0
    logical: int = 0
    ticked_to: int = -1
    mode: str = "enforce"
    override: Override | None = None
    seen_since: int | None = None
    samples: list[tuple[int, float, bool, str, int]] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.since = self.grid = self.logical = self.created
        self.evaluate(self.created, "ingest")

    # inputs: each returns the effects it had

    def ingest(self, batch: Batch, received: int) -> tuple[Effect, ...]:
        before = len(self.effects)
        self.fire(received - 1)
        now = self.logical = max(self.logical, received)
        if self.rule.kind == "consecutive_failures":
            self.follow(ok for ok, n in zip(batch.ok.tolist(), counts_of(batch), strict=True) for _ in range(n))
        else:
            held = min(self.samples_max, len(self.inside(now)))
            fresh = 0
            for ts in batch.ts_ms.tolist():
                time = min(ts, received)
                if time <= now - self.rule.window_ms or time < self.floor:
                    self.late += 1
                else:
                    fresh += 1
            self.truncated += max(0, held + fresh - self.samples_max)
        self.keep(batch, received)
        self.evaluate(now, "ingest")
        return tuple(self.effects[before:])

    def keep(self, batch: Batch, received: int) -> None:
        rows = zip(batch.ts_ms.tolist(), batch.value.tolist(), batch.ok.tolist(), counts_of(batch), strict=True)
        self.samples += [(min(ts, received), value, ok, self.rule.metric, n) for ts, value, ok, n in rows]

    def follow(self, oks: Iterable[bool]) -> None:
        for ok in oks:
            self.seen += 1
            self.streak = 0 if ok else self.streak + 1
            self.peak = max(self.peak, self.streak)

    def advance(self, until: int) -> tuple[Effect, ...]:
        before = len(self.effects)
        self.fire(until)
        self.logical = max(self.logical, until + 1)
        return tuple(self.effects[before:])

    def gap(self, start: int, end: int) -> tuple[Effect, ...]:
        before = len(self.effects)
        self.fire(start)
        if self.override is not None and self.override.until_ms <= max(end, self.logical):
            self.logical = max(self.override.until_ms, self.logical)
            self.expire(self.logical)
        self.logical = self.grid = self.gap_end = max(end, self.logical)
        self.ticked_to = -1
        self.evaluate(self.logical, "ingest")
        return tuple(self.effects[before:])

    def configure(self, rule: Rule, now: int) -> None:
        old = self.rule
        self.logical = max(self.logical, now)
        if (rule.metric, rule.kind, rule.kind_params) != (old.metric, old.kind, old.kind_params):
            self.floor = self.logical
            self.baseline = None
            self.forget()
        self.rule = rule
        self.step = min(self.step, rule.recovery_allow_rate_ramp_steps)
        if rule.window_ms > old.window_ms:
            self.truncated += max(0, len(self.inside(self.logical)) - self.samples_max)

    # what callers see

    def sight(self) -> tuple[str, float]:
        if self.override is not None:
            state = FORCED[self.override.kind][0]
            rates = {"open": 0.0, "closed": 1.0, "half_open": self.override.allow_rate or 0.0}
            return state, rates[state]
        return ("closed", 1.0) if self.mode == "observe" else (self.state, self.rate())

    def hidden(self) -> str | None:
        return "override" if self.override is not None else "observe" if self.mode == "observe" else None

    def control(self, control: Control, now: int) -> tuple[Effect, ...]:
        """Mode and override from `now` on; timers before have fired."""
        told = len(self.effects)
        self.logical = now = max(self.logical, now)
        asked = control.override
        wanted = asked if asked is not None and (now < asked.until_ms or asked == self.override) else None
        if wanted is not None and wanted != self.override:
            self.show(now, self.mode_and(control.mode, wanted), FORCED[wanted.kind][1], wanted.by, wanted.reason)
        elif wanted is None and self.override is not None:
            old = self.override
            change = self.mode_and(control.mode, None, old.then == "half_open")
            by = (control.by, control.comment) if asked is None else (asked.by, asked.reason)
            self.show(now, change, "override_ended", *by)
        elif control.mode != self.mode:
            change = self.mode_and(control.mode, wanted)
            if wanted is None:
                self.show(now, change, f"mode_{control.mode}", control.by, control.comment)
            else:
                self.show(now, change, FORCED[wanted.kind][1], wanted.by, wanted.reason)
        return tuple(self.effects[told:])

    def mode_and(self, mode: str, override: Override | None, ramp: bool = False) -> Callable[[int], None]:
        def change(now: int) -> None:
            self.mode, self.override = mode, override
            if ramp:
                self.state, self.since, self.grid = "half_open", now, now
                self.step, self.passes, self.floor, self.last_eval = 1, 0, now, now
                self.forget()

        return change

    def expire(self, now: int) -> None:
        over = self.override
        assert over is not None
        self.show(
            now, self.mode_and(self.mode, None, over.then == "half_open"), "override_expired", over.by, over.reason
        )

    def show(self, now: int, change: Callable[[int], None], reason: str, by: str | None, comment: str | None) -> None:
        before = self.sight()
        since = self.since if self.seen_since is None else self.seen_since
        change(now)
        after = self.sight()
        self.seen_since = now if before[0] != after[0] else since
        if before[0] != after[0]:
            self.seq += 1
            self.effects.append(
                Transition(
                    prev=before[0],  # type: ignore[arg-type]
                    curr=after[0],  # type: ignore[arg-type]
                    ts_ms=now,
                    transition_seq=self.seq,
                    reason=reason,
                    allow_rate=after[1],
                    value=None,
                    agg=Agg(),
                    by=by,
                    comment=comment,
                )
            )
        elif before != after:
            self.effects.append(RateChange(ts_ms=now, allow_rate=after[1]))

    def forget(self) -> None:
        self.streak = self.peak = self.seen = self.count = 0
        self.verdict, self.value = "indeterminate", None

    # timers

    def next_tick(self) -> int:
        at = max(self.logical, self.ticked_to + 1, self.grid + 1)
        interval = self.rule.eval_interval_ms
        return self.grid + -(-(at - self.grid) // interval) * interval

    def deadline(self) -> int | None:
        if self.state == "open":
            wait = self.open_wait()
            due = self.since + (0 if wait == 0 else max(wait, 100))
        elif self.verdict == "breach":
            due = self.since + self.rule.min_state_duration_ms
        else:
            return None
        return max(due, self.logical) if due > self.last_eval else None

    def open_wait(self) -> int:
        rule = self.rule
        base = max(rule.cooldown_ms, rule.min_state_duration_ms)
        if self.failed == 0 or not rule.half_open_backoff_enabled:
            return base
        base = base or rule.eval_interval_ms
        return min(max(rule.half_open_backoff_cap_ms, base), base * 2 ** min(self.failed, 40))

    def fire(self, until: int) -> None:
        while True:
            tick, deadline = self.next_tick(), self.deadline()
            at = tick if deadline is None else min(tick, deadline)
            over = None if self.override is None else max(self.override.until_ms, self.logical)
            if over is not None and over <= min(at, until):
                self.logical = over
                self.expire(over)
                continue
            if at > until:
                return
            self.logical = at
            if at == tick:
                self.ticked_to = at
            self.evaluate(at, "tick" if at == tick else "deadline")

    # evaluation

    def window(self, now: int) -> list[tuple[float, bool]]:
        """Observation by observation: of a sample that stands for several, each."""
        inside = sorted(self.inside(now), key=lambda sample: sample[0])
        return [(value, ok) for _, value, ok, _, n in inside[-self.samples_max :] for _ in range(n)]

    def inside(self, now: int) -> list[tuple[int, float, bool, str, int]]:
        if self.rule.kind == "consecutive_failures":
            return []
        return [
            sample
            for sample in self.samples
            if now - self.rule.window_ms < sample[0] <= now
            and sample[0] >= self.floor
            and sample[3] == self.rule.metric
        ]

    def ready(self, now: int) -> bool:
        if self.rule.kind not in ("count", "sum") or self.rule.op not in ("lt", "lte"):
            return True
        return now - max(self.created, self.floor, self.gap_end) >= self.rule.window_ms

    def evaluate(self, now: int, trigger: str) -> None:
        rule, params = self.rule, self.rule.kind_params or {}
        window = self.window(now)
        inner: float | None = None
        need = rule.min_count if rule.kind in ("count", "sum") else max(1, rule.min_count)
        if rule.kind == "consecutive_failures":
            self.count, self.value = self.seen, float(self.peak) if self.seen else None
        elif rule.kind == "delta":
            self.count = len(window)
            inner = aggregate(params.get("delta_of") or "avg", {}, window, need) if window else None
            known = inner is not None and self.baseline is not None
            self.value = clamped(inner - self.baseline) if known else None
        else:
            self.count, self.value = len(window), aggregate(rule.kind, params, window, rule.min_count)
        if self.count < need or self.value is None or not self.ready(now):
            self.verdict = "indeterminate"
        elif OPS[rule.op](self.value, rule.threshold):
            self.verdict = "breach"
        elif rule.kind == "consecutive_failures" and self.state == "half_open" and self.streak > 0:
            self.verdict = "unconfirmed"
        else:
            self.verdict = "healthy"
        self.last_eval = now
        state = self.state
        agg = self.agg(window)
        {"closed": self.in_closed, "open": self.in_open, "half_open": self.in_half_open}[state](now, trigger, agg)
        if state == "closed" and trigger == "tick" and self.verdict != "breach" and self.count >= need:
            self.learn(inner, float(params.get("alpha") or 0.3))
        self.peak = self.streak

    def learn(self, inner: float | None, alpha: float) -> None:
        if inner is not None:
            old = self.baseline
            self.baseline = inner if old is None else clamped(alpha * inner + (1 - alpha) * old)

    def agg(self, window: list[tuple[float, bool]]) -> Agg:
        if self.rule.kind == "consecutive_failures":
            return Agg(count=self.seen, error_count=self.peak)
        if not window:
            return Agg()
        values = [v for v, _ in window]
        return Agg(mean(values), len(window), sum(1 for _, ok in window if not ok), nearest_rank(95, values))

    def in_closed(self, now: int, trigger: str, agg: Agg) -> None:
        if self.verdict == "breach" and now - self.since >= self.rule.min_state_duration_ms:
            self.cause = "threshold_exceeded"
            self.move("open", now, "threshold_exceeded", agg)

    def in_open(self, now: int, trigger: str, agg: Agg) -> None:
        if now - self.since < max(100, self.open_wait()):
            return
        self.step, self.passes = 1, 0
        self.move("half_open", now, "cooldown_elapsed", agg)
        self.floor = now
        self.forget()

    def in_half_open(self, now: int, trigger: str, agg: Agg) -> None:
        policy = POLICY_ACTION[self.rule.half_open_indeterminate_policy]
        action = TICK_ACTION.get(self.verdict, policy)
        if trigger != "tick" and self.verdict != "breach":
            return
        steps, old_rate = self.rule.recovery_allow_rate_ramp_steps, self.rate()
        aged = now - self.since >= self.rule.min_state_duration_ms
        if action == "pass":
            self.passes += 1
            if self.passes >= steps + 1 and aged:
                self.failed, self.cause = 0, None
                self.move("closed", now, "recovered", agg)
                self.step = self.passes = 0
                return
            self.step = min(self.passes + 1, steps)
        elif action == "fail":
            if aged:
                self.failed += 1
                self.cause = "threshold_exceeded" if self.verdict == "breach" else "insufficient_samples"
                self.move("open", now, self.cause, agg)
                self.step = self.passes = 0
                return
            self.step, self.passes = 1, 0
        if self.rate() != old_rate and self.hidden() is None:
            self.effects.append(RateChange(ts_ms=now, allow_rate=self.rate()))

    def rate(self) -> float:
        if self.state == "half_open":
            return round(self.step / self.rule.recovery_allow_rate_ramp_steps, 4)
        return 1.0 if self.state == "closed" else 0.0

    def move(self, curr: str, now: int, reason: str, agg: Agg) -> None:
        prev, self.state = self.state, curr
        if self.hidden() is None:
            self.seen_since = None
        elif self.seen_since is None:
            self.seen_since = self.since
        self.since = self.grid = now
        self.seq += 1
        self.effects.append(
            Transition(
                prev=prev,  # type: ignore[arg-type]
                curr=curr,  # type: ignore[arg-type]
                ts_ms=now,
                transition_seq=self.seq,
                reason=reason,
                allow_rate=self.rate(),
                value=self.value,
                agg=agg,
                hidden_by=self.hidden(),  # type: ignore[arg-type]
            )
        )

    # reading

    def clone(self) -> Oracle:
        other = copy.copy(self)
        other.samples, other.effects = list(self.samples), list(self.effects)
        return other

    def record(self) -> Record:
        return Record(
            created_ms=self.created,
            now_ms=self.logical,
            grid_ms=self.grid,
            state=self.state,  # type: ignore[arg-type]
            state_since_ms=self.since,
            transition_seq=self.seq,
            step=self.step,
            passes=self.passes,
            failed_recoveries=self.failed,
            evidence_floor_ms=self.floor,
            open_cause=self.cause,  # type: ignore[arg-type]
            verdict=self.verdict,  # type: ignore[arg-type]
            value=self.value,
            count=self.count,
            last_eval_ms=self.last_eval,
            streak=self.streak,
            peak=self.peak,
            seen=self.seen,
            baseline=self.baseline,
            late_count=self.late,
            truncated_count=self.truncated,
            gap_end_ms=self.gap_end,
            mode=self.mode,  # type: ignore[arg-type]
            override=self.override,
            shown_since_ms=self.seen_since or 0,
        )

    def view(self, now: int) -> View:
        tick, deadline = self.next_tick(), self.deadline()
        young = now - self.since < self.rule.min_state_duration_ms
        state, rate = self.sight()
        hidden = self.hidden() is not None
        return View(
            state=state,  # type: ignore[arg-type]
            state_since_ms=self.since if self.seen_since is None else self.seen_since,
            allow_rate=rate,
            verdict=self.verdict,  # type: ignore[arg-type]
            value=self.value,
            sample_count=self.count,
            passes=self.passes,
            last_eval_ms=self.last_eval,
            next_eval_ms=tick if deadline is None else min(tick, deadline),
            transition_seq=self.seq,
            open_cause=None if hidden else self.cause,  # type: ignore[arg-type]
            held_back=not hidden and self.state != "open" and self.verdict == "breach" and young,
            late_count=self.late,
            truncated_count=self.truncated,
            machine_state=self.state,  # type: ignore[arg-type]
            mode=self.mode,  # type: ignore[arg-type]
            override=self.override,
            deadline_ms=deadline,
        )
