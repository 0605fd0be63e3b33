"""What alerts are about, for channels whose receiver tells alerts apart by their labels (an Alertmanager).

All alerts of an outage have one subject on a channel, that of its first trip: with another one the receiver would take
the end for that of another alert. Sync functions over a `Connection`, inside the transaction that writes the rows;
neighbour: `alerts.py`, which calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Column, ColumnElement, Connection, Select, exists, select

from breaker_actors.store import tables as t
from breaker_actors.store.outbox.payloads import TOLD
from breaker_actors.store.outbox.trips import first_trips, outages_of
from breaker_actors.store.rows import AlertPayload, Subject
from breaker_actors.store.section import IDS, by_ids

LABELLED = t.channels.c.channel == "alertmanager"


def is_labelled(project_id: Column[str]) -> ColumnElement[bool]:
    """Whether a project has a channel that wants to know subjects."""
    ch = t.channels.alias().c
    return exists().where(ch.project_id == project_id, ch.enabled, ch.channel == "alertmanager")


def _facts_statement() -> Select[Any]:
    b, p, r, links = t.breakers.c, t.projects.c, t.routers.c, t.links.c
    first = select(r.name).join_from(t.links, t.routers, r.id == links.router_id)
    first = first.where(links.breaker_id == b.id, r.deleted_ms.is_(None)).order_by(links.number).limit(1)
    query = select(b.id, b.metadata, p.name.label("project"), first.correlate(t.breakers).scalar_subquery())
    return query.join(t.projects, p.id == b.project_id).where(b.id.in_(IDS))


_LABELLED = select(t.channels.c.id).where(t.channels.c.id.in_(IDS), LABELLED)
_FACTS = _facts_statement()
_TRIPS = (
    select(t.outbox.c.channel_id, t.outbox.c.incident, TOLD)
    .where(t.outbox.c.number.in_(IDS))
    .order_by(t.outbox.c.number)
)


def name_subjects(c: Connection, rows: Sequence[dict[str, Any]]) -> None:
    """Puts its subject into each new row of a channel that wants to know it, in order. Call before they are stored, and
    while their breakers are there."""
    takers = {id_ for (id_,) in by_ids(c, _LABELLED, sorted({row["channel_id"] for row in rows}))}
    mine = [row for row in rows if row["channel_id"] in takers]
    if not mine:
        return
    known = _known(c, mine)
    facts = {id_: more for id_, *more in by_ids(c, _FACTS, sorted({row["breaker_id"] for row in mine}))}
    for row in mine:
        outage = (row["channel_id"], row["incident"])
        subject = known.get(outage) or _subject(row["told"], *facts.get(row["breaker_id"], ({}, None, None)))
        if row["incident"] is not None:
            known[outage] = subject
        row["told"] = replace(row["told"], subject=subject)


def _known(c: Connection, rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int | None], Subject]:
    """The subjects of the outages (channel, incident) that have a trip already: of each the first one's. All its trips
    have the same one, so the first in each state are enough where the very first has none."""
    there = first_trips(c, outages_of(rows)).values()
    numbers = sorted(number for states in there for number in states.values())
    found: dict[tuple[str, int | None], Subject] = {}
    for channel_id, incident, told in by_ids(c, _TRIPS, numbers):
        if told.subject is not None:
            found.setdefault((channel_id, incident), told.subject)
    return found


def _subject(told: AlertPayload, metadata: dict[str, str], project: str | None, router: str | None) -> Subject:
    metric, kind = str(told.rule.get("metric", "")), str(told.rule.get("kind", ""))
    return Subject(breaker=told.name, metric=metric, kind=kind, project=project, router=router, metadata=metadata)
