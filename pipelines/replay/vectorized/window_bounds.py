"""Windows over a chunk as two counts: how many samples have entered, and how many of them have left again.

A sample enters with its arrival and leaves when its own time is `window_ms` past; one that comes too late never enters.
Prefix sums over both orders then give any figure of any window as a difference. Where times never go back the two
orders are one, and a window is a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from breaker_actors.core.model import Flags, Int64
from pipelines.columns import Chunk, passed
from pipelines.replay.vectorized.near_sums import Edges
from pipelines.replay.vectorized.prefix_columns import PrefixColumns, running

Make = Callable[[Int64, Int64], tuple[Any, Any]]
LeftAt = Callable[[Int64, Int64], Int64]
"""How many samples have left at these instants, at which so many have entered."""
BLOCK = 1 << 14
"""Windows worked on at a time: temporary arrays then stay in the cache."""
PAGE = 256
"""Instants that are looked at together, at most."""
FIGURES_MAX, GRIDS_MAX = 4, 2
"""Kept of one WindowBounds, each as large as a column; what was made first goes first."""


class NotVectorizable(Exception):
    """This stretch can't be told by prefix sums: late samples in a window that overflows."""


def kept(known: dict[object, Any], most: int, key: object, make: Callable[[], Any]) -> Any:
    """What `make` gave for the key, as long as it is among the last `most`."""
    if key not in known:
        while len(known) >= most:
            del known[next(iter(known))]
        known[key] = make()
    return known[key]


def left_at(gone: Int64, window_ms: int, most: int, times: Int64, entered: Int64) -> Int64:
    """How many samples have left at instants at which so many have entered: those whose time is past, what is beyond
    the newest `most`, and no more than came."""
    left = np.minimum(passed(gone, times - window_ms), entered)
    return np.maximum(left, entered - most)


class Instants:
    """The windows at ascending instants, and the last figures over them. How many samples have left is worked out where
    somebody asks."""

    __slots__ = ("_edges", "_known", "_left", "_left_at", "_settled", "entered", "page", "times")

    def __init__(self, times: Int64, entered: Int64, left_at: LeftAt, rows: int) -> None:
        """`left_at` tells it for some of them; `rows`: how many samples there are."""
        self.times, self.entered, self._left_at = times, entered, left_at
        count = len(times)
        self.page = max(1, min(PAGE, count // 64 + 1, PAGE * count // max(1, rows)))
        """So many instants are looked at together, fewer where there are many samples between two."""
        self._left, self._settled = np.empty(count, np.int64), np.zeros(-(-count // self.page), np.bool_)
        self._edges: Edges | None = None
        self._known: dict[object, Any] = {}

    def __len__(self) -> int:
        return len(self.times)

    @property
    def left(self) -> Int64:
        """How many samples have left at each."""
        return self.windows(0, len(self))[1]

    def windows(self, start: int, stop: int) -> tuple[Int64, Int64]:
        """How many samples have entered and left at the instants start..stop-1."""
        first, last = start // self.page, -(-stop // self.page)
        unknown = np.flatnonzero(~self._settled[first:last])
        if len(unknown):
            begin, last = (first + int(unknown[0])) * self.page, first + int(unknown[-1]) + 1
            for at in range(begin, min(last * self.page, len(self)), BLOCK):
                block = slice(at, min(at + BLOCK, last * self.page, len(self)))
                self._left[block] = self._left_at(self.times[block], self.entered[block])
            self._settled[begin // self.page : last] = True
        return self.entered[start:stop], self._left[start:stop]

    def edges(self) -> Edges:
        """The windows at the first and the last instant of each page."""
        if self._edges is None:
            first = np.arange(0, len(self), self.page)
            last = np.minimum(first + self.page, len(self)) - 1
            came, over = self.entered[first], self.entered[last]
            left = self._left_at(self.times[first], came)
            self._edges = Edges(came, over, left, left if self.page == 1 else self._left_at(self.times[last], over))
        return self._edges

    def figures(self, key: object, make: Make, width: int) -> tuple[Any, Any]:
        """`make(entered, left)`, block by block: two arrays, of width 1 the same one twice."""
        figures: tuple[Any, Any] = kept(self._known, FIGURES_MAX, key, lambda: self._made(make, width))
        return figures

    def _made(self, make: Make, width: int) -> tuple[Any, Any]:
        out = np.empty((width, len(self)))
        for start in range(0, len(self), BLOCK):
            block = slice(start, start + BLOCK)
            out[:, block] = make(*self.windows(start, min(start + BLOCK, len(self))))[:width]
        return (out[0], out[1]) if width > 1 else (out[0],) * 2

    def pages(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gives for all of them, kept like figures."""
        return kept(self._known, FIGURES_MAX, key, make)

    def enough(self, need: int) -> Flags | None:
        """Where at least `need` samples are held; None: everywhere."""
        flags: Flags | None = kept(self._known, FIGURES_MAX, ("enough", need), lambda: self._enough(need))
        return flags

    def _enough(self, need: int) -> Flags | None:
        held = self.entered - self.left >= need
        return None if held.all() else held


class WindowBounds:
    """The windows of one length over a chunk: how many samples have entered and left at each arrival."""

    __slots__ = ("_arrived", "_grids", "arrivals", "chunk", "max", "prefixes", "truncated", "window_ms")

    def __init__(self, chunk: Chunk, window_ms: int, samples_max: int, prefixes: PrefixColumns | None) -> None:
        """`prefixes`: of the whole chunk, shared by those for which no sample is late. Raises NotVectorizable."""
        self.chunk, self.window_ms, self.max = chunk, window_ms, samples_max
        self._grids: dict[object, Any] = {}
        late = self._late_rows()
        self._arrived: Int64 | None = None
        if prefixes is None or (len(late) and not chunk.in_order):
            prefixes = self._own_flow(late)
        self.prefixes = prefixes
        self.arrivals = self._points(chunk.times, chunk.ends)
        self.truncated = self._find_truncated()

    def _late_rows(self) -> Int64:
        """New rows that have left the window before they come in."""
        chunk = self.chunk
        if chunk.eff is chunk.at:
            return np.empty(0, np.int64)
        new = slice(chunk.start, None)
        return chunk.start + np.flatnonzero(chunk.eff[new] <= chunk.at[new] - self.window_ms)

    def _own_flow(self, late: Int64) -> PrefixColumns:
        chunk = self.chunk
        if chunk.in_order or not len(late):
            return PrefixColumns(chunk.eff, chunk.value, chunk.ok, chunk.in_order)
        entering = np.ones(len(chunk.eff), np.bool_)
        entering[late] = False
        self._arrived = running(entering)
        return PrefixColumns(chunk.eff[entering], chunk.value[entering], chunk.ok[entering], False)

    def _points(self, times: Int64, ends: Int64) -> Instants:
        """The windows at ascending instants, before which the rows up to `ends` have arrived."""
        entered = ends if self._arrived is None else self._arrived[ends]
        gone = self.prefixes.gone_eff
        return Instants(times, entered, partial(left_at, gone, self.window_ms, self.max), len(gone))

    def _find_truncated(self) -> bool:
        """Whether a window would hold more than `samples_max`; all are looked at where that may be."""
        gone, points, window_ms, most = self.prefixes.gone_eff, self.arrivals, self.window_ms, self.max
        if len(gone) <= most or not len(points):
            return False
        edges = points.edges()
        if int((edges.entered_last - edges.left_first).max()) < most:
            return False
        blocks = (slice(start, start + BLOCK) for start in range(0, len(points), BLOCK))
        held = (points.entered[block] - passed(gone, points.times[block] - window_ms) for block in blocks)
        if not any(int(one.max()) > most for one in held):
            return False
        if not self.prefixes.ordered:
            raise NotVectorizable
        return True

    def at(self, times: Int64) -> Instants:
        """The windows at these ascending instants, each at or after the chunk's first arrival."""
        return self._points(times, self.chunk.ends[np.searchsorted(self.chunk.times, times, "right") - 1])

    def on_grid(self, first_ms: int, interval_ms: int) -> Instants:
        """The windows at first_ms and from there on at every interval, before the chunk's last arrival; kept."""
        times = partial(np.arange, first_ms, int(self.chunk.times[-1]), interval_ms)
        points: Instants = kept(self._grids, GRIDS_MAX, (first_ms, interval_ms), lambda: self.at(times()))
        return points

    def truncated_between(self, start: int, stop: int, floor_ms: int) -> int:
        """How many samples left early with the arrivals of rows start..stop-1; for rows in order."""
        chunk = self.chunk
        groups = slice(*np.searchsorted(chunk.ends, [start, stop], "right"))
        ends = chunk.ends[groups]
        before = np.append(start, ends[:-1])
        low = np.maximum(chunk.times[groups] - self.window_ms, floor_ms - 1)
        left = np.maximum(np.searchsorted(chunk.eff, low, "right"), before - self.max)
        return int(np.maximum(ends - self.max - left, 0).sum())

    def since(self, floor_ms: int, ends: Int64) -> tuple[PrefixColumns, Int64, Any]:
        """Windows in which only samples count that are not older than `floor_ms`, and of those none has left yet:
        prefix columns, and how many of their samples entered and left before each of these rows of the chunk."""
        chunk, stop = self.chunk, int(ends[-1])
        if chunk.in_order:
            first = int(np.searchsorted(chunk.eff[:stop], floor_ms, "left"))
            return self.prefixes, ends, np.maximum(first, ends - self.max) if stop - first > self.max else first
        first = int(np.searchsorted(chunk.at[:stop], floor_ms, "left"))
        counted = chunk.eff[first:stop] >= floor_ms
        rows = first + np.flatnonzero(counted)
        prefixes = PrefixColumns(chunk.eff[rows], chunk.value[rows], chunk.ok[rows], True, part=True)
        return prefixes, running(counted)[np.maximum(ends - first, 0)], 0
