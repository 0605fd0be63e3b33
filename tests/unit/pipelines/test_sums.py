"""Sums of windows as differences of prefix sums equal the definition: the exact sum, rounded once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.replay.vectorized.exact_sums import ExactSums, TooWide

numbers = st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-9)
tricky = st.sampled_from([2.0**60, -(2.0**60), 2.0**54 - 1, 1.0, -1.0, 0.5, 2.0**-20, 3.0, 2.0**8, -(2.0**7), 0.1])
decimals = st.integers(-(10**6), 10**6).map(lambda n: n / 1000)


@settings(deadline=None)
@given(st.one_of(*(st.lists(one, min_size=1, max_size=40) for one in (numbers, tricky, decimals))), st.data())
def test_every_window(values: list[float], data: st.DataObject) -> None:
    """Whatever cancels, whatever is rounded: the same float as math.fsum, for arrays and for a single window."""
    entered = np.array([data.draw(st.integers(1, len(values))) for _ in range(10)])
    left = np.array([data.draw(st.integers(0, int(stop) - 1)) for stop in entered])
    sums = ExactSums(np.array(values))
    expected = [math.fsum(values[start:stop]) for start, stop in zip(left, entered, strict=True)]
    assert sums.total(entered, left).tolist() == expected
    assert [sums.one(int(stop), int(start)) for start, stop in zip(left, entered, strict=True)] == expected


def test_two_orders() -> None:
    """What enters in one order and leaves in another."""
    came, gone = np.array([3.0, 0.1, 2.0]), np.array([0.1, 2.0, 3.0])
    assert ExactSums(came, gone).total(np.array([2, 3, 3]), np.array([0, 1, 3])).tolist() == [3.1, 5.0, 0.0]


@pytest.mark.parametrize("values", [[1e300, 1.0], [1e16, 1e-30], [1e-300], [1e300]])
def test_too_wide_is_refused(values: list[float]) -> None:
    with pytest.raises(TooWide):
        ExactSums(np.array(values))


def test_lossy_says_how_much_is_lost() -> None:
    """What is cut off a value is below `lost`; nothing is lost that fits."""
    values = np.array([1e16, 1e-30, 3e-40])
    sums = ExactSums(values, lossy=True)
    assert 0 < sums.lost < 1e-16
    assert abs(float(sums.total(3, 1)) - 1e-30) <= 2 * sums.lost
    assert ExactSums(values[:1], lossy=True).lost == 0
    tiny = ExactSums(np.array([1e-300]), lossy=True)
    assert (float(tiny.total(1, 0)), tiny.lost) == (0.0, 1e-300)
