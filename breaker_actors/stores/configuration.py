"""Statements over breakers, routers and links that both resources use, and the change rows that carry them to the logs.

Sync functions over a `Connection`; each runs inside the transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from breaker_actors.core.records import BREAKER, VIEW, BreakerSet, RouterView, encode_entry
from breaker_actors.stores import tables as t
from breaker_actors.stores.base import BreakerRow
from breaker_actors.stores.part import DAY_MS
from breaker_actors.stores.views import Linked, view_of

Entry = tuple[int, bytes]
_entries = msgspec.msgpack.Encoder()

BREAKER_COLUMNS = [t.breakers.c[f] for f in BreakerRow.__struct_fields__ if f != "router_ids"]


def breaker_entry(row: BreakerRow) -> Entry:
    """The settings record of a breaker that existed before."""
    return BREAKER, encode_entry(BreakerSet(breaker_id=row.id, version=row.version, name=row.name, rule=row.rule))


def view_entry(view: RouterView) -> Entry:
    return VIEW, encode_entry(view)


def add_change(c: Connection, router: Row[Any], entries: Iterable[Entry], links: Sequence[str] = ()) -> int:
    """One change row: the entries go to the router's log in this order."""
    values = {
        "router_id": router.id,
        "project_id": router.project_id,
        "entries": _entries.encode(list(entries)),
        "links": tuple(links),
    }
    return int(c.execute(insert(t.changes).values(values).returning(t.changes.c.id)).scalar_one())


def linked_of(c: Connection, router_id: str) -> list[Linked]:
    """The breakers of a router in link order."""
    query = (
        select(t.breakers.c.id, t.breakers.c.name, t.breakers.c.rule)
        .join(t.links, t.links.c.breaker_id == t.breakers.c.id)
        .where(t.links.c.router_id == router_id)
        .order_by(t.links.c.number)
    )
    return [Linked(row.id, row.name, row.rule.metric) for row in c.execute(query)]


def current_view(c: Connection, router: Row[Any]) -> RouterView:
    """The view a router's configuration asks for now, under its stored version."""
    return view_of(router.version, router.mode, router.enabled, router.metadata, linked_of(c, router.id))


def raise_view(c: Connection, router: Row[Any]) -> RouterView:
    """The current view under the next version of the router."""
    c.execute(update(t.routers).where(t.routers.c.id == router.id).values(version=router.version + 1))
    return msgspec.structs.replace(current_view(c, router), version=router.version + 1)


def routers_of(c: Connection, breaker_id: str) -> Sequence[Row[Any]]:
    """The routers a breaker hangs on, in link order."""
    query = (
        select(t.routers)
        .join(t.links, t.links.c.router_id == t.routers.c.id)
        .where(t.links.c.breaker_id == breaker_id)
        .order_by(t.links.c.number)
    )
    return c.execute(query).all()


def add_links(c: Connection, router_id: str, breaker_ids: Sequence[str]) -> None:
    if breaker_ids:
        c.execute(insert(t.links), [{"router_id": router_id, "breaker_id": breaker_id} for breaker_id in breaker_ids])


def stream_names(c: Connection, project_id: str, names: Sequence[str]) -> set[str]:
    """The stream names of all breakers called one of `names`: the oldest has its name, the others their id."""
    b = t.breakers.c
    # Sorted here: asked for the order, SQLite takes the index on creation and walks through the whole project.
    query = select(b.created_ms, b.number, b.id, b.name).where(b.project_id == project_id, b.name.in_(names))
    taken: set[str] = set()
    for _, _, id_, name in sorted(map(tuple, c.execute(query))):
        taken.add(id_ if name in taken else name)
    return taken


def note_stream_names(c: Connection, project_id: str, before: set[str], after: set[str], now_ms: int) -> None:
    """Keeps the names that went away for a day, and forgets those that are taken again or long gone."""
    mine = t.gone_names.c.project_id == project_id
    touched = t.gone_names.c.name.in_(sorted(before ^ after))
    if before != after:
        c.execute(delete(t.gone_names).where(mine, touched | (t.gone_names.c.until_ms <= now_ms)))
    gone = [{"project_id": project_id, "name": n, "until_ms": now_ms + DAY_MS} for n in sorted(before - after)]
    if gone:
        c.execute(insert(t.gone_names), gone)
