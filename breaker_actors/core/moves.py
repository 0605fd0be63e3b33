"""What a breaker does by itself as time goes on: timers fire, evaluations judge, and it moves (semantics.md section 3);
what operators set comes in here, too (section 12). `core.machine` takes the inputs and shows how it stands.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from breaker_actors.core import decisions, overlay
from breaker_actors.core.evidence import Evidence
from breaker_actors.core.model import Effect, RateChange, Record, Rule, StateWord, Transition
from breaker_actors.core.overlay import Shown
from breaker_actors.core.schedule import Schedule, Timer, Trigger

TRANSITIONS: dict[tuple[StateWord, StateWord], str | None] = {
    ("closed", "open"): None,
    ("open", "half_open"): "cooldown_elapsed",
    ("half_open", "open"): None,
    ("half_open", "closed"): "recovered",
}
"""The moves there are, with the reason each reports; None: the cause of opening."""

RANKED = 1000
"""So many samples are ranked at the cost of an ordinary evaluation, a fifth of that where they stand for several."""

BEHIND_MS, TICKS_FEW = 3_000, 4
"""Who is not further behind has few timers to fire: moves take 100 ms for three of them."""
LEAPT, SEEN = 16, 128
"""So many ticks of one leap, or samples that a move reports on, cost as much as an ordinary evaluation."""

EvidenceMaker = Callable[[Rule, Record, int], Evidence]
"""Of a rule, a record and the samples held at most."""


class Effort:
    """What firing timers may still cost, in ordinary evaluations (some 10 us each)."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Mover:
    """A breaker's schedule and evidence, and what follows from them."""

    __slots__ = ("_due", "evidence", "schedule")

    def __init__(self, rule: Rule, record: Record, window_samples_max: int, evidence: EvidenceMaker = Evidence) -> None:
        self.evidence = evidence(rule, record, window_samples_max)
        self.schedule = Schedule(rule, record, self.evidence)
        self._due = record.now_ms

    @property
    def rule(self) -> Rule:
        """The rule in force."""
        return self.schedule.rule

    @property
    def machine_rate(self) -> float:
        """What the machine lets through, whatever callers see of it."""
        return decisions.allow_rate(self.schedule)

    @property
    def shown(self) -> Shown:
        """What callers see now."""
        return overlay.shown(self.schedule.record, self.machine_rate)

    @property
    def allow_rate(self) -> float:
        """What a gate lets through now: closed 1.0, open 0.0, half_open its step of the ramp or a throttle's."""
        return self.shown.allow_rate

    @property
    def samples_held(self) -> int:
        """Samples in memory."""
        window = self.evidence.window
        return len(window) if window is not None else 0

    def take_moved(self) -> int:
        """How many samples left together, or were moved to let late ones in, since this was asked last."""
        window = self.evidence.window
        if window is None:
            return 0
        moved, window.moved = window.moved, 0
        return moved

    @property
    def effort(self) -> int:
        """What one evaluation costs now, in ordinary ones (some 10 us): 1 for those that don't grow with the window."""
        window = self.evidence.window
        if window is None or not self.evidence.ranks:
            return 1
        rows = len(window)
        return 1 + (rows if window.observations == rows else 5 * rows) // RANKED

    @property
    def now_ms(self) -> int:
        """The logical time: every timer before it has fired."""
        return self.schedule.now

    # -- evaluating ---------------------------------------------------------------------------------------------------

    def next_wake(self) -> int | None:
        """The earliest timer that could change something; None: none will before the next input."""
        schedule, evidence = self.schedule, self.evidence
        record = schedule.record
        if (
            evidence.verdict == "healthy"
            and record.state == "closed"
            and record.override is None
            and schedule.clean
            and evidence.window is not None
            and not evidence.is_delta
        ):  # as most are: `timer` would find the same, at several times the cost
            return schedule.change_tick() if evidence.may_breach() else None
        timer = schedule.timer()
        return timer[0] if timer else None

    def is_behind(self, at_ms: int) -> bool:
        """Whether more than a few timers may have to fire before an instant, or one that costs more than usual."""
        if at_ms <= self._due:
            return False
        behind = at_ms - self.schedule.now
        return behind > BEHIND_MS or behind > TICKS_FEW * self.schedule.rule.eval_interval_ms or self.effort > 1

    def fire(self, until: int, effects_max: int | None = None, effort: Effort | None = None) -> tuple[Effect, ...]:
        """Runs the timers up to `until` that could change something, until there are so many effects, or the effort is
        spent, whose last evaluation may cost more than was left."""
        effects: tuple[Effect, ...] = ()
        while (timer := self.schedule.timer()) and timer[0] <= until:
            fired = self._fire_at(*timer)
            effects += fired
            leapt = 0
            if timer[1] == "tick":
                end = self.schedule.override_end()
                leapt = self.schedule.leap(until if end is None else min(until, end - 1))
            if effects_max is not None and len(effects) >= effects_max:
                break
            if effort is not None:
                effort.left -= self.effort + leapt // LEAPT + (self.samples_held // SEEN if fired else 0)
                if effort.left <= 0:
                    break
        return effects

    def _fire_at(self, at: int, timer: Timer | Trigger) -> tuple[Effect, ...]:
        self.schedule.now = at
        if timer == "override":
            return self._expire_override(at)
        self.evidence.expire(at)
        return self.evaluate(at, timer)

    def _expire_override(self, now: int) -> tuple[Effect, ...]:
        record = self.schedule.record
        over = record.override
        assert over is not None
        told = (over.by, over.reason)
        return self._show(replace(record, override=None), now, "override_expired", told, over.then)

    def _show(
        self, after: Record, now: int, reason: str, told: tuple[str | None, str | None], then: str | None
    ) -> tuple[Effect, ...]:
        """Puts a record with another mode or override in force, and tells what callers see change. `told`: who and why;
        `then` half_open: the machine goes there, and begins its ramp."""
        schedule, evidence = self.schedule, self.evidence
        before, schedule.record = self.shown, after
        since = overlay.shown_since(after)
        if then == "half_open":
            changes = {"state_since_ms": now, "grid_ms": now, "step": 1, "passes": 0, "evidence_floor_ms": now}
            schedule.record = after = replace(after, state="half_open", **changes)
            schedule.next_tick, schedule.last_eval = schedule.tick_from(now), now
            evidence.date(after)
            self._begin_evidence(now)
        seen, seq = self.shown, after.transition_seq
        if seen.state != before.state:
            seq, since = seq + 1, now
        schedule.record = replace(after, transition_seq=seq, shown_since_ms=since)
        self._due = schedule.due()
        if seen.state != before.state:
            return (overlay.seen_move(before, seen, seq, now, reason, *told),)
        return () if seen == before else (RateChange(ts_ms=now, allow_rate=seen.allow_rate),)

    def evaluate(self, now: int, trigger: Trigger) -> tuple[Effect, ...]:
        """Judges and acts at `now`, then sets the next timers; the window has been expired."""
        schedule, evidence = self.schedule, self.evidence
        record = schedule.record
        state = record.state
        evidence.assess(now, state == "half_open")
        schedule.last_eval = now
        schedule.clean = True
        if trigger == "ingest" and state == "closed" and evidence.verdict != "breach" and record.override is None:
            # nothing to decide, and no timer but the ticks
            if now > schedule.next_tick:
                schedule.next_tick = schedule.tick_from(now)
            self._due = schedule.next_tick
            return ()
        decision = decisions.decide(schedule, evidence.verdict, now, trigger)
        effects = () if decision is None else self._carry_out(decision, now)
        if trigger == "tick":
            if state == "closed" and evidence.is_delta:
                evidence.learn()
            schedule.next_tick = schedule.tick_from(now + 1)
        elif now > schedule.next_tick:
            schedule.next_tick = schedule.tick_from(now)
        self._due = schedule.due()
        return effects

    def pass_by(self, now: int) -> None:
        """An evaluation that found no breach and changed nothing, without making it. The next tick is run whatever it
        finds."""
        schedule, evidence = self.schedule, self.evidence
        evidence.verdict, evidence.peak = "healthy", evidence.streak
        schedule.clean, schedule.last_eval, self._due = False, now, now
        if now > schedule.next_tick:
            schedule.next_tick = schedule.tick_from(now)

    def _carry_out(self, decision: decisions.Decision, now: int) -> tuple[Effect, ...]:
        if decision.curr is not None:
            return (self._move(decision.curr, now, **decision.changes),)
        before = self.allow_rate  # as callers see it: of a ramp that is hidden they are told nothing
        self.schedule.record = replace(self.schedule.record, **decision.changes)
        rate = self.allow_rate
        return () if rate == before else (RateChange(ts_ms=now, allow_rate=rate),)

    def _move(self, curr: StateWord, now: int, **changes: object) -> Transition:
        """The record moves to another state; the report shows the window before evidence is dropped."""
        schedule, evidence = self.schedule, self.evidence
        before = schedule.record
        assert (before.state, curr) in TRANSITIONS, f"no move from {before.state} to {curr}"
        seq = before.transition_seq + 1
        moved_to = replace(before, state=curr, state_since_ms=now, grid_ms=now, transition_seq=seq, **changes)
        schedule.record = overlay.after_move(moved_to, before)
        schedule.next_tick = schedule.tick_from(now)
        rate = decisions.allow_rate(schedule)
        evidence.date(schedule.record)
        moved = Transition(
            prev=before.state,
            curr=curr,
            ts_ms=now,
            transition_seq=seq,
            reason=TRANSITIONS[before.state, curr] or str(schedule.record.open_cause),
            allow_rate=rate,
            value=evidence.value(),
            agg=evidence.agg(),
            trace_id=evidence.trace_id(now),
            hidden_by=overlay.hidden_by(schedule.record),
        )
        if curr == "half_open":
            self._begin_evidence(now)
        return moved

    def _begin_evidence(self, now: int) -> None:
        """Entering half_open: what was seen before is no evidence any more."""
        evidence = self.evidence
        evidence.forget()
        evidence.expire(now)
        # A sample of this very instant still counts: then the cleared verdict is not what the next tick finds.
        self.schedule.clean = evidence.need > 0 and not self.samples_held
