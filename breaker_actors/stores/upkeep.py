"""What keeps the store and the logs bounded: which part of each log is still needed, and rows that are too old."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Select, delete, exists, select, tuple_

from breaker_actors.core.model import Record
from breaker_actors.core.records import decode_breaker
from breaker_actors.messages import LogFloor
from breaker_actors.stores import tables as t
from breaker_actors.stores.part import StorePart, chunks

PAGE = 1_000
PAGES_MAX = 20
"""A round removes at most PAGE x PAGES_MAX rows of a table; what is left goes in the next one."""

SETTLED_WITHIN_MS = 3_600_000
"""How long after it was written a change lies in the log at the latest, for what depends on its time there."""

_decode_record = msgspec.msgpack.Decoder(Record).decode


class Upkeeps(StorePart):
    async def log_floors(self) -> list[LogFloor]:
        return await self._db.read(_log_floors)

    async def prune(self, before_ms: int) -> dict[str, int]:
        removed = {}
        for name, columns in _AGED.items():
            removed[name] = 0
            query = _oldest(columns, _STANDING if name == "events" else None)
            for _ in range(PAGES_MAX):
                gone, seen = await self._db.write(
                    partial(_prune_page, query=query, key=columns[1:], before_ms=before_ms)
                )
                removed[name] += gone
                if gone == 0 or seen < PAGE:
                    break
        removed["ended_links"] = await self._db.write(_prune_ended_links)
        return removed


# Per table: the column of its age, then the key by which it grows. Rows are written about in order of age, so old ones
# are found at the beginning of the key without an index on the age.
_AGED: dict[str, tuple[Column[Any], ...]] = {
    "events": (t.events.c.ts_ms, t.events.c.shard, t.events.c.sequence),
    "backfill_events": (t.backfill_events.c.inserted_ms, t.backfill_events.c.number),
    "audit": (t.audit.c.at_ms, t.audit.c.number),
}


def _standing() -> ColumnElement[bool]:
    """The beginning of an outage that goes on: who is told of its end must have heard of it, and how long it was."""
    e, later = t.events.c, t.events.alias()
    newer = exists().where(
        later.c.breaker_id == e.breaker_id, later.c.prev == "closed", later.c.transition_seq > e.transition_seq
    )
    going_on = exists().where(t.records.c.breaker_id == e.breaker_id, t.records.c.state != "closed")
    return (e.prev == "closed") & going_on & ~newer


_STANDING = _standing()


def _oldest(columns: Sequence[Column[Any]], kept: ColumnElement[bool] | None) -> Select[Any]:
    age, *key = columns
    query = select(*key, age).order_by(*key).limit(PAGE)
    return query if kept is None else query.where(~kept)


def _prune_page(c: Connection, query: Select[Any], key: Sequence[Column[Any]], before_ms: int) -> tuple[int, int]:
    """Removes old rows among the first PAGE ones; answers how many, and how many rows were looked at."""
    rows = c.execute(query).all()
    old = [row for row in rows if row[-1] < before_ms]
    for some in chunks(old):
        c.execute(delete(key[0].table).where(tuple_(*key).in_([tuple(row[:-1]) for row in some])))
    return len(old), len(rows)


def _log_floors(c: Connection) -> list[LogFloor]:
    """Per router with a log: the smallest cut of its breakers and the earliest time that a window of them reaches. A
    change that waits may lie in the log already: nobody knows who needs it."""
    r = t.routers.c
    routers = c.execute(select(r.id, r.owner, r.log_slot).where(r.log_slot.is_not(None))).all()
    floors: dict[str, list[tuple[int, int | None]]] = {row.id: [] for row in routers}
    columns = (t.links.c.router_id, t.links.c.since_offset, t.records.c.record, t.records.c.cut, t.records.c.settings)
    query = (
        select(*columns, t.breakers.c.rule)
        .join(t.records, t.records.c.breaker_id == t.links.c.breaker_id)
        .join(t.breakers, t.breakers.c.id == t.links.c.breaker_id)
        .where(t.links.c.since_offset.is_not(None))
    )
    for row in [*c.execute(query), *_ended(c)]:
        if row.router_id in floors:
            floors[row.router_id].append(_needs(row))
    for router_id in c.execute(select(t.changes.c.router_id).distinct()).scalars():
        if router_id in floors:
            floors[router_id].append((0, None))
    return [LogFloor(row.id, row.owner or "", row.log_slot, *_lowest(floors[row.id])) for row in routers]


def _ended(c: Connection) -> Sequence[Any]:
    e = t.ended_links.c
    columns = (e.router_id, e.since_offset, t.records.c.record, t.records.c.cut, t.records.c.settings)
    query = (
        select(*columns, t.breakers.c.rule, e.breaker_id, e.until_offset, e.ended_ms)
        .join_from(t.ended_links, t.records, t.records.c.breaker_id == e.breaker_id)
        .join(t.breakers, t.breakers.c.id == e.breaker_id)
        .where(e.since_offset.is_not(None))
    )
    return c.execute(query).all()


def _prune_ended_links(c: Connection) -> int:
    """Forgets ended links that were read to their end and that no window reaches any more."""
    e, gone = t.ended_links.c, 0
    for row in _ended(c):
        offset, since_ms = _needs(row)
        if row.until_offset is None or offset < row.until_offset or since_ms is None:
            continue
        if since_ms > row.ended_ms + SETTLED_WITHIN_MS:
            mine = (e.breaker_id == row.breaker_id) & (e.router_id == row.router_id)
            gone += c.execute(delete(t.ended_links).where(mine, e.until_offset == row.until_offset)).rowcount
    return gone


def _needs(row: Any) -> tuple[int, int | None]:
    """The offset up to which a breaker has read, and the time its window reaches back to (None: it holds nothing)."""
    offset = row.cut.get(row.router_id, row.since_offset)
    if row.record is None:
        return offset, None
    told = None if row.settings is None else decode_breaker(row.settings).rule
    window_ms = max(row.rule.window_ms, 0 if told is None else told.window_ms)
    return offset, _decode_record(row.record).now_ms - window_ms


def _lowest(needs: Sequence[tuple[int, int | None]]) -> tuple[int | None, int | None]:
    offsets = [offset for offset, _ in needs]
    times = [since for _, since in needs if since is not None]
    return min(offsets, default=None), min(times, default=None)
