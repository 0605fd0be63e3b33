"""Secrets that a document refers to and does not have: a plan goes on without them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from api.wire.requests_rules import RulesDocument

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
