"""Writes what was staged to the log, hands it on to the subscribers, and answers whether the log has it.

Gets the records of a `Group`; hands them to the write-ahead log, one transaction per slot, then to the fan-out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

import structlog
from msgspec.structs import replace

from breaker_actors.clock import Clock
from breaker_actors.core.counters import Outcome
from breaker_actors.core.log_entries import BREAKER, GAP, SAMPLES, VIEW
from breaker_actors.errors import BreakersError
from breaker_actors.messages import AppendResult
from breaker_actors.router.fanout import TAKERS_AT_ONCE
from breaker_actors.router.group import Staged
from breaker_actors.router.owned import OwnedRouters
from breaker_actors.telemetry.meters import Meters
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import SampleLog

T = TypeVar("T")

log = structlog.get_logger(__name__)

SAY_EACH_MS = 10_000
"""How often a process says that its writes fail, while they do."""
KINDS = {SAMPLES: "samples", BREAKER: "breaker", VIEW: "view", GAP: "gap"}


class Appends:
    """Appends for one RouterActor. `is_doubtful`: the outcome of a write is not known, the log is to be read again.
    `fault`: why the last write failed, "" when it did not: a full disk shows before samples are lost."""

    def __init__(self, log: SampleLog, owned: OwnedRouters, clock: Clock, meters: Meters, asides: Asides) -> None:
        self._log = log
        self._owned = owned
        self._clock = clock
        self._meters = meters
        self._asides = asides
        self._records: Counter[int] = Counter()
        self._points: Counter[Outcome] = Counter()
        self._bytes = self._samples = 0
        self.is_doubtful = False
        self.fault = ""
        self._said_ms = -SAY_EACH_MS
        self._is_said = False

    async def noting(self, write: Awaitable[T]) -> T:
        """Another write to the log, whose outcome is remembered until the next one."""
        try:
            done = await write
        except BreakersError as error:
            self._failed(error)
            raise
        self._succeeded()
        return done

    def _failed(self, error: BreakersError) -> None:
        """Remembers why, and says so now and then: whoever runs the service should see it without looking."""
        self.fault = str(error)
        now = self._clock.now_ms()
        if not 0 <= now - self._said_ms < SAY_EACH_MS:
            log.warning("log_unwritable", error=self.fault)
            self._said_ms, self._is_said = now, True

    def _succeeded(self) -> None:
        self.fault = ""
        if self._is_said:
            log.info("log_writable")
            self._is_said = False

    async def write(self, staged: list[Staged]) -> dict[int, AppendResult]:
        """Appends and, where the log took it, hands on; answers the items of the group by their places. When the log
        does not answer, those that are not in there have no outcome, and `is_doubtful` is set."""
        by_slot: dict[str, list[Staged]] = {}
        for record in staged:
            by_slot.setdefault(record.router.slot, []).append(record)
        outcomes: dict[int, AppendResult] = {}
        fanout = self._owned.fanout
        try:
            for slot, records in by_slot.items():
                with self._meters.timed("breakers_log_append_seconds"):
                    taken = await self._log.append(slot, [r.append for r in records])
                fanout.handed = 0
                for record, ok in zip(records, taken, strict=True):
                    if fanout.handed >= TAKERS_AT_ONCE:
                        await fanout.rest()
                    result = self._appended(record, ok)
                    outcomes |= dict.fromkeys(record.answers, result)
                    outcomes |= {index: replace(result, beyond=n) for index, n in record.beyond.items()}
        except BreakersError as error:
            self._meters.count("breakers_log_failures_total")
            self.is_doubtful = True
            self._failed(error)
            return outcomes
        self._succeeded()
        now = self._clock.now_ms()
        self._owned.outages.wrote(now)
        self._owned.forget_keys(now)
        fanout.flush()
        return outcomes

    def _appended(self, record: Staged, ok: bool) -> AppendResult:
        owned, router, append = self._owned, record.router, record.append
        if not ok:
            owned.lose(router.id)
            return AppendResult("not_owner")
        self._count(record)
        owned.retention.note(router.slot, router.id, len(append.payload))
        router.offset, router.last_ms = append.offset, append.received_ms
        if append.kind == GAP:
            self._meters.count("breakers_log_gaps_total")
            router.gap_ms = append.received_ms
            owned.outages.owed.settled(router.id)
        owned.keys.note(router, append)
        if record.counted is not None:
            router.counters.keep(record.counted)
            self._points.update(record.counted.outcomes)
        # what can't be read lies in the log, and every reader passes it over as this one does
        hand_on = partial(owned.fanout.hand_on, record)
        view = self._asides.attempt(hand_on, "log", router.id, append.payload, append.offset, router.project_id)
        if view is not None:
            router.set_view(append.offset, view)
        return _heard(record)

    def _count(self, record: Staged) -> None:
        self._records[record.append.kind] += 1
        self._bytes += len(record.append.payload)
        if record.columns is not None:
            self._samples += len(record.columns.batch)

    def look(self) -> None:
        """Tells what was appended (see Meters.watch)."""
        for kind, n in self._records.items():
            self._meters.total("breakers_log_records_total", n, kind=KINDS.get(kind, "other"))
        self._meters.total("breakers_log_bytes_total", self._bytes)
        self._meters.total("breakers_log_samples_total", self._samples)
        for outcome, n in self._points.items():
            self._meters.total("breakers_cumulative_points_total", n, outcome=outcome)


def _heard(record: Staged) -> AppendResult:
    """That a record was appended, and who hears its samples."""
    splitter, offset = record.router.splitter, record.append.offset
    if record.columns is None:
        return AppendResult("ok", offset)
    if not splitter.view.enabled:
        return AppendResult("ok", offset, disabled=True)
    unheard = splitter.unheard(record.columns.metrics)
    return AppendResult("ok", offset, unheard=unheard, heard=splitter.heard if unheard else ())
