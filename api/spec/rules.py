"""Rules between fields, which struct types can't say: JSON Schema merged into the components of that name."""

from __future__ import annotations

from typing import Any

from api.spec.requests import INTERVAL_MAX_MS
from breaker_actors.core.rules import DELTA_OF, KINDS, MS_MAX, RAMP_STEPS_MAX

_PERCENTILE = {
    "type": "object",
    "required": ["percentile"],
    "properties": {"percentile": {"type": "number", "exclusiveMinimum": 0, "maximum": 100}},
}
_DELTA = {
    "type": ["object", "null"],
    "properties": {
        "delta_of": {"enum": [*DELTA_OF, None]},
        "alpha": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
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


def _any_of(*fields: str) -> dict[str, Any]:
    """One of the fields must be there and name something."""
    return {"anyOf": [{"required": [name], "properties": {name: _named(name)}} for name in fields]}


def _named(name: str) -> dict[str, Any]:
    return {"type": "array", "minItems": 1} if name.endswith("ids") else {"type": "string", "minLength": 1}


_ADDRESS = {"type": "string", "pattern": "^https?://"}
_SLACK = {
    "properties": {
        "channel": {"const": "slack"},
        "config": {"type": "object", "required": ["webhook_url"], "properties": {"webhook_url": _ADDRESS}},
    }
}
_BREAKER = {"allOf": [{"anyOf": BY_KIND}, {"anyOf": BY_STEPS}]}
RULES: dict[str, dict[str, Any]] = {
    "BreakerCreate": _BREAKER,
    "BreakerPatch": _BREAKER,
    "BreakerItem": {"allOf": [{"anyOf": BY_KIND}, _any_of("id", "name")]},
    "StateBatch": _any_of("breaker_ids", "router_ids", "router_id"),
    "RouterLink": {"anyOf": [{"required": ["breaker_ids"]}, {"required": ["breaker_id"]}]},
    "ChannelCreate": {"anyOf": [{"properties": {"channel": {"enum": ["pagerduty", "email", "webhook"]}}}, _SLACK]},
}
