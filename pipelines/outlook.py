"""Where on a chunk a breaker would find a breach: at which arrival, or at which tick between two of them.

One outlook per rule and chunk, asked by `pipelines.walker`; arrivals are numbered within the chunk.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from breaker_actors.core.evidence import Evidence
from breaker_actors.core.exact import need_of
from breaker_actors.core.model import Flags, Int64, Rule
from pipelines.columns import Chunk
from pipelines.figures import test_of
from pipelines.flows import Track
from pipelines.judges import Judge

TICKS_PER_ARRIVAL = 4
"""More ticks than that are not looked at one by one: only the first after each sample that leaves."""


class Outlook(Protocol):
    def breaches(self, start: int, stop: int, evidence: Evidence, floor_ms: int) -> Flags:
        """At which of the arrivals start..stop-1 an evaluation finds a breach."""
        ...

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor_ms: int) -> int | None:
        """The first arrival right before which a tick from `from_ms` on finds a breach that the arrival before it did
        not: among start+1..stop, or up to the last arrival where stop is behind it."""
        ...

    def stand(self, arrival: int, evidence: Evidence) -> None:
        """Brings into the evidence what it would hold right before it is assessed at this arrival."""
        ...

    def forget(self, row: int) -> None:
        """Evidence starts anew with this row of the chunk."""
        ...


def ticks(rule: Rule, grid_ms: int, first_ms: int, last_ms: int) -> tuple[int, int]:
    """The first tick from `first_ms` on, and how many there are up to `last_ms`."""
    interval = rule.eval_interval_ms
    first = grid_ms + max(1, -(-(first_ms - grid_ms) // interval)) * interval
    return first, max(0, (last_ms - first) // interval + 1)


class Windows:
    """The outlook of a rule with a window."""

    def __init__(self, rule: Rule, track: Track, judge: Judge) -> None:
        self._rule, self._track, self._judge = rule, track, judge
        self._times = track.chunk.times

    def breaches(self, start: int, stop: int, evidence: Evidence, floor_ms: int) -> Flags:
        self._judge.baseline = evidence.baseline
        grown = self._grown(floor_ms)
        if stop <= grown:
            return self._young(start, stop, floor_ms)
        if start >= grown:
            return self._judge.arrivals(start, stop)
        young, whole = self._young(start, grown, floor_ms), self._judge.arrivals(grown, stop)
        return np.concatenate([young, whole])

    def _grown(self, floor_ms: int) -> int:
        """From this arrival on the floor lies outside the window."""
        return int(np.searchsorted(self._times, floor_ms + self._track.window_ms - 1, "left"))

    def _young(self, start: int, stop: int, floor_ms: int) -> Flags:
        return self._judge.young(*self._track.since(floor_ms, self._track.chunk.ends[start:stop]))

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor_ms: int) -> int | None:
        times = self._times
        first_ms = max(from_ms, int(times[start]) + 1, floor_ms + self._track.window_ms - 1)
        instants = self._instants(start, stop, grid_ms, first_ms)
        if not len(instants):
            return None
        hits = self._judge.points(*self._track.at_times(instants))
        return int(np.searchsorted(times, instants[hits.argmax()], "right")) if hits.any() else None

    def _instants(self, start: int, stop: int, grid_ms: int, first_ms: int) -> Int64:
        """The ticks that may find another verdict than the arrival before them: windows only shrink in between."""
        rule, times = self._rule, self._times
        last_ms = int(times[min(stop, len(times) - 1)]) - 1
        first, count = ticks(rule, grid_ms, first_ms, last_ms)
        if count <= TICKS_PER_ARRIVAL * (stop - start):
            return first + rule.eval_interval_ms * np.arange(count)
        gone, window_ms = self._track.flow.gone_eff, self._track.window_ms
        first_gone, last_gone = np.searchsorted(gone, [int(times[start]) - window_ms, last_ms - window_ms], "right")
        leave = gone[first_gone:last_gone]
        steps = np.maximum(-(-(leave + window_ms - first) // rule.eval_interval_ms), 0)
        return first + rule.eval_interval_ms * np.unique(np.append(0, steps[steps < count]))

    def stand(self, arrival: int, evidence: Evidence) -> None:
        pass

    def forget(self, row: int) -> None:
        pass


class Streaks:
    """The outlook of consecutive_failures: runs of ok=false in arrival order, over the ends of arrivals.

    Rows count from the chunk's first new one."""

    def __init__(self, rule: Rule, chunk: Chunk, evidence: Evidence) -> None:
        self._rule, self._chunk, self._need = rule, chunk, need_of(rule)
        self._test = test_of(rule.op, rule.threshold)
        self._ends = chunk.ends - chunk.start
        self._first, self._seen, self._limit = 0, evidence.seen, -1 - evidence.streak
        rows = np.arange(-1, len(chunk.ok) - chunk.start)
        rows[1:][~chunk.ok[chunk.start :]] = self._limit
        rows[0] = self._limit
        self._good = np.maximum.accumulate(rows)

    def forget(self, row: int) -> None:
        self._first, self._seen = row - self._chunk.start, 0
        self._limit = self._first - 1

    def _after(self, rows: Int64) -> Int64:
        """The running streak once so many rows have come."""
        return rows - 1 - np.maximum(self._good[rows], self._limit)

    def _begins(self, start: int, stop: int) -> Int64:
        ends = self._ends[max(start - 1, 0) : stop - 1]
        return ends if start else np.append(0, ends)[:stop]

    def _peaks(self, start: int, stop: int) -> Int64:
        """The highest run that the evaluation at each arrival sees."""
        begins = self._begins(start, stop)
        streaks = self._after(np.arange(begins[0] + 1, self._ends[stop - 1] + 1))
        return np.maximum(np.maximum.reduceat(streaks, begins - begins[0]), self._after(begins))

    def _breach(self, highest: Int64, start: int, stop: int) -> Flags:
        seen = self._seen + self._ends[start:stop] - self._first
        return np.asarray(self._test(highest) & (seen >= self._need))

    def breaches(self, start: int, stop: int, evidence: Evidence, floor_ms: int) -> Flags:
        return self._breach(self._peaks(start, stop), start, stop)

    def tick(self, start: int, stop: int, grid_ms: int, from_ms: int, floor_ms: int) -> int | None:
        """A tick sees the running streak where the arrival before it saw the highest one."""
        times, interval = self._chunk.times, self._rule.eval_interval_ms
        stop = min(stop, len(times) - 1)
        since = np.maximum(times[start:stop], from_ms)
        due = grid_ms + np.maximum(1, -(-(since - grid_ms) // interval)) * interval
        hits = self._breach(self._after(self._ends[start:stop]), start, stop) & (due < times[start + 1 : stop + 1])
        return start + 1 + int(hits.argmax()) if hits.any() else None

    def stand(self, arrival: int, evidence: Evidence) -> None:
        end = self._ends[arrival : arrival + 1]
        evidence.streak = int(self._after(end)[0])
        evidence.peak = int(self._peaks(arrival, arrival + 1)[0])
        evidence.seen = self._seen + int(end[0]) - self._first
