"""Things in the words of files: every field with its value, breakers and routers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from api.rules.model import Names, Thing, plain
from breaker_actors.core.rules import REQUIRED, parse_rule
from breaker_actors.store.mappings.model import LABEL, RESOURCE
from breaker_actors.store.rows import BreakerRow, ChannelRow, MappingRow, MuteDraft, RouterRow

Form = dict[str, Any]


def form_of(row: Thing, names: Names) -> Form:
    """All fields of a thing. Secrets of channels are open in it."""
    if isinstance(row, BreakerRow):
        return _breaker(row, names)
    if isinstance(row, RouterRow):
        return _router(row, names)
    if isinstance(row, MappingRow):
        return _mapping(row, names)
    if isinstance(row, ChannelRow):
        return {"channel": row.channel, "config": plain(row.config), "enabled": row.enabled, "events": [*row.events]}
    return {name: plain(getattr(row, name)) for name in MuteDraft.__struct_fields__}


def _breaker(row: BreakerRow, names: Names) -> Form:
    form: Form = plain(row.rule)
    form["mode"] = row.controls.mode
    form["shadow_of"] = None if row.shadow_of is None else names.breaker(row.shadow_of)
    return form | {"actions": plain(row.actions), "metadata": dict(row.metadata)}


def _router(row: RouterRow, names: Names) -> Form:
    """Shadows come with what they watch, and are not told beside it."""
    linked = set(row.breaker_ids)
    told = [id_ for id_ in row.breaker_ids if names.shadows.get(id_) not in linked]
    fields: Form = {"mode": row.mode, "enabled": row.enabled, "metadata": dict(row.metadata)}
    return fields | {"breakers": sorted(map(names.breaker, told))}


def _mapping(row: MappingRow, names: Names) -> Form:
    to = plain(row.to)
    if not row.to.router.startswith((LABEL, RESOURCE)):
        to["router"] = names.router(row.to.router)
    return {"matchers": plain(row.matchers), "to": to, "enabled": row.enabled}


_BARE: Mapping[str, Form] = {
    "routers": {"mode": "static", "enabled": True, "metadata": {}, "breakers": []},
    "mappings": {"enabled": True},
    "channels": {"enabled": True, "events": ["trip", "recover"]},
    "mutes": {"matchers": [], "all": False, "ends_ms": None, "windows": [], "zone": "UTC"},
}
_BARE_TO: Form = {
    "metric": None, "scale": 1.0, "as": "observations", "ok": [], "temporality": None, "series_max": 2_000
}  # fmt: skip


def sparse(kind: str, form: Mapping[str, Any]) -> Form:
    """The form without what its defaults say: as files are written."""
    bare = _bare_breaker(form) if kind == "breakers" else _BARE[kind]
    found = {name: value for name, value in form.items() if name not in bare or value != bare[name]}
    if kind == "mappings":
        found["to"] = {name: one for name, one in form["to"].items() if name not in _BARE_TO or one != _BARE_TO[name]}
    return found


def _bare_breaker(form: Mapping[str, Any]) -> Form:
    required = {name: form[name] for name in REQUIRED}
    rule = msgspec.to_builtins(parse_rule({**required, "kind_params": form["kind_params"]}))
    bare = {name: value for name, value in rule.items() if name not in REQUIRED}
    mode = "enforce" if form["shadow_of"] is None else "observe"
    return bare | {"kind_params": None, "mode": mode, "shadow_of": None, "actions": None, "metadata": {}}
