"""What mutes hold back, as the Notifier looks after it under its epoch: the release of what stands when nothing mutes
it any more, the end of what is over, warnings before a mute ends, and mutes that match nothing.

Every look goes by what is stored now, so one that is lost, or done twice, changes nothing. Sync functions over a
`Connection`, each inside one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, Select, String, exists, func, or_, select, type_coerce, update

from breaker_actors.store import tables as t
from breaker_actors.store.alerts import warning, write_warnings
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.fencing import NOTIFIER
from breaker_actors.store.mutes.matching import BreakerFacts, matches_breaker
from breaker_actors.store.outbox.channel_queue import channels_of
from breaker_actors.store.outbox.claims import GONE
from breaker_actors.store.outbox.muting import (
    FACTS,
    HELD,
    LIVE,
    MUTE_COLUMNS,
    breaker_facts,
    channel_facts,
    facts_of,
    last_to_end,
    live_mutes,
    mute_of,
    mutes_named,
    stands,
    told_late,
)
from breaker_actors.store.rows import SYSTEM, AlertPayload, HeldLook, MutedBy, MuteEnd, MuteRow, MutesTended
from breaker_actors.store.section import bump

LOOK_MAX, ENDED_MAX, MATCHED_MAX = 500, 500, 20
"""Held deliveries, mutes that are over, and mutes that are held against their project, of one transaction."""
MUTES = "mutes"
"""The counter of changes of mutes."""
_IS_PLAIN = type_coerce(t.mutes.c.windows, String) == "[]"
"""Whether a mute has no windows, by what is stored."""


def news(c: Connection) -> tuple[int, int]:
    """What tells that held deliveries are to be looked at: the count of changes of mutes, and the newest held one."""
    changes = select(t.counters.c.value).where(t.counters.c.name == MUTES)
    newest = select(func.max(t.outbox.c.number)).where(HELD)
    return c.execute(changes).scalar() or 0, c.execute(newest).scalar() or 0


def count(c: Connection) -> int:
    return int(c.execute(select(func.count()).select_from(t.outbox).where(HELD)).scalar_one())


def _newer_trip() -> ColumnElement[bool]:
    """Whether a later trip of the same outage tells of it."""
    o, newer = t.outbox.c, t.outbox.alias()
    return exists().where(
        newer.c.incident == o.incident,
        newer.c.channel_id == o.channel_id,
        newer.c.kind == "trip",
        newer.c.number > o.number,
        newer.c.state.in_(("pending", "held", "sent")),
    )


def _page_statement() -> Select[Any]:
    o = t.outbox.c
    columns = (o.number, o.project_id, o.channel_id, o.breaker_id, o.told, o.mute_id)
    query = select(*columns, stands().label("stands"), _newer_trip().label("superseded"))
    return query.where(HELD).order_by(o.number).limit(LOOK_MAX).with_for_update(of=t.outbox)


_PAGE = _page_statement()


def look(c: Connection, epoch: int, now_ms: int, after: int) -> HeldLook:
    """Decides about the first held deliveries behind a number; each of them by itself."""
    NOTIFIER.check(c, epoch)
    rows = c.execute(_PAGE.where(t.outbox.c.number > after)).all()
    if not rows:
        return HeldLook(last=None)
    channel_ids = sorted({row.channel_id for row in rows})
    there, channels = channels_of(c, channel_ids), channel_facts(c, channel_ids)
    mutes = live_mutes(c, sorted({row.project_id for row in rows}))
    breakers = breaker_facts(c, sorted({row.breaker_id for row in rows}))
    named = mutes_named(c, (row.mute_id for row in rows))
    states: Counter[str] = Counter()
    released, times = set[str](), set[int]()
    for row in rows:
        breaker = breakers.get(row.breaker_id)
        if row.channel_id not in there:
            _end(c, row, {"state": "cancelled", "ended_ms": now_ms, "last_error": GONE}, states)
        elif breaker is None or not row.stands or row.superseded:
            _end(c, row, {"state": "suppressed", "ended_ms": now_ms}, states)
        elif found := last_to_end(mutes.get(row.project_id, ()), breaker, channels[row.channel_id], now_ms):
            times.add(found[1])
            if found[0].id != row.mute_id:
                _end(c, row, {"mute_id": found[0].id}, Counter())
        else:
            mute = named.get(row.mute_id)
            told = row.told if mute is None else told_late(row.told, mute)
            _end(c, row, {"state": "pending", "next_ms": 0, "told": told}, states)
            released.add(row.channel_id)
    return HeldLook(
        last=rows[-1].number, released=tuple(released), states=dict(states), next_ms=min(times, default=None)
    )


def _end(c: Connection, row: Any, values: Mapping[str, Any], states: Counter[str]) -> None:
    """Writes what becomes of a held delivery."""
    c.execute(update(t.outbox).where(t.outbox.c.number == row.number, HELD).values(dict(values)))
    if "state" in values:
        states[values["state"]] += 1


def tend(c: Connection, epoch: int, now_ms: int, ahead_ms: int) -> MutesTended:
    """Ends mutes that are over, and warns of those that end within `ahead_ms` while they hold something back."""
    NOTIFIER.check(c, epoch)
    m = t.mutes.c
    over = select(*MUTE_COLUMNS).where(LIVE, m.ends_ms <= now_ms).order_by(m.ends_ms).limit(ENDED_MAX)
    ended = [mute_of(row) for row in c.execute(over.with_for_update())]
    for mute in ended:
        end_mute(c, mute, "expired", mute.ends_ms or now_ms)
    unwarned = LIVE & (m.ends_ms > now_ms) & (_IS_PLAIN)
    unwarned &= or_(m.warned_ms.is_(None), m.warned_ms != m.ends_ms)
    soon = select(*MUTE_COLUMNS).where(unwarned, m.ends_ms <= now_ms + ahead_ms).order_by(m.ends_ms).limit(ENDED_MAX)
    warned: set[str] = set()
    for row in c.execute(soon.with_for_update()).all():
        warned |= _warn(c, mute_of(row), now_ms)
    running = LIVE & (m.starts_ms <= now_ms) & or_(m.ends_ms.is_(None), m.ends_ms > now_ms)
    count, oldest_ms = c.execute(select(func.count(), func.min(m.starts_ms)).where(running)).one()
    first_end = select(func.min(m.ends_ms)).where(LIVE, m.ends_ms > now_ms)
    first_warning = select(func.min(m.ends_ms)).where(unwarned, m.ends_ms > now_ms + ahead_ms)
    ends_ms, warning_ms = c.execute(first_end).scalar(), c.execute(first_warning).scalar()
    times = [ms for ms in (ends_ms, None if warning_ms is None else warning_ms - ahead_ms) if ms is not None]
    return MutesTended(
        ended=tuple(mute.id for mute in ended),
        warned=tuple(sorted(warned)),
        next_ms=min(times, default=None),
        running=count,
        oldest_ms=oldest_ms,
    )


def end_mute(c: Connection, mute: MuteRow, reason: MuteEnd, at_ms: int) -> MuteRow:
    """Ends a mute; what it held is looked at by the Notifier."""
    values = {"ended_ms": at_ms, "ended_reason": reason}
    c.execute(update(t.mutes).where(t.mutes.c.id == mute.id).values(values))
    bump(c, MUTES)
    return replace(mute, ended_ms=at_ms, ended_reason=reason)


def _warn(c: Connection, mute: MuteRow, now_ms: int) -> set[str]:
    """One row for each channel on which something waits behind the mute, once per end; PagerDuty, which knows alerts
    alone, hears nothing. The channels."""
    o = t.outbox.c
    behind = select(o.channel_id, func.count()).where(o.project_id == mute.project_id, HELD, o.mute_id == mute.id)
    waiting = {channel_id: n for channel_id, n in c.execute(behind.where(stands()).group_by(o.channel_id))}
    there = channels_of(c, sorted(waiting))
    told = AlertPayload(
        name=mute.comment, prev="closed", curr="closed", ts_ms=now_ms, reason="mute_ending", value=None, rule={}, agg={}
    )
    by = MutedBy(mute_id=mute.id, comment=mute.comment, by=mute.created_name, ends_ms=mute.ends_ms)
    rows = [
        warning(mute.project_id, id_, replace(told, muted_by=replace(by, holding=n)), mute.id)
        for id_, n in sorted(waiting.items())
        if id_ in there and there[id_].channel != "pagerduty"
    ]
    if waiting:
        c.execute(update(t.mutes).where(t.mutes.c.id == mute.id).values(warned_ms=mute.ends_ms))
    return write_warnings(c, rows)


def end_unmatched(c: Connection, epoch: int, now_ms: int, limit_ms: int, after: int) -> tuple[int | None, list[str]]:
    """Holds some mutes with an end against the breakers of their projects: notes which match, and ends those that
    matched none for `limit_ms` since they started. The number of the last one, None at the end; ids of ended ones."""
    NOTIFIER.check(c, epoch)
    m = t.mutes.c
    query = select(*MUTE_COLUMNS).where(LIVE, m.number > after, m.starts_ms <= now_ms, _IS_PLAIN)
    mutes = [mute_of(row) for row in c.execute(query.order_by(m.number).limit(MATCHED_MAX).with_for_update())]
    breakers: dict[str, list[BreakerFacts]] = {}
    ended: list[str] = []
    for mute in mutes:
        if mute.project_id not in breakers:
            breakers[mute.project_id] = project_facts(c, mute.project_id)
        if any(matches_breaker(mute.matchers, breaker) for breaker in breakers[mute.project_id]):
            c.execute(update(t.mutes).where(m.id == mute.id).values(matched_ms=now_ms))
        elif now_ms - max(mute.starts_ms, mute.matched_ms or 0) >= limit_ms:
            done = end_mute(c, mute, "matched_nothing", now_ms)
            write_down(c, Place(SYSTEM, now_ms, mute.project_id), [Note("mute.end", mute.id, mute, done)])
            ended.append(mute.id)
    return (mutes[-1].number if mutes else None), ended


def project_facts(c: Connection, project_id: str) -> list[BreakerFacts]:
    """What matchers may look at of all breakers of a project, in order of creation."""
    b, r, links = t.breakers.c, t.routers.c, t.links.c
    metadata = {id_: of for id_, of in c.execute(select(r.id, r.metadata).where(r.project_id == project_id))}
    linked = select(links.breaker_id, links.router_id).join_from(t.links, t.routers, r.id == links.router_id)
    hangs: dict[str, list[dict[str, str]]] = {}
    for breaker_id, router_id in c.execute(linked.where(r.project_id == project_id, r.deleted_ms.is_(None))):
        hangs.setdefault(breaker_id, []).append(metadata[router_id])
    query = FACTS.where(b.project_id == project_id).order_by(b.created_ms, b.number)
    return [facts_of(row, hangs.get(row.id, ())) for row in c.execute(query)]


def holding(c: Connection, project_id: str) -> dict[str, int]:
    """How many deliveries each mute of a project holds."""
    o = t.outbox.c
    query = select(o.mute_id, func.count()).where(o.project_id == project_id, HELD).group_by(o.mute_id)
    return {mute_id: n for mute_id, n in c.execute(query)}


def prune_mutes(c: Connection, before_ms: int, most: int = 1_000) -> int:
    """Forgets mutes that ended before a time, and those of projects that are gone; at most so many."""
    m = t.mutes.c
    old = select(m.number).where(m.ended_ms < before_ms).order_by(m.number).limit(most)
    numbers = list(c.execute(old).scalars())
    return c.execute(t.mutes.delete().where(m.number.in_(numbers))).rowcount if numbers else 0
