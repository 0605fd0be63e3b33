"""The outbox: what the Notifier takes and settles under its epoch, and what people see of it and send again.

Rows are born in `alerts.py`. Per channel and breaker they are sent in order of `number`: only the first pending row of
such a chain may be taken. A recovery is never sent unless a trip of its outage was; it ends as its trips did.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, exists, func, insert, literal, or_, select, update

from breaker_actors.errors import BreakersError, Fenced, NotFound, NotRedrivable
from breaker_actors.stores import tables as t
from breaker_actors.stores.audits import Note, Place, write_down
from breaker_actors.stores.channels import config_place
from breaker_actors.stores.part import StorePart, chunks, lock_project
from breaker_actors.stores.projects import slack_place
from breaker_actors.stores.rows import SYSTEM, CircuitRow, DeliveryQuery, DeliveryRow, Leased, Tried, Waiting

PAGE, HEADS_MAX = 64, 400
"""A lease reads a channel's rows by pages and looks at so many breakers at most: if all of those are being sent or wait
to be tried again, the others wait with them."""
GIVE_UP_MAX = 500
PRUNE_MAX = 5_000
_ONLY = 1
_COLUMNS = [t.outbox.c[f] for f in DeliveryRow.__struct_fields__]
_CIRCUIT = [t.circuits.c[f] for f in CircuitRow.__struct_fields__]
# Written out, not as a parameter: the planner must see that the partial index serves.
_PENDING = t.outbox.c.state == literal("pending", literal_execute=True)
GONE = "the channel was disabled or deleted"
NOT_TOLD = {
    "dead": "no trip of this outage could be sent: see the dead one",
    "cancelled": "no trip of this outage was sent on this channel",
}


class Outbox(StorePart):
    async def open_notifier(self) -> int:
        return await self._db.write(_open)

    async def waiting_channels(self) -> list[Waiting]:
        return await self._db.read(_waiting)

    async def lease_deliveries(
        self, epoch: int, wants: Mapping[str, int], held: Collection[str], now_ms: int, until_ms: int
    ) -> list[Leased]:
        term = _Term(epoch, now_ms, until_ms, frozenset(held))

        def work(c: Connection) -> list[Leased]:
            _check_notifier(c, epoch)
            there = _channels(c, list(wants))
            return [self._lease_channel(c, channel, wants[channel_id], term) for channel_id, channel in there.items()]

        return await self._db.write(work)

    async def settle_deliveries(
        self, epoch: int, tried: Sequence[Tried], circuits: Sequence[CircuitRow] = (), hasten: Sequence[str] = ()
    ) -> set[str]:
        return await self._db.write(lambda c: _settle(c, epoch, tried, circuits, hasten))

    async def give_up_deliveries(
        self, epoch: int, channel_id: str, now_ms: int, before_ms: int, error: str
    ) -> dict[str, int]:
        return await self._db.write(lambda c: _give_up(c, epoch, channel_id, now_ms, before_ms, error))

    async def cancel_deliveries(self, epoch: int, channel_id: str, now_ms: int) -> int:
        return await self._db.write(lambda c: _cancel(c, epoch, channel_id, now_ms))

    async def outbox_depth(self) -> tuple[int, int | None]:
        query = select(func.count(), func.min(t.outbox.c.created_ms)).where(_PENDING)
        count, oldest_ms = await self._db.read(lambda c: c.execute(query).one())
        return count, oldest_ms

    async def deliveries(self, query: DeliveryQuery) -> list[DeliveryRow]:
        o = t.outbox.c
        statement = select(*_COLUMNS).where(o.project_id == query.project_id, o.channel_id == query.channel_id)
        if query.state is not None:
            statement = statement.where(o.state == query.state)
        if query.before is not None:
            statement = statement.where(o.number < query.before)
        statement = statement.order_by(o.number.desc()).limit(query.limit)
        return [_delivery(row) for row in await self._db.read(lambda c: c.execute(statement).all())]

    async def circuit(self, channel_id: str) -> CircuitRow | None:
        """What the Notifier noted last of a channel; None: nothing, or of another address."""
        return await self._db.read(lambda c: _circuit_now(c, channel_id))

    async def redrive_delivery(
        self, project_id: str, channel_id: str, delivery_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[DeliveryRow]:
        place = Place(by, now_ms, project_id)
        return await self._db.write(lambda c: _redrive(c, place, project_id, channel_id, delivery_id))

    async def prune_deliveries(self, before_ms: int) -> int:
        return await self._db.write(lambda c: _prune(c, before_ms))

    # ------------------------------------------------------------------ leasing

    def _lease_channel(self, c: Connection, channel: Row[Any], want: int, term: _Term) -> Leased:
        channel_id = channel.id
        heads, later_ms = _heads(c, channel_id, want, term)
        followers = [(channel_id, head.incident) for head in heads if head.kind != "trip" and head.incident is not None]
        dropped = _drop_followers(c, followers, term.now_ms)
        return Leased(
            channel_id=channel_id,
            kind=channel.channel,
            config=self._config(channel),
            project_name=channel.name,
            rows=tuple(_take(c, [head.number for head in heads], term)),
            later_ms=later_ms,
            dropped=dict(dropped),
        )

    def _config(self, channel: Row[Any]) -> dict[str, Any] | None:
        """The opened configuration; a seal that does not open is that channel's trouble alone."""
        try:
            if channel.project_id == channel.id:
                return {"webhook_url": self._box.unseal(channel.sealed, slack_place(channel.id))}
            config: dict[str, Any] = msgspec.json.decode(self._box.unseal(channel.sealed, config_place(channel.id)))
        except BreakersError:
            return None
        return config


class _Term(NamedTuple):
    """Under which epoch and for how long rows are taken; `held`: ids that this epoch is sending already."""

    epoch: int
    now_ms: int
    until_ms: int
    held: frozenset[str]


def _open(c: Connection) -> int:
    stored = c.execute(select(t.notifier.c.epoch).where(t.notifier.c.id == _ONLY).with_for_update()).scalar()
    if stored is None:
        c.execute(insert(t.notifier).values(id=_ONLY, epoch=1))
        return 1
    c.execute(update(t.notifier).where(t.notifier.c.id == _ONLY).values(epoch=stored + 1))
    return int(stored) + 1


def _is_newest(c: Connection, epoch: int) -> bool:
    stored = c.execute(select(t.notifier.c.epoch).where(t.notifier.c.id == _ONLY).with_for_update()).scalar()
    return stored == epoch


def _check_notifier(c: Connection, epoch: int) -> None:
    if not _is_newest(c, epoch):
        raise Fenced("a newer notifier has taken over")


def _delivery(row: Row[Any]) -> DeliveryRow:
    return DeliveryRow(**row._mapping)


# ------------------------------------------------------------------ channels


def _waiting(c: Connection) -> list[Waiting]:
    """Channels with pending rows: from one to the next by the index, however many rows each has."""
    o = t.outbox.c
    chain = select(func.min(o.channel_id).label("channel_id")).where(_PENDING).cte("chain", recursive=True)
    following = select(func.min(o.channel_id)).where(_PENDING, o.channel_id > chain.c.channel_id).scalar_subquery()
    chain = chain.union_all(select(following).where(chain.c.channel_id.is_not(None)))
    newest = select(func.max(o.number)).where(_PENDING, o.channel_id == chain.c.channel_id).scalar_subquery()
    query = select(chain.c.channel_id, newest).where(chain.c.channel_id.is_not(None))
    found = {channel_id: number for channel_id, number in c.execute(query)}
    there, circuits = _channels(c, list(found)), _circuits(c, list(found))
    return [
        Waiting(
            channel_id=channel_id,
            newest=number,
            version=_version(there[channel_id]) if channel_id in there else None,
            circuit=circuits.get(channel_id),
        )
        for channel_id, number in found.items()
    ]


def _channels(c: Connection, channel_ids: Sequence[str]) -> dict[str, Any]:
    """Those that are there and enabled, and projects whose slack_webhook_url an id stands for; `sealed` is how to reach
    them."""
    ch, p = t.channels.c, t.projects.c
    live = p.deleted_ms.is_(None)
    own = select(ch.id, ch.project_id, ch.channel, ch.config.label("sealed"), p.name)
    own = own.join(t.projects, p.id == ch.project_id).where(ch.enabled, live)
    legacy = select(p.id, p.id.label("project_id"), literal("slack"), p.slack_webhook_url, p.name)
    legacy = legacy.where(p.slack_webhook_url.is_not(None), live)
    return {
        row.id: row
        for some in chunks(channel_ids)
        for row in c.execute(own.where(ch.id.in_(some)).union_all(legacy.where(p.id.in_(some))))
    }


def _version(channel: Row[Any]) -> str:
    """Another one whenever the channel was edited: each seal is different."""
    return hashlib.sha256(channel.sealed).hexdigest()[:16]


def _circuits(c: Connection, channel_ids: Sequence[str]) -> dict[str, CircuitRow]:
    query = select(*_CIRCUIT)
    return {
        row.channel_id: CircuitRow(**row._mapping)
        for some in chunks(channel_ids)
        for row in c.execute(query.where(t.circuits.c.channel_id.in_(some)))
    }


def _circuit_now(c: Connection, channel_id: str) -> CircuitRow | None:
    stored, channel = _circuits(c, [channel_id]).get(channel_id), _channels(c, [channel_id]).get(channel_id)
    return stored if stored and channel is not None and stored.version == _version(channel) else None


def _store_circuit(c: Connection, row: CircuitRow) -> None:
    values = msgspec.structs.asdict(row)
    if c.execute(update(t.circuits).where(t.circuits.c.channel_id == row.channel_id).values(values)).rowcount == 0:
        c.execute(insert(t.circuits).values(values))


# ------------------------------------------------------------------ heads


def _heads(c: Connection, channel_id: str, want: int, term: _Term) -> tuple[list[Any], int | None]:
    """The first rows of chains that may be taken now, oldest first, and when the next of the others may be."""
    o = t.outbox.c
    columns = (o.number, o.id, o.breaker_id, o.kind, o.incident, o.next_ms, o.lease_epoch, o.lease_until_ms)
    query = select(*columns).where(_PENDING, o.channel_id == channel_id).order_by(o.number).limit(PAGE)
    heads: list[Any] = []
    later: list[int] = []
    seen: set[str] = set()
    while len(seen) < HEADS_MAX:
        page = c.execute(query.where(o.breaker_id.not_in(seen)) if seen else query).all()
        for row in page:
            if row.breaker_id in seen:
                continue
            seen.add(row.breaker_id)
            free_ms = _free_ms(row, term)
            if free_ms is None or free_ms > term.now_ms:
                later += [] if free_ms is None else [free_ms]
                continue
            heads.append(row)
            if len(heads) == want:
                return heads, term.now_ms
        if len(page) < PAGE:
            break
    return heads, min(later, default=None)


def _free_ms(row: Any, term: _Term) -> int | None:
    """From when on a row may be taken; None: it is being sent by who asks."""
    if row.id in term.held:
        return None
    if row.lease_epoch is None or row.lease_epoch == term.epoch:
        # of this epoch and not held: the answer to that lease got lost
        return int(row.next_ms)
    # of an older one: its result may still come, so it is not sent beside it
    return max(int(row.next_ms), int(row.lease_until_ms))


def _take(c: Connection, numbers: Sequence[int], term: _Term) -> list[DeliveryRow]:
    """Leases rows that are still pending; each counts as attempted from here on."""
    if not numbers:
        return []
    o = t.outbox.c
    values = {
        "lease_epoch": term.epoch,
        "lease_until_ms": term.until_ms,
        "attempts": o.attempts + 1,
        "since_ms": func.coalesce(o.since_ms, term.now_ms),
    }
    c.execute(update(t.outbox).where(o.number.in_(numbers), _PENDING).values(values))
    mine = select(*_COLUMNS).where(o.number.in_(numbers), _PENDING).order_by(o.number)
    return [_delivery(row) for row in c.execute(mine)]


# ------------------------------------------------------------------ ends


def _settle(
    c: Connection, epoch: int, tried: Sequence[Tried], circuits: Sequence[CircuitRow], hasten: Sequence[str]
) -> set[str]:
    o = t.outbox.c
    mine: dict[str, Any] = {}
    for some in chunks([one.delivery_id for one in tried]):
        query = select(o.id, o.channel_id, o.incident, o.state, o.kind).where(o.id.in_(some), o.lease_epoch == epoch)
        mine.update({row.id: row for row in c.execute(query.with_for_update())})
    # what was sent was sent, even if the row was cancelled meanwhile; else a cancelled one stays so
    kept = [one for one in tried if one.delivery_id in mine]
    kept = [one for one in kept if one.word == "sent" or mine[one.delivery_id].state == "pending"]
    _write_tried(c, kept)
    dead = [mine[one.delivery_id] for one in kept if one.word == "dead"]
    at_ms = max((one.at_ms for one in kept), default=0)
    _drop_followers(c, [(row.channel_id, row.incident) for row in dead if row.kind == "trip"], at_ms)
    if _is_newest(c, epoch):
        for circuit in circuits:
            _store_circuit(c, circuit)
        for channel_id in hasten:
            waits = (o.channel_id == channel_id) & _PENDING & (o.next_ms > at_ms)
            c.execute(update(t.outbox).where(waits).values(next_ms=at_ms))
    return set(mine)


def _write_tried(c: Connection, tried: Sequence[Tried]) -> None:
    if not tried:
        return
    states = {"sent": "sent", "retry": "pending", "dead": "dead"}
    statement = update(t.outbox).where(t.outbox.c.id == bindparam("which"))
    statement = statement.values(
        state=bindparam("to"),
        next_ms=bindparam("next"),
        last_status=bindparam("status"),
        last_error=bindparam("error"),
        ended_ms=bindparam("ended"),
        lease_epoch=None,
        lease_until_ms=None,
    )
    rows = [
        {
            "which": one.delivery_id,
            "to": states[one.word],
            "next": one.next_ms,
            "status": one.status,
            "error": one.error,
            "ended": None if one.word == "retry" else one.at_ms,
        }
        for one in tried
    ]
    c.execute(statement, rows)


def _drop_followers(c: Connection, outages: Iterable[tuple[str, int | None]], now_ms: int) -> Counter[str]:
    """Recoveries of outages (channel, incident) none of whose trips was sent or will be: they end as the trips did."""
    o = t.outbox.c
    wanted = {(channel_id, incident) for channel_id, incident in outages if incident is not None}
    trips: dict[tuple[str, int], set[str]] = {pair: set() for pair in wanted}
    for some in chunks(sorted({incident for _, incident in wanted})):
        query = select(o.channel_id, o.incident, o.state).where(o.incident.in_(some), o.kind == "trip")
        for channel_id, incident, state in c.execute(query):
            if (channel_id, incident) in trips:
                trips[channel_id, incident].add(state)
    dropped: Counter[str] = Counter()
    for (channel_id, incident), states in trips.items():
        if not states & {"sent", "pending"}:
            word = "dead" if "dead" in states else "cancelled"
            mine = (o.incident == incident) & (o.channel_id == channel_id) & (o.kind != "trip") & _PENDING
            ended = {"state": word, "last_error": NOT_TOLD[word], "ended_ms": now_ms}
            dropped[word] += c.execute(update(t.outbox).where(mine).values(ended)).rowcount
    return dropped


def _give_up(c: Connection, epoch: int, channel_id: str, now_ms: int, before_ms: int, error: str) -> dict[str, int]:
    """Rows of a channel that does not answer: their time runs from now on at the latest; what was tried since
    `before_ms`, or waited for that long, is dead. Rows being sent are left to their outcome."""
    _check_notifier(c, epoch)
    o = t.outbox.c
    mine = (o.channel_id == channel_id) & _PENDING
    c.execute(update(t.outbox).where(mine, o.since_ms.is_(None)).values(since_ms=now_ms))
    free = o.lease_epoch.is_(None) | (o.lease_until_ms <= now_ms)
    query = select(o.number, o.kind, o.incident).where(mine, free, o.since_ms <= before_ms).order_by(o.number)
    rows = c.execute(query.limit(GIVE_UP_MAX)).all()
    ended = {"state": "dead", "ended_ms": now_ms, "last_error": func.coalesce(o.last_error, error)}
    for some in chunks([row.number for row in rows]):
        c.execute(update(t.outbox).where(o.number.in_(some), _PENDING).values(ended))
    dropped = _drop_followers(c, [(channel_id, row.incident) for row in rows if row.kind == "trip"], now_ms)
    return dict(dropped + Counter(dead=len(rows)))


def _cancel(c: Connection, epoch: int, channel_id: str, now_ms: int) -> int:
    """Nothing is sent on a channel that is not there; one that came back meanwhile is left alone."""
    _check_notifier(c, epoch)
    if _channels(c, [channel_id]):
        return 0
    c.execute(delete(t.circuits).where(t.circuits.c.channel_id == channel_id))
    mine = (t.outbox.c.channel_id == channel_id) & _PENDING
    ended = {"state": "cancelled", "ended_ms": now_ms, "last_error": GONE}
    return c.execute(update(t.outbox).where(mine).values(ended)).rowcount


# ------------------------------------------------------------------ people


def _redrive(c: Connection, place: Place, project_id: str, channel_id: str, delivery_id: str) -> list[DeliveryRow]:
    """Makes a dead row, and all dead ones of the same outage, pending again."""
    lock_project(c, project_id)
    o = t.outbox.c
    mine = (o.id == delivery_id) & (o.channel_id == channel_id) & (o.project_id == project_id)
    found = c.execute(select(*_COLUMNS).where(mine).with_for_update()).first()
    if found is None:
        raise NotFound("There is no such delivery.", {"delivery_id": delivery_id})
    if found.state != "dead":
        raise NotRedrivable(f"This delivery is {found.state}, not dead.", {"state": found.state})
    if not _channels(c, [channel_id]):
        raise NotRedrivable(f"Nothing can be sent: {GONE}.", {"channel_id": channel_id})
    linked = (o.channel_id == channel_id) & (o.breaker_id == found.breaker_id) & (o.state == "dead")
    linked &= o.id == delivery_id if found.incident is None else o.incident == found.incident
    rows = c.execute(select(*_COLUMNS).where(linked).order_by(o.number).with_for_update()).all()
    _refuse_late(c, rows)
    again = {"state": "pending", "attempts": 0, "next_ms": 0, "since_ms": None, "ended_ms": None}
    c.execute(update(t.outbox).where(o.number.in_([row.number for row in rows])).values(again))
    write_down(c, place, [Note("delivery.redrive", row.id, {"state": "dead"}, {"state": "pending"}) for row in rows])
    told = select(*_COLUMNS).where(o.number.in_([row.number for row in rows])).order_by(o.number)
    return [_delivery(row) for row in c.execute(told)]


def _refuse_late(c: Connection, rows: Sequence[Row[Any]]) -> None:
    """The end of an old outage must not be told while a newer one stands: the receiver would take it for its end."""
    ends = [row for row in rows if row.kind != "trip"]
    if not ends:
        return
    o, last = t.outbox.c, ends[-1]
    newer = select(o.kind).where(
        o.channel_id == last.channel_id,
        o.breaker_id == last.breaker_id,
        o.number > last.number,
        o.state.in_(("pending", "sent")),
    )
    newest = c.execute(newer.order_by(o.number.desc()).limit(1)).scalar()
    if newest == "trip":
        raise NotRedrivable(
            "The breaker has tripped again since, and this channel was told: sending the end of an older outage now "
            "would look like the end of this one. Redrive it when the breaker has recovered.",
            {"breaker_id": last.breaker_id},
        )


def _prune(c: Connection, before_ms: int) -> int:
    """Removes ended rows from before a time, oldest first; at most PRUNE_MAX. The trips of an outage that goes on, or
    whose end is still on its way, stay: the end is told to those only who know of the beginning."""
    o, pending = t.outbox.c, t.outbox.alias()
    going_on = exists().where(t.records.c.breaker_id == o.breaker_id, t.records.c.state != "closed")
    on_its_way = exists().where(
        pending.c.incident == o.incident, pending.c.channel_id == o.channel_id, pending.c.state == "pending"
    )
    needed = or_(going_on, on_its_way) & (o.kind == "trip")
    query = select(o.number).where(o.created_ms < before_ms, o.state != "pending", ~needed)
    numbers = c.execute(query.order_by(o.created_ms).limit(PRUNE_MAX)).scalars().all()
    for some in chunks(numbers):
        c.execute(delete(t.outbox).where(o.number.in_(some)))
    return len(numbers)
