"""What struct types can't say: the fields of a rule, by the table that they are checked by, and rules between fields.

JSON Schema for the components of a name.
"""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

import msgspec

from breaker_actors.core.model import Rule
from breaker_actors.core.rule_fields import (
    DELTA_OF,
    FIELDS,
    KINDS,
    METRIC_MAX_CHARS,
    MS_MAX,
    PARAMS,
    RAMP_STEPS_MAX,
    RuleField,
    described,
)
from breaker_actors.store.mappings.model import KEY_CHARS_MAX
from breaker_actors.text.globs import STARS_MAX

INTERVAL_MAX_MS = MS_MAX // (RAMP_STEPS_MAX + 1)
"""What every number of ramp steps allows; fewer steps allow more."""
NULL = {"type": "null"}


def _schema(field: RuleField) -> dict[str, Any]:
    """The type of a field with its bounds and its default. One with a default may be null."""
    kind: Any = get_type_hints(Rule)[field.name]
    if field.low is not None:
        kind = Annotated[kind, msgspec.Meta(ge=field.low, le=field.high)]
    if field.name == "metric":
        kind = Annotated[kind, msgspec.Meta(min_length=1, max_length=METRIC_MAX_CHARS)]
    schema = msgspec.json.schema(kind)
    if field.required or field.default is None:
        return schema
    return {"anyOf": [schema | {"default": field.default}, NULL]}


RULE_FIELDS = {field.name: _schema(field) for field in FIELDS}
RULE_REQUIRED = [field.name for field in FIELDS if field.required]

_ABOUT = {field.name: {"description": described(field)} for field in PARAMS}
_PERCENTILE: dict[str, Any] = {
    "type": "object",
    "required": ["percentile"],
    "properties": {"percentile": {"type": "number", "exclusiveMinimum": 0, "maximum": 100} | _ABOUT["percentile"]},
}
_DELTA: dict[str, Any] = {
    "type": ["object", "null"],
    "properties": {
        "delta_of": {"enum": [*DELTA_OF, None]} | _ABOUT["delta_of"],
        "alpha": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1} | _ABOUT["alpha"],
    },
}
_SET = {"window_ms": {"type": ["integer", "null"], "minimum": 1}}
_PLAIN = [kind for kind in KINDS if kind not in ("percentile", "delta", "consecutive_failures")]
BY_KIND: list[dict[str, Any]] = [
    {"properties": {"kind": {"enum": _PLAIN}, **_SET}},
    {"properties": {"kind": {"const": "consecutive_failures"}}},
    {"properties": {"kind": {"const": "delta"}, "kind_params": _DELTA, **_SET}},
    {"properties": {"kind": {"const": "percentile"}, "kind_params": _PERCENTILE, **_SET}, "required": ["kind_params"]},
]
BY_STEPS: list[dict[str, Any]] = [
    {"properties": {"eval_interval_ms": {"type": ["integer", "null"], "maximum": INTERVAL_MAX_MS}}},
    *(
        {
            "properties": {
                "recovery_allow_rate_ramp_steps": {"const": steps},
                "eval_interval_ms": {"type": ["integer", "null"], "maximum": MS_MAX // (steps + 1)},
            },
            "required": ["recovery_allow_rate_ramp_steps"],
        }
        for steps in range(1, RAMP_STEPS_MAX)
    ),
]
"""(steps + 1) x eval_interval_ms must fit into 32 bits."""


def fill(components: dict[str, dict[str, Any]]) -> None:
    """Adds all this to the components."""
    components |= {"SlackConfig": SLACK_CONFIG, "ShadowMode": SHADOW_MODE}
    for name, field in SENT_WITH_DEFAULT:
        del components[name]["properties"][field]["default"]
    for name in ("BreakerCreate", "BreakerItem", "BreakerPatch"):
        components[name]["properties"] |= RULE_FIELDS
    del components["BreakerPatch"]["properties"]["id"]
    for name, rule in RULES.items():
        component = components[name]
        component |= rule
        for field in NEVER_NULL.get(name, rule.get("required", ())):  # is null where it is missing, for who reads it
            component["properties"][field] = component["properties"][field].get("anyOf", [RULE_FIELDS.get(field)])[0]


def _any_of(*fields: str) -> dict[str, Any]:
    """One of the fields must be there and name something."""
    return {"anyOf": [{"required": [name], "properties": {name: _named(name)}} for name in fields]}


def _named(name: str) -> dict[str, Any]:
    """Type and least length; a list says again of what, for generators take this branch for the whole property."""
    if name.endswith("ids"):
        return {"type": "array", "minItems": 1, "items": {"type": "string", "format": "uuid"}}
    return {"type": "string", "minLength": 1}


_ADDRESS = {"type": "string", "pattern": "^https?://", "description": "Slack's address for the channel's messages."}
_NOT_SLACK = ["pagerduty", "alertmanager", "email", "webhook", "apprise"]
_SLACK = {
    "properties": {
        "channel": {"const": "slack"},
        "config": {"$ref": "#/components/schemas/SlackConfig"},
    }
}
SLACK_CONFIG = {
    "title": "SlackConfig",
    "type": "object",
    "required": ["webhook_url"],
    "properties": {"webhook_url": _ADDRESS},
}
"""By name: of two schemas in place generators make two models of one name."""
SENT_WITH_DEFAULT = (("MetricSample", "ok"), ("Rebalance", "max"))
"""Generators take a field with a default for one that is always there, and ask senders for it. Its description tells
the default."""
_BREAKER: dict[str, Any] = {"allOf": [{"anyOf": BY_KIND}, {"anyOf": BY_STEPS}]}
SHADOW_MODE: dict[str, Any] = {
    "title": "ShadowMode",
    "description": "A shadow observes.",
    "type": "object",
    "allOf": [{"anyOf": [{"properties": {"shadow_of": NULL}}, {"properties": {"mode": {"enum": ["observe", None]}}}]}],
}
"""By name: who makes up bodies takes no product of all branches of a breaker then, which would be too large."""
_GLOB: dict[str, Any] = {
    "anyOf": [
        {"properties": {"op": {"enum": ["=", "!="]}}},
        {"properties": {"value": {"type": "string", "pattern": rf"^[^*]*(\*[^*]*){{0,{STARS_MAX}}}$"}}},
    ]
}


def _list(component: str) -> dict[str, Any]:
    """A list that holds something."""
    return {"type": "array", "minItems": 1, "items": {"$ref": f"#/components/schemas/{component}"}}


def _whom(matcher: str) -> list[dict[str, Any]]:
    """Some matchers, or `all` and none of them; what is not sent does not contradict."""
    none = _list(matcher) | {"type": ["array", "null"], "minItems": 0, "maxItems": 0}
    return [
        {"properties": {"matchers": _list(matcher), "all": {"enum": [False, None]}}},
        {"properties": {"matchers": none, "all": {"const": True}}},
    ]


_END: list[dict[str, Any]] = [
    {"properties": {"ends_ms": {"type": "integer"}}},
    {"properties": {"windows": _list("Window")}},
]
"""A mute ends, or recurs."""


def _with(branches: list[dict[str, Any]], *fields: str) -> dict[str, Any]:
    """One of the branches, where the first field of each must be there."""
    return {"anyOf": [branch | {"required": [name]} for branch, name in zip(branches, fields, strict=True)]}


_ASKED: dict[str, Any] = {"anyOf": _whom("Matcher")}
_MATCHED = _with(_whom("Matcher"), "matchers", "all")
_OVERRIDDEN = _with(_whom("OverrideMatcher"), "matchers", "all")
_OVERRIDE: list[dict[str, Any]] = [
    {
        "anyOf": [
            {
                "properties": {"kind": {"const": "throttle"}, "allow_rate": {"type": "number"}},
                "required": ["allow_rate"],
            },
            {"properties": {"kind": {"enum": ["force_open", "force_closed"]}, "allow_rate": NULL}},
        ]
    },
    {"anyOf": [{"properties": {"for_ms": NULL}}, {"properties": {"until_ms": NULL, "until": NULL}}]},
]
_KEY = {"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX}
_OK_RULES: dict[str, dict[str, Any]] = {
    "absent": _KEY,
    "below": {"$ref": "#/components/schemas/Below"},
    "in": {"$ref": "#/components/schemas/OneOf"},
    "label": _KEY,
}
_ONE_RULE = [
    {"required": [name], "properties": {other: NULL for other in _OK_RULES if other != name} | {name: rule}}
    for name, rule in _OK_RULES.items()
]
NEVER_NULL = {"RouterLink": ["breaker_ids", "breaker_id"]}
"""Fields that callers leave out instead, beside those that are required."""
RULES: dict[str, dict[str, Any]] = {
    "ProjectCreate": {"required": ["workspace_id"]},
    "BreakerCreate": {
        "allOf": [*_BREAKER["allOf"], {"$ref": "#/components/schemas/ShadowMode"}],
        "required": RULE_REQUIRED,
    },
    "BreakerPatch": _BREAKER,
    "BreakerItem": {"allOf": [{"anyOf": BY_KIND}, _any_of("id", "name")], "required": RULE_REQUIRED},
    "StateBatch": _any_of("breaker_ids", "router_ids", "router_id"),
    "RouterLink": {"anyOf": [{"required": [name]} for name in NEVER_NULL["RouterLink"]]},
    "ChannelCreate": {"anyOf": [{"properties": {"channel": {"enum": _NOT_SLACK}}}, _SLACK]},
    "Matcher": {"allOf": [_GLOB]},
    "OverrideMatcher": {"allOf": [_GLOB]},
    "SeriesMatcher": {"allOf": [_GLOB]},
    "OkRule": {"anyOf": _ONE_RULE},
    "MappingSent": _any_of("id", "name"),
    "MutePreview": {"allOf": [_MATCHED]},
    "MuteCreate": {"allOf": [_MATCHED, _with(_END, "ends_ms", "windows")]},
    "MutePatch": {"allOf": [_ASKED, {"anyOf": _END}]},
    "OverrideMatch": {"allOf": [_OVERRIDDEN]},
    "OverrideSet": {"allOf": _OVERRIDE},
    "OverridesSet": {"allOf": [_OVERRIDDEN, *_OVERRIDE]},
    "OverridesEnd": {"allOf": [_OVERRIDDEN]},
}
