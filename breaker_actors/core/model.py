"""Values of the core: the rule of a breaker, its durable record, columns of samples, and what an evaluation reports.

All times are Unix milliseconds (int). Sources: interface.md "Breaker", "BreakerEvent"; semantics.md sections 1 to 5.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

StateWord = Literal["closed", "open", "half_open"]
Verdict = Literal["healthy", "breach", "indeterminate", "unconfirmed"]
Kind = Literal[
    "error_rate", "avg", "p95", "max", "min", "sum", "stddev", "count", "percentile", "consecutive_failures", "delta"
]
Op = Literal["gt", "lt", "gte", "lte"]
Policy = Literal["optimistic", "conservative", "pessimistic"]
Cause = Literal["threshold_exceeded", "insufficient_samples"]
BreakerMode = Literal["enforce", "observe"]
OverrideKind = Literal["force_open", "force_closed", "throttle"]
HiddenBy = Literal["override", "observe"]

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Counts = Int64 | None
"""How many observations each sample stands for, 1 to COUNT_MAX; None: each for one."""
COUNT_MAX = 10_000_000
"""Of one sample. Products of so small a number and half a float's digits are exact (core.definitions.terms)."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a breaker evaluates and how it moves: the fields of interface.md "Breaker" that change its behaviour.

    Built by `core.rules.parse_rule`, which fills the defaults of semantics.md section 1 and checks every bound.
    """

    metric: str
    kind: Kind
    op: Op
    threshold: float
    window_ms: int = 60_000
    eval_interval_ms: int = 10_000
    min_count: int = 1
    min_state_duration_ms: int = 60_000
    cooldown_ms: int = 0
    half_open_backoff_enabled: bool = True
    half_open_backoff_cap_ms: int = 300_000
    half_open_indeterminate_policy: Policy = "conservative"
    recovery_allow_rate_ramp_steps: int = 5
    kind_params: dict[str, Any] | None = None


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """What callers see instead of the machine's state, by an operator's word (semantics.md section 12).

    It ends at `until_ms` by the log's clock, or when a later record of the breaker has none. `allow_rate`: of throttle,
    0 to 1. `then` half_open: a ramp begins where it ends. `version`: of the breaker's settings when it was set; it
    tells one override from the next. `by`: who set it; `since_ms`: when, by the clock of who took the request."""

    kind: OverrideKind
    reason: str
    by: str
    since_ms: int
    until_ms: int
    version: int
    allow_rate: float | None = None
    then: Literal["half_open"] | None = None


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What stands between a breaker's machine and its callers: the mode, and an override where there is one, which
    comes before it. `by` and `comment`: who set it so, and why, where that is not told by the override."""

    mode: BreakerMode = "enforce"
    override: Override | None = None
    by: str | None = None
    comment: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The durable runtime record of a breaker (semantics.md section 1), without its window.

    `now_ms` is the logical time: every timer before it has fired, so after an input it is the input's time, and after
    timers ran up to T it is T + 1. `grid_ms` is the origin of the tick grid (the last transition, or the end of a gap),
    `gap_end_ms` the end of the last gap: silence inside a gap is no evidence of absence. A restore takes this record at
    its cut and refills the window from the log.

    `state` and what belongs to it are the machine's; `mode` and the `override` in force decide what callers see of it.
    `shown_since_ms`: since when they see the state they see; 0: since `state_since_ms`.
    """

    created_ms: int
    now_ms: int
    grid_ms: int
    state: StateWord = "closed"
    state_since_ms: int
    transition_seq: int = 0
    step: int = 0
    passes: int = 0
    failed_recoveries: int = 0
    evidence_floor_ms: int = 0
    open_cause: Cause | None = None
    verdict: Verdict = "indeterminate"
    value: float | None = None
    count: int = 0
    last_eval_ms: int = 0
    streak: int = 0
    peak: int = 0
    seen: int = 0
    baseline: float | None = None
    late_count: int = 0
    truncated_count: int = 0
    gap_end_ms: int = 0
    mode: BreakerMode = "enforce"
    override: Override | None = None
    shown_since_ms: int = 0


class Agg(msgspec.Struct, frozen=True):
    """The `agg` object of an event: figures of the evaluation window, 0 when it is empty (semantics.md section 5)."""

    avg: float = 0.0
    count: int = 0
    error_count: int = 0
    p95: float = 0.0


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: the breaker moved. `allow_rate` is what a gate does from here on (closed 1.0, open 0.0).

    `hidden_by`: callers did not see this move of the machine, and their `allow_rate` is another one. A move that an
    operator made (`reason` one of BY_HAND) says who and why; it is no evaluation, so it has no figures."""

    prev: StateWord
    curr: StateWord
    ts_ms: int
    transition_seq: int
    reason: str
    allow_rate: float
    value: float | None
    agg: Agg
    trace_id: str | None = None
    """Of the newest sample in the window that has one."""
    hidden_by: HiddenBy | None = None
    by: str | None = None
    comment: str | None = None


BY_HAND = (
    "forced_open",
    "forced_closed",
    "throttled",
    "override_ended",
    "override_expired",
    "mode_observe",
    "mode_enforce",
)
"""Reasons of transitions that an operator made, not the machine."""


class RateChange(msgspec.Struct, frozen=True, kw_only=True):
    """Effect: still half_open, with another allow_rate."""

    ts_ms: int
    allow_rate: float


Effect = Transition | RateChange


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a state read shows at an instant, as if every tick up to then had run; nothing is changed by looking.

    `state`, `state_since_ms` and `allow_rate` are what callers see; `machine_state` is what they would see without
    override and with mode enforce. `open_cause` is None where the machine is not what they see."""

    state: StateWord
    state_since_ms: int
    allow_rate: float
    verdict: Verdict
    value: float | None
    sample_count: int
    passes: int
    last_eval_ms: int
    next_eval_ms: int | None
    transition_seq: int
    open_cause: Cause | None
    held_back: bool
    """True when a breach stands but min_state_duration_ms keeps the state."""
    late_count: int = 0
    truncated_count: int = 0
    machine_state: StateWord = "closed"
    mode: BreakerMode = "enforce"
    override: Override | None = None
    deadline_ms: int | None = None
    """When the machine moves on whatever comes: an open one to half_open, one that is held back to open."""


class Batch:
    """Samples as columns, in arrival order: `ts_ms` int64, `value` float64, `ok` bool, `count` int64 or None, all of
    one length.

    `trace`: (ts_ms, trace_id) of the newest sample that has one; it says nothing about the breaker."""

    __slots__ = ("count", "ok", "trace", "ts_ms", "value")

    def __init__(
        self,
        ts_ms: Int64,
        value: Float64,
        ok: Flags,
        trace: tuple[int, str] | None = None,
        count: Counts = None,
    ) -> None:
        self.ts_ms = ts_ms
        self.value = value
        self.ok = ok
        self.trace = trace
        self.count = count

    def __len__(self) -> int:
        return len(self.ts_ms)

    def slice(self, start: int, stop: int) -> Batch:
        """The samples start..stop-1, without a copy and without a trace."""
        count = None if self.count is None else self.count[start:stop]
        return Batch(self.ts_ms[start:stop], self.value[start:stop], self.ok[start:stop], count=count)

    @classmethod
    def of(cls, rows: list[tuple[int, float, bool]]) -> Batch:
        """Columns from (ts_ms, value, ok) rows."""
        return cls(
            np.array([r[0] for r in rows], np.int64),
            np.array([r[1] for r in rows], np.float64),
            np.array([r[2] for r in rows], np.bool_),
        )


class Rows:
    """Samples of several metrics that were received together, as plain columns: many breakers take a few of them each,
    and a slice of an array costs a third of a numpy one. `time` is the effective one. Of samples that stand for one
    observation each.

    `torn`: where the metrics begin whose times go back somewhere."""

    __slots__ = ("batch", "ok", "received_ms", "time", "torn", "value")

    def __init__(self, batch: Batch, starts: Sequence[int], received_ms: int) -> None:
        """`starts`: where each metric begins, and the end of the last one."""
        self.batch, self.received_ms = batch, received_ms
        time = np.minimum(batch.ts_ms, received_ms)
        self.time, self.value = array("q", time.tobytes()), array("d", batch.value.tobytes())
        self.ok = batch.ok.tobytes()
        falls = time[1:] < time[:-1]
        self.torn: frozenset[int] = frozenset()
        if falls.any():
            begins = np.array(starts)
            falls[begins[(begins > 0) & (begins < len(time))] - 1] = False
            places = np.searchsorted(begins, np.flatnonzero(falls), side="right") - 1
            self.torn = frozenset(begins[places].tolist())
