"""Reads routers' logs for breakers that restore, refill a window or catch up: which rows of a record concern whom."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

from breaker_actors.core.model import Batch
from breaker_actors.core.records import (
    BREAKER,
    GAP,
    SAMPLES,
    LogRecord,
    RouterView,
    SampleColumns,
    decode_breaker,
    decode_samples,
    decode_view,
)
from breaker_actors.messages import RouterRef
from breaker_actors.stores.samplelog import SampleLog

VIEWS_MAX = 1_000
CHUNK = 64


class LogReader:
    """The log, with the views that split it cached (at most VIEWS_MAX)."""

    def __init__(self, log: SampleLog) -> None:
        self._log = log
        self._views: OrderedDict[tuple[str, int], RouterView] = OrderedDict()

    async def after(self, router: RouterRef, after: int, upto: int) -> AsyncIterator[LogRecord]:
        """Records in (after, upto], in order, read CHUNK at a time."""
        while after < upto:
            records = await self._log.read(router.log_slot, router.router_id, after, upto, CHUNK)
            for record in records:
                yield record
            if len(records) < CHUNK:
                return
            after = records[-1].offset

    async def back(self, router: RouterRef, upto: int, until_ms: int) -> list[LogRecord]:
        """Sample records at or below an offset that were received after a time, in order."""
        records = await self._log.read_back(router.log_slot, router.router_id, upto, until_ms)
        return [r for r in records if r.kind == SAMPLES]

    async def view(self, router: RouterRef, record: LogRecord) -> RouterView:
        """How the router split when it wrote the record."""
        key = (record.router_id, record.view_offset)
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = await self._load_view(router, record.view_offset)
            if len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        return known

    async def _load_view(self, router: RouterRef, offset: int) -> RouterView:
        if offset == 0:
            return RouterView(version=0)
        records = await self._log.read(router.log_slot, router.router_id, offset - 1, offset, 1)
        return decode_view(records[0].payload) if records else RouterView(version=0)


def takers(record: LogRecord, view: RouterView) -> Iterable[str]:
    """Ids of the breakers that a record concerns."""
    if record.kind == SAMPLES:
        metrics = decode_samples(record.payload).metrics
        return (breaker_id for metric in metrics for breaker_id in view.takers(metric))
    if record.kind == BREAKER:
        return (decode_breaker(record.payload).breaker_id,)
    if record.kind == GAP:
        return (link.breaker_id for link in view.links)
    return ()


def rows(columns: SampleColumns, view: RouterView, breaker_id: str) -> Batch | None:
    """The rows of a samples record that a breaker takes under a view; None when there are none."""
    for i, metric in enumerate(columns.metrics):
        if breaker_id in view.takers(metric):
            return columns.batch.slice(columns.starts[i], columns.starts[i + 1])
    return None
