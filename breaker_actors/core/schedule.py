"""When a breaker is to be evaluated without an input: ticks and deadlines, and which ticks need not run.

A tick that provably changes nothing is not run: between two inputs a window only loses samples, so the verdict of a
tick can differ from the last one only after the next sample has left (or count/sum became determinate). In doubt a tick
runs. `core.machine` fires what is found here.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from breaker_actors.core.evidence import Evidence
from breaker_actors.core.model import Record, Rule, Verdict

Trigger = Literal["ingest", "tick", "deadline"]
Timer = Literal["tick", "deadline", "override"]
Action = Literal["nothing", "pass", "hold", "fail"]

BACKOFF_EXPONENT_MAX = 40
LEAP_MAX = 1_000
"""Ticks of a baseline in one leap: some 0.3 ms."""

OPEN_MIN_MS = 100
"""Open lasts at least so long, whatever the rule says. Every round of moves leads through open and has three at most:
1,800 transitions a minute. A rule with a cooldown or minimum duration of so much never meets this bound."""

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


class Schedule:
    """Which timers a breaker has, as of its record, rule and evidence.

    `record` is the durable part as of the last transition, pass or gap; `now` the logical time before which every
    timer has fired; `clean` tells that the last verdict is what an evaluation would find again right away. The breaker
    sets them with every input; `leap` moves them over many ticks at once.
    """

    __slots__ = ("clean", "evidence", "last_eval", "next_tick", "now", "record", "rule")

    def __init__(self, rule: Rule, record: Record, evidence: Evidence) -> None:
        self.record = record
        self.evidence = evidence
        self.now, self.last_eval = record.now_ms, record.last_eval_ms
        self.use(rule)

    def use(self, rule: Rule) -> None:
        """The timers start from a rule: whatever it changes shows at the next tick."""
        self.rule = rule
        self.clean = False
        self.next_tick = self.tick_from(self.now)

    def timer(self) -> tuple[int, Timer] | None:
        """The next timer that could change something. At one instant the end of an override comes first."""
        machines, end = self._machine_timer(), self.override_end()
        return machines if end is None or (machines is not None and machines[0] < end) else (end, "override")

    def override_end(self) -> int | None:
        """When the override in force ends by itself; None: there is none."""
        override = self.record.override
        return None if override is None else max(override.until_ms, self.now)

    def due(self) -> int:
        """No timer is due before that, useful or not."""
        deadline = self.deadline()
        due = self.next_tick if deadline is None else min(self.next_tick, deadline)
        return due if self.record.override is None else min(due, self.record.override.until_ms)

    def _machine_timer(self) -> tuple[int, Timer] | None:
        """A deadline on the grid is a tick."""
        tick, deadline = self._useful_tick(), self.deadline()
        if deadline is None or (tick is not None and tick <= deadline):
            return None if tick is None else (tick, "tick")
        on_grid = deadline >= self.next_tick and self.tick_from(deadline) == deadline
        return deadline, "tick" if on_grid else "deadline"

    def deadline(self) -> int | None:
        """End of openWait, or of the minimum duration while a breach stands.

        Only what the last evaluation has not seen past: without any wait the next tick or batch moves on. A new rule
        may leave a deadline in the past, it is due at once.
        """
        record = self.record
        if record.state == "open":
            wait = self.open_wait()
            due = record.state_since_ms + (max(wait, OPEN_MIN_MS) if wait else 0)
        elif self.evidence.verdict == "breach":
            due = self.ripe_ms()
        else:
            return None
        return max(due, self.now) if due > self.last_eval else None

    def ripe_ms(self) -> int:
        """From when on closed and half_open may be left: the end of the minimum duration."""
        return self.record.state_since_ms + self.rule.min_state_duration_ms

    def open_wait(self) -> int:
        """How long open lasts: doubled with every failed recovery, up to the cap."""
        rule, failed = self.rule, self.record.failed_recoveries
        base = max(rule.cooldown_ms, rule.min_state_duration_ms)
        if not failed or not rule.half_open_backoff_enabled:
            return base
        base = base or rule.eval_interval_ms
        return min(max(rule.half_open_backoff_cap_ms, base), base << min(failed, BACKOFF_EXPONENT_MAX))

    def tick_from(self, at: int) -> int:
        """The first tick at or after `at`."""
        origin, interval = self.record.grid_ms, self.rule.eval_interval_ms
        return origin + max(1, -(-(at - origin) // interval)) * interval

    def tick_up_to(self, at: int) -> int:
        """The last pending tick up to `at`, which must not lie before the next one."""
        interval = self.rule.eval_interval_ms
        return self.next_tick + (at - self.next_tick) // interval * interval

    def word(self, verdict: Verdict) -> str:
        """The row of the half_open tables: the verdict, or the policy for an indeterminate one."""
        return self.rule.half_open_indeterminate_policy if verdict == "indeterminate" else verdict

    # -- which ticks matter -------------------------------------------------------------------------------------------

    def _useful_tick(self) -> int | None:
        """The next tick that could change state, rate, passes, baseline or a standing breach; in doubt the next one."""
        record, evidence = self.record, self.evidence
        state = record.state
        if state == "open":
            return None if self.deadline() is not None else self._first_tick(record.state_since_ms + OPEN_MIN_MS)
        if not self.clean:
            return self.next_tick
        if evidence.window is None:
            return self._useful_streak_tick()
        if state == "half_open":
            return self._useful_half_open_tick(evidence.verdict)
        if evidence.is_delta:
            return self.change_tick() if evidence.delta_tick_is_idle() else self.next_tick
        return self.change_tick() if evidence.verdict != "healthy" or evidence.may_breach() else None

    def change_tick(self) -> int | None:
        """The first tick whose verdict may differ from that of the last evaluation."""
        change = self.evidence.change_ms(self.last_eval)
        return None if change is None else self._first_tick(change)

    def _first_tick(self, at: int) -> int:
        """The first pending tick at or after `at`."""
        return max(self.next_tick, self.tick_from(at))

    def _useful_half_open_tick(self, verdict: Verdict) -> int | None:
        """`verdict` is what a tick finds as long as the evidence stays the same."""
        record = self.record
        action = HALF_OPEN_TICK[self.word(verdict)]
        if action == "pass" or (action == "fail" and (record.step != 1 or record.passes)):
            return self.next_tick
        change = self.change_tick()
        if action == "hold":
            return change
        ripe = self._first_tick(self.ripe_ms())
        return ripe if change is None else min(change, ripe)

    def _useful_streak_tick(self) -> int | None:
        """A tick sees the running streak where the last ingest saw the highest one; after that nothing moves."""
        half_open, evidence = self.record.state == "half_open", self.evidence
        verdict = evidence.judge_streak(evidence.streak, half_open)
        if verdict != evidence.verdict:
            return self.next_tick
        return self._useful_half_open_tick(verdict) if half_open else None

    # -- many ticks at once -------------------------------------------------------------------------------------------

    def leap(self, until: int) -> int:
        """After a tick: the ticks like it, which only count passes or move the baseline, are done in one go. Answers
        how many of them were reckoned one by one, LEAP_MAX at most."""
        record, evidence = self.record, self.evidence
        if not self.clean or self.last_eval == record.state_since_ms:
            return 0
        change = evidence.change_ms(self.last_eval)
        last = until if change is None else min(until, change - 1)
        if record.state == "half_open":
            self._leap_passes(last)
        elif record.state == "closed" and evidence.is_delta and evidence.verdict == "healthy":
            return self._leap_baseline(last)
        return 0

    def _leap_passes(self, last: int) -> None:
        """With the full rate reached, passes before the minimum duration only add up. The last tick is left to be run:
        samples too few to mean anything may have gone meanwhile, and the record tells their count."""
        record, rule = self.record, self.rule
        last = min(last, self.ripe_ms() - 1)
        full = record.step == rule.recovery_allow_rate_ramp_steps
        last -= rule.eval_interval_ms
        if not full or last < self.next_tick or HALF_OPEN_TICK[self.word(self.evidence.verdict)] != "pass":
            return
        at = self.tick_up_to(last)
        passes = record.passes + (at - self.next_tick) // rule.eval_interval_ms + 1
        self.record = replace(record, passes=passes)
        self.last_eval, self.next_tick = at, at + rule.eval_interval_ms

    def _leap_baseline(self, last: int) -> int:
        """The aggregate stands still, the baseline moves towards it tick by tick until it arrives or breaches."""
        interval = self.rule.eval_interval_ms
        run = self.evidence.learn_ticks(min((last - self.next_tick) // interval + 1, LEAP_MAX))
        if run:
            self.next_tick += run * interval
            self.last_eval = self.next_tick - interval
        return run
