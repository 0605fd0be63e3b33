"""Breakers: create, change, delete, list. Every write carries its change rows (design.md section 3.6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from breaker_actors.core.records import BREAKER, BreakerSet, encode_entry
from breaker_actors.errors import BreakerExists, NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.base import BreakerDraft, BreakerRow, Edit
from breaker_actors.stores.configuration import (
    BREAKER_COLUMNS,
    add_change,
    add_links,
    breaker_entry,
    current_view,
    note_stream_names,
    raise_view,
    routers_of,
    stream_names,
    view_entry,
)
from breaker_actors.stores.part import StorePart, lock_project, new_id, touch_breakers


class Breakers(StorePart):
    async def create_breaker(self, project_id: str, draft: BreakerDraft, now_ms: int) -> tuple[BreakerRow, list[int]]:
        return await self._db.write(lambda c: _create(c, project_id, draft, now_ms))

    async def update_breaker(
        self, project_id: str, breaker_id: str, edit: Edit, now_ms: int
    ) -> tuple[BreakerRow, list[int]]:
        return await self._db.write(lambda c: _update(c, project_id, breaker_id, edit, now_ms))

    async def delete_breaker(self, project_id: str, breaker_id: str, now_ms: int) -> list[int]:
        return await self._db.write(lambda c: _delete(c, project_id, breaker_id, now_ms))

    async def list_breakers(self, project_id: str) -> tuple[list[BreakerRow], int]:
        return await self._db.read(lambda c: _list(c, project_id))

    async def get_breaker(self, project_id: str, breaker_id: str) -> BreakerRow | None:
        return await self._db.read(lambda c: load_breaker(c, project_id, breaker_id))


def load_breaker(c: Connection, project_id: str, breaker_id: str) -> BreakerRow | None:
    query = select(*BREAKER_COLUMNS).where(t.breakers.c.id == breaker_id, t.breakers.c.project_id == project_id)
    found = c.execute(query).first()
    if found is None:
        return None
    return _row(found, (router.id for router in routers_of(c, breaker_id)))


def _row(found: Row[Any], router_ids: Iterable[str]) -> BreakerRow:
    return BreakerRow(**found._mapping, router_ids=tuple(router_ids))


def _list(c: Connection, project_id: str) -> tuple[list[BreakerRow], int]:
    mine = t.breakers.c.project_id == project_id
    links = (
        select(t.links.c.breaker_id, t.links.c.router_id)
        .join(t.breakers, t.breakers.c.id == t.links.c.breaker_id)
        .where(mine)
        .order_by(t.links.c.number)
    )
    router_ids: dict[str, list[str]] = {}
    for breaker_id, router_id in c.execute(links):
        router_ids.setdefault(breaker_id, []).append(router_id)
    rows = c.execute(select(*BREAKER_COLUMNS).where(mine).order_by(t.breakers.c.created_ms, t.breakers.c.number)).all()
    updated = c.execute(select(t.projects.c.breakers_updated_ms).where(t.projects.c.id == project_id)).scalar()
    return [_row(row, router_ids.get(row.id, ())) for row in rows], updated or 0


def _free_name(c: Connection, project_id: str, breaker_id: str) -> str:
    short = f"breaker-{breaker_id[:8]}"
    return f"breaker-{breaker_id}" if stream_names(c, project_id, [short]) else short


def _create(c: Connection, project_id: str, draft: BreakerDraft, now_ms: int) -> tuple[BreakerRow, list[int]]:
    lock_project(c, project_id)
    breaker_id, router_id = draft.id or new_id(), new_id()
    row = BreakerRow(
        id=breaker_id,
        project_id=project_id,
        name=draft.name or _free_name(c, project_id, breaker_id),
        rule=draft.rule,
        actions=draft.actions,
        metadata=dict(draft.metadata),
        version=1,
        created_ms=now_ms,
        updated_ms=now_ms,
        router_ids=(router_id,),
    )
    names = stream_names(c, project_id, [row.name])
    after_seq = _insert_breaker(c, row)
    router = _insert_system_router(c, row, router_id)
    born = BreakerSet(breaker_id=row.id, version=1, name=row.name, rule=row.rule, created=True, after_seq=after_seq)
    entries = ((BREAKER, encode_entry(born)), view_entry(current_view(c, router)))
    change = add_change(c, router, entries, links=(breaker_id,))
    note_stream_names(c, project_id, names, stream_names(c, project_id, [row.name]), now_ms)
    touch_breakers(c, project_id, now_ms)
    return row, [change]


def _insert_breaker(c: Connection, row: BreakerRow) -> int:
    """The breaker and its runtime record; returns the transition_seq a re-created id goes on from."""
    if c.execute(select(t.breakers.c.id).where(t.breakers.c.id == row.id)).first() is not None:
        raise BreakerExists(details={"breaker_id": row.id})
    values = {column.name: getattr(row, column.name) for column in BREAKER_COLUMNS}
    try:
        c.execute(insert(t.breakers).values(values | {"epoch": 0}))
    except IntegrityError:
        # Another project took the id after our look: possible where writers of two projects run side by side.
        raise BreakerExists(details={"breaker_id": row.id}) from None
    newest = select(func.max(t.events.c.transition_seq)).where(t.events.c.breaker_id == row.id)
    after_seq = c.execute(newest).scalar() or 0
    c.execute(
        insert(t.records).values(breaker_id=row.id, transition_seq=after_seq, state="closed", allow_rate=1.0, cut={})
    )
    return after_seq


def _insert_system_router(c: Connection, row: BreakerRow, router_id: str) -> Row[Any]:
    """The router that is made with a breaker and goes with it."""
    c.execute(
        insert(t.routers).values(
            id=router_id,
            project_id=row.project_id,
            name=row.name,
            mode="static",
            enabled=True,
            created_by="system",
            metadata={},
            version=1,
            inserted_ms=row.created_ms,
            epoch=0,
        )
    )
    add_links(c, router_id, [row.id])
    return c.execute(select(t.routers).where(t.routers.c.id == router_id)).one()


def _existing(c: Connection, project_id: str, breaker_id: str) -> BreakerRow:
    lock_project(c, project_id)
    row = load_breaker(c, project_id, breaker_id)
    if row is None:
        raise NotFound("no such breaker", {"breaker_id": breaker_id})
    return row


def _update(c: Connection, project_id: str, breaker_id: str, edit: Edit, now_ms: int) -> tuple[BreakerRow, list[int]]:
    row = _existing(c, project_id, breaker_id)
    wanted = edit(row)
    if wanted == row:
        return row, []
    wanted = msgspec.structs.replace(
        wanted,
        id=row.id,
        project_id=project_id,
        name=wanted.name or _free_name(c, project_id, breaker_id),
        version=row.version + 1,
        created_ms=row.created_ms,
        updated_ms=now_ms,
        router_ids=row.router_ids,
    )
    both = [row.name, wanted.name]
    names = stream_names(c, project_id, both)
    routers = routers_of(c, breaker_id)
    # Views of large routers are dear: they are compared only when something they are made of has changed.
    visible = (row.name, row.rule.metric) != (wanted.name, wanted.rule.metric)
    before = {router.id: current_view(c, router).links for router in routers} if visible else {}
    values = {column.name: getattr(wanted, column.name) for column in BREAKER_COLUMNS}
    c.execute(update(t.breakers).where(t.breakers.c.id == breaker_id).values(values))
    note_stream_names(c, project_id, names, stream_names(c, project_id, both), now_ms)
    touch_breakers(c, project_id, now_ms)
    changes = []
    for router in routers:
        entries = [breaker_entry(wanted)]
        if visible and current_view(c, router).links != before[router.id]:
            entries.append(view_entry(raise_view(c, router)))
        changes.append(add_change(c, router, entries))
    return wanted, changes


def _delete(c: Connection, project_id: str, breaker_id: str, now_ms: int) -> list[int]:
    row = _existing(c, project_id, breaker_id)
    names = stream_names(c, project_id, [row.name])
    routers = routers_of(c, breaker_id)
    c.execute(delete(t.links).where(t.links.c.breaker_id == breaker_id))
    c.execute(delete(t.records).where(t.records.c.breaker_id == breaker_id))
    c.execute(delete(t.breakers).where(t.breakers.c.id == breaker_id))
    note_stream_names(c, project_id, names, stream_names(c, project_id, [row.name]), now_ms)
    touch_breakers(c, project_id, now_ms)
    end = BreakerSet(breaker_id=row.id, version=row.version + 1, name=row.name, rule=None)
    changes = []
    for router in routers:
        view = raise_view(c, router)
        changes.append(add_change(c, router, ((BREAKER, encode_entry(end)), view_entry(view))))
        if router.created_by == "system" and not view.links:
            c.execute(update(t.routers).where(t.routers.c.id == router.id).values(deleted_ms=now_ms))
    return changes
