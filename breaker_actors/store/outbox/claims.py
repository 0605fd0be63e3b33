"""Taking rows of the outbox under the Notifier's epoch, and what becomes of them.

Per channel and breaker rows go in order of `number`: only the first pending one of such a chain may be taken. A
recovery whose outage was never told ends as its trips did. Sync functions over a `Connection`, each inside one
transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, Update, bindparam, delete, func, literal, select, update
from sqlalchemy.sql.dml import ReturningUpdate

from breaker_actors.store import tables as t
from breaker_actors.store.fencing import NOTIFIER
from breaker_actors.store.outbox.channel_queue import PENDING, channels_of, store_circuit
from breaker_actors.store.outbox.payloads import TOLD
from breaker_actors.store.outbox.trips import TOLD_IN, Outage, first_trips, followers
from breaker_actors.store.quotas import What
from breaker_actors.store.rows import CircuitRow, DeliveryResult, DeliveryRow, DeliveryState
from breaker_actors.store.section import IDS, by_ids, chunks

PAGE, HEADS_MAX = 64, 400
"""A lease reads a channel's rows by pages and looks at so many breakers at most: if all of those are being sent or wait
to be tried again, the others wait with them."""
GIVE_UP_MAX, BEGUN_MAX = 500, 2_000
"""Rows of a channel that does not answer: so many are given up at once, and of so many their time begins."""
CANCEL_MAX = 1_000
"""Rows of channels that are gone, cancelled at once."""
PAUSE_MAX_MS = 3_600_000
"""No row waits longer to be tried again: an hour is what a receiver may ask for."""
LEASE_APART_MS = 5_000
"""So far beyond a lease of now one of another Notifier may lie, whose clock is another."""
COLUMNS = [TOLD if f == "told" else t.outbox.c[f] for f in DeliveryRow.__struct_fields__]
GONE = "the channel was disabled or deleted"
NOT_TOLD = {
    "dead": "no trip of this outage could be sent: see the dead one",
    "cancelled": "no trip of this outage was sent on this channel",
}


def _queue_heads_statement() -> Select[Any]:
    o = t.outbox.c
    columns = (o.number, o.id, o.breaker_id, o.kind, o.incident, o.next_ms, o.lease_epoch, o.lease_until_ms)
    query = select(*columns).where(PENDING, o.channel_id == bindparam("channel"))
    return query.order_by(o.number).limit(literal(PAGE, literal_execute=True))


def _claim_statement() -> ReturningUpdate[Any]:
    o = t.outbox.c
    return (
        update(t.outbox)
        .where(o.number.in_(IDS) & PENDING)
        .values(
            lease_epoch=bindparam("epoch"),
            lease_until_ms=bindparam("until"),
            attempts=o.attempts + 1,
            since_ms=func.coalesce(o.since_ms, bindparam("now")),
        )
        .returning(*COLUMNS)
    )


def _settle_statement() -> Update:
    return (
        update(t.outbox)
        .where(t.outbox.c.id == bindparam("which"))
        .values(
            state=bindparam("to"),
            next_ms=bindparam("next"),
            last_status=bindparam("status"),
            last_error=bindparam("error"),
            ended_ms=bindparam("ended"),
            lease_epoch=None,
            lease_until_ms=None,
        )
    )


def _claimed_statement() -> Select[Any]:
    o = t.outbox.c
    query = select(o.id, o.channel_id, o.incident, o.state, o.kind)
    mine = o.id.in_(IDS) & (o.lease_epoch == bindparam("epoch"))
    return query.where(mine).with_for_update()


_HEADS = _queue_heads_statement()
_HEADS_BEYOND = _HEADS.where(
    t.outbox.c.number > bindparam("after"), t.outbox.c.breaker_id.not_in(bindparam("seen", expanding=True))
)
_CLAIM = _claim_statement()
_CLAIMED_OF_EPOCH = _claimed_statement()
_SETTLE = _settle_statement()
_END = (
    update(t.outbox)
    .where(t.outbox.c.number.in_(IDS) & PENDING)
    .values(state=bindparam("to"), last_error=bindparam("error"), ended_ms=bindparam("ended"))
)
_FORGET_CIRCUITS = delete(t.circuits).where(t.circuits.c.channel_id.in_(IDS))
_PENDING_OF = (
    select(t.outbox.c.number, t.outbox.c.channel_id)
    .where(PENDING, t.outbox.c.channel_id.in_(IDS))
    .order_by(t.outbox.c.channel_id, t.outbox.c.number)
    .limit(bindparam("most"))
    .with_for_update()
)
REDRIVES: What = "redrives"
"""The count of a project's redrives: each puts something before what has waited till then."""
_REDRIVES = select(t.stored.c.of_id, t.stored.c.used).where(t.stored.c.of_id.in_(IDS), t.stored.c.what == REDRIVES)


class Term(NamedTuple):
    """Under which epoch and for how long rows are taken; `held`: ids that this epoch is sending already."""

    epoch: int
    now_ms: int
    until_ms: int
    held: frozenset[str]


class Ready(NamedTuple):
    """Of one channel: rows that may be taken now, when the next of the others may be, and the count of its project's
    redrives (see `take`)."""

    heads: list[Any]
    later_ms: int | None
    redrives: int


class Taken(NamedTuple):
    """Rows that are leased, and how many were ended because their trips were not told, by channel and state."""

    rows: list[DeliveryRow]
    dropped: dict[str, dict[str, int]]


class Cancelled(NamedTuple):
    """How many rows of each channel were ended, and whether these were all."""

    counts: dict[str, int]
    all: bool


class Overdue(NamedTuple):
    """Of a channel that does not answer: numbers of rows whose time does not run yet, and rows to be given up."""

    fresh: list[int]
    ripe: list[Any]


def delivery_of(row: Row[Any]) -> DeliveryRow:
    return DeliveryRow(**row._mapping)


def heads_of(c: Connection, channel_id: str, want: int, term: Term) -> tuple[list[Any], int | None]:
    """The first rows of chains that may be taken now, oldest first, and when the next of the others may be. Walks each
    row that waits for the channel once, at most."""
    after = 0
    heads: list[Any] = []
    later: list[int] = []
    seen: set[str] = set()
    while len(seen) < HEADS_MAX:
        values: dict[str, Any] = {"channel": channel_id}
        beyond = {"seen": list(seen), "after": after}
        page = c.execute(*((_HEADS_BEYOND, values | beyond) if seen else (_HEADS, values))).all()
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
        after = page[-1].number
    return heads, min(later, default=None)


def _free_ms(row: Any, term: Term) -> int | None:
    """From when on a row may be taken; None: it is being sent by who asks. Times that no pause and no lease explains
    are those of a clock that was ahead: nobody waits for them."""
    if row.id in term.held:
        return None
    next_ms = int(row.next_ms) if row.next_ms <= term.now_ms + PAUSE_MAX_MS else term.now_ms
    if row.lease_epoch is None or row.lease_epoch == term.epoch:
        # of this epoch and not held: the answer to that lease got lost
        return next_ms
    # of an older one: its result may still come, so it is not sent beside it
    leased_ms = int(row.lease_until_ms) if row.lease_until_ms <= term.until_ms + LEASE_APART_MS else term.now_ms
    return max(next_ms, leased_ms)


def ready(c: Connection, wants: Mapping[str, int], term: Term) -> tuple[dict[str, Any], dict[str, Ready]]:
    """Channels that are there, and what of each may be claimed. It may walk through all that waits for a channel, so
    nobody's writes may wait for it. Raises Fenced."""
    NOTIFIER.look(c, term.epoch)
    there = channels_of(c, list(wants))
    redrives = _redrives(c, {channel.project_id for channel in there.values()})
    return there, {
        channel_id: Ready(*heads_of(c, channel_id, wants[channel_id], term), redrives[channel.project_id])
        for channel_id, channel in there.items()
    }


def _redrives(c: Connection, project_ids: Collection[str]) -> Counter[str]:
    return Counter({row.of_id: row.used for row in by_ids(c, _REDRIVES, list(project_ids))})


def take(c: Connection, found: Mapping[str, Ready], project_of: Mapping[str, str], term: Term) -> Taken:
    """Leases what was found, and ends what follows a trip that was never told. Raises Fenced: so nobody else can have
    leased any of them since. Nothing of a project where something was redriven since: it may come before what was
    found. An end whose trip is to be sent again by now waits behind it."""
    NOTIFIER.check(c, term.epoch)
    redrives = _redrives(c, {project_of[channel_id] for channel_id in found})
    found = {id_: one for id_, one in found.items() if redrives[project_of[id_]] == one.redrives}
    heads = [(channel_id, head) for channel_id, one in found.items() for head in one.heads]
    ends = {head.number: (channel_id, head.incident) for channel_id, head in heads if head.kind != "trip"}
    outages = set(ends.values())
    trips = first_trips(c, outages)
    dropped = {
        channel_id: dict(_drop_untold(c, [one for one in outages if one[0] == channel_id], trips, term.now_ms))
        for channel_id in {channel_id for channel_id, _ in outages}
    }
    waits = {number for number, one in ends.items() if trips.get(one, {}).get("pending", number) < number}
    return Taken(claim(c, [head.number for _, head in heads if head.number not in waits], term), dropped)


def claim(c: Connection, numbers: Sequence[int], term: Term) -> list[DeliveryRow]:
    """Leases rows, of whichever channels, that are still pending, oldest first; each counts as attempted from here
    on."""
    values = {"epoch": term.epoch, "until": term.until_ms, "now": term.now_ms}
    taken = [delivery_of(row) for some in chunks(numbers) for row in c.execute(_CLAIM, values | {"ids": some})]
    return sorted(taken, key=attrgetter("number"))


def settle(
    c: Connection, epoch: int, tried: Sequence[DeliveryResult], circuits: Sequence[CircuitRow], hasten: Sequence[str]
) -> set[str]:
    newest = NOTIFIER.is_newest(c, epoch)  # first, as everybody here takes that lock first
    o = t.outbox.c
    mine: dict[str, Any] = {}
    for some in chunks([one.delivery_id for one in tried]):
        mine.update({row.id: row for row in c.execute(_CLAIMED_OF_EPOCH, {"ids": some, "epoch": epoch})})
    # what was sent was sent, even if the row was cancelled meanwhile; else a cancelled one stays so
    kept = [one for one in tried if one.delivery_id in mine]
    kept = [one for one in kept if one.result == "sent" or mine[one.delivery_id].state == "pending"]
    _write_tried(c, kept)
    dead = [mine[one.delivery_id] for one in kept if one.result == "dead"]
    at_ms = max((one.at_ms for one in kept), default=0)
    drop_followers(c, [(row.channel_id, row.incident) for row in dead if row.kind == "trip"], at_ms)
    if newest:
        for circuit in circuits:
            store_circuit(c, circuit)
        for channel_id in hasten:
            waits = (o.channel_id == channel_id) & PENDING & (o.next_ms > at_ms)
            c.execute(update(t.outbox).where(waits).values(next_ms=at_ms))
    return set(mine)


def _write_tried(c: Connection, tried: Sequence[DeliveryResult]) -> None:
    if not tried:
        return
    states = {"sent": "sent", "retry": "pending", "dead": "dead"}
    rows = [
        {
            "which": one.delivery_id,
            "to": states[one.result],
            "next": one.next_ms,
            "status": one.status,
            "error": one.error,
            "ended": None if one.result == "retry" else one.at_ms,
        }
        for one in tried
    ]
    c.execute(_SETTLE, rows)


def drop_followers(c: Connection, outages: Iterable[tuple[str, int | None]], now_ms: int) -> Counter[str]:
    """Recoveries of outages (channel, incident) none of whose trips was sent or will be: they end as the trips did."""
    wanted = set(outages)
    return _drop_untold(c, wanted, first_trips(c, wanted), now_ms)


def _drop_untold(
    c: Connection,
    outages: Iterable[tuple[str, int | None]],
    trips: Mapping[Outage, Mapping[DeliveryState, int]],
    now_ms: int,
) -> Counter[str]:
    """`trips`: of these outages, as `first_trips` tells them."""
    untold: dict[str, list[Outage]] = {}
    for channel_id, incident in outages:
        if incident is None:
            continue
        outage = (channel_id, incident)
        states = trips.get(outage, {}).keys()
        if not states & TOLD_IN:
            untold.setdefault("dead" if "dead" in states else "cancelled", []).append(outage)
    dropped: Counter[str] = Counter()
    for word, these in untold.items():
        for some in chunks(followers(c, these)):
            ended = {"to": word, "error": NOT_TOLD[word], "ended": now_ms}
            dropped[word] += c.execute(_END, ended | {"ids": some}).rowcount
    return dropped


def overdue(c: Connection, epoch: int, channel_id: str, now_ms: int, before_ms: int) -> Overdue:
    """What `give_up` is about, as far as it is bounded. It walks through all that waits for a channel, so nobody's
    writes may wait for it. Raises Fenced."""
    NOTIFIER.look(c, epoch)
    o = t.outbox.c
    mine = (o.channel_id == channel_id) & PENDING
    fresh = select(o.number).where(mine, o.since_ms.is_(None)).order_by(o.number).limit(BEGUN_MAX)
    ripe = (o.lease_epoch.is_(None) | (o.lease_until_ms <= now_ms)) & (o.since_ms <= before_ms)
    query = select(o.number, o.breaker_id, o.kind, o.incident).where(mine, ripe).order_by(o.number).limit(GIVE_UP_MAX)
    rows = list(c.execute(query))
    first_kept = dict[str, int]()
    if rows:
        kept = select(o.breaker_id, func.min(o.number)).where(mine, ~ripe | o.since_ms.is_(None)).group_by(o.breaker_id)
        first_kept = {breaker_id: number for breaker_id, number in c.execute(kept)}
    given_up = [row for row in rows if row.number < first_kept.get(row.breaker_id, row.number + 1)]
    return Overdue(list(c.execute(fresh).scalars()), given_up)


def give_up(c: Connection, epoch: int, channel_id: str, now_ms: int, error: str, found: Overdue) -> dict[str, int]:
    """Rows of a channel that does not answer: their time runs from now on at the latest; what was tried for too long,
    or waited, is dead. A row behind one that is being sent, or is younger, waits with it. Raises Fenced: so nobody else
    can have leased any of them since they were found."""
    NOTIFIER.check(c, epoch)
    o = t.outbox.c
    for some in chunks(found.fresh):
        begins = update(t.outbox).where(o.number.in_(some), PENDING, o.since_ms.is_(None))
        c.execute(begins.values(since_ms=now_ms))
    ended = {"state": "dead", "ended_ms": now_ms, "last_error": func.coalesce(o.last_error, error)}
    dead = 0
    for some in chunks([row.number for row in found.ripe]):
        dead += c.execute(
            update(t.outbox).where(o.number.in_(some), PENDING, o.since_ms.is_not(None)).values(ended)
        ).rowcount
    dropped = drop_followers(c, [(channel_id, row.incident) for row in found.ripe if row.kind == "trip"], now_ms)
    return dict(dropped + Counter(dead=dead))


def cancel(c: Connection, epoch: int, channel_ids: Sequence[str], now_ms: int) -> Cancelled:
    """Nothing is sent on channels that are not there; those that came back meanwhile are left alone. At most CANCEL_MAX
    of their rows, in order within each."""
    NOTIFIER.check(c, epoch)
    there = channels_of(c, channel_ids)
    gone = [id_ for id_ in channel_ids if id_ not in there]
    found: list[Any] = []
    for some in chunks(gone):
        c.execute(_FORGET_CIRCUITS, {"ids": some})
        found += c.execute(_PENDING_OF, {"ids": some, "most": CANCEL_MAX - len(found)})
    ended = {"to": "cancelled", "error": GONE, "ended": now_ms}
    for some in chunks([row.number for row in found]):
        c.execute(_END, ended | {"ids": some})
    counts = Counter(row.channel_id for row in found)
    return Cancelled(dict(counts), len(found) < CANCEL_MAX)
