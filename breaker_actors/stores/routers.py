"""Routers: create, list, get. A router marked as deleted is invisible here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select

from breaker_actors.errors import NotFound
from breaker_actors.stores import tables as t
from breaker_actors.stores.base import BreakerRow, RouterDraft, RouterRow
from breaker_actors.stores.configuration import (
    BREAKER_COLUMNS,
    add_change,
    add_links,
    breaker_entry,
    current_view,
    linked_of,
    view_entry,
)
from breaker_actors.stores.part import StorePart, chunks, lock_project, new_id
from breaker_actors.stores.views import check_shares

_COLUMNS = [t.routers.c[f] for f in RouterRow.__struct_fields__ if f != "breaker_ids"]


class Routers(StorePart):
    async def create_router(self, project_id: str, draft: RouterDraft, now_ms: int) -> tuple[RouterRow, list[int]]:
        return await self._db.write(lambda c: _create(c, project_id, draft, now_ms))

    async def list_routers(self, project_id: str) -> list[RouterRow]:
        return await self._db.read(lambda c: _list(c, project_id))

    async def get_router(self, project_id: str, router_id: str) -> RouterRow | None:
        return await self._db.read(lambda c: _get(c, project_id, router_id))


def _live(project_id: str) -> Select[Any]:
    return select(*_COLUMNS).where(t.routers.c.project_id == project_id, t.routers.c.deleted_ms.is_(None))


def _row(found: Row[Any], breaker_ids: Iterable[str]) -> RouterRow:
    return RouterRow(**found._mapping, breaker_ids=tuple(breaker_ids))


def _get(c: Connection, project_id: str, router_id: str) -> RouterRow | None:
    found = c.execute(_live(project_id).where(t.routers.c.id == router_id)).first()
    return None if found is None else _row(found, (b.breaker_id for b in linked_of(c, router_id)))


def _list(c: Connection, project_id: str) -> list[RouterRow]:
    links = (
        select(t.links.c.router_id, t.links.c.breaker_id)
        .join(t.routers, t.routers.c.id == t.links.c.router_id)
        .where(t.routers.c.project_id == project_id)
        .order_by(t.links.c.number)
    )
    breaker_ids: dict[str, list[str]] = {}
    for router_id, breaker_id in c.execute(links):
        breaker_ids.setdefault(router_id, []).append(breaker_id)
    rows = c.execute(_live(project_id).order_by(t.routers.c.inserted_ms, t.routers.c.number)).all()
    return [_row(row, breaker_ids.get(row.id, ())) for row in rows]


def _create(c: Connection, project_id: str, draft: RouterDraft, now_ms: int) -> tuple[RouterRow, list[int]]:
    check_shares(draft.metadata)
    lock_project(c, project_id)
    linked = _breakers(c, project_id, tuple(dict.fromkeys(draft.breaker_ids)))
    router_id = new_id()
    row = RouterRow(
        id=router_id,
        project_id=project_id,
        name=draft.name or f"router-{router_id[:8]}",
        mode=draft.mode,
        enabled=draft.enabled,
        created_by="user",
        metadata=dict(draft.metadata),
        version=1,
        inserted_ms=now_ms,
        breaker_ids=tuple(breaker.id for breaker in linked),
    )
    c.execute(insert(t.routers).values({x.name: getattr(row, x.name) for x in _COLUMNS} | {"epoch": 0}))
    add_links(c, router_id, row.breaker_ids)
    router = c.execute(select(t.routers).where(t.routers.c.id == router_id)).one()
    # Settings first: a breaker that starts to read here must find them in this log before its first sample.
    entries = [*map(breaker_entry, linked), view_entry(current_view(c, router))]
    return row, [add_change(c, router, entries, links=row.breaker_ids)]


def _breakers(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> list[BreakerRow]:
    """The breakers in the order asked; raises NotFound when one is not in the project."""
    found: dict[str, BreakerRow] = {}
    for some in chunks(breaker_ids):
        query = select(*BREAKER_COLUMNS).where(t.breakers.c.project_id == project_id, t.breakers.c.id.in_(some))
        for row in c.execute(query):
            found[row.id] = BreakerRow(**row._mapping, router_ids=())
    missing = [breaker_id for breaker_id in breaker_ids if breaker_id not in found]
    if missing:
        raise NotFound("no such breaker", {"breaker_id": missing[0]})
    return [found[breaker_id] for breaker_id in breaker_ids]
