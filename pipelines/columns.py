"""Samples as columns in arrival order, and one stretch of them at a time with the samples that still lie in windows.

Times are Unix milliseconds. Pure: what reads files is `pipelines.sources.files`, what walks breakers over a chunk is
`pipelines.replay.vectorized.engine`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from breaker_actors.core.log_entries import counted
from breaker_actors.core.model import Batch, Counts, Flags, Float64, Int64


@dataclass(frozen=True, slots=True)
class Samples:
    """Columns of one length. `at`: when each sample arrived, never going back; `ts_ms`: its own time, which is the same
    array where samples carry no arrival time. `trace`: trace ids, null where there is none; None when nobody asks.
    `record`: numbers that change where another record of a log begins, which is an arrival of its own; None: all that
    came at one time came together. `count`: how many observations each stands for; None: each for one."""

    at: Int64
    ts_ms: Int64
    value: Float64
    ok: Flags
    trace: pl.Series | None = None
    record: Int64 | None = None
    count: Counts = None

    def __len__(self) -> int:
        return len(self.at)

    def part(self, start: int, stop: int) -> Samples:
        """Rows start..stop-1, without a copy."""
        at = self.at[start:stop]
        ts_ms = at if self.ts_ms is self.at else self.ts_ms[start:stop]
        trace = None if self.trace is None else self.trace[start:stop]
        record = None if self.record is None else self.record[start:stop]
        count = None if self.count is None else counted(self.count[start:stop])
        return Samples(at, ts_ms, self.value[start:stop], self.ok[start:stop], trace, record, count)

    def copied(self, start: int, stop: int) -> Samples:
        """Rows start..stop-1, copied: they hold nothing else in memory."""
        part = self.part(start, stop)
        at = part.at.copy()
        return replace(
            part,
            at=at,
            ts_ms=at if part.ts_ms is part.at else part.ts_ms.copy(),
            value=part.value.copy(),
            ok=part.ok.copy(),
            trace=None if part.trace is None else part.trace.gather(np.arange(len(part))),
            record=None if part.record is None else part.record.copy(),
            count=None if part.count is None else part.count.copy(),
        )

    def pick(self, rows: npt.NDArray[np.intp]) -> Samples:
        """Some rows, copied."""
        at = self.at[rows]
        ts_ms = at if self.ts_ms is self.at else self.ts_ms[rows]
        trace = None if self.trace is None else self.trace.gather(rows)
        record = None if self.record is None else self.record[rows]
        count = None if self.count is None else counted(self.count[rows])
        return Samples(at, ts_ms, self.value[rows], self.ok[rows], trace, record, count)

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """One after the other."""
        if len(parts) == 1:
            return parts[0]
        at = np.concatenate([part.at for part in parts])
        alike = all(part.ts_ms is part.at for part in parts)
        traces = [part.trace for part in parts if part.trace is not None]
        records = [part.record for part in parts if part.record is not None]
        return cls(
            at,
            at if alike else np.concatenate([part.ts_ms for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.ok for part in parts]),
            pl.concat(traces) if traces else None,
            np.concatenate(records) if records else None,
            _joined_counts(parts),
        )

    @classmethod
    def nothing(cls) -> Samples:
        """No rows."""
        at = np.empty(0, np.int64)
        return cls(at, at, np.empty(0, np.float64), np.empty(0, np.bool_))


def _joined_counts(parts: Sequence[Samples]) -> Counts:
    if all(part.count is None for part in parts):
        return None
    return np.concatenate([np.ones(len(part), np.int64) if part.count is None else part.count for part in parts])


class Chunk:
    """Samples that were seen before and may still lie in a window (the first `start`), then new ones.

    The new ones come in arrivals: `times[g]` is the time of arrival g, `ends[g]` the row behind its last sample.
    `eff` is the time at which a sample counts (semantics.md section 2); `in_order`: it never goes back.
    """

    __slots__ = (
        "_arrival", "_traced", "at", "count", "eff", "ends", "in_order", "ok", "samples", "start", "times", "value",
    )  # fmt: skip

    def __init__(self, samples: Samples, start: int) -> None:
        self.samples, self.start = samples, start
        self.at, self.value, self.ok, self.count = samples.at, samples.value, samples.ok, samples.count
        traces = samples.trace
        traced = None if traces is None else np.flatnonzero(traces.is_not_null().to_numpy()).astype(np.int64)
        self._traced = None if traced is None else array("q", traced.tobytes())
        alike = samples.ts_ms is samples.at
        self.eff = self.at if alike else np.minimum(samples.ts_ms, self.at)
        self.in_order = alike or not bool((self.eff[1:] < self.eff[:-1]).any())
        self._arrival = self.at if samples.record is None else samples.record
        is_last = np.ones(len(samples) - start, np.bool_)
        np.not_equal(self._arrival[start + 1 :], self._arrival[start:-1], out=is_last[:-1])
        self.ends = np.flatnonzero(is_last)
        self.times = self.at[start:][self.ends]
        self.ends += start + 1

    def begin(self, group: int) -> int:
        """The row of an arrival's first sample."""
        return int(self.ends[group - 1]) if group else self.start

    def batch(self, group: int) -> Batch:
        """What arrived then."""
        start, stop = self.begin(group), int(self.ends[group])
        count = None if self.count is None else self.count[start:stop]
        trace = self.newest_trace(start, stop)
        return Batch(self.samples.ts_ms[start:stop], self.value[start:stop], self.ok[start:stop], trace, count)

    def held(self, stop: int) -> Batch:
        """The rows before `stop`, each at the time it counts at, without a trace."""
        count = None if self.count is None else self.count[:stop]
        return Batch(self.eff[:stop], self.value[:stop], self.ok[:stop], count=count)

    def newest_trace(self, start: int, stop: int) -> tuple[int, str] | None:
        """(time it counts at, trace_id) of the newest of these rows that has one; of equal ones the last to arrive."""
        traces = self.samples.trace
        if traces is None or self._traced is None or start == stop:
            return None
        first = bisect_left(self._traced, start)
        found = self._traced[first : bisect_left(self._traced, stop, first)]
        if len(found) < 2:
            return (int(self.eff[found[0]]), str(traces[found[0]])) if found else None
        rows = np.array(found)
        rows = rows[self.eff[rows] == self.eff[rows].max()]
        rows = rows[self._arrival[rows] == self._arrival[rows[-1]]]
        ts_ms = self.samples.ts_ms[rows]
        row = int(rows[np.flatnonzero(ts_ms == ts_ms.max())[-1]])
        return int(self.eff[row]), str(traces[row])

    def still_held(self, window_ms: int, samples_max: int) -> Samples:
        """The rows that may lie in a window of this length from the last arrival on; at most `samples_max`, newest."""
        if not len(self.at):
            return self.samples
        low = int(self.at[-1]) - window_ms
        if self.in_order:
            first = max(int(np.searchsorted(self.eff, low, "right")), len(self.at) - samples_max)
            return self.samples.copied(first, len(self.at))
        rows = np.flatnonzero(self.eff > low)
        if len(rows) > samples_max:
            newest = np.argsort(self.eff[rows], kind="stable")[-samples_max:]
            rows = rows[np.sort(newest)]
        return self.samples.pick(rows)


DENSE = 8
"""Up to so many milliseconds per time, counting by the millisecond beats searching."""


def passed(times: Int64, bounds: Int64) -> Int64:
    """How many of the ascending `times` are <= each of the ascending `bounds`."""
    if not len(times) or not len(bounds):
        return np.zeros(len(bounds), np.int64)
    start = int(np.searchsorted(times, bounds[0], "right"))
    stop = int(np.searchsorted(times, bounds[-1], "right"))
    inside = times[start:stop]
    span = int(bounds[-1]) - int(bounds[0])
    if span > DENSE * min(len(inside), len(bounds)):
        return start + np.searchsorted(inside, bounds, "right")
    counts = np.cumsum(np.bincount(inside - bounds[0], minlength=span + 1))
    return np.asarray(start + counts[bounds - bounds[0]])
