"""The breaker: rule, durable record and evidence in one object, with the state machine of semantics.md sections 2, 3.

Gets batches, watermarks, gaps and new rules in log order from its host; answers with effects (transitions, changes
of rate) and the next instant at which a timer could change something. No I/O and no clock: every time is an argument.

    closed --breach, age >= D--> open --age >= wait--> half_open --passes--> closed
                                  ^                        |
                                  +--------- fail ---------+

Operators may come between the machine and its callers (`core.overlay`): the machine runs on underneath, and its moves
are told as hidden ones. Only an override with `then` half_open moves the machine itself, where it ends.

Whatever the rule, open lasts OPEN_MIN_MS at least (`core.schedule`), so moves are bounded in number.
Timers before an input fire before it, in order, with their own time. Which ticks need not run is told in
`core.schedule`; `view` shows those as if they had run.
"""

from __future__ import annotations

from msgspec.structs import replace

from breaker_actors.core import overlay
from breaker_actors.core.evidence import Evidence
from breaker_actors.core.model import (
    Batch,
    Control,
    Effect,
    Record,
    Rows,
    Rule,
    View,
)
from breaker_actors.core.moves import Effort, EvidenceMaker, Mover

SAMPLES_MAX = 1_000_000


class Breaker(Mover):
    """One breaker at work. What changes with every evaluation lives in `schedule` and `evidence` and is folded in by
    `record()`. Both are there to be read; who walks over samples instead of passing them in (`pipelines.replay`) makes
    breakers with an evidence of its own and sets them forward with `pass_by`."""

    __slots__ = ()

    @classmethod
    def create(
        cls,
        rule: Rule,
        created_ms: int,
        *,
        after_seq: int = 0,
        control: Control | None = None,
        window_samples_max: int = SAMPLES_MAX,
        evidence: EvidenceMaker = Evidence,
    ) -> tuple[Breaker, tuple[Effect, ...]]:
        """A new breaker, closed and evaluated once; its transitions are numbered from `after_seq` + 1. Its mode is in
        force from the first evaluation on, an override right after it."""
        control = control or Control()
        record = Record(
            created_ms=created_ms,
            now_ms=created_ms,
            grid_ms=created_ms,
            state_since_ms=created_ms,
            transition_seq=after_seq,
            mode=control.mode,
        )
        breaker = cls(rule, record, window_samples_max, evidence)
        effects = breaker.evaluate(created_ms, "ingest")
        return breaker, effects + breaker.control(control, created_ms)

    @classmethod
    def restore(
        cls,
        rule: Rule,
        record: Record,
        *,
        window_samples_max: int = SAMPLES_MAX,
        evidence: EvidenceMaker = Evidence,
    ) -> Breaker:
        """A breaker as of its record, with an empty window: `load` refills it from the log."""
        return cls(rule, record, window_samples_max, evidence)

    def record(self) -> Record:
        """The durable part as it stands."""
        evidence = self.evidence
        return replace(
            self.schedule.record,
            now_ms=self.schedule.now,
            verdict=evidence.verdict,
            value=evidence.value(),
            count=evidence.count,
            last_eval_ms=self.schedule.last_eval,
            streak=evidence.streak,
            peak=evidence.peak,
            seen=evidence.seen,
            baseline=evidence.baseline,
            late_count=evidence.late,
            truncated_count=evidence.truncated,
        )

    @property
    def lost(self) -> tuple[int, int]:
        """Samples so far that came too late for the window, and that left it early."""
        return self.evidence.late, self.evidence.truncated

    @property
    def reload_after_ms(self) -> int:
        """Log records stamped up to here hold nothing that could be in the window: `load` may start behind them."""
        return self.evidence.low_ms(self.schedule.now)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def ingest(self, batch: Batch, received_ms: int) -> tuple[Effect, ...]:
        """Timers before `received_ms` fire, then the batch comes in and is evaluated."""
        effects = self.fire(received_ms - 1) if received_ms > self._due else ()
        schedule = self.schedule
        now = schedule.now = max(received_ms, schedule.now)
        self.evidence.add(batch, received_ms, now)
        return effects + self.evaluate(now, "ingest")

    def ingest_rows(self, rows: Rows, start: int, stop: int) -> tuple[Effect, ...]:
        """The same of a piece of what was received together: the rows from `start` to `stop`, at least one."""
        received_ms, schedule = rows.received_ms, self.schedule
        effects = self.fire(received_ms - 1) if received_ms > self._due else ()
        now = schedule.now = received_ms if received_ms > schedule.now else schedule.now
        self.evidence.add_rows(rows, start, stop, now)
        return effects + self.evaluate(now, "ingest")

    def advance(
        self, until_ms: int, effects_max: int | None = None, effort: Effort | None = None
    ) -> tuple[Effect, ...]:
        """Fires every timer up to and including `until_ms`; the caller knows that no input stamped so early is left.

        The last tick is run even when idle: the record then does not depend on which ticks were skipped. Ends early
        with `effects_max` effects, or when the effort is spent; to be called again then, while `now_ms` <= `until_ms`.
        """
        effects = self.fire(until_ms, effects_max, effort)
        if (effects_max is not None and len(effects) >= effects_max) or (effort is not None and effort.left <= 0):
            schedule = self.schedule
            if schedule.now <= schedule.last_eval < schedule.next_tick:  # else a restored breaker ran that tick again
                schedule.now = schedule.last_eval + 1
            return effects
        if until_ms >= self.schedule.next_tick:
            effects += self._fire_at(self.schedule.tick_up_to(until_ms), "tick")
        if until_ms >= self.schedule.now:
            self.schedule.now = until_ms + 1
        return effects

    def gap(self, from_ms: int, to_ms: int) -> tuple[Effect, ...]:
        """No sample could come in between: timers inside do not fire, one evaluation at the end, a new grid from there.

        Silence inside is no evidence: count and sum with lt or lte wait for a whole window again.
        """
        effects = self.fire(from_ms)
        end = max(to_ms, self.schedule.now)
        override_end = self.schedule.override_end()
        if override_end is not None and override_end <= end:  # it is no evidence: it ends in the gap, too
            effects += self._fire_at(override_end, "override")
        self.schedule.record = replace(self.schedule.record, grid_ms=end, gap_end_ms=end)
        self.evidence.date(self.schedule.record)
        self.schedule.next_tick = self.schedule.tick_from(end)
        return effects + self._fire_at(end, "ingest")

    def configure(self, rule: Rule, now_ms: int) -> bool:
        """Puts a new rule in force; evaluates nothing. The caller has advanced to `now_ms - 1`.

        True: the window lacks samples that the new rule counts; `unload`, then `load` them from the log. allow_rate may
        be another one afterwards (see `view`) when the number of ramp steps changed.
        """
        evidence, schedule = self.evidence, self.schedule
        evidence.value()
        old, schedule.now = schedule.rule, max(now_ms, schedule.now)
        step = min(schedule.record.step, rule.recovery_allow_rate_ramp_steps)
        schedule.record = replace(schedule.record, step=step)
        renewed = (rule.metric, rule.kind, rule.kind_params) != (old.metric, old.kind, old.kind_params)
        if renewed:  # what was seen is no evidence for the new rule
            schedule.record = replace(schedule.record, evidence_floor_ms=schedule.now)
            evidence.baseline = None
            evidence.forget()
            if evidence.window is not None and rule.metric != old.metric:
                evidence.window.clear()
            evidence.date(schedule.record)
            evidence.expire(schedule.now)
        evidence.use(rule, schedule.record)
        schedule.use(rule)
        self._due = schedule.now
        if evidence.window is None:
            return False
        if renewed:
            lacks = rule.metric != old.metric or old.kind == "consecutive_failures"
        else:
            lacks = rule.window_ms > old.window_ms
        if lacks:
            evidence.cut = 0
        return lacks

    def control(self, control: Control, now_ms: int) -> tuple[Effect, ...]:
        """Puts a mode and an override in force, or ends them; evaluates nothing. The caller has advanced to
        `now_ms - 1`. An override that is over by now, or that has ended before, has no effect but to end another."""
        schedule = self.schedule
        now = schedule.now = max(now_ms, schedule.now)
        before = schedule.record
        asked = control.override
        # The one in force is left to its timer, which comes after the batches of its last instant.
        override = asked if asked == before.override else overlay.in_force(control, now)
        if override == before.override and control.mode == before.mode:
            return ()
        after = replace(before, mode=control.mode, override=override)
        replaces = asked is not None and (override is not None or before.override is not None)
        told = (asked.by, asked.reason) if asked is not None and replaces else (control.by, control.comment)
        ended = before.override if override is None else None
        return self._show(after, now, overlay.reason_of(before, after), told, None if ended is None else ended.then)

    def bound(self, samples_max: int) -> int:
        """Lets the window hold so many samples at most, the oldest leave early; how many did. The next evaluation finds
        it so, nothing is evaluated now."""
        evidence = self.evidence
        if evidence.window is None:
            return 0
        if self.samples_held > samples_max:  # else the last evaluation's value is still there to be worked out
            evidence.value()
        if gone := evidence.window.bound(samples_max):
            evidence.truncated += gone
            self.schedule.clean, self._due = False, self.schedule.now
        return gone

    def unload(self) -> None:
        """Empties the window before it is loaded, maybe not for the first time; nothing else changes."""
        evidence = self.evidence
        if evidence.window is not None:
            evidence.window.clear()
        evidence.trace = None
        if evidence.cut:
            evidence.truncated, evidence.cut = evidence.truncated - evidence.cut, 0
        self.schedule.clean = False

    def load(self, batch: Batch, received_ms: int) -> None:
        """Refills the window with a logged batch, without evaluating; batches come in log order."""
        self.evidence.load(batch, received_ms, self.schedule.now)

    # -- reading ------------------------------------------------------------------------------------------------------

    def view(self, now_ms: int) -> View:
        """What a state read shows at `now_ms`: idle ticks as if run, nothing that a timer still pending may change."""
        record, evidence = self.schedule.record, self.evidence
        verdict, value, count = evidence.verdict, evidence.value(), evidence.count
        last_eval, next_tick = self.schedule.last_eval, self.schedule.next_tick
        wake, deadline = self.next_wake(), self.schedule.deadline()
        shown_to = now_ms if wake is None else min(now_ms, wake - 1)
        if shown_to >= next_tick:
            last_eval = self.schedule.tick_up_to(shown_to)
            next_tick = last_eval + self.schedule.rule.eval_interval_ms
            change = evidence.change_ms(self.schedule.last_eval)
            unchanged = self.schedule.clean and change is not None and last_eval < change
            verdict, value, count = evidence.glance(last_eval, record.state == "half_open", unchanged)
        young = now_ms < self.schedule.ripe_ms()
        seen, hidden = self.shown, overlay.hidden_by(record)
        return View(
            state=seen.state,
            state_since_ms=overlay.shown_since(record),
            allow_rate=seen.allow_rate,
            verdict=verdict,
            value=value,
            sample_count=count,
            passes=record.passes,
            last_eval_ms=last_eval,
            next_eval_ms=next_tick if deadline is None else min(next_tick, deadline),
            transition_seq=record.transition_seq,
            open_cause=None if hidden else record.open_cause,
            held_back=not hidden and record.state != "open" and verdict == "breach" and young,
            late_count=evidence.late,
            truncated_count=evidence.truncated,
            machine_state=record.state,
            mode=record.mode,
            override=record.override,
            deadline_ms=deadline,
        )
