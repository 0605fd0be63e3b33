"""Channels as the Notifier sees them: which have something pending, how they are reached, what is known of those that
fail. Sync functions over a `Connection`; neighbours: `leases.py`, `outbox.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import (
    CompoundSelect,
    Connection,
    Row,
    Select,
    bindparam,
    func,
    insert,
    literal,
    select,
    update,
)

from breaker_actors.store import tables as t
from breaker_actors.store.rows import PENDING_COUNTED, CircuitRow, Failing, Waiting
from breaker_actors.store.section import IDS, by_ids

# Written out, not as a parameter: the planner must see that the partial index serves.
PENDING = t.outbox.c.state == literal("pending", literal_execute=True)


def _waiting_channels_statement() -> Select[Any]:
    o = t.outbox.c
    chain = select(func.min(o.channel_id).label("channel_id")).where(PENDING).cte("chain", recursive=True)
    following = select(func.min(o.channel_id)).where(PENDING, o.channel_id > chain.c.channel_id).scalar_subquery()
    chain = chain.union_all(select(following).where(chain.c.channel_id.is_not(None)))
    newest = select(func.max(o.number)).where(PENDING, o.channel_id == chain.c.channel_id).scalar_subquery()
    return select(chain.c.channel_id, newest).where(chain.c.channel_id.is_not(None))


def _destinations_statement() -> CompoundSelect[Any]:
    ch, p, w = t.channels.c, t.projects.c, t.workspaces.c
    live = p.deleted_ms.is_(None)
    own = select(ch.id, ch.project_id, ch.channel, ch.config.label("sealed"), p.name, w.org_id)
    own = own.join(t.projects, p.id == ch.project_id).join(t.workspaces, w.id == p.workspace_id)
    own = own.where(ch.enabled, live, ch.id.in_(IDS))
    legacy = select(p.id, p.id.label("project_id"), literal("slack"), p.slack_webhook_url, p.name, w.org_id)
    legacy = legacy.join_from(t.projects, t.workspaces, w.id == p.workspace_id)
    return own.union_all(legacy.where(p.slack_webhook_url.is_not(None), live, p.id.in_(IDS)))


_WAITING = _waiting_channels_statement()
_O = t.outbox.c
# In the order of numbers, so that the rows behind one are read and no others.
_NEWER = select(_O.channel_id, _O.number).where(PENDING, _O.number > bindparam("after")).order_by(_O.number)
_NEWEST_OF = select(func.max(_O.number)).where(PENDING, _O.channel_id == bindparam("channel"))
_CHANNELS = _destinations_statement()
_CIRCUITS = select(*(t.circuits.c[f] for f in CircuitRow.__struct_fields__)).where(t.circuits.c.channel_id.in_(IDS))


def waiting(c: Connection, after: int | None = None, among: Collection[str] = ()) -> list[Waiting]:
    """Channels with pending rows: from one to the next by the index, however many rows each has. `after`: only those
    with rows behind that number, and of `among` those that have any."""
    rows = c.execute(_WAITING) if after is None else c.execute(_NEWER, {"after": after})
    found: dict[str, int] = {channel_id: number for channel_id, number in rows}
    for channel_id in () if after is None else among:
        if (number := c.execute(_NEWEST_OF, {"channel": channel_id}).scalar()) is not None:
            found[channel_id] = number
    if not found:
        return []
    there, circuits = channels_of(c, list(found)), circuits_of(c, list(found))
    return [
        Waiting(
            channel_id=channel_id,
            org_id=there[channel_id].org_id if channel_id in there else "",
            project_id=there[channel_id].project_id if channel_id in there else "",
            newest=number,
            kind=there[channel_id].channel if channel_id in there else None,
            version=version_of(there[channel_id]) if channel_id in there else None,
            circuit=circuits.get(channel_id),
        )
        for channel_id, number in found.items()
    ]


def channels_of(c: Connection, channel_ids: Sequence[str]) -> dict[str, Any]:
    """Those that are there and enabled, and projects whose slack_webhook_url an id stands for; `sealed` is how to reach
    them."""
    return {row.id: row for row in by_ids(c, _CHANNELS, channel_ids)}


def version_of(channel: Row[Any]) -> str:
    """Another one whenever the channel was edited: each seal is different."""
    return hashlib.sha256(channel.sealed).hexdigest()[:16]


def circuits_of(c: Connection, channel_ids: Sequence[str]) -> dict[str, CircuitRow]:
    return {row.channel_id: CircuitRow(**row._mapping) for row in by_ids(c, _CIRCUITS, channel_ids)}


def failing(c: Connection, project_id: str) -> list[Failing]:
    """The channels of a project that a failure is known of, with what waits for them, by name."""
    ch = t.channels.c
    mine = select(ch.id, ch.name).where(ch.project_id == project_id)
    names = {project_id: ""} | {row.id: row.name for row in c.execute(mine)}
    circuits = circuits_of(c, list(names))
    if not circuits:
        return []
    there = channels_of(c, list(circuits))
    known = [id_ for id_, row in circuits.items() if id_ in there and row.version == version_of(there[id_])]
    waits = {id_: _waits(c, id_) for id_ in known}
    found = []
    for id_ in sorted(known, key=lambda one: (names[one], one)):
        count, oldest_ms = waits[id_]
        found.append(
            Failing(channel_id=id_, name=names[id_], circuit=circuits[id_], pending=count, oldest_ms=oldest_ms)
        )
    return found


def _waits(c: Connection, channel_id: str) -> tuple[int, int | None]:
    """How many wait, up to PENDING_COUNTED, and when the first of them came. Most are seen in the index alone."""
    o = t.outbox.c
    mine = select(o.number).where(PENDING, o.channel_id == channel_id).order_by(o.number)
    numbers = mine.limit(PENDING_COUNTED).subquery()
    first, count = c.execute(select(func.min(numbers.c.number), func.count()).select_from(numbers)).one()
    return count, c.execute(select(o.created_ms).where(o.number == first)).scalar()


def store_circuit(c: Connection, row: CircuitRow) -> None:
    values = msgspec.structs.asdict(row)
    if c.execute(update(t.circuits).where(t.circuits.c.channel_id == row.channel_id).values(values)).rowcount == 0:
        c.execute(insert(t.circuits).values(values))
