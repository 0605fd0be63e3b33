"""Exact sums: of any finite floats, what fractions give; an answer is rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core import exact_sums as sums
from breaker_actors.core.model import COUNT_MAX
from tests.support import oracle

finite = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, sums.FLOAT_MAX, -sums.FLOAT_MAX, 0.1, 2.0]),
    st.builds(lambda sign, power: sign * 2.0**power, st.sampled_from([1.0, -1.0, 1.1]), st.integers(-1074, 1022)),
)
columns = st.lists(st.tuples(finite, st.integers(1, COUNT_MAX)), min_size=1, max_size=sums.FEW + 30)


def fractions(rows: list[tuple[float, int]]) -> tuple[Fraction, Fraction]:
    first = sum((Fraction(value) * n for value, n in rows), Fraction(0))
    return first, sum((Fraction(value) ** 2 * n for value, n in rows), Fraction(0))


@pytest.mark.parametrize("counted", [True, False])
@given(rows=columns)
@settings(max_examples=200, deadline=None)
def test_sums_are_those_of_fractions(counted: bool, rows: list[tuple[float, int]]) -> None:
    """Of columns, short or long, with and without counts."""
    rows = rows if counted else [(value, 1) for value, _ in rows]
    values, counts = np.array([value for value, _ in rows]), np.array([n for _, n in rows]) if counted else None
    first, second = fractions(rows)
    assert Fraction(sums.column_sum(values, counts), sums.ONE) == first
    found = sums.column_moments(values, counts)
    assert (Fraction(found[0], sums.ONE), Fraction(found[1], sums.ONE**2)) == (first, second)
    n = sum(n for _, n in rows)
    assert sums.total(sums.column_sum(values, counts)) == oracle.to_float(first)
    assert sums.deviation(*found, n) == oracle.root(second / n - (first / n) ** 2)


@given(rows=columns)
@settings(max_examples=100, deadline=None)
def test_two_words_and_the_rest(rows: list[tuple[float, int]]) -> None:
    """A sum as two floats and what they do not hold; without huge values it is never beyond the floats."""
    rows = [(value, n) for value, n in rows if abs(value) < 2.0**960] or [(0.1, 1)]
    values = np.array([value for value, _ in rows])
    for counts, held in ((np.array([n for _, n in rows]), rows), (None, [(value, 1) for value, _ in rows])):
        high, low, rest = sums.column_words(values, counts)
        assert Fraction(high) + Fraction(low) + Fraction(rest, sums.ONE) == fractions(held)[0]


def test_more_rows_than_are_summed_at_once() -> None:
    """Pieces of a long column add up, with the largest mantissas and counts there are."""
    rows = 2 * sums.ROWS + 5
    values = np.full(rows, sums.FLOAT_MAX)
    values[::2] = -0.1
    counts = np.full(rows, COUNT_MAX)
    few, many = Fraction(sums.FLOAT_MAX), Fraction(-0.1)
    for each, n in ((None, 1), (counts, COUNT_MAX)):
        lows = rows // 2 + 1
        first, second = sums.column_moments(values, each)
        assert Fraction(first, sums.ONE) == n * (few * (rows - lows) + many * lows)
        assert Fraction(second, sums.ONE**2) == n * (few**2 * (rows - lows) + many**2 * lows)
        assert sums.column_sum(values, each) == first


@given(st.lists(finite, min_size=1, max_size=6), st.integers(1, 1000))
@settings(max_examples=300, deadline=None)
def test_a_deviation_is_rounded_once(values: list[float], times: int) -> None:
    """The float nearest to the root of the exact variance, as beyond the floats' squares so below them."""
    first, second = sums.moments_of_few(values, [times] * len(values))
    assert sums.deviation(first, second, times * len(values)) == oracle.deviation(values)


@pytest.mark.parametrize(
    ("values", "deviation"),
    [
        ([0.0, 5e-324], 0.0),  # half of the smallest float: to even
        ([0.0, 1.5e-323], 1e-323),
        ([sums.FLOAT_MAX, -sums.FLOAT_MAX], sums.FLOAT_MAX),
        ([1e9, 1e9 + 2], 1.0),
        ([0.1] * 3, 0.0),
    ],
)
def test_deviations(values: list[float], deviation: float) -> None:
    """At the ends of the floats, and where a rounded mean would show."""
    assert sums.deviation(*sums.moments_of_few(values), len(values)) == deviation
