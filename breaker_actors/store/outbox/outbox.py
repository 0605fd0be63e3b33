"""The outbox: what the Notifier takes and settles under its epoch, and what people see of it and send again.

Rows are born in `alerts.py`. Per channel and breaker they are sent in order of `number`: only the first pending row of
such a chain may be taken. A recovery is never sent unless a trip of its outage was; it ends as its trips did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, get_args

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, func, literal, select, update

from breaker_actors.errors import BreakersError, NotFound, NotRedrivable
from breaker_actors.store import tables as t
from breaker_actors.store.aging import Aging, Found, Kept, Part, Walk, page_of
from breaker_actors.store.config.audit_log import Note, Place, write_down
from breaker_actors.store.config.channels import config_place
from breaker_actors.store.config.projects import slack_place
from breaker_actors.store.fencing import NOTIFIER
from breaker_actors.store.outbox import claims as leases
from breaker_actors.store.outbox import held as held_back
from breaker_actors.store.outbox import standing
from breaker_actors.store.outbox.channel_queue import PENDING, channels_of, failing, waiting
from breaker_actors.store.outbox.claims import COLUMNS, GONE, Term, delivery_of
from breaker_actors.store.outbox.muting import stands
from breaker_actors.store.outbox.payloads import drop_unused
from breaker_actors.store.quotas import DELIVERIES_DROPPED, UNSENT, add
from breaker_actors.store.rows import (
    DEAD_LOOKED_AT,
    REDRIVEN_MAX,
    SYSTEM,
    AlertKind,
    CircuitRow,
    DeliveryQuery,
    DeliveryResult,
    DeliveryRow,
    Failing,
    HeldLook,
    Leased,
    MutesTended,
    Waiting,
)
from breaker_actors.store.section import IDS, belongs, bump, by_ids, lock_project

PRUNE_MAX, PRUNE_PAGES = 5_000, 20
"""A round looks at so many pages of so many deliveries at most that are old."""
_KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
TOO_MANY = "too many deliveries of this project wait (BREAKERS_DELIVERIES_MAX)"


class Outbox(Aging):
    async def open_notifier(self) -> int:
        return int((await self._db.write(NOTIFIER.open)).epoch)

    async def waiting_channels(self, after: int | None = None, among: Collection[str] = ()) -> list[Waiting]:
        return await self._db.read(lambda c: waiting(c, after, among))

    async def lease_deliveries(
        self, epoch: int, wants: Mapping[str, int], held: Collection[str], now_ms: int, until_ms: int
    ) -> list[Leased]:
        term = Term(epoch, now_ms, until_ms, frozenset(held))
        there, ready = await self._db.read(lambda c: leases.ready(c, wants, term))
        taken = leases.Taken([], {})
        if any(one.heads for one in ready.values()):
            project_of = {channel_id: channel.project_id for channel_id, channel in there.items()}
            taken = await self._db.write(lambda c: leases.take(c, ready, project_of, term))
        mine: dict[str, list[DeliveryRow]] = {channel_id: [] for channel_id in there}
        for row in taken.rows:
            mine[row.channel_id].append(row)
        # what became another one meanwhile is looked at again
        later_ms = {id_: one.later_ms if len(mine[id_]) == len(one.heads) else now_ms for id_, one in ready.items()}
        return [
            self._leased(channel, mine[channel_id], later_ms[channel_id], taken.dropped.get(channel_id, {}))
            for channel_id, channel in there.items()
        ]

    async def settle_deliveries(
        self,
        epoch: int,
        tried: Sequence[DeliveryResult],
        circuits: Sequence[CircuitRow] = (),
        hasten: Sequence[str] = (),
    ) -> set[str]:
        return await self._db.write(lambda c: leases.settle(c, epoch, tried, circuits, hasten))

    async def give_up_deliveries(
        self, epoch: int, channel_id: str, now_ms: int, before_ms: int, error: str
    ) -> dict[str, int]:
        found = await self._db.read(lambda c: leases.overdue(c, epoch, channel_id, now_ms, before_ms))
        if not found.fresh and not found.ripe:
            return {}
        return await self._db.write(lambda c: leases.give_up(c, epoch, channel_id, now_ms, error, found))

    async def cancel_deliveries(
        self, epoch: int, channel_ids: Sequence[str], now_ms: int
    ) -> tuple[dict[str, int], bool]:
        return await self._db.write(lambda c: leases.cancel(c, epoch, channel_ids, now_ms))

    async def held_news(self) -> tuple[int, int]:
        return await self._db.read(held_back.news)

    async def held_count(self) -> int:
        return await self._db.read(held_back.count)

    async def held_projects(self) -> list[tuple[str, str]]:
        return await self._db.read(held_back.projects)

    async def look_at_held(
        self, epoch: int, now_ms: int, after: int = 0, turns: Mapping[str, int] | None = None, ahead_ms: int = 0
    ) -> HeldLook:
        plan = await self._db.read(lambda c: held_back.look(c, epoch, now_ms, after, turns or {}, ahead_ms))
        if not plan.fates:
            return plan.looked
        return await self._db.write(lambda c: held_back.carry_out(c, epoch, now_ms, plan))

    async def tend_mutes(self, epoch: int, now_ms: int, ahead_ms: int) -> MutesTended:
        tended = await self._db.read(lambda c: held_back.tend(c, epoch, now_ms, ahead_ms))
        if not tended.ended:
            return tended
        ended = await self._db.write(lambda c: held_back.end_over(c, epoch, now_ms, tended.ended))
        return msgspec.structs.replace(tended, ended=ended)

    async def warn_of_ends(
        self, epoch: int, now_ms: int, ahead_ms: int, behind: Mapping[str, Mapping[str, int]]
    ) -> tuple[str, ...]:
        return await self._db.write(lambda c: held_back.warn(c, epoch, now_ms, ahead_ms, behind))

    async def end_unmatched(
        self, epoch: int, now_ms: int, limit_ms: int, after: int = 0
    ) -> tuple[int | None, list[str]]:
        found = await self._db.read(lambda c: held_back.match(c, epoch, now_ms, limit_ms, after))
        if not (found.ids or found.lost):
            return found.last, []
        return found.last, await self._db.write(lambda c: held_back.end_unmatched(c, epoch, now_ms, found))

    async def standing_channels(self) -> list[Waiting]:
        return await self._db.read(standing.channels)

    async def standing_alerts(self, epoch: int, channel_id: str, after: int = 0) -> tuple[Leased | None, int | None]:
        found = await self._db.read(lambda c: standing.page(c, epoch, channel_id, after))
        return None if found.channel is None else self._leased(found.channel, found.rows), found.last

    async def outbox_depth(self) -> tuple[int, int | None]:
        return await self._db.read(_depth)

    async def deliveries(self, query: DeliveryQuery) -> list[DeliveryRow]:
        o = t.outbox.c
        statement = select(*COLUMNS).where(o.project_id == query.project_id, o.channel_id == query.channel_id)
        if query.state is not None:
            statement = statement.where(o.state == query.state)
        if query.before is not None:
            statement = statement.where(o.number < query.before)
        statement = statement.order_by(o.number.desc()).limit(query.limit)
        return await self._db.read(lambda c: [delivery_of(row) for row in c.execute(statement)])

    async def dead_deliveries(self, project_id: str, channel_id: str) -> int:
        o = t.outbox.c
        mine = select(o.state).where(o.project_id == project_id, o.channel_id == channel_id)
        newest = mine.order_by(o.number.desc()).limit(DEAD_LOOKED_AT).subquery()
        query = select(func.count()).where(newest.c.state == "dead").select_from(newest)
        return int(await self._db.read(lambda c: c.execute(query).scalar_one()))

    async def deliveries_of(
        self, project_id: str, shard: int, sequences: Sequence[int]
    ) -> dict[int, list[DeliveryRow]]:
        o = t.outbox.c
        query = select(o.sequence, *COLUMNS).where(
            o.shard == shard, o.sequence.in_(IDS), belongs(o.project_id, project_id)
        )
        rows = await self._db.read(lambda c: by_ids(c, query, sequences))
        found = dict[int, list[DeliveryRow]]()
        for sequence, *values in rows:
            row = DeliveryRow(**dict(zip(DeliveryRow.__struct_fields__, values, strict=True)))
            found.setdefault(sequence, []).append(row)
        return found

    async def failing_channels(self, project_id: str) -> list[Failing]:
        return await self._db.read(lambda c: failing(c, project_id))

    async def redrive_delivery(
        self, project_id: str, channel_id: str, delivery_id: str, now_ms: int, by: str = SYSTEM
    ) -> list[DeliveryRow]:
        place = Place(by, now_ms, project_id)
        return await self._write_small(project_id, lambda c: _redrive(c, place, project_id, channel_id, delivery_id))

    async def prune_deliveries(self, before_ms: int) -> int:
        return await self._remove_old(_OLD, before_ms, PRUNE_MAX, PRUNE_PAGES, _remove)

    async def shed_deliveries(self, now_ms: int) -> int:
        shed, _ = await self._take_turns("deliveries", partial(_to_shed, now_ms=now_ms))
        return shed

    def _leased(
        self,
        channel: Row[Any],
        rows: Sequence[DeliveryRow],
        later_ms: int | None = None,
        dropped: Mapping[str, int] = MappingProxyType({}),
    ) -> Leased:
        return Leased(
            channel_id=channel.id,
            org_id=channel.org_id,
            kind=channel.channel,
            config=self._config(channel),
            project_name=channel.name,
            rows=tuple(rows),
            later_ms=later_ms,
            dropped=dict(dropped),
        )

    def _config(self, channel: Row[Any]) -> dict[str, Any] | None:
        """The opened configuration; a seal that does not open is that channel's trouble alone."""
        try:
            if channel.project_id == channel.id:
                return {"webhook_url": self._box.unseal(channel.sealed, slack_place(channel.id))}
            config = self._box.unseal(channel.sealed, config_place(channel.id))
            return msgspec.json.decode(config, type=dict[str, Any])
        except (BreakersError, msgspec.MsgspecError) as error:
            self.asides.note("channel", channel.id, error, channel.sealed, 0, channel.project_id)
            return None


def _depth(c: Connection) -> tuple[int, int | None]:
    count, oldest = c.execute(select(func.count(), func.min(t.outbox.c.number)).where(PENDING)).one()
    return count, c.execute(select(t.outbox.c.created_ms).where(t.outbox.c.number == oldest)).scalar()


def _redrive(c: Connection, place: Place, project_id: str, channel_id: str, delivery_id: str) -> list[DeliveryRow]:
    """Makes a dead row, and the newest dead ones of the same outage, pending again; REDRIVEN_MAX in all."""
    lock_project(c, project_id)
    o = t.outbox.c
    mine = (o.id == delivery_id) & (o.channel_id == channel_id) & (o.project_id == project_id)
    found = c.execute(select(*COLUMNS).where(mine).with_for_update()).first()
    if found is None:
        raise NotFound("There is no such delivery.", {"delivery_id": delivery_id})
    if found.state != "dead":
        raise NotRedrivable(f"This delivery is {found.state}, not dead.", {"state": found.state})
    if not channels_of(c, [channel_id]):
        raise NotRedrivable(f"Nothing can be sent: {GONE}.", {"channel_id": channel_id})
    numbers = _dead_beside(c, found)
    meant = o.number.in_(numbers) & (o.state == "dead")
    rows = c.execute(select(*COLUMNS).where(meant).order_by(o.number).with_for_update()).all()
    _refuse_late(c, rows)
    _refuse_endless(c, rows[-1])
    again = {"state": "pending", "attempts": 0, "next_ms": 0, "since_ms": None, "ended_ms": None}
    c.execute(update(t.outbox).where(meant).values(again))
    add(c, project_id, leases.REDRIVES, 1)
    after = {"state": "pending", "deliveries": len(rows)}
    write_down(c, place, [Note("delivery.redrive", delivery_id, {"state": "dead"}, after)])
    told = select(*COLUMNS).where(o.number.in_([row.number for row in rows])).order_by(o.number)
    return [delivery_of(row) for row in c.execute(told)]


def _dead_beside(c: Connection, row: Row[Any]) -> list[int]:
    """Numbers of a dead row and of the newest dead ones of its outage; REDRIVEN_MAX in all. However many there are, as
    many are read of each kind, by the index on outages."""
    o, found = t.outbox.c, {row.number}
    if row.incident is not None:
        mine = (o.incident == row.incident) & (o.channel_id == row.channel_id) & (o.breaker_id == row.breaker_id)
        for kind in _KINDS:
            dead = select(o.number).where(mine, o.kind == kind, o.state == "dead")
            found.update(c.execute(dead.order_by(o.number.desc()).limit(REDRIVEN_MAX)).scalars())
    newest = sorted(found - {row.number}, reverse=True)
    return [row.number, *newest[: REDRIVEN_MAX - 1]]


def _refuse_late(c: Connection, rows: Sequence[Row[Any]]) -> None:
    """What the receiver hears last must stay true: an old end must not look like that of an outage which stands, nor an
    old trip like one of now. Newer rows that are still to be sent put it right by themselves."""
    o, last = t.outbox.c, rows[-1]
    channel = (o.project_id == last.project_id) & (o.channel_id == last.channel_id)
    chain = channel & (o.breaker_id == last.breaker_id)
    newer = select(o.kind, o.state).where(chain, o.number > last.number, o.state.in_(("pending", "sent")))
    newest = c.execute(newer.order_by(o.number.desc()).limit(1)).first()
    if newest is None or newest.state == "pending" or (newest.kind == "trip") == (last.kind == "trip"):
        return
    heard = "that it has tripped again" if newest.kind == "trip" else "of its recovery"
    raise NotRedrivable(
        f"This channel was told since {heard}: what is older would make it believe the contrary.",
        {"breaker_id": last.breaker_id},
    )


def _refuse_endless(c: Connection, last: Row[Any]) -> None:
    """A trip whose outage is over, for a channel that takes ends and has none of this one: nobody takes it back."""
    o, e, ch = t.outbox.c, t.events.c, t.channels.c
    if last.kind != "trip":
        return
    alerts = c.execute(select(ch.events).where(ch.id == last.channel_id)).scalar()
    mine = (o.project_id == last.project_id) & (o.channel_id == last.channel_id) & (o.breaker_id == last.breaker_id)
    followed = select(literal(1)).where(mine, o.number > last.number, o.state.in_(("pending", "sent")))
    if (alerts is not None and "recover" not in alerts) or c.execute(followed.limit(1)).first():
        return
    state = c.execute(select(t.records.c.state).where(t.records.c.breaker_id == last.breaker_id)).scalar()
    closed = select(literal(1)).where(
        e.breaker_id == last.breaker_id,
        e.project_id == last.project_id,
        e.transition_seq > last.transition_seq,
        e.curr == "closed",
        e.hidden_by.is_(None),
    )
    if state in (None, "closed") or c.execute(closed.limit(1)).first():
        raise NotRedrivable(
            "This outage is over, and the channel has no word of its end: the trip would stand for ever.",
            {"breaker_id": last.breaker_id},
        )


def _to_shed(c: Connection, project_id: str, much: int, walk: Walk, now_ms: int) -> Found:
    """Of a page of a project's rows, oldest first, those that have ended, which are removed; where a whole lap found
    none, those that wait, which end. The page may be long to look through, so nobody's writes may wait for it."""
    p = page_of(c, _KEPT, project_id, walk.mark, PRUNE_MAX).c
    query = select(p.number, _forgettable(p).label("ended"), _waits(p, now_ms).label("waits")).order_by(p.number)
    rows = c.execute(query).all()
    last = (rows[-1].number,) if len(rows) == PRUNE_MAX else None
    ended, waiting = [row.number for row in rows if row.ended], [row.number for row in rows if row.waits]
    if ended or not walk.takes_them:
        return Found(ended[:much], _remove_early, last, bool(waiting))
    return Found(waiting[: (much + 1) // 2], partial(_end, now_ms=now_ms), last)


def _remove_early(c: Connection, numbers: Sequence[int]) -> int:
    """Removes ended rows before their time, counted."""
    removed = _remove(c, numbers)
    if removed:
        bump(c, DELIVERIES_DROPPED, removed)
    return removed


def _remove(c: Connection, numbers: Sequence[int]) -> int:
    """Removes those of some rows that have ended, and are not needed; how many."""
    o = t.outbox.c
    rows = c.execute(select(o.number, o.project_id, o.payload_id).where(o.number.in_(numbers), _ENDED)).all()
    c.execute(delete(t.outbox).where(o.number.in_([row.number for row in rows])))
    for project_id, count in Counter(row.project_id for row in rows).items():
        add(c, project_id, "deliveries", -count)
    drop_unused(c, [row.payload_id for row in rows])
    return len(rows)


def _waits(o: Any, now_ms: int) -> ColumnElement[bool]:
    """What waits and may end by itself: not what is being sent, nor an end of an outage, which goes with its trips."""
    free = o.lease_until_ms.is_(None) | (o.lease_until_ms <= now_ms)
    return and_(o.state.in_(("pending", "held")), free, (o.kind == "trip") | o.incident.is_(None))


def _end(c: Connection, numbers: Sequence[int], now_ms: int) -> int:
    """Makes alerts that wait dead, held ones among them, and with a trip the end of its outage: whoever takes them too
    slowly loses whole outages. The end of an outage whose trip was sent is kept. How many."""
    o = t.outbox.c
    query = select(o.number, o.channel_id, o.kind, o.incident)
    rows = c.execute(query.where(o.number.in_(numbers), _waits(o, now_ms)).order_by(o.number).with_for_update()).all()
    ended = {"state": "dead", "ended_ms": now_ms, "last_error": TOO_MANY}
    c.execute(update(t.outbox).where(o.number.in_([row.number for row in rows])).values(ended))
    trips = [(row.channel_id, row.incident) for row in rows if row.kind == "trip"]
    count = len(rows) + leases.drop_followers(c, trips, now_ms).total()
    if count:
        bump(c, UNSENT, count)
    return count


def _forgettable(o: Any) -> ColumnElement[bool]:
    """What has ended, but for the last sent trip of an outage that goes on, or whose end is still on its way: an end is
    told to those only who know of the beginning. `o`: columns of deliveries."""
    same, pending = t.outbox.alias(), t.outbox.alias()
    newer = exists().where(
        same.c.incident == o.incident,
        same.c.channel_id == o.channel_id,
        same.c.kind == "trip",
        same.c.state == "sent",
        same.c.number > o.number,
    )
    # Said so that the index on outages serves: not that on what is pending, which may be everything of one channel, nor
    # a table of all that PostgreSQL would make for a page, but for a condition beside those that it can look up by.
    on_its_way = exists().where(
        pending.c.incident == o.incident,
        pending.c.channel_id == o.channel_id,
        pending.c.kind.in_(_KINDS),
        pending.c.state.between("pending", "pending"),
        pending.c.number != o.number,
    )
    needed = and_(o.kind == "trip", o.state == "sent", ~newer, on_its_way | stands(o))
    return and_(o.state.not_in(("pending", "held")), ~needed)


_O = t.outbox.c
_KEPT = Kept(
    order=(_O.project_id, _O.number),
    columns=(
        *(_O.number, _O.project_id, _O.channel_id, _O.breaker_id, _O.kind, _O.transition_seq, _O.incident, _O.state),
        _O.lease_until_ms,
    ),
)
_ENDED = _forgettable(_O)
_OLD = Part("deliveries", t.outbox.c.created_ms, (t.outbox.c.created_ms, t.outbox.c.number), _ENDED)
