"""What callers see of a breaker: the machine's state, or what mode and override make of it (semantics.md section 12).

Pure functions over the record. `core.machine` moves the machine as ever and asks here what of it is seen.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from breaker_actors.core.model import Agg, Control, HiddenBy, Override, OverrideKind, Record, StateWord, Transition

BEGINS: dict[OverrideKind, str] = {
    "force_open": "forced_open",
    "force_closed": "forced_closed",
    "throttle": "throttled",
}
"""The reason of the transition that an override begins with."""
STATES: dict[OverrideKind, StateWord] = {
    "force_open": "open",
    "force_closed": "closed",
    "throttle": "half_open",
}
RATES: dict[StateWord, float] = {"closed": 1.0, "open": 0.0}


class Shown(NamedTuple):
    """What a gate goes by."""

    state: StateWord
    allow_rate: float


def shown(record: Record, machine_rate: float) -> Shown:
    """What callers see of a record whose machine lets through `machine_rate`. An override comes before the mode."""
    if record.override is not None:
        return shown_under(record.override)
    if record.mode == "observe":
        return Shown("closed", 1.0)
    return Shown(record.state, machine_rate)


def shown_under(override: Override) -> Shown:
    """What callers see while an override is in force."""
    state = STATES[override.kind]
    return Shown(state, RATES.get(state, override.allow_rate or 0.0))


def hidden_by(record: Record) -> HiddenBy | None:
    """Why callers don't see the machine's moves; None: they do."""
    if record.override is not None:
        return "override"
    return "observe" if record.mode == "observe" else None


def shown_since(record: Record) -> int:
    """Since when callers see the state they see."""
    return record.shown_since_ms or record.state_since_ms


def in_force(control: Control, now_ms: int) -> Override | None:
    """The override of a control, unless it is over at `now_ms`."""
    override = control.override
    return override if override is not None and now_ms < override.until_ms else None


def after_move(record: Record, before: Record) -> Record:
    """The record after a move of the machine: what callers see goes on where they don't see the move."""
    since = shown_since(before) if hidden_by(record) else 0
    return replace(record, shown_since_ms=since)


def reason_of(before: Record, after: Record) -> str:
    """Why callers see something else after a control was set."""
    if after.override is not None:
        return BEGINS[after.override.kind]
    return "override_ended" if before.override is not None else f"mode_{after.mode}"


def seen_move(
    before: Shown, after: Shown, seq: int, now_ms: int, reason: str, by: str | None, comment: str | None
) -> Transition:
    """The transition that an operator made. It is no evaluation: without value, and of no samples."""
    return Transition(
        prev=before.state,
        curr=after.state,
        ts_ms=now_ms,
        transition_seq=seq,
        reason=reason,
        allow_rate=after.allow_rate,
        value=None,
        agg=Agg(),
        by=by,
        comment=comment,
    )
