"""The JSON Schema of files of rules, for editors: what their reader checks, and what requests are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from api.openapi.document import document
from pipelines.rules.schema import schema_of_files

_REQUESTS = {
    "breakers": "BreakerCreate",
    "routers": "RouterCreate",
    "mappings": "MappingCreate",
    "channels": "ChannelCreate",
    "mutes": "MuteCreate",
}
_OF_FILES = {"breakers", "config", "shadow_of"}
"""Fields that files write otherwise: names for ids, references for secrets."""
_REF = "#/components/schemas/"


def schema_of_rule_files() -> dict[str, Any]:
    """Of one file, with the definitions that it refers to."""
    schema = schema_of_files()
    schemas: Mapping[str, Any] = document()["components"]["schemas"]
    for section, name in _REQUESTS.items():
        request, thing = schemas[name], schema["properties"][section]["additionalProperties"]
        rule_fields = set(thing["required"])
        for field in thing["properties"]:
            told = request["properties"].get(field)
            if told is not None and not (field in _OF_FILES or field.endswith("_ms") or _is_rule(section, field)):
                thing["properties"][field] = told
        wanted = [field for field in request.get("required", ()) if field in thing["properties"]]
        thing["required"] = [*thing["required"], *(field for field in wanted if field not in rule_fields)]
    used = _used(schema, schemas)
    whole: dict[str, Any] = _moved(schema | {"$defs": {name: schemas[name] for name in sorted(used)}})
    return whole


def _is_rule(section: str, field: str) -> bool:
    """A field of a breaker that its rule's own words tell of."""
    return section == "breakers" and field not in ("mode", "actions", "metadata")


def _refs(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "$ref":
                yield one.removeprefix(_REF)
            else:
                yield from _refs(one)
    elif isinstance(value, list):
        for one in value:
            yield from _refs(one)


def _used(schema: Any, schemas: Mapping[str, Any]) -> set[str]:
    """The names of all that is referred to, over whatever way."""
    found, left = set[str](), list(_refs(schema))
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += _refs(schemas[name])
    return found


def _moved(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: one.replace(_REF, "#/$defs/") if key == "$ref" else _moved(one)
            for key, one in value.items()
            if key != "discriminator"
        }
    return [_moved(one) for one in value] if isinstance(value, list) else value
