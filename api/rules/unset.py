"""Secrets that a document refers to and does not have, and those that a key may not try: a plan goes on without them.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from api.wire.requests_rules import RulesDocument
from breaker_actors.store.rows import ProjectRules
from breaker_actors.text.redaction import mask

_STANDS_IN = "https://not-looked-at.invalid/"
"""For a value that is not there; what is said of it is left out."""


def unset_in(document: RulesDocument) -> dict[str, set[str]]:
    """Of each channel the paths of its references, such as config.url, where its config has nothing."""
    found: dict[str, set[str]] = {}
    for name, fields in document.channels.items():
        references, config = fields.get("references"), fields.get("config")
        if isinstance(references, Mapping):
            there = config if isinstance(config, Mapping) else {}
            unset = {f"config.{path}" for path in references if _at(there, path) is None}
            found |= {name: unset} if unset else {}
    return found


def secrets_in(document: RulesDocument, rules: ProjectRules) -> dict[str, set[str]]:
    """Of each channel the paths of what its config has and exports don't show: secrets and addresses, and all that came
    by a reference, of these files or of those that were applied. Whoever only reads could guess them by plans."""
    names = {row.id: row.name for row in rules.channels}
    referred: dict[str, set[str]] = {}
    for row in rules.declared:
        if row.kind == "channels":
            for name in (row.name, names.get(row.thing_id, row.name)):
                referred.setdefault(name, set()).update(row.fields.get("references", {}))
    found: dict[str, set[str]] = {}
    for name, fields in document.channels.items():
        config, references = fields.get("config"), fields.get("references")
        if not isinstance(config, Mapping):
            continue
        paths = {key for key, value in config.items() if mask({key: value}) != {key: value}}
        paths |= {path for path in referred.get(name, ()) if _at(config, path) is not None}
        paths |= {path for path in references if _at(config, path) is not None} if _is_object(references) else set()
        found |= {name: {f"config.{path}" for path in paths}} if paths else {}
    return found


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def without_unset(config: Any, unset: Collection[str], stored: Mapping[str, Any]) -> Any:
    """The config with the stored values in the places of those that are not there; where nothing is stored, with
    something that stands in."""
    if not unset or not isinstance(config, Mapping | None):
        return config
    whole: dict[str, Any] = dict(config or {})
    for place in unset:
        path = place.removeprefix("config.")
        above, _, key = path.partition(".")
        value = _at(stored, path)
        if not key:
            whole[above] = _STANDS_IN if value is None else value
        elif isinstance(inner := whole.get(above, {}), Mapping):
            whole[above] = {**inner, key: _STANDS_IN if value is None else value}
    return whole


def _at(config: Mapping[str, Any], path: str) -> Any:
    above, _, key = path.partition(".")
    value = config.get(above)
    return value if not key else value.get(key) if isinstance(value, Mapping) else None
