"""What must hold of a service's files after whatever happened to it: nothing lost, nothing twice, nothing made up.

Reads the database and the logs by connections of its own, while the service runs or after its end.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from breaker_actors.core.machine import TRANSITIONS
from breaker_actors.core.model import Transition
from breaker_actors.core.records import GAP, SAMPLES, Gap, LogRecord, decode_gap, decode_samples
from breaker_actors.stores.opening import DATABASE
from breaker_actors.stores.rows import alert_of
from breaker_actors.stores.samplelog import SampleLog
from breaker_actors.stores.sqlitelog import SqliteLog
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

    def records(self, router_id: str, kind: int) -> list[LogRecord]:
        """What a router's log holds of one kind, in order."""
        slot = self.slots()[router_id]
        query = "SELECT router_id, offset, received_ms, kind, view_offset, payload FROM records WHERE router_id = ?"
        with closing(sqlite3.connect(self._logs / f"{slot}.sqlite", timeout=30)) as connection:
            rows = connection.execute(f"{query} AND kind = ? ORDER BY offset", (router_id, kind))
            return [LogRecord(*row) for row in rows]

    def gaps(self, router_id: str) -> list[Gap]:
        return [decode_gap(record.payload) for record in self.records(router_id, GAP)]

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


def _moved(move: Transition) -> Moved:
    agg = msgspec.to_builtins(move.agg)
    return Moved(move.transition_seq, move.prev, move.curr, move.ts_ms, move.reason, move.allow_rate, move.value, agg)


def assert_in_sequence(breaker_id: str, events: Iterable[Moved]) -> None:
    """Numbered 1, 2, 3... by moves that there are, each from where the last one led, never back in time."""
    state, seq, ts_ms = "closed", 0, 0
    for event in events:
        assert event.transition_seq == seq + 1, f"breaker {breaker_id}: event {event.transition_seq} follows {seq}"
        assert event.prev == state, f"breaker {breaker_id}: {event} follows {state}"
        assert (event.prev, event.curr) in TRANSITIONS, f"breaker {breaker_id}: {event}"
        assert event.ts_ms >= ts_ms, f"breaker {breaker_id}: {event} goes back in time from {ts_ms}"
        state, seq, ts_ms = event.curr, event.transition_seq, event.ts_ms


def assert_records_agree(evidence: Evidence) -> None:
    """The stored record of every breaker is where its last event led."""
    rows = evidence.rows(
        "SELECT r.breaker_id, r.state, r.transition_seq, r.allow_rate, e.curr, e.transition_seq FROM records r"
        " LEFT JOIN events e ON e.breaker_id = r.breaker_id AND e.transition_seq ="
        " (SELECT max(transition_seq) FROM events WHERE breaker_id = r.breaker_id)"
    )
    for breaker_id, state, seq, rate, curr, last in rows:
        told = (curr or "closed", last or 0)
        assert (state, seq) == told, f"breaker {breaker_id}: its record says {(state, seq)}, its last event {told}"
        assert rate == {"closed": 1.0, "open": 0.0}.get(state, rate), f"breaker {breaker_id}: {rate} while {state}"


def assert_told_once(evidence: Evidence, project_id: str, channels: Mapping[str, Iterable[str]]) -> set[str]:
    """One delivery for every event and channel (channel -> kinds that it takes), none of them given up; answers the ids
    of those that were sent."""
    rows = evidence.rows(  # both tables as of one instant
        "SELECT '', sequence, prev, curr, '' FROM events WHERE project_id = ?1 UNION ALL"
        " SELECT channel_id, sequence, kind, state, id FROM outbox WHERE project_id = ?1",
        project_id,
    )
    moves = [(sequence, alert_of(prev, curr)) for channel, sequence, prev, curr, _ in rows if not channel]
    events = {(sequence, alert) for sequence, alert in moves if alert}
    ids: set[str] = set()
    for channel_id, kinds in channels.items():
        told = [row[1:] for row in rows if row[0] == channel_id]
        alerts = [(sequence, kind) for sequence, kind, _, _ in told if sequence is not None]
        wanted = {(sequence, kind) for sequence, kind in events if kind in kinds}
        assert len(alerts) == len(set(alerts)), f"channel {channel_id}: an event twice in its outbox"
        assert set(alerts) == wanted, f"channel {channel_id}: {len(wanted)} events, {len(alerts)} deliveries"
        states = Counter(state for _, _, state, _ in told)
        assert states.keys() <= {"sent", "pending"}, f"channel {channel_id}: {states}"
        ids |= {id_ for _, _, state, id_ in told if state == "sent"}
    return ids


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
