"""The breaker: rule, durable record and evidence in one object, with the state machine of semantics.md sections 2, 3.

Gets batches, promised time, gaps and new rules in log order from its host; answers with effects (transitions, changes
of rate) and the next instant at which a timer could change something. No I/O and no clock: every time is an argument.

    closed --breach, age >= D--> open --age >= wait--> half_open --passes--> closed
                                  ^                        |
                                  +--------- fail ---------+

Timers before an input fire before it, in order, with their own time. Which ticks need not run is told in `core.timers`;
`view` shows those as if they had run.
"""

from __future__ import annotations

from msgspec.structs import replace

from breaker_actors.core.evidence import Evidence
from breaker_actors.core.model import (
    Batch,
    Cause,
    Effect,
    RateChange,
    Record,
    Rule,
    StateWord,
    Transition,
    View,
)
from breaker_actors.core.timers import HALF_OPEN_BETWEEN, HALF_OPEN_TICK, Timers, Trigger

SAMPLES_MAX = 1_000_000

TRANSITIONS: dict[tuple[StateWord, StateWord], str | None] = {
    ("closed", "open"): None,
    ("open", "half_open"): "cooldown_elapsed",
    ("half_open", "open"): None,
    ("half_open", "closed"): "recovered",
}
"""The moves there are, with the reason each reports; None: the cause of opening."""


class Breaker(Timers):
    """One breaker at work. What changes with every evaluation lives in slots and is folded in by `record()`."""

    __slots__ = ("_due",)

    def __init__(self, rule: Rule, record: Record, window_samples_max: int) -> None:
        self._record = record
        self._now, self._last_eval = record.now_ms, record.last_eval_ms
        self._evidence = Evidence(rule, record, window_samples_max)
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
        evidence = self._evidence
        return replace(
            self._record,
            now_ms=self._now,
            verdict=evidence.verdict,
            value=evidence.value(),
            count=evidence.count,
            last_eval_ms=self._last_eval,
            streak=evidence.streak,
            peak=evidence.peak,
            seen=evidence.seen,
            baseline=evidence.baseline,
            late_count=evidence.late,
            truncated_count=evidence.truncated,
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
        window = self._evidence.window
        return len(window) if window is not None else 0

    @property
    def lost(self) -> tuple[int, int]:
        """Samples so far that came too late for the window, and that left it early."""
        return self._evidence.late, self._evidence.truncated

    @property
    def reload_after_ms(self) -> int:
        """Log records stamped up to here hold nothing that could be in the window: `load` may start behind them."""
        return self._evidence.low_ms(self._now)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def ingest(self, batch: Batch, received_ms: int) -> tuple[Effect, ...]:
        """Timers before `received_ms` fire, then the batch comes in and is evaluated."""
        effects = self._fire(received_ms - 1) if received_ms > self._due else ()
        if received_ms > self._now:
            self._now = received_ms
        self._evidence.take(batch, received_ms, self._now)
        return effects + self._evaluate(self._now, "ingest")

    def advance(self, until_ms: int) -> tuple[Effect, ...]:
        """Fires every timer up to and including `until_ms`; the caller knows that no input stamped so early is left.

        The last tick is run even when idle: the record then does not depend on which ticks were skipped.
        """
        effects = self._fire(until_ms)
        if until_ms >= self._next_tick:
            effects += self._fire_at(self._tick_up_to(until_ms), "tick")
        if until_ms >= self._now:
            self._now = until_ms + 1
        return effects

    def gap(self, from_ms: int, to_ms: int) -> tuple[Effect, ...]:
        """No sample could come in between: timers inside do not fire, one evaluation at the end, a new grid from there.

        Silence inside is no evidence: count and sum with lt or lte wait for a whole window again.
        """
        effects = self._fire(from_ms)
        end = max(to_ms, self._now)
        self._record = replace(self._record, grid_ms=end, gap_end_ms=end)
        self._evidence.date(self._record)
        self._next_tick = self._tick_from(end)
        return effects + self._fire_at(end, "ingest")

    def configure(self, rule: Rule, now_ms: int) -> bool:
        """Puts a new rule in force; evaluates nothing. The caller has advanced to `now_ms - 1`.

        True: the window lacks samples that the new rule counts; `unload`, then `load` them from the log. allow_rate may
        be another one afterwards (see `view`) when the number of ramp steps changed.
        """
        self._evidence.value()
        old, self._now = self._rule, max(now_ms, self._now)
        step = min(self._record.step, rule.recovery_allow_rate_ramp_steps)
        self._record = replace(self._record, step=step)
        renewed = (rule.metric, rule.kind, rule.kind_params) != (old.metric, old.kind, old.kind_params)
        if renewed:
            self._forget(other_metric=rule.metric != old.metric)
        self._evidence.use(rule, self._record)
        self._use(rule)
        if self._evidence.window is None:
            return False
        if renewed:
            return rule.metric != old.metric or old.kind == "consecutive_failures"
        return rule.window_ms > old.window_ms

    def _forget(self, other_metric: bool) -> None:
        """Another metric, kind or parameter: what was seen is no evidence for the new rule."""
        evidence = self._evidence
        self._record = replace(self._record, evidence_floor_ms=self._now)
        evidence.baseline = None
        evidence.forget()
        if evidence.window is not None and other_metric:
            evidence.window.clear()
        evidence.date(self._record)
        evidence.expire(self._now)

    def _use(self, rule: Rule) -> None:
        """The timers start from a rule: whatever it changes shows at the next tick."""
        self._rule = rule
        self._clean = False
        self._next_tick = self._tick_from(self._now)
        self._due = self._now

    def unload(self) -> None:
        """Empties the window before it is loaded anew; nothing else changes."""
        if self._evidence.window is not None:
            self._evidence.window.clear()
        self._evidence.trace = None
        self._clean = False

    def load(self, batch: Batch, received_ms: int) -> None:
        """Refills the window with a logged batch, without evaluating; batches come in log order."""
        self._evidence.load(batch, received_ms, self._now)

    # -- evaluating ---------------------------------------------------------------------------------------------------

    def next_wake(self) -> int | None:
        """The earliest timer that could change something; None: none will before the next input."""
        timer = self._timer()
        return timer[0] if timer else None

    def _fire(self, until: int) -> tuple[Effect, ...]:
        """Runs the timers up to `until` that could change something."""
        effects: tuple[Effect, ...] = ()
        while (timer := self._timer()) and timer[0] <= until:
            effects += self._fire_at(*timer)
            if timer[1] == "tick":
                self._leap(until)
        return effects

    def _fire_at(self, at: int, trigger: Trigger) -> tuple[Effect, ...]:
        self._now = at
        self._evidence.expire(at)
        return self._evaluate(at, trigger)

    def _evaluate(self, now: int, trigger: Trigger) -> tuple[Effect, ...]:
        """Judges and acts at `now`, then sets the next timers; the window has been expired."""
        state, evidence = self._record.state, self._evidence
        evidence.assess(now, state == "half_open")
        self._last_eval = now
        self._clean = True
        effects = self._act(now, trigger)
        if trigger == "tick":
            if state == "closed" and evidence.is_delta:
                evidence.learn()
            self._next_tick = self._tick_from(now + 1)
        elif now > self._next_tick:
            self._next_tick = self._tick_from(now)
        deadline = self._deadline()
        self._due = self._next_tick if deadline is None else min(self._next_tick, deadline)
        return effects

    def _act(self, now: int, trigger: Trigger) -> tuple[Effect, ...]:
        """At most one move, by state and verdict."""
        record, verdict = self._record, self._evidence.verdict
        age = now - record.state_since_ms
        if record.state == "closed":
            if verdict == "breach" and age >= self._rule.min_state_duration_ms:
                return (self._open(now, "threshold_exceeded"),)
            return ()
        if record.state == "open":
            return (self._half_open(now),) if age >= self._open_wait() else ()
        action = (HALF_OPEN_TICK if trigger == "tick" else HALF_OPEN_BETWEEN)[self._word(verdict)]
        if action == "pass":
            return self._pass(now, age)
        return self._fail(now, age) if action == "fail" else ()

    def _pass(self, now: int, age: int) -> tuple[Effect, ...]:
        steps, passes = self._rule.recovery_allow_rate_ramp_steps, self._record.passes + 1
        if passes >= steps + 1 and age >= self._rule.min_state_duration_ms:
            return (self._close(now),)
        return self._ramp(now, min(passes + 1, steps), passes)

    def _fail(self, now: int, age: int) -> tuple[Effect, ...]:
        if age < self._rule.min_state_duration_ms:
            return self._ramp(now, 1, 0)
        breach = self._evidence.verdict == "breach"
        return (self._open(now, "threshold_exceeded" if breach else "insufficient_samples"),)

    def _ramp(self, now: int, step: int, passes: int) -> tuple[Effect, ...]:
        before = self._allow_rate()
        self._record = replace(self._record, step=step, passes=passes)
        rate = self._allow_rate()
        return () if rate == before else (RateChange(ts_ms=now, allow_rate=rate),)

    # -- moves --------------------------------------------------------------------------------------------------------

    def _open(self, now: int, cause: Cause) -> Transition:
        failed = self._record.failed_recoveries + (self._record.state == "half_open")
        return self._move("open", now, step=0, passes=0, failed_recoveries=failed, open_cause=cause)

    def _close(self, now: int) -> Transition:
        return self._move("closed", now, step=0, passes=0, failed_recoveries=0, open_cause=None)

    def _half_open(self, now: int) -> Transition:
        """Evidence starts anew: only samples from now on count."""
        moved = self._move("half_open", now, step=1, passes=0, evidence_floor_ms=now)
        evidence = self._evidence
        evidence.forget()
        evidence.expire(now)
        # A sample of this very instant still counts: then the cleared verdict is not what the next tick finds.
        self._clean = evidence.need > 0 and not self.held
        return moved

    def _move(self, curr: StateWord, now: int, **changes: object) -> Transition:
        """The record moves to another state; the report shows the window before evidence is dropped."""
        before, evidence = self._record, self._evidence
        assert (before.state, curr) in TRANSITIONS, f"no move from {before.state} to {curr}"
        seq = before.transition_seq + 1
        self._record = replace(before, state=curr, state_since_ms=now, grid_ms=now, transition_seq=seq, **changes)
        evidence.date(self._record)
        self._next_tick = self._tick_from(now)
        return Transition(
            prev=before.state,
            curr=curr,
            ts_ms=now,
            transition_seq=seq,
            reason=TRANSITIONS[before.state, curr] or str(self._record.open_cause),
            allow_rate=self._allow_rate(),
            value=evidence.value(),
            agg=evidence.agg(),
            trace_id=evidence.trace_id(now),
        )

    def _allow_rate(self) -> float:
        state = self._record.state
        if state == "half_open":
            return round(self._record.step / self._rule.recovery_allow_rate_ramp_steps, 4)
        return 1.0 if state == "closed" else 0.0

    # -- reading ------------------------------------------------------------------------------------------------------

    def view(self, now_ms: int) -> View:
        """What a state read shows at `now_ms`: idle ticks as if run, nothing that a timer still pending may change."""
        record, evidence = self._record, self._evidence
        verdict, value, count = evidence.verdict, evidence.value(), evidence.count
        last_eval, next_tick = self._last_eval, self._next_tick
        wake, deadline = self.next_wake(), self._deadline()
        shown_to = now_ms if wake is None else min(now_ms, wake - 1)
        if shown_to >= next_tick:
            last_eval = self._tick_up_to(shown_to)
            next_tick = last_eval + self._rule.eval_interval_ms
            change = evidence.change_ms(self._last_eval)
            unchanged = self._clean and change is not None and last_eval < change
            verdict, value, count = evidence.glance(last_eval, record.state == "half_open", unchanged)
        young = now_ms - record.state_since_ms < self._rule.min_state_duration_ms
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
            held_back=record.state != "open" and verdict == "breach" and young,
            late_count=evidence.late,
            truncated_count=evidence.truncated,
        )
