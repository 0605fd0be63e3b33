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
from breaker_actors.store.rows import BreakerRow, EventQuery, EventRow, EventSource, RouterRow
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.sources import history_store as history
from pipelines.sources.atomic_files import umask
from pipelines.sources.history_store import DAY_MS, INSTANT, SCHEMA, frame_of, parquet, within
from pipelines.sources.object_store import Folder, Place

ROWS_OF_FILE, EVENTS_READ = 1 << 18, 1_000
Schema = dict[str, Any]
READABLE = {"ts_ms": "ts", "received_ms": "received", "created_ms": "created"}
"""Columns of milliseconds, and how the Datetime column beside each is called."""


def _schema(columns: Schema) -> Schema:
    """Columns with those of READABLE beside theirs."""
    found: Schema = {}
    for name, kind in columns.items():
        found[name] = kind
        if name in READABLE:
            found[READABLE[name]] = INSTANT
    return found


RECORDED = SCHEMA | {"record": pl.Int64}
SAMPLES_SCHEMA = _schema(RECORDED)
"""Columns of exported samples. `count`: how many observations each stands for. `record`: the offset of their record
in the router's log; null for those of history."""
_EVENTS: Schema = {
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
EVENTS = _schema(_EVENTS)
"""Columns of exported events. `rule`: as JSON; then the figures of the evaluation window. `hidden_by`: callers did not
see this move; `by`, `comment`: who made it by hand, and why."""
FIGURES = ("avg", "count", "error_count", "p95")
_BREAKERS: Schema = {
    "id": pl.String,
    "name": pl.String,
    "metric": pl.String,
    "kind": pl.String,
    "op": pl.String,
    "threshold": pl.Float64,
    "window_ms": pl.Int64,
    "min_count": pl.Int64,
    "router_ids": pl.List(pl.String),
    "shadow_of": pl.String,
    "created_ms": pl.Int64,
    "rule": pl.String,
}
BREAKERS = _schema(_BREAKERS)
"""Columns of the table of breakers as they are now. `rule`: all its fields, as JSON."""
_ROUTERS: Schema = {
    "id": pl.String,
    "name": pl.String,
    "mode": pl.String,
    "enabled": pl.Boolean,
    "breaker_ids": pl.List(pl.String),
    "created_ms": pl.Int64,
    "metadata": pl.String,
}
ROUTERS = _schema(_ROUTERS)
"""Columns of the table of routers as they are now. `metadata`: as JSON."""


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
        beside.chmod(0o777 & ~umask())
        os.replace(beside, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def export_history(place: Place, span: Span, out: Folder) -> Iterator[int]:
    """Copies what the history store has; yields how many samples each file came to."""
    for name in history.files(place, span.project_id, from_ms=span.from_ms, to_ms=span.to_ms):
        frame = within(frame_of(place, name), span.from_ms, span.to_ms)
        if len(frame):
            out.write(name, parquet(readable(frame.with_columns(record=pl.lit(None, pl.Int64)))))
            yield len(frame)


async def export_log(
    log: SampleLog, assignments: Sequence[RouterAssignment], span: Span, out: Folder, asides: Asides
) -> AsyncIterator[int]:
    """Writes what the sample log still keeps, in the order of the log; yields how many samples each router has. Records
    that can't be read are set aside."""
    for assigned in assignments:
        rows, number = 0, 0
        async for frame in _logged(LogReader(log, asides), log, assigned, span):
            history.add(out, span.project_id, readable(frame), f"log.{number:06}")
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
            "count": pl.repeat(1, n, dtype=pl.Int64, eager=True) if batch.count is None else pl.Series(batch.count),
            "record": pl.repeat(record.offset, n, dtype=pl.Int64, eager=True),
        },
        RECORDED,
    )


def readable(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with the columns of READABLE beside theirs."""
    schema = _schema(dict(frame.schema))
    times = {name: pl.col(ms).cast(INSTANT) for ms, name in READABLE.items() if ms in frame.columns}
    return frame.with_columns(**times).select(list(schema))


def export_breakers(rows: Sequence[BreakerRow], out: Folder) -> int:
    """Writes the table that says of which breaker, metric and routers events and samples are; how many rows it has."""
    fields = ("metric", "kind", "op", "threshold", "window_ms", "min_count")
    found = [
        {name: getattr(row.rule if name in fields else row, name) for name in _BREAKERS if name != "rule"}
        | {"router_ids": list(row.router_ids), "rule": msgspec.json.encode(row.rule).decode()}
        for row in rows
    ]
    out.write("breakers.parquet", parquet(readable(pl.DataFrame(found, _BREAKERS))))
    return len(found)


def export_routers(rows: Sequence[RouterRow], out: Folder) -> int:
    """The same of routers."""
    found = [
        {name: getattr(row, name) for name in ("id", "name", "mode", "enabled")}
        | {"breaker_ids": list(row.breaker_ids), "created_ms": row.inserted_ms}
        | {"metadata": msgspec.json.encode(row.metadata).decode()}
        for row in rows
    ]
    out.write("routers.parquet", parquet(readable(pl.DataFrame(found, _ROUTERS))))
    return len(found)


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
    frame = readable(pl.DataFrame([_event(row) for row in rows], _EVENTS, orient="row"))
    for (day,), piece in frame.with_columns(day=pl.col("ts_ms") // DAY_MS).group_by("day", maintain_order=True):
        folder = history.folder_of(project_id, day=int(str(day))).replace("samples/", "events/", 1)
        out.write(f"{folder}/{part}.parquet", parquet(piece.drop("day")))


def _event(row: EventRow) -> tuple[Any, ...]:
    special = {name: row.agg.get(name) for name in FIGURES} | {"rule": msgspec.json.encode(row.rule).decode()}
    return tuple(special[name] if name in special else getattr(row, name) for name in _EVENTS)
