"""Breach or not, for the windows of many instants at once and one rule: what `core.evidence` says of each.

Where figures can't tell for certain, the definition decides. A window with fewer samples than needed is no breach.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from breaker_actors.core.aggregate import COMPARE
from breaker_actors.core.exact import P95, clamp, exact_value, inner_kind, need_of, percent_of
from breaker_actors.core.model import Flags, Int64, Rule
from pipelines.fast.figures import RANKED, bounds, test_of
from pipelines.fast.flows import Flow
from pipelines.fast.ranks import Cuts, Places, cut_of, reaching, rises
from pipelines.fast.tracks import Points, Track


class Judge(Protocol):
    """Windows are told as (entered, left) of a flow."""

    baseline: float | None
    """Of a delta: what the aggregate is compared with."""

    def among(self, points: Points, start: int, stop: int) -> Flags:
        """Whole windows: points start..stop-1 of these."""
        ...

    def young(self, flow: Flow, entered: Int64, left: Any) -> Flags:
        """Windows of this flow at arrivals in a row."""
        ...


def judge_for(rule: Rule, track: Track, cuts: Cuts | None) -> Judge:
    """The judge of a rule. `cuts`: of all rules that share its windows and its order statistic.

    What it needs for all arrivals is worked out now; raises TooWide."""
    if rule.kind == "delta":
        return RankedDelta(rule, track) if inner_kind(rule) in RANKED else Valued(rule, track)
    return Valued(rule, track) if cuts is None else Ranked(rule, track, cuts)


def places_of(rule: Rule) -> Places:
    """Which element the order statistic of a rule is."""
    kind = inner_kind(rule)
    if kind in ("max", "min"):
        return Places(Fraction(100) if kind == "max" else None)
    return Places(percent_of(rule) if kind == "percentile" else P95)


class Valued:
    """A kind whose value is a float: compare it, or the interval it lies in. For delta: less the baseline."""

    def __init__(self, rule: Rule, track: Track) -> None:
        self._kind, self._need, self._track = inner_kind(rule), need_of(rule), track
        self._test, self._compare, self._threshold = test_of(rule.op, rule.threshold), COMPARE[rule.op], rule.threshold
        self._is_delta = rule.kind == "delta"
        self.baseline: float | None = None
        self._figures(track.arrivals)

    def _figures(self, points: Points) -> tuple[Any, Any]:
        kind, flow = self._kind, self._track.flow
        return points.figures(kind, lambda entered, left: bounds(kind, flow, entered, left), 1 + (kind == "stddev"))

    def among(self, points: Points, start: int, stop: int) -> Flags:
        block = slice(start, stop)
        low, high = self._figures(points)
        hit = self._hit(low[block])
        if high is not low and (unsure := hit != self._hit(high[block])).any():
            self._settle(hit, unsure, self._track.flow, points.entered[block], points.left[block])
        enough = points.enough(self._need)
        return hit if enough is None else hit & enough[block]

    def young(self, flow: Flow, entered: Int64, left: Any) -> Flags:
        low, high = bounds(self._kind, flow, entered, left)
        hit = self._hit(low)
        if high is not low and (unsure := hit != self._hit(high)).any():
            self._settle(hit, unsure, flow, entered, left)
        return np.asarray(hit & (entered - left >= self._need))

    def _hit(self, value: Any) -> Flags:
        if not self._is_delta:
            return self._test(value)
        if self.baseline is None:
            return np.zeros(len(value), np.bool_)
        return self._test(value - self.baseline)

    def _settle(self, hit: Flags, unsure: Flags, flow: Flow, entered: Int64, left: Any) -> None:
        """By the definition, window by window."""
        left = np.broadcast_to(left, entered.shape)
        unsure &= entered - left >= self._need
        for i in np.flatnonzero(unsure).tolist():
            value = exact_value(self._kind, P95, *flow.values(int(entered[i]), int(left[i])))
            hit[i] = self._compare(clamp(value - (self.baseline or 0.0)), self._threshold)


class Ranked:
    """An order statistic: its class against the place of the rule's cut."""

    def __init__(self, rule: Rule, track: Track, cuts: Cuts) -> None:
        self.baseline: float | None = None
        self._op, self._need, self._track = rule.op, need_of(rule), track
        self._cut, self._places, self._cuts = cut_of(rule.op, rule.threshold), places_of(rule), cuts
        self._place = int(np.searchsorted(cuts.values, self._cut))
        classes = self._classes(track.arrivals)
        cuts.usual = int(classes.min()), int(classes.max())

    def _classes(self, points: Points) -> npt.NDArray[Any]:
        classes, _ = points.figures(self._cuts, self._select, 1, self._cuts.kind)
        return np.asarray(classes)

    def _select(self, entered: Int64, left: Int64) -> tuple[Any, Any]:
        classes = self._track.flow.ranks(self._cuts).select(entered, left, self._places.all(entered - left))
        return classes, classes

    def among(self, points: Points, start: int, stop: int) -> Flags:
        classes = self._classes(points)[start:stop]
        hit = classes > self._place if rises(self._op) else classes <= self._place
        enough = points.enough(self._need)
        return hit if enough is None else hit & enough[start:stop]

    def young(self, flow: Flow, entered: Int64, left: Any) -> Flags:
        first, last = int(np.min(left)), int(entered[-1])
        hit = reaching(flow.value[first:last], self._cut, entered - first, left - first, self._places, self._op)
        return np.asarray(hit & (entered - left >= self._need))


class RankedDelta:
    """An order statistic less a baseline that moves: the cut moves with it."""

    def __init__(self, rule: Rule, track: Track) -> None:
        self._op, self._need, self._track = rule.op, need_of(rule), track
        self._threshold, self._places = rule.threshold, places_of(rule)
        self.baseline: float | None = None

    def among(self, points: Points, start: int, stop: int) -> Flags:
        entered, left = points.entered[start:stop], points.left[start:stop]
        flow = self._track.flow
        if flow.ordered or self.baseline is None:
            return self.young(flow, entered, left)
        cut = self._cut(self.baseline)
        n = entered - left
        came, gone = np.cumsum(flow.value >= cut), np.cumsum(flow.gone_value >= cut)
        above = np.append(0, came)[entered] - np.append(0, gone)[left]
        hit = (above > n - self._places.all(n)) == rises(self._op)
        return np.asarray(hit & (n >= self._need))

    def young(self, flow: Flow, entered: Int64, left: Any) -> Flags:
        if self.baseline is None or not len(entered):
            return np.zeros(len(entered), np.bool_)
        first, last = int(np.min(left)), int(entered[-1])
        cut = self._cut(self.baseline)
        hit = reaching(flow.value[first:last], cut, entered - first, left - first, self._places, self._op)
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
