"""Order statistics of many windows against many thresholds at once, without sorting a window.

A threshold is a cut: values either reach it or not, so with the cuts in order each value has a class, the number of
cuts it reaches, and so has the element that a percentile asks for. Its class decides every rule of a sweep. A wavelet
matrix over the classes finds it with one step per bit of the class, for all windows together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from breaker_actors.core.definitions import rank
from breaker_actors.core.model import Flags, Float64, Int64, Op
from pipelines.replay.vectorized.near_sums import Edges

FEW_CUTS = 6


def cut_of(op: Op, threshold: float) -> float:
    """The least value on the far side of the threshold: v > T is v >= the float after T."""
    return threshold if op in ("gte", "lt") else math.nextafter(threshold, math.inf)


def rises(op: Op) -> bool:
    """Does reaching the cut mean a breach? For lt and lte it means none."""
    return op in ("gt", "gte")


class Places:
    """Which element of n in ascending order a percentile asks for, 1-based; `percent` None asks for the first."""

    __slots__ = ("_percent",)

    def __init__(self, percent: Fraction | None) -> None:
        self._percent = percent

    def of(self, n: int) -> int:
        return rank(self._percent, n) if self._percent is not None else 1

    def all(self, n: Int64) -> Int64:
        """The same for many; in int64 where the numbers allow it."""
        percent = self._percent
        if percent is None:
            return np.ones(len(n), np.int64)
        if not len(n) or percent.numerator * int(n.max()) < 1 << 62:
            return np.asarray(-(-percent.numerator * n // (percent.denominator * 100)))
        different, where = np.unique(n, return_inverse=True)
        return np.array([self.of(int(one)) for one in different], np.int64)[where]


class Matrix:
    """A wavelet matrix: `classes` level by level, highest bit first, each with a running count of its zeros."""

    __slots__ = ("levels",)

    def __init__(self, classes: npt.NDArray[Any], bits: int) -> None:
        self.levels: list[tuple[npt.NDArray[np.int32], int]] = []
        for bit in reversed(range(bits)):
            zero = (classes >> bit) & 1 == 0
            counts = np.zeros(len(classes) + 1, np.int32)
            np.cumsum(zero, out=counts[1:])
            self.levels.append((counts, int(counts[-1])))
            if bit:
                classes = np.concatenate([classes[zero], classes[~zero]])


Found = npt.NDArray[np.int32]


class Cuts:
    """The cuts of all rules that share windows and an order statistic, ascending, and the classes last seen."""

    __slots__ = ("kind", "usual", "values")

    def __init__(self, cuts: Iterable[float]) -> None:
        self.values: Float64 = np.array(sorted(set(cuts)))
        self.kind: Any = np.min_scalar_type(len(self.values))
        self.usual: tuple[int, int] | None = None


class Ranks:
    """The classes of samples as they enter, and as they leave.

    Only the cuts around the classes last seen are looked at first; windows that turn out to lie beyond are asked again
    under all cuts.
    """

    __slots__ = ("_all", "_high", "_inner", "_low", "cuts", "entering", "leaving")

    def __init__(self, known: Cuts, entering: Float64, leaving: Float64 | None = None) -> None:
        self.entering, self.leaving = entering, leaving
        self.cuts = cuts = known.values
        first, last = known.usual or (0, len(cuts))
        self._low, self._high = max(0, first - 1), min(len(cuts), last + 1)
        self._inner = Classes(cuts[self._low : self._high], entering, leaving)
        self._all: Classes | None = None if self._high - self._low < len(cuts) else self._inner

    def select(self, entered: Int64, left: Int64, places: Int64) -> Found:
        """The class of the element at `places` (1-based) of each window."""
        found = self._inner.select(entered, left, places) + np.int32(self._low)
        if self._all is self._inner:
            return found
        beyond = np.zeros(len(found), np.bool_)
        if self._low:
            beyond |= found == self._low
        if self._high < len(self.cuts):
            beyond |= found == self._high
        rows = np.flatnonzero(beyond)
        if len(rows):
            self._all = self._all or Classes(self.cuts, self.entering, self.leaving)
            found[rows] = self._all.select(entered[rows], left[rows], places[rows])
        return found


def class_bounds(ranks: Ranks, edges: Edges, places: Places, ordered: bool) -> tuple[Int64, Int64]:
    """(low, high) of the classes found in all windows of a page. What is above the element grows with the window, so
    one that holds all of them tells the highest, one that all of them hold the lowest."""
    top = len(ranks.cuts)
    most, fewest = edges.entered_last - edges.left_first, edges.entered_first - edges.left_last
    low, high = np.zeros(len(most), np.int64), np.full(len(most), top)
    told = np.flatnonzero(fewest > 0)
    if not ordered or not len(told):
        return low, high
    entered, left, most, fewest = edges.entered_last[told], edges.left_first[told], most[told], fewest[told]
    high[told] = ranks.select(entered, left, most - (fewest - places.all(fewest)))
    place = fewest - (most - places.all(most))
    told, place = told[place > 0], place[place > 0]
    low[told] = ranks.select(edges.entered_first[told], edges.left_last[told], place)
    return low, high


def usual_of(low: Int64, high: Int64, top: int) -> tuple[int, int] | None:
    """The classes between bounds that say something; None where none does."""
    told = (low > 0) | (high < top)
    return (int(low[told].min()), int(high[told].max())) if told.any() else None


class Classes:
    """Wavelet matrices of samples under ascending cuts."""

    __slots__ = ("_came", "_gone", "cuts")

    def __init__(self, cuts: Float64, entering: Float64, leaving: Float64 | None) -> None:
        self.cuts = cuts
        bits = len(cuts).bit_length()
        self._came = Matrix(self._classes(entering), bits)
        self._gone = None if leaving is None else Matrix(self._classes(leaving), bits)

    def _classes(self, values: Float64) -> npt.NDArray[Any]:
        kind = np.min_scalar_type(len(self.cuts))
        if len(self.cuts) > FEW_CUTS:
            return np.searchsorted(self.cuts, values, "right").astype(kind)
        classes = np.zeros(len(values), kind)
        for cut in self.cuts:
            np.add(classes, values >= cut, out=classes)
        return classes

    def select(self, entered: Int64, left: Int64, places: Int64) -> Found:
        """As `Ranks.select`, under these cuts alone."""
        rest, found = places - 1, np.zeros(len(places), np.int32)
        if self._gone is None:
            return _descend(self._came, left, entered, None, None, rest, found)
        return _descend(self._came, np.zeros_like(left), entered, self._gone, left, rest, found)


def _descend(
    came: Matrix,
    start: Int64,
    stop: Int64,
    gone: Matrix | None,
    gone_stop: Int64 | None,
    rest: Int64,
    found: Found,
) -> Found:
    """Down the levels: where fewer zeros than asked for lie in the window, the element is among the ones."""
    gone_start = None if gone_stop is None else np.zeros_like(gone_stop)
    for level, (counts, zeros_in_all) in enumerate(came.levels):
        below, upto = counts[start], counts[stop]
        zeros = upto - below
        if gone is not None and gone_start is not None and gone_stop is not None:
            gone_counts, gone_zeros = gone.levels[level]
            gone_below, gone_upto = gone_counts[gone_start], gone_counts[gone_stop]
            zeros = zeros - (gone_upto - gone_below)
        high = rest >= zeros
        found = (found << 1) | high
        if level + 1 == len(came.levels):
            break
        rest = rest - zeros * high
        start = np.where(high, zeros_in_all + start - below, below)
        stop = np.where(high, zeros_in_all + stop - upto, upto)
        if gone is not None and gone_start is not None and gone_stop is not None:
            gone_start = np.where(high, gone_zeros + gone_start - gone_below, gone_below)
            gone_stop = np.where(high, gone_zeros + gone_stop - gone_upto, gone_upto)
    return found


def reaching(values: Float64, cut: float, entered: Int64, left: Int64 | int, places: Places, op: Op) -> Flags:
    """Which windows (the first `entered` of these values without the first `left`) breach a rule with this cut."""
    counts = np.zeros(len(values) + 1, np.int32)
    np.cumsum(values >= cut, out=counts[1:])
    n = entered - left
    above = counts[entered] - counts[left]
    return np.asarray((above > n - places.all(n)) == rises(op))
