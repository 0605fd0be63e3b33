"""Requests about mutes, as values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from api.wire.requests import invalid, shape
from api.wire.types import default
from breaker_actors.errors import Invalid
from breaker_actors.store.base import MuteEdit
from breaker_actors.store.mutes.matching import MATCHERS_MAX, Matcher, problem
from breaker_actors.store.mutes.schedule import WINDOWS_MAX, ZONE, ZONE_CHARS_MAX, Window, problems
from breaker_actors.store.rows import MuteDraft, MuteRow

FIELDS = "Expected name, id, metric, kind, metadata.KEY, router.KEY or channel"
_FIELD = re.compile(r"matchers\[[0-9]+\]\.field")
COMMENT_CHARS_MAX = 500
LAST_MS = 4_102_444_800_000
"""The year 2100: no mute begins or ends later."""

Matchers = Annotated[list[Matcher], msgspec.Meta(max_length=MATCHERS_MAX)]
Windows = Annotated[list[Window], msgspec.Meta(max_length=WINDOWS_MAX)]
Comment = Annotated[str, msgspec.Meta(min_length=1, max_length=COMMENT_CHARS_MAX)]
Zone = Annotated[
    str,
    msgspec.Meta(max_length=ZONE_CHARS_MAX, examples=["Europe/Berlin"]),
    msgspec.Meta(extra_json_schema={"default": "UTC", "format": "time-zone", "pattern": rf"\A({ZONE})?\Z"}),
]
"""Its form is described here; what decides is whether the zone is known. "" is the default, as null."""
Instant = Annotated[int, msgspec.Meta(ge=0, le=LAST_MS, extra_json_schema={"format": "int64"})]


T = TypeVar("T")


class MutePreview(msgspec.Struct, kw_only=True):
    matchers: Matchers | UnsetType | None = UNSET
    all: Annotated[bool, default(False)] | UnsetType | None = UNSET


class MutePatch(MutePreview, kw_only=True):
    starts_ms: Instant | UnsetType | None = UNSET
    ends_ms: Instant | UnsetType | None = UNSET
    windows: Windows | UnsetType | None = UNSET
    zone: Zone | UnsetType | None = UNSET
    comment: Comment | UnsetType | None = UNSET


class MuteCreate(MutePatch, kw_only=True):
    comment: Comment


class Bounds(msgspec.Struct, frozen=True):
    """What a mute is held against: the time of the request, and how long one without windows may last."""

    now_ms: int
    most_ms: int


def _shaped(fields: Mapping[str, Any], kind: type[T]) -> T:
    """The same as `shape`; of a matcher's field it says which there are."""
    try:
        return shape(fields, kind)
    except Invalid as error:
        place, message = next(iter(error.details.items()))
        if _FIELD.fullmatch(place) and "regex" in message:
            raise invalid(place, FIELDS) from None
        raise


def preview_of(fields: Mapping[str, Any]) -> tuple[Matcher, ...]:
    """The matchers that are asked about; none: all. Raises Invalid."""
    plain = _shaped(fields, MutePreview)
    matchers = tuple(plain.matchers or ())
    check_matchers(matchers, plain.all is True)
    return matchers


def mute_draft(fields: Mapping[str, Any], bounds: Bounds) -> MuteDraft:
    """What a create asks for; null is the same as absent, a start in the past is now. Raises Invalid. Its end is for
    `check_end`."""
    plain = _shaped(fields, MuteCreate)
    starts_ms = plain.starts_ms if isinstance(plain.starts_ms, int) else bounds.now_ms
    draft = MuteDraft(
        matchers=tuple(plain.matchers or ()),
        all=plain.all is True,
        starts_ms=max(starts_ms, bounds.now_ms),
        ends_ms=plain.ends_ms if isinstance(plain.ends_ms, int) else None,
        windows=tuple(plain.windows or ()),
        zone=plain.zone or "UTC",
        comment=plain.comment,
    )
    _check(draft)
    return draft


def mute_edit(fields: Mapping[str, Any], bounds: Bounds) -> MuteEdit:
    """The row as a PATCH wants it: null takes a default, or takes the end away; no zone is the default, too."""
    plain = _shaped(fields, MutePatch)
    empty: dict[str, Any] = {"matchers": (), "all": False, "ends_ms": None, "windows": (), "zone": "UTC"}

    def edit(row: MuteRow) -> MuteRow:
        wanted: dict[str, Any] = {}
        for field in MutePatch.__struct_fields__:
            sent = getattr(plain, field)
            if sent is not UNSET and (sent is not None or field in empty):
                wanted[field] = empty[field] if sent in (None, "") else tuple(sent) if isinstance(sent, list) else sent
        if "starts_ms" in wanted:
            wanted["starts_ms"] = _start(row, wanted["starts_ms"], bounds.now_ms)
        new = msgspec.structs.replace(row, **wanted)
        if new != row:
            _check(new)
            check_end(new, bounds)
        return new

    return edit


def _start(row: MuteRow, wanted_ms: int, now_ms: int) -> int:
    """A mute that has begun goes on; one that has not may begin later, or now."""
    if row.starts_ms > now_ms:
        return max(wanted_ms, now_ms)
    if wanted_ms != row.starts_ms:
        raise invalid("starts_ms", "can't be changed: the mute has begun")
    return wanted_ms


def _check(draft: MuteDraft) -> None:
    check_matchers(draft.matchers, draft.all)
    for field, message in problems(draft.windows, draft.zone).items():
        raise invalid(field, message)
    if draft.ends_ms is None and not draft.windows:
        raise invalid("ends_ms", "is required, unless there are windows")


def check_end(draft: MuteDraft, bounds: Bounds) -> None:
    """Raises Invalid for a mute that would be over already, or would last too long."""
    begin_ms = max(draft.starts_ms, bounds.now_ms)
    if draft.ends_ms is None:
        return
    if draft.ends_ms <= begin_ms:
        raise invalid("ends_ms", "must be later than now and than starts_ms")
    if not draft.windows and draft.ends_ms - begin_ms > bounds.most_ms:
        raise invalid("ends_ms", f"must be at most {bounds.most_ms} ms away (BREAKERS_MUTE_MAX_MS)")


def check_matchers(matchers: tuple[Matcher, ...], everything: bool) -> None:
    if everything and matchers:
        raise invalid("all", "true goes with no matchers")
    if not everything and not matchers:
        raise invalid("matchers", 'is required; "all": true means everything of the project')
    for place, matcher in enumerate(matchers):
        if words := problem(matcher):
            raise invalid(f"matchers[{place}].value", words)
