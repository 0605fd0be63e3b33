"""What a kind looks at, for many windows at once: an interval that holds the value `core.definitions` defines.

For all kinds but stddev the interval is one float, exactly that value. Order statistics are not here: they are decided
by class (`pipelines.replay.vectorized.order_statistics`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from breaker_actors.core.accumulators import EPS
from breaker_actors.core.model import Flags, Float64, Int64
from pipelines.replay.vectorized.exact_sums import ExactSums, Index, TooWide
from pipelines.replay.vectorized.near_sums import Edges
from pipelines.replay.vectorized.prefix_columns import PrefixColumns, running

Bounds = tuple[Any, Any]
RANKED = ("p95", "percentile", "max", "min")
WIDE = 2.0**400
"""From here on squares of offsets may overflow, or their sums."""


def value_bounds(kind: str, prefixes: PrefixColumns, entered: Index, left: Index) -> Bounds:
    """(low, high) of the windows' values; the same object twice where it is exact. Empty windows give 0.

    Raises TooWide."""
    n = entered - left
    match kind:
        case "count":
            value = np.asarray(n).astype(np.float64)
        case "error_rate":
            value = prefixes.errors(entered, left) / np.maximum(n, 1)
        case "sum":
            value = prefixes.sums().total(entered, left)
        case "avg":
            value = prefixes.sums().total(entered, left) / np.maximum(n, 1)
        case _:
            deviations: Deviations = prefixes.known("deviations", lambda: Deviations(prefixes))
            return deviations.value_bounds(entered, left)
    return value, value


def value_bounds_of_one(kind: str, prefixes: PrefixColumns, entered: int, left: int) -> tuple[float, float]:
    """`bounds` of a single window that is not empty."""
    n = entered - left
    match kind:
        case "count":
            value = float(n)
        case "error_rate":
            value = prefixes.errors_of_one(entered, left) / n
        case "sum":
            value = prefixes.sum_of_one(entered, left)
        case "avg":
            value = prefixes.sum_of_one(entered, left) / n
        case _:
            low, high = value_bounds(kind, prefixes, entered, left)
            return float(low), float(high)
    return value, value


NEAR = ("count", "error_rate", "sum", "avg")
"""Kinds whose figures are told to within a bound first."""
TINY = 1e-300
"""More than what is lost below the smallest floats."""


def near_values(kind: str, prefixes: PrefixColumns, entered: Index, left: Index) -> Bounds:
    """The values of windows, ascending, and what they may be off; 0.0 where they are exact. Raises TooWide."""
    if kind in ("count", "error_rate"):
        return value_bounds(kind, prefixes, entered, left)[0], 0.0
    total, error = prefixes.near().total(entered, left)
    return _near(kind, total, error, np.maximum(entered - left, 1))


def near_bounds_of_one(kind: str, prefixes: PrefixColumns, entered: int, left: int) -> tuple[float, float]:
    """(low, high) of a single window that is not empty, of one of NEAR. Raises TooWide."""
    if kind in ("count", "error_rate"):
        return value_bounds_of_one(kind, prefixes, entered, left)
    value, off = _near(kind, *prefixes.near().one(entered, left), entered - left)
    return value - off, value + off


def _near(kind: str, total: Any, error: float, n: Any) -> Bounds:
    if not error:
        return total, 0.0
    return (total, error + TINY) if kind == "sum" else (total / n, error / n + TINY)


def page_bounds(kind: str, prefixes: PrefixColumns, edges: Edges) -> Bounds:
    """(low, high) of the values of all windows of a page, for kinds of NEAR. Raises TooWide."""
    most = edges.entered_last - edges.left_first
    fewest = np.maximum(edges.entered_first - edges.left_last, 0)
    if kind == "count":
        return fewest.astype(np.float64), most.astype(np.float64)
    if kind == "error_rate":
        low = np.maximum(prefixes.errors(edges.entered_first, edges.left_last), 0) / np.maximum(most, 1)
        high = prefixes.errors(edges.entered_last, edges.left_first) / np.maximum(fewest, 1)
    else:
        least, low, high = prefixes.near().between(edges)
        if kind == "sum":
            low = low + np.minimum(least * fewest, least * most)
            high = high + np.maximum(least * fewest, least * most)
        else:
            low, high = least + low / np.maximum(most, 1), least + high / np.maximum(fewest, 1)
        off = 8 * EPS * (abs(low) + abs(high) + abs(least) * (most if kind == "sum" else 1)) + TINY
        low, high = low - off, high + off
    if kind == "sum":
        return low, high
    return np.where(fewest > 0, low, -np.inf), np.where(fewest > 0, high, np.inf)


class Deviations:
    """stddev from sums of offsets and of their squares, with a bound on all that is rounded on the way."""

    __slots__ = ("_changes", "_moments", "_origin", "_spreads")

    def __init__(self, prefixes: PrefixColumns) -> None:
        if len(prefixes.value) and max(prefixes.value.max(), -prefixes.value.min()) >= WIDE:
            raise TooWide
        self._origin = float(prefixes.value.mean()) if len(prefixes.value) else 0.0
        self._moments = self._sums(prefixes, lambda off: off)
        self._spreads = self._sums(prefixes, lambda off: off * off)
        self._changes: Int64 | None = None
        if prefixes.ordered and len(prefixes.value):
            self._changes = running(np.concatenate([[False], prefixes.value[1:] != prefixes.value[:-1]]))

    def _sums(self, prefixes: PrefixColumns, of: Callable[[Float64], Float64]) -> ExactSums:
        gone = None if prefixes.ordered else of(prefixes.gone_value - self._origin)
        return ExactSums(of(prefixes.value - self._origin), gone, lossy=True)

    def value_bounds(self, entered: Index, left: Index) -> Bounds:
        """As `bounds`. What is rounded: each offset, each square, these figures, and the answer."""
        n = np.maximum(entered - left, 1)
        first, second = self._moments.total(entered, left), self._spreads.total(entered, left)
        square = first * first / n
        cut_off = n * self._spreads.lost + (2 * abs(first) + n * self._moments.lost) * self._moments.lost
        error = 16 * EPS * (second + square) + cut_off + 1e-300
        low = np.sqrt(np.maximum(0.0, second - square - error) / n) * (1 - 1e-12)
        high = np.sqrt(np.maximum(0.0, second - square + error) / n) * (1 + 1e-12)
        if self._changes is None:
            return low, high
        flat = (self._changes[entered] - self._changes[np.minimum(left + 1, entered)] == 0) & (entered > left)
        return np.where(flat, 0.0, low), np.where(flat, 0.0, high)


def test_of(op: str, threshold: float) -> Callable[[Any], Flags]:
    """value <op> threshold, for arrays."""
    compare = {"gt": np.greater, "lt": np.less, "gte": np.greater_equal, "lte": np.less_equal}[op]
    return lambda value: np.asarray(compare(value, threshold))
