"""The JSON Schema of files of rules, for editors. It shows what the reader and the service check."""

from __future__ import annotations

from typing import Any

from breaker_actors.core.rule_fields import FIELDS as RULE_FIELDS
from pipelines.rules.files import FIELDS, OWNER

_DURATION: dict[str, Any] = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+$"}
_SPECIAL: dict[str, dict[str, Any]] = {
    "metric": {"type": "string", "minLength": 1},
    "threshold": {"type": "number"},
    "half_open_backoff_enabled": {"type": "boolean"},
    "kind_params": {"type": "object"},
    "mode": {"type": "string"},
    "shadow_of": {"type": "string", "description": "Name of the breaker whose samples this one gets, too."},
    "actions": {"type": "object"},
    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    "enabled": {"type": "boolean"},
    "breakers": {"type": "array", "items": {"type": "string"}, "description": "Names of linked breakers."},
    "matchers": {"type": "array", "items": {"type": "object"}},
    "windows": {"type": "array", "items": {"type": "object"}},
    "events": {"type": "array", "items": {"type": "string"}},
    "to": {"type": "object"},
    "config": {"type": "object", "description": "Secrets as {env: NAME} or {file: PATH}."},
    "all": {"type": "boolean"},
}


def schema_of_files() -> dict[str, Any]:
    """Of one file."""
    sections = {
        section: {"type": "object", "additionalProperties": _thing(section, fields)}
        for section, fields in FIELDS.items()
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of breaker-actors",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "owner": {"type": "string", "pattern": f"^{OWNER.pattern}$"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            **sections,
        },
    }


def _thing(section: str, fields: tuple[str, ...]) -> dict[str, Any]:
    properties = dict[str, Any]()
    for name in fields:
        properties[name] = _field(section, name)
        if name.endswith("_ms"):
            properties[name.removesuffix("_ms")] = {"type": "string"} if section == "mutes" else _DURATION
    required = [field.name for field in RULE_FIELDS if field.required] if section == "breakers" else []
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}


def _field(section: str, name: str) -> dict[str, Any]:
    rule = next((field for field in RULE_FIELDS if section == "breakers" and field.name == name), None)
    if rule is not None:
        told: dict[str, Any] = {"description": rule.meaning}
        if rule.words:
            return told | {"enum": list(rule.words)}
        if rule.low is not None and rule.high is not None:
            whole = {"type": "integer", "minimum": rule.low, "maximum": rule.high}
            return told | ({"anyOf": [whole, _DURATION]} if name.endswith("_ms") else whole)
        return told | _SPECIAL[name]
    if section == "mutes" and name.endswith("_ms"):
        return {"anyOf": [{"type": "integer"}, {"type": "string", "format": "date-time"}]}
    return _SPECIAL.get(name, {"type": "string"})
