"""Mutes in the transaction of an alert: what is held back when it is born, and what ends with what was held.

A trip that a mute matches is held. A trip of the same breaker that comes later on the same channel takes the place of
the held one, so at most one is held per breaker and channel. A recovery whose trip was sent, or will be, goes out; one
whose trip is held ends with it, both suppressed. The transaction is everybody's, so matching has a bound there: a trip
beyond it is held without a mute until the Notifier has decided. Sync functions over a `Connection`; neighbours:
`alerts.py`, which calls them, `judges.py`, who is judged with what effort, `held.py`, which releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Select, bindparam, exists, literal, select, tuple_, update

from breaker_actors.store import tables as t
from breaker_actors.store.mutes.matching import ROUTERS_MAX, BreakerFacts, ChannelFacts, Spent
from breaker_actors.store.outages import begins_outage
from breaker_actors.store.outbox.judging import Judge
from breaker_actors.store.outbox.trips import outages_of, told_outages
from breaker_actors.store.rows import AlertPayload, MutedBy, MuteRow
from breaker_actors.store.section import IDS, by_ids, chunks

# Written out, not as a parameter: the planner must see that the partial index serves.
HELD = t.outbox.c.state == literal("held", literal_execute=True)
LIVE = t.mutes.c.ended_ms.is_(None)
MUTE_COLUMNS = [t.mutes.c[f] for f in MuteRow.__struct_fields__]
OWN_SLACK = "slack_webhook_url"
"""The name of the channel that a project's own address is."""


def _facts_statement() -> Select[Any]:
    b = t.breakers.c
    query = select(b.id, b.name, b.rule, b.metadata, t.records.c.state)
    return query.outerjoin(t.records, t.records.c.breaker_id == b.id)


def _linked_statement() -> Select[Any]:
    r, links = t.routers.c, t.links.c
    query = select(links.router_id).join_from(t.links, t.routers, r.id == links.router_id)
    mine = links.breaker_id == bindparam("breaker")
    return query.where(mine, r.deleted_ms.is_(None)).order_by(links.number).limit(ROUTERS_MAX)


FACTS = _facts_statement()
"""What `facts_of` reads; to be narrowed."""
_BREAKERS, _LINKED = FACTS.where(t.breakers.c.id.in_(IDS)), _linked_statement()
_METADATA = select(t.routers.c.id, t.routers.c.metadata).where(t.routers.c.id.in_(IDS))
_CHANNELS = select(t.channels.c.id, t.channels.c.name, t.channels.c.channel).where(t.channels.c.id.in_(IDS))
_NAMED = select(*MUTE_COLUMNS).where(t.mutes.c.id.in_(IDS))
# not HELD: what is rendered at execution is no executemany
_SUPERSEDE = (
    update(t.outbox)
    .where(t.outbox.c.number == bindparam("its"), t.outbox.c.state == "held")
    .values(state=bindparam("to"), ended_ms=bindparam("ended"))
)
_MUTES = select(*MUTE_COLUMNS).where(LIVE, t.mutes.c.project_id.in_(IDS)).order_by(t.mutes.c.number)


class Superseded(NamedTuple):
    """A held delivery of the store that ends when the new one `by` is stored; pending and without an end: it goes out
    with it."""

    number: int
    ended_ms: int | None
    by: str
    state: Literal["suppressed", "pending"] = "suppressed"


class _Held(NamedTuple):
    """A trip that is held: a new row, or one of the store by its number. `mute_id` None: nobody has decided yet."""

    mute_id: str | None
    incident: int | None
    row: dict[str, Any] | None
    number: int
    born_ms: int


def is_quiet(project_id: Column[str]) -> ColumnElement[bool]:
    """Whether a project has a mute that has not ended, or deliveries that are held."""
    mute = exists().where(t.mutes.c.project_id == project_id, LIVE)
    return mute | exists().where(t.outbox.c.project_id == project_id, HELD)


def stands(of: Any = t.outbox.c) -> ColumnElement[bool]:
    """Whether the outage of a delivery goes on: its breaker is not closed, and was not since. `of`: its columns."""
    o, e, b = of, t.events.c, t.breakers.c
    same_life = (e.breaker_id == o.breaker_id) & (e.project_id == o.project_id)
    over = exists().where(same_life, e.transition_seq > o.transition_seq, begins_outage(e))
    its_breaker = (b.id == o.breaker_id) & (b.project_id == o.project_id)
    away = exists().where(its_breaker, t.records.c.breaker_id == b.id, t.records.c.state != "closed")
    return away & ~over


def live_mutes(c: Connection, project_ids: Sequence[str]) -> dict[str, list[MuteRow]]:
    """The mutes of projects that have not ended, oldest first."""
    found: dict[str, list[MuteRow]] = {}
    for row in by_ids(c, _MUTES, project_ids):
        found.setdefault(row.project_id, []).append(mute_of(row))
    return found


def mutes_named(c: Connection, mute_ids: Iterable[str | None]) -> dict[str, MuteRow]:
    """Mutes by their ids, those that have ended included; None is nobody's."""
    return {row.id: mute_of(row) for row in by_ids(c, _NAMED, sorted({id_ for id_ in mute_ids if id_ is not None}))}


def mute_of(row: Any) -> MuteRow:
    return MuteRow(**row._mapping)


class Routers:
    """The metadata of breakers' routers, read when they are asked for; each router once."""

    def __init__(self, c: Connection) -> None:
        self._c = c
        self._metadata: dict[str, dict[str, str]] = {}

    def of(self, breaker_id: str) -> list[dict[str, str]]:
        """Of the first ROUTERS_MAX that a breaker was linked to."""
        ids = list(self._c.execute(_LINKED, {"breaker": breaker_id}).scalars())
        new = [id_ for id_ in ids if id_ not in self._metadata]
        self._metadata |= {row.id: row.metadata for row in by_ids(self._c, _METADATA, new)}
        return [self._metadata[id_] for id_ in ids if id_ in self._metadata]


def breaker_facts(c: Connection, breaker_ids: Sequence[str]) -> dict[str, BreakerFacts]:
    """What matchers may look at of breakers that are there, but for their routers."""
    return {row.id: facts_of(row, ()) for row in by_ids(c, _BREAKERS, breaker_ids)}


def facts_of(row: Any, routers: Iterable[dict[str, str]]) -> BreakerFacts:
    return BreakerFacts(
        id=row.id,
        name=row.name,
        metric=row.rule.metric,
        kind=row.rule.kind,
        metadata=row.metadata,
        routers=tuple(routers),
        open=row.state == "open",
    )


def channel_facts(c: Connection, channel_ids: Sequence[str]) -> dict[str, ChannelFacts]:
    """The same of channels; an id that is none stands for a project's own Slack address."""
    found = {id_: ChannelFacts(id=id_, name=OWN_SLACK, kind="slack") for id_ in channel_ids}
    for row in by_ids(c, _CHANNELS, channel_ids):
        found[row.id] = ChannelFacts(id=row.id, name=row.name, kind=row.channel)
    return found


def told_late(told: AlertPayload, mute: MuteRow) -> AlertPayload:
    """A trip with the mute behind which it waited, and when its outage began."""
    since_ms = told.ts_ms - (told.outage_ms or 0)
    by = MutedBy(mute_id=mute.id, comment=mute.comment, by=mute.created_name, open_since_ms=since_ms)
    return replace(told, muted_by=by)


class Births:
    """New rows before they are stored, judged project by project and in order: mutes that match at the time of their
    event hold trips and suppress recoveries. `ended`: what of the store ends with them; `unmuted`: how many go out
    since there was no effort left to find out whether they are muted, and they can't wait."""

    def __init__(self, c: Connection, rows: Sequence[dict[str, Any]]) -> None:
        self._c = c
        self._breakers = breaker_facts(c, sorted({row["breaker_id"] for row in rows}))
        self._channels = channel_facts(c, sorted({row["channel_id"] for row in rows}))
        self._held = _held_of(c, rows)
        # after the held ones are locked: what is released meanwhile counts as told
        self._told = told_outages(c, outages_of(rows))
        self._owning: list[tuple[dict[str, Any], str]] = []
        self.ended: list[Superseded] = []
        self.unmuted = 0

    def judge(self, rows: Sequence[dict[str, Any]], judge: Judge | None) -> None:
        """The rows of one project. None: its mutes are not there, so nothing can be found out."""
        for row in rows:
            try:
                mute_id, is_known = self._mute_of(row, judge, row["created_ms"]), True
            except Spent:
                mute_id, is_known = None, False
            if row["kind"] == "observed":
                self.unmuted += not is_known
                if mute_id:
                    _suppress(row, mute_id)
                continue
            before = self._held.pop((row["channel_id"], row["breaker_id"]), None)
            if row["kind"] == "trip":
                self._trip(row, before, mute_id, is_known)
            elif before is not None and (row["channel_id"], row["incident"]) not in self._told:
                before = self._end_both(row, before, judge)
            elif row["incident"] is None and before is None:  # the channel takes recoveries only
                self.unmuted += not is_known
                if mute_id:
                    _suppress(row, mute_id)
            if before is not None:
                self._end(before, row)

    def own_up(self) -> None:
        """Trips that nobody mutes and that take the place of held ones of their outage say what their receivers did not
        hear; the mutes may have ended since. Once all rows are judged. What channels are told alike stays one text."""
        mutes = mutes_named(self._c, (mute_id for _, mute_id in self._owning))
        late: dict[tuple[int, str], tuple[AlertPayload, AlertPayload]] = {}
        for row, mute_id in self._owning:
            if mute_id in mutes:
                key = (id(row["told"]), mute_id)
                if key not in late:
                    late[key] = row["told"], told_late(row["told"], mutes[mute_id])
                row["told"] = late[key][1]

    def _mute_of(self, row: dict[str, Any], judge: Judge | None, at_ms: int) -> str | None:
        """Raises Spent."""
        breaker = self._breakers.get(row["breaker_id"])
        if breaker is None:
            return None
        if judge is None:
            raise Spent
        found = judge.last_to_end(breaker, self._channels[row["channel_id"]], at_ms)
        return None if found is None else found[0].id

    def _trip(self, row: dict[str, Any], before: _Held | None, mute_id: str | None, is_known: bool) -> None:
        if mute_id or not is_known:
            row |= {"state": "held", "mute_id": mute_id}
            key = (row["channel_id"], row["breaker_id"])
            self._held[key] = _Held(mute_id, row["incident"], row, 0, row["created_ms"])
        else:
            if before is not None and before.mute_id is not None and before.incident == row["incident"]:
                self._owning.append((row, before.mute_id))
            self._told.add((row["channel_id"], row["incident"]))

    def _end_both(self, row: dict[str, Any], before: _Held, judge: Judge | None) -> _Held | None:
        """A recovery whose trip is held; the trip, where it ends with it. Where nobody had decided about the trip it is
        decided now, as of its time, and where that can't be both go out: better heard than lost."""
        mute_id = before.mute_id
        if mute_id is None:
            try:
                mute_id = self._mute_of(row, judge, before.born_ms)
            except Spent:
                self.unmuted += 2
        if mute_id is not None:
            _suppress(row, mute_id)
            return before._replace(mute_id=mute_id)
        self._told.add((row["channel_id"], row["incident"]))
        if before.row is not None:
            before.row["state"] = "pending"
        else:
            self.ended.append(Superseded(before.number, None, row["id"], "pending"))
        return None

    def _end(self, before: _Held, row: dict[str, Any]) -> None:
        if before.row is not None:
            _suppress(before.row, before.mute_id, row["created_ms"])
        else:
            self.ended.append(Superseded(before.number, row["created_ms"], row["id"]))


def _suppress(row: dict[str, Any], mute_id: str | None, at_ms: int | None = None) -> None:
    row |= {"state": "suppressed", "mute_id": mute_id, "ended_ms": row["created_ms"] if at_ms is None else at_ms}


def suppress_held(c: Connection, ended: Sequence[Superseded]) -> None:
    """Ends held deliveries whose outage is over, or that a newer one took the place of, and lets go what nothing
    mutes."""
    if ended:
        c.execute(_SUPERSEDE, [{"its": one.number, "to": one.state, "ended": one.ended_ms} for one in ended])


def suppress_ended(
    c: Connection, project_id: str, breaker_ids: Sequence[str], channel_ids: Sequence[str], now_ms: int
) -> None:
    """Ends what is held on these channels of breakers that are deleted: one at most of a breaker on a channel. Locked
    in order, as the Notifier does."""
    o = t.outbox.c
    held = select(o.number).where(HELD, o.project_id == project_id, o.channel_id.in_(channel_ids))
    held = held.order_by(o.number).with_for_update()
    for some in chunks(breaker_ids):
        numbers = list(c.execute(held.where(o.breaker_id.in_(some))).scalars())
        for few in chunks(numbers):
            values = {"state": "suppressed", "ended_ms": now_ms}
            c.execute(update(t.outbox).where(o.number.in_(few)).values(values))


_O = t.outbox.c
_LOCK_HELD = (
    select(_O.number, _O.channel_id, _O.breaker_id, _O.mute_id, _O.incident, _O.created_ms)
    .where(HELD, _O.number.in_(IDS))
    .order_by(_O.number)
    .with_for_update()
)


def _held_of(c: Connection, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], _Held]:
    """The held trips of the breakers of new rows, locked: they are not released beside this. They are locked in order
    of their numbers, however many statements that takes, as all do who lock several."""
    o = t.outbox.c
    query = select(o.number).where(HELD)
    breakers = sorted({(row["project_id"], row["breaker_id"]) for row in rows})
    numbers = sorted(
        number
        for some in chunks(breakers)
        for number in c.execute(query.where(tuple_(o.project_id, o.breaker_id).in_(some))).scalars()
    )
    held = by_ids(c, _LOCK_HELD, numbers)
    return {
        (row.channel_id, row.breaker_id): _Held(row.mute_id, row.incident, None, row.number, row.created_ms)
        for row in held
    }
