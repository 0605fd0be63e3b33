"""Explicit histograms of one request, whose values are worked out together: what `histograms.filled` does, for many."""

from __future__ import annotations

from itertools import pairwise
from struct import Struct

import numpy as np
import numpy.typing as npt

from api.protocols.histograms import COUNT_MAX, Scheme, packed_scheme
from api.protocols.points import Histogram
from breaker_actors.core.model import Float64, Int64

NO_EXTENT = b"\x59" + Struct("<d").pack(-np.inf) + b"\x61" + Struct("<d").pack(np.inf)
"""Stands for min and max where there are none, as they are spelled."""
_AT_ONCE = 1 << 15
"""Buckets worked out at a time."""


class Filling:
    """Histograms that wait for their values. `right`: False where one has counts that are none."""

    __slots__ = ("_buckets", "_extents", "_found", "_numbers", "_packed", "_rows", "_schemes", "_which", "right")

    def __init__(self, found: dict[int, Histogram]) -> None:
        """`found`: where they go, by row number."""
        self._found = found
        self.right = True
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._schemes: list[Scheme] = []
        self._rows: list[int] = []
        self._which: list[int] = []
        self._packed: list[bytes] = []
        self._extents: list[bytes] = []
        self._buckets = 0

    def scheme(self, bounds: bytes) -> int:
        """The number of a scheme by its bounds, packed as doubles, for the next `add`; -1 where they are none."""
        number = self._numbers.get(bounds)
        if number is None:
            scheme = packed_scheme(bounds)
            number = len(self._schemes) if isinstance(scheme, Scheme) else -1
            self._numbers[bounds] = number
            if isinstance(scheme, Scheme):
                self._schemes.append(scheme)
        return number

    def add(self, row: int, scheme: int, counts: bytes, extent: bytes) -> None:
        """A histogram by its counts, packed as 64 bits each, and min and max as they are spelled, 18 bytes."""
        self._rows.append(row)
        self._which.append(scheme)
        self._packed.append(counts)
        self._extents.append(extent)
        self._buckets += len(counts) >> 3
        if self._buckets >= _AT_ONCE:
            self.fill()

    def fill(self) -> None:
        """Works out those that wait."""
        counts = np.frombuffer(b"".join(self._packed), "<u8")
        if not len(counts):
            return
        self.right = self.right and bool(counts.max() <= COUNT_MAX)
        full = np.flatnonzero(counts)
        sizes = np.fromiter(map(len, self._packed), np.int64, len(self._packed)) >> 3
        ends = np.cumsum(sizes)
        of = np.searchsorted(ends, full, "right")
        number = full - (ends - sizes)[of]
        low, high = _extents(b"".join(self._extents))
        values = self._values(np.array(self._which), of, number, low[of], high[of])
        until = np.cumsum(np.bincount(of, minlength=len(sizes))).tolist()
        value, count, bucket = (tuple(part.tolist()) for part in (values, counts[full].astype(np.int64), number))
        for row, which, (a, b) in zip(self._rows, self._which, pairwise((0, *until)), strict=True):
            self._found[row] = Histogram(value[a:b], count[a:b], self._schemes[which].layout, bucket[a:b])
        self._begin()

    def _values(self, which: Int64, of: Int64, number: Int64, low: Float64, high: Float64) -> Float64:
        """What stands for each bucket, by number of its histogram, its own number and the limits of its histogram."""
        first = np.cumsum([0, *(len(scheme.middles) for scheme in self._schemes)])
        at = first[which][of] + number
        lower, upper, middle = (
            np.concatenate([getattr(scheme, edge) for scheme in self._schemes])[at]
            for edge in ("lower", "upper", "middles")
        )
        above = np.where(np.isnan(upper), np.where(high < np.inf, high, lower), upper)
        beneath = np.where(low > -np.inf, low, np.where(above < 0, above, 0.0))
        below = np.where(np.isnan(lower), beneath, lower)
        mean = np.where(below > low, below, low) / 2 + np.where(above < high, above, high) / 2
        clipped = np.where(mean < low, low, np.where(mean > high, high, mean))
        return np.where((lower >= low) & (upper <= high), middle, clipped)


def _extents(spelled: bytes) -> tuple[Float64, Float64]:
    """Min and max of each, infinite where they are not numbers in order; see `Extent`."""
    rows: npt.NDArray[np.uint8] = np.frombuffer(spelled, np.uint8).reshape(-1, 18)
    low, high = (np.ascontiguousarray(rows[:, at : at + 8]).view("<f8").reshape(-1) for at in (1, 10))
    low, high = np.where(np.isfinite(low), low, -np.inf), np.where(np.isfinite(high), high, np.inf)
    ordered = low <= high
    return np.where(ordered, low, -np.inf), np.where(ordered, high, np.inf)
