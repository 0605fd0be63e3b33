"""Rows of the outbox, written where their cause is: with a transition in the Journal's commit, with the deletion of an
open breaker in the transaction that deletes it. Neighbour: `outbox.py`, what becomes of them.

Sync functions over a `Connection`; each runs inside the transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Row, Select, exists, insert, select

from breaker_actors.core.model import Agg, Rule, StateWord
from breaker_actors.store import tables as t
from breaker_actors.store.outages import begins_outage
from breaker_actors.store.outbox.judges import hold_back
from breaker_actors.store.outbox.muting import is_quiet, suppress_ended, suppress_held
from breaker_actors.store.outbox.payloads import point_to_payloads, store_payloads
from breaker_actors.store.outbox.subjects import is_labelled, name_subjects
from breaker_actors.store.outbox.trips import outages_of, told_outages
from breaker_actors.store.quotas import UNSENT, add, shares, used
from breaker_actors.store.rows import Alert, AlertKind, AlertPayload, BreakerRow, alert_of
from breaker_actors.store.section import IDS, bump, by_ids, new_id
from breaker_actors.text.escaping import link_of

BOTH: tuple[Alert, ...] = ("trip", "recover")
_OF_RULE = ("kind", "metric", "threshold", "window_ms")
_MORE_OF_RULE = ("op", "min_count", "kind_params")


class Receivers(NamedTuple):
    """(channel, alerts it takes) of a project, how it links to traces, whether a mute may hold alerts back, and whether
    a channel wants to know the subjects of alerts."""

    channels: list[tuple[str, tuple[str, ...]]]
    trace_template: str | None
    quiet: bool = False
    labelled: bool = False


class Outage(NamedTuple):
    """The event that began an outage: its sequence and time."""

    sequence: int
    ts_ms: int


def is_heard(project_id: Column[str]) -> ColumnElement[bool]:
    """Whether anybody wants to be told of a project's alerts at all."""
    ch, p = t.channels.c, t.projects.c
    own = exists().where(ch.project_id == project_id, ch.enabled)
    return own | exists().where(p.id == project_id, p.slack_webhook_url.is_not(None))


def write_alerts(c: Connection, events: Sequence[Mapping[str, Any]]) -> None:
    """One row for each channel that takes it, of event rows that are being stored, in order. Call before they are
    inserted, with those of projects that are heard (`is_heard`). Costs nothing for events that are no alerts."""
    seen = [event for event in events if event["hidden_by"] is None]
    alerts = [event for event in (*seen, *_observed(events)) if alert_of(event["prev"], event["curr"])]
    if not alerts:
        return
    receivers = _receivers(c, sorted({event["project_id"] for event in alerts}))
    alerts = [event for event in alerts if event["project_id"] in receivers]
    if not alerts:
        return
    rules = _rules(c, sorted({event["breaker_id"] for event in alerts}))
    rows: list[dict[str, Any]] = []
    for event, outage in _with_outages(c, [event for event in seen if event["project_id"] in receivers]):
        kind = alert_of(event["prev"], event["curr"])
        if kind is None:  # it may begin an outage all the same: one that is throttled was closed before
            continue
        mine = receivers[event["project_id"]]
        trace_url = link_of(mine.trace_template, event["trace_id"])
        told = _told(event, rules.get(event["breaker_id"]), outage, trace_url)
        for channel_id, wanted in mine.channels:
            if kind in wanted:
                # a channel that takes recoveries only asks for no trip before them
                incident = outage.sequence if outage is not None and "trip" in wanted else None
                rows.append(_row(event, channel_id, kind, told, incident))
    for event in (event for event in alerts if event["hidden_by"] is not None):
        mine = receivers[event["project_id"]]
        told = _told(event, rules.get(event["breaker_id"]), None, link_of(mine.trace_template, event["trace_id"]))
        takers = (channel_id for channel_id, wanted in mine.channels if "observed" in wanted)
        rows += (_row(event, channel_id, "observed", told, None) for channel_id in takers)
    labelled = {project_id for project_id, mine in receivers.items() if mine.labelled}
    name_subjects(c, [row for row in rows if row["project_id"] in labelled])
    quiet = {project_id for project_id, mine in receivers.items() if mine.quiet}
    superseded = hold_back(c, [row for row in rows if row["project_id"] in quiet]) if quiet else []
    kept = {row["id"] for row in _write(c, rows)}
    suppress_held(c, [one for one in superseded if one.by in kept])


def _observed(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Moves of breakers that observe. Those behind an override are nobody's to hear."""
    return [event for event in events if event["hidden_by"] == "observe"]


def write_ends(c: Connection, removed: Sequence[BreakerRow], states: Mapping[str, Row[Any]], now_ms: int) -> None:
    """Breakers of a project that are deleted while they are open: who got their trip, or will get it, is told of the
    end (semantics.md section 3). What a mute held of them is never sent. Channels that are not there, those of a
    deleted project among them, can't be told: what waits for them is the Notifier's to end. Call before the breakers
    are gone. `states`: what their records say, which are locked: a trip is stored before the deletion, or never."""
    if not removed:
        return
    project_id = removed[0].project_id
    channels, ended = _channels_of(c, project_id), [row for row in removed if states[row.id].state != "closed"]
    if not channels or not ended:
        return
    outages = _outages(c, [row.id for row in ended])
    heard = told_outages(c, ((id_, outage.sequence) for outage in outages.values() for id_ in channels))
    rows = []
    for row in (row for row in ended if row.id in outages):
        outage, state = outages[row.id], states[row.id]
        told = _end_told(row, state.state, outage, now_ms)
        of = {"project_id": project_id, "breaker_id": row.id, "ts_ms": now_ms, "transition_seq": state.transition_seq}
        listeners = (id_ for id_ in channels if (id_, outage.sequence) in heard)
        rows += [_row(of, id_, "resolve", told, outage.sequence) for id_ in listeners]
    name_subjects(c, rows)
    suppress_ended(c, project_id, [row.id for row in ended], channels, now_ms)
    _write(c, rows)


def ends_each(c: Connection, project_id: str, breaker_ids: Sequence[str]) -> dict[str, int]:
    """How many notifications the deletion of each breaker writes at most, as they are now: one for each channel; those
    that are closed are left out."""
    count = len(_channels_of(c, project_id)) if breaker_ids else 0
    if not count:
        return {}
    return dict.fromkeys((id_ for (id_,) in by_ids(c, _NOT_CLOSED, breaker_ids)), count)


def write_warnings(c: Connection, rows: Sequence[dict[str, Any]]) -> set[str]:
    """Stores notifications that a mute ends; the channels of those for which there was room."""
    return {row["channel_id"] for row in _write(c, rows)}


def warning(project_id: str, channel_id: str, told: AlertPayload, mute_id: str) -> dict[str, Any]:
    """A new row that tells that a mute ends."""
    of = {"project_id": project_id, "breaker_id": mute_id, "ts_ms": told.ts_ms, "transition_seq": 0}
    return _row(of, channel_id, "mute_ending", told, None) | {"mute_id": mute_id}


def _write(c: Connection, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stores new rows, as many as their projects may have: twice their share, where what waits has filled it. Answers
    those that were stored."""
    stored: list[dict[str, Any]] = []
    by_project: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_project.setdefault(row["project_id"], []).append(row)
    for project_id, mine in by_project.items():
        payloads = point_to_payloads(mine)
        room = 2 * shares(c).deliveries - used(c, project_id, "deliveries")
        room -= sum(payload.units for payload in payloads.values())
        kept = mine if len(mine) <= room else _within_share(c, mine, room)
        if kept:
            store_payloads(c, payloads, kept)
            c.execute(_ADD_ROWS, [row | {"told": None} for row in kept])
            add(c, project_id, "deliveries", len(kept))
            stored += kept
        if len(kept) < len(mine):
            bump(c, UNSENT, len(mine) - len(kept))
    return stored


def _within_share(c: Connection, rows: Sequence[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    """Of rows beyond a project's share the first, and the end of every outage whose trip is written: who was told of
    the beginning is told of the end, and nobody else."""
    kept: list[dict[str, Any]] = []
    told = told_outages(c, outages_of(rows))
    for row in rows:
        outage = (row["channel_id"], row["incident"])
        ends = row["kind"] != "trip" and row["incident"] is not None
        if outage in told if ends else len(kept) < room:
            kept.append(row)
            told.add(outage)
    return kept


def _projects_statement() -> Select[Any]:
    p = t.projects.c
    query = select(p.id, p.slack_webhook_url.is_not(None).label("legacy"), p.trace_id_url_template)
    query = query.add_columns(is_quiet(p.id).label("quiet"), is_labelled(p.id).label("labelled"))
    return query.where(p.deleted_ms.is_(None), p.id.in_(IDS)).order_by(p.id)


def _channels_statement() -> Select[Any]:
    ch = t.channels.c
    query = select(ch.project_id, ch.id, ch.events).where(ch.project_id.in_(IDS), ch.enabled)
    return query.order_by(ch.project_id, ch.number)


def _outage_starts_statement() -> Select[Any]:
    e, b = t.events.c, t.breakers.c
    earlier = t.events.alias()
    began = (
        select(earlier.c.transition_seq)
        .where(earlier.c.breaker_id == b.id, earlier.c.project_id == b.project_id, begins_outage(earlier.c))
        .order_by(earlier.c.transition_seq.desc())
        .limit(1)
        .correlate(t.breakers)
        .scalar_subquery()
    )
    query = select(b.id, e.sequence, e.ts_ms).select_from(t.breakers)
    same = (e.breaker_id == b.id) & (e.project_id == b.project_id) & (e.transition_seq == began)
    return query.join(t.events, same).where(b.id.in_(IDS))


_PROJECTS, _CHANNELS = _projects_statement(), _channels_statement()
_OUTAGE_STARTS = _outage_starts_statement()
_RULES = select(t.breakers.c.id, t.breakers.c.rule).where(t.breakers.c.id.in_(IDS))
_NOT_CLOSED = select(t.records.c.breaker_id).where(t.records.c.breaker_id.in_(IDS), t.records.c.state != "closed")
_ADD_ROWS = insert(t.outbox)


def _receivers(c: Connection, project_ids: Sequence[str]) -> dict[str, Receivers]:
    """Those of each project that has any; a project's own id stands for its slack_webhook_url. What is of the project
    is asked once, not with each of its channels: they may be a hundred, and everybody's transitions wait meanwhile."""
    found: dict[str, Receivers] = {}
    for row in by_ids(c, _PROJECTS, project_ids):
        legacy: list[tuple[str, tuple[str, ...]]] = [(row.id, BOTH)] if row.legacy else []
        found[row.id] = Receivers(legacy, row.trace_id_url_template, row.quiet, row.labelled)
    for row in by_ids(c, _CHANNELS, sorted(found)):
        found[row.project_id].channels.append((row.id, row.events))
    return {project_id: receivers for project_id, receivers in found.items() if receivers.channels}


def _channels_of(c: Connection, project_id: str) -> list[str]:
    """The channels of a project that can be told anything."""
    found = _receivers(c, [project_id]).get(project_id)
    return [] if found is None else [channel_id for channel_id, _ in found.channels]


def _with_outages(
    c: Connection, seen: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[Mapping[str, Any], Outage | None]]:
    """Each event with the outage it belongs to. An outage begins with the move from closed; where that is not among
    these events it is stored already (or forgotten)."""
    first = {event["breaker_id"]: event["prev"] for event in reversed(seen)}
    outages = _outages(c, sorted(id_ for id_, prev in first.items() if prev != "closed"))
    for event in seen:
        if event["prev"] == "closed":
            outages[event["breaker_id"]] = Outage(event["sequence"], event["ts_ms"])
        yield event, outages.get(event["breaker_id"])


def _outages(c: Connection, breaker_ids: Sequence[str]) -> dict[str, Outage]:
    """The newest stored outage of each breaker, by the index on their beginnings: a breaker that flaps may have moved
    thousands of times since."""
    return {id_: Outage(sequence, ts_ms) for id_, sequence, ts_ms in by_ids(c, _OUTAGE_STARTS, breaker_ids)}


def _rules(c: Connection, breaker_ids: Sequence[str]) -> dict[str, Rule]:
    return {id_: rule for id_, rule in by_ids(c, _RULES, breaker_ids)}


def _told(event: Mapping[str, Any], stored: Rule | None, outage: Outage | None, trace_url: str | None) -> AlertPayload:
    rule = event["rule"]
    if stored is not None and all(rule.get(name) == getattr(stored, name) for name in _OF_RULE):
        rule = rule | {name: getattr(stored, name) for name in _MORE_OF_RULE}
    lasted = None if outage is None or event["prev"] == "closed" else event["ts_ms"] - outage.ts_ms
    given = {name: event[name] for name in AlertPayload.__struct_fields__ if name in event and name != "rule"}
    return AlertPayload(**given, rule=rule, outage_ms=lasted, trace_url=trace_url)


def _end_told(row: BreakerRow, state: StateWord, outage: Outage, now_ms: int) -> AlertPayload:
    rule = {name: getattr(row.rule, name) for name in (*_OF_RULE, *_MORE_OF_RULE)}
    return AlertPayload(
        name=row.name,
        prev=state,
        curr="closed",
        ts_ms=now_ms,
        reason="deleted",
        value=None,
        rule=rule | {"tags": {}},
        agg=msgspec.to_builtins(Agg()),
        outage_ms=now_ms - outage.ts_ms,
    )


def _row(
    of: Mapping[str, Any], channel_id: str, kind: AlertKind, told: AlertPayload, incident: int | None
) -> dict[str, Any]:
    """A new row; it is due at once."""
    return {
        "id": new_id(),
        "project_id": of["project_id"],
        "channel_id": channel_id,
        "breaker_id": of["breaker_id"],
        "kind": kind,
        "shard": of.get("shard"),
        "sequence": of.get("sequence"),
        "transition_seq": of["transition_seq"],
        "incident": incident,
        "told": told,
        "state": "pending",
        "attempts": 0,
        "next_ms": 0,
        "created_ms": of["ts_ms"],
        "ended_ms": None,
        "mute_id": None,
        "payload_id": None,
    }
