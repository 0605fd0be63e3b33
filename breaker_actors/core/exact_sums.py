"""Exact sums of floats and of their squares, as Python integers.

Every finite float is a whole multiple of 2**-1074, its square one of 2**-2148: sums are kept in these units and take
what comes and what leaves without any rounding, at a cost that does not grow with the number of samples. An answer is
rounded once. Used by `core.definitions` and by the accumulators that follow a window.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np

from breaker_actors.core.model import Counts, Float64, Int64

FLOAT_MAX = float(np.finfo(np.float64).max)
PLACES = 1074
"""Of a float, behind the binary point: the unit is 2**-PLACES."""
ONE = 1 << PLACES
FEW, FSUM_MAX = 64, 256
"""Up to so many values a loop beats numpy, and `math.fsum` does."""
SCATTERED = 4
"""Values that differ in size so much that there is a place for each few: a loop beats numpy again."""
ROWS = 1 << 16
"""Columns are summed in pieces: so many numbers below 2**37 add up to less than 2**53, in floats without rounding."""
_FINER = 52
"""Mantissas of columns have 53 digits, those of the smallest floats, too: places are counted from 2**-(PLACES + 52)."""


def units(value: float) -> int:
    """A finite float in units."""
    above, below = value.as_integer_ratio()
    return above << PLACES + 1 - below.bit_length()


def moments_of_few(values: Sequence[float], counts: Sequence[int] | None = None) -> tuple[int, int]:
    """The sums of finite floats and of their squares, in units and in squares of units."""
    first = second = 0
    for value, n in zip(values, counts or repeat(1), strict=False):
        above, below = value.as_integer_ratio()
        shift = PLACES + 1 - below.bit_length()
        first += above * n << shift
        second += above * above * n << 2 * shift
    return first, second


def column_sum(values: Float64, counts: Counts = None) -> int:
    """The sum of a column in units, each value as many times as its count says."""
    return sum(_sum_of_piece(*piece) for piece in _pieces(values, counts))


def _sum_of_piece(values: Float64, counts: Counts) -> int:
    column = _column(values, counts)
    if column is None:
        each = map(units, values.tolist())
        return sum(each) if counts is None else sum(map(operator.mul, each, counts.tolist()))
    upper, rest = _whole(column.mantissa * 2.0**27)
    return column.summed((rest * 2.0**26, upper), 26, 1) >> _FINER


def column_moments(values: Float64, counts: Counts = None) -> tuple[int, int]:
    """As `moments_of_few`, of a column, each value as many times as its count says."""
    first = second = 0
    for piece in _pieces(values, counts):
        one, two = _moments_of_piece(*piece)
        first, second = first + one, second + two
    return first, second


def _moments_of_piece(values: Float64, counts: Counts) -> tuple[int, int]:
    column = _column(values, counts)
    if column is None:
        return moments_of_few(values.tolist(), None if counts is None else counts.tolist())
    upper, rest = _whole(column.mantissa * 2.0**17)
    middle, rest = _whole(rest * 2.0**18)
    lower = rest * 2.0**18
    first = column.summed((lower, middle, upper), 18, 1)
    squares = (lower * lower, 2 * middle * lower, 2 * upper * lower + middle * middle, 2 * upper * middle,
               upper * upper)  # fmt: skip
    return first >> _FINER, column.summed(squares, 18, 2) >> 2 * _FINER


def _pieces(values: Float64, counts: Counts) -> Iterator[tuple[Float64, Counts]]:
    for start in range(0, len(values), ROWS):
        yield values[start : start + ROWS], None if counts is None else counts[start : start + ROWS]


def column_words(values: Float64, counts: Counts = None) -> tuple[float, float, int]:
    """The sum of a column as two floats, and in units what does not fit into them (0 in practice). Raises OverflowError
    where the sum is beyond the floats."""
    if counts is None and len(values) <= FSUM_MAX:
        left = values.tolist()
        first = math.fsum(left)
        left.append(-first)
        second = math.fsum(left)
        left.append(-second)
        if not second or not math.fsum(left):
            return first, second, 0
    return words(column_sum(values, counts))


def words(whole: int) -> tuple[float, float, int]:
    """A sum given in units, as `column_words` gives it."""
    first = whole / ONE
    whole -= units(first)
    second = whole / ONE
    return first, second, whole - units(second)


class _Column:
    """Floats as mantissa * 2**(53 + place + low) of the finer units, with counts below 2**24; the mantissas are of 53
    digits and below 1. `held`: the places that there are."""

    __slots__ = ("_counts", "_low", "_place", "held", "mantissa")

    def __init__(self, values: Float64, counts: Counts) -> None:
        self.mantissa, exponent = np.frexp(values)
        self._place = exponent.astype(np.int64)
        self._low = int(self._place.min())
        self._place -= self._low
        self._low += PLACES - 1
        self.held = np.flatnonzero(np.bincount(self._place))
        self._counts = counts

    def summed(self, parts: Sequence[Float64], bits: int, power: int) -> int:
        """The sum of all parts * counts, each part with its place (to a power) and `bits` more than the one before.
        Parts are whole numbers below 2**37."""
        sums = [0] * len(self.held)
        for i, part in enumerate(parts):
            for shift, found in self._binned(part):
                sums = [one + (int(more) << shift + bits * i) for one, more in zip(sums, found, strict=True)]
        steps = self.held.tolist()
        return sum(one << power * step for one, step in zip(sums, steps, strict=True)) << power * self._low

    def _binned(self, part: Float64) -> list[tuple[int, list[float]]]:
        """By place that is held: sums, and how far they are shifted."""
        if self._counts is None:
            return [(0, self._at_places(part))]
        each = part.astype(np.int64) * self._counts
        return [(30, self._at_places(each >> 30)), (0, self._at_places(each & (1 << 30) - 1))]

    def _at_places(self, part: Float64 | Int64) -> list[float]:
        found: list[float] = np.bincount(self._place, part)[self.held].tolist()
        return found


def _column(values: Float64, counts: Counts) -> _Column | None:
    """None: a loop over the values costs less."""
    if len(values) <= FEW:
        return None
    column = _Column(values, counts)
    return None if len(column.held) * SCATTERED > len(values) else column


def _whole(numbers: Float64) -> tuple[Float64, Float64]:
    """The next whole numbers below, and what is left."""
    whole = np.floor(numbers)
    return whole, numbers - whole


# -- answers, rounded once --------------------------------------------------------------------------------------------


def total(first: int) -> float:
    """A sum given in units, kept within the finite floats."""
    try:
        return first / ONE
    except OverflowError:
        return FLOAT_MAX if first > 0 else -FLOAT_MAX


def mean(first: int, n: int) -> float:
    """The rounded sum / n; where the sum is beyond the floats, the exact quotient rounded once."""
    try:
        return first / ONE / n
    except OverflowError:
        return first / (n << PLACES)


def deviation(first: int, second: int, n: int) -> float:
    """The population standard deviation of n values, rounded once, from their sums: sqrt(n * second - first**2) / n."""
    spread = n * second - first * first
    if not spread:
        return 0.0
    shift = (112 + 2 * n.bit_length() - spread.bit_length()) // 2  # 55 digits of the root or more
    if shift >= 0:
        square, left = divmod(spread << 2 * shift, n * n)
    else:
        square, left = divmod(spread, n * n << -2 * shift)
    root = math.isqrt(square)
    root = 2 * root + (left > 0 or root * root != square)  # odd: the root lies above what its digits say
    places = PLACES + 1 + shift
    return root / (1 << places) if places >= 0 else float(root << -places)
