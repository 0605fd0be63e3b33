"""The breaker: rule, durable record and window in one object, with the state machine of semantics.md sections 2 and 3.

Gets batches, promised time, gaps and new rules in log order from its host; answers with effects (transitions, changes
of rate) and the next instant at which a timer could change something. No I/O and no clock: every time is an argument.

    closed --breach, age >= D--> open --age >= wait--> half_open --passes--> closed
                                  ^                        |
                                  +--------- fail ---------+

Timers before an input fire before it, in order, with their own time. A tick that provably changes nothing is not run:
between two inputs a window only loses samples, so the verdict of a tick can differ from the last one only after the
next sample has left (or count/sum became determinate). `view` shows such ticks as if they had run.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec.structs import replace

from breaker_actors.core.aggregate import (
    COMPARE,
    P95,
    accumulator_for,
    clamp,
    delta_params,
    exact_value,
    inner_kind,
    need_of,
    percent_of,
    summary,
)
from breaker_actors.core.model import (
    Agg,
    Batch,
    Cause,
    Effect,
    Flags,
    RateChange,
    Record,
    Rule,
    StateWord,
    Transition,
    Verdict,
    View,
)
from breaker_actors.core.window import Window

Trigger = Literal["ingest", "tick", "deadline"]
Action = Literal["nothing", "pass", "hold", "fail"]

SAMPLES_MAX = 1_000_000
BACKOFF_EXPONENT_MAX = 40
LONG_AGO = -(1 << 62)
FEW = 64

TRANSITIONS: dict[tuple[StateWord, StateWord], str | None] = {
    ("closed", "open"): None,
    ("open", "half_open"): "cooldown_elapsed",
    ("half_open", "open"): None,
    ("half_open", "closed"): "recovered",
}
"""The moves there are, with the reason each reports; None: the cause of opening."""

HALF_OPEN_TICK: dict[str, Action] = {
    "healthy": "pass",
    "breach": "fail",
    "unconfirmed": "hold",
    "optimistic": "pass",
    "conservative": "hold",
    "pessimistic": "fail",
}
"""What a tick in half_open does; the policy word stands for an indeterminate verdict."""

HALF_OPEN_BETWEEN: dict[str, Action] = {
    "healthy": "nothing",
    "breach": "fail",
    "unconfirmed": "nothing",
    "optimistic": "nothing",
    "conservative": "nothing",
    "pessimistic": "nothing",
}
"""What an ingest or a deadline in half_open does."""

HALF_OPEN: dict[Trigger, dict[str, Action]] = {
    "tick": HALF_OPEN_TICK,
    "ingest": HALF_OPEN_BETWEEN,
    "deadline": HALF_OPEN_BETWEEN,
}


class Breaker:
    """One breaker at work. `_record` is its durable part as of the last transition, pass or gap; what changes with
    every evaluation lives in slots and is folded in by `record()`."""

    __slots__ = (
        "_alpha", "_baseline", "_clean", "_compare", "_count", "_due", "_inner", "_is_delta", "_last_eval", "_late",
        "_lazy", "_need", "_next_tick", "_now", "_peak", "_ready", "_record", "_rule", "_samples_max", "_seen",
        "_streak", "_truncated", "_value", "_verdict", "_window",
    )  # fmt: skip

    def __init__(self, rule: Rule, record: Record, window_samples_max: int) -> None:
        self._record, self._samples_max = record, window_samples_max
        self._now, self._last_eval = record.now_ms, record.last_eval_ms
        self._verdict: Verdict = record.verdict
        self._value, self._count, self._lazy = record.value, record.count, False
        self._streak, self._peak, self._seen = record.streak, record.peak, record.seen
        self._baseline = record.baseline
        self._late, self._truncated = record.late_count, record.truncated_count
        self._inner: float | None = None
        self._window: Window | None = None
        self._use(rule)

    @classmethod
    def create(
        cls, rule: Rule, created_ms: int, *, after_seq: int = 0, window_samples_max: int = SAMPLES_MAX
    ) -> tuple[Breaker, tuple[Effect, ...]]:
        """A new breaker, closed and evaluated once; its transitions are numbered from `after_seq` + 1."""
        record = Record(
            created_ms=created_ms,
            now_ms=created_ms,
            grid_ms=created_ms,
            state_since_ms=created_ms,
            transition_seq=after_seq,
        )
        breaker = cls(rule, record, window_samples_max)
        return breaker, breaker._evaluate(created_ms, "ingest")

    @classmethod
    def restore(cls, rule: Rule, record: Record, *, window_samples_max: int = SAMPLES_MAX) -> Breaker:
        """A breaker as of its record, with an empty window: `load` refills it from the log."""
        return cls(rule, record, window_samples_max)

    def record(self) -> Record:
        """The durable part as it stands."""
        return replace(
            self._record,
            now_ms=self._now,
            verdict=self._verdict,
            value=self._settled_value(),
            count=self._count,
            last_eval_ms=self._last_eval,
            streak=self._streak,
            peak=self._peak,
            seen=self._seen,
            baseline=self._baseline,
            late_count=self._late,
            truncated_count=self._truncated,
        )

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self._rule

    @property
    def allow_rate(self) -> float:
        """What a gate lets through now: closed 1.0, open 0.0, half_open its step of the ramp."""
        return self._allow_rate()

    @property
    def held(self) -> int:
        """Samples in memory."""
        return len(self._window) if self._window is not None else 0

    @property
    def reload_after_ms(self) -> int:
        """Log records stamped up to here hold nothing that could be in the window: `load` may start behind them."""
        return self._low(self._now)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def ingest(self, batch: Batch, received_ms: int) -> tuple[Effect, ...]:
        """Timers before `received_ms` fire, then the batch comes in and is evaluated."""
        effects = self._fire(received_ms - 1) if received_ms > self._due else ()
        now = self._now
        if received_ms > now:
            self._now = now = received_ms
        window = self._window
        if window is None:
            self._follow(batch.ok)
        else:
            low = self._low(now)
            window.expire(low)
            late, truncated = window.add(batch, received_ms, low)
            self._late += late
            self._truncated += truncated
        return effects + self._evaluate(now, "ingest")

    def advance(self, until_ms: int) -> tuple[Effect, ...]:
        """Fires every timer up to and including `until_ms`; the caller knows that no input stamped so early is left.

        The last tick is run even when idle: the record then does not depend on which ticks were skipped.
        """
        effects = self._fire(until_ms)
        if until_ms >= self._next_tick:
            at = self._tick_not_after(until_ms)
            self._now = at
            effects += self._evaluate(at, "tick")
        if until_ms >= self._now:
            self._now = until_ms + 1
        return effects

    def gap(self, from_ms: int, to_ms: int) -> tuple[Effect, ...]:
        """No sample could come in between: timers inside do not fire, one evaluation at the end, a new grid from there.

        Silence inside is no evidence: count and sum with lt or lte wait for a whole window again.
        """
        effects = self._fire(from_ms)
        self._now = now = max(to_ms, self._now)
        self._record = replace(self._record, grid_ms=now, gap_end_ms=now)
        self._ready = self._ready_ms()
        self._next_tick = self._tick_from(now)
        if self._window is not None:
            self._window.expire(self._low(now))
        return effects + self._evaluate(now, "ingest")

    def configure(self, rule: Rule, now_ms: int) -> bool:
        """Puts a new rule in force; evaluates nothing. The caller has advanced to `now_ms - 1`.

        True: the window lacks samples that the new rule counts; `unload`, then `load` them from the log. allow_rate may
        be another one afterwards (see `view`) when the number of ramp steps changed.
        """
        self._settled_value()
        old, self._now = self._rule, max(now_ms, self._now)
        renewed = (rule.metric, rule.kind, rule.kind_params) != (old.metric, old.kind, old.kind_params)
        if renewed:
            self._forget(drop_window=rule.metric != old.metric)
        step = min(self._record.step, rule.recovery_allow_rate_ramp_steps)
        self._record = replace(self._record, step=step)
        self._use(rule)
        if self._window is None:
            return False
        if renewed:
            return rule.metric != old.metric or old.kind == "consecutive_failures"
        return rule.window_ms > old.window_ms

    def unload(self) -> None:
        """Empties the window before it is loaded anew; nothing else changes."""
        if self._window is not None:
            self._window.clear()
        self._clean = False

    def load(self, batch: Batch, received_ms: int) -> None:
        """Refills the window with a logged batch, without evaluating; batches come in log order."""
        if self._window is not None and len(batch):
            self._window.add(batch, received_ms, self._low(self._now))

    # -- timers -------------------------------------------------------------------------------------------------------

    def next_wake(self) -> int | None:
        """The earliest timer that could change something; None: none will before the next input."""
        timer = self._timer()
        return timer[0] if timer else None

    def _fire(self, until: int) -> tuple[Effect, ...]:
        """Runs the timers up to `until` that could change something."""
        effects: tuple[Effect, ...] = ()
        while (timer := self._timer()) and timer[0] <= until:
            self._now = timer[0]
            effects += self._evaluate(*timer)
            if timer[1] == "tick" and self._clean:
                self._leap(until)
        return effects

    def _timer(self) -> tuple[int, Trigger] | None:
        """The next timer that could change something; a deadline on the grid is a tick."""
        tick, deadline = self._useful_tick(), self._deadline()
        if deadline is None or (tick is not None and tick <= deadline):
            return None if tick is None else (tick, "tick")
        on_grid = deadline >= self._next_tick and self._tick_from(deadline) == deadline
        return deadline, "tick" if on_grid else "deadline"

    def _deadline(self) -> int | None:
        """End of openWait, or of the minimum duration while a breach stands.

        Only what the last evaluation has not seen past: without any wait the next tick or batch moves on. A new rule
        may leave a deadline in the past, it is due at once.
        """
        record = self._record
        if record.state == "open":
            wait = self._open_wait()
        elif self._verdict == "breach":
            wait = self._rule.min_state_duration_ms
        else:
            return None
        due = record.state_since_ms + wait
        return max(due, self._now) if due > self._last_eval else None

    def _open_wait(self) -> int:
        rule, failed = self._rule, self._record.failed_recoveries
        base = max(rule.cooldown_ms, rule.min_state_duration_ms)
        if not failed or not rule.half_open_backoff_enabled:
            return base
        base = base or rule.eval_interval_ms
        return min(max(rule.half_open_backoff_cap_ms, base), base << min(failed, BACKOFF_EXPONENT_MAX))

    def _tick_from(self, at: int) -> int:
        """The first tick at or after `at`."""
        origin, interval = self._record.grid_ms, self._rule.eval_interval_ms
        return origin + max(1, -(-(at - origin) // interval)) * interval

    def _tick_not_after(self, at: int) -> int:
        """The last pending tick up to `at`, which must not lie before the next one."""
        interval = self._rule.eval_interval_ms
        return self._next_tick + (at - self._next_tick) // interval * interval

    def _useful_tick(self) -> int | None:
        """The next tick that could change state, rate, passes, baseline or a standing breach; in doubt the next one."""
        if self._record.state == "open":
            return None if self._deadline() is not None else self._next_tick
        if not self._clean:
            return self._next_tick
        if self._window is None:
            return self._useful_streak_tick()
        if self._record.state == "half_open":
            return self._useful_half_open_tick(self._verdict)
        if self._is_delta:
            return self._useful_delta_tick()
        tick = self._change_tick()
        if tick is None or self._verdict != "healthy" or self._window.acc.may_breach(len(self._window)):
            return tick
        return None

    def _change_tick(self) -> int | None:
        """The first tick at which the window, seen by the verdict, differs from the last evaluation."""
        change = self._change_ms()
        return None if change is None else max(self._next_tick, self._tick_from(change))

    def _change_ms(self) -> int | None:
        """When the oldest sample leaves or count/sum become determinate; None: too few samples, for good, or none."""
        window = self._window
        if window is None or len(window) < self._need:
            return None
        oldest = window.oldest_ms
        change = None if oldest is None else oldest + self._rule.window_ms
        if self._last_eval < self._ready:
            return self._ready if change is None else min(change, self._ready)
        return change

    def _useful_half_open_tick(self, verdict: Verdict) -> int | None:
        """`verdict` is what a tick finds as long as the window stays the same."""
        record = self._record
        action = HALF_OPEN_TICK[self._word(verdict)]
        if action == "pass" or (action == "fail" and (record.step != 1 or record.passes)):
            return self._next_tick
        change = self._change_tick()
        if action == "hold":
            return change
        ripe = max(self._next_tick, self._tick_from(record.state_since_ms + self._rule.min_state_duration_ms))
        return ripe if change is None else min(change, ripe)

    def _useful_streak_tick(self) -> int | None:
        """A tick sees the running streak where the last ingest saw the highest one; after that nothing moves."""
        verdict = self._judge_streak(self._streak)
        if verdict != self._verdict:
            return self._next_tick
        return self._useful_half_open_tick(verdict) if self._record.state == "half_open" else None

    def _useful_delta_tick(self) -> int | None:
        """Ticks move the baseline, up to where moving it leaves it the same."""
        inner, baseline = self._inner, self._baseline
        if inner is None or self._count < self._need:
            return None
        if baseline is None:
            return self._next_tick
        if self._compare(clamp(inner - baseline), self._rule.threshold):
            return self._change_tick() if self._verdict == "breach" else self._next_tick
        return self._change_tick() if self._learned(inner, baseline) == baseline else self._next_tick

    def _leap(self, until: int) -> None:
        """After a tick: the ticks like it that only count passes or move the baseline are done in one go."""
        state = self._record.state
        if not (state == "half_open" or (self._is_delta and state == "closed")):
            return
        change = self._change_ms()
        last = until if change is None else min(until, change - 1)
        if state == "half_open":
            self._leap_passes(last)
        elif self._verdict == "healthy":
            self._leap_baseline(last)

    def _leap_passes(self, last: int) -> None:
        """With the full rate reached, passes before the minimum duration only add up."""
        record, rule = self._record, self._rule
        last = min(last, record.state_since_ms + rule.min_state_duration_ms - 1)
        full = record.step == rule.recovery_allow_rate_ramp_steps
        if not full or last < self._next_tick or HALF_OPEN_TICK[self._word(self._verdict)] != "pass":
            return
        at = self._tick_not_after(last)
        passes = record.passes + (at - self._next_tick) // rule.eval_interval_ms + 1
        self._record = replace(record, passes=passes)
        self._last_eval, self._next_tick = at, at + rule.eval_interval_ms

    def _leap_baseline(self, last: int) -> None:
        """The aggregate stands still, the baseline moves towards it tick by tick until it breaches or arrives."""
        inner, baseline, at = self._inner, self._baseline, self._next_tick
        if inner is None or baseline is None:
            return
        interval, threshold = self._rule.eval_interval_ms, self._rule.threshold
        while at <= last:
            value = clamp(inner - baseline)
            if self._compare(value, threshold):
                break
            self._value, self._last_eval = value, at
            at += interval
            learned = self._learned(inner, baseline)
            if learned == baseline:
                break
            baseline = learned
        self._baseline, self._next_tick = baseline, at

    # -- one evaluation -----------------------------------------------------------------------------------------------

    def _evaluate(self, now: int, trigger: Trigger) -> tuple[Effect, ...]:
        """Expires, judges and acts at `now`, then sets the next timers."""
        window = self._window
        if window is None:
            self._assess_streak()
        else:
            if trigger != "ingest":
                window.expire(self._low(now))
            self._assess(window, now)
        self._last_eval = now
        self._clean = True
        state = self._record.state
        effects: tuple[Effect, ...] = ()
        if state == "closed":
            if self._verdict == "breach" and now - self._record.state_since_ms >= self._rule.min_state_duration_ms:
                effects = (self._open(now, "threshold_exceeded"),)
        elif state == "open":
            if now - self._record.state_since_ms >= self._open_wait():
                effects = (self._half_open(now),)
        else:
            effects = self._act(now, HALF_OPEN[trigger][self._word(self._verdict)])
        if trigger == "tick":
            if state == "closed" and self._is_delta:
                self._learn()
            self._next_tick = self._tick_from(now + 1)
        elif now > self._next_tick:
            self._next_tick = self._tick_from(now)
        deadline = self._deadline()
        self._due = self._next_tick if deadline is None else min(self._next_tick, deadline)
        return effects

    def _assess(self, window: Window, now: int) -> None:
        """Count and verdict of the window; the value is worked out only when somebody asks (see `_settled_value`)."""
        self._count = n = len(window)
        if self._is_delta:
            self._assess_delta(window, n)
            return
        self._lazy = True
        if n < self._need or now < self._ready:
            self._verdict = "indeterminate"
            return
        breach = window.acc.breach(n, window) if n else self._compare(0.0, self._rule.threshold)
        self._verdict = "breach" if breach else "healthy"

    def _assess_delta(self, window: Window, n: int) -> None:
        self._inner = window.acc.value(n, window) if n else None
        self._value = self._difference(self._inner)
        if n < self._need or self._value is None:
            self._verdict = "indeterminate"
        else:
            self._verdict = "breach" if self._compare(self._value, self._rule.threshold) else "healthy"

    def _assess_streak(self) -> None:
        self._count = self._seen
        self._value = float(self._peak) if self._seen else None
        self._verdict = self._judge_streak(self._peak)
        self._peak = self._streak

    def _judge_streak(self, highest: int) -> Verdict:
        if self._seen < self._need:
            return "indeterminate"
        if self._compare(float(highest), self._rule.threshold):
            return "breach"
        return "unconfirmed" if self._streak and self._record.state == "half_open" else "healthy"

    def _difference(self, inner: float | None) -> float | None:
        return None if inner is None or self._baseline is None else clamp(inner - self._baseline)

    def _learn(self) -> None:
        """A tick in closed moves the baseline, or seeds it; never on a breach."""
        inner = self._inner
        if inner is None or self._count < self._need or self._verdict == "breach":
            return
        self._baseline = inner if self._baseline is None else self._learned(inner, self._baseline)

    def _learned(self, inner: float, baseline: float) -> float:
        return clamp(self._alpha * inner + (1 - self._alpha) * baseline)

    def _word(self, verdict: Verdict) -> str:
        """The row of the half_open table: the verdict, or the policy for an indeterminate one."""
        return self._rule.half_open_indeterminate_policy if verdict == "indeterminate" else verdict

    def _follow(self, ok: Flags) -> None:
        """consecutive_failures: runs of ok=false in arrival order, over the ends of batches."""
        self._seen += len(ok)
        good = np.flatnonzero(ok)
        if not len(good):
            self._streak += len(ok)
            self._peak = max(self._peak, self._streak)
            return
        inside = int(np.diff(good).max()) - 1 if len(good) > 1 else 0
        first = self._streak + int(good[0])
        self._streak = len(ok) - 1 - int(good[-1])
        self._peak = max(self._peak, first, inside, self._streak)

    # -- moves --------------------------------------------------------------------------------------------------------

    def _act(self, now: int, action: Action) -> tuple[Effect, ...]:
        """half_open: counts a pass, or takes a failure."""
        if action == "pass":
            return self._pass(now)
        if action == "fail":
            return self._fail(now)
        return ()

    def _pass(self, now: int) -> tuple[Effect, ...]:
        record, steps = self._record, self._rule.recovery_allow_rate_ramp_steps
        passes = record.passes + 1
        if passes >= steps + 1 and now - record.state_since_ms >= self._rule.min_state_duration_ms:
            return (self._close(now),)
        return self._ramp(now, min(passes + 1, steps), passes)

    def _fail(self, now: int) -> tuple[Effect, ...]:
        if now - self._record.state_since_ms < self._rule.min_state_duration_ms:
            return self._ramp(now, 1, 0)
        return (self._open(now, "threshold_exceeded" if self._verdict == "breach" else "insufficient_samples"),)

    def _ramp(self, now: int, step: int, passes: int) -> tuple[Effect, ...]:
        before = self._allow_rate()
        self._record = replace(self._record, step=step, passes=passes)
        rate = self._allow_rate()
        return () if rate == before else (RateChange(ts_ms=now, allow_rate=rate),)

    def _open(self, now: int, cause: Cause) -> Transition:
        failed = self._record.failed_recoveries + (self._record.state == "half_open")
        return self._move("open", now, step=0, passes=0, failed_recoveries=failed, open_cause=cause)

    def _close(self, now: int) -> Transition:
        return self._move("closed", now, step=0, passes=0, failed_recoveries=0, open_cause=None)

    def _half_open(self, now: int) -> Transition:
        """Evidence starts anew: only samples from now on count."""
        moved = self._move("half_open", now, step=1, passes=0, evidence_floor_ms=now)
        self._forget_evidence()
        if self._window is not None:
            self._window.expire(now - 1)
            # A sample of this very instant still counts: then the cleared verdict is not what the next tick finds.
            self._clean = self._need > 0 and not len(self._window)
        return moved

    def _move(self, curr: StateWord, now: int, **changes: object) -> Transition:
        """The record moves to another state; the report shows the window before evidence is dropped."""
        before = self._record
        assert (before.state, curr) in TRANSITIONS, f"no move from {before.state} to {curr}"
        value, agg = self._settled_value(), self._agg()
        self._record = replace(
            before, state=curr, state_since_ms=now, grid_ms=now, transition_seq=before.transition_seq + 1, **changes
        )
        self._ready = self._ready_ms()
        self._next_tick = self._tick_from(now)
        return Transition(
            prev=before.state,
            curr=curr,
            ts_ms=now,
            transition_seq=self._record.transition_seq,
            reason=TRANSITIONS[before.state, curr] or str(self._record.open_cause),
            allow_rate=self._allow_rate(),
            value=value,
            agg=agg,
        )

    def _agg(self) -> Agg:
        window = self._window
        if window is None:
            return Agg(count=self._seen, error_count=int(self._value or 0))
        return summary(window.values(), window.flags()) if len(window) else Agg()

    def _allow_rate(self) -> float:
        state = self._record.state
        if state == "half_open":
            return round(self._record.step / self._rule.recovery_allow_rate_ramp_steps, 4)
        return 1.0 if state == "closed" else 0.0

    # -- rule and evidence --------------------------------------------------------------------------------------------

    def _use(self, rule: Rule) -> None:
        """Takes a rule in: what is derived from it, the accumulator over the columns held, the next timers."""
        self._rule = rule
        self._need, self._compare = need_of(rule), COMPARE[rule.op]
        self._is_delta = rule.kind == "delta"
        self._alpha = delta_params(rule)[1] if self._is_delta else 0.0
        if rule.kind == "consecutive_failures":
            self._window = None
        elif self._window is None:
            self._window = Window(accumulator_for(rule), self._samples_max)
        else:
            self._window.recount(accumulator_for(rule))
        self._clean = False
        self._ready = self._ready_ms()
        self._next_tick = self._tick_from(self._now)
        self._due = self._now

    def _ready_ms(self) -> int:
        """count and sum with lt or lte need a whole window of listening before a low figure means anything."""
        rule, record = self._rule, self._record
        if rule.kind not in ("count", "sum") or rule.op not in ("lt", "lte"):
            return LONG_AGO
        return max(record.created_ms, record.evidence_floor_ms, record.gap_end_ms) + rule.window_ms

    def _low(self, now: int) -> int:
        """Samples up to this effective time are not in the window at `now`."""
        low = now - self._rule.window_ms
        floor = self._record.evidence_floor_ms
        return low if low >= floor else floor - 1

    def _forget(self, drop_window: bool) -> None:
        """Another metric, kind or parameter: what was seen is no evidence for the new rule."""
        self._record = replace(self._record, evidence_floor_ms=self._now)
        self._baseline = None
        self._forget_evidence()
        if self._window is not None:
            if drop_window:
                self._window.clear()
            else:
                self._window.expire(self._now - 1)

    def _forget_evidence(self) -> None:
        self._verdict, self._value, self._lazy, self._count = "indeterminate", None, False, 0
        self._inner = None
        self._streak = self._peak = self._seen = 0

    # -- reading ------------------------------------------------------------------------------------------------------

    def view(self, now_ms: int) -> View:
        """What a state read shows at `now_ms`: idle ticks as if run, nothing that a timer still pending may change."""
        wake = self.next_wake()
        shown_to = now_ms if wake is None else min(now_ms, wake - 1)
        verdict, value, count, last_eval, next_tick = (
            self._verdict, self._settled_value(), self._count, self._last_eval, self._next_tick,
        )  # fmt: skip
        if shown_to >= next_tick:
            last_eval = self._tick_not_after(shown_to)
            next_tick = last_eval + self._rule.eval_interval_ms
            verdict, value, count = self._glance(last_eval)
        deadline, record = self._deadline(), self._record
        age = now_ms - record.state_since_ms
        return View(
            state=record.state,
            state_since_ms=record.state_since_ms,
            allow_rate=self._allow_rate(),
            verdict=verdict,
            value=value,
            sample_count=count,
            passes=record.passes,
            last_eval_ms=last_eval,
            next_eval_ms=next_tick if deadline is None else min(next_tick, deadline),
            transition_seq=record.transition_seq,
            open_cause=record.open_cause,
            held_back=record.state != "open" and verdict == "breach" and age < self._rule.min_state_duration_ms,
            late_count=self._late,
            truncated_count=self._truncated,
        )

    def _settled_value(self) -> float | None:
        """The value of the last evaluation, worked out from the window when it has not been yet."""
        if self._lazy and self._window is not None:
            n = len(self._window)
            self._value = self._window.acc.value(n, self._window) if n else self._empty_value()
            self._lazy = False
        return self._value

    def _empty_value(self) -> float | None:
        """Of nothing: a count of 0, a sum of 0 when min_count allows it, else no value."""
        kind = self._rule.kind
        return 0.0 if kind == "count" or (kind == "sum" and not self._need) else None

    def _glance(self, at: int) -> tuple[Verdict, float | None, int]:
        """Verdict, value and count of an idle tick at `at`, without touching the window."""
        window = self._window
        if window is None:
            return self._judge_streak(self._streak), float(self._streak) if self._seen else None, self._seen
        change = self._change_ms()
        if self._clean and len(window) > FEW and not self._is_delta and (change is None or at < change):
            if len(window) >= self._need:
                return self._verdict, self._settled_value(), self._count
        values, ok = window.since(at - self._rule.window_ms)
        n, rule = len(values), self._rule
        value = self._empty_value()
        if n:
            percent = percent_of(rule) if rule.kind == "percentile" else P95
            value = exact_value(inner_kind(rule), percent, values, ok)
        if self._is_delta:
            value = self._difference(value)
        if n < self._need or value is None or at < self._ready:
            return "indeterminate", value, n
        return "breach" if self._compare(value, rule.threshold) else "healthy", value, n
