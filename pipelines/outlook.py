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
        """The ticks that may find another verdict than the arrival before them: between arrivals windows only shrink."""
        rule, times = self._rule, self._times
        last_ms = int(times[min(stop, len(times) - 1)]) - 1
        first, count = ticks(rule, grid_ms, first_ms, last_ms)
        if count <= TICKS_PER_ARRIVAL * (stop - start):
            return first + rule.eval_interval_ms * np.arange(count)
        gone, window_ms = self._track.flow.gone_eff, self._track.window_ms
        leave = gone[np.searchsorted(gone, int(times[start]) - window_ms) : np.searchsorted(gone, last_ms - window_ms, "right")]
        steps = np.maximum(-(-(leave + window_ms - first) // rule.eval_interval_ms), 0)
        return first + rule.eval_interval_ms * np.unique(np.append(0, steps[steps < count]))

    def stand(self, arrival: int, evidence: Evidence) -> None:
        pass

    def forget(self, row: int) -> None:
        pass


class Streaks:
    """The outlook of consecutive_failures: runs of ok=false in arrival order, over the ends of arrivals."""

    def __init__(self, rule: Rule, chunk: Chunk, evidence: Evidence) -> None:
        self._rule, self._chunk, self._need = rule, chunk, need_of(rule)
        self._test = test_of(rule.op, rule.threshold)
        rows = np.arange(len(chunk.ok) - chunk.start)
        good = np.where(chunk.ok[chunk.start :], rows, -1)
        good[:1] = np.maximum(good[:1], -1 - evidence.streak) if chunk.ok[chunk.start] else -1 - evidence.streak
        self._good = np.maximum.accumulate(good)
        self._from, self._seen, self._before = 0, evidence.seen, evidence.streak

    def forget(self, row: int) -> None:
        self._from, self._seen, self._before = row - self._chunk.start, 0, 0

    def _streaks(self, first: int, last: int) -> Int64:
        """After each of the new rows first..last-1."""
        rows = np.arange(first, last)
        return rows - np.maximum(self._good[first:last], self._from - 1 - self._before)
