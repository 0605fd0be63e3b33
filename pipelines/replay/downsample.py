"""A chart's worth of samples, however many there are: lowest and highest value in each stretch of time, and what the
breaker found at its end. Some spans get shorter stretches, so that a chart can zoom to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from breaker_actors.core.model import Int64
from pipelines.columns import Samples

POINTS = 600
"""Stretches of the whole."""
FINE_SPANS, FINE_POINTS, FINE_POINTS_EACH = 20, 1000, 200
"""Spans with shorter stretches at most, and how many stretches they have together and each."""


class Sketch:
    """Fed in arrival order, over a span that is known; `fine`: spans within it that get stretches of their own, at most
    FINE_SPANS."""

    def __init__(self, first_ms: int, last_ms: int, points: int = POINTS, fine: Sequence[tuple[int, int]] = ()) -> None:
        each = min(FINE_POINTS_EACH, FINE_POINTS // max(1, len(fine)))
        within = [(max(first_ms, start_ms), min(last_ms, end_ms)) for start_ms, end_ms in fine]
        grids = [_grid(start_ms, end_ms, each) for start_ms, end_ms in within if start_ms < end_ms]
        self.ends: Int64 = np.unique(np.concatenate([_grid(first_ms, last_ms, points), *grids]))
        self.low = np.full(len(self.ends), np.inf)
        self.high = np.full(len(self.ends), -np.inf)
        self.values: list[tuple[int, float]] = []
        self._stretch = -1

    def add(self, samples: Samples) -> None:
        """The next samples; each falls into the stretch whose end is the first not before it."""
        stretch = np.searchsorted(self.ends, samples.at, "left")
        begins = np.flatnonzero(np.append(True, stretch[1:] != stretch[:-1]))
        at = stretch[begins]
        self.low[at] = np.minimum(self.low[at], np.minimum.reduceat(samples.value, begins))
        self.high[at] = np.maximum(self.high[at], np.maximum.reduceat(samples.value, begins))

    def look(self, now_ms: int, value: float | None) -> None:
        """What the breaker found then; the last of each stretch stays."""
        if value is None or (self.values and self.values[-1][0] >= now_ms):
            return
        stretch = int(np.searchsorted(self.ends, now_ms, "left"))
        if stretch == self._stretch:
            self.values.pop()
        self._stretch = stretch
        self.values.append((now_ms, value))


def _grid(first_ms: int, last_ms: int, points: int) -> Int64:
    """The ends of equal stretches of a span, at least a millisecond long."""
    count = max(1, min(points, last_ms - first_ms))
    ends: Int64 = first_ms + (last_ms - first_ms) * np.arange(1, count + 1) // count
    return ends
