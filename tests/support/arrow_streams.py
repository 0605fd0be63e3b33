"""Arrow streams as polars, pandas and pyarrow write them, and mutilated ones."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa

STREAM = "application/vnd.apache.arrow.stream"
Rows = Sequence[Mapping[str, Any]]
TEXTS = ("router_id", "metric", "trace_id")
ARROW = {
    "router_id": pa.string(), "metric": pa.string(), "ts_ms": pa.int64(), "value": pa.float64(), "ok": pa.bool_(),
    "trace_id": pa.string(), "count": pa.int64(), "extra": pa.int64(),
}  # fmt: skip


def of_polars(frame: pl.DataFrame, **options: Any) -> bytes:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream, **options)
    return stream.getvalue()


def of_pyarrow(*batches: pa.RecordBatch | pa.Table, schema: pa.Schema | None = None, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write(batch)
    return bytes(sink.getvalue())


def table(rows: Rows, names: Sequence[str], **types: Any) -> pa.Table:
    """Rows as a table of these columns; what a row does not have is null."""
    kinds = ARROW | types
    return pa.table({name: pa.array([row.get(name) for row in rows], kinds[name]) for name in names})


def coded(found: pa.Table, index: Any = None) -> pa.Table:
    """The same with dictionaries of texts."""
    for name in set(TEXTS) & set(found.column_names):
        kind = pa.dictionary(index or pa.int32(), pa.string())
        at = found.column_names.index(name)
        found = found.set_column(at, name, found[name].cast(pa.string()).dictionary_encode().cast(kind))
    return found


def in_batches(found: pa.Table, sizes: Sequence[int]) -> bytes:
    """As batches of these sizes and the rest; dictionaries are replaced where they change."""
    batches, start = [], 0
    for size in (*sizes, found.num_rows):
        batches.append(found.slice(start, size).combine_chunks())
        start += size
    return of_pyarrow(*batches)


WRITERS: dict[str, Callable[[pa.Table], bytes]] = {
    "pyarrow": of_pyarrow,
    "pyarrow, lz4": lambda found: of_pyarrow(found, compression="lz4"),
    "pyarrow, zstd": lambda found: of_pyarrow(found, compression="zstd"),
    "pyarrow, dictionaries": lambda found: of_pyarrow(coded(found).combine_chunks()),
    "pyarrow, small dictionaries": lambda found: of_pyarrow(coded(found, pa.uint8()).combine_chunks()),
    "pyarrow, batches": lambda found: in_batches(found, (1, 0, 3)),
    "pyarrow, batches of dictionaries": lambda found: in_batches(coded(found), (2, 1)),
    "polars": lambda found: of_polars(pl.from_arrow(found)),
    "polars, old": lambda found: of_polars(pl.from_arrow(found), compat_level=pl.CompatLevel.oldest()),
    "polars, lz4": lambda found: of_polars(pl.from_arrow(found), compression="lz4"),
    "polars, zstd": lambda found: of_polars(pl.from_arrow(found), compression="zstd"),
    "polars, categorical": lambda found: of_polars(
        pl.from_arrow(found).with_columns(pl.col(set(TEXTS) & set(found.column_names)).cast(pl.Categorical))
    ),
}


def mutilated(body: bytes, rnd: random.Random) -> bytes:
    """With a few bytes or numbers changed, or cut off; more often near the beginning, where metadata lies."""
    found = bytearray(body)
    for _ in range(rnd.choice((1, 1, 2, 4))):
        at = rnd.randrange(len(found) if rnd.random() < 0.5 else min(len(found), 1500))
        kind = rnd.random()
        if kind < 0.3:
            found[at] = rnd.randrange(256)
        elif kind < 0.6:
            found[at : at + 8] = rnd.choice(_LONG).to_bytes(8, "little", signed=True)
        elif kind < 0.9:
            found[at : at + 4] = rnd.choice(_SHORT).to_bytes(4, "little", signed=True)
        else:
            found = found[: at + 1]
    return bytes(found)


_LONG = (0, 1, -1, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63), 255, 100_000)
_SHORT = (0, 1, -1, 4, 8, 16, 1 << 30, (1 << 31) - 1, -(1 << 31), 255)
