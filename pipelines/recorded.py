"""What a breaker of a service got, out of the service's sample logs: record by record, in the order it was received;
before that, what the history store has, shared out as routers are now.

    from pipelines.backtest import backtest
    from pipelines.recorded import recorded

    log = recorded("checkout latency")              # by name or id; the service of ./.breakers, or of the settings
    backtest(log.breaker, log).transitions          # what it did
    backtest({...}, log).transitions                # what another rule would have done

The breaker is created when the service created it, or with the first sample where that is not in the log any more
(setting log_retention_ms: a day) or history goes before it. Spans in which nothing could be received are no silence,
and one rule is in force from the beginning to the end. Nothing is written; the service may go on meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import polars as pl
from msgspec.structs import replace

from breaker_actors.clock import SystemClock
from breaker_actors.core.records import (
    BREAKER,
    GAP,
    SAMPLES,
    Gap,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_gap,
)
from breaker_actors.errors import Invalid
from breaker_actors.logreader import LogReader, concerned
from breaker_actors.messages import RouterRef
from breaker_actors.settings import Settings, load_settings
from breaker_actors.stores.base import BreakerRow, Store
from breaker_actors.stores.opening import check_in_use, make_log, make_store
from breaker_actors.stores.samplelog import SampleLog
from pipelines import history
from pipelines.places import open_place
from pipelines.rules import Candidate
from pipelines.runs import RouterPlan, plans
from pipelines.shares import shares
from pipelines.sorting import Sorted
from pipelines.sources import Born

T = TypeVar("T")
Item = pl.DataFrame | Born | Gap

ROWS = 1 << 16
NAMED = 10
"""Breakers that a message names."""
SCHEMA = {
    "ts_ms": pl.Int64,
    "value": pl.Float64,
    "ok": pl.Boolean,
    "received_ms": pl.Int64,
    "metric": pl.String,
    "trace_id": pl.String,
    "record": pl.Int64,
}


def recorded(breaker: str | None = None, settings: Settings | None = None) -> Recorded:
    """The samples of a breaker, by its id or name; without one, of the only breaker there is. Raises Invalid.

    `settings`: where the service keeps its data; BREAKERS_* variables where none are given."""
    found = load_settings() if settings is None else settings
    with OwnLoop() as loop:
        return loop.run(_located(breaker, found))


async def _located(wanted: str | None, settings: Settings) -> Recorded:
    await asyncio.to_thread(check_in_use, settings)
    store, log = make_store(settings), make_log(settings)
    await store.open()
    try:
        rows = await _breakers(store)
        row = _only(wanted, rows)
        links = [link for assigned in await store.breaker_assignments([row.id]) for link in assigned.routers]
        logs = await _upto(log, links, SystemClock().now_ms())
        routers, _ = plans(await store.list_routers(row.project_id), rows)
        return Recorded(row, logs, [router for router in routers if _gives(router, row.id)], settings)
    finally:
        await log.close()
        await store.close()


async def _breakers(store: Store) -> list[BreakerRow]:
    projects = [project.id for org in await store.list_orgs() for project in await store.list_projects(org.id)]
    return [row for project_id in projects for row in (await store.list_breakers(project_id))[0]]


def _only(wanted: str | None, rows: Sequence[BreakerRow]) -> BreakerRow:
    if not rows:
        raise Invalid("the service has no breaker")
    found = [row for row in rows if wanted is None or row.id == wanted] or [row for row in rows if row.name == wanted]
    if len(found) == 1:
        return found[0]
    if wanted is not None and found:
        raise Invalid(
            f"{len(found)} breakers are called {wanted!r}; give the id of one: {_shown([r.id for r in found])}"
        )
    said = "say which breaker's samples are meant" if wanted is None else f"the service has no breaker {wanted!r}"
    raise Invalid(f"{said}; there are {_shown([row.name for row in rows])}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _gives(router: RouterPlan, breaker_id: str) -> bool:
    """Whether the breaker gets samples of the router now."""
    return router.view.enabled and any(link.breaker_id == breaker_id for link in router.view.links)


async def _upto(log: SampleLog, links: Sequence[RouterRef], now_ms: int) -> list[RouterRef]:
    """One reference per router, from its first link to where the log ends now. Which of the records in between concern
    the breaker, the log's own views tell."""
    routers: dict[str, RouterRef] = {}
    for link in links:
        known = routers.get(link.router_id, link)
        routers[link.router_id] = replace(known, since_offset=min(known.since_offset, link.since_offset))
    return [
        replace(router, until_offset=await log.find(router.log_slot, router.router_id, now_ms))
        for router in routers.values()
        if router.log_slot
    ]


class Recorded:
    """A source: the samples of one breaker, the same ones each time it is asked.

    `breaker`: its rule as it is now. `remarks`: after a pass, what keeps a backtest of that rule from doing what the
    breaker did.
    """

    def __init__(
        self, row: BreakerRow, logs: Sequence[RouterRef], routers: Sequence[RouterPlan], settings: Settings
    ) -> None:
        """`logs`: what is read of which router's; `routers`: those that share history out to the breaker."""
        self.names, self.breaker = [row.name], Candidate(row.name, row.rule)
        self.window_samples_max = settings.window_samples_max
        self.remarks: list[str] = []
        self._row, self._logs, self._settings = row, logs, settings
        self._splitters = {router.id: Splitter(router.view) for router in routers}

    def rows(self) -> int | None:
        return None

    def batches(self) -> Iterator[pl.DataFrame]:
        """The samples alone, in arrival order."""
        return (item for item in self.items() if isinstance(item, pl.DataFrame))

    def items(self) -> Iterator[Item]:
        """As `sources.Log` says."""
        yield pl.DataFrame(schema=SCHEMA)
        reading = _Reading(self._row.id, self._row.rule.metric)
        with OwnLoop() as loop:
            log = make_log(self._settings)
            entries = reading.entries(log, self._logs)
            try:
                item = loop.run(_next(entries))
                yield from reading.counted(self._history(None if item is None else _begin_ms(item)))
                while item is not None:
                    yield item
                    item = loop.run(_next(entries))
            finally:
                loop.run(entries.aclose())
                loop.run(log.close())
        self.remarks = reading.remarks()

    def _history(self, until_ms: int | None) -> Iterator[pl.DataFrame]:
        """What the breaker gets of what the history store has from before the log begins, each time of receipt an
        arrival."""
        place = open_place(self._settings.history)
        names = history.files(place, self._row.project_id, self._splitters, to_ms=until_ms)
        if names:
            of_metric = pl.col("metric") == self._row.rule.metric
            for number, batch in enumerate(Sorted(history.History(place, names, to_ms=until_ms)).batches(), 1):
                mine = self._share(batch.filter(of_metric), number)
                yield mine.with_columns(record=pl.col("received_ms")).select(*SCHEMA)

    def _share(self, batch: pl.DataFrame, number: int) -> pl.DataFrame:
        taken = [rows for _, id_, rows in shares(batch, self._splitters, number) if id_ == self._row.id]
        return batch[np.sort(np.concatenate(taken))] if taken else batch.clear()


def _begin_ms(item: Item) -> int:
    if isinstance(item, pl.DataFrame):
        return int(item["received_ms"][0])
    return item.at_ms if isinstance(item, Born) else item.from_ms


async def _next(entries: AsyncIterator[Item]) -> Item | None:
    return await anext(entries, None)


class OwnLoop:
    """Runs coroutines one after the other, on a thread of its own: a notebook's is taken by the notebook."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sample-log")
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(self._runner.run, work).result()

    def __enter__(self) -> OwnLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()


# -- one pass over the logs -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Reading:
    """Puts what concerns a breaker into frames of about ROWS rows."""

    breaker_id: str
    metric: str
    _parts: list[tuple[int, SampleColumns, int, int]] = field(default_factory=list)
    _rows: int = 0
    _records: int = 0
    _was_born: bool = False
    _changes: int = 0
    _history: int = 0

    def remarks(self) -> list[str]:
        """What is in the logs that a backtest of one rule from creation on does not follow."""
        told = []
        if self._history:
            told.append(f"{self._history:,} samples of history come first; the breaker is created with them")
        elif not self._was_born:
            told.append("the log does not go back to the breaker's creation; it starts closed, with what is left")
        if self._changes:
            told.append(f"the breaker's settings were changed {self._changes} times; the rule is the same throughout")
        return told

    def counted(self, batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Samples of history, on their way."""
        for batch in batches:
            self._history += len(batch)
            yield batch

    async def entries(self, log: SampleLog, routers: Sequence[RouterRef]) -> AsyncGenerator[Item, None]:
        """Everything in the logs, those of several routers merged by the time of receipt."""
        reader = LogReader(log)
        async for record, body, start, stop in _merged([self._of(reader, router) for router in routers]):
            if record.kind == SAMPLES:
                self._parts.append((record.received_ms, body, start, stop))
                self._rows += stop - start
                if self._rows >= ROWS:
                    yield self._frame()
                continue
            other = self._other(record.kind, body, record.received_ms)
            if other is not None:
                if self._parts:
                    yield self._frame()
                yield other
        if self._parts:
            yield self._frame()

    async def _of(self, reader: LogReader, router: RouterRef) -> AsyncIterator[Any]:
        async for record in reader.after(router, router.since_offset, router.until_offset or 0):
            splitter = await reader.splitter(router, record)
            for breaker_id, body, start, stop in concerned(record, splitter):
                if breaker_id == self.breaker_id:
                    yield record, body, start, stop

    def _other(self, kind: int, body: bytes, received_ms: int) -> Born | Gap | None:
        if kind == GAP:
            return decode_gap(body)
        if kind == BREAKER:
            settings = decode_breaker(body)
            if settings.created:
                self._was_born = True
                return Born(received_ms, settings.after_seq)
            self._changes += 1
        return None

    def _frame(self) -> pl.DataFrame:
        """What has been gathered, with a number per record."""
        parts, self._parts, self._rows = self._parts, [], 0
        counts = np.array([stop - start for _, _, start, stop in parts])
        batches = [columns.batch.slice(start, stop) for _, columns, start, stop in parts]
        first, self._records = self._records, self._records + len(parts)
        traces = [
            trace or None
            for _, columns, start, stop in parts
            for trace in (columns.traces[start:stop] if columns.traces else [None] * (stop - start))
        ]
        return pl.DataFrame(
            {
                "ts_ms": np.concatenate([batch.ts_ms for batch in batches]),
                "value": np.concatenate([batch.value for batch in batches]),
                "ok": np.concatenate([batch.ok for batch in batches]),
                "received_ms": np.repeat(np.array([received_ms for received_ms, *_ in parts], np.int64), counts),
                "metric": pl.repeat(self.metric, int(counts.sum()), dtype=pl.String, eager=True),
                "trace_id": traces,
                "record": np.repeat(np.arange(first, self._records), counts),
            },
            schema_overrides=SCHEMA,
        )


async def _merged(logs: Sequence[AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Records by the time they were received; of equal ones those of the first log first."""
    heap = [(head[0].received_ms, i, head) for i, log in enumerate(logs) if (head := await anext(log, None))]
    heapq.heapify(heap)
    while heap:
        _, i, head = heap[0]
        yield head
        following = await anext(logs[i], None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following[0].received_ms, i, following))
