"""What an evaluation makes of its verdict: the moves and steps of semantics.md section 3. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from breaker_actors.core.model import Cause, Record, StateWord, Verdict
from breaker_actors.core.schedule import HALF_OPEN_BETWEEN, HALF_OPEN_TICK, OPEN_MIN_MS, Schedule, Trigger


class Decision(NamedTuple):
    """`curr`: the state to move to, None to stay; `changes`: of the record's other fields."""

    curr: StateWord | None
    changes: dict[str, Any]


def decide(schedule: Schedule, verdict: Verdict, now: int, trigger: Trigger) -> Decision | None:
    """At most one move or step, by state and verdict; None: nothing changes."""
    record = schedule.record
    if record.state == "closed":
        return _open(record, "threshold_exceeded") if verdict == "breach" and now >= schedule.ripe_ms() else None
    if record.state == "open":
        over = now - record.state_since_ms >= max(schedule.open_wait(), OPEN_MIN_MS)
        return _half_open(record, now) if over else None
    action = (HALF_OPEN_TICK if trigger == "tick" else HALF_OPEN_BETWEEN)[schedule.word(verdict)]
    if action == "pass":
        return _pass(schedule, now)
    return _fail(schedule, verdict, now) if action == "fail" else None


def _open(record: Record, cause: Cause) -> Decision:
    failed = record.failed_recoveries + (record.state == "half_open")
    return Decision("open", {"step": 0, "passes": 0, "failed_recoveries": failed, "open_cause": cause})


def _half_open(record: Record, now: int) -> Decision:
    """Evidence starts anew: only samples from now on count."""
    return Decision("half_open", {"step": 1, "passes": 0, "evidence_floor_ms": now})


def _pass(schedule: Schedule, now: int) -> Decision:
    steps, passes = schedule.rule.recovery_allow_rate_ramp_steps, schedule.record.passes + 1
    if passes >= steps + 1 and now >= schedule.ripe_ms():
        return Decision("closed", {"step": 0, "passes": 0, "failed_recoveries": 0, "open_cause": None})
    return Decision(None, {"step": min(passes + 1, steps), "passes": passes})


def _fail(schedule: Schedule, verdict: Verdict, now: int) -> Decision:
    if now < schedule.ripe_ms():
        return Decision(None, {"step": 1, "passes": 0})
    return _open(schedule.record, "threshold_exceeded" if verdict == "breach" else "insufficient_samples")


def allow_rate(schedule: Schedule) -> float:
    """What a gate lets through now: closed 1.0, open 0.0, half_open its step of the ramp."""
    state = schedule.record.state
    if state == "half_open":
        return round(schedule.record.step / schedule.rule.recovery_allow_rate_ramp_steps, 4)
    return 1.0 if state == "closed" else 0.0
