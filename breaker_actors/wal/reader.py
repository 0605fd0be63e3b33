"""Reads routers' logs for breakers that restore, refill a window or catch up: which rows of a record concern whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec

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
from breaker_actors.errors import BreakersError, LogDamaged
from breaker_actors.messages import RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import READ_BYTES, Read, SampleLog, is_full

T = TypeVar("T")

Concern = tuple[str, SampleColumns | bytes, int, int]
"""A breaker's id, what it gets of a record, and its rows of that (-1 where it has none)."""
VIEWS_MAX = 1_000
CHUNK = 64
"""Records of one read."""
AT_ONCE = 100
"""Logs of so many routers are begun with one read."""
SPLIT = (SAMPLES, GAP, VIEW)
"""What of a log concerns those whom the view before it names."""
NOBODY = Splitter(RouterView(version=0))


class Begun(msgspec.Struct, frozen=True):
    """The first page of a router's log after an offset, read ahead. None: it was not."""

    after: int
    records: Read | None = None


class LogReader:
    """The log, with the views that split it cached (at most VIEWS_MAX)."""

    def __init__(self, log: SampleLog, asides: Asides | None = None) -> None:
        self._log = log
        self._asides = asides or Asides()
        self._views: OrderedDict[tuple[str, int], Splitter] = OrderedDict()

    async def begin(self, wanted: Sequence[tuple[RouterRef, int, int]]) -> list[Begun]:
        """Reads ahead what `after` reads first, for each router and (after, upto]; AT_ONCE at most. What there is no
        room for, or a log that does not answer, is left to `after`."""
        found = [Begun(after) for _, after, _ in wanted]
        for slot in dict.fromkeys(router.log_slot for router, _, _ in wanted):
            places = [i for i, (router, _, _) in enumerate(wanted) if router.log_slot == slot]
            stretches = [(wanted[i][0].router_id, *wanted[i][1:]) for i in places]
            with suppress(BreakersError):
                read = await self._log.read_some(slot, stretches, CHUNK)
                for i, records in zip(places, read, strict=False):
                    found[i] = Begun(wanted[i][1], records)
                await self._learn_views(slot, [record for some in read if isinstance(some, list) for record in some])
        return found

    async def _learn_views(self, slot: str, records: Sequence[LogRecord]) -> None:
        """Reads the views that split these records, as far as they lie where they should; `splitter` finds others."""
        needed = {(r.router_id, r.view_offset) for r in records if r.kind in SPLIT and r.view_offset}
        wanted = [(router_id, offset - 1, offset) for router_id, offset in sorted(needed - self._views.keys())]
        for some in await self._log.read_some(slot, wanted, 1) if wanted else ():
            for record in some if isinstance(some, list) else ():
                if record.kind == VIEW:
                    with suppress(msgspec.MsgspecError, ValueError):  # set aside by who looks for it
                        self._keep((record.router_id, record.offset), Splitter(decode_view(record.payload)))

    async def after(
        self, router: RouterRef, after: int, upto: int, begun: Begun | None = None
    ) -> AsyncIterator[LogRecord]:
        """Records in (after, upto], in order, read page by page. `begun`: of this stretch, if it was read ahead."""
        ahead = begun.records if begun is not None and begun.after == after else None
        while after < upto:
            if isinstance(ahead, LogDamaged):
                raise ahead
            records, ahead = ahead, None
            if records is None:
                records = await self.page(router, after, upto)
            for record in records:
                yield record
            if not is_full([record.payload for record in records], CHUNK):
                return
            after = records[-1].offset

    async def page(
        self, router: RouterRef, after: int, upto: int, most: int = CHUNK, bytes_max: int = READ_BYTES
    ) -> list[LogRecord]:
        """The first records in (after, upto], as SampleLog.read bounds them."""
        return await self._log.read(router.log_slot, router.router_id, after, upto, most, bytes_max)

    async def begin_back(self, wanted: Sequence[tuple[RouterRef, int, int]]) -> list[Begun]:
        """The same for `back`, for each router, (upto, until_ms)."""
        found = [Begun(-1) for _ in wanted]
        for slot in dict.fromkeys(router.log_slot for router, _, _ in wanted):
            places = [i for i, (router, _, _) in enumerate(wanted) if router.log_slot == slot]
            times = [(wanted[i][0].router_id, wanted[i][2]) for i in places]
            with suppress(BreakersError):
                for i, after in zip(places, await self._log.find_some(slot, times), strict=True):
                    found[i] = Begun(after)
        known = [i for i, begun in enumerate(found) if 0 <= begun.after < wanted[i][1]]
        stretches = [(wanted[i][0], found[i].after, wanted[i][1]) for i in known]
        for i, begun in zip(known, await self.begin(stretches), strict=True):
            found[i] = begun
        return found

    async def back(
        self, router: RouterRef, upto: int, until_ms: int, begun: Begun | None = None
    ) -> AsyncIterator[LogRecord]:
        """Sample records at or below an offset that were received after a time, in order, read page by page.
        `begun`: what `begin_back` said of it."""
        after = -1 if begun is None else begun.after
        if after < 0:
            after = await self._log.find(router.log_slot, router.router_id, until_ms)
        async for record in self.after(router, after, upto, begun):
            if record.kind == SAMPLES:
                yield record

    async def at(self, router: RouterRef, offset: int) -> LogRecord | None:
        """One record, if it is kept."""
        records = await self._log.read(router.log_slot, router.router_id, offset - 1, offset, 1)
        return records[0] if records else None

    async def splitter(self, router: RouterRef, record: LogRecord) -> Splitter:
        """How the router split when it wrote the record."""
        if record.kind not in SPLIT or not record.view_offset:  # nor is anybody named before the first view
            return NOBODY
        key = (record.router_id, record.view_offset)
        known = self._views.get(key)
        return known or self._keep(key, Splitter(await self._load_view(router, record.view_offset)))

    def _keep(self, key: tuple[str, int], splitter: Splitter) -> Splitter:
        self._views[key] = splitter
        if len(self._views) > VIEWS_MAX:
            self._views.popitem(last=False)
        return splitter

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
