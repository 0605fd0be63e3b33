"""Mutes in the transaction of an alert: what is held back when it is born, and what ends with what was held.

A trip that a mute matches is held. A trip of the same breaker that comes later on the same channel takes the place of
the held one, so at most one is held per breaker and channel. A recovery whose trip was sent, or will be, goes out; one
whose trip is held ends with it, both suppressed. Sync functions over a `Connection`; neighbours: `alerts.py`, which
calls them, `held.py`, which releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Select, bindparam, exists, literal, select, tuple_, update

from breaker_actors.store import tables as t
from breaker_actors.store.mutes.matching import ROUTERS_MAX, BreakerFacts, ChannelFacts, Effort, Spent
from breaker_actors.store.outbox.judging import EFFORT_MAX, Judge
from breaker_actors.store.quotas import UNMUTED
from breaker_actors.store.rows import AlertPayload, MutedBy, MuteRow
from breaker_actors.store.section import IDS, bump, by_ids, chunks

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
_MUTES = select(*MUTE_COLUMNS).where(LIVE, t.mutes.c.project_id.in_(IDS)).order_by(t.mutes.c.number)


class Superseded(NamedTuple):
    """A held delivery of the store that ends when the new one `by` is stored."""

    number: int
    at_ms: int
    by: str


class _Held(NamedTuple):
    """A trip that is held: a new row, or one of the store by its number."""

    mute_id: str
    incident: int | None
    row: dict[str, Any] | None
    number: int


def is_quiet(project_id: Column[str]) -> ColumnElement[bool]:
    """Whether a project has a mute that has not ended, or deliveries that are held."""
    mute = exists().where(t.mutes.c.project_id == project_id, LIVE)
    return mute | exists().where(t.outbox.c.project_id == project_id, HELD)


def stands() -> ColumnElement[bool]:
    """Whether the outage of a delivery goes on: its breaker is not closed, and was not since."""
    o, e, b = t.outbox.c, t.events.c, t.breakers.c
    same_life = (e.breaker_id == o.breaker_id) & (e.project_id == o.project_id)
    over = exists().where(same_life, e.transition_seq > o.transition_seq, e.prev == "closed", e.hidden_by.is_(None))
    its_breaker = (b.id == o.breaker_id) & (b.project_id == o.project_id)
    away = exists().where(its_breaker, t.records.c.breaker_id == b.id, t.records.c.state != "closed")
    return away & ~over


def live_mutes(c: Connection, project_ids: Sequence[str]) -> dict[str, list[MuteRow]]:
    """The mutes of projects that have not ended, oldest first."""
    found: dict[str, list[MuteRow]] = {}
    for row in by_ids(c, _MUTES, project_ids):
        found.setdefault(row.project_id, []).append(mute_of(row))
    return found


def mutes_named(c: Connection, mute_ids: Iterable[str]) -> dict[str, MuteRow]:
    """Mutes by their ids, those that have ended included."""
    return {row.id: mute_of(row) for row in by_ids(c, _NAMED, sorted(set(mute_ids)))}


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


def hold_back(c: Connection, rows: Sequence[dict[str, Any]]) -> list[Superseded]:
    """Judges new rows in order, before they are stored: mutes that match at the time of their event hold trips and
    suppress recoveries. Answers what of the store ends with them. Beyond EFFORT_MAX of a project its rows go out as if
    nothing muted them, counted."""
    if not rows:
        return []
    judges = _judges(c, sorted({row["project_id"] for row in rows}))
    breakers = breaker_facts(c, sorted({row["breaker_id"] for row in rows}))
    channels = channel_facts(c, sorted({row["channel_id"] for row in rows}))
    held = _held_of(c, rows)
    told = told_outages(c, rows)  # after the held ones are locked: what is released meanwhile counts as told
    superseded: list[Superseded] = []
    unjudged = 0
    for row in rows:
        key, outage = (row["channel_id"], row["breaker_id"]), (row["channel_id"], row["incident"])
        breaker, channel = breakers.get(row["breaker_id"]), channels[row["channel_id"]]
        try:
            found = breaker and judges[row["project_id"]].last_to_end(breaker, channel, row["created_ms"])
        except Spent:  # better heard than lost
            found, unjudged = None, unjudged + 1
        if row["kind"] == "observed":
            if found:
                _suppress(row, found[0].id)
            continue
        before = held.pop(key, None)
        if row["kind"] == "trip":
            if found:
                row |= {"state": "held", "mute_id": found[0].id}
                held[key] = _Held(found[0].id, row["incident"], row, 0)
            else:
                _own_up(c, row, before)
                told.add(outage)
        elif before is not None and outage not in told:
            _suppress(row, before.mute_id)
        elif found and row["incident"] is None and before is None:
            _suppress(row, found[0].id)  # the channel takes recoveries only
        if before is None:
            continue
        if before.row is not None:
            _suppress(before.row, before.mute_id, row["created_ms"])
        else:
            superseded.append(Superseded(before.number, row["created_ms"], row["id"]))
    if unjudged:
        bump(c, UNMUTED, unjudged)
    return superseded


def _judges(c: Connection, project_ids: Sequence[str]) -> dict[str, Judge]:
    """One for each project, with a budget of its own."""
    mutes, routers = live_mutes(c, project_ids), Routers(c)
    return {id_: Judge(mutes.get(id_, ()), routers.of, Effort(EFFORT_MAX)) for id_ in project_ids}


def _own_up(c: Connection, row: dict[str, Any], before: _Held | None) -> None:
    """A trip that nobody mutes and that takes the place of a held one of its outage says what its receiver did not
    hear; the mute may have ended since."""
    if before is None or before.incident != row["incident"]:
        return
    if mute := mutes_named(c, [before.mute_id]).get(before.mute_id):
        row["told"] = told_late(row["told"], mute)


def _suppress(row: dict[str, Any], mute_id: str, at_ms: int | None = None) -> None:
    row |= {"state": "suppressed", "mute_id": mute_id, "ended_ms": row["created_ms"] if at_ms is None else at_ms}


def suppress_held(c: Connection, ended: Sequence[Superseded]) -> None:
    """Ends held deliveries whose outage is over, or that a newer one took the place of."""
    for one in ended:
        values = {"state": "suppressed", "ended_ms": one.at_ms}
        c.execute(update(t.outbox).where(t.outbox.c.number == one.number, HELD).values(values))


def suppress_ended(c: Connection, breakers: Sequence[tuple[str, str]], now_ms: int) -> None:
    """Ends what is held of breakers (project, breaker) that are deleted. Locked in order, as the Notifier does."""
    o = t.outbox.c
    held = select(o.number).where(HELD).order_by(o.number).with_for_update()
    for some in chunks(breakers):
        numbers = list(c.execute(held.where(tuple_(o.project_id, o.breaker_id).in_(some))).scalars())
        for few in chunks(numbers):
            values = {"state": "suppressed", "ended_ms": now_ms}
            c.execute(update(t.outbox).where(o.number.in_(few)).values(values))


def _held_of(c: Connection, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], _Held]:
    """The held trips of the breakers of new rows, locked: they are not released beside this."""
    o = t.outbox.c
    found: dict[tuple[str, str], _Held] = {}
    query = (
        select(o.number, o.channel_id, o.breaker_id, o.mute_id, o.incident)
        .where(HELD)
        .order_by(o.number)
        .with_for_update()
    )
    for some in chunks(sorted({(row["project_id"], row["breaker_id"]) for row in rows})):
        for row in c.execute(query.where(tuple_(o.project_id, o.breaker_id).in_(some))):
            found[row.channel_id, row.breaker_id] = _Held(row.mute_id, row.incident, None, row.number)
    return found


def told_outages(c: Connection, rows: Sequence[dict[str, Any]]) -> set[tuple[str, int | None]]:
    """The (channel, outage) of new rows that have a trip which was sent, or will be."""
    o = t.outbox.c
    incidents = sorted({row["incident"] for row in rows if row["incident"] is not None})
    query = select(o.channel_id, o.incident).where(o.kind == "trip", o.state.in_(("pending", "sent")))
    return {
        (channel_id, incident)
        for some in chunks(incidents)
        for channel_id, incident in c.execute(query.where(o.incident.in_(some)))
    }
