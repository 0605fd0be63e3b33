"""Order statistics by class equal those of the sorted window."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core.definitions import nearest, rank
from pipelines.replay.vectorized.breach_tests import least
from pipelines.replay.vectorized.order_statistics import Cuts, Places, Ranks, cut_of, reaching, rises

PERCENT = Fraction("66.7")
small = st.integers(0, 12).map(float)


@settings(deadline=None)
@given(
    st.lists(small, min_size=1, max_size=60),
    st.lists(small, min_size=1, max_size=9),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.data(),
)
def test_classes_of_windows(
    values: list[float], cuts: list[float], usual: tuple[int, int], data: st.DataObject
) -> None:
    """For any cuts, and whatever classes were seen last."""
    known = Cuts(cuts)
    low, high = (min(part, len(known.values)) for part in sorted(usual))
    known.usual = low, high
    entered = np.array([data.draw(st.integers(1, len(values))) for _ in range(8)])
    left = np.array([data.draw(st.integers(0, int(stop) - 1)) for stop in entered])
    column = np.array(values)
    found = Ranks(known, column).select(entered, left, Places(PERCENT).all(entered - left))
    for start, stop, place in zip(left, entered, found, strict=True):
        element = nearest(column[start:stop], rank(PERCENT, int(stop - start)))
        assert place == sum(element >= cut for cut in known.values)


@settings(deadline=None)
@given(st.lists(small, min_size=2, max_size=40), st.data())
def test_two_orders(values: list[float], data: st.DataObject) -> None:
    """Samples that leave in another order than they came."""
    came = np.array(values)
    order = np.array(data.draw(st.permutations(range(len(values)))))
    known = Cuts([2.0, 5.0, 5.5, 9.0])
    left = data.draw(st.integers(0, len(values) - 1))
    window = came[np.sort(order[left:])]
    place = rank(PERCENT, len(window))
    found = Ranks(known, came, came[order]).select(np.array([len(values)]), np.array([left]), np.array([place]))
    assert found[0] == sum(nearest(window, place) >= cut for cut in known.values)


@pytest.mark.parametrize("op", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("threshold", [0.0, -0.0, 3.0, 1e308, -1e308, 0.1])
def test_a_cut_decides_as_the_value_itself(op: str, threshold: float) -> None:
    """Reaching the cut is what the comparison says, right at the threshold too."""
    compare = {"gt": np.greater, "gte": np.greater_equal, "lt": np.less, "lte": np.less_equal}[op]
    for value in (threshold, np.nextafter(threshold, np.inf), np.nextafter(threshold, -np.inf), 0.0, 7.0):
        assert ((value >= cut_of(op, threshold)) == rises(op)) == compare(value, threshold)


def test_reaching() -> None:
    values = np.array([1.0, 5.0, 3.0, 9.0])
    hit = reaching(values, cut_of("gt", 4.0), np.array([1, 2, 4]), 0, Places(Fraction(100)), "gt")
    assert hit.tolist() == [False, True, True]


def test_places_of_a_long_percentile() -> None:
    """A percentile whose fraction does not fit into 64 bits is counted in whole numbers all the same."""
    percent = Fraction("33.333333333333336")
    n = np.array([1, 2, 3, 1_000_000, 3])
    assert Places(percent).all(n).tolist() == [rank(percent, int(one)) for one in n]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_least(bound: float) -> None:
    """The least float that reaches a bound is the bound; none reaches infinity."""
    assert least(lambda value: value >= bound) == bound
    assert least(lambda value: False) == np.inf
