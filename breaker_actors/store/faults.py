"""What is wrong with what is stored: rows, their order, pairs and counts. Sync functions over a `Connection`, each in
the read transaction of its caller; they read everything once, in pages, and change nothing.

Retention removes the oldest first. So what is missing is told of as far as nothing younger was removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    Row,
    Select,
    String,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    text,
    type_coerce,
    union_all,
)

from breaker_actors.core.model import BY_HAND, Record
from breaker_actors.core.moves import TRANSITIONS
from breaker_actors.core.overlay import shown
from breaker_actors.errors import BreakersError
from breaker_actors.messages import Fault, FaultKind, LogRead, MoreFaults
from breaker_actors.store import tables as t
from breaker_actors.store.checksums import is_as_written, record_checksum
from breaker_actors.store.config.channels import config_place
from breaker_actors.store.config.projects import secret_place, slack_place
from breaker_actors.store.outbox.payloads import UNITS
from breaker_actors.store.quotas import DELIVERIES_DROPPED, DROPPED, UNSENT
from breaker_actors.store.rows import alert_of, is_told_later
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.section import DAY_MS

TOLD_MAX = 100
"""Faults told of each kind and project; the others are counted, so that one project's don't hide another's."""
FILE_MAX = 10_000
"""Faults of SQLite's file that are counted."""
PAGE = 1_000
MARGIN_MS = 3_600_000
"""So much younger than the retention is what it has not removed for certain."""
SEVERAL, CUT = "several routers", "windows cut for want of memory"
"""Why the log of one router does not tell all that a breaker did."""
BACK_MS = 60_000
"""So far a clock may go back."""
NOTICED_MS = 1_000
"""Clocks may be so far apart: a channel that was changed earlier was known to who stored an event."""

_decode_record = msgspec.msgpack.Decoder(Record).decode


class Kept(NamedTuple):
    """What nothing was removed of: events and deliveries after these times (ms)."""

    events_ms: float
    deliveries_ms: float


class Found(NamedTuple):
    """At most TOLD_MAX faults of each kind and project, and how many more there are."""

    told: list[Fault]
    more: list[MoreFaults]


def faults(c: Connection, box: SecretBox, now_ms: int, retention_days: int) -> Found:
    """Everything but what logs say."""
    counters = {row.name: row.value for row in c.execute(select(t.counters))}
    since_ms = now_ms - retention_days * DAY_MS + MARGIN_MS
    kept = Kept(
        float("inf") if counters.get(DROPPED) else since_ms,
        float("inf") if counters.get(DELIVERIES_DROPPED) or counters.get(UNSENT) else since_ms,
    )
    sorts: tuple[Callable[[], Iterator[Fault]], ...] = (
        lambda: _file(c),
        lambda: _unreadable(c),
        lambda: _sealed(c, box),
        lambda: _events(c, kept),
        lambda: _states(c),
        lambda: _deliveries(c, kept),
        lambda: _untold(c, kept),
        lambda: _counts(c),
    )
    return told_of(fault for sort in sorts for fault in sort())


def told_of(found: Iterator[Fault]) -> Found:
    """The first TOLD_MAX of each kind and project; the others as a number."""
    told: list[Fault] = []
    counts: Counter[tuple[FaultKind, str]] = Counter()
    for fault in found:
        counts[fault.kind, fault.project_id] += 1
        if counts[fault.kind, fault.project_id] <= TOLD_MAX:
            told.append(fault)
    return Found(told, [MoreFaults(*of, count - TOLD_MAX) for of, count in counts.items() if count > TOLD_MAX])


def log_reads(c: Connection) -> list[LogRead]:
    """Every router that has a log."""
    r, links = t.routers.c, t.links.c
    found: dict[str, list[int]] = {}
    linked = select(links.router_id, links.since_offset, t.records.c.cut)
    linked = linked.join_from(t.links, t.records, t.records.c.breaker_id == links.breaker_id)
    for row in _rows(c, linked.where(links.since_offset.is_not(None))):
        found.setdefault(row.router_id, []).append(max(row.since_offset, (row.cut or {}).get(row.router_id, 0)))
    slots = select(r.id, r.log_slot, r.project_id, r.reached_offset).where(r.log_slot.is_not(None)).order_by(r.number)
    return [
        LogRead(id_, slot, project_id, max([reached, *found.get(id_, ())]), min(found.get(id_, ()), default=None))
        for id_, slot, project_id, reached in c.execute(slots)
    ]


def beyond(c: Connection, read: LogRead, view_version: int, told: Mapping[str, tuple[int, int, bool]]) -> list[Fault]:
    """What a log has of configuration that the database does not know: the version of its last routing table, and by
    breaker the last settings (offset, version, whether they end it). Of a log that was read before this transaction
    began. What it has of before the link that the breaker has now is of an earlier life."""
    r, b, links = t.routers.c, t.breakers.c, t.links.c
    found: list[Fault] = []
    known = c.execute(select(r.version).where(r.id == read.router_id)).scalar()
    if known is not None and view_version > known:
        words = f"its log has version {view_version} of the routing table, the database {known}: the database is older"
        found.append(Fault("configuration", read.router_id, words, read.project_id))
    mine = select(b.id, b.version, links.since_offset).join_from(t.links, t.breakers, b.id == links.breaker_id)
    mine = mine.where(links.router_id == read.router_id, links.since_offset.is_not(None)).order_by(links.number)
    for row in _rows(c, mine):
        id_, version, since = row.id, row.version, row.since_offset
        if id_ in told and is_told_later(told[id_], since, version):
            _, at, ended = told[id_]
            has = "its end" if ended else f"version {at} of its settings"
            words = f"the log of router {read.router_id} has {has}, the database version {version}"
            found.append(Fault("configuration", id_, f"{words}: the database is older", read.project_id))
    return found


def newest_events(c: Connection) -> dict[int, int]:
    """The sequence of the newest event of each shard: a bound for `moves_of`."""
    e = t.events.c
    return {shard: newest for shard, newest in c.execute(select(e.shard, func.max(e.sequence)).group_by(e.shard))}


def moves_of(c: Connection, project_id: str, breaker_id: str, upto: Mapping[int, int]) -> list[tuple[Any, ...]]:
    """A breaker's events up to a sequence of its shard, oldest first: transition_seq, prev, curr, ts_ms, reason,
    allow_rate, value, agg, hidden_by, by, comment."""
    e = t.events.c
    before = or_(false(), *((e.shard == shard) & (e.sequence <= newest) for shard, newest in sorted(upto.items())))
    mine = (e.project_id == project_id) & (e.breaker_id == breaker_id) & before
    figures = (e.reason, e.allow_rate, e.value, e.agg)
    columns = (e.transition_seq, e.prev, e.curr, e.ts_ms, *figures, e.hidden_by, e.by, e.comment)
    return [tuple(row) for row in c.execute(select(*columns).where(mine).order_by(e.transition_seq))]


def _rows(c: Connection, query: Select[Any]) -> Iterator[Row[Any]]:
    yield from c.execute(query.execution_options(yield_per=PAGE))


def _file(c: Connection) -> Iterator[Fault]:
    """SQLite looks at its own file; PostgreSQL's pages have checksums of their own."""
    if c.dialect.name != "sqlite":
        return
    for (words,) in c.execute(text(f"PRAGMA integrity_check({FILE_MAX})")).all():
        if words != "ok":
            yield Fault("file", "breakers.sqlite", words)
    for table, _, parent, _ in c.execute(text("PRAGMA foreign_key_check")).all():
        yield Fault("configuration", table, f"a row of {table} names one of {parent} that is not there")


def _unreadable(c: Connection) -> Iterator[Fault]:
    for table in t.metadata.sorted_tables:
        key = list(table.primary_key.columns)
        project_id = table.columns.get("project_id", literal(""))
        for column in table.columns:
            if isinstance(kind := column.type, t.JsonText):
                text_of = type_coerce(column, String).label("text")
                query = select(*key, project_id.label("of_project"), text_of).where(column.is_not(None))
                for row in _rows(c, query):
                    if words := kind.fault(row.text):
                        place = f"{table.name}.{column.name} {' '.join(map(str, row[:-2]))}"
                        yield Fault("configuration", place, f"can't be read: {words}", row.of_project or "")


def _sealed(c: Connection, box: SecretBox) -> Iterator[Fault]:
    """Each with the place that it is sealed for."""
    p, ch = t.projects.c, t.channels.c
    for row in _rows(c, select(p.id, p.ingest_secret, p.previous_secret, p.slack_webhook_url)):
        for sealed in (row.ingest_secret, row.previous_secret):
            yield from _shut(box, sealed, secret_place(row.id), row.id, row.id)
        yield from _shut(box, row.slack_webhook_url, slack_place(row.id), row.id, row.id)
    for row in _rows(c, select(ch.id, ch.project_id, ch.config)):
        yield from _shut(box, row.config, config_place(row.id), row.id, row.project_id)


def _shut(box: SecretBox, sealed: bytes | None, place: str, of: str, project_id: str) -> Iterator[Fault]:
    try:
        if sealed is not None:
            box.unseal(sealed, place)
    except (BreakersError, ValueError) as error:
        yield Fault("configuration", of, str(error), project_id)


def _events(c: Connection, kept: Kept) -> Iterator[Fault]:
    """Each breaker's are as they were written, numbered without a hole, by moves that there are, each from where the
    last one led; its state is where the last one led."""
    e, r, b = t.events.c, t.records.c, t.breakers.c
    query = select(t.events, r.transition_seq.label("at"), r.state, r.event_checksum, b.created_ms)
    query = query.outerjoin(t.breakers, (b.id == e.breaker_id) & (b.project_id == e.project_id))
    query = query.outerjoin(t.records, r.breaker_id == b.id)
    query = query.order_by(e.breaker_id, e.project_id, e.transition_seq)
    for (breaker_id, project_id), events in groupby(_rows(c, query), lambda row: (row.breaker_id, row.project_id)):
        before = seen = None  # the event before, and the one before that callers saw
        for event in events:
            whole = before is not None and _goes_on(event, before)
            for words in (*_event_words(event, before, kept), *_move_words(event, seen if whole else None)):
                yield Fault("event", breaker_id, words, project_id)
            before = event
            seen = event if event.hidden_by is None else seen if whole else None
        if before is not None and before.at is not None and not _led_to(before, seen):
            words = f"its state is {before.state} after transition {before.at}, its last event leads to"
            words = f"{words} {(seen or before).curr} with transition {before.transition_seq}"
            yield Fault("state", breaker_id, words, project_id)
        elif before is not None and before.event_checksum not in (None, before.checksum):
            words = f"event {before.transition_seq} is not the one that its state was stored with"
            yield Fault("state", breaker_id, words, project_id)


def _led_to(event: Row[Any], seen: Row[Any] | None) -> bool:
    """Whether the state of its breaker is where its last event led, that callers saw; one that was made anew since has
    none of its own, and begins closed. `seen` None: that one is not known any more."""
    if event.at != event.transition_seq:
        return False
    anew = event.event_checksum is None and (event.checksum is not None or _may_be_new(event, event))
    return seen is None or event.state == seen.curr or (event.state == "closed" and anew)


def _goes_on(event: Row[Any], before: Row[Any]) -> bool:
    """Whether an event is the next one of the same breaker."""
    return event.transition_seq == before.transition_seq + 1 and not _begins_anew(event, before)


def _begins_anew(event: Row[Any], before: Row[Any]) -> bool:
    """Whether the breaker of an event was made again after the one before: what is written first of it goes on from no
    other. No time tells that: the clock that it was made by may have been hours behind. Events without checksums (of
    before version 0017) tell nothing: its time of creation does."""
    if before.checksum is not None:
        return event.before is None and event.checksum is not None
    return event.prev == "closed" and _may_be_new(event, before)


def _may_be_new(event: Row[Any], before: Row[Any]) -> bool:
    """Whether the breaker of an event was made after an earlier one, by its clock, or is not there any more to tell."""
    return event.created_ms is None or bool(event.created_ms > before.ts_ms - BACK_MS)


def _event_words(event: Row[Any], before: Row[Any] | None, kept: Kept) -> Iterator[str]:
    seq = event.transition_seq
    if event.checksum is not None and not is_as_written(event._asdict()):
        yield f"event {seq} is not what was written"
    by_hand = event.reason in BY_HAND and event.hidden_by is None
    if event.prev == event.curr if by_hand else (event.prev, event.curr) not in TRANSITIONS:
        yield f"event {seq} moves from {event.prev} to {event.curr}, which no breaker does"
    if {"closed": 1.0, "open": 0.0}.get(event.curr, event.allow_rate) != event.allow_rate:
        yield f"event {seq} has allow_rate {event.allow_rate} while {event.curr}"
    if before is not None and seq != before.transition_seq + 1:
        if before.ts_ms > kept.events_ms:
            yield f"event {before.transition_seq + 1} is missing"
        return
    begins = seq == 1 if before is None else _begins_anew(event, before)
    if begins and event.prev != "closed" and event.hidden_by is None:  # a ramp may begin without a move
        yield f"event {seq} moves from {event.prev}: a breaker begins closed"
    if before is None:
        return
    if event.before != before.checksum and not begins:
        yield f"event {seq} was written behind another event {before.transition_seq} than the one that is there"
    if event.ts_ms < before.ts_ms and not begins:  # another's log may have been ahead
        yield f"event {seq} happened before event {before.transition_seq}"
    if event.sequence < before.sequence:
        yield f"event {seq} was stored before event {before.transition_seq}"


def _move_words(event: Row[Any], seen: Row[Any] | None) -> Iterator[str]:
    """Of moves that callers saw each goes on where the one before led. `seen`: that one, where it is known."""
    if event.hidden_by is None and seen is not None and event.prev != seen.curr:
        yield f"event {event.transition_seq} moves from {event.prev}, event {seen.transition_seq} led to {seen.curr}"


def _states(c: Connection) -> Iterator[Fault]:
    """What is stored of a breaker is as it was written, and says the same twice."""
    query = select(t.records, t.breakers.c.project_id).where(t.records.c.record.is_not(None))
    for row in _rows(c, query.outerjoin(t.breakers, t.breakers.c.id == t.records.c.breaker_id)):
        of = row.project_id or ""
        parts = (row.breaker_id, row.transition_seq, row.state, row.allow_rate, row.record, row.cut or {})
        if row.checksum is not None and row.checksum != record_checksum(*parts):
            yield Fault("state", row.breaker_id, "its record, or how far it has read, is not what was written", of)
        try:
            record = _decode_record(row.record)
        except msgspec.MsgspecError as error:
            yield Fault("state", row.breaker_id, f"its record can't be read: {error}", of)
            continue
        state = shown(record, 1.0).state
        if (state, record.transition_seq) != (row.state, row.transition_seq):
            words = f"its row says {row.state} after transition {row.transition_seq}, its record"
            yield Fault("state", row.breaker_id, f"{words} {state} after transition {record.transition_seq}", of)


def _deliveries(c: Connection, kept: Kept) -> Iterator[Fault]:
    """Each tells of an event that there is, in its words; per channel and breaker in the order of events, an end never
    without its beginning; what a mute holds back is a trip, one at a time. An outage that callers saw throttled, and
    never open, had no trip: its end is told to nobody."""
    o, e = t.outbox.c, t.events.c
    trip, move = t.outbox.alias(), t.events.alias().c
    begun = exists().where(trip.c.incident == o.incident, trip.c.channel_id == o.channel_id, trip.c.kind == "trip")
    tripped = exists().where(
        move.breaker_id == o.breaker_id,
        move.project_id == o.project_id,
        (move.sequence + 0).between(o.incident, o.sequence),  # by the index on the breaker: its moves are few
        move.curr == "open",
        move.hidden_by.is_(None),
    )
    query = select(o.id, o.channel_id, o.breaker_id, o.kind, o.sequence, o.transition_seq, o.created_ms, o.incident)
    query = query.add_columns(o.state, o.mute_id, o.ended_ms, o.project_id)
    query = query.add_columns(
        (begun | (o.sequence.is_not(None) & ~tripped)).label("begun"),
        e.prev,
        e.curr,
        e.transition_seq.label("event_seq"),
        e.hidden_by,
    )
    query = query.outerjoin(t.events, (e.shard == o.shard) & (e.sequence == o.sequence))
    query = query.order_by(o.channel_id, o.breaker_id, o.number)
    for (channel_id, _), rows in groupby(_rows(c, query), lambda row: (row.channel_id, row.breaker_id)):
        before = held = None
        for row in rows:
            for words in (*_delivery_words(row, before, kept), *_muted_words(row, held)):
                words = f"delivery {row.id} of breaker {row.breaker_id} {words}"
                yield Fault("delivery", channel_id, words, row.project_id)
            held = row if row.state == "held" else held
            before = row if row.sequence is not None else before


def _kind_of(event: Row[Any]) -> str | None:
    """The kind of the deliveries of an event."""
    alert = alert_of(event.prev, event.curr)
    return alert if event.hidden_by is None else "observed" if alert and event.hidden_by == "observe" else None


def _delivery_words(row: Row[Any], before: Row[Any] | None, kept: Kept) -> Iterator[str]:
    if row.sequence is not None:
        if row.event_seq is None:
            if row.created_ms > kept.events_ms:
                yield "tells of an event that is not there"
        elif (row.kind, row.transition_seq) != (_kind_of(row), row.event_seq):
            yield f"tells of a {row.kind} with transition {row.transition_seq}, its event is another one"
        if before is not None and before.transition_seq >= row.transition_seq:
            yield f"comes behind that of transition {before.transition_seq}"
    if row.kind != "trip" and row.incident is not None and not row.begun and row.created_ms > kept.deliveries_ms:
        yield "tells of the end of an outage, none tells of its beginning"


def _muted_words(row: Row[Any], held: Row[Any] | None) -> Iterator[str]:
    """`held`: the one before it that a mute holds back."""
    if row.state in ("held", "suppressed") and row.mute_id is None:
        yield f"is {row.state}, and no mute is named"
    if row.state == "held" and (row.kind != "trip" or row.ended_ms is not None):
        yield "is held, and is no trip that waits"
    if row.state == "suppressed" and row.ended_ms is None:
        yield "is suppressed, and has not ended"
    if row.state == "held" and held is not None:
        yield f"is held behind {held.id}, which is held as well"


def _untold(c: Connection, kept: Kept) -> Iterator[Fault]:
    """Events that a channel takes, and has no delivery of. Channels that were changed since are passed over."""
    if kept.deliveries_ms == float("inf"):
        return
    e, ch, o = t.events.c, t.channels.c, t.outbox.c
    query = select(e.project_id, e.breaker_id, e.transition_seq, e.prev, e.curr, ch.id, ch.events)
    query = query.join_from(t.events, t.channels, ch.project_id == e.project_id).where(e.hidden_by.is_(None))
    query = query.where(ch.enabled, ch.updated_ms < e.ts_ms - NOTICED_MS, e.ts_ms > kept.deliveries_ms)
    query = query.where(~exists().where(o.shard == e.shard, o.sequence == e.sequence, o.channel_id == ch.id))
    for row in _rows(c, query):
        if (kind := alert_of(row.prev, row.curr)) in row.events:
            words = f"no delivery tells of the {kind} of breaker {row.breaker_id} with transition {row.transition_seq}"
            yield Fault("delivery", row.id, words, row.project_id)


def _counts(c: Connection) -> Iterator[Fault]:
    """The running counts of events and deliveries are those of the rows."""
    for what, table in (("events", t.events), ("deliveries", t.outbox)):
        of = table.c.project_id
        there = Counter({project_id: n for project_id, n in c.execute(select(of, func.count()).group_by(of))})
        if table is t.outbox:
            p = t.alert_payloads.c
            units = c.execute(select(p.project_id, func.sum(UNITS)).group_by(p.project_id))
            there.update({project_id: int(n) for project_id, n in units})
        stored = select(t.stored.c.of_id, t.stored.c.used).where(t.stored.c.what == what)
        counted = {of_id: used for of_id, used in c.execute(stored)}
        for project_id in (row.id for row in _rows(c, select(t.projects.c.id))):
            if there.get(project_id, 0) != counted.get(project_id, 0):
                words = f"{there.get(project_id, 0)} {what} are there, {counted.get(project_id, 0)} are counted"
                yield Fault("count", project_id, words, project_id)


def incomparable(c: Connection, breaker_ids: Sequence[str]) -> dict[str, str]:
    """Those of these breakers that one log does not tell all of, and why: they hang on several routers, or were linked
    to another one by hand; or their windows were cut for the memory that all share."""
    found: dict[str, str] = {}
    for id_ in breaker_ids:
        if _several_routers(c, id_):
            found[id_] = SEVERAL
        elif _was_cut(c, id_):
            found[id_] = CUT
    return found


def on_several_routers(c: Connection) -> set[str]:
    """The breakers that hang on several routers, or did of late."""
    of_links, ended = t.links.c, t.ended_links.c
    linked = union_all(
        select(of_links.breaker_id, of_links.router_id), select(ended.breaker_id, ended.router_id)
    ).subquery()
    routers = func.count(linked.c.router_id.distinct())
    return set(c.execute(select(linked.c.breaker_id).group_by(linked.c.breaker_id).having(routers > 1)).scalars())


def _several_routers(c: Connection, breaker_id: str) -> bool:
    a, links, ended = t.audit.c, t.links.c, t.ended_links.c
    routers = set(c.execute(select(links.router_id).where(links.breaker_id == breaker_id)).scalars())
    routers |= set(c.execute(select(ended.router_id).where(ended.breaker_id == breaker_id)).scalars())
    noted = select(a.number).where(a.action == "router.link", type_coerce(a.after, String).contains(breaker_id))
    return len(routers) > 1 or c.execute(noted.limit(1)).first() is not None


def _was_cut(c: Connection, breaker_id: str) -> bool:
    record = c.execute(select(t.records.c.record).where(t.records.c.breaker_id == breaker_id)).scalar()
    return record is not None and _decode_record(record).truncated_count > 0
