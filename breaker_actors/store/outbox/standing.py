"""Outages that stand and that a channel was told of: what an Alertmanager has to hear again and again.

They are read from the trips that were sent, each time anew: nothing of a renewal is stored. Sync functions over a
`Connection`; neighbour: `outbox.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, exists, func, literal, select

from breaker_actors.store import tables as t
from breaker_actors.store.fencing import NOTIFIER
from breaker_actors.store.outages import begins_outage
from breaker_actors.store.outbox.channel_queue import PENDING, channels_of, circuits_of, version_of
from breaker_actors.store.outbox.claims import COLUMNS, delivery_of
from breaker_actors.store.outbox.subjects import LABELLED
from breaker_actors.store.rows import DeliveryRow, Waiting
from breaker_actors.store.section import IDS, by_ids

BATCH_MAX = 64
"""Breakers of one look, and so alerts of one request: as many as Prometheus sends at once."""
AWAY = t.records.c.state != "closed"


def _channels_statement() -> Select[Any]:
    ch, b, r = t.channels.c, t.breakers.c, t.records.c
    away = exists().where(b.project_id == ch.project_id, r.breaker_id == b.id, AWAY)
    return select(ch.id).where(ch.enabled, LABELLED, away).order_by(ch.number)


def _breakers_statement() -> Select[Any]:
    """Breakers of a project that are not closed, in order, each with the event that its outage began with."""
    b, r, e = t.breakers.c, t.records.c, t.events.c
    began = (
        select(e.sequence)
        .where(e.breaker_id == b.id, e.project_id == b.project_id, begins_outage(e))
        .order_by(e.transition_seq.desc())
        .limit(1)
        .correlate(t.breakers)
        .scalar_subquery()
    )
    query = select(b.number, b.id, began.label("incident")).join(t.records, r.breaker_id == b.id)
    mine = b.project_id == bindparam("project")
    limit = literal(BATCH_MAX, literal_execute=True)
    return query.where(mine, AWAY, b.number > bindparam("after")).order_by(b.number).limit(limit)


def _trips_statement() -> Select[Any]:
    """The last trip that a channel was sent of each outage: it may have had any number of them."""
    o, e = t.outbox.c, t.events.c
    last = select(func.max(o.number)).where(o.incident == e.sequence, o.channel_id == bindparam("channel"))
    last = last.where(o.kind == "trip", o.state == "sent").correlate(t.events)
    begun = select(last.scalar_subquery()).where(e.project_id == bindparam("project"), e.sequence.in_(IDS))
    return select(*COLUMNS).where(o.number.in_(begun))


_CHANNELS, _BREAKERS, _TRIPS = _channels_statement(), _breakers_statement(), _trips_statement()
_MOVING = select(t.outbox.c.breaker_id).where(
    PENDING, t.outbox.c.channel_id == bindparam("channel"), t.outbox.c.breaker_id.in_(IDS)
)


class Page(NamedTuple):
    """Some of a channel's standing outages: of each the last trip that was sent. `channel` None: it is gone or
    disabled. `last`: the number to go on behind; None at the end."""

    channel: Row[Any] | None
    rows: tuple[DeliveryRow, ...]
    last: int | None


def channels(c: Connection) -> list[Waiting]:
    """Channels to an Alertmanager in whose projects a breaker is not closed."""
    ids: Sequence[str] = list(c.execute(_CHANNELS).scalars())
    there, circuits = channels_of(c, ids), circuits_of(c, ids)
    return [
        Waiting(
            channel_id=id_,
            org_id=there[id_].org_id,
            project_id=there[id_].project_id,
            newest=0,
            kind=there[id_].channel,
            version=version_of(there[id_]),
            circuit=circuits.get(id_),
        )
        for id_ in ids
        if id_ in there
    ]


def page(c: Connection, epoch: int, channel_id: str, after: int) -> Page:
    """Those of the next BATCH_MAX breakers behind a number. Left out is what has a pending delivery, which tells
    more. Raises Fenced."""
    NOTIFIER.look(c, epoch)
    channel = channels_of(c, [channel_id]).get(channel_id)
    if channel is None:
        return Page(None, (), None)
    breakers = c.execute(_BREAKERS, {"project": channel.project_id, "after": after}).all()
    last = breakers[-1].number if len(breakers) == BATCH_MAX else None
    outages = {row.id: row.incident for row in breakers if row.incident is not None}
    moving = {id_ for (id_,) in by_ids(c, _MOVING, list(outages), channel=channel_id)}
    mine = {"channel": channel_id, "project": channel.project_id}
    trips = {row.breaker_id: row for row in by_ids(c, _TRIPS, list(outages.values()), **mine)}
    rows = [trips[id_] for id_ in outages if id_ in trips and id_ not in moving]
    return Page(channel, tuple(map(delivery_of, rows)), last)
