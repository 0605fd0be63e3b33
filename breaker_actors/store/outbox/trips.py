"""The trips of outages on channels, each looked up by its place in the index `ix_outbox_outage`.

An outage may have any number of them: a breaker that does not close trips again each time it was half open. Most of
these looks are made in everybody's transaction, so what one reads goes by the outages (channel, incident) that are
asked for, and never by their trips. Sync functions over a `Connection`; neighbours: `subjects.py`, `muting.py` and
`claims.py`, which ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, get_args

import msgspec
from sqlalchemy import CTE, JSON, BigInteger, ColumnElement, Connection, Select, Text, bindparam, cast, func, select

from breaker_actors.store import tables as t
from breaker_actors.store.rows import DeliveryState
from breaker_actors.store.section import chunks

PENDING: tuple[DeliveryState] = ("pending",)
STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
TOLD_IN: frozenset[DeliveryState] = frozenset(("pending", "sent"))
"""A trip in one of these was sent, or will be."""

Outage = tuple[str, int]
"""Of a channel: its id, and the sequence of the event that the outage began with (`incident`)."""


def outages_of(rows: Iterable[Mapping[str, Any]]) -> set[tuple[str, int | None]]:
    """The outages of new rows, but for those that begin with one of them: no trip of these is stored."""
    return {(row["channel_id"], row["incident"]) for row in rows if row["incident"] != row["sequence"]}


def first_trips(c: Connection, outages: Iterable[tuple[str, int | None]]) -> dict[Outage, dict[DeliveryState, int]]:
    """Of each outage (channel, incident) that has trips the number of the first one in each state there is one in."""
    found: dict[Outage, dict[DeliveryState, int]] = {}
    for channel_id, incident, state, number in _ask(c, _first_statement, outages, STATES):
        if number is not None:
            found.setdefault((channel_id, incident), {})[state] = number
    return found


def told_outages(c: Connection, outages: Iterable[tuple[str, int | None]]) -> set[tuple[str, int | None]]:
    """Those outages (channel, incident) that have a trip which was sent, or will be."""
    return {outage for outage, states in first_trips(c, outages).items() if states.keys() & TOLD_IN}


def followers(c: Connection, outages: Iterable[tuple[str, int | None]]) -> list[int]:
    """The numbers of pending recoveries of outages (channel, incident)."""
    return [number for (number,) in _ask(c, _followers_statement, outages, PENDING)]


def _ask(
    c: Connection,
    statement: Callable[[str], Select[Any]],
    outages: Iterable[tuple[str, int | None]],
    states: Sequence[str],
) -> list[Any]:
    wanted = sorted({(channel_id, incident) for channel_id, incident in outages if incident is not None})
    found: list[Any] = []
    for some in chunks(wanted):
        asked = [(*outage, state) for outage in some for state in states]
        found += c.execute(statement(c.dialect.name), {"asked": msgspec.json.encode(asked).decode()})
    return found


def _asked(dialect: str) -> CTE:
    """What is asked for, as rows (channel_id, incident, state): one parameter, so that statements are made once, and no
    planner takes `ix_outbox_pending` for one state, to walk all that waits for a channel."""
    packed = bindparam("asked", type_=Text())
    rows = func.json_each(packed) if dialect == "sqlite" else func.json_array_elements(cast(packed, JSON()))
    each = rows.table_valued("value", name="each").c.value
    # SQLite has ->> since 3.38 only
    channel_id, incident, state = [
        func.json_extract(each, f"$[{at}]") if dialect == "sqlite" else each.op("->>")(at) for at in range(3)
    ]
    columns = (channel_id.label("channel_id"), cast(incident, BigInteger()).label("incident"), state.label("state"))
    return select(*columns).cte("asked")


def _rows_of(asked: CTE) -> ColumnElement[bool]:
    o = t.outbox.c
    of_outage = (o.incident == asked.c.incident) & (o.channel_id == asked.c.channel_id)
    return of_outage & (o.state == asked.c.state)


@cache
def _first_statement(dialect: str) -> Select[Any]:
    o, asked = t.outbox.c, _asked(dialect)
    trips = select(o.number).where(_rows_of(asked), o.kind == "trip").order_by(o.number).limit(1)
    return select(*asked.c, trips.correlate(asked).scalar_subquery())


@cache
def _followers_statement(dialect: str) -> Select[Any]:
    o, asked = t.outbox.c, _asked(dialect)
    return select(o.number).join_from(asked, t.outbox, _rows_of(asked)).where(o.kind.in_(("recover", "resolve")))
