"""A chart's worth of samples, however many there are: lowest and highest value in each stretch of time, and what the
breaker found at its end."""

from __future__ import annotations

import numpy as np

from breaker_actors.core.model import Int64
from pipelines.columns import Samples

POINTS = 800


class Sketch:
    """Fed in arrival order, over a span that is known."""

    def __init__(self, first_ms: int, last_ms: int, points: int = POINTS) -> None:
        count = max(1, min(points, last_ms - first_ms))
        self.ends: Int64 = first_ms + (last_ms - first_ms) * np.arange(1, count + 1) // count
        self.low = np.full(count, np.inf)
        self.high = np.full(count, -np.inf)
        self.values: list[tuple[int, float]] = []

    def add(self, samples: Samples) -> None:
        """The next samples; each falls into the stretch whose end is the first not before it."""
        stretch = np.searchsorted(self.ends, samples.at, "left")
        begins = np.flatnonzero(np.append(True, stretch[1:] != stretch[:-1]))
        at = stretch[begins]
        self.low[at] = np.minimum(self.low[at], np.minimum.reduceat(samples.value, begins))
        self.high[at] = np.maximum(self.high[at], np.maximum.reduceat(samples.value, begins))

    def look(self, now_ms: int, value: float | None) -> None:
        """What the breaker found then."""
        if value is not None and (not self.values or self.values[-1][0] < now_ms):
            self.values.append((now_ms, value))
