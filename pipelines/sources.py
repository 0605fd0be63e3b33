"""Samples out of files and frames: checked batches in one shape, and what is wrong with the input said in one line.

A source hands out the same batches each time it is asked; whoever reads a service instead of files makes another one.
A batch is a polars frame with `ts_ms` (Int64), `value` (Float64) and, where the input has them, `received_ms` (Int64),
`ok` (Boolean), `metric`, `router_id`, `trace_id` (String).
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from breaker_actors.errors import Invalid

REQUIRED, OPTIONAL = ("ts_ms", "value"), ("ok", "received_ms", "metric", "router_id", "trace_id")
NAMES = REQUIRED + OPTIONAL
TIMES, TEXTS = ("ts_ms", "received_ms"), ("metric", "router_id", "trace_id")
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999."""


class Source(Protocol):
    """Where samples come from."""

    name: str
    """For messages, and to find labelled windows by."""

    def rows(self) -> int | None:
        """How many there are, if that is quick to tell."""
        ...

    def batches(self) -> Iterator[pl.DataFrame]:
        """All samples from the start, in arrival order: by received_ms where there is one, else by ts_ms."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How the input names the columns; `wanted`: the optional ones that are read where they exist."""

    names: Mapping[str, str]
    wanted: tuple[str, ...] = OPTIONAL

    def theirs(self, name: str) -> str:
        return self.names.get(name, name)


def layout(columns: Mapping[str, str] | None = None, wanted: Sequence[str] = OPTIONAL) -> Layout:
    """A layout in which these of our columns have other names."""
    unknown = [name for name in columns or {} if name not in NAMES]
    if unknown:
        raise Invalid(f"there is no column {unknown[0]!r} to rename; there are {', '.join(NAMES)}")
    named = tuple(name for name in OPTIONAL if name in (columns or {}))
    return Layout(dict(columns or {}), tuple(name for name in OPTIONAL if name in wanted or name in named))


class Frames:
    """A source over frames that lie in memory, or are read lazily."""

    def __init__(self, frame: pl.DataFrame | pl.LazyFrame, columns: Layout, *, ordered: bool = True) -> None:
        self.name = "frame"
        self._lazy, self._layout, self._ordered = frame.lazy(), columns, ordered

    def rows(self) -> int | None:
        return int(self._lazy.select(pl.len()).collect().item())

    def batches(self) -> Iterator[pl.DataFrame]:
        return checked([Part(self.name, self._lazy)], self._layout, self._ordered)


class Files:
    """A source over Parquet, CSV and NDJSON files, one after the other; patterns are expanded, in the order of names."""

    def __init__(self, patterns: Sequence[str | Path], columns: Layout, *, ordered: bool = True) -> None:
        self.paths = [path for pattern in patterns for path in expanded(pattern)]
        self.name = self.paths[0].name if len(self.paths) == 1 else f"{len(self.paths)} files"
        self._layout, self._ordered = columns, ordered

    def rows(self) -> int | None:
        if any(_suffix(path) not in PARQUET for path in self.paths):
            return None
        return sum(int(_guarded(path, _rows_of)) for path in self.paths)

    def batches(self) -> Iterator[pl.DataFrame]:
        return checked([Part(str(path), _guarded(path, scan)) for path in self.paths], self._layout, self._ordered)


PARQUET = (".parquet", ".pq")


def _suffix(path: Path) -> str:
    return path.suffix.lower()


def _rows_of(path: Path) -> int:
    return int(scan(path).select(pl.len()).collect().item())


def expanded(pattern: str | Path) -> list[Path]:
    """The files a path or a pattern stands for."""
    path = Path(pattern)
    if path.exists() or not glob.has_magic(str(pattern)):
        if path.is_dir():
            raise Invalid(f"{path} is a directory; say {path}/*.parquet")
        return [path]
    found = sorted(Path(match) for match in glob.glob(str(pattern), recursive=True))
    if not found:
        raise Invalid(f"{pattern}: no such file")
    return found


def scan(path: Path) -> pl.LazyFrame:
    """The file by its suffix. What is written as text stays text here: it is parsed with a row to name."""
    suffix = _suffix(path)
    if suffix in PARQUET:
        return pl.scan_parquet(path, glob=False)
    if suffix == ".csv":
        return pl.scan_csv(path, infer_schema=False, glob=False)
    if suffix in (".ndjson", ".jsonl"):
        names = pl.scan_ndjson(path, infer_schema_length=1).collect_schema().names()
        return pl.scan_ndjson(path, schema=dict.fromkeys(names, pl.String))
    raise Invalid(f"{path}: samples are read from .parquet, .csv, .ndjson and .jsonl files")
