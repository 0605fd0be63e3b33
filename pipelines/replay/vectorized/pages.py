"""Figures over the windows at instants, page by page: of most pages bounds say enough, and none is worked out.

The instants keep their pages, so pages know no instants: what is as large as a chunk has to go with it at once.

What a page's figures are makes its bounds as tight as can be, so that the next rule passes it by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from breaker_actors.core.model import Flags
from pipelines.replay.vectorized.window_bounds import Instants

RUN_INSTANTS = 1 << 14
"""So many are worked out in one go at most: temporary arrays then stay in the cache."""

Make = Callable[[Any, Any], tuple[Any, Any]]
"""Of windows, as (entered, left): their figures, and what each may be off."""


class Pages:
    """Of each page of `points` the lowest and highest figure that may be, and figures where they were asked for.
    `lowest`, `highest`: of all pages, before any was worked out."""

    __slots__ = ("_figures", "_high", "_known", "_low", "_make", "_margin", "_size", "highest", "lowest")

    def __init__(self, points: Instants, low: Any, high: Any, kind: Any, make: Make) -> None:
        self._low, self._high, self._make = low, high, make
        self._size = points.page
        self.lowest: float = low.min() if len(low) else 0
        self.highest: float = high.max() if len(high) else 0
        self._figures = np.empty(len(points), kind)
        self._margin, self._known = np.zeros(len(low)), np.zeros(len(low), np.bool_)

    def suspects(self, start: int, stop: int, may: Callable[[Any, Any], Flags]) -> Iterator[slice]:
        """Among the instants start..stop-1, in order, those of pages for whose lowest and highest figures `may` holds:
        few at first, then more at a time."""
        size, first = self._size, start // self._size
        pages = range(first, -(-stop // size))
        flags = may(self._low[pages.start : pages.stop], self._high[pages.start : pages.stop])
        found = (np.flatnonzero(flags) + first).tolist()
        at, most = 0, 1
        while at < len(found):
            run = 1
            while run < most and at + run < len(found) and found[at + run] == found[at] + run:
                run += 1
            yield slice(max(start, found[at] * size), min(stop, (found[at] + run) * size))
            at, most = at + run, min(4 * most, max(1, RUN_INSTANTS // size))

    def figures(self, points: Instants, block: slice) -> tuple[Any, float]:
        """The figures at these instants of `points`, and what they may be off."""
        first, last = block.start // self._size, -(-block.stop // self._size)
        unknown = np.flatnonzero(~self._known[first:last])
        if len(unknown):
            self._work_out(points, first + int(unknown[0]), first + int(unknown[-1]) + 1)
        return self._figures[block], float(self._margin[first:last].max())

    def _work_out(self, points: Instants, first: int, last: int) -> None:
        """The figures of pages first..last-1."""
        start, stop = first * self._size, min(last * self._size, len(points))
        figures, margin = self._make(*points.windows(start, stop))
        self._figures[start:stop] = figures
        begins, pages = np.arange(0, stop - start, self._size), slice(first, last)
        self._margin[pages] = np.maximum.reduceat(np.broadcast_to(margin, figures.shape), begins)
        self._low[pages] = np.minimum.reduceat(figures, begins) - self._margin[pages]
        self._high[pages] = np.maximum.reduceat(figures, begins) + self._margin[pages]
        self._known[pages] = True
