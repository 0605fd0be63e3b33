"""Windows over a chunk as two counts: how many samples have entered, and how many of them have left again.

A sample enters with its arrival and leaves when its own time is `window_ms` past; one that comes too late never enters.
Prefix sums over both orders then give any figure of any window as a difference. Where times never go back the two
orders are one, and a window is a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from breaker_actors.core.model import Flags, Float64, Int64
from pipelines.columns import Chunk, passed
from pipelines.ranks import Ranks
from pipelines.sums import ExactSums, Index

Make = Callable[[Int64, Int64], tuple[Any, Any]]
BLOCK = 1 << 14
"""Windows worked on at a time: temporary arrays then stay in the cache."""


class Unfit(Exception):
    """This stretch can't be told by prefix sums: late samples in a window that overflows."""


class Flow:
    """Samples that enter in this order and leave in the order of their times; `ordered`: that is the same order.

    What figures need of them is worked out once, on demand. `part`: of a flow whose sums are known to fit.
    """

    __slots__ = ("_known", "eff", "gone_eff", "gone_ok", "gone_value", "ok", "ordered", "part", "value")

    def __init__(self, eff: Int64, value: Float64, ok: Flags, ordered: bool, part: bool = False) -> None:
        self.part = part
        self.eff, self.value, self.ok, self.ordered = eff, value, ok, ordered
        self._known: dict[object, Any] = {}
        self.gone_eff, self.gone_value, self.gone_ok = eff, value, ok
        if not ordered:
            order = np.argsort(eff, kind="stable")
            self.gone_eff, self.gone_value, self.gone_ok = eff[order], value[order], ok[order]

    def known(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once per key."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def errors(self, entered: Index, left: Index) -> Any:
        """Samples that are not ok in a window."""
        came, gone = self.known("errors", self._error_counts)
        return came[entered] - gone[left]

    def _error_counts(self) -> tuple[Int64, Int64]:
        came = running(~self.ok)
        return came, came if self.ordered else running(~self.gone_ok)

    def sums(self) -> ExactSums:
        """Sums of values; raises TooWide."""
        gone = None if self.ordered else self.gone_value
        sums: ExactSums = self.known("sums", lambda: ExactSums(self.value, gone, part=self.part))
        return sums

    def ranks(self, cuts: Float64) -> Ranks:
        """Order statistics by class."""
        ranks: Ranks = self.known(
            ("ranks", cuts.tobytes()), lambda: Ranks(cuts, self.value, None if self.ordered else self.gone_value)
        )
        return ranks

    def values(self, entered: int, left: int) -> tuple[Float64, Flags]:
        """The values and flags in one window."""
        if self.ordered:
            return self.value[left:entered], self.ok[left:entered]
        inside = np.ones(entered, np.bool_) if not left else self.eff[:entered] > self.gone_eff[left - 1]
        return self.value[:entered][inside], self.ok[:entered][inside]


def running(flags: Flags) -> Int64:
    """How many are set before each place, one more than there are."""
    counts = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=counts[1:])
    return counts


class Track:
    """The windows of one length over a chunk: how many samples have entered and left at each arrival."""

    __slots__ = ("_arrived", "_dense", "chunk", "flow", "late", "left", "max", "truncated", "window_ms")

    def __init__(self, chunk: Chunk, window_ms: int, samples_max: int, flow: Flow | None) -> None:
        """`flow`: of the whole chunk, shared by tracks for which no sample is late. Raises Unfit."""
        self.chunk, self.window_ms, self.max = chunk, window_ms, samples_max
        self._dense: dict[object, Any] = {}
        late = self._late_rows()
        self.late = len(late)
        self._arrived: Int64 | None = None
        if flow is None or (len(late) and not chunk.in_order):
            flow = self._own_flow(late)
        self.flow = flow
        self.left = np.empty(len(chunk.times), np.int64)
        self.truncated = False
        for start in range(0, len(self.left), BLOCK):
            self._leave(slice(start, start + BLOCK))

    def _late_rows(self) -> Int64:
        """New rows that have left the window before they come in."""
        chunk = self.chunk
        if chunk.eff is chunk.at:
            return np.empty(0, np.int64)
        new = slice(chunk.start, None)
        return chunk.start + np.flatnonzero(chunk.eff[new] <= chunk.at[new] - self.window_ms)

    def _own_flow(self, late: Int64) -> Flow:
        chunk = self.chunk
        if chunk.in_order or not len(late):
            return Flow(chunk.eff, chunk.value, chunk.ok, chunk.in_order)
        entering = np.ones(len(chunk.eff), np.bool_)
        entering[late] = False
        self._arrived = running(entering)
        return Flow(chunk.eff[entering], chunk.value[entering], chunk.ok[entering], False)

    def _leave(self, block: slice) -> None:
        left = passed(self.flow.gone_eff, self.chunk.times[block] - self.window_ms)
        self.left[block] = self._bounded(left, self.entered(block))

    def _bounded(self, left: Int64, entered: Int64) -> Int64:
        """More than `samples_max` are not held; and what is late has left before it came."""
        if len(left) and int((entered - left).max()) > self.max:
            if not self.flow.ordered:
                raise Unfit
            self.truncated = True
            left = np.maximum(left, entered - self.max)
        return np.minimum(left, entered)

    def entered(self, block: slice) -> Int64:
        """How many samples have entered with each of these arrivals."""
        ends = self.chunk.ends[block]
        return ends if self._arrived is None else self._arrived[ends]

    def at_times(self, times: Int64) -> tuple[Int64, Int64]:
        """(entered, left) at these ascending instants, each at or after the chunk's first arrival."""
        groups = np.searchsorted(self.chunk.times, times, "right") - 1
        ends = self.chunk.ends[groups]
        entered = ends if self._arrived is None else self._arrived[ends]
        return entered, self._bounded(passed(self.flow.gone_eff, times - self.window_ms), entered)

    def dense(self, key: object, make: Make, width: int, kind: Any = float) -> Any:
        """`make(entered, left)` for all arrivals, block by block, once per key: two arrays, of width 1 the same."""
        if key not in self._dense:
            out = np.empty((width, len(self.left)), kind)
            for start in range(0, len(self.left), BLOCK):
                block = slice(start, start + BLOCK)
                out[:, block] = make(self.entered(block), self.left[block])[:width]
            self._dense[key] = (out[0], out[-1]) if width > 1 else (out[0],) * 2
        return self._dense[key]

    def enough(self, need: int) -> Flags | None:
        """At which arrivals at least `need` samples are held; None: at all."""
        if ("enough", need) not in self._dense:
            held = self.entered(slice(None)) - self.left >= need
            self._dense["enough", need] = None if held.all() else held
        flags: Flags | None = self._dense["enough", need]
        return flags

    def truncated_between(self, start: int, stop: int, floor_ms: int) -> int:
        """How many samples left early with the arrivals of rows start..stop-1; for a flow in order."""
        chunk = self.chunk
        groups = slice(*np.searchsorted(chunk.ends, [start, stop], "right"))
        ends = chunk.ends[groups]
        before = np.append(start, ends[:-1])
        low = np.maximum(chunk.times[groups] - self.window_ms, floor_ms - 1)
        left = np.maximum(np.searchsorted(chunk.eff, low, "right"), before - self.max)
        return int(np.maximum(ends - self.max - left, 0).sum())

    def since(self, floor_ms: int, ends: Int64) -> tuple[Flow, Int64, Any]:
        """Windows in which only samples count that are not older than `floor_ms`, and of those none has left yet: a
        flow, and how many of its samples entered and left before each of these rows of the chunk."""
        chunk, stop = self.chunk, int(ends[-1])
        if chunk.in_order:
            first = int(np.searchsorted(chunk.eff[:stop], floor_ms, "left"))
            return self.flow, ends, np.maximum(first, ends - self.max) if stop - first > self.max else first
        first = int(np.searchsorted(chunk.at[:stop], floor_ms, "left"))
        young = chunk.eff[first:stop] >= floor_ms
        rows = first + np.flatnonzero(young)
        flow = Flow(chunk.eff[rows], chunk.value[rows], chunk.ok[rows], True, part=True)
        return flow, running(young)[np.maximum(ends - first, 0)], 0
