"""Buckets of every protocol to one kind of histogram.

A bucket is what lies between its bounds, both clipped to min and max where these are given. Its value is the middle, of
exponential buckets the geometric one. The first explicit bucket reaches down to min, without one to 0, or to its upper
bound where that is not above 0; the last reaches up to max, without one to its lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_128_digest

from api.protocols.bounds import BUCKETS_MAX, SCALES
from api.protocols.points import Histogram
from api.protocols.series import Flaw
from breaker_actors.core.model import Float64

TOO_MANY_BUCKETS = Flaw("too_many_buckets", f"A histogram has at most {BUCKETS_MAX} buckets.")
BAD_COUNTS = Flaw("invalid_counts", "Counts of buckets must be whole numbers from 0 to 2**53.")
FRACTIONS = Flaw(
    "fractional_counts", "The histogram has counts that are no whole numbers: they say how often, not how many."
)
MISMATCH = Flaw("buckets_mismatch", "A histogram has one bucket more than bounds.")
BAD_BOUNDS = Flaw("invalid_bounds", "Bounds of buckets must be numbers that rise.")
BAD_SCALE = Flaw("invalid_scale", f"Scales go from {SCALES.start} to {SCALES.stop - 1}.")
NO_BUCKETS = Flaw("no_buckets", "The histogram has observations, but neither buckets nor a sum.")
COUNT_MAX = 1 << 53
_SHIFT = 1 << 45
"""Beyond all indices of buckets: numbers of positive buckets are above it, of negative ones below -it, of zero's 0."""
Cells = list[tuple[int, float, int]]
"""Number of a bucket, its value, its count; ascending."""


class Extent(tuple[float, float]):
    """What the observations lie between: min and max, infinite where not given."""

    @classmethod
    def of(cls, low: float | None, high: float | None) -> Extent:
        """Both where they are numbers and in order, else no limits at all."""
        a = -math.inf if low is None or not math.isfinite(low) else low
        b = math.inf if high is None or not math.isfinite(high) else high
        return cls((a, b)) if a <= b else EVERYTHING


EVERYTHING = Extent((-math.inf, math.inf))


def explicit(
    counts: Sequence[int],
    bounds: Sequence[float],
    extent: Extent = EVERYTHING,
    total: int = 0,
    total_sum: float | None = None,
) -> Histogram | Flaw:
    """A histogram of buckets up to and with each bound, and one beyond the last. Without any bucket, `total`
    observations stand in one; its value is the mean if `total_sum` is a number, else the middle of min and max."""
    if not bounds and len(counts) <= 1:
        return _without_bounds(counts[0] if counts else total, extent, total, total_sum)
    if max(len(counts), len(bounds)) > BUCKETS_MAX:
        return TOO_MANY_BUCKETS
    if len(counts) != len(bounds) + 1:
        return MISMATCH
    return explicit_cells(enumerate(counts), bounds, extent)


class Scheme(NamedTuple):
    """Explicit buckets: their bounds, the layout, and the middle of each but the first and the last; and the bounds
    below and above each, NaN where it has none."""

    bounds: tuple[float, ...]
    layout: bytes
    middles: tuple[float, ...]
    lower: Float64
    upper: Float64


@lru_cache(256)
def scheme_of(bounds: tuple[float, ...]) -> Scheme | Flaw:
    """The buckets with these bounds, or what is wrong with them."""
    rising = all(map(float.__lt__, bounds, bounds[1:])) and not any(map(math.isnan, bounds))
    if not rising or math.inf in bounds or -math.inf in bounds:
        return BAD_BOUNDS
    layout = b"x" + xxh3_128_digest((np.array(bounds, np.float64) + 0.0).tobytes())  # -0.0 is 0.0
    between = (below / 2 + above / 2 for below, above in pairwise(bounds))
    edges = np.array((math.nan, *bounds, math.nan))
    return Scheme(bounds, layout, (math.nan, *between, math.nan), edges[:-1], edges[1:])


@lru_cache(256)
def packed_scheme(bounds: bytes) -> Scheme | Flaw:
    """The same of at least one bound, packed as little-endian doubles."""
    return scheme_of(tuple(np.frombuffer(bounds, "<f8").tolist()))


def explicit_cells(
    counts: Iterable[tuple[int, int]], bounds: Sequence[float], extent: Extent = EVERYTHING
) -> Histogram | Flaw:
    """The same from numbers of buckets and their counts."""
    if len(bounds) > BUCKETS_MAX:
        return TOO_MANY_BUCKETS
    return filled(counts, scheme_of(tuple(bounds)), extent)


def filled(counts: Iterable[tuple[int, int]], scheme: Scheme | Flaw, extent: Extent) -> Histogram | Flaw:
    """The same of a scheme."""
    if isinstance(scheme, Flaw):
        return scheme
    bounds, layout, middles, _, _ = scheme
    low, high = extent
    last = len(bounds)
    cells: Cells = []
    for number, count in counts:
        if count:
            if 0 < number < last and bounds[number - 1] >= low and bounds[number] <= high:
                cells.append((number, middles[number], count))
                continue
            above = bounds[number] if number < last else (high if high < math.inf else bounds[last - 1])
            below = bounds[number - 1] if number else (low if low > -math.inf else min(0.0, above))
            middle = (below if below > low else low) / 2 + (above if above < high else high) / 2
            cells.append((number, low if middle < low else high if middle > high else middle, count))
    return made(cells, layout)


def _without_bounds(count: int, extent: Extent, total: int, total_sum: float | None) -> Histogram | Flaw:
    low, high = extent
    cells: Cells = []
    if count:
        mean = math.nan if total_sum is None else total_sum / (total or count)
        if not math.isfinite(mean):
            if not (math.isfinite(low) and math.isfinite(high)):
                return NO_BUCKETS
            mean = low / 2 + high / 2
        cells.append((0, max(low, min(mean, high)), count))
    return made(cells, b"x" + xxh3_128_digest(b""))


def exponential(
    scale: int,
    zero: int,
    positive: Iterable[tuple[int, int]],
    negative: Iterable[tuple[int, int]],
    zero_threshold: float = 0.0,
    extent: Extent = EVERYTHING,
) -> Histogram | Flaw:
    """A histogram of buckets by index and count: index i reaches from base**i (not in it) to base**(i + 1), where base
    is 2 ** 2 ** -scale; negative ones mirror that. Both ascending by index."""
    if scale not in SCALES:
        return BAD_SCALE
    low, high = extent
    width = 2.0**-scale
    cells: Cells = [
        (-_SHIFT - index, max(low, min(-_geometric(index, width, -high, -low), high)), count)
        for index, count in negative
        if count
    ]
    cells.reverse()
    if zero:
        cells.append((0, max(low, min(0.0, high)), zero))
    cells += [
        (_SHIFT + index, max(low, min(_geometric(index, width, low, high), high)), count)
        for index, count in positive
        if count
    ]
    return made(cells, b"e" + scale.to_bytes(1, "little", signed=True) + np.float64(zero_threshold).tobytes())


def _geometric(index: int, width: float, low: float, high: float) -> float:
    """The geometric middle of a bucket of absolute values within limits."""
    below, above = _exponent(index * width), _exponent((index + 1) * width)
    if low > 0:
        below = max(below, math.log2(low))
    if 0 < high < math.inf:
        above = min(above, math.log2(high))
    return math.exp2((below + above) / 2)


def _exponent(exponent: float) -> float:
    """Within what a float can hold."""
    return max(-1074.0, min(exponent, 1023.999))


def made(cells: Cells, layout: bytes) -> Histogram | Flaw:
    """A histogram of cells that are not empty."""
    if not cells:
        return Histogram(b"", b"", layout, b"")
    numbers, values, counts = zip(*cells, strict=True)
    if min(counts) < 0 or max(counts) > COUNT_MAX:
        return BAD_COUNTS
    return Histogram.of(values, counts, layout, numbers)
