"""Applies log entries to hosted breakers, in log order, one breaker at a time. Synchronous: what has to be awaited
before a breaker goes on is answered as a value, and the breaker is blocked until `unblock`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from breaker_actors.breaker.hosted import EFFECTS_MAX, Effects, HostedBreaker, Item, catch_up_marker
from breaker_actors.breaker.metrics import count_losses, look
from breaker_actors.breaker.watermarks import Watermarks
from breaker_actors.clock import Clock
from breaker_actors.core.log_entries import SAMPLES, UNREADABLE, SampleColumns, decode_samples
from breaker_actors.messages import Delivery, Target
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides


class Settle(msgspec.Struct, frozen=True):
    """Effects to be made durable; none: the window alone is to be refilled."""

    effects: Effects


class ReadLog(msgspec.Struct, frozen=True):
    """A router's log is to be read up to an offset."""

    router_id: str
    upto: int


Todo = Settle | ReadLog
Bodies = list[SampleColumns | bytes | None]
"""Of a delivery's records, decoded once for all breakers that take them."""


class Applying:
    """For the breakers of one process. It alone sets `HostedBreaker.blocked`."""

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

    def accept(self, hosted: HostedBreaker, target: Target, delivery: Delivery, bodies: Bodies) -> Todo | None:
        """A delivery's entries for one breaker: applied, or queued behind what waits."""
        if target.spans is None:
            hosted.push(catch_up_marker(target.router_id, target.upto))
            return self.work(hosted)
        after, todo = target.after, None
        for index, start, stop in target.spans:
            entry = delivery.records[index]
            offset, kind = entry.offset, entry.kind
            body = bodies[index]
            if body is None:
                body = bodies[index] = self._body(target.router_id, offset, kind, entry.payload)
            if kind == SAMPLES and not isinstance(body, SampleColumns):
                kind = UNREADABLE
            item = Item(target.router_id, after, offset, entry.received_ms, kind, body, start, stop)
            if hosted.blocked or hosted.inbox:
                hosted.push(item)
            else:
                todo = self._admit(hosted, item)
            after = offset
        return todo or (self.work(hosted) if hosted.inbox else None)

    def _body(self, router_id: str, offset: int, kind: int, payload: bytes) -> SampleColumns | bytes:
        """The samples of a record, or its bytes: those of another one, and of samples that can't be read."""
        if kind != SAMPLES:
            return payload
        return self._asides.attempt(partial(decode_samples, payload), "log", router_id, payload, offset) or payload

    def work(self, hosted: HostedBreaker) -> Todo | None:
        """Applies what waits until the breaker is blocked or nothing is left; then its timers, as far as the last
        watermark goes."""
        todo = None
        while hosted.inbox and not hosted.blocked and not hosted.dropped:
            item = hosted.pop()
            todo = self._admit(hosted, item)
            if item.body is not None:
                self.count_lag(item.received_ms)
        return self.apply_watermark(hosted) if not hosted.blocked and not hosted.dropped else todo

    def unblock(self, hosted: HostedBreaker) -> Todo | None:
        """What the breaker waited for is done."""
        hosted.blocked = False
        if hosted.dropped:
            return None
        if hosted.breaker is not None:
            self._timers.schedule(hosted)
            hosted.show()
        return self.work(hosted)

    def _admit(self, hosted: HostedBreaker, item: Item) -> Todo | None:
        """One item for a breaker that is free: skip, read the log first, or apply."""
        if not hosted.wants(item.router_id, item.offset):
            return None
        if item.body is None or item.after > hosted.applied_offsets[item.router_id]:
            hosted.blocked = True
            self._meters.count("breakers_catch_ups_total")
            return ReadLog(item.router_id, item.offset)
        if effects := self.catch_up(hosted, item):
            hosted.push_first(item)
        else:
            effects = self.apply(hosted, item)
        if effects or hosted.needs_refill:
            hosted.blocked = True
            return Settle(effects)
        if hosted.breaker is not None:
            self._timers.schedule(hosted)
            hosted.show()
        return None

    def catch_up(self, hosted: HostedBreaker, item: Item) -> Effects:
        """Moves that a breaker far behind makes before an entry, EFFECTS_MAX at a time; none: the entry is next."""
        if hosted.breaker is None or not hosted.is_behind(item):
            return ()
        payload = item.body if isinstance(item.body, bytes) else b""
        work = partial(hosted.moves_until, item)
        upto_ms = self._asides.attempt(work, "log", item.router_id, payload, item.offset, hosted.project_id)
        return () if upto_ms is None else hosted.breaker.advance(upto_ms, EFFECTS_MAX)

    def apply(self, hosted: HostedBreaker, item: Item) -> Effects:
        """One log entry into one breaker. What can't be read, or applied, is set aside; the breaker goes on behind."""
        self._applied += 1
        if item.kind == SAMPLES and hosted.breaker is not None:
            self._samples_applied += item.stop - item.start
        payload = item.body if isinstance(item.body, bytes) else b""
        work = partial(hosted.apply, item, self._samples_max)
        return self._asides.attempt(work, "log", item.router_id, payload, item.offset, hosted.project_id) or ()

    def apply_watermark(self, hosted: HostedBreaker) -> Todo | None:
        """Fires the timers of a breaker that is free, once its watermark holds for it."""
        effects = self._watermarks.apply(hosted)
        if effects is None:
            return None
        if effects:
            hosted.blocked = True
            return Settle(effects)
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
