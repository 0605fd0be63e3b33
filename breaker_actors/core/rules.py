"""From the fields of a request to a checked `Rule`: defaults and bounds of semantics.md sections 1 and 4.

Every problem found is reported at once, under the path of its field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from breaker_actors.core.model import Kind, Op, Policy, Rule
from breaker_actors.errors import Invalid

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

REQUIRED = ("metric", "kind", "op", "threshold")
DEFAULTS: dict[str, object] = {
    "window_ms": 60_000,
    "eval_interval_ms": 10_000,
    "min_count": 1,
    "min_state_duration_ms": 60_000,
    "cooldown_ms": 0,
    "half_open_backoff_enabled": True,
    "half_open_backoff_cap_ms": 300_000,
    "half_open_indeterminate_policy": "conservative",
    "recovery_allow_rate_ramp_steps": 5,
    "kind_params": None,
}


class _Bad(Exception):
    """A field's value is not allowed; the text says what is wrong."""


def parse_rule(fields: Mapping[str, object], base: Rule | None = None) -> Rule:
    """The rule that `fields` create, or that they make of `base` when given; `Invalid` names every bad field."""
    values: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name, check in _CHECKS.items():
        try:
            values[name] = _field(name, check, fields, base)
        except _Bad as bad:
            problems[name] = str(bad)
    if "kind" in values:
        _settle_window(values, fields, base, problems)
        _check_params(values, problems)
    _check_confirmation(values, problems)
    if problems:
        raise Invalid("Some breaker fields are not valid.", problems)
    return Rule(**values)


def derived(rule: Rule) -> dict[str, int]:
    """The read-only fields of interface.md "Breaker"."""
    steps, interval = rule.recovery_allow_rate_ramp_steps, rule.eval_interval_ms
    return {"half_open_confirmation_ms": (steps + 1) * interval, "recovery_window_ms": steps * interval}


def _field(name: str, check: Callable[[object], object], fields: Mapping[str, object], base: Rule | None) -> object:
    """One field's value: the given one checked, else what the base has, else its default."""
    given = fields.get(name)
    if given is not None:
        return check(given)
    if name not in fields and base is not None:
        return getattr(base, name)
    if name in REQUIRED:
        raise _Bad("is required")
    return DEFAULTS[name]


def _settle_window(
    values: dict[str, Any], fields: Mapping[str, object], base: Rule | None, problems: dict[str, str]
) -> None:
    """A window of 0 means "never set", which only consecutive_failures may have; other kinds then get the default."""
    if "window_ms" not in values:
        return
    set_now = fields.get("window_ms") is not None
    kept = "window_ms" not in fields and base is not None
    if values["kind"] == "consecutive_failures":
        if not set_now and not kept:
            values["window_ms"] = 0
    elif values["window_ms"] == 0:
        if set_now:
            problems["window_ms"] = "must be at least 1"
        else:
            values["window_ms"] = DEFAULTS["window_ms"]


def _check_params(values: Mapping[str, Any], problems: dict[str, str]) -> None:
    """kind_params by kind: percentile and delta have rules, for other kinds any object is kept."""
    if "kind_params" not in values:
        return
    params: Mapping[str, object] = values["kind_params"] or {}
    if values["kind"] == "percentile":
        _check_percentile(params, problems)
    elif values["kind"] == "delta":
        _check_delta(params, problems)


def _check_percentile(params: Mapping[str, object], problems: dict[str, str]) -> None:
    path = "kind_params.percentile"
    p = params.get("percentile")
    if p is None:
        problems[path] = "is required"
    elif not _is_number(p):
        problems[path] = "must be a number"
    elif not 0 < cast(float, p) <= 100:
        problems[path] = "must be above 0 and at most 100"


def _check_delta(params: Mapping[str, object], problems: dict[str, str]) -> None:
    of, alpha = params.get("delta_of"), params.get("alpha")
    if of is not None and of not in DELTA_OF:
        problems["kind_params.delta_of"] = f"must be one of {', '.join(DELTA_OF)}"
    if alpha is None:
        return
    if not _is_number(alpha):
        problems["kind_params.alpha"] = "must be a number"
    elif not 0 < cast(float, alpha) <= 1:
        problems["kind_params.alpha"] = "must be above 0 and at most 1"


def _check_confirmation(values: Mapping[str, Any], problems: dict[str, str]) -> None:
    steps, interval = values.get("recovery_allow_rate_ramp_steps"), values.get("eval_interval_ms")
    if steps is not None and interval is not None and (steps + 1) * interval > MS_MAX:
        problems["eval_interval_ms"] = f"(steps + 1) x eval_interval_ms must be at most {MS_MAX}"


def _is_number(value: object) -> bool:
    """A finite int or float; bool is no number here."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _metric(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _Bad("must be a non-empty string")
    if len(value) > METRIC_MAX_CHARS:
        raise _Bad(f"must be at most {METRIC_MAX_CHARS} characters")
    return value


def _threshold(value: object) -> float:
    if not _is_number(value):
        raise _Bad("must be a finite number")
    try:
        return float(cast(float, value))
    except OverflowError:
        raise _Bad("must be a finite number") from None


def _word(words: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise _Bad(f"must be one of {', '.join(words)}")
        return value

    return check


def _whole(low: int, high: int = MS_MAX) -> Callable[[object], int]:
    """A check for integers; floats are refused even when integral, as a client that sends one has lost its unit."""

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _Bad("must be an integer")
        if value < low:
            raise _Bad(f"must be at least {low}")
        if value > high:
            raise _Bad(f"must be at most {high}")
        return value

    return check


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _Bad("must be true or false")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Bad("must be an object")
    return dict(value)


_CHECKS: dict[str, Callable[[object], object]] = {
    "metric": _metric,
    "kind": _word(KINDS),
    "op": _word(OPS),
    "threshold": _threshold,
    "window_ms": _whole(0, WINDOW_MAX_MS),
    "eval_interval_ms": _whole(1),
    "min_count": _whole(0),
    "min_state_duration_ms": _whole(0),
    "cooldown_ms": _whole(0),
    "half_open_backoff_enabled": _flag,
    "half_open_backoff_cap_ms": _whole(0),
    "half_open_indeterminate_policy": _word(POLICIES),
    "recovery_allow_rate_ramp_steps": _whole(1, RAMP_STEPS_MAX),
    "kind_params": _object,
}
