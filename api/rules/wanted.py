"""Rows as files want them, by the very code that reads requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from api.rules.model import Asked, Names, Thing
from api.rules.unset import without_unset
from api.wire.requests import (
    BreakerCreate,
    RouterCreate,
    breaker_draft,
    invalid,
    router_draft,
    shape,
)
from api.wire.requests_accounts import ChannelCreate, channel_draft
from api.wire.requests_mappings import MappingCreate, mapping_draft
from api.wire.requests_mutes import Bounds, MuteCreate, check_end, mute_draft, mute_edit
from api.wire.unknown import unknown_fields, unknown_inside
from breaker_actors.errors import Invalid
from breaker_actors.notify.channels.config import check, unknown_keys
from breaker_actors.store.mappings.model import LABEL, RESOURCE
from breaker_actors.store.rows import (
    NO_SHADOW,
    BreakerRow,
    ChannelRow,
    DeclaredKind,
    MappingRow,
    MuteDraft,
    MuteRow,
    RouterRow,
    with_mode,
)

_KINDS: Mapping[DeclaredKind, type[msgspec.Struct]] = {
    "breakers": BreakerCreate,
    "routers": RouterCreate,
    "mappings": MappingCreate,
    "channels": ChannelCreate,
    "mutes": MuteCreate,
}
_NONE = {"breakers": ("id", "name"), "routers": ("name", "breaker_ids"), "mappings": ("name", "position")}
"""Fields of requests that files don't have: names stand before, ids nowhere, and the order is that of the files."""


def wanted_row(
    asked: Asked, kind: DeclaredKind, name: str, fields: Mapping[str, Any], row: Thing | None, id_: str, names: Names
) -> Thing:
    """The thing as its files want it; `row`: as it is. Raises Invalid."""
    _refuse_unknown(kind, fields)
    return _READERS[kind](asked, name, dict(fields), row, id_, names)


def _refuse_unknown(kind: DeclaredKind, fields: Mapping[str, Any]) -> None:
    known = {"routers": {"breakers"}, "channels": {"references"}}.get(kind, set())
    looked_at = {key: value for key, value in fields.items() if key not in known}
    for one in (*unknown_fields(looked_at, _KINDS[kind]), *unknown_inside(looked_at, _KINDS[kind])):
        raise invalid(one.field, one.message)
    for key in (*_NONE.get(kind, ()), *(("name",) if kind == "channels" else ())):
        if key in fields:
            raise invalid(key, "is no field in files of rules")


def _breaker(asked: Asked, name: str, fields: dict[str, Any], row: Any, id_: str, names: Names) -> BreakerRow:
    watched = fields.pop("shadow_of", None)
    if watched is not None:
        fields["shadow_of"] = _breaker_id(names, watched, "shadow_of")
    draft = breaker_draft({**fields, "name": name} | ({} if row is None else {"shadow_of": None, "mode": None}))
    if row is None:
        return BreakerRow(
            id=id_,
            project_id=asked.project_id,
            name=name,
            rule=draft.rule,
            actions=draft.actions,
            metadata=draft.metadata,
            version=1,
            created_ms=asked.now_ms,
            updated_ms=asked.now_ms,
            router_ids=(asked.new_id(),),
            control=draft.control,
            shadow_of=draft.shadow_of,
        )
    if fields.get("shadow_of") != row.shadow_of:
        raise invalid("shadow_of", NO_SHADOW)
    plain = shape(fields, BreakerCreate)
    mode = plain.mode or ("enforce" if row.shadow_of is None else "observe")
    edited: BreakerRow = msgspec.structs.replace(
        row,
        name=name,
        rule=draft.rule,
        actions=draft.actions,
        metadata=draft.metadata,
        control=with_mode(row.control, mode, asked.by),
    )
    return edited


def _breaker_id(names: Names, name: Any, place: str) -> str:
    found = names.breaker_id(name) if isinstance(name, str) else None
    if found is None:
        raise invalid(place, f"there is no breaker {name!r}, or there are several" if isinstance(name, str) else "text")
    return found


def _router(asked: Asked, name: str, fields: dict[str, Any], row: Any, id_: str, names: Names) -> RouterRow:
    listed = fields.pop("breakers", None) or []
    if not isinstance(listed, list):
        raise invalid("breakers", "Expected an array")
    ids = [_breaker_id(names, one, f"breakers[{n}]") for n, one in enumerate(listed)]
    draft = router_draft({**fields, "name": name})
    linked = set(ids)
    kept = () if row is None else row.breaker_ids
    # What is linked keeps its order, and shadows stay with what they watch.
    ordered = [one for one in kept if one in linked or names.shadows.get(one) in linked]
    ordered += [one for one in dict.fromkeys(ids) if one not in ordered]
    return RouterRow(
        id=id_,
        project_id=asked.project_id,
        name=name,
        mode=draft.mode,
        enabled=draft.enabled,
        created_by="user",
        metadata=draft.metadata,
        version=1 if row is None else row.version,
        inserted_ms=asked.now_ms if row is None else row.inserted_ms,
        breaker_ids=tuple(ordered),
    )


def _mapping(asked: Asked, name: str, fields: dict[str, Any], row: Any, id_: str, names: Names) -> MappingRow:
    to = fields.get("to")
    if isinstance(to, dict) and isinstance(router := to.get("router"), str):
        if not router.startswith((LABEL, RESOURCE)):
            if (found := names.router_id(router)) is None:
                raise invalid("to.router", f"there is no router {router!r}, or there are several")
            fields["to"] = {**to, "router": found}
    draft = mapping_draft({**fields, "name": name})
    if row is not None:
        changed = {"name": name, "matchers": draft.matchers, "to": draft.to, "enabled": draft.enabled}
        moved: MappingRow = msgspec.structs.replace(row, **changed)
        return moved
    return MappingRow(
        id=id_,
        project_id=asked.project_id,
        position=0,
        name=name,
        matchers=draft.matchers,
        to=draft.to,
        enabled=draft.enabled,
        version=1,
        inserted_ms=asked.now_ms,
        updated_ms=asked.now_ms,
    )


def _channel(asked: Asked, name: str, fields: dict[str, Any], row: Any, id_: str, names: Names) -> ChannelRow:
    fields.pop("references", None)
    unset = asked.unset.get(name, ())
    if unset:
        same = row is not None and row.channel == fields.get("channel")
        fields["config"] = without_unset(fields.get("config"), unset, row.config if same else {})
    draft = channel_draft({**fields, "name": name}, asked.allow_private)
    if row is not None and row.channel != draft.channel:
        raise invalid("channel", f"is {row.channel} and can't be changed: give the new one another name")
    if row is None or row.config != draft.config:
        for problem in (*unknown_keys(draft.channel, draft.config), *check(draft.channel, draft.config)):
            if problem.path not in unset:
                raise invalid(problem.path, problem.message)
    return ChannelRow(
        id=id_,
        project_id=asked.project_id,
        name=name,
        channel=draft.channel,
        config=draft.config,
        enabled=draft.enabled,
        events=draft.events,
        inserted_ms=asked.now_ms if row is None else row.inserted_ms,
        updated_ms=asked.now_ms if row is None else row.updated_ms,
    )


def _mute(asked: Asked, name: str, fields: dict[str, Any], row: Any, id_: str, names: Names) -> MuteRow:
    bounds = Bounds(asked.now_ms, asked.mute_max_ms)
    if row is not None:
        starts_ms = fields.get("starts_ms")
        if row.starts_ms <= asked.now_ms and (not isinstance(starts_ms, int) or starts_ms <= row.starts_ms):
            fields["starts_ms"] = row.starts_ms
        bare: dict[str, Any] = dict.fromkeys(("matchers", "all", "ends_ms", "windows", "zone"))
        edited: MuteRow = mute_edit(bare | fields, bounds)(row)
        return edited
    draft = mute_draft(fields, bounds)
    if not is_over(fields, asked.now_ms):
        check_end(draft, bounds)
    values = {field: getattr(draft, field) for field in MuteDraft.__struct_fields__}
    return MuteRow(
        **values,
        number=0,
        id=id_,
        project_id=asked.project_id,
        created_by=asked.by,
        created_name=asked.by,
        inserted_ms=asked.now_ms,
        updated_ms=asked.now_ms,
    )


def is_over(fields: Mapping[str, Any], now_ms: int) -> bool:
    """Whether files declare a mute that has ended by itself."""
    ends_ms = fields.get("ends_ms")
    return isinstance(ends_ms, int) and ends_ms <= now_ms


_READERS: Mapping[DeclaredKind, Callable[[Asked, str, dict[str, Any], Any, str, Names], Thing]] = {
    "breakers": _breaker,
    "routers": _router,
    "mappings": _mapping,
    "channels": _channel,
    "mutes": _mute,
}


def at_thing(kind: DeclaredKind, name: str, error: Invalid) -> dict[str, Any]:
    """The details of an error about one thing, under its place in the document."""
    return {f"{kind}.{name}.{path}": text for path, text in (error.details or {"": error.message}).items()}
