"""Reads routers' logs for breakers that restore, refill a window or catch up: which rows of a record concern whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    GAP,
    SAMPLES,
    VIEW,
    LogRecord,
    Picked,
    RouterView,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_samples,
    decode_view,
)
from breaker_actors.messages import RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import SampleLog

T = TypeVar("T")

Concern = tuple[str, SampleColumns | bytes, int, int]
"""A breaker's id, what it gets of a record, and its rows of that (-1 where it has none)."""
VIEWS_MAX = 1_000
CHUNK = 64


class LogReader:
    """The log, with the views that split it cached (at most VIEWS_MAX)."""

    def __init__(self, log: SampleLog, asides: Asides | None = None) -> None:
        self._log = log
        self._asides = asides or Asides()
        self._views: OrderedDict[tuple[str, int], Splitter] = OrderedDict()

    async def after(self, router: RouterRef, after: int, upto: int) -> AsyncIterator[LogRecord]:
        """Records in (after, upto], in order, read CHUNK at a time."""
        while after < upto:
            records = await self._log.read(router.log_slot, router.router_id, after, upto, CHUNK)
            for record in records:
                yield record
            if len(records) < CHUNK:
                return
            after = records[-1].offset

    async def back(self, router: RouterRef, upto: int, until_ms: int) -> AsyncIterator[LogRecord]:
        """Sample records at or below an offset that were received after a time, in order, read CHUNK at a time."""
        begin = await self._log.find(router.log_slot, router.router_id, until_ms)
        async for record in self.after(router, begin, upto):
            if record.kind == SAMPLES:
                yield record

    async def at(self, router: RouterRef, offset: int) -> LogRecord | None:
        """One record, if it is kept."""
        records = await self._log.read(router.log_slot, router.router_id, offset - 1, offset, 1)
        return records[0] if records else None

    async def splitter(self, router: RouterRef, record: LogRecord) -> Splitter:
        """How the router split when it wrote the record."""
        key = (record.router_id, record.view_offset)
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = Splitter(await self._load_view(router, record.view_offset))
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        return known

    async def _load_view(self, router: RouterRef, offset: int) -> RouterView:
        return await view_at(self._log, router.log_slot, router.router_id, offset, self._asides)

    def concerned(self, record: LogRecord, splitter: Splitter) -> Sequence[Concern]:
        """The same as `concerned`; a record that can't be read is set aside and concerns nobody."""
        return self.attempt(lambda: list(concerned(record, splitter)), record) or ()

    def attempt(self, work: Callable[[], T], record: LogRecord) -> T | None:
        """What work on a record gives; None when the record can't be read, which is noted."""
        return self._asides.attempt(work, "log", record.router_id, record.payload, record.offset)


async def view_at(log: SampleLog, slot: str, router_id: str, offset: int, asides: Asides) -> RouterView:
    """The view that lies at an offset of a router's log. One that can't be read is set aside, and the one before it
    stays in force, for the router's owner and for every reader alike; without any nobody gets samples."""
    while offset > 0:
        records = await log.read(slot, router_id, offset - 1, offset, 1)
        if not records:
            break
        record = records[0]
        if record.kind == DAMAGED:  # nothing that is split is left of it
            offset = min(record.view_offset, offset - 1)
            continue
        view = asides.attempt(partial(decode_view, record.payload), "log", router_id, record.payload, offset)
        if view is not None:
            return view
        offset = min(record.view_offset, offset - 1)
    return RouterView(version=0)


def concerned(record: LogRecord, splitter: Splitter) -> Iterator[Concern]:
    """Whom a record concerns. A DAMAGED one concerns everybody who reads it: what was lost may have been a view."""
    if record.kind == SAMPLES:
        columns = decode_samples(record.payload)
        picked = Picked(columns)
        for breaker_id, start, stop, chosen in splitter.split(columns, record.router_id, record.offset):
            if chosen is None:
                yield breaker_id, columns, start, stop
            else:
                yield breaker_id, picked.of(start, chosen), 0, len(chosen)
    elif record.kind == BREAKER:
        yield decode_breaker(record.payload).breaker_id, record.payload, -1, -1
    elif record.kind == GAP:
        for link in splitter.view.links:
            yield link.breaker_id, record.payload, -1, -1
    elif record.kind == VIEW:
        for breaker_id in unlinked(splitter.view, decode_view(record.payload)):
            yield breaker_id, record.payload, -1, -1


def unlinked(before: RouterView, after: RouterView) -> list[str]:
    """Breakers that a new view leaves out."""
    still = {link.breaker_id for link in after.links}
    return [link.breaker_id for link in before.links if link.breaker_id not in still]
