"""Applies log entries to hosted breakers, in log order, one breaker at a time. Synchronous: what has to be awaited
before a breaker goes on is answered as a value, and the breaker is blocked until `unblock`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from breaker_actors.breaker.hosted import (
    EFFECTS_MAX,
    INBOX_ROWS_MAX,
    Effects,
    HostedBreaker,
    Item,
    catch_up_marker,
    is_next,
)
from breaker_actors.breaker.metrics import count_losses, look
from breaker_actors.breaker.slices import ENTRY_ROWS, MOVED_ROWS, SLICE_ROWS
from breaker_actors.breaker.watermarks import Watermarks
from breaker_actors.clock import Clock
from breaker_actors.core.log_entries import BREAKER, SAMPLES, UNREADABLE, SampleColumns, decode_samples
from breaker_actors.core.model import Rows
from breaker_actors.core.moves import Effort
from breaker_actors.messages import DeliveredEntry, Delivery, Target
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides


class Settle(msgspec.Struct, frozen=True):
    """Effects to be made durable; none: the window alone is to be refilled."""

    effects: Effects


class ReadLog(msgspec.Struct, frozen=True):
    """A router's log is to be read up to an offset."""

    router_id: str
    upto: int


class Rest(msgspec.Struct, frozen=True):
    """There is more to do, when the breaker's turn comes again."""


Todo = Settle | ReadLog | Rest

STEP_EFFORT, FIRST_EFFORT = 100, 10
"""Evaluations that a breaker makes in one step, a millisecond, and before it takes what a delivery brings."""
SET_ROWS = 4
"""Rows that each sample held costs when a breaker gets other settings: its window is counted anew."""
_REST = Rest()


class DecodedEntry(msgspec.Struct, frozen=True):
    """An entry of a delivery, decoded. `rows`: its samples as what most breakers take them from."""

    offset: int
    received_ms: int
    kind: int
    body: SampleColumns | bytes
    rows: Rows | None


DecodedEntries = list[DecodedEntry | None]
"""Of a delivery, decoded once for all breakers that take them."""


class Applying:
    """For the breakers of one process. It alone sets `HostedBreaker.blocked` and `resting`. `worked`: what was done so
    far, in rows (see `slices`)."""

    def __init__(self, watermarks: Watermarks, asides: Asides, clock: Clock, meters: Meters, samples_max: int) -> None:
        """`samples_max`: samples in the window of one breaker."""
        self._watermarks = watermarks
        self._timers = watermarks.timers
        self._asides = asides
        self._clock = clock
        self._meters = meters
        self._samples_max = samples_max
        self._lag = meters.histogram("breakers_evaluation_lag_seconds")
        self._applied = self._samples_applied = 0
        self.worked = 0

    def accept(self, hosted: HostedBreaker, target: Target, delivery: Delivery, entries: DecodedEntries) -> Todo | None:
        """A delivery's entries for one breaker: applied, or queued behind what waits. What costs more than a slice is
        read later."""
        if target.spans is None or (hosted.blocked and not hosted.keeps):
            hosted.push(catch_up_marker(target.router_id, target.upto))
            return self.work(hosted)
        if hosted.breaker is not None and hosted.breaker.effort > STEP_EFFORT and not hosted.blocked:
            return self.put_off(hosted, target)
        router_id, after, todo = target.router_id, target.after, None
        end, kept = self.slice_end(), hosted.keeps
        for index, start, stop in target.spans:
            if self.worked >= end and not hosted.blocked:
                return self.put_off(hosted, target)
            if kept and not hosted.keeps and hosted.blocked:  # that was as much as it keeps
                hosted.push(catch_up_marker(router_id, target.upto))
                return todo
            entry = entries[index]
            if entry is None:
                entry = entries[index] = self._entry(router_id, delivery.records[index])
            offset, rows = entry.offset, entry.rows
            if rows is not None and start < stop and is_next(hosted, router_id, after, offset, rows.received_ms):
                todo = self._take(hosted, router_id, offset, rows, start, stop)
            else:
                size = len(delivery.records[index].payload)
                item = Item(router_id, after, offset, entry.received_ms, entry.kind, entry.body, start, stop, size)
                if hosted.blocked or hosted.inbox:
                    hosted.push(item)
                else:
                    todo = self._admit(hosted, item, FIRST_EFFORT)
            after = offset
        return todo or (self.work(hosted) if hosted.inbox else None)

    def _take(
        self, hosted: HostedBreaker, router_id: str, offset: int, rows: Rows, start: int, stop: int
    ) -> Todo | None:
        """Samples that a free breaker takes at once: what `_admit` does, without what they can't need."""
        self._applied += 1
        self._samples_applied += stop - start
        hosted.applied_offsets[router_id] = offset
        hosted.dirty = True
        effects: Effects = ()
        try:
            assert hosted.breaker is not None
            effects = hosted.breaker.ingest_rows(rows, start, stop)
        except Exception as error:
            self._asides.note("log", router_id, error, b"", offset, hosted.project_id)
        self._count(hosted, stop - start, effects)
        if effects or hosted.needs_refill:
            return self._settle(hosted, effects)
        self._timers.schedule(hosted)
        return None

    @staticmethod
    def _settle(hosted: HostedBreaker, effects: Effects) -> Settle:
        """A commit may begin; what comes meanwhile is kept."""
        hosted.blocked, hosted.keeps = True, INBOX_ROWS_MAX
        return Settle(effects)

    def put_off(self, hosted: HostedBreaker, target: Target) -> Todo | None:
        """A delivery's entries for one breaker that has had its turn: it reads them from the log in a later one."""
        hosted.push(catch_up_marker(target.router_id, target.upto))
        return None if hosted.blocked else self.rest(hosted)

    @staticmethod
    def rest(hosted: HostedBreaker) -> Rest:
        """A free breaker goes on in its turn; meanwhile it takes nothing but word of what it is to read."""
        hosted.blocked = hosted.resting = True
        return _REST

    def slice_end(self) -> int:
        """Up to where `worked` may come in a slice that begins now."""
        return self.worked + SLICE_ROWS

    def _count(self, hosted: HostedBreaker, rows: int, effects: Effects) -> None:
        """So many rows were applied, others moved for them, and all evaluated; a move reports on all of the window."""
        breaker = hosted.breaker
        if breaker is None:
            self.worked += rows + ENTRY_ROWS
            return
        self.worked += rows + breaker.take_moved() // MOVED_ROWS + ENTRY_ROWS * breaker.effort
        if effects:
            self.worked += breaker.samples_held

    def _entry(self, router_id: str, told: DeliveredEntry) -> DecodedEntry:
        """What can't be read is of a kind of its own, and every breaker passes it over."""
        if told.kind != SAMPLES:
            return DecodedEntry(told.offset, told.received_ms, told.kind, told.payload, None)

        def read() -> tuple[SampleColumns, Rows | None]:
            columns = decode_samples(told.payload)
            return columns, columns.received(told.received_ms)

        found = self._asides.attempt(read, "log", router_id, told.payload, told.offset)
        if found is None:
            return DecodedEntry(told.offset, told.received_ms, UNREADABLE, told.payload, None)
        return DecodedEntry(told.offset, told.received_ms, SAMPLES, *found)

    def work(self, hosted: HostedBreaker) -> Todo | None:
        """Applies what waits until the breaker is blocked, its turn is over or nothing is left; then its timers, as far
        as the last watermark goes."""
        todo, end = None, self.worked + STEP_EFFORT * ENTRY_ROWS
        while hosted.inbox and not hosted.blocked and not hosted.dropped:
            if self.worked >= end:
                return self.rest(hosted)
            item, applied = hosted.pop(), self._applied
            todo = self._admit(hosted, item)
            if self._applied > applied:
                self.count_lag(item.received_ms)
        return self.apply_watermark(hosted) if not hosted.blocked and not hosted.dropped else todo

    def unblock(self, hosted: HostedBreaker) -> Todo | None:
        """What the breaker waited for is done."""
        hosted.blocked = hosted.resting = False
        hosted.keeps = 0
        if hosted.dropped:
            return None
        if hosted.breaker is not None:
            hosted.show()
        todo = self.work(hosted)
        if hosted.breaker is not None and not hosted.blocked and not hosted.dropped:
            self._timers.schedule(hosted)
        return todo

    def _admit(self, hosted: HostedBreaker, item: Item, effort: int = STEP_EFFORT) -> Todo | None:
        """One item for a breaker that is free: skip, read the log first, or apply."""
        if not hosted.wants(item.router_id, item.offset):
            return None
        if item.body is None or item.after > hosted.applied_offsets[item.router_id]:
            hosted.blocked = True
            self._meters.count("breakers_catch_ups_total")
            return ReadLog(item.router_id, item.offset)
        if (effects := self.catch_up(hosted, item, effort)) is not None:
            hosted.push_first(item)
            if not effects:
                return self.rest(hosted)
        else:
            effects = self.apply(hosted, item)
        if effects or hosted.needs_refill:
            return self._settle(hosted, effects)
        if hosted.breaker is not None:
            self._timers.schedule(hosted)
            hosted.show()
        return None

    def catch_up(self, hosted: HostedBreaker, item: Item, effort: int = STEP_EFFORT) -> Effects | None:
        """A step of a breaker that has timers to fire before an entry: what comes of it, EFFECTS_MAX at most; to be
        called again then. None: the entry is next."""
        breaker = hosted.breaker
        if breaker is None or not hosted.is_behind(item):
            return None
        payload = item.body if isinstance(item.body, bytes) else b""
        work = partial(hosted.moves_until, item)
        upto_ms = self._asides.attempt(work, "log", item.router_id, payload, item.offset, hosted.project_id)
        if upto_ms is None or breaker.now_ms > upto_ms:
            return None
        hosted.dirty, left = True, Effort(effort)
        effects = breaker.advance(upto_ms, EFFECTS_MAX, left)
        self.worked += ENTRY_ROWS * (effort - left.left) + breaker.take_moved() // MOVED_ROWS
        return effects if effects or breaker.now_ms <= upto_ms else None

    def apply(self, hosted: HostedBreaker, item: Item) -> Effects:
        """One log entry into one breaker. What can't be read, or applied, is set aside; the breaker goes on behind."""
        self._applied += 1
        if item.kind == SAMPLES and hosted.breaker is not None:
            self._samples_applied += item.stop - item.start
        payload = item.body if isinstance(item.body, bytes) else b""
        work = partial(hosted.apply, item, self._samples_max)
        effects = self._asides.attempt(work, "log", item.router_id, payload, item.offset, hosted.project_id) or ()
        self._count(hosted, item.stop - item.start, effects)
        if item.kind == BREAKER and hosted.breaker is not None:
            self.worked += SET_ROWS * hosted.breaker.samples_held
        return effects

    def apply_watermark(self, hosted: HostedBreaker) -> Todo | None:
        """Fires the timers of a breaker that is free, once its watermark holds for it."""
        effort = Effort(STEP_EFFORT)
        effects = self._watermarks.apply(hosted, effort)
        if effects is None or hosted.breaker is None:
            return None
        self.worked += ENTRY_ROWS * (1 + STEP_EFFORT - effort.left) + hosted.breaker.take_moved() // MOVED_ROWS
        if effects:
            return self._settle(hosted, effects)
        if hosted.watermark is not None:
            return self.rest(hosted)
        self._timers.schedule(hosted)
        return None

    def count_lag(self, since_ms: int) -> None:
        """An entry stamped so has been applied."""
        self._lag.add(max(0, self._clock.now_ms() - since_ms) / 1000)

    def end(self, hosted: HostedBreaker) -> None:
        """A breaker takes nothing any more; what it lost is counted."""
        hosted.end()
        count_losses(self._meters, hosted)

    def look(self, breakers: Collection[HostedBreaker]) -> None:
        """Tells what was applied, and to what (see Meters.watch)."""
        look(self._meters, breakers, self._clock.now_ms())
        self._meters.total("breakers_records_applied_total", self._applied)
        self._meters.total("breakers_samples_applied_total", self._samples_applied)
