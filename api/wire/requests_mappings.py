"""Requests about mappings, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash
from msgspec import UNSET, Meta, UnsetType

from api.auth import uuid_or_none
from api.protocols.points import Series, SeriesType
from api.wire.requests import Enabled, invalid, shape
from api.wire.types import Name, Uuid, default
from breaker_actors.errors import Invalid
from breaker_actors.store.base import MappingEdit
from breaker_actors.store.mappings.model import (
    METRIC_CHARS_MAX,
    ROUTER,
    RULES_MAX,
    SERIES_MAX,
    SERIES_MAX_DEFAULT,
    As,
    MappingTo,
    OkRule,
    SeriesMatcher,
    Temporality,
    problems,
)
from breaker_actors.store.mutes.matching import MATCHERS_MAX
from breaker_actors.store.rows import MappingDraft, MappingItem, MappingRow

T = TypeVar("T")

PREVIEWED_MAX = 1_000
"""Series of one preview."""
BODY_BYTES_MAX = 1 << 20
"""Of a whole list of mappings, or of series to preview."""
LAST = 1 << 31
"""A position behind all others."""
FIELDS = "Expected name, label.KEY or resource.KEY"
ROUTERS = "Expected the id of a router, label.KEY or resource.KEY"
_FIELD = re.compile(r"(mappings\[[0-9]+\]\.)?matchers\[[0-9]+\]\.field")
_ROUTER = re.compile(r"(mappings\[[0-9]+\]\.)?to\.router")

Matchers = Annotated[list[SeriesMatcher], Meta(min_length=1, max_length=MATCHERS_MAX)]
Router = Annotated[str, Meta(pattern=rf"\A{ROUTER}\Z", examples=["label.server.address"])]
Metric = Annotated[str, Meta(min_length=1, max_length=METRIC_CHARS_MAX, examples=["latency"])]
Position = Annotated[int, Meta(ge=1, le=LAST - 1)]


class MappingToPatch(msgspec.Struct, kw_only=True, rename={"take_as": "as"}):
    """What of it is given; null is the default."""

    router: Router | UnsetType = UNSET
    metric: Metric | UnsetType | None = UNSET
    scale: Annotated[float, default(1.0)] | UnsetType | None = UNSET
    take_as: Annotated[As, default("observations")] | UnsetType | None = UNSET
    ok: OkRule | Annotated[list[OkRule], Meta(max_length=RULES_MAX)] | UnsetType | None = UNSET
    temporality: Temporality | UnsetType | None = UNSET
    series_max: Annotated[int, Meta(ge=1, le=SERIES_MAX), default(SERIES_MAX_DEFAULT)] | UnsetType | None = UNSET


class MappingToCreate(MappingToPatch, kw_only=True, rename={"take_as": "as"}):
    router: Router


class MappingFields(msgspec.Struct, kw_only=True):
    name: Name | UnsetType | None = UNSET
    enabled: Enabled | UnsetType | None = UNSET


class MappingCreate(MappingFields, kw_only=True):
    matchers: Matchers
    to: MappingToCreate
    position: Position | UnsetType | None = UNSET


class MappingPatch(MappingFields, kw_only=True):
    """null and "" as name are no change."""

    matchers: Matchers | UnsetType = UNSET
    to: MappingToPatch | UnsetType = UNSET
    position: Position | UnsetType | None = UNSET


class MappingSent(MappingFields, kw_only=True):
    """Matched by id, else by name; one of them must be there. What is left out is the default."""

    id: Uuid | UnsetType | None = UNSET
    matchers: Matchers
    to: MappingToCreate


class MappingsReplace(msgspec.Struct, kw_only=True):
    mappings: list[MappingSent]


class PreviewedSeries(msgspec.Struct, kw_only=True):
    name: Annotated[str, Meta(max_length=1_024)]
    labels: dict[str, str] = {}
    resource: dict[str, str] = {}
    type: Annotated[SeriesType, default("gauge")] = "gauge"
    temporality: Temporality | None = None
    monotonic: Annotated[bool, default(False)] = False
    unit: Annotated[str, default("")] = ""


class MappingsPreview(msgspec.Struct, kw_only=True):
    series: Annotated[list[PreviewedSeries], Meta(max_length=PREVIEWED_MAX)]


def mapping_draft(fields: Mapping[str, Any]) -> MappingDraft:
    """What a create asks for; null is the same as absent. Raises Invalid."""
    plain = _shaped(fields, MappingCreate)
    draft = MappingDraft(
        name=plain.name or None,
        matchers=tuple(plain.matchers),
        to=_to(plain.to),
        enabled=plain.enabled is not False,
        position=plain.position or None,
    )
    _check(draft.matchers, draft.to)
    return draft


def mapping_edit(fields: Mapping[str, Any]) -> MappingEdit:
    """The row as a PATCH wants it. Fields of `to` are put over the stored ones; null is the default."""
    plain = _shaped(fields, MappingPatch)

    def edit(row: MappingRow) -> MappingRow:
        wanted: dict[str, Any] = {"name": plain.name} if plain.name else {}
        if not isinstance(plain.matchers, UnsetType):
            wanted["matchers"] = tuple(plain.matchers)
        if not isinstance(plain.to, UnsetType):
            wanted["to"] = _to(plain.to, row.to)
        if plain.enabled is not UNSET:
            wanted["enabled"] = plain.enabled is not False
        if plain.position is not UNSET:
            wanted["position"] = plain.position or LAST
        new = msgspec.structs.replace(row, **wanted)
        if new != row:
            _check(new.matchers, new.to)
        return new

    return edit


def mapping_items(fields: Mapping[str, Any]) -> list[MappingItem]:
    """The whole list, in its order. Raises Invalid."""
    found = list[MappingItem]()
    for n, plain in enumerate(_shaped(fields, MappingsReplace).mappings):
        path, id_ = f"mappings[{n}].", uuid_or_none(plain.id)
        if id_ is None and plain.id not in (None, UNSET):
            raise invalid(f"{path}id", "Expected a uuid")
        if id_ is None and not plain.name:
            raise invalid(f"{path}name", "a mapping of a list needs an id or a name")
        item = MappingItem(
            id=id_,
            name=plain.name or None,
            matchers=tuple(plain.matchers),
            to=_to(plain.to),
            enabled=plain.enabled is not False,
        )
        _check(item.matchers, item.to, path)
        found.append(item)
    return found


def previewed_series(fields: Mapping[str, Any]) -> list[Series]:
    """The series that are asked about. Raises Invalid."""
    return [_series(plain) for plain in _shaped(fields, MappingsPreview).series]


def _series(plain: PreviewedSeries) -> Series:
    """The identity is good for telling series of one preview apart."""
    told = [plain.name, sorted(plain.labels.items()), sorted(plain.resource.items()), plain.type]
    return Series(
        identity=xxhash.xxh3_128_digest(msgspec.json.encode(told)),
        **{field: getattr(plain, field) for field in plain.__struct_fields__},
    )


def _to(plain: MappingToPatch, stored: MappingTo | None = None) -> MappingTo:
    given = {name: getattr(plain, name) for name in plain.__struct_fields__}
    given = {name: value for name, value in given.items() if value is not UNSET}
    defaults = {name: value for name, value in _DEFAULTS.items() if given.get(name, UNSET) is None}
    wanted = given | defaults
    if "ok" in wanted:
        wanted["ok"] = (wanted["ok"],) if isinstance(wanted["ok"], OkRule) else tuple(wanted["ok"])
    return MappingTo(**wanted) if stored is None else msgspec.structs.replace(stored, **wanted)


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(MappingTo) if not field.required}


def _check(matchers: tuple[SeriesMatcher, ...], to: MappingTo, path: str = "") -> None:
    for field, words in problems(matchers, to):
        raise invalid(path + field, words)


def _shaped(fields: Mapping[str, Any], kind: type[T]) -> T:
    """The same as `shape`; of a matcher's field and of a router it says what there is."""
    try:
        return shape(fields, kind)
    except Invalid as error:
        place, message = next(iter(error.details.items()))
        if "regex" in message and _FIELD.fullmatch(place):
            raise invalid(place, FIELDS) from None
        if "regex" in message and _ROUTER.fullmatch(place):
            raise invalid(place, ROUTERS) from None
        raise
