"""Answer bodies of mutes, made of stored rows and of counts; pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from api.wire.responses import Answer, list_of, shown
from api.wire.types import Count, Ms, Uuid
from breaker_actors.store.mutes.matching import BreakerFacts, Matcher
from breaker_actors.store.mutes.schedule import Window, active_until
from breaker_actors.store.rows import MuteEnd, MuteRow, MuteState

NAMED_MAX = 20
"""Breakers that a preview names."""


class MuteCounts(msgspec.Struct, frozen=True):
    """Breakers that a mute matches, those of them that are open, and deliveries that it holds. None: not counted."""

    matches: int | None = 0
    open: int | None = 0
    holding: int = 0


class Mute(Answer, kw_only=True):
    """`active_until_ms`: when people hear again, null while they do; of a recurring one the end of its window."""

    id: Uuid
    project_id: Uuid
    state: MuteState
    active_until_ms: Ms | None
    matchers: list[Matcher]
    all: bool
    starts_ms: Ms
    ends_ms: Ms | None
    windows: list[Window]
    zone: str
    comment: str
    created_by: str
    created_name: str
    inserted_ms: Ms
    updated_ms: Ms
    ended_ms: Ms | None
    ended_reason: MuteEnd | None


class CountedMute(Mute, kw_only=True):
    """With what it mutes now; of one that has ended nothing. `matches` and `open` are null where to count them would be
    too much work for one request."""

    matches: Count | None
    open: Count | None
    holding: Count


class MuteSingle(Answer, kw_only=True):
    mute: Mute


class CountedMuteSingle(Answer, kw_only=True):
    mute: CountedMute


class MutePreviewed(Answer, kw_only=True):
    """`breakers`: names of those that match, open ones first, at most 20."""

    matches: Count
    open: Count
    breakers: list[str]


def previewed(found: Sequence[BreakerFacts]) -> MutePreviewed:
    """What matchers match now."""
    names = [breaker.name for breaker in sorted(found, key=lambda breaker: not breaker.open)]
    opened = sum(breaker.open for breaker in found)
    return MutePreviewed(matches=len(found), open=opened, breakers=names[:NAMED_MAX])


MuteList = list_of("MuteList", "mutes", CountedMute)


def mute(row: MuteRow, now_ms: int) -> Mute:
    return shown(Mute, row, **_times(row, now_ms))


def counted(row: MuteRow, counts: MuteCounts, now_ms: int) -> CountedMute:
    return shown(
        CountedMute,
        row,
        **_times(row, now_ms),
        matches=counts.matches,
        open=counts.open,
        holding=counts.holding,
    )


def _times(row: MuteRow, now_ms: int) -> dict[str, object]:
    state = row.state(now_ms)
    until_ms = active_until(row.schedule, now_ms) if state == "active" else None
    return {
        "state": state,
        "active_until_ms": until_ms,
        "matchers": list(row.matchers),
        "windows": list(row.windows),
    }
