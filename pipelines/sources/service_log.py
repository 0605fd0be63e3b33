"""The samples of one breaker out of a service's logs, record by record, in the order it was received; before that, what
the history store has, shared out as routers are now.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from breaker_actors.core.log_entries import (
    BREAKER,
    GAPS,
    Gap,
    LogRecord,
    SampleColumns,
    Splitter,
    decode_breaker,
    decode_gap,
)
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import make_log
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import READ_BYTES, SampleLog
from breaker_actors.wal.reader import CHUNK, LogReader
from pipelines.candidates import Candidate
from pipelines.sources import history_store as history
from pipelines.sources import passed_over as passing
from pipelines.sources.external_sort import Sorted
from pipelines.sources.files import Born, ControlSet, GapOf, Happening, InForce
from pipelines.sources.object_store import open_place
from pipelines.sources.routing import RouterPlan, shares
from pipelines.sources.rules_in_force import SettingsRead, course_of, rules_in_force

T = TypeVar("T")
Whole = npt.NDArray[np.int64]
Item = pl.DataFrame | Born | ControlSet | Gap | InForce
ItemOf = pl.DataFrame | Happening
"""Also of several breakers."""

Part = Literal["all", "history", "log"]
"""What a source reads of a breaker: its log, what the history store has from before that, or both."""
ROWS, TRACED = 1 << 16, 1 << 23
"""A frame has about so many rows; fewer where their trace_ids come to so many characters."""
HELD_BYTES, RECORD_BYTES = 64_000_000, 400
"""What is held of all logs that are merged, and beside that one read of one of them; a record counts so much beside its
payload."""
SCHEMA = {
    "ts_ms": pl.Int64,
    "value": pl.Float64,
    "ok": pl.Boolean,
    "received_ms": pl.Int64,
    "metric": pl.String,
    "trace_id": pl.String,
    "count": pl.Int64,
    "record": pl.Int64,
}


class Recorded:
    """A source: the samples of one breaker, the same ones each time it is asked.

    `breaker`: the breaker itself: over this source it has the rules that were in force; `breaker.rule` is the present
    one. `remarks`: after a pass, which rules these were, and what keeps a backtest of it from doing what the breaker
    did. `row`, `settings`: the breaker as the service of these settings has it now.
    `passed_over`: after a pass, which records could not be read (see `passing.py`). `watch` is told when each
    record was received that is read, and may raise.
    """

    def __init__(
        self,
        row: BreakerRow,
        logs: Sequence[RouterRef],
        routers: Sequence[RouterPlan],
        settings: Settings,
        taking: Splitter | None = None,
    ) -> None:
        """`logs`: what is read of which router's; `routers`: those that share history out to the breaker, without any
        there is none. `taking`: how samples are split, whatever the routers' views said."""
        self.names, self.breaker = [row.name], Candidate(row.name, row.rule, follows_log=True)
        self.window_samples_max = settings.window_samples_max
        self.remarks: list[str] = []
        self.passed_over = passing.passed_over()
        self.watch: Callable[[int], None] = lambda received_ms: None
        self.row, self.settings = row, settings
        self._logs, self._taking = logs, taking
        self._splitters = {router.id: Splitter(router.view) for router in routers}
        self._rules: list[InForce] | None = None
        self.part: Part = "all"
        self._history_from_ms = 0
        self._history_to_ms: int | None = None

    def only(self, part: Part, from_ms: int = 0, to_ms: int | None = None) -> Recorded:
        """The same of a part, and of what history has that was received in [from_ms, to_ms)."""
        one = copy(self)
        one.part, one._history_from_ms, one._history_to_ms, one.remarks = part, from_ms, to_ms, []
        return one

    def begins_ms(self) -> int | None:
        """When the log begins, and history ends; None: there is nothing in the log."""
        reading = Reading(self.row.id, self.row.rule.metric, self._taking)
        with OwnLoop() as loop:
            log = make_log(self.settings)
            entries = reading.entries(log, self._logs)
            try:
                item = loop.run(next_of(entries))
            finally:
                loop.run(entries.aclose())
                loop.run(log.close())
        return None if item is None else begin_ms(item)

    def has_history(self, from_ms: int, to_ms: int) -> bool:
        """Whether the breaker gets samples of history that were received in [from_ms, to_ms)."""
        return any(len(batch) for batch in self._history(to_ms, from_ms))

    def rows(self) -> int | None:
        return None

    def batches(self) -> Iterator[pl.DataFrame]:
        """The samples alone, in arrival order."""
        return (item for item in self.items() if isinstance(item, pl.DataFrame))

    def items(self) -> Iterator[Item]:
        """As `sources.Log` says."""
        yield pl.DataFrame(schema=SCHEMA)
        reading = Reading(self.row.id, self.row.rule.metric, self._taking, self.watch)
        self.passed_over = passing.passed_over(reading.asides)
        with OwnLoop() as loop:
            log = make_log(self.settings)
            entries = reading.entries(log, self._logs)
            try:
                if self._rules is None:
                    self._rules = loop.run(rules_in_force(log, self._logs, [self.row]))[self.row.id]
                yield reading.follow(self._rules[:1] if self.part == "history" else self._rules)
                item = loop.run(next_of(entries))
                if self.part != "log":
                    ends_ms = [self._history_to_ms, None if item is None else begin_ms(item)]
                    until_ms = min((end_ms for end_ms in ends_ms if end_ms is not None), default=None)
                    yield from reading.counted(self._history(until_ms, self._history_from_ms))
                if self.part == "history":
                    item = None
                if item is not None and self.row.control is not None and self.row.updated_ms < begin_ms(item):
                    yield ControlSet(begin_ms(item), self.row.control)  # as it has been since before the log begins
                while item is not None:
                    assert not isinstance(item, GapOf)
                    yield item
                    item = loop.run(next_of(entries))
            finally:
                loop.run(entries.aclose())
                loop.run(log.close())
        self.remarks = reading.remarks()
        self.passed_over = passing.passed_over(reading.asides)

    def _history(self, until_ms: int | None, from_ms: int = 0) -> Iterator[pl.DataFrame]:
        """What the breaker gets of what the history store has from before the log begins, each time of receipt an
        arrival."""
        if not self._splitters:
            return
        place = open_place(self.settings.history)
        names = history.files(place, self.row.project_id, self._splitters, from_ms=from_ms, to_ms=until_ms)
        if names:
            of_metric = pl.col("metric") == self.row.rule.metric
            found = history.History(place, names, from_ms=from_ms, to_ms=until_ms)
            for number, batch in enumerate(Sorted(found).batches(), 1):
                mine = self._share(batch.filter(of_metric), number)
                yield mine.with_columns(record=pl.col("received_ms")).select(*SCHEMA)

    def _share(self, batch: pl.DataFrame, number: int) -> pl.DataFrame:
        taken = [rows for _, id_, rows in shares(batch, self._splitters, number) if id_ == self.row.id]
        return batch[np.sort(np.concatenate(taken))] if taken else batch.clear()


def begin_ms(item: ItemOf) -> int:
    """When what an item tells began."""
    if isinstance(item, GapOf):
        return item.gap.from_ms
    if isinstance(item, pl.DataFrame):
        return int(item["received_ms"][0])
    return item.from_ms if isinstance(item, Gap) else item.at_ms


async def next_of(entries: AsyncIterator[T]) -> T | None:
    """The next item, None behind the last."""
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
class Reading:
    """Puts what concerns a breaker into frames; of a record nothing is held but its rows."""

    breaker_id: str
    metric: str
    taking: Splitter | None = None
    watch: Callable[[int], None] = lambda received_ms: None
    _parts: list[_Part] = field(default_factory=list)
    _rows: int = 0
    _traced: int = 0
    _records: int = 0
    _rules: Sequence[InForce] = ()
    _settings: SettingsRead = field(default_factory=SettingsRead)
    _history: int = 0
    asides: Asides = field(default_factory=Asides)

    def remarks(self) -> list[str]:
        """What is in the logs that a backtest of one rule from creation on does not follow."""
        told = []
        if self._history:
            told.append(f"{self._history:,} samples of history come first; the breaker is created with them")
        elif not self._settings.was_born:
            told.append("the log does not go back to the breaker's creation; it starts closed, with what is left")
        if len(self._rules) > 1:
            told.append(course_of(self._rules))
        return [*told, *filter(None, (passing.told(passing.passed_over(self.asides)),))]

    def follow(self, rules: Sequence[InForce]) -> InForce:
        """The first of the rules that were in force, with the longest window of all."""
        self._rules, self._settings.in_force = rules, rules[0]
        return rules[0]._replace(longest_ms=max(one.rule.window_ms for one in rules))

    def counted(self, batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        """Samples of history, on their way."""
        for batch in batches:
            self._history += len(batch)
            yield batch

    async def entries(self, log: SampleLog, routers: Sequence[RouterRef]) -> AsyncGenerator[ItemOf, None]:
        """Everything in the logs, those of several routers merged by the time of receipt."""
        reader = LogReader(log, self.asides)
        async for router, record in _merged(reader, routers, self.watch):
            splitter = self.taking or await reader.splitter(router, record)
            for breaker_id, body, start, stop in reader.concerned(record, splitter):
                if not self._takes(record, breaker_id):
                    continue
                if isinstance(body, SampleColumns):
                    self._gather(_Part.of(record.received_ms, body, start, stop))
                    if self._rows >= ROWS or self._traced >= TRACED:
                        yield self._frame()
                    continue
                other = reader.attempt(partial(self._other, record, breaker_id, body), record)
                if other and self._parts:
                    yield self._frame()
                for item in other or ():
                    yield item
        if self._parts:
            yield self._frame()

    def _gather(self, part: _Part) -> None:
        self._parts.append(part)
        self._rows += len(part.ts_ms)
        self._traced += sum(map(len, part.traces))

    def _takes(self, record: LogRecord, breaker_id: str) -> bool:
        return breaker_id == self.breaker_id

    def _other(self, record: LogRecord, breaker_id: str, body: bytes) -> Sequence[Happening]:
        """What a record that is not samples says to the breaker."""
        if record.kind in GAPS:
            return [decode_gap(body)]
        return self._settings.items(decode_breaker(body), record.received_ms) if record.kind == BREAKER else []

    def _frame(self) -> pl.DataFrame:
        """What has been gathered, with a number per record."""
        parts, self._parts, self._rows, self._traced = self._parts, [], 0, 0
        counts = np.array([len(part.ts_ms) for part in parts])
        first, self._records = self._records, self._records + len(parts)
        return pl.DataFrame(
            {
                "ts_ms": np.concatenate([part.ts_ms for part in parts]),
                "value": np.concatenate([part.value for part in parts]),
                "ok": np.concatenate([part.ok for part in parts]),
                "received_ms": np.repeat(np.array([part.received_ms for part in parts], np.int64), counts),
                "metric": pl.repeat(self.metric, int(counts.sum()), dtype=pl.String, eager=True),
                "trace_id": _traces([part.traces for part in parts], counts),
                "count": _counts([part.counts for part in parts], counts),
                "record": np.repeat(np.arange(first, self._records), counts),
            },
            schema_overrides=SCHEMA,
        )


class _Part(NamedTuple):
    """Rows of one record, as copies: a view of a few of them would hold all of it."""

    received_ms: int
    ts_ms: Whole
    value: npt.NDArray[np.float64]
    ok: npt.NDArray[np.bool_]
    counts: Whole | None
    traces: Sequence[str]

    @classmethod
    def of(cls, received_ms: int, columns: SampleColumns, start: int, stop: int) -> _Part:
        batch = columns.batch.slice(start, stop)
        counts = None if batch.count is None else batch.count.copy()
        traces = columns.traces[start:stop]
        return cls(received_ms, batch.ts_ms.copy(), batch.value.copy(), batch.ok.copy(), counts, traces)


def _traces(given: Sequence[Sequence[str]], rows: Whole) -> list[str | None] | pl.Series:
    """The trace_id of each row of some parts, those of a part without any are empty; `rows`: of each part."""
    if not any(given):
        return pl.repeat(None, int(rows.sum()), dtype=pl.String, eager=True)
    parts = zip(given, rows.tolist(), strict=True)
    return [trace or None for traces, n in parts for trace in (traces or [""] * n)]


def _counts(given: Sequence[Whole | None], rows: Whole) -> Whole | pl.Series:
    """How many observations each row of some parts stands for; `rows`: of each part."""
    if all(count is None for count in given):
        return pl.repeat(1, int(rows.sum()), dtype=pl.Int64, eager=True)
    parts = zip(given, rows.tolist(), strict=True)
    return np.concatenate([np.ones(n, np.int64) if count is None else count for count, n in parts])


class _Log:
    """One of several logs that are merged, and what is held of it: the first records after the offset `after`, or
    none."""

    __slots__ = ("after", "held", "router")

    def __init__(self, router: RouterRef) -> None:
        self.router, self.after = router, router.since_offset
        self.held = deque[LogRecord]()

    def weight(self) -> int:
        return sum(map(_weight, self.held))


async def _merged(
    reader: LogReader, routers: Sequence[RouterRef], watch: Callable[[int], None]
) -> AsyncIterator[tuple[RouterRef, LogRecord]]:
    """Records by the time they were received; of equal ones those of the first log first. Of a log for whose records
    there is no room nothing is held but when the next one was received: it is read again when its turn has come."""
    logs, heap, free = [_Log(router) for router in routers], list[tuple[int, int]](), HELD_BYTES
    share = HELD_BYTES // 2 // max(1, len(logs))  # for payloads; the other half is for what comes with them
    most, bytes_max = min(CHUNK, max(1, share // RECORD_BYTES)), min(READ_BYTES, max(1, share))

    async def fill(log: _Log) -> bool:
        """False behind its last record."""
        nonlocal free
        if not log.held and log.after < (upto := log.router.until_offset or 0):
            log.held.extend(await reader.page(log.router, log.after, upto, most, bytes_max))
            free -= log.weight()
        return bool(log.held)

    def hold(log: _Log) -> int:
        """Holds what there is room for; when the next record was received."""
        nonlocal free
        next_ms = log.held[0].received_ms
        if free < 0:
            free += log.weight()
            log.held.clear()
        return next_ms

    for i, log in enumerate(logs):
        if await fill(log):
            watch(log.held[0].received_ms)
            heapq.heappush(heap, (hold(log), i))
    while heap:
        at_ms, i = heap[0]
        log = logs[i]
        if await fill(log) and log.held[0].received_ms == at_ms:  # else it was trimmed meanwhile
            record = log.held.popleft()
            free, log.after = free + _weight(record), record.offset
            watch(at_ms)
            yield log.router, record
        if await fill(log):
            heapq.heapreplace(heap, (hold(log), i))
        else:
            heapq.heappop(heap)


def _weight(record: LogRecord) -> int:
    return len(record.payload) + RECORD_BYTES
