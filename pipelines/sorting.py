"""Samples in order of time, out of a source in any order, in memory that does not grow with it.

Stretches are sorted and written to a temporary directory, then read back side by side. Equal times keep their order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from pipelines.sources import Source

RUN_ROWS, READ_ROWS = 1 << 21, 1 << 16


class Sorted:
    """A source that hands out another one's samples by received_ms, where there is one, else by ts_ms."""

    def __init__(self, source: Source, *, run_rows: int = RUN_ROWS, read_rows: int = READ_ROWS) -> None:
        self.names = source.names
        self._source, self._run_rows, self._read_rows = source, run_rows, read_rows

    def rows(self) -> int | None:
        return self._source.rows()

    def batches(self) -> Iterator[pl.DataFrame]:
        with tempfile.TemporaryDirectory(prefix="breakers-sort-") as folder:
            runs = [
                Run(self._written(Path(folder) / f"{i}.parquet", frame), key_of(frame), self._read_rows)
                for i, frame in enumerate(self._sorted_stretches())
            ]
            yield from merged(runs)

    def _sorted_stretches(self) -> Iterator[pl.DataFrame]:
        waiting: list[pl.DataFrame] = []
        for batch in self._source.batches():
            waiting.append(batch)
            if sum(map(len, waiting)) >= self._run_rows:
                yield self._joined(waiting)
                waiting = []
        if waiting:
            yield self._joined(waiting)

    def _joined(self, frames: list[pl.DataFrame]) -> pl.DataFrame:
        frame = pl.concat(frames)
        return frame.sort(key_of(frame), maintain_order=True)

    def _written(self, path: Path, frame: pl.DataFrame) -> Path:
        frame.write_parquet(path, row_group_size=self._read_rows, compression="lz4", statistics=False)
        return path


def key_of(frame: pl.DataFrame) -> str:
    """The column that tells when a sample arrived."""
    return "received_ms" if "received_ms" in frame.columns else "ts_ms"


class Run:
    """A sorted file, read piece by piece: `front` is what has been read and not been taken yet."""

    def __init__(self, path: Path, key: str, read_rows: int) -> None:
        self._scan, self._read_rows, self._row = pl.scan_parquet(path), read_rows, 0
        self.key, self.more = key, True
        self.front = self._scan.head(0).collect()

    def read(self) -> None:
        """The next piece."""
        piece = self._scan.slice(self._row, self._read_rows).collect()
        self._row += len(piece)
        self.more = len(piece) == self._read_rows
        self.front = pl.concat([self.front, piece])

    @property
    def last(self) -> int:
        """The highest key in front."""
        return int(self.front[self.key][-1])

    def take_before(self, bound: int | None) -> pl.DataFrame:
        """What lies below the bound; all of it without one."""
        count = len(self.front) if bound is None else int(self.front[self.key].search_sorted(bound, "left"))
        taken, self.front = self.front[:count], self.front[count:]
        return taken


def merged(runs: list[Run]) -> Iterator[pl.DataFrame]:
    """All rows in order; of equal keys those of earlier runs first."""
    while runs:
        for run in runs:
            if run.more and not len(run.front):
                run.read()
        bound = min((run.last for run in runs if run.more), default=None)
        taken = pl.concat([run.take_before(bound) for run in runs])
        if len(taken):
            yield taken.sort(runs[0].key, maintain_order=True)
        elif bound is not None:
            for run in runs:
                if run.more and run.last == bound:
                    run.read()
        runs = [run for run in runs if run.more or len(run.front)]
