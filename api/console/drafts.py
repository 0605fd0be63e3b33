"""A rule as a form has it, and as the API takes it: text of fields on one side, JSON on the other.

What a field means is said by `core/rule_fields`, which the API's document is made of as well. A rule is not judged
here: a text that is no number goes to the API as it is, whose word on it is shown at the field. What could be of any
size is bounded as the API bounds it, before anything is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.admission.weight import weigh
from api.wire.requests import BreakerFields, bounded, invalid, shape
from breaker_actors.core.rule_fields import DELTA_OF, FIELDS, MEANINGS, PARAMS, RuleField
from breaker_actors.core.rules import DEFAULTS, JSON_DEPTH_MAX
from breaker_actors.errors import Invalid, PayloadTooLarge

BY_NAME = {field.name: field for field in FIELDS}
PARAM = "kind_params."
FIRST = ("window_ms", "min_count", "cooldown_ms", "min_state_duration_ms")
ADVANCED = (
    "eval_interval_ms", "half_open_indeterminate_policy", "recovery_allow_rate_ramp_steps", "half_open_backoff_enabled",
    "half_open_backoff_cap_ms",
)  # fmt: skip
KINDS_WITH_PARAMS = {"percentile": ("percentile",), "delta": ("delta_of", "alpha")}
EDITED = ("name", *(field.name for field in FIELDS), "metadata", "actions")
"""What the form of a breaker holds, as the API names it."""
PLACES = (*(name for name in EDITED if name != "kind_params"), *(f"{PARAM}{param.name}" for param in PARAMS))
"""Fields of the form at which something can be said."""
LABELS: Mapping[str, tuple[str, str]] = {
    "metric": ("Metric", "The metric whose samples count. Upper and lower case are told apart."),
    "kind": ("Kind", "What is computed of the samples in the window, and compared with the threshold."),
    "kind_params.percentile": ("Percentile", "Which one: of 99 one sample in a hundred is beyond it."),
    "kind_params.delta_of": ("Change of", "What is compared with its own average of before."),
    "kind_params.alpha": ("Weight of the newest value", "How fast that average follows: above 0, at most 1."),
    "op": ("It is bad when the value is", "A value on the bad side is a breach, which opens the breaker."),
    "threshold": ("Threshold", "In the unit of the samples; of an error rate a share from 0 to 1."),
    "window_ms": (
        "Window", "Only samples of the last so many ms count. Best three times the time between evaluations, or more."
    ),
    "min_count": ("Samples needed", "With fewer in the window it is indeterminate, which opens no closed breaker."),
    "cooldown_ms": ("Cooldown", "How long it stays open before it lets calls in again, step by step."),
    "min_state_duration_ms": ("Least time in a state", "How long it stays as it is, also when a breach stands."),
    "eval_interval_ms": (
        "Time between evaluations", "A step of a recovery lasts as long. A breach is found as samples come, too."
    ),
    "half_open_indeterminate_policy": ("Too few samples in half_open", "What they count as while it recovers."),
    "recovery_allow_rate_ramp_steps": ("Steps of a recovery", "In how many steps all calls are let through again."),
    "half_open_backoff_cap_ms": ("Longest time in open", "The doubling after failed recoveries ends here."),
    "half_open_backoff_enabled": ("Twice as long in open after each failed recovery", "Default: on."),
}  # fmt: skip
"""Fields of the form: label and help; their units and defaults come from the table of rules."""
UNITS = ("ms", "samples", "steps", "percent")
ROWS_MORE = 2
"""Empty rows for metadata that a form has at its end."""


def described_fields() -> dict[str, RuleField]:
    """What a template says of each field of a rule, and of those of kind_params under their path."""
    return BY_NAME | {f"{PARAM}{field.name}": field for field in PARAMS}


def words_of_choices() -> dict[str, Mapping[str, str]]:
    """The words of each choice, with what they mean."""
    return {**MEANINGS, f"{PARAM}delta_of": dict.fromkeys(DELTA_OF, "")}


def fresh() -> dict[str, Any]:
    """What the form of a new breaker begins with: the API's own defaults."""
    return {
        **DEFAULTS, "name": "", "metric": "", "kind": "error_rate", "op": "gt", "threshold": None, "min_count": 5,
        "metadata": {}, "actions": None, "kind_params": None,
    }  # fmt: skip


def edited(breaker: Mapping[str, Any]) -> dict[str, Any]:
    """Of a breaker as the API shows it what the form holds."""
    return {name: breaker[name] for name in EDITED}


def drafted(form: Mapping[str, str], pairs: Sequence[tuple[str, str]], base: Mapping[str, Any]) -> dict[str, Any]:
    """What a form says, as the API takes it. `pairs`: its fields in their order, of which those of metadata come in
    rows; `base`: what the form began with. Raises Invalid for `actions` that are no JSON, and for a name, metadata and
    actions that are beyond the API's bounds."""
    found: dict[str, Any] = {"name": form.get("name", "").strip() or None}
    for field in FIELDS:
        if field.name == "kind_params":
            found[field.name] = _params(form, base)
        elif isinstance(field.default, bool):
            found[field.name] = field.name in form
        elif field.words or field.name == "metric":
            found[field.name] = form.get(field.name, "") or None
        else:
            found[field.name] = number(form.get(field.name, ""), whole=field.low is not None)
    found["metadata"] = metadata_of(pairs)
    found["actions"] = _json(form.get("actions", ""), "actions")
    shape({name: found[name] for name in ("name", "metadata")}, BreakerFields)
    if found["actions"] != base.get("actions"):  # what was stored larger once stays
        shape({"actions": found["actions"]}, BreakerFields)
        bounded("actions", found["actions"])
    return found


def number(text: str, whole: bool) -> int | float | str | None:
    """The number that a text is, the text where it is none or beyond what a float holds, None where it is empty."""
    text = text.strip()
    if not text:
        return None
    try:
        found = int(text) if whole or text.lstrip("+-").isdigit() else float(text)
        return found if math.isfinite(found) else text
    except (ValueError, OverflowError):
        return text


def _params(form: Mapping[str, str], base: Mapping[str, Any]) -> dict[str, Any] | None:
    """kind_params: those of the kind out of the form, other keys as they were while the kind stays."""
    kind, before = form.get("kind", ""), base.get("kind_params") if base.get("kind") == form.get("kind") else None
    names = KINDS_WITH_PARAMS.get(kind, ())
    found: dict[str, Any] = {key: value for key, value in (before or {}).items() if key not in names}
    for name in names:
        text = form.get(f"{PARAM}{name}", "")
        value = (text or None) if name == "delta_of" else number(text, whole=False)
        if value is not None:
            found[name] = value
    return found or None


def metadata_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The rows of metadata that have a key. Raises Invalid for a key that comes twice."""
    keys = [value.strip() for name, value in pairs if name == "meta_key"]
    values = [value for name, value in pairs if name == "meta_value"]
    found: dict[str, str] = {}
    for key, value in zip(keys, values, strict=False):
        if key in found:
            raise Invalid(f"metadata has the key {key!r} twice.", {"metadata": f"has the key {key!r} twice"})
        if key:
            found[key] = value
    return found


def _json(text: str, field: str) -> Any:
    if not text.strip():
        return None
    try:
        weigh(text.encode())
        found = msgspec.json.decode(text)
    except PayloadTooLarge as error:
        raise invalid(field, error.message) from None
    except RecursionError:
        raise invalid(field, f"Expected values at most {JSON_DEPTH_MAX} deep") from None
    except ValueError as error:
        raise Invalid(f"{field} is not JSON.", {field: f"is not JSON: {error}"}) from None
    return found


def texts(fields: Mapping[str, Any]) -> dict[str, str]:
    """The text of each field of the form."""
    params = fields.get("kind_params") or {}
    found = {name: _text(fields.get(name)) for name in EDITED if name not in ("kind_params", "metadata", "actions")}
    found |= {f"{PARAM}{param.name}": _text(params.get(param.name)) for param in PARAMS}
    actions = fields.get("actions")
    return found | {"actions": "" if actions is None else msgspec.json.format(msgspec.json.encode(actions)).decode()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are other afterwards; a default that is left empty is no change of it."""
    return {name: after[name] for name in EDITED if name in after and _plain(name, after) != _plain(name, before)}


def _plain(name: str, fields: Mapping[str, Any]) -> Any:
    value = fields.get(name)
    return DEFAULTS.get(name) if value is None else value


def shown(value: Any) -> str:
    """A field's value for people."""
    if value is None:
        return "nothing"
    if isinstance(value, float):
        return _text(value)
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
