"""What must hold of a service's files after whatever happened to it: nothing lost, nothing twice, nothing made up.

Reads the database and the logs by connections of its own, while the service runs or after its end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psycopg

from breaker_actors.core.log_entries import (
    BREAKER,
    GAP,
    SAMPLES,
    Gap,
    LogRecord,
    decode_breaker,
    decode_gap,
    decode_samples,
)
from breaker_actors.core.model import BY_HAND, Override, Record, Transition
from breaker_actors.core.moves import TRANSITIONS
from breaker_actors.persistence import DATABASE
from breaker_actors.store.rows import alert_of
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.postgres import PgLog
from breaker_actors.wal.sqlite import SqliteLog
from tests.support.cluster import replay_log


class Moved(NamedTuple):
    """An event as a replay can foretell it."""

    transition_seq: int
    prev: str
    curr: str
    ts_ms: int
    reason: str
    allow_rate: float
    value: float | None
    hidden_by: str | None
    by: str | None
    comment: str | None
    agg: dict[str, Any]


class Evidence:
    """The files of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._database = data_dir / DATABASE
        self._logs = data_dir / "log"

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._database, timeout=30)) as connection:
            return connection.execute(sql, values).fetchall()

    def log(self) -> SampleLog:
        """To be closed by the caller."""
        return SqliteLog(self._logs)

    def slots(self) -> dict[str, str]:
        return dict(self.rows("SELECT id, log_slot FROM routers WHERE log_slot IS NOT NULL"))

    def records(self, router_id: str, kind: int | None = None) -> list[LogRecord]:
        """What a router's log holds (of one kind), in order."""
        slot = self.slots()[router_id]
        query = "SELECT router_id, offset, received_ms, kind, view_offset, payload FROM records WHERE router_id = ?"
        with closing(sqlite3.connect(self._logs / f"{slot}.sqlite", timeout=30)) as connection:
            rows = connection.execute(f"{query} AND kind = coalesce(?, kind) ORDER BY offset", (router_id, kind))
            return [LogRecord(*row) for row in rows]

    def gaps(self, router_id: str) -> list[Gap]:
        return [decode_gap(record.payload) for record in self.records(router_id, GAP)]

    def outages(self, router_id: str) -> list[Gap]:
        """Its gaps; those that follow each other without a sample between them are one."""
        found: list[Gap] = []
        for gap in self.gaps(router_id):
            if found and found[-1].to_ms == gap.from_ms:
                gap = Gap(found.pop().from_ms, gap.to_ms)
            found.append(gap)
        return found

    def values(self, router_id: str) -> list[float]:
        """Values of all samples in a router's log."""
        payloads = (record.payload for record in self.records(router_id, SAMPLES))
        return [value for payload in payloads for value in decode_samples(payload).batch.value.tolist()]

    def histories(self, breaker_id: str | None = None) -> dict[str, list[Moved]]:
        """The events of each breaker that has any (or of one), in order of transition_seq."""
        found: dict[str, list[Moved]] = {}
        columns = ", ".join(Moved._fields)
        for owner, *fields, agg in self.rows(
            f"SELECT breaker_id, {columns} FROM events WHERE breaker_id = coalesce(?, breaker_id)"
            " ORDER BY breaker_id, transition_seq",
            breaker_id,
        ):
            found.setdefault(owner, []).append(Moved(*fields, json.loads(agg)))
        return found

    def history(self, breaker_id: str) -> list[Moved]:
        return self.histories(breaker_id).get(breaker_id, [])

    async def replay(self, router_id: str, breaker_id: str, until_ms: int) -> list[Moved]:
        """What the log of its only router says a breaker did, up to and including a time."""
        log = self.log()
        try:
            effects = await replay_log(log, self.slots()[router_id], router_id, breaker_id, until_ms)
        finally:
            await log.close()
        moves = [effect for effect in effects if isinstance(effect, Transition)]
        return [_moved(move) for move in moves if move.ts_ms <= until_ms]


class PostgresEvidence(Evidence):
    """The same in a PostgreSQL database, where the logs lie as well."""

    def __init__(self, url: str) -> None:
        self._url = url

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        numbers = itertools.count(1)
        named = re.sub(r"\?(\d*)", lambda found: f"%({found[1] or next(numbers)})s", sql)
        with psycopg.connect(self._url) as connection:
            return connection.execute(
                named.encode(), {str(i): value for i, value in enumerate(values, start=1)}
            ).fetchall()

    def log(self) -> SampleLog:
        return PgLog(self._url)

    def records(self, router_id: str, kind: int | None = None) -> list[LogRecord]:
        rows = self.rows(
            'SELECT router_id, "offset", received_ms, kind, view_offset, payload FROM log_records'
            ' WHERE slot = ? AND router_id = ? AND kind = coalesce(?, kind) ORDER BY "offset"',
            self.slots()[router_id],
            router_id,
            kind,
        )
        return [LogRecord(*row) for row in rows]


def _moved(move: Transition) -> Moved:
    return Moved(**{name: getattr(move, name) for name in Moved._fields} | {"agg": msgspec.to_builtins(move.agg)})


def assert_in_sequence(breaker_id: str, events: Iterable[Moved]) -> None:
    """Numbered 1, 2, 3... by moves that there are, never back in time; of those that callers saw each goes on where the
    one before led."""
    state, seq, ts_ms = "closed", 0, 0
    for event in events:
        assert event.transition_seq == seq + 1, f"breaker {breaker_id}: event {event.transition_seq} follows {seq}"
        assert event.prev == state or event.hidden_by, f"breaker {breaker_id}: {event} follows {state}"
        by_hand = event.reason in BY_HAND and event.hidden_by is None and event.prev != event.curr
        assert by_hand or (event.prev, event.curr) in TRANSITIONS, f"breaker {breaker_id}: {event}"
        assert event.ts_ms >= ts_ms, f"breaker {breaker_id}: {event} goes back in time from {ts_ms}"
        state = state if event.hidden_by else event.curr
        seq, ts_ms = event.transition_seq, event.ts_ms


async def assert_replayed(evidence: Evidence, router_id: str, breaker_id: str, until_ms: int, within_s: float) -> None:
    """The events of a breaker with one router are those of its log: all that were due by then, and no others. What is
    yet to be stored, a gap that is yet to be noted among it, comes within that time."""
    deadline = time.monotonic() + within_s
    while True:
        over = time.monotonic() > deadline
        # on a thread: the loop has others to serve
        expected = await asyncio.to_thread(asyncio.run, evidence.replay(router_id, breaker_id, until_ms))
        got = [event for event in evidence.history(breaker_id) if event.ts_ms <= until_ms]
        if got == expected:
            return
        assert not over, f"breaker {breaker_id} of router {router_id}: {first_difference(got, expected)}"
        await asyncio.sleep(0.2)


def first_difference(got: Sequence[Moved], expected: Sequence[Moved]) -> str:
    alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(got, expected, strict=False)))
    return f"{len(got)} events, {len(expected)} by its log; after {alike}: {got[alike:][:2]}, {expected[alike:][:2]}"


def assert_records_agree(evidence: Evidence) -> None:
    """The stored record of every breaker is where its last event led, of those that callers saw."""
    rows = evidence.rows(
        "SELECT r.breaker_id, r.state, r.transition_seq, r.allow_rate, e.curr,"
        " (SELECT max(transition_seq) FROM events WHERE breaker_id = r.breaker_id) FROM records r"
        " LEFT JOIN events e ON e.breaker_id = r.breaker_id AND e.transition_seq ="
        " (SELECT max(transition_seq) FROM events WHERE breaker_id = r.breaker_id AND hidden_by IS NULL)"
    )
    for breaker_id, state, seq, rate, curr, last in rows:
        told = (curr or "closed", last or 0)
        assert (state, seq) == told, f"breaker {breaker_id}: its record says {(state, seq)}, its last event {told}"
        assert rate == {"closed": 1.0, "open": 0.0}.get(state, rate), f"breaker {breaker_id}: {rate} while {state}"


def overrides_of(evidence: Evidence, routers: Iterable[str]) -> dict[str, list[Override]]:
    """Every override that the logs of these routers tell of, by breaker."""
    found: dict[str, list[Override]] = {}
    for router_id in routers:
        for record in evidence.records(router_id, BREAKER):
            told = decode_breaker(record.payload)
            if told.control is not None and told.control.override is not None:
                found.setdefault(told.breaker_id, []).append(told.control.override)
    return found


def assert_overrides_end(evidence: Evidence, routers: Iterable[str]) -> int:
    """What ended by itself did so at the time that its log says, and no move is hidden by what was over; answers how
    many ended so."""
    known, expired = overrides_of(evidence, routers), 0
    for breaker_id, events in evidence.histories().items():
        mine = known.get(breaker_id, [])
        for event in events:
            if event.reason == "override_expired":
                ends = {o.until_ms for o in mine if (o.by, o.reason) == (event.by, event.comment)}
                assert event.ts_ms in ends, f"breaker {breaker_id}: {event}, the log says {sorted(ends)}"
                expired += 1
            elif event.hidden_by == "override":
                assert any(event.ts_ms <= o.until_ms for o in mine), f"breaker {breaker_id}: {event} behind its end"
    return expired


def none_outlives_its_end(evidence: Evidence, now_ms: int) -> bool:
    """Whether no stored record has an override that was over by then."""
    rows = evidence.rows("SELECT record FROM records WHERE record IS NOT NULL")
    overrides = [msgspec.msgpack.decode(row[0], type=Record).override for row in rows]
    return all(o is None or o.until_ms > now_ms for o in overrides)


def assert_told_once(evidence: Evidence, project_id: str, channels: Mapping[str, Iterable[str]]) -> set[str]:
    """One delivery for every event that callers saw and channel (channel -> kinds that it takes), none of them given up
    but the end of what had no trip, and what was muted; answers the ids of those that were sent."""
    rows = evidence.rows(  # both tables as of one instant
        "SELECT '', sequence, prev, curr, '', 0 FROM events WHERE project_id = ?1 AND hidden_by IS NULL UNION ALL"
        " SELECT channel_id, sequence, kind, state, id, incident FROM outbox WHERE project_id = ?1",
        project_id,
    )
    moves = [(sequence, alert_of(prev, curr)) for channel, sequence, prev, curr, *_ in rows if not channel]
    events = {(sequence, alert) for sequence, alert in moves if alert}
    ids: set[str] = set()
    for channel_id, kinds in channels.items():
        told = [row[1:] for row in rows if row[0] == channel_id]
        alerts = [(sequence, kind) for sequence, kind, *_ in told if sequence is not None]
        wanted = {(sequence, kind) for sequence, kind in events if kind in kinds}
        assert len(alerts) == len(set(alerts)), f"channel {channel_id}: an event twice in its outbox"
        assert set(alerts) == wanted, f"channel {channel_id}: {len(wanted)} events, {len(alerts)} deliveries"
        tripped = {incident for _, kind, _, _, incident in told if kind == "trip"}
        states = Counter(state for _, _, state, _, incident in told if state != "cancelled" or incident in tripped)
        assert states.keys() <= {"sent", "pending", "suppressed"}, f"channel {channel_id}: {states}"
        ids |= {id_ for _, _, state, id_, _ in told if state == "sent"}
    return ids


def assert_dense(evidence: Evidence, routers: Iterable[str]) -> None:
    """Logs of which nothing was trimmed are numbered 1, 2, 3..."""
    for router_id in routers:
        offsets = [record.offset for record in evidence.records(router_id)]
        assert offsets == list(range(1, len(offsets) + 1)), f"router {router_id}"


def assert_logged_once(evidence: Evidence, accepted: Mapping[float, str], routers: Iterable[str]) -> None:
    """Every accepted sample (value -> router) lies in its router's log exactly once, and nothing else does."""
    mine: dict[str, set[float]] = {router_id: set() for router_id in routers}
    for value, router_id in accepted.items():
        mine[router_id].add(value)
    for router_id, values in mine.items():
        found = Counter(evidence.values(router_id))
        twice = {value: times for value, times in found.items() if times > 1}
        assert not twice, f"router {router_id}: samples more than once in its log: {twice}"
        assert found.keys() == values, (
            f"router {router_id}: lost {sorted(values - found.keys())[:5]}, unasked {sorted(found.keys() - values)[:5]}"
        )
