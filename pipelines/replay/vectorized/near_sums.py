"""Sums of windows to within a bound, from sums of blocks of rows: what most windows need, at a part of the price.

Most windows lie far from a threshold. `pipelines.replay.vectorized.exact_sums` is asked for those that do not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from breaker_actors.core.model import Float64, Int64
from pipelines.replay.vectorized.exact_sums import TOP_EXPONENT, TooWide

ROWS = 64
"""Of a block; fewer where a chunk is small."""
ROUNDING, SLACK = 2.0**-53, 32
"""Of one operation; and how many more than are counted every bound allows for."""


class Edges(NamedTuple):
    """The windows at the first and the last instant of each page: how many samples have entered and left."""

    entered_first: Int64
    entered_last: Int64
    left_first: Int64
    left_last: Int64


class NearSums:
    """Sums over windows of the samples `entering`, of which those at the front of `leaving` have left.

    Raises TooWide where a sum might overflow."""

    __slots__ = ("_came", "_gone", "_least", "_magnitude")

    def __init__(self, entering: Float64, leaving: Float64 | None = None) -> None:
        least, most = (float(entering.min()), float(entering.max())) if len(entering) else (0.0, 0.0)
        if max(most, -least) >= 2.0**TOP_EXPONENT:
            raise TooWide
        self._came = Blocks(entering)
        self._gone = self._came if leaving is None else Blocks(leaving)
        self._least = least
        self._magnitude = abs(self._came.total if least >= 0 or most <= 0 else float(np.abs(entering).sum()))

    def _error(self, magnitude: float, rows: int = 0) -> float:
        """What two sums of blocks and so many rows, and a few operations more, are off at most."""
        operations = 2 * (len(self._came.sums) + self._came.size + rows) + SLACK
        return 1.1 * operations * ROUNDING * magnitude

    def total(self, entered: Int64, left: Int64) -> tuple[Float64, float]:
        """The sums of windows, ascending, and what they, rounded twice more, are off at most."""
        came, rows = self._came.before(entered)
        gone, more = self._gone.before(left)
        return came - gone, self._error(self._magnitude, max(rows, more))

    def one(self, entered: int, left: int) -> tuple[float, float]:
        """`total` of a single window."""
        return self._came.before_one(entered) - self._gone.before_one(left), self._error(self._magnitude)

    def between(self, edges: Edges) -> tuple[float, Float64, Float64]:
        """The least value, and for pages bounds of what the values of any window of theirs come to above it."""
        least = self._least
        error = self._error(self._magnitude + abs(least) * len(self._came.values))
        came, gone = self._came.above(least), self._gone.above(least)
        most = came[self._came.up(edges.entered_last)] - gone[self._gone.down(edges.left_first)]
        fewest = came[self._came.down(edges.entered_first)] - gone[self._gone.up(edges.left_last)]
        return least, np.maximum(fewest - error, 0.0), np.maximum(most, 0.0) + error


class Blocks:
    """Values and the sums before each block of them, and of all."""

    __slots__ = ("size", "sums", "values")

    def __init__(self, values: Float64) -> None:
        self.values = values
        self.size = size = min(ROWS, len(values) // 64 + 1)
        whole = len(values) // size * size
        each = values[:whole].reshape(-1, size).sum(axis=1)
        self.sums: Float64 = np.cumsum(np.concatenate([[0.0], each, [values[whole:].sum()]]))

    @property
    def total(self) -> float:
        return float(self.sums[-1])

    def up(self, rows: Int64) -> Int64:
        """The places in `sums` of these counts of rows, rounded up to blocks."""
        return -(-rows // self.size)

    def down(self, rows: Int64) -> Int64:
        """The same, rounded down."""
        return rows // self.size

    def above(self, least: float) -> Float64:
        """`sums` of what values are above the least of them: they never fall."""
        return self.sums - least * np.minimum(np.arange(len(self.sums)) * self.size, len(self.values))

    def before(self, rows: Int64) -> tuple[Float64, int]:
        """The sums of the first so many values, for ascending counts; and how many were added up one by one."""
        block = int(rows[0]) // self.size
        begin, end = block * self.size, int(rows[-1])
        run = np.empty(end - begin + 1)
        run[0], run[1:] = self.sums[block], self.values[begin:end]
        np.cumsum(run, out=run)
        return run[rows - begin], end - begin

    def before_one(self, rows: int) -> float:
        """`before` for one count."""
        block = rows // self.size
        return float(self.sums[block] + self.values[block * self.size : rows].sum())
