"""Samples in order of time, out of a source in any order, in memory that does not grow with it.

Stretches are sorted and written to a temporary directory, then merged: a few of them side by side, each read piece by
piece. Where there are more, merged ones are written and merged again. Equal times keep their order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.sources.files import Source

RUN_BYTES, FANIN = 64 << 20, 16
PIECES = 2 * FANIN
"""Of a stretch that is sorted at a time: what merging holds is half of one."""


class Sorted:
    """A source that hands out another one's samples by received_ms, where there is one, else by ts_ms. `run_bytes`: how
    much is sorted at a time; it lies in memory twice then."""

    def __init__(self, source: Source, *, run_bytes: int = RUN_BYTES) -> None:
        self.names, self.words = source.names, getattr(source, "words", None)
        self.titles: list[str] = getattr(source, "titles", source.names)
        self.unread = getattr(source, "unread", None)
        self._source, self._run_bytes = source, run_bytes

    def rows(self) -> int | None:
        return self._source.rows()

    def batches(self) -> Iterator[pl.DataFrame]:
        with tempfile.TemporaryDirectory(prefix="breakers-sort-") as folder:
            stretches = map(_in_order, in_pieces(self._source.batches(), self._run_bytes))
            runs = [self._run(folder, [stretch]) for stretch in stretches]
            while len(runs) > FANIN:
                groups = [runs[i : i + FANIN] for i in range(0, len(runs), FANIN)]
                runs = [self._run(folder, merged(group)) for group in groups]
            yield from merged(runs)

    def _run(self, folder: str, frames: Iterable[pl.DataFrame]) -> Run:
        return Run(Path(tempfile.mkdtemp(dir=folder)), frames, self._run_bytes // PIECES)


def in_pieces(frames: Iterable[pl.DataFrame], size: int) -> Iterator[pl.DataFrame]:
    """The same rows, about `size` bytes at a time; the last ones may be less."""
    waiting: list[pl.DataFrame] = []
    held = 0
    for frame in frames:
        for piece in frame.iter_slices(max(1, len(frame) * size // max(1, int(frame.estimated_size())))):
            waiting.append(piece)
            held += int(piece.estimated_size())
            if held >= size:
                yield _joined(waiting)
                held = 0
    if waiting:
        yield _joined(waiting)


def _joined(waiting: list[pl.DataFrame]) -> pl.DataFrame:
    """All that waits; the list lets go of it."""
    frame = pl.concat(waiting)
    waiting.clear()
    return frame


def _in_order(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.sort(key_of(frame), maintain_order=True)


def key_of(frame: pl.DataFrame) -> str:
    """The column that tells when a sample arrived."""
    return "received_ms" if "received_ms" in frame.columns else "ts_ms"


class Run:
    """Sorted rows in files of about `size` bytes: `front` is what has been read and not been taken yet."""

    def __init__(self, folder: Path, frames: Iterable[pl.DataFrame], size: int) -> None:
        self._folder, self._read, self._written = folder, 0, 0
        for piece in in_pieces(frames, size):
            piece.write_parquet(self._file(self._written), compression="lz4", statistics=False)
            self._written += 1
        self.front = pl.DataFrame()

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.parquet"

    @property
    def more(self) -> bool:
        """Whether there are rows behind the front."""
        return self._read < self._written

    def fill(self) -> bool:
        """Reads the next piece when all of the last one was taken; whether there was one."""
        if not len(self.front) and self.more:
            self.front = pl.read_parquet(self._file(self._read))
            self._file(self._read).unlink()
            self._read += 1
        return len(self.front) > 0

    @property
    def last(self) -> int:
        """The highest key in front."""
        return int(self.front[key_of(self.front)][-1])

    def take_below(self, bound: int | None) -> pl.DataFrame:
        """What is in front and below the bound; all of it without one."""
        keys = self.front[key_of(self.front)].to_numpy()
        count = len(keys) if bound is None else int(np.searchsorted(keys, bound, "left"))
        taken, self.front = self.front[:count], self.front[count:]
        return taken


def merged(runs: Sequence[Run]) -> Iterator[pl.DataFrame]:
    """All rows in order; of equal keys those of earlier runs first."""
    while runs := [run for run in runs if run.fill()]:
        yield _in_order(pl.concat(_next(runs)))


def _next(runs: Sequence[Run]) -> Iterator[pl.DataFrame]:
    """What no row that is still to be read comes before. Rows with the lowest key that ends a front come run by run."""
    bound = min((run.last for run in runs if run.more), default=None)
    for run in runs:
        yield run.take_below(bound)
    if bound is None:
        return
    for run in runs:
        yield run.take_below(bound + 1)
        if run.more and not len(run.front):
            return
