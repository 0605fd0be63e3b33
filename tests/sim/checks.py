"""What must hold after every step, looked up in the files themselves: the log's order, events and states in step.

Also the memory of the run: every record ever appended and every event ever stored, for the replays at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from breaker_actors.core.log_entries import BREAKER, DAMAGED, GAP, SAMPLES, LogRecord, decode_breaker, decode_samples
from breaker_actors.core.model import BY_HAND
from breaker_actors.core.moves import TRANSITIONS
from breaker_actors.core.overlay import STATES
from breaker_actors.messages import Commit, FeedEntry, StateReading
from breaker_actors.store.rows import alert_of
from breaker_actors.wal.base import Append, Loss
from tests.sim.hand import Hand

RATES = {"closed": 1.0, "open": 0.0}


class Violation(Exception):
    """An invariant does not hold."""


class Event(msgspec.Struct, frozen=True):
    """A stored event, as the replays tell it."""

    transition_seq: int
    prev: str
    curr: str
    ts_ms: int
    reason: str
    allow_rate: float
    value: float | None
    agg: dict[str, Any]
    name: str
    rule: dict[str, Any]
    hidden_by: str | None
    by: str | None
    comment: str | None


_EVENT_COLUMNS = ", ".join(f'"{name}"' for name in Event.__struct_fields__)


def watermark_given(upto_ms: int, latest_ms: int) -> str:
    """Nothing is stamped at or before a watermark, so one that is far ahead of its owner's clock shuts the log."""
    if upto_ms <= latest_ms:
        return ""
    return f"a watermark was given {(upto_ms - latest_ms) / 1000:.1f} s further ahead than it may be"


REPEATED_MS = 600_000
"""So long a repeated request is recognised (`duplicate_window_ms`)."""


class Checks:
    """Reads store and log files by connections of its own."""

    def __init__(self, store: Path, logs: Path, hand: Hand) -> None:
        self._hand = hand
        self._store = sqlite3.connect(store, isolation_level=None)
        self._logs = logs
        self._files: dict[str, sqlite3.Connection] = {}
        self.slots: dict[str, str] = {}
        self.samples: dict[float, tuple[str, int]] = {}
        self.excused: set[float] = set()
        """Samples whose records were damaged."""
        self.forgotten: set[str] = set()
        """Breakers whose logs do not tell all of them any more."""
        self._known: dict[str, list[LogRecord | None]] = {}
        self._ends: dict[str, int] = {}
        self.events: dict[str, list[Event]] = {}
        self._state: dict[str, str] = {}
        """What callers see."""
        self._machine: dict[str, str] = {}
        self.committed: dict[str, set[tuple[int, str]]] = {}
        self._announced: set[tuple[str, int, str, float]] = set()
        """What streams may be told: commits that callers see something of."""
        self.births: list[tuple[str, str]] = []
        self.made_anew: set[tuple[str, int]] = set()
        """Breakers that were made again, and the number of the last event of before."""

    def close(self) -> None:
        for connection in (self._store, *self._files.values()):
            connection.close()

    # the store

    def born(self, breaker_id: str, router_ids: Sequence[str]) -> None:
        """A breaker was created: it is closed, whatever one of its id was before."""
        self.births.extend((breaker_id, router_id) for router_id in router_ids)
        events = self.events.setdefault(breaker_id, [])
        if events:
            self.made_anew.add((breaker_id, len(events)))
        self._state[breaker_id] = self._machine[breaker_id] = "closed"
        self.committed.setdefault(breaker_id, set()).add((len(events), "closed"))

    def events_by_life(self, breaker_id: str) -> Iterator[list[Event]]:
        """The events of a breaker, apart for each time that it was made: a former life may have ended by a clock that
        was ahead."""
        events = self.events[breaker_id]
        ends = sorted(number for known, number in self.made_anew if known == breaker_id)
        for begin, end in pairwise((0, *ends, len(events))):
            yield events[begin:end]

    def commits(self, commits: Sequence[Commit]) -> None:
        """After a transaction of the Journal."""
        for c in commits:
            if c.announce or any(event.hidden_by is None for event in c.events):
                self._announced.add((c.breaker_id, c.transition_seq, c.state, c.allow_rate))
        for breaker_id in dict.fromkeys(commit.breaker_id for commit in commits):
            self._follow(breaker_id)

    def _follow(self, breaker_id: str) -> None:
        """New events go on from the old ones, and the record is where they end."""
        known = self.events.setdefault(breaker_id, [])
        for row in self._store.execute(
            f"SELECT {_EVENT_COLUMNS} FROM events WHERE breaker_id = ? AND transition_seq > ? ORDER BY transition_seq",
            (breaker_id, len(known)),
        ):
            event = self._event(row)
            self._check_move(breaker_id, event, len(known) + 1)
            known.append(event)
            if event.hidden_by is None:
                self._state[breaker_id] = event.curr
            self.committed[breaker_id].add((event.transition_seq, self._state[breaker_id]))
        self._check_record(breaker_id)

    @staticmethod
    def _event(row: tuple[Any, ...]) -> Event:
        fields = dict(zip(Event.__struct_fields__, row, strict=True))
        fields["agg"], fields["rule"] = msgspec.json.decode(fields["agg"]), msgspec.json.decode(fields["rule"])
        return Event(**fields)

    def _check_move(self, breaker_id: str, event: Event, seq: int) -> None:
        if event.transition_seq != seq:
            raise Violation(f"breaker {breaker_id}: event {event.transition_seq} follows event {seq - 1}")
        if words := self._hand.moved(breaker_id, event):
            raise Violation(f"breaker {breaker_id}: event {seq} {words}")
        if event.hidden_by is None:
            self._go_on(breaker_id, event, self._state[breaker_id])
        if event.reason in BY_HAND:
            if event.hidden_by is not None or event.prev == event.curr:
                raise Violation(f"breaker {breaker_id}: event {seq} is {event}, which nobody does by hand")
        else:
            ramp = event.prev == "half_open" and self._hand.may_begin_ramp(breaker_id, event.ts_ms)
            self._go_on(breaker_id, event, "half_open" if ramp else self._machine[breaker_id])
            if (event.prev, event.curr) not in TRANSITIONS:
                raise Violation(f"breaker {breaker_id}: event {seq} goes {event.prev} -> {event.curr}")
            self._machine[breaker_id] = event.curr

    @staticmethod
    def _go_on(breaker_id: str, event: Event, before: str) -> None:
        if event.prev != before:
            told = f"event {event.transition_seq} goes {event.prev} -> {event.curr}"
            raise Violation(f"breaker {breaker_id}: {told}, it was {before}")

    def _check_record(self, breaker_id: str) -> None:
        row = self._store.execute(
            "SELECT r.transition_seq, r.state, r.allow_rate, r.record, b.epoch FROM records r"
            " JOIN breakers b ON b.id = r.breaker_id WHERE breaker_id = ?",
            (breaker_id,),
        ).fetchone()
        if row is None:
            return
        seq, state, rate, record, epoch = row
        if (seq, state) != (len(self.events[breaker_id]), self._state[breaker_id]):
            last = f"event {len(self.events[breaker_id])} says {self._state[breaker_id]}"
            raise Violation(f"breaker {breaker_id}: the record says {state} after event {seq}, {last}")
        if rate != RATES.get(state, rate):
            raise Violation(f"breaker {breaker_id}: allow_rate {rate} while {state}")
        if words := self._hand.stored(breaker_id, epoch, record, state, rate):
            raise Violation(f"breaker {breaker_id}: {words}")

    def all_records(self) -> None:
        """At the end: every breaker there is, and no event that was not seen when it came."""
        for (breaker_id,) in self._store.execute("SELECT breaker_id FROM records").fetchall():
            self._follow(breaker_id)
        stored = dict(self._store.execute("SELECT breaker_id, count(*) FROM events GROUP BY breaker_id").fetchall())
        seen = {breaker_id: len(events) for breaker_id, events in self.events.items() if events}
        if stored != seen:
            raise Violation(f"events in the store: {stored}, seen while they came: {seen}")

    def outbox(self) -> None:
        """At the end: one row for each event that somebody is to be told of, and channel that takes it. Of moves that
        callers did not see nobody is told."""
        channels = [
            (id_, msgspec.json.decode(events)) for id_, events in self._store.execute("SELECT id, events FROM channels")
        ]
        query = "SELECT sequence, prev, curr FROM events WHERE hidden_by IS NULL ORDER BY sequence"
        events = self._store.execute(query).fetchall()
        wanted = [
            (sequence, channel_id, kind)
            for sequence, prev, curr in events
            for channel_id, kinds in channels
            if (kind := alert_of(prev, curr)) in kinds
        ]
        query = "SELECT sequence, channel_id, kind FROM outbox WHERE sequence IS NOT NULL"
        written = self._store.execute(query).fetchall()
        if sorted(wanted) != sorted(written):
            missing, more = set(wanted) - set(written), set(written) - set(wanted)
            raise Violation(f"outbox: {len(written)} rows for {len(wanted)} alerts, without {missing}, with {more}")

    # what readers are told

    def reading(self, reading: StateReading) -> None:
        view = reading.view
        seen = view.machine_state if view.mode == "enforce" else "closed"
        if view.state != (seen if view.override is None else STATES[view.override.kind]):
            told = f"{view.state}, {view.mode}, {view.override}"
            raise Violation(f"breaker {reading.breaker_id}: a reading shows {told} while its machine is {seen}")
        if reading.stale and view.override is not None:
            # its owner may not have heard of the override: nothing that was stored has that state
            known = (number for number, _ in self.committed.get(reading.breaker_id, ()))
            if view.transition_seq not in known:
                raise Violation(f"breaker {reading.breaker_id}: a stale reading tells of an event never stored")
            return
        self._check_shown(reading.breaker_id, view.transition_seq, view.state, "a reading")

    def entry(self, entry: FeedEntry) -> None:
        self._check_shown(entry.breaker_id, entry.transition_seq, entry.state, "the feed")
        told = (entry.breaker_id, entry.transition_seq, entry.state, entry.allow_rate)
        if told not in self._announced:
            raise Violation(f"breaker {entry.breaker_id}: the feed tells {told}, which callers see nothing of")

    def _check_shown(self, breaker_id: str, seq: int, state: str, who: str) -> None:
        if (seq, state) not in self.committed.get(breaker_id, ()):
            raise Violation(f"breaker {breaker_id}: {who} shows {state} after event {seq}, which was never stored")

    # the log

    @property
    def log(self) -> dict[str, list[LogRecord]]:
        """All that was ever appended to each router's log, in order, without what was damaged later."""
        return {
            router_id: [record for record in known if record is not None] for router_id, known in self._known.items()
        }

    def appended(self, slot: str, router_ids: Sequence[str]) -> None:
        """After a transaction of a log."""
        for router_id in dict.fromkeys(router_ids):
            self.slots[router_id] = slot
            known = self._known.setdefault(router_id, [])
            for record in self._records(slot, router_id, self._ends.get(router_id, len(known))):
                self._check_next(known, record)

    def stamped(self, records: Sequence[Append], latest_ms: int) -> None:
        """Samples that are answered 202 count, or somebody is told: none is taken into a log that is ahead of its
        owner's clock by more than the bound."""
        for record in records:
            if record.kind == SAMPLES and record.received_ms > latest_ms:
                ahead_s = (record.received_ms - latest_ms) / 1000
                raise Violation(f"router {record.router_id} took samples {ahead_s:.1f} s further ahead than it may")

    def _records(self, slot: str, router_id: str, after: int) -> list[LogRecord]:
        rows = self.file(slot).execute(
            "SELECT router_id, offset, received_ms, kind, view_offset, payload FROM records"
            " WHERE router_id = ? AND offset > ? ORDER BY offset",
            (router_id, after),
        )
        return [LogRecord(*row) for row in rows]

    def file(self, slot: str) -> sqlite3.Connection:
        if slot not in self._files:
            self._files[slot] = sqlite3.connect(self._logs / f"{slot}.sqlite", isolation_level=None)
        return self._files[slot]

    def _is_repeat(self, record: LogRecord, router_id: str, offset: int) -> bool:
        """Whether a record comes within the time in which repeats are recognised, by the logs' stamps: behind a clock
        that was hours back they are hours apart."""
        earlier = self._known[router_id][offset - 1]
        return earlier is None or record.received_ms - earlier.received_ms <= REPEATED_MS

    def _check_next(self, known: list[LogRecord | None], record: LogRecord) -> None:
        where = f"router {record.router_id}: record {record.offset}"
        if record.router_id in self._ends:
            raise Violation(f"{where} was taken into a log that lacks what breakers have read")
        if record.offset != len(known) + 1:
            raise Violation(f"{where} follows record {len(known)}")
        last = known[-1] if known else None
        if last is not None and record.received_ms < last.received_ms:
            raise Violation(f"{where} was received {last.received_ms - record.received_ms} ms before the one before")
        known.append(record)
        self._hand.appended(record)
        if record.kind == SAMPLES:
            for value in decode_samples(record.payload).batch.value.tolist():
                if value in self.samples and self._is_repeat(record, *self.samples[value]):
                    raise Violation(f"{where} has a sample that lies in record {self.samples[value]} already")
                self.samples[value] = (record.router_id, record.offset)

    def whole_log(self) -> None:
        """At the end: what is still kept is what was seen when it came."""
        for router_id, known in self._known.items():
            for record in self._records(self.slots[router_id], router_id, 0):
                if record.offset > len(known) or known[record.offset - 1] != record:
                    raise Violation(f"router {router_id}: record {record.offset} is not what was appended")

    # damage

    def cut_off(self, router_id: str, end: int, read: int) -> None:
        """A log ends earlier than it did. What nobody had read is lost without a word; where more is missing nothing
        may be taken in any more."""
        known = self._known.get(router_id, [])
        kept = max(end, read)
        self._lose(known[kept:])
        del known[kept:]
        if read > end:
            self._ends[router_id] = end

    def forget_breakers(self, router_id: str) -> None:
        """A log lacks the watermarks that its breakers went on by: they may have moved where it has a gap now."""
        for record in self._known.get(router_id, ()):
            if record is not None and record.kind == BREAKER:
                self.forgotten.add(decode_breaker(record.payload).breaker_id)

    def recovered(self, router_id: str, slot: str, losses: Iterable[Loss]) -> None:
        """A log was made whole: DAMAGED records stand for what was lost, and more may come behind them."""
        known = self._known.get(router_id, [])
        self._ends.pop(router_id, None)
        first = len(known) + 1
        for loss in losses:
            self._lose(known[loss.first - 1 : loss.last])
            known += [None] * (loss.last - len(known))
            known[loss.first - 1 : loss.last] = [None] * (loss.last - loss.first + 1)
        for record in self._records(slot, router_id, 0):
            if record.offset >= first or record.kind == DAMAGED:
                known += [None] * (record.offset - len(known))
                known[record.offset - 1] = record
                self._hand.appended(record)

    def split_by(self, router_id: str, views: Container[int]) -> set[int]:
        """Offsets of records that were split by one of these views."""
        known = (record for record in self._known.get(router_id, ()) if record is not None)
        return {record.offset for record in known if record.kind in (SAMPLES, GAP) and record.view_offset in views}

    def gone(self, router_id: str) -> None:
        """A router was deleted before its damaged log was recovered."""
        self._lose(self._known.pop(router_id, ()))

    def _lose(self, records: Iterable[LogRecord | None]) -> None:
        for record in records:
            if record is not None and record.kind == SAMPLES:
                values = decode_samples(record.payload).batch.value.tolist()
                self.excused.update(values)
                for value in values:  # one that was sent again hours later may lie in a record that is lost as well
                    self.samples.pop(value, None)
            elif record is not None and record.kind == BREAKER:
                self.forgotten.add(decode_breaker(record.payload).breaker_id)
