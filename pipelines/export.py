"""Export: a project's samples, out of the sample log and the history store, and its events, as partitioned Parquet.

The samples lie as in the history store (`pipelines.sources.history_store`), each there once: what was received live is
in the log, what was loaded is in the store. They can be read by `breakers backfill` and `breakers backtest` again;
`record` tells a backtest which samples of the log came together.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from breaker_actors.core.log_entries import LogRecord, decode_samples
from breaker_actors.errors import Invalid
from breaker_actors.messages import RouterAssignment, RouterRef
from breaker_actors.store.base import EventStore
from breaker_actors.store.rows import EventQuery, EventRow, EventSource
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.sources import history_store as history
from pipelines.sources.history_store import DAY_MS, SCHEMA, frame_of, parquet, within
from pipelines.sources.object_store import Folder, Place

ROWS_OF_FILE, EVENTS_READ = 1 << 18, 1_000
SAMPLES_SCHEMA = SCHEMA | {"record": pl.Int64}
"""Columns of exported samples. `record`: the offset of their record in the router's log; null for those of history."""
EVENTS = {
    "source": pl.String,
    "run_id": pl.String,
    "sequence": pl.Int64,
    "breaker_id": pl.String,
    "name": pl.String,
    "prev": pl.String,
    "curr": pl.String,
    "ts_ms": pl.Int64,
    "transition_seq": pl.Int64,
    "reason": pl.String,
    "allow_rate": pl.Float64,
    "value": pl.Float64,
    "rule": pl.String,
    "avg": pl.Float64,
    "count": pl.Int64,
    "error_count": pl.Int64,
    "p95": pl.Float64,
    "hidden_by": pl.String,
    "by": pl.String,
    "comment": pl.String,
}
"""Columns of exported events. `rule`: as JSON; then the figures of the evaluation window. `hidden_by`: callers did not
see this move; `by`, `comment`: who made it by hand, and why."""
FIGURES = ("avg", "count", "error_count", "p95")


class Span(NamedTuple):
    """What is exported: samples by when they were received, events by their time, in [from_ms, to_ms)."""

    project_id: str
    from_ms: int
    to_ms: int


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when all went well and is gone otherwise. Raises Invalid when there is
    something already."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Invalid(f"{path} is there already; name a folder that is new or empty")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise Invalid(f"{path} can't be written: {error.strerror}") from None
    try:
        yield beside
        beside.chmod(0o755)
        os.replace(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def export_history(place: Place, span: Span, out: Folder) -> Iterator[int]:
    """Copies what the history store has; yields how many samples each file came to."""
    for name in history.files(place, span.project_id, from_ms=span.from_ms, to_ms=span.to_ms):
        frame = within(frame_of(place, name), span.from_ms, span.to_ms)
        if len(frame):
            out.write(name, parquet(frame.with_columns(record=pl.lit(None, pl.Int64))))
            yield len(frame)


async def export_log(
    log: SampleLog, assignments: Sequence[RouterAssignment], span: Span, out: Folder, asides: Asides
) -> AsyncIterator[int]:
    """Writes what the sample log still keeps, in the order of the log; yields how many samples each router has. Records
    that can't be read are set aside."""
    for assigned in assignments:
        rows, number = 0, 0
        async for frame in _logged(LogReader(log, asides), log, assigned, span):
            history.add(out, span.project_id, frame, f"log.{number:06}")
            rows, number = rows + len(frame), number + 1
        yield rows


async def _logged(
    reader: LogReader, log: SampleLog, assigned: RouterAssignment, span: Span
) -> AsyncIterator[pl.DataFrame]:
    router = RouterRef(assigned.router_id, "", assigned.log_slot, 0)
    upto = await log.find(assigned.log_slot, assigned.router_id, span.to_ms - 1)
    waiting: list[pl.DataFrame] = []
    rows = 0
    async for record in reader.back(router, upto, span.from_ms - 1):
        frame = reader.attempt(partial(_samples, record), record)
        if frame is None:
            continue
        waiting.append(frame)
        rows += len(frame)
        if rows >= ROWS_OF_FILE:
            yield pl.concat(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pl.concat(waiting)


def _samples(record: LogRecord) -> pl.DataFrame:
    columns = decode_samples(record.payload)
    batch, counts = columns.batch, [b - a for a, b in zip(columns.starts, columns.starts[1:], strict=False)]
    n = len(batch)
    return pl.DataFrame(
        {
            "router_id": pl.repeat(record.router_id, n, dtype=pl.String, eager=True),
            "metric": [metric for metric, count in zip(columns.metrics, counts, strict=True) for _ in range(count)],
            "ts_ms": batch.ts_ms,
            "received_ms": pl.repeat(record.received_ms, n, dtype=pl.Int64, eager=True),
            "value": batch.value,
            "ok": batch.ok,
            "trace_id": [trace or None for trace in columns.traces] or [None] * n,
            "record": pl.repeat(record.offset, n, dtype=pl.Int64, eager=True),
        },
        SAMPLES_SCHEMA,
    )


async def export_events(store: EventStore, span: Span, out: Folder) -> AsyncIterator[int]:
    """Writes the events of both sources; yields how many each page came to."""
    sources: tuple[EventSource, ...] = ("live", "backfill")
    for source in sources:
        query = EventQuery(
            project_id=span.project_id,
            since_ms=span.from_ms - 1,
            until_ms=span.to_ms - 1,
            after_sequence=0,
            limit=EVENTS_READ,
            source=source,
        )
        number = 0
        while rows := await store.events(query):
            _write_events(out, span.project_id, f"{source}.{number:06}", rows)
            yield len(rows)
            number += 1
            query = msgspec.structs.replace(query, after_sequence=rows[-1].sequence)


def _write_events(out: Folder, project_id: str, part: str, rows: Sequence[EventRow]) -> None:
    frame = pl.DataFrame([_event(row) for row in rows], EVENTS, orient="row")
    for (day,), piece in frame.with_columns(day=pl.col("ts_ms") // DAY_MS).group_by("day", maintain_order=True):
        folder = history.folder_of(project_id, day=int(str(day))).replace("samples/", "events/", 1)
        out.write(f"{folder}/{part}.parquet", parquet(piece.drop("day")))


def _event(row: EventRow) -> tuple[Any, ...]:
    special = {name: row.agg.get(name) for name in FIGURES} | {"rule": msgspec.json.encode(row.rule).decode()}
    return tuple(special[name] if name in special else getattr(row, name) for name in EVENTS)
