"""Accumulators: decide an aggregate without sorting or summing anew (semantics.md section 4).

They follow a window as samples come and go and answer `value <op> threshold` exactly as `core.definitions` would,
whatever the history: where running floats can't tell for certain, integers do (`core.exact_sums`), which are followed,
too. Get their samples from `core.window`, are asked by `core.evidence`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from breaker_actors.core import exact_sums
from breaker_actors.core.definitions import (
    P95,
    failures,
    inner_kind,
    nearest,
    need_of,
    observations,
    percent_of,
    rank,
)
from breaker_actors.core.model import Counts, Flags, Float64, Op, Rule

TINY = 5e-324
EPS = 2.0**-52
HUGE = 2.0**960
"""From here on a sum of a window may overflow on the way."""
WIDE = 2.0**480
"""From here on sums of squares may overflow."""
CALM, RESTS_MAX = 8, 10_000
"""What is followed in case it is asked for is dropped after a calm evaluation for each CALM samples held, which pay for
making it anew. A sum rests so in windows of up to RESTS_MAX samples."""

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
    """sum and avg: the exact sum as two words, and as an integer what did not fit into them (0 in practice).

    While that is 0, the two words added are the correctly rounded sum. `_edge` counts the values that could lead to a
    breach by staying (avg) or by leaving (sum).

    An average of which no value comes near the threshold is no breach, whatever the sum: once that has been so for a
    while the sum is not followed any more (`_rests`), until a value comes near or somebody asks. Then it is made anew,
    which is paid by what was saved.
    """

    __slots__ = ("_bound", "_calm", "_compare", "_edge", "_high", "_is_avg", "_low", "_rest", "_rests", "_threshold",
                 "_upward")  # fmt: skip

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
        self._high = self._low = 0.0
        self._rest = self._edge = 0
        self._calm, self._rests = 0, False

    def breach(self, n: int, columns: Columns) -> bool:
        if self._is_avg and not self._edge:
            if not self._rests:
                self._calm += 1
                self._rests = n <= RESTS_MAX and self._calm * CALM >= n
            return False
        return self._compare(self.value(n, columns), self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        self._calm = 0
        if self._rests:
            self._rests, self._high, self._low = False, 0.0, 0.0
            self._rest = exact_sums.column_sum(columns.values(), columns.counts())
        if self._rest:
            return self._settled(n)
        exact = self._high + self._low
        return exact / n if self._is_avg else exact

    def may_breach(self, n: int) -> bool:
        return self._edge > 0

    def _settled(self, n: int) -> float:
        """As `value`; what is beside the words goes into them as far as it fits."""
        whole = exact_sums.units(self._high) + exact_sums.units(self._low) + self._rest
        total = exact_sums.total(whole)
        if abs(total) < HUGE:
            self._high, self._low, self._rest = exact_sums.words(whole)
        return exact_sums.mean(whole, n) if self._is_avg else total

    def _few(self, values: Sequence[float], sign: int) -> None:
        bound, high, rests = self._bound, self._high, self._rests
        least, most = min(values), max(values)
        if most >= bound if self._upward else least <= bound:
            self._edge += sign * sum([value >= bound if self._upward else value <= bound for value in values])
        if rests:
            return
        if not -HUGE < least <= most < HUGE:
            self._rest += sign * sum([exact_sums.units(value) for value in values if not -HUGE < value < HUGE])
            values = [value for value in values if -HUGE < value < HUGE]
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
        """low += error; what that rounds off is kept beside the words."""
        low = self._low
        new = low + error
        part = new - low
        self._low = new
        left = (low - (new - part)) + (error - part)
        if left:
            self._rest += exact_sums.units(left)

    def _many(self, values: Float64, counts: Counts, sign: int) -> None:
        """A batch enters as its own sum and what that sum rounded off, not value by value."""
        hit = values >= self._bound if self._upward else values <= self._bound
        self._edge += sign * int(np.count_nonzero(hit))
        if self._rests:
            return
        if values.max() >= HUGE or values.min() <= -HUGE:
            self._rest += sign * exact_sums.column_sum(values, counts)
            return
        first, second, rest = exact_sums.column_words(values, counts)
        self._plus(sign * first)
        if second:
            self._plus(sign * second)
            self._rest += sign * rest


class Deviation:
    """stddev: sums of offsets from a fixed point and of their squares, with bounds on their rounding, as a filter.

    Clear cases are decided from them. A value close to the threshold, or asked for, comes from the exact sums of the
    values and of their squares. These are made from the window, and followed in the place of the filter until the
    filter has been enough for a while.
    """

    __slots__ = ("_calm", "_compare", "_exact", "_moment", "_moment_error", "_origin", "_spread", "_spread_error",
                 "_threshold", "_wide")  # fmt: skip

    def __init__(self, op: Op, threshold: float) -> None:
        self._compare, self._threshold = COMPARE[op], threshold
        self.clear()

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._few(values, 1)

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None:
        self._few(values, -1)

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, 1)

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None:
        self._many(values, counts, -1)

    def clear(self) -> None:
        self._origin: float | None = None
        self._moment = self._moment_error = self._spread = self._spread_error = 0.0
        self._wide = self._calm = 0
        self._exact: tuple[int, int] | None = None

    def breach(self, n: int, columns: Columns) -> bool:
        if self._exact is None:
            verdict = self._filtered(n)
            if verdict is not None:
                return verdict
        calm = self._calm + 1
        verdict = self._compare(self.value(n, columns), self._threshold)
        if calm * CALM >= n and not self._wide:
            self._centre(n)
            if self._filtered(n) is verdict:
                self._exact = None
            calm = 0
        self._calm = calm
        return verdict

    def value(self, n: int, columns: Columns) -> float:
        self._calm = 0
        if self._exact is None:
            self._exact = exact_sums.column_moments(columns.values(), columns.counts())
        return exact_sums.deviation(*self._exact, n)

    def may_breach(self, n: int) -> bool:
        return True

    def _filtered(self, n: int) -> bool | None:
        """The verdict; None: too close to tell."""
        if self._wide:
            return None
        low, high = self._bounds(n)
        at_low = self._compare(low, self._threshold)
        return at_low if at_low is self._compare(high, self._threshold) else None

    def _bounds(self, n: int) -> tuple[float, float]:
        """An interval that holds what `deviation` would answer, rounding of that answer included."""
        first, second = self._moment, self._spread
        square = first * first / n
        centred = second - square
        error = self._spread_error + (2 * abs(first) + self._moment_error) * self._moment_error / n
        error += 8 * EPS * (second + square) + 1e-300
        low = math.sqrt(max(0.0, centred - error) / n) * (1 - 1e-12)
        high = math.sqrt(max(0.0, centred + error) / n) * (1 + 1e-12)
        return low, high

    def _centre(self, n: int) -> None:
        """The filter anew from the exact sums, around the mean."""
        assert self._exact is not None
        first, second = self._exact
        self._origin = exact_sums.mean(first, n)
        origin = exact_sums.units(self._origin)
        self._moment = exact_sums.total(first - n * origin)
        self._spread = exact_sums.total(second - 2 * origin * first + n * origin * origin >> exact_sums.PLACES)
        self._moment_error, self._spread_error = EPS * abs(self._moment), EPS * self._spread

    def _few(self, values: Sequence[float], sign: int) -> None:
        if self._exact is None:
            for value in values:
                self._one(value, sign)
            return
        self._follow(exact_sums.moments_of_few(values), sign)
        if not -WIDE < min(values) <= max(values) < WIDE:
            self._wide += sign * sum([not -WIDE < value < WIDE for value in values])

    def _follow(self, moments: tuple[int, int], sign: int) -> None:
        assert self._exact is not None
        first, second = self._exact
        self._exact = first + sign * moments[0], second + sign * moments[1]

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
        if self._exact is not None:
            self._follow(exact_sums.column_moments(values, counts), sign)
        if values.max() >= WIDE or values.min() <= -WIDE:
            wide = np.abs(values) >= WIDE
            self._wide += sign * int(np.count_nonzero(wide))
            values, counts = values[~wide], None if counts is None else counts[~wide]
        rows = len(values)
        if not rows or self._exact is not None:
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
