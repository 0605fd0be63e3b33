"""Reads of events, of both kinds, of committed states, and of what requests need to know of routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, false, func, literal, select, tuple_

from breaker_actors.errors import NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.config.change_rows import name_streams, newest_gone
from breaker_actors.store.quotas import shares
from breaker_actors.store.rows import EventQuery, EventRow, EventSource, StoredState, StreamSnapshot
from breaker_actors.store.section import IDS, StorePart, belongs, by_ids, chunks


class _EventTable(NamedTuple):
    """Where events of a source lie. `place`: the column that numbers them."""

    source: EventSource
    table: Table
    place: Column[Any]

    def columns(self) -> list[ColumnElement[Any]]:
        own = self.table.c
        found = [own[name] for name in EventRow.__struct_fields__ if name in own and name != "sequence"]
        return [*found, self.place.label("sequence"), literal(self.source).label("source")]


_EVENT_TABLES = (
    _EventTable("live", t.events, t.events.c.sequence),
    _EventTable("backfill", t.backfill_events, t.backfill_events.c.number),
)


class Reads(StorePart):
    async def events(self, query: EventQuery) -> list[EventRow]:
        statements = [_events(query, shelf) for shelf in _asked(query)]
        rows = await self._db.read(
            lambda c: [EventRow(**row._mapping) for statement in statements for row in c.execute(statement)]
        )
        if len(statements) > 1:
            rows.sort(key=lambda row: (row.ts_ms, row.source == "live", row.sequence), reverse=True)
        return rows[: query.limit]

    async def latest_event_ms(self, query: EventQuery) -> int | None:
        statements = [select(func.max(shelf.table.c.ts_ms)).where(*_filter(query, shelf)) for shelf in _asked(query)]
        found = await self._db.read(lambda c: [c.execute(statement).scalar() for statement in statements])
        return max((ts_ms for ts_ms in found if ts_ms is not None), default=None)

    async def router_modes(self, project_id: str, router_ids: Sequence[str] | None = None) -> dict[str, str]:
        r = t.routers.c
        query = select(r.id, r.mode).where(r.deleted_ms.is_(None))
        if router_ids is None:
            query = query.where(r.project_id == project_id)
            return await self._db.read(lambda c: {row.id: row.mode for row in c.execute(query)})
        query = query.where(r.id.in_(IDS), belongs(r.project_id, project_id))
        return await self._db.read(lambda c: {row.id: row.mode for row in by_ids(c, query, router_ids)})

    async def router_names(self, project_id: str) -> dict[str, str]:
        r = t.routers.c
        query = select(r.id, r.name).where(r.project_id == project_id, r.deleted_ms.is_(None)).order_by(r.number)
        return await self._db.read(lambda c: {row.id: row.name for row in c.execute(query)})

    async def router_links(self, project_id: str, router_ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        r, links = t.routers.c, t.links.c
        query = select(links.router_id, links.breaker_id).join(t.routers, r.id == links.router_id)
        query = query.where(r.id.in_(IDS), belongs(r.project_id, project_id), r.deleted_ms.is_(None))

        def work(c: Connection) -> dict[str, tuple[str, ...]]:
            found: dict[str, list[str]] = {}
            for row in by_ids(c, query.order_by(links.number), router_ids):
                found.setdefault(row.router_id, []).append(row.breaker_id)
            return {router_id: tuple(breaker_ids) for router_id, breaker_ids in found.items()}

        return await self._db.read(work)

    async def stored_states(self, project_id: str, breaker_ids: Sequence[str] | None = None) -> list[StoredState]:
        return await self._db.read(lambda c: _states(c, project_id, breaker_ids))

    async def stream_snapshot(self, project_id: str, now_ms: int) -> StreamSnapshot:
        return await self._db.read(lambda c: _snapshot(c, project_id, now_ms))


def _int64(value: int) -> int:
    """A number of a query as the database can compare it: beyond 64 bits there is nothing."""
    return max(-(2**63), min(value, 2**63 - 1))


def _asked(query: EventQuery) -> list[_EventTable]:
    return [shelf for shelf in _EVENT_TABLES if query.source in ("all", shelf.source)]


def _filter(query: EventQuery, shelf: _EventTable) -> list[ColumnElement[bool]]:
    e = shelf.table.c
    wanted = [e.project_id == query.project_id]
    if query.breaker_id is not None:
        wanted.append(e.breaker_id == query.breaker_id)
    if query.since_ms is not None:
        wanted.append(e.ts_ms > _int64(query.since_ms))
    if query.until_ms is not None:
        wanted.append(e.ts_ms <= _int64(query.until_ms))
    if query.hidden is not None:
        wanted.append(_hidden(shelf) if query.hidden else ~_hidden(shelf))
    if query.after_sequence is not None:
        wanted.append(shelf.place > _int64(query.after_sequence))
    return wanted


def _hidden(shelf: _EventTable) -> ColumnElement[bool]:
    """Of moves that callers did not see; what was loaded afterwards counts as seen."""
    return false() if shelf.source == "backfill" else shelf.table.c.hidden_by.is_not(None)


def _before(query: EventQuery, shelf: _EventTable) -> list[ColumnElement[bool]]:
    """Of what was not given yet. At equal times all that happened comes before what was loaded."""
    if query.before is None:
        return []
    ts_ms, sequence = map(_int64, query.before)
    e = shelf.table.c
    if query.before_source in (None, shelf.source):
        return [tuple_(e.ts_ms, shelf.place) < tuple_(ts_ms, sequence)]
    return [e.ts_ms < ts_ms if shelf.source == "live" else e.ts_ms <= ts_ms]


def _events(query: EventQuery, shelf: _EventTable) -> Select[Any]:
    wanted = [*_filter(query, shelf), *_before(query, shelf)]
    statement = select(*shelf.columns()).where(*wanted).limit(query.limit)
    if query.after_sequence is not None:
        return statement.order_by(shelf.place)
    return statement.order_by(shelf.table.c.ts_ms.desc(), shelf.place.desc())


def _states(c: Connection, project_id: str, breaker_ids: Sequence[str] | None) -> list[StoredState]:
    """In creation order, whatever the order of the ids."""
    b, r = t.breakers.c, t.records.c
    base = (
        select(b.id, b.name, b.rule, b.created_ms, b.control, b.number)
        .add_columns(r.state, r.allow_rate, r.transition_seq, r.record)
        .join(t.records, r.breaker_id == b.id)
        .where(b.project_id == project_id)
    )
    if breaker_ids is None:
        return [_state(row) for row in c.execute(base.order_by(b.created_ms, b.number))]
    rows = [row for some in chunks(list(dict.fromkeys(breaker_ids))) for row in c.execute(base.where(b.id.in_(some)))]
    return [_state(row) for row in sorted(rows, key=lambda row: (row.created_ms, row.number))]


def _state(row: Any) -> StoredState:
    return StoredState(
        breaker_id=row.id,
        name=row.name,
        rule=row.rule,
        created_ms=row.created_ms,
        state=row.state,
        allow_rate=row.allow_rate,
        transition_seq=row.transition_seq,
        record=row.record,
        control=row.control,
    )


def _snapshot(c: Connection, project_id: str, now_ms: int) -> StreamSnapshot:
    live = (t.projects.c.id == project_id) & t.projects.c.deleted_ms.is_(None)
    shard = c.execute(select(t.projects.c.shard).where(live)).scalar()
    if shard is None:
        raise NotFound("no such project", {"project_id": project_id})
    position = c.execute(select(t.journals.c.sequence).where(t.journals.c.shard == shard)).scalar()
    gone = newest_gone(project_id).where(t.gone_names.c.until_ms > now_ms).limit(shares(c).gone_names)
    states = _states(c, project_id, None)
    taken = name_streams((state.breaker_id, state.name) for state in states)
    return StreamSnapshot(
        position=position or 0,
        states=tuple(states),
        # sorted here: databases differ in how they sort text
        gone=tuple(sorted(name for name in c.execute(gone).scalars() if name not in taken)),
    )
