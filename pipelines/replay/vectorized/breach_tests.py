"""Breach or not, for the windows of many instants at once and one rule: what `core.evidence` says of each.

Where figures can't tell for certain, the definition decides. A window with fewer samples than needed is no breach.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import numpy as np

from breaker_actors.core.accumulators import COMPARE
from breaker_actors.core.definitions import P95, clamp, exact_value, inner_kind, need_of, percent_of
from breaker_actors.core.model import Flags, Int64, Rule
from pipelines.replay.vectorized.aggregates import NEAR, RANKED, near_values, page_bounds, test_of, value_bounds
from pipelines.replay.vectorized.order_statistics import (
    Cuts,
    Places,
    Ranks,
    class_bounds,
    cut_of,
    reaching,
    rises,
    usual_of,
)
from pipelines.replay.vectorized.pages import Pages
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import Instants, WindowBounds


class BreachTest(Protocol):
    """Says which windows breach. A window is (entered, left): counts of rows in prefix columns."""

    baseline: float | None
    """Of a delta: what the aggregate is compared with."""

    def first(self, points: Instants, start: int, stop: int) -> int | None:
        """Whole windows: the first that breaches of the points start..stop-1 of these."""

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        """Tests partial windows, which the evidence floor cuts short, at arrivals in a row."""


def breach_test_of(rule: Rule, bounds: WindowBounds, cuts: Cuts | None) -> BreachTest:
    """Returns the breach test of a rule. `cuts`: of all rules that share its windows and its order statistic.

    What it needs for all arrivals is worked out now; raises TooWide."""
    if rule.kind == "delta":
        return RankedDelta(rule, bounds) if inner_kind(rule) in RANKED else Valued(rule, bounds)
    if rule.kind in NEAR:
        return Near(rule, bounds)
    return Valued(rule, bounds) if cuts is None else Ranked(rule, bounds, cuts)


def places_of(rule: Rule) -> Places:
    """Which element the order statistic of a rule is."""
    kind = inner_kind(rule)
    if kind in ("max", "min"):
        return Places(Fraction(100) if kind == "max" else None)
    return Places(percent_of(rule) if kind == "percentile" else P95)


def first_of(hits: Flags, start: int) -> int | None:
    """The first that is set of flags that are numbered from `start`."""
    found = int(hits.argmax()) if len(hits) else 0
    return start + found if len(hits) and hits[found] else None


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
            ("exact", kind), lambda entered, left: value_bounds(kind, prefixes, entered, left), 1 + (kind == "stddev")
        )

    def first(self, points: Instants, start: int, stop: int) -> int | None:
        return first_of(self._among(points, start, stop), start)

    def _among(self, points: Instants, start: int, stop: int) -> Flags:
        block = slice(start, stop)
        low, high = self._figures(points)
        hit = self._hit(low[block])
        if high is not low and (unsure := hit != self._hit(high[block])).any():
            self._settle(hit, unsure, self._bounds.prefixes, *points.windows(start, stop))
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


class Paged:
    """What is common to tests that pass pages by whose bounds can't breach."""

    def __init__(self, rule: Rule, bounds: WindowBounds) -> None:
        self.baseline: float | None = None
        self._need, self._bounds = need_of(rule), bounds
        self._rises = rises(rule.op)

    def _pages(self, points: Instants) -> Pages:
        raise NotImplementedError

    def _may(self, low: Any, high: Any) -> Flags:
        """Whether a figure between these may be a breach."""
        raise NotImplementedError

    def _hits(self, figures: Any, margin: float, points: Instants, block: slice) -> Flags:
        """Which windows breach, given their figures, and what these may be off; if enough samples are in them."""
        raise NotImplementedError

    def first(self, points: Instants, start: int, stop: int) -> int | None:
        pages = self._pages(points)
        if not self._may(pages.lowest, pages.highest):
            return None
        for block in pages.suspects(start, stop, self._may):
            hits = self._hits(*pages.figures(points, block), points, block)
            if not hits.any():
                continue
            entered, left = points.windows(block.start, block.stop)
            found = first_of(hits & (entered - left >= self._need), block.start)
            if found is not None:
                return found
        return None


class Near(Paged):
    """A kind whose value is told to within a bound; where that is not enough, exactly."""

    def __init__(self, rule: Rule, bounds: WindowBounds) -> None:
        super().__init__(rule, bounds)
        self._kind, self._threshold, self._test = rule.kind, rule.threshold, test_of(rule.op, rule.threshold)
        self._pages(bounds.arrivals)

    def _pages(self, points: Instants) -> Pages:
        kind, prefixes = self._kind, self._bounds.prefixes

        def made() -> Pages:
            bounds = page_bounds(kind, prefixes, points.edges())
            return Pages(points, *bounds, float, partial(near_values, kind, prefixes))

        pages: Pages = points.pages(kind, made)
        return pages

    def _may(self, low: Any, high: Any) -> Flags:
        return self._test(high if self._rises else low)

    def _hits(self, figures: Any, margin: float, points: Instants, block: slice) -> Flags:
        may, does = self._told(figures, margin)
        if may is not does and (may & ~does).any():
            self._settle(does, may, self._bounds.prefixes, *points.windows(block.start, block.stop))
        return does

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        left = np.broadcast_to(left, entered.shape)
        may, does = self._told(*near_values(self._kind, prefixes, entered, left))
        enough = entered - left >= self._need
        if may is not does and (may & ~does & enough).any():
            self._settle(does, may & enough, prefixes, entered, left)
        return np.asarray(does & enough)

    def _told(self, values: Any, margin: Any) -> tuple[Flags, Flags]:
        """Which may breach and which do for sure; the same object twice where that is one."""
        if isinstance(margin, float) and not margin:
            does = self._test(values)
            return does, does
        low, high = self._threshold - margin, self._threshold + margin
        if self._rises:
            return np.asarray(values >= low), np.asarray(values > high)
        return np.asarray(values <= high), np.asarray(values < low)

    def _settle(self, does: Flags, may: Flags, prefixes: PrefixColumns, entered: Int64, left: Int64) -> None:
        """By the exact values. Raises TooWide."""
        rows = np.flatnonzero(may & ~does)
        value, _ = value_bounds(self._kind, prefixes, entered[rows], left[rows])
        does[rows] = self._test(value)


class Ranked(Paged):
    """An order statistic: its class against the place of the rule's cut."""

    def __init__(self, rule: Rule, bounds: WindowBounds, cuts: Cuts) -> None:
        super().__init__(rule, bounds)
        self._op = rule.op
        self._cut, self._places, self._cuts = cut_of(rule.op, rule.threshold), places_of(rule), cuts
        self._place = int(np.searchsorted(cuts.values, self._cut))
        self._pages(bounds.arrivals)

    def _pages(self, points: Instants) -> Pages:
        pages: Pages = points.pages(self._cuts, lambda: self._made(points))
        return pages

    def _made(self, points: Instants) -> Pages:
        ranks = self._bounds.prefixes.ranks(self._cuts)
        low, high = class_bounds(ranks, points.edges(), self._places, self._bounds.prefixes.ordered)
        if points is self._bounds.arrivals:
            self._cuts.usual = usual_of(low, high, len(self._cuts.values))
        return Pages(points, low, high, self._cuts.kind, partial(selected, ranks, self._places))

    def _may(self, low: Any, high: Any) -> Flags:
        return np.asarray(high > self._place if self._rises else low <= self._place)

    def _hits(self, figures: Any, margin: float, points: Instants, block: slice) -> Flags:
        return np.asarray(figures > self._place if self._rises else figures <= self._place)

    def partial_windows(self, prefixes: PrefixColumns, entered: Int64, left: Any) -> Flags:
        first, last = int(np.min(left)), int(entered[-1])
        hit = reaching(prefixes.value[first:last], self._cut, entered - first, left - first, self._places, self._op)
        return np.asarray(hit & (entered - left >= self._need))


def selected(ranks: Ranks, places: Places, entered: Int64, left: Int64) -> tuple[Any, float]:
    """The classes of the elements that order statistics of windows are; they are exact."""
    return ranks.select(entered, left, places.all(entered - left)), 0.0


class RankedDelta:
    """An order statistic less a baseline that moves: the cut moves with it."""

    def __init__(self, rule: Rule, bounds: WindowBounds) -> None:
        self._op, self._need, self._bounds = rule.op, need_of(rule), bounds
        self._threshold, self._places = rule.threshold, places_of(rule)
        self.baseline: float | None = None

    def first(self, points: Instants, start: int, stop: int) -> int | None:
        return first_of(self._among(points, start, stop), start)

    def _among(self, points: Instants, start: int, stop: int) -> Flags:
        entered, left = points.windows(start, stop)
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
