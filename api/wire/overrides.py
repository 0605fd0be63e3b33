"""Overrides on the wire: what a request asks for, the edit of a breaker that follows, and how one is shown. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.wire.http import matches
from api.wire.query import instant_ms
from api.wire.requests import invalid, shape
from api.wire.requests_mutes import check_matchers
from api.wire.responses import Answer, OverrideShown, list_of, override_fields, shown_override
from api.wire.types import Count, Moment, Ms, Rate, Uuid, default
from breaker_actors.core.model import Control, Override, OverrideKind
from breaker_actors.core.overlay import in_force
from breaker_actors.errors import PreconditionFailed
from breaker_actors.notify.channels.wording import duration
from breaker_actors.store.base import Edit
from breaker_actors.store.mutes.matching import MATCHERS_MAX, OF_BREAKER, Matcher
from breaker_actors.store.rows import BreakerRow

FOR_MS = 3_600_000
"""How long an override lasts when nothing is said: an hour."""
FOR_MS_MIN = 1_000
SAME_MS = 10_000
"""An override that was asked for again within so long of the first time is the same one."""
REASON_CHARS_MAX = 500
FIELDS = "Expected name, id, metric, kind, metadata.KEY or router.KEY; callers see an override: it knows no channels"
_OF_BREAKER = re.compile(OF_BREAKER)
NONE_TAG = "0"
"""What a breaker without an override is known by."""

Reason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX, examples=["dependency is being moved"])]
Said = Annotated[Reason, Meta(extra_json_schema={"pattern": r"\S"})]
"""A reason that is more than blanks."""


class OverrideMatcher(Matcher, frozen=True, kw_only=True):
    """`field`: name, id, metric, kind, metadata.KEY or router.KEY. A glob knows * and ? alone."""

    # Described here, checked by matchers_of: `channel` is refused in words of its own.
    field: Annotated[str, Meta(examples=["metadata.team"], extra_json_schema={"pattern": rf"\A({OF_BREAKER})\Z"})]


OverrideMatchers = Annotated[list[OverrideMatcher], Meta(max_length=MATCHERS_MAX)]


class OverrideSet(msgspec.Struct):
    """`allow_rate` belongs to throttle, which needs it. It ends after `for_ms` or at `until_ms`, which `until` says as
    a time: after an hour when none is given. `then` half_open: a ramp begins where it ends."""

    kind: OverrideKind
    reason: Said
    allow_rate: Rate | None = None
    for_ms: Annotated[int, Meta(ge=FOR_MS_MIN)] | None = None
    until_ms: Ms | None = None
    until: Moment | None = None
    then: Literal["half_open"] | None = None


class OverrideMatch(msgspec.Struct, kw_only=True):
    """Breakers that all matchers match; `all` true and no matchers: all of the project. `channel` is no field here."""

    matchers: OverrideMatchers | None = None
    all: Annotated[bool, default(False)] | None = None


class OverridesSet(OverrideSet, kw_only=True):
    """An override, and the matchers of OverrideMatch."""

    matchers: OverrideMatchers | None = None
    all: Annotated[bool, default(False)] | None = None


class OverridesEnd(OverrideMatch, kw_only=True):
    reason: Reason | None = None


class OverridesChanged(Answer, kw_only=True):
    """`matches`: breakers that were meant; `changed`: those of them that were not so already."""

    matches: Count
    changed: Count


class BreakerOverride(Answer, kw_only=True):
    """The override of a breaker; null: there is none."""

    breaker_id: Uuid
    override: OverrideShown | None


class OverrideItem(OverrideShown, kw_only=True):
    breaker_id: Uuid
    name: str


OverrideList = list_of("OverrideList", "overrides", OverrideItem, count=Count)


def override_item(row: BreakerRow, override: Override) -> OverrideItem:
    return OverrideItem(**override_fields(override), breaker_id=row.id, name=row.name)


def breaker_override(row: BreakerRow, now_ms: int) -> BreakerOverride:
    return BreakerOverride(breaker_id=row.id, override=shown_override(active(row, now_ms)))


def active(row: BreakerRow, now_ms: int) -> Override | None:
    """The override of a breaker, unless it is over."""
    return in_force(row.controls, now_ms)


def override_tag(override: Override | None) -> str:
    """What an override is known by in entity tags."""
    return NONE_TAG if override is None else str(override.version)


def matchers_of(fields: Mapping[str, Any]) -> tuple[Matcher, ...]:
    """The matchers of a body; none: all breakers. Raises Invalid."""
    plain = shape(fields, OverrideMatch)
    matchers = tuple(plain.matchers or ())
    check_matchers(matchers, plain.all is True)
    for place, matcher in enumerate(matchers):
        if not _OF_BREAKER.fullmatch(matcher.field):
            raise invalid(f"matchers[{place}].field", FIELDS)
    return matchers


def end_reason(fields: Mapping[str, Any]) -> str | None:
    """Why overrides are ended."""
    return shape(fields, OverridesEnd).reason


def asked_override(fields: Mapping[str, Any], by: str, now_ms: int, most_ms: int) -> Override:
    """The override that a body asks for, of version 0. Raises Invalid, also where it lasts longer than `most_ms`."""
    plain = shape(fields, OverrideSet)
    if plain.kind == "throttle" and plain.allow_rate is None:
        raise invalid("allow_rate", "is required for a throttle, between 0 and 1")
    if plain.kind != "throttle" and plain.allow_rate is not None:
        raise invalid("allow_rate", "belongs to a throttle")
    if not plain.reason.strip():
        raise invalid("reason", "is required")
    field, until_ms = _end(plain, now_ms, most_ms)
    if until_ms - now_ms > most_ms:
        raise invalid(
            field, f"An override of this project lasts at most {most_ms} ms, {duration(most_ms)} (override_max_ms)"
        )
    if until_ms <= now_ms:
        raise invalid(field, "It would be over already")
    return Override(
        kind=plain.kind,
        reason=plain.reason.strip(),
        by=by,
        since_ms=now_ms,
        until_ms=until_ms,
        version=0,
        allow_rate=plain.allow_rate if plain.kind == "throttle" else None,
        then=plain.then,
    )


def _end(plain: OverrideSet, now_ms: int, most_ms: int) -> tuple[str, int]:
    """When the override ends, after the field that says so; for_ms where none does. Raises Invalid."""
    field, until_ms = "until_ms", plain.until_ms
    if plain.until is not None:
        field, until_ms = "until", instant_ms(plain.until)
        if until_ms is None:
            raise invalid("until", "Expected an RFC 3339 time, such as 2026-11-21T06:29:55Z")
        if plain.until_ms not in (None, until_ms):
            raise invalid("until", f"is {until_ms} ms, and until_ms says another time: give one of them")
    if until_ms is None:
        return "for_ms", now_ms + (plain.for_ms or min(FOR_MS, most_ms))
    if plain.for_ms is not None:
        raise invalid(field, f"Give for_ms or {field}")
    return field, until_ms


def setting(asked: Override, if_match: str | None, now_ms: int) -> Edit:
    """The edit that puts an override in force. One that is in force already, asked for again, stays as it is."""

    def edit(row: BreakerRow) -> BreakerRow:
        known = active(row, now_ms)
        _check(if_match, known)
        if known is not None and _same(known, asked):
            return row
        override = msgspec.structs.replace(asked, version=row.version + 1)
        return _with(row, override, None, None)

    return edit


def ending(if_match: str | None, by: str, comment: str | None, now_ms: int) -> Edit:
    """The edit that ends the override in force; without one nothing changes."""

    def edit(row: BreakerRow) -> BreakerRow:
        known = active(row, now_ms)
        _check(if_match, known)
        return row if known is None else _with(row, None, by, comment)

    return edit


def _check(if_match: str | None, known: Override | None) -> None:
    """Raises PreconditionFailed unless the override in force is the one that the caller knows."""
    if if_match is None or (if_match.strip() == "*" and known is not None):
        return
    if if_match.strip() == "*" or not matches(if_match, override_tag(known)):
        raise PreconditionFailed(details={"override": override_tag(known)})


def _same(known: Override, asked: Override) -> bool:
    apart = abs(known.until_ms - asked.until_ms)
    return apart <= SAME_MS and all(getattr(known, name) == getattr(asked, name) for name in _SAID)


_SAID = ("kind", "reason", "by", "allow_rate", "then")


def _with(row: BreakerRow, override: Override | None, by: str | None, comment: str | None) -> BreakerRow:
    control: Control | None = Control(mode=row.controls.mode, override=override, by=by, comment=comment)
    return msgspec.structs.replace(row, control=control)
