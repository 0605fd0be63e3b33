"""Accumulators: decide an aggregate without sorting or summing anew (semantics.md section 4).

They follow a window as samples come and go and answer `value <op> threshold` exactly as the definitions of `core.exact`
would, whatever the history: where running figures can't tell for certain, they recompute from the window's columns. Get
their samples from `core.window`, are asked by `core.evidence`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from breaker_actors.core.definitions import (
    HUGE,
    P95,
    WIDE,
    deviation,
    failures,
    inner_kind,
    mean,
    nearest,
    need_of,
    observations,
    percent_of,
    rank,
    terms,
    total,
)
from breaker_actors.core.model import Counts, Flags, Float64, Op, Rule

TINY = 5e-324
EPS = 2.0**-52
CALM, RESTS_MAX = 8, 10_000
"""A sum rests after a calm evaluation for each CALM samples held, in windows of up to RESTS_MAX samples: whoever asks
for its value has all of them added."""

COMPARE: dict[Op, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "lt": operator.lt,
    "gte": operator.ge,
    "lte": operator.le,
}


class Columns(Protocol):
    """What an accumulator may ask its window for."""

    def values(self) -> Float64: ...

    def flags(self) -> Flags: ...

    def counts(self) -> Counts: ...


class Accumulator(Protocol):
    """Follows a window; `breach` and `value` are only asked while it holds observations (n > 0). `add_few` and
    `drop_few` are of some samples that stand for one each, for which a loop beats numpy; `ok`: 0 is not ok."""

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def clear(self) -> None: ...

    def breach(self, n: int, columns: Columns) -> bool: ...

    def value(self, n: int, columns: Columns) -> float: ...

    def may_breach(self, n: int) -> bool:
        """May the value come to breach when old samples leave? False only when that is certain not to happen."""
        ...


class Count:
    """count: the window knows n, nothing to follow."""

    __slots__ = ("_compare", "_need", "_threshold")

    def __init__(self, op: Op, threshold: float, need: int) -> None:
        self._compare, self._threshold, self._need = COMPARE[op], threshold, need

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def clear(self) -> None: ...

    def breach(self, n: int, columns: Columns) -> bool:
        return self._compare(float(n), self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        return float(n)

    def may_breach(self, n: int) -> bool:
        return n > self._need and self._compare(float(self._need), self._threshold)


class ErrorRate:
    """error_rate: the number of observations that are not ok."""

    __slots__ = ("_compare", "_errors", "_threshold")

    def __init__(self, op: Op, threshold: float) -> None:
        self._compare, self._threshold = COMPARE[op], threshold
        self._errors = 0

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._errors += ok.count(0)

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._errors -= ok.count(0)

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._errors += failures(ok, counts)

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._errors -= failures(ok, counts)

    def clear(self) -> None:
        self._errors = 0

    def breach(self, n: int, columns: Columns) -> bool:
        return self._compare(self._errors / n, self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        return self._errors / n

    def may_breach(self, n: int) -> bool:
        low = 0.0 if self._errors < n else 1.0
        high = 1.0 if self._errors else 0.0
        return self._compare(low, self._threshold) or self._compare(high, self._threshold)


class Rank:
    """max, min, p95, percentile: how many values lie above the threshold (or on it, where the op needs that).

    With r the rank of the element asked for: it exceeds T exactly when at least n - r + 1 values exceed T.
    """

    __slots__ = ("_above", "_beyond", "_from_threshold", "_percent", "_threshold")

    def __init__(self, op: Op, threshold: float, percent: Fraction | None) -> None:
        self._threshold = threshold
        self._from_threshold = op in ("gte", "lt")
        self._beyond = op in ("gt", "gte")
        self._percent = percent
        self._above = 0

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        if max(values) >= self._threshold:
            self._above += self._few(values)

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        if max(values) >= self._threshold:
            self._above -= self._few(values)

    def _few(self, values: Sequence[float]) -> int:
        threshold = self._threshold
        if self._from_threshold:
            return sum([value >= threshold for value in values])
        return sum([value > threshold for value in values])

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._above += self._exceeding(values, counts)

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._above -= self._exceeding(values, counts)

    def clear(self) -> None:
        self._above = 0

    def breach(self, n: int, columns: Columns) -> bool:
        if not self._above:
            return not self._beyond
        return (self._above > n - self._place(n)) is self._beyond

    def value(self, n: int, columns: Columns) -> float:
        return nearest(columns.values(), self._place(n), columns.counts())

    def may_breach(self, n: int) -> bool:
        return (self._above if self._beyond else n - self._above) > 0

    def _place(self, n: int) -> int:
        percent = self._percent
        return rank(percent, n) if percent is not None else 1

    def _exceeding(self, values: Float64, counts: Counts) -> int:
        hit = values >= self._threshold if self._from_threshold else values > self._threshold
        return int(np.count_nonzero(hit)) if counts is None else int(counts[hit].sum())


class Total:
    """sum and avg: the exact sum as two words, with a bound on what did not fit into them (0 in practice).

    While that bound is 0, the two words added are the correctly rounded sum, which is what fsum gives. `_edge` counts
    the values that could lead to a breach by staying (avg) or by leaving (sum).

    An average of which no value comes near the threshold is no breach, whatever the sum: once that has been so for a
    while the sum is not followed any more (`_rests`), until a value comes near. Then it is made anew, which is paid by
    what was saved.
    """

    __slots__ = (
        "_bound", "_calm", "_compare", "_edge", "_high", "_huge", "_is_avg", "_lost", "_low", "_rests", "_threshold",
        "_upward",
    )  # fmt: skip

    def __init__(self, op: Op, threshold: float, is_avg: bool) -> None:
        self._compare, self._threshold, self._is_avg = COMPARE[op], threshold, is_avg
        rising = op in ("gt", "gte")
        self._upward = rising is is_avg
        self._bound = self._edge_bound(rising)
        self.clear()

    def _edge_bound(self, rising: bool) -> float:
        """avg: only values around or beyond T can lift it past T, a margin covers the rounding of sum and quotient.
        sum: it rises past T only when negative values leave, and falls only when positive ones do."""
        if self._is_avg:
            margin = abs(self._threshold) * 1e-15 + 1e-320
            return self._threshold - margin if rising else self._threshold + margin
        return -TINY if rising else TINY

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._few(values, 1)

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._few(values, -1)

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, 1)

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, -1)

    def clear(self) -> None:
        self._high = self._low = self._lost = 0.0
        self._huge = self._edge = 0
        self._calm, self._rests = 0, False

    def breach(self, n: int, columns: Columns) -> bool:
        if not self._huge:
            if self._is_avg and not self._edge:
                if not self._rests:
                    self._calm += 1
                    self._rests = n <= RESTS_MAX and self._calm * CALM >= n
                return False
            self._calm = 0
            if self._rests:
                return self._compare(self._recount(n, columns), self._threshold)
            if not self._lost:
                return self._decide(self._high + self._low, n)
            low, high = self._bounds()
            verdict = self._decide(low, n)
            if verdict is self._decide(high, n):
                return verdict
        return self._compare(self._recount(n, columns), self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        if self._rests:
            return mean(columns.values(), columns.counts())
        if self._huge or self._lost:
            return self._recount(n, columns)
        exact = self._high + self._low
        return exact / n if self._is_avg else exact

    def may_breach(self, n: int) -> bool:
        return self._edge > 0 or self._huge > 0

    def _bounds(self) -> tuple[float, float]:
        """An interval around the sum. The words are added first: they may cancel, and would swallow what was lost."""
        near, lost = self._high + self._low, self._lost * (1 + 1e-9)
        low = math.nextafter(math.nextafter(near, -math.inf) - lost, -math.inf)
        return low, math.nextafter(math.nextafter(near, math.inf) + lost, math.inf)

    def _decide(self, exact: float, n: int) -> bool:
        return self._compare(exact / n if self._is_avg else exact, self._threshold)

    def _few(self, values: Sequence[float], sign: int) -> None:
        bound, high, rests = self._bound, self._high, self._rests
        least, most = min(values), max(values)
        if most >= bound if self._upward else least <= bound:
            self._edge += sign * sum([value >= bound if self._upward else value <= bound for value in values])
        if not -HUGE < least <= most < HUGE:
            self._huge += sign * sum([not -HUGE < value < HUGE for value in values])
            values = [value for value in values if -HUGE < value < HUGE]
        if rests:
            return
        for value in values:
            word = sign * value
            new = high + word  # as in `_plus`
            part = new - high
            error = (high - (new - part)) + (word - part)
            high = new
            if error:
                self._keep(error)
        self._high = high

    def _plus(self, value: float) -> None:
        """high + low += value; each step splits its rounding error off exactly (two-sum)."""
        high = self._high
        new = high + value
        part = new - high
        error = (high - (new - part)) + (value - part)
        self._high = new
        if error:
            self._keep(error)

    def _keep(self, error: float) -> None:
        """low += error; what that rounds off is lost, and known to be."""
        low = self._low
        new = low + error
        part = new - low
        self._low = new
        lost = (low - (new - part)) + (error - part)
        if lost:
            self._lost += abs(lost)

    def _many(self, values: Float64, counts: Counts, sign: int) -> None:
        """A batch enters as its own sum and what that sum rounded off, not value by value."""
        hit = values >= self._bound if self._upward else values <= self._bound
        self._edge += sign * int(np.count_nonzero(hit))
        if values.max() >= HUGE or values.min() <= -HUGE:
            huge = np.abs(values) >= HUGE
            self._huge += sign * int(np.count_nonzero(huge))
            values, counts = values[~huge], None if counts is None else counts[~huge]
        if self._rests:
            return
        words = terms(values, counts)
        for _ in range(2):
            word = math.fsum(words)
            if not word:
                return
            self._plus(sign * word)
            words.append(-word)
        self._lost += abs(math.fsum(words)) * (1 + EPS)

    def _recount(self, n: int, columns: Columns) -> float:
        """From the definition; the running words start anew from it unless huge values are about."""
        values, counts = columns.values(), columns.counts()
        if not self._huge:
            self.clear()
            self._many(values, counts, 1)
        return mean(values, counts) if self._is_avg else total(values, counts)


class Deviation:
    """stddev: sums of offsets from a fixed point and of their squares, with bounds on their rounding, as a filter.

    Clear cases are decided from them; a value close to the threshold is recomputed by the two-pass definition.
    """

    __slots__ = ("_compare", "_held", "_loose", "_moment", "_moment_error", "_origin", "_spread", "_spread_error",
                 "_threshold", "_wide")  # fmt: skip

    def __init__(self, op: Op, threshold: float) -> None:
        self._compare, self._threshold = COMPARE[op], threshold
        self.clear()

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        for value in values:
            self._one(value, 1)

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        for value in values:
            self._one(value, -1)

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, 1)

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, -1)

    def clear(self) -> None:
        self._origin: float | None = None
        self._moment = self._moment_error = self._spread = self._spread_error = 0.0
        self._wide = 0

    def breach(self, n: int, columns: Columns) -> bool:
        low, high = self._bounds(n)
        at_low = self._compare(low, self._threshold)
        if at_low is self._compare(high, self._threshold):
            return at_low
        values, counts = columns.values(), columns.counts()
        if not self._wide:
            self.clear()
            self._origin = mean(values, counts)
            self._many(values, counts, 1)
        return self._compare(deviation(values, counts), self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        return deviation(columns.values(), columns.counts())

    def may_breach(self, n: int) -> bool:
        return True

    def _bounds(self, n: int) -> tuple[float, float]:
        """An interval that holds what `deviation` would answer, rounding of that answer included."""
        if self._wide:
            return 0.0, math.inf
        first, second = self._moment, self._spread
        square = first * first / n
        centred = second - square
        error = self._spread_error + (2 * abs(first) + self._moment_error) * self._moment_error / n
        error += 8 * EPS * (second + square) + 1e-300
        centre = abs(self._origin or 0.0) + abs(first / n)
        low = math.sqrt(max(0.0, centred - error) / n) * (1 - 1e-12)
        high = math.sqrt(max(0.0, centred + error) / n + (8 * EPS * centre) ** 2) * (1 + 1e-12)
        return low, high

    def _one(self, value: float, sign: int) -> None:
        if abs(value) >= WIDE:
            self._wide += sign
            return
        if self._origin is None:
            self._origin = value
        off = value - self._origin
        self._moment += sign * off
        self._moment_error += EPS * (abs(off) + abs(self._moment))
        self._spread += sign * off * off
        self._spread_error += 4 * EPS * (off * off + abs(self._spread))

    def _many(self, values: Float64, counts: Counts, sign: int) -> None:
        if values.max() >= WIDE or values.min() <= -WIDE:
            wide = np.abs(values) >= WIDE
            self._wide += sign * int(np.count_nonzero(wide))
            values, counts = values[~wide], None if counts is None else counts[~wide]
        rows = len(values)
        if not rows:
            return
        if self._origin is None:
            self._origin = float(values[0])
        off = values - self._origin
        each = off if counts is None else off * counts  # the product is rounded once more than a sum of offsets
        n, steps = observations(rows, counts), rows if counts is None else rows + 2
        squares = float(off @ each)
        self._moment += sign * float(each.sum())
        self._moment_error += steps * EPS * (math.sqrt(n * squares) * (1 + steps * EPS) + abs(self._moment))
        self._spread += sign * squares
        self._spread_error += 4 * steps * EPS * (squares + abs(self._spread))


def accumulator_for(rule: Rule) -> Accumulator:
    """The accumulator that follows a window of this rule."""
    kind, op, threshold = inner_kind(rule), rule.op, rule.threshold
    match kind:
        case "error_rate":
            return ErrorRate(op, threshold)
        case "avg" | "sum":
            return Total(op, threshold, kind == "avg")
        case "stddev":
            return Deviation(op, threshold)
        case "max" | "min":
            return Rank(op, threshold, Fraction(100) if kind == "max" else None)
        case "p95":
            return Rank(op, threshold, P95)
        case "percentile":
            return Rank(op, threshold, percent_of(rule))
        case _:
            return Count(op, threshold, need_of(rule))
