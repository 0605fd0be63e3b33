"""Breach or not, for the windows of many instants at once and one rule: what `core.evidence` says of each.

Where figures can't tell for certain, the definition decides. A window with fewer samples than needed is no breach.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from breaker_actors.core.accumulators import COMPARE
from breaker_actors.core.definitions import P95, clamp, exact_value, inner_kind, need_of, percent_of
from breaker_actors.core.model import Flags, Int64, Rule
from pipelines.replay.vectorized.aggregates import RANKED, test_of, value_bounds
from pipelines.replay.vectorized.order_statistics import Cuts, Places, cut_of, reaching, rises
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import Instants, WindowBounds


class BreachTest(Protocol):
    """Says which windows breach. A window is (entered, left): counts of rows in prefix columns."""

    baseline: float | None
    """Of a delta: what the aggregate is compared with."""

    def among(self, points: Instants, start: int, stop: int) -> Flags:
        """Whole windows: points start..stop-1 of these."""

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        """Tests partial windows, which the evidence floor cuts short, at arrivals in a row."""


def breach_test_of(rule: Rule, bounds: WindowBounds, cuts: Cuts | None) -> BreachTest:
    """Returns the breach test of a rule. `cuts`: of all rules that share its windows and its order statistic.

    What it needs for all arrivals is worked out now; raises TooWide."""
    if rule.kind == "delta":
        return RankedDelta(rule, bounds) if inner_kind(rule) in RANKED else Valued(rule, bounds)
    return Valued(rule, bounds) if cuts is None else Ranked(rule, bounds, cuts)


def places_of(rule: Rule) -> Places:
    """Which element the order statistic of a rule is."""
    kind = inner_kind(rule)
    if kind in ("max", "min"):
        return Places(Fraction(100) if kind == "max" else None)
    return Places(percent_of(rule) if kind == "percentile" else P95)


class Valued:
    """A kind whose value is a float: compare it, or the interval it lies in. For delta: less the baseline."""

    def __init__(self, rule: Rule, bounds: WindowBounds) -> None:
        self._kind, self._need, self._bounds = inner_kind(rule), need_of(rule), bounds
        self._test, self._compare, self._threshold = test_of(rule.op, rule.threshold), COMPARE[rule.op], rule.threshold
        self._is_delta = rule.kind == "delta"
        self.baseline: float | None = None
        self._figures(bounds.arrivals)

    def _figures(self, points: Instants) -> tuple[Any, Any]:
        kind, prefixes = self._kind, self._bounds.prefixes
        return points.figures(
            kind, lambda entered, left: value_bounds(kind, prefixes, entered, left), 1 + (kind == "stddev")
        )

    def among(self, points: Instants, start: int, stop: int) -> Flags:
        block = slice(start, stop)
        low, high = self._figures(points)
        hit = self._hit(low[block])
        if high is not low and (unsure := hit != self._hit(high[block])).any():
            self._settle(hit, unsure, self._bounds.prefixes, points.entered[block], points.left[block])
        enough = points.enough(self._need)
        return hit if enough is None else hit & enough[block]

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        low, high = value_bounds(self._kind, prefixes, entered, left)
        hit = self._hit(low)
        if high is not low and (unsure := hit != self._hit(high)).any():
            self._settle(hit, unsure, prefixes, entered, left)
        return np.asarray(hit & (entered - left >= self._need))

    def _hit(self, value: Any) -> Flags:
        if not self._is_delta:
            return self._test(value)
        if self.baseline is None:
            return np.zeros(len(value), np.bool_)
        return self._test(value - self.baseline)

    def _settle(self, hit: Flags, unsure: Flags, prefixes: PrefixColumns, entered: Int64, left: Any) -> None:
        """By the definition, window by window."""
        left = np.broadcast_to(left, entered.shape)
        unsure &= entered - left >= self._need
        for i in np.flatnonzero(unsure).tolist():
            value = exact_value(self._kind, P95, *prefixes.values(int(entered[i]), int(left[i])))
            hit[i] = self._compare(clamp(value - (self.baseline or 0.0)), self._threshold)


class Ranked:
    """An order statistic: its class against the place of the rule's cut."""

    def __init__(self, rule: Rule, bounds: WindowBounds, cuts: Cuts) -> None:
        self.baseline: float | None = None
        self._op, self._need, self._bounds = rule.op, need_of(rule), bounds
        self._cut, self._places, self._cuts = cut_of(rule.op, rule.threshold), places_of(rule), cuts
        self._place = int(np.searchsorted(cuts.values, self._cut))
        classes = self._classes(bounds.arrivals)
        cuts.usual = int(classes.min()), int(classes.max())

    def _classes(self, points: Instants) -> npt.NDArray[Any]:
        classes, _ = points.figures(self._cuts, self._select, 1, self._cuts.kind)
        return np.asarray(classes)

    def _select(self, entered: Int64, left: Int64) -> tuple[Any, Any]:
        classes = self._bounds.prefixes.ranks(self._cuts).select(entered, left, self._places.all(entered - left))
        return classes, classes

    def among(self, points: Instants, start: int, stop: int) -> Flags:
        classes = self._classes(points)[start:stop]
        hit = classes > self._place if rises(self._op) else classes <= self._place
        enough = points.enough(self._need)
        return hit if enough is None else hit & enough[start:stop]

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        first, last = int(np.min(left)), int(entered[-1])
        hit = reaching(prefixes.value[first:last], self._cut, entered - first, left - first, self._places, self._op)
        return np.asarray(hit & (entered - left >= self._need))


class RankedDelta:
    """An order statistic less a baseline that moves: the cut moves with it."""

    def __init__(self, rule: Rule, bounds: WindowBounds) -> None:
        self._op, self._need, self._bounds = rule.op, need_of(rule), bounds
        self._threshold, self._places = rule.threshold, places_of(rule)
        self.baseline: float | None = None

    def among(self, points: Instants, start: int, stop: int) -> Flags:
        entered, left = points.entered[start:stop], points.left[start:stop]
        prefixes = self._bounds.prefixes
        if prefixes.ordered or self.baseline is None:
            return self.partial_windows(prefixes, entered, left)
        cut = self._cut(self.baseline)
        n = entered - left
        came, gone = np.cumsum(prefixes.value >= cut), np.cumsum(prefixes.gone_value >= cut)
        above = np.append(0, came)[entered] - np.append(0, gone)[left]
        hit = (above > n - self._places.all(n)) == rises(self._op)
        return np.asarray(hit & (n >= self._need))

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        if self.baseline is None or not len(entered):
            return np.zeros(len(entered), np.bool_)
        first, last = int(np.min(left)), int(entered[-1])
        cut = self._cut(self.baseline)
        hit = reaching(prefixes.value[first:last], cut, entered - first, left - first, self._places, self._op)
        return np.asarray(hit & (entered - left >= self._need))

    def _cut(self, baseline: float) -> float:
        """The least value that is on the far side once the baseline is taken off, rounding included."""
        compare, threshold, high = COMPARE[self._op], self._threshold, rises(self._op)
        return least(lambda value: compare(clamp(value - baseline), threshold) is high)


def least(reached: Any) -> float:
    """The least float for which `reached` is true, which it stays from there on; inf when it never is."""
    below, upto = -(1 << 63) + (1 << 52), 0x7FF0000000000000
    while upto - below > 1:
        middle = (below + upto) // 2
        below, upto = (below, middle) if reached(_float_at(middle)) else (middle, upto)
    return _float_at(upto)


def _float_at(place: int) -> float:
    """Floats in ascending order, numbered: 0.0 is 0."""
    (value,) = struct.unpack("<d", struct.pack("<Q", place if place >= 0 else (1 << 63) | -place))
    return float(value)
