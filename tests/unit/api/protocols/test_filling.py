"""Histograms that are filled together are what each is alone."""

from __future__ import annotations

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from api.protocols.filling import Filling
from api.protocols.histograms import COUNT_MAX, Extent, Scheme, filled, packed_scheme
from api.protocols.points import Histogram

TINY = 5e-324
BOUNDS = st.floats(-9, 9) | st.sampled_from((0.0, -0.0, TINY, -TINY, 1.7e308, -1.7e308))
LIMITS = BOUNDS | st.sampled_from((float("nan"), float("inf"), float("-inf")))
SCHEMES = st.lists(BOUNDS, min_size=1, max_size=5, unique_by=lambda bound: bound + 0.0).map(sorted)
COUNTS = st.sampled_from((0, 0, 1, 7, COUNT_MAX))
POINTS = st.lists(st.tuples(st.integers(0, 2), st.lists(COUNTS, min_size=6, max_size=6), LIMITS, LIMITS), max_size=6)


@given(st.lists(SCHEMES, min_size=3, max_size=3), POINTS)
def test_together_and_alone(schemes: list[list[float]], points: list[tuple[int, list[int], float, float]]) -> None:
    found: dict[int, Histogram] = {}
    filling = Filling(found)
    alone: dict[int, object] = {}
    for row, (which, counts, low, high) in enumerate(points):
        bounds, counts = schemes[which], counts[: len(schemes[which]) + 1]
        scheme = packed_scheme(pack(f"<{len(bounds)}d", *bounds))
        number = filling.scheme(pack(f"<{len(bounds)}d", *bounds))
        assert isinstance(scheme, Scheme) == (number >= 0)
        if number >= 0:
            filling.add(row, number, pack(f"<{len(counts)}Q", *counts), pack("<cdcd", b"\x59", low, b"\x61", high))
            alone[row] = filled(enumerate(counts), scheme, Extent.of(low, high))
    filling.fill()
    assert repr(found) == repr(alone)
    assert filling.right


def test_counts_that_are_none_are_noticed() -> None:
    filling = Filling({})
    number = filling.scheme(pack("<d", 1.0))
    filling.add(0, number, pack("<2Q", 1, COUNT_MAX + 1), pack("<cdcd", b"\x59", 0.0, b"\x61", 9.0))
    filling.fill()
    assert not filling.right
    assert filling.scheme(pack("<2d", 2.0, 1.0)) == -1
