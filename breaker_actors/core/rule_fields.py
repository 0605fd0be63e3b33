"""The rule language as a table: every field of a breaker's rule with its unit, bounds, default and meaning.

`core/rules.py` checks by this table and `api/openapi` describes by it; the page on rules is held against it.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from breaker_actors.core.model import Kind, Op, Policy

KINDS: tuple[str, ...] = get_args(Kind)
OPS: tuple[str, ...] = get_args(Op)
POLICIES: tuple[str, ...] = get_args(Policy)
DELTA_OF: tuple[str, ...] = ("error_rate", "avg", "p95", "max", "min", "sum", "stddev", "count")
DELTA_OF_DEFAULT = "avg"
ALPHA_DEFAULT = 0.3

MS_MAX = 2_147_483_647
WINDOW_MAX_MS = 24 * 3_600_000
METRIC_MAX_CHARS = 128
RAMP_STEPS_MAX = 10


class RuleField(msgspec.Struct, frozen=True, kw_only=True):
    """One field. `low` and `high` bound a number (inclusive), `words` are the values of a choice.

    A field without `required` has `default`, which counts where the field is left out or null."""

    name: str
    meaning: str
    unit: str = ""
    required: bool = False
    default: Any = None
    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()


FIELDS: tuple[RuleField, ...] = (
    RuleField(
        name="metric",
        meaning="Name of the metric whose samples count; compared exactly, upper and lower case apart. "
        f"1 to {METRIC_MAX_CHARS} characters.",
        required=True,
    ),
    RuleField(
        name="kind",
        meaning="Aggregate of the window that is compared with the threshold.",
        required=True,
        words=KINDS,
    ),
    RuleField(
        name="op",
        meaning="Comparison that makes a breach: aggregate `op` threshold.",
        required=True,
        words=OPS,
    ),
    RuleField(
        name="threshold",
        meaning="Finite number the aggregate is compared with.",
        unit="that of the aggregate: a share from 0 to 1 for error_rate, a number for count and consecutive_failures",
        required=True,
    ),
    RuleField(
        name="window_ms",
        meaning="Length of the window: samples not older than this count. At least three times eval_interval_ms is "
        "advised. consecutive_failures has no window and shows 0 unless one was set; 0 is allowed for it alone.",
        unit="ms",
        default=60_000,
        low=0,
        high=WINDOW_MAX_MS,
    ),
    RuleField(
        name="eval_interval_ms",
        meaning="Time between two ticks, counted from the last transition. Ticks confirm a recovery; a breach is also "
        f"found when samples come in. (ramp steps + 1) x eval_interval_ms must be at most {MS_MAX}.",
        unit="ms",
        default=10_000,
        low=1,
        high=MS_MAX,
    ),
    RuleField(
        name="min_count",
        meaning="Samples an evaluation needs; with fewer it is indeterminate. 0 counts as 1 but for count and sum.",
        unit="samples",
        default=1,
        low=0,
        high=MS_MAX,
    ),
    RuleField(
        name="min_state_duration_ms",
        meaning="Least time in a state before the next transition.",
        unit="ms",
        default=60_000,
        low=0,
        high=MS_MAX,
    ),
    RuleField(
        name="cooldown_ms",
        meaning="Least time in open before half_open; the longer of this and min_state_duration_ms counts.",
        unit="ms",
        default=0,
        low=0,
        high=MS_MAX,
    ),
    RuleField(
        name="half_open_backoff_enabled",
        meaning="Whether the time in open doubles with each failed recovery.",
        default=True,
    ),
    RuleField(
        name="half_open_backoff_cap_ms",
        meaning="Longest time in open that the doubling leads to; never shorter than the time without doubling.",
        unit="ms",
        default=300_000,
        low=0,
        high=MS_MAX,
    ),
    RuleField(
        name="half_open_indeterminate_policy",
        meaning="What an indeterminate tick counts as in half_open.",
        default="conservative",
        words=POLICIES,
    ),
    RuleField(
        name="recovery_allow_rate_ramp_steps",
        meaning="Steps in which allow_rate rises to 1 in half_open; closing takes one healthy tick more than steps.",
        unit="steps",
        default=5,
        low=1,
        high=RAMP_STEPS_MAX,
    ),
    RuleField(
        name="kind_params",
        meaning="Parameters of the kind: `percentile` for percentile (required there), `delta_of` and `alpha` for "
        "delta. Other kinds keep any object of at most 4096 bytes and ignore it.",
    ),
)
BY_NAME: dict[str, RuleField] = {field.name: field for field in FIELDS}

PARAMS: tuple[RuleField, ...] = (
    RuleField(
        name="percentile",
        meaning="Kind percentile: which one by nearest rank, above 0 and at most 100.",
        unit="percent",
        required=True,
    ),
    RuleField(
        name="delta_of",
        meaning="Kind delta: the aggregate whose distance from its baseline is compared.",
        default=DELTA_OF_DEFAULT,
        words=DELTA_OF,
    ),
    RuleField(
        name="alpha",
        meaning="Kind delta: weight of the newest aggregate in the baseline, an exponential average over healthy "
        "ticks in closed; above 0 and at most 1.",
        default=ALPHA_DEFAULT,
    ),
)
"""The keys of kind_params."""

KIND_MEANINGS: dict[str, str] = {
    "error_rate": "share of samples with ok false, 0 to 1; values are ignored",
    "avg": "mean of the values",
    "p95": "95th percentile by nearest rank",
    "max": "largest value",
    "min": "smallest value",
    "sum": "sum of the values",
    "stddev": "standard deviation of the population; 0 for one sample",
    "count": "number of samples",
    "percentile": "percentile by nearest rank, given by kind_params.percentile",
    "consecutive_failures": "longest run of samples with ok false, in the order of arrival; values are ignored",
    "delta": "aggregate named by kind_params.delta_of minus its baseline",
}
OP_MEANINGS: dict[str, str] = {
    "gt": "above the threshold",
    "lt": "below the threshold",
    "gte": "at or above the threshold",
    "lte": "at or below the threshold",
}
POLICY_MEANINGS: dict[str, str] = {
    "optimistic": "a healthy tick: the recovery goes on",
    "conservative": "nothing: the recovery waits for samples",
    "pessimistic": "a breach: the recovery fails",
}
MEANINGS: dict[str, dict[str, str]] = {
    "kind": KIND_MEANINGS,
    "op": OP_MEANINGS,
    "half_open_indeterminate_policy": POLICY_MEANINGS,
}
"""What each word of a choice means."""


def described(field: RuleField) -> str:
    """The meaning of a field in one paragraph, with its unit, its words and its default."""
    parts = [field.meaning]
    if field.unit:
        parts.append(f"Unit: {field.unit}.")
    if words := MEANINGS.get(field.name):
        parts.append("; ".join(f"{word}: {meaning}" for word, meaning in words.items()) + ".")
    if not field.required:
        parts.append(f"Default: {msgspec.json.encode(field.default).decode()}.")
    return " ".join(parts)
