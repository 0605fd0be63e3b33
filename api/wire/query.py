"""Query strings. Mostly of an events read: filters, the window of time, and the opaque cursor."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, get_args

import msgspec

from api.auth import uuid_or_none
from api.wire.types import OWNER
from breaker_actors.clock import unix_ms
from breaker_actors.errors import BadRequest
from breaker_actors.store.rows import (
    AuditFilter,
    DeliveryQuery,
    DeliveryState,
    EventQuery,
    EventRow,
    EventSource,
    MuteState,
)

LIMIT_DEFAULT, LIMIT_MAX = 50, 200
EVENT_SOURCES: tuple[EventSource | Literal["all"], ...] = ("live", "backfill", "all")
DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
MUTE_STATES: tuple[MuteState, ...] = get_args(MuteState)
ACTION_PATTERN = r"[a-z_]{1,32}(\.[a-z_]{0,32})?"
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_CURSOR = re.compile(r"(?:([db])\.(-?[0-9]{1,18})\.([0-9]{1,18})|a\.([0-9]{1,18}))")
_NUMBER_CURSOR = re.compile(r"l\.([0-9]{1,18})")
_ACTION = re.compile(ACTION_PATTERN)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)")


def events_query(project_id: str, args: Mapping[str, str]) -> EventQuery:
    """The filter that a query string asks for; empty values count as not given, unknown keys are nobody's."""
    given = _given(args)
    floors = [_integer("since_ms", given), _before(_instant("start_time", given))]
    query = EventQuery(
        project_id=project_id,
        breaker_id=_breaker(given),
        since_ms=max((floor for floor in floors if floor is not None), default=None),
        until_ms=_instant("end_time", given),
        after_sequence=_integer("after_sequence", given),
        limit=_limit(given),
        source=_source(given),
        hidden=flag("observed", given) if "observed" in given else None,
    )
    query = _continue(query, given["cursor"]) if "cursor" in given else query
    if query.source == "all" and query.after_sequence is not None:
        raise _bad("after_sequence", "each source numbers its own: ask for live or for backfill")
    return query


def cursor_after(query: EventQuery, last: EventRow) -> str:
    """Where the next page begins; only characters that survive a URL unescaped."""
    if query.after_sequence is not None:
        return _opaque(f"a.{last.sequence}")
    return _opaque(f"{'b' if last.source == 'backfill' else 'd'}.{last.ts_ms}.{last.sequence}")


def _given(args: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in args.items() if value != ""}


def audit_query(args: Mapping[str, str]) -> tuple[int, int | None, AuditFilter]:
    """How many entries of the audit log are asked for, before which one, and which."""
    given = _given(args)
    action, target = given.get("action"), given.get("target_id")
    if action is not None and not _ACTION.fullmatch(action):
        raise _bad("action", "not the begin of an action, as breaker. or key.revoke")
    if target is not None and (target := uuid_or_none(target)) is None:
        raise _bad("target_id", "not a uuid")
    return _limit(given), _before_number(given), AuditFilter(action=action, target_id=target)


def deliveries_query(project_id: str, channel_id: str, args: Mapping[str, str]) -> DeliveryQuery:
    """Which deliveries of a channel are asked for."""
    given = _given(args)
    state = given.get("state")
    if state not in (None, *DELIVERY_STATES):
        raise _bad("state", f"not one of {', '.join(DELIVERY_STATES)}")
    return DeliveryQuery(
        project_id=project_id,
        channel_id=channel_id,
        state=state,
        before=_before_number(given),
        limit=_limit(given),
    )


def mute_state(args: Mapping[str, str]) -> MuteState | None:
    """The state of the mutes that are asked for; None: all."""
    state = _given(args).get("state")
    for known in MUTE_STATES:
        if state == known:
            return known
    if state is None:
        return None
    raise _bad("state", f"not one of {', '.join(MUTE_STATES)}")


_OWNER = re.compile(OWNER)


def owner_asked(args: Mapping[str, str], field: str = "owner") -> str | None:
    """The owner of rules that is asked for; None: nobody said."""
    owner = args.get(field) or None
    if owner is not None and not _OWNER.fullmatch(owner):
        raise _bad(field, "not an owner: at most 63 letters, digits, dots, slashes, dashes and underscores")
    return owner


def number_cursor(number: int) -> str:
    """Where the next page begins of what is ordered by a number."""
    return _opaque(f"l.{number}")


def _before_number(given: Mapping[str, str]) -> int | None:
    return int(_place(_NUMBER_CURSOR, given["cursor"]).group(1)) if "cursor" in given else None


def _opaque(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _place(pattern: re.Pattern[str], cursor: str) -> re.Match[str]:
    try:
        place = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise _bad("cursor", "not a cursor of this service") from None
    if found := pattern.fullmatch(place):
        return found
    raise _bad("cursor", "not a cursor of this service")


def _continue(query: EventQuery, cursor: str) -> EventQuery:
    letter, ts_ms, sequence, after = _place(_CURSOR, cursor).groups()
    if after:
        return msgspec.structs.replace(query, after_sequence=int(after))
    source: EventSource = "backfill" if letter == "b" else "live"
    if query.source not in ("all", source):
        raise _bad("cursor", "of another source")
    before = (int(ts_ms), int(sequence))
    return msgspec.structs.replace(query, after_sequence=None, before=before, before_source=source)


def _source(given: Mapping[str, str]) -> EventSource | Literal["all"]:
    for known in EVENT_SOURCES:
        if given.get("source", "live") == known:
            return known
    raise _bad("source", f"not one of {', '.join(EVENT_SOURCES)}")


def _bad(field: str, message: str) -> BadRequest:
    return BadRequest(f"{field}: {message}", {field: message})


def flag(field: str, args: Mapping[str, str]) -> bool:
    """true or false; named without a value it is true, absent false."""
    word = args.get(field, "false").lower()
    if word not in ("", "true", "false"):
        raise _bad(field, "not true or false")
    return word != "false"


def comment(field: str, args: Mapping[str, str], chars_max: int) -> str | None:
    """What people say of what they do; None: nothing."""
    said = args.get(field, "").strip()
    if len(said) > chars_max:
        raise _bad(field, f"longer than {chars_max} characters")
    return said or None


def span(args: Mapping[str, str], now_ms: int, length_ms: int) -> tuple[int, int]:
    """From `since_ms` to `until_ms`: to now, and so long before that, where nothing is said; not before 1970."""
    given = _given(args)
    until = _integer("until_ms", given)
    until_ms = now_ms if until is None else min(until, now_ms)
    since = _integer("since_ms", given)
    since_ms = max(0, until_ms - length_ms) if since is None else since
    if not 0 <= since_ms < until_ms:
        raise _bad("since_ms", "not before until_ms")
    return since_ms, until_ms


def overlap_ms(args: Mapping[str, str], most: int) -> int:
    """How long a rotated secret shall still count: what is asked for, at most the setting, which is the default."""
    asked = _integer("overlap_ms", _given(args))
    if asked is not None and not 0 <= asked <= most:
        raise _bad("overlap_ms", f"not between 0 and {most}")
    return most if asked is None else asked


def _integer(field: str, given: Mapping[str, str]) -> int | None:
    if field not in given:
        return None
    if not _INTEGER.fullmatch(given[field]):
        raise _bad(field, "not an integer")
    return int(given[field])


def _limit(given: Mapping[str, str]) -> int:
    limit = _integer("limit", given)
    if limit is None:
        return LIMIT_DEFAULT
    if not 1 <= limit <= LIMIT_MAX:
        raise _bad("limit", f"not between 1 and {LIMIT_MAX}")
    return limit


def _breaker(given: Mapping[str, str]) -> str | None:
    if "breaker_id" not in given:
        return None
    if (found := uuid_or_none(given["breaker_id"])) is None:
        raise _bad("breaker_id", "not a uuid")
    return found


def _instant(field: str, given: Mapping[str, str]) -> int | None:
    """Milliseconds of an RFC 3339 time; a `+` of the offset that arrived unescaped has become a space."""
    if field not in given:
        return None
    found = instant_ms(re.sub(r" (?=\d\d:?\d\d\Z)", "+", given[field]))
    if found is None:
        raise _bad(field, "not an RFC 3339 time")
    return found


def instant_ms(text: str) -> int | None:
    """Milliseconds of an RFC 3339 time, or None when it is none."""
    text = text.upper()
    try:
        # Python reads much more than RFC 3339: dates alone, weeks, times without a zone.
        return unix_ms(datetime.fromisoformat(text if _INSTANT.fullmatch(text) else ""))
    except (ValueError, OverflowError):
        return None


def _before(start_ms: int | None) -> int | None:
    """since_ms is exclusive, start_time is not."""
    return None if start_ms is None else start_ms - 1
