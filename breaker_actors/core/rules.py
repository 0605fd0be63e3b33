"""From the fields of a request to a checked `Rule`: defaults and bounds of `rule_fields`.

Every problem found is reported at once, under the path of its field.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgspec

from breaker_actors.core.model import Rule
from breaker_actors.core.rule_fields import (
    DELTA_OF,
    FIELDS,
    METRIC_MAX_CHARS,
    MS_MAX,
    RuleField,
)
from breaker_actors.errors import Invalid

JSON_BYTES_MAX = 65_536
"""Of a value of free form that is stored."""
PARAMS_BYTES_MAX = 4_096
"""Of kind_params, which have three keys that mean something."""
JSON_VALUES_MAX, JSON_DEPTH_MAX = 1_000, 32
"""Of each of them: a value costs many times its text once it is read."""

REQUIRED = tuple(field.name for field in FIELDS if field.required)
DEFAULTS: dict[str, object] = {field.name: field.default for field in FIELDS if not field.required}


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


def _whole(low: int, high: int) -> Callable[[object], int]:
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


def excess(value: object, bytes_max: int = JSON_BYTES_MAX, values_max: int = JSON_VALUES_MAX) -> str | None:
    """What a free-form value may have at most and has more of; None when it may be stored."""
    level, count = [value], 1
    for _ in range(JSON_DEPTH_MAX):
        level = [inner for outer in level for inner in _within(outer)]
        count += len(level)
        if not level or count > values_max:
            break
    if level:
        return f"at most {values_max} values, {JSON_DEPTH_MAX} deep"
    return f"at most {bytes_max} bytes of JSON" if len(msgspec.json.encode(value)) > bytes_max else None


def _within(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Bad("must be an object")
    if too_much := excess(value, PARAMS_BYTES_MAX):
        raise _Bad(f"must be {too_much}")
    return dict(value)


_SPECIAL: dict[str, Callable[[object], object]] = {
    "metric": _metric,
    "threshold": _threshold,
    "half_open_backoff_enabled": _flag,
    "kind_params": _object,
}


def _check_of(field: RuleField) -> Callable[[object], object]:
    """The check of one field: of its own, of its words, or of its bounds."""
    if field.words:
        return _word(field.words)
    if field.low is not None and field.high is not None:
        return _whole(field.low, field.high)
    return _SPECIAL[field.name]


_CHECKS = {field.name: _check_of(field) for field in FIELDS}
