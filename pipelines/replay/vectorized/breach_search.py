"""Where on a chunk a breaker would find a breach: at which arrival, or at which tick between two of them.

One search per rule and chunk, asked by `pipelines.replay.vectorized.breaker`; arrivals are numbered within the chunk.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from breaker_actors.core.definitions import need_of
from breaker_actors.core.evidence import Evidence
from breaker_actors.core.model import Flags, Int64, Rule
from pipelines.columns import Chunk
from pipelines.replay.vectorized.aggregates import test_of
from pipelines.replay.vectorized.breach_tests import BreachTest, first_of
from pipelines.replay.vectorized.prefix_columns import distinct
from pipelines.replay.vectorized.window_bounds import Instants, WindowBounds

TICKS_PER_ARRIVAL = 4
"""More ticks than that are not looked at one by one: only the first after each sample that leaves."""


class Floor(NamedTuple):
    """Samples older than `ms` do not count. `anew`: evidence starts anew with this row of the chunk, else before it."""

    ms: int
    row: int
    anew: bool


class BreachSearch(Protocol):
    def breach(self, start: int, stop: int, evidence: Evidence, floor: Floor) -> int | None:
        """The first of the arrivals start..stop-1 at which an evaluation finds a breach."""

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor: Floor) -> int | None:
        """The first arrival right before which a tick from `from_ms` on finds a breach that the arrival before it did
        not: among start+1..stop, or up to the last arrival where stop is behind it."""

    def stand(self, arrival: int, evidence: Evidence, floor: Floor) -> None:
        """Brings into the evidence what it would hold right before it is assessed at this arrival."""


def ticks(rule: Rule, grid_ms: int, first_ms: int, last_ms: int) -> tuple[int, int]:
    """The first tick from `first_ms` on, and how many there are up to `last_ms`."""
    interval = rule.eval_interval_ms
    first = grid_ms + max(1, -(-(first_ms - grid_ms) // interval)) * interval
    return first, max(0, (last_ms - first) // interval + 1)


class Windows:
    """Search over the windows of a rule."""

    def __init__(self, rule: Rule, bounds: WindowBounds, breach_test: BreachTest) -> None:
        self._rule, self._bounds, self._breach_test = rule, bounds, breach_test
        self._times = bounds.chunk.times

    def breach(self, start: int, stop: int, evidence: Evidence, floor: Floor) -> int | None:
        self._breach_test.baseline = evidence.baseline
        full_from = max(start, min(stop, self._full_from(floor.ms)))
        if start < full_from:
            found = first_of(self._partial_windows(start, full_from, floor.ms), start)
            if found is not None:
                return found
        return self._breach_test.first(self._bounds.arrivals, full_from, stop) if full_from < stop else None

    def _full_from(self, floor_ms: int) -> int:
        """From this arrival on the floor lies outside the window."""
        return int(np.searchsorted(self._times, floor_ms + self._bounds.window_ms - 1, "left"))

    def _partial_windows(self, start: int, stop: int, floor_ms: int) -> Flags:
        return self._breach_test.partial_windows(*self._bounds.since(floor_ms, self._bounds.chunk.ends[start:stop]))

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor: Floor) -> int | None:
        times = self._times
        first_ms = max(from_ms, int(times[start]) + 1, floor.ms + self._bounds.window_ms - 1)
        last_ms = int(times[min(stop, len(times) - 1)]) - 1
        first, count = ticks(self._rule, grid_ms, first_ms, last_ms)
        if not count:
            return None
        points, at = self._points(start, stop, grid_ms, first, last_ms, count)
        hit = self._breach_test.first(points, at, min(at + count, len(points)))
        return None if hit is None else int(np.searchsorted(times, points.times[hit], "right"))

    def _points(
        self, start: int, stop: int, grid_ms: int, first_ms: int, last_ms: int, count: int
    ) -> tuple[Instants, int]:
        """The ticks from `first_ms` on that may find another verdict than the arrival before them: windows only shrink
        in between. And where they begin among those returned."""
        times, interval = self._times, self._rule.eval_interval_ms
        if count > TICKS_PER_ARRIVAL * (stop - start):
            return self._bounds.at(first_ms + interval * self._shrinking(start, first_ms, last_ms, count)), 0
        begin, all_of_chunk = ticks(self._rule, grid_ms, int(times[0]) + 1, int(times[-1]) - 1)
        if grid_ms > times[0] or all_of_chunk > TICKS_PER_ARRIVAL * len(times):
            return self._bounds.at(first_ms + interval * np.arange(count)), 0
        return self._bounds.on_grid(begin, interval), (first_ms - begin) // interval

    def _shrinking(self, start: int, first_ms: int, last_ms: int, count: int) -> Int64:
        """The first tick, and each first one after a sample has left; as numbers of ticks after the first."""
        gone, window_ms, begun_ms = self._bounds.prefixes.gone_times(), self._bounds.window_ms, int(self._times[start])
        low, high = np.searchsorted(gone, [begun_ms - window_ms, last_ms - window_ms], "right")
        steps = np.maximum(-(-(gone[low:high] + window_ms - first_ms) // self._rule.eval_interval_ms), 0)
        return distinct(np.append(0, steps[: np.searchsorted(steps, count, "left")]))

    def stand(self, arrival: int, evidence: Evidence, floor: Floor) -> None:
        pass


class Streaks:
    """Search for consecutive_failures: runs of ok=false in arrival order, over the ends of arrivals.

    Rows count from the chunk's first new one."""

    def __init__(self, rule: Rule, chunk: Chunk, evidence: Evidence) -> None:
        self._rule, self._chunk, self._need = rule, chunk, need_of(rule)
        self._test = test_of(rule.op, rule.threshold)
        self._ends = chunk.ends - chunk.start
        self._seen, self._limit = evidence.seen, -1 - evidence.streak
        rows = np.arange(-1, len(chunk.ok) - chunk.start)
        rows[1:][~chunk.ok[chunk.start :]] = self._limit
        rows[0] = self._limit
        self._good = np.maximum.accumulate(rows)

    def _after(self, rows: Int64, floor: Floor) -> Int64:
        """The running streak once so many rows have come."""
        limit = floor.row - self._chunk.start - 1 if floor.anew else self._limit
        return rows - 1 - np.maximum(self._good[rows], limit)

    def _seen_after(self, rows: Int64, floor: Floor) -> Int64:
        return rows - (floor.row - self._chunk.start) if floor.anew else rows + self._seen

    def _peaks(self, start: int, stop: int, floor: Floor) -> Int64:
        """The highest run that the evaluation at each arrival sees."""
        ends = self._ends[start:stop]
        begins = np.append(self._chunk.begin(start) - self._chunk.start, ends[:-1])
        streaks = self._after(np.arange(begins[0] + 1, ends[-1] + 1), floor)
        return np.maximum(np.maximum.reduceat(streaks, begins - begins[0]), self._after(begins, floor))

    def _breaches(self, highest: Int64, start: int, stop: int, floor: Floor) -> Flags:
        return np.asarray(self._test(highest) & (self._seen_after(self._ends[start:stop], floor) >= self._need))

    def breach(self, start: int, stop: int, evidence: Evidence, floor: Floor) -> int | None:
        return first_of(self._breaches(self._peaks(start, stop, floor), start, stop, floor), start)

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor: Floor) -> int | None:
        """A tick sees the running streak where the arrival before it saw the highest one."""
        times, interval = self._chunk.times, self._rule.eval_interval_ms
        stop = min(stop, len(times) - 1)
        since = np.maximum(times[start:stop], from_ms)
        due = grid_ms + np.maximum(1, -(-(since - grid_ms) // interval)) * interval
        running = self._after(self._ends[start:stop], floor)
        hits = self._breaches(running, start, stop, floor) & (due < times[start + 1 : stop + 1])
        return start + 1 + int(hits.argmax()) if hits.any() else None

    def stand(self, arrival: int, evidence: Evidence, floor: Floor) -> None:
        end = self._ends[arrival : arrival + 1]
        evidence.streak = int(self._after(end, floor)[0])
        evidence.peak = int(self._peaks(arrival, arrival + 1, floor)[0])
        evidence.seen = int(self._seen_after(end, floor)[0])
