"""The exact sliding window of a breaker: columns by effective time, ties in arrival order (semantics.md section 2).

Expire, then add, then read: `core.machine` calls in that order, and `core.accumulators` hears of every
sample that comes or goes. A sample held costs 17 bytes of columns plus slack, 25 while one of the window stands for
more than one observation. One storage has two code paths: scalar loops for small batches, short-lived numpy views for
large ones and for counted samples (a view blocks resizing, so none is kept).

Late samples: the newest part of the window takes them in place; those that belong deeper go to a second small sorted
run, which is merged once it outgrows a fraction of the first. Among equal times the samples of the first run came
earlier: whatever is not newer than the second run's end joins that run.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from breaker_actors.core.accumulators import Accumulator
from breaker_actors.core.model import Batch, Counts, Flags, Float64, Int64, Rows

SMALL_BATCH = 8
"""Up to here a loop over plain numbers beats numpy."""
NEAR = 1024
"""A late sample at most this many places (and two batches) from the end is moved in place."""
LATE_MIN = 1024
LATE_FRACTION = 16
SHIFTED = 16
"""So many rows that are shifted to let one sample in cost as much as one that is rewritten, some 8 ns."""


class Run:
    """Sorted columns with a head index: what lies before it has left, its memory goes back in larger pieces.

    `count`: how many observations each stands for; None: each for one."""

    __slots__ = ("count", "head", "ok", "time", "value")

    def __init__(self, counted: bool = False) -> None:
        self.time = array("q")
        self.value = array("d")
        self.ok = bytearray()
        self.count = array("q") if counted else None
        self.head = 0

    def __len__(self) -> int:
        return len(self.time) - self.head

    def values(self, start: int) -> Float64:
        """A view of the values from index `start` on."""
        return np.frombuffer(self.value, np.float64)[start:]

    def flags(self, start: int) -> Flags:
        """A view of the ok flags from index `start` on."""
        return np.frombuffer(self.ok, np.bool_)[start:]

    def counts(self, start: int) -> Counts:
        """A view of the counts from index `start` on."""
        return None if self.count is None else np.frombuffer(self.count, np.int64)[start:]

    def count_each(self) -> None:
        """From here on samples may stand for several observations; those held stand for one each."""
        self.count = array("q", np.ones(len(self.time), np.int64).tobytes())

    def insert(self, time: int, value: float, ok: bool, count: int = 1) -> int:
        """Puts one sample behind all that are not newer; what was moved for it, in rows rewritten."""
        at = bisect_right(self.time, time, self.head)
        self.time.insert(at, time)
        self.value.insert(at, value)
        self.ok.insert(at, ok)
        if self.count is not None:
            self.count.insert(at, count)
        return (len(self.time) - at) // SHIFTED

    def append(self, time: Int64, value: Float64, ok: Flags, counts: Counts) -> None:
        """Sorted columns, none older than the end of the run (`merge` sorts what is)."""
        self.time.frombytes(time.tobytes())
        self.value.frombytes(value.tobytes())
        self.ok += ok.tobytes()
        if self.count is not None:
            self.count.frombytes((np.ones(len(time), np.int64) if counts is None else counts).tobytes())

    def merge(self, time: Int64, value: Float64, ok: Flags, counts: Counts) -> int:
        """Sorted columns that may reach into the run: only the part they touch is rewritten, in place, and few are
        inserted; how many rows were rewritten."""
        n = len(time)
        at = bisect_right(self.time, int(time[0]), self.head) if n else len(self.time)
        if at == len(self.time):
            self.append(time, value, ok, counts)
            return 0
        if n <= SMALL_BATCH:
            each = [1] * n if counts is None else counts.tolist()
            rows = zip(time.tolist(), value.tolist(), ok.tolist(), each, strict=True)
            return sum([self.insert(*row) for row in rows])
        self.append(time, value, ok, counts)
        times = np.frombuffer(self.time, np.int64)[at:]
        order = np.argsort(times, kind="stable")
        for column in (times, self.values(at), self.flags(at), self.counts(at)):
            if column is not None:
                column[:] = column[order]
        return len(order)

    def release(self, to: int) -> None:
        """Moves the head; gives memory back when a quarter of the columns is dead, which costs O(1) per sample."""
        if to == len(self.time):
            self.time, self.value, self.ok, self.head = array("q"), array("d"), bytearray(), 0
            self.count = None if self.count is None else array("q")
            return
        self.head = to
        if to >= 32 and 4 * to >= len(self.time):
            del self.time[:to], self.value[:to], self.ok[:to]
            if self.count is not None:
                del self.count[:to]
            self.head = 0


class SampleWindow(Protocol):
    """What evidence asks of the samples that count: `Window` keeps them, others may look them up."""

    acc: Accumulator
    moved: int
    """Rows that left together, or were moved to let late samples in, since who counts them set this to 0."""

    def __len__(self) -> int: ...

    @property
    def observations(self) -> int:
        """How many the samples stand for."""

    @property
    def oldest_ms(self) -> int | None:
        """The earliest effective time."""

    def values(self) -> Float64: ...

    def flags(self) -> Flags: ...

    def counts(self) -> Counts: ...

    def since(self, low: int) -> tuple[Float64, Flags, Counts]:
        """Values, flags and counts of the samples after an effective time."""

    def add(self, batch: Batch, received_ms: int, low: int) -> tuple[int, int]:
        """A batch comes in; how many of it were late, and how many samples left early."""

    def take(self, rows: Rows, start: int, stop: int, low: int) -> bool:
        """What has left by `low` goes, then a piece of a metric comes in as a whole, none of it late and nothing
        leaving early. False: it does not, and is to be added as a batch."""

    def expire(self, low: int) -> None:
        """Samples up to an effective time leave."""

    def recount(self, acc: Accumulator) -> None:
        """Another accumulator follows from now on."""

    def clear(self) -> None: ...

    def bound(self, samples_max: int) -> int:
        """So many samples at most from now on; how many left."""


class Window:
    """The samples held for one breaker, with the accumulator that follows them."""

    __slots__ = ("_counted", "_late", "_main", "_max", "_more", "acc", "moved")

    def __init__(self, acc: Accumulator, samples_max: int) -> None:
        self.acc = acc
        self._max = samples_max
        self._main = Run()
        self._late: Run | None = None
        self._counted = False
        self._more = 0
        """Observations beyond one per sample."""
        self.moved = 0

    def __len__(self) -> int:
        main = self._main
        n = len(main.time) - main.head
        return n if self._late is None else n + len(self._late)

    @property
    def observations(self) -> int:
        main = self._main
        n = len(main.time) - main.head + self._more
        return n if self._late is None else n + len(self._late)

    @property
    def oldest_ms(self) -> int | None:
        """Effective time of the sample that leaves next."""
        main, late = self._main, self._late
        if late is None:
            return main.time[main.head] if main.time else None
        first = late.time[late.head]
        return min(first, main.time[main.head]) if main.time else first

    def values(self) -> Float64:
        """All values held; a view that must be gone before the window changes."""
        main = self._main.values(self._main.head)
        return main if self._late is None else np.concatenate([main, self._late.values(self._late.head)])

    def flags(self) -> Flags:
        """All ok flags held, in the order of `values`; a view likewise."""
        main = self._main.flags(self._main.head)
        return main if self._late is None else np.concatenate([main, self._late.flags(self._late.head)])

    def counts(self) -> Counts:
        """All counts held, in the order of `values`; a view likewise."""
        if not self._counted:
            return None
        return _joined([run.counts(run.head) for run in self._runs()])

    def _runs(self) -> list[Run]:
        return [self._main] if self._late is None else [self._main, self._late]

    def since(self, low: int) -> tuple[Float64, Flags, Counts]:
        """Values, flags and counts of the samples newer than `low`, without changing anything."""
        runs = self._runs()
        starts = [bisect_right(run.time, low, run.head) for run in runs]
        parts = list(zip(runs, starts, strict=True))
        return (
            np.concatenate([run.values(start) for run, start in parts]),
            np.concatenate([run.flags(start) for run, start in parts]),
            _joined([run.counts(start) for run, start in parts]) if self._counted else None,
        )

    def recount(self, acc: Accumulator) -> None:
        """Another accumulator takes over, filled from the columns held."""
        self.acc = acc
        if len(self):
            acc.add_many(self.values(), self.flags(), self.counts())

    def clear(self) -> None:
        """Holds nothing from here on."""
        self._main, self._late = Run(), None
        self._counted, self._more = False, 0
        self.acc.clear()

    # -- leaving ------------------------------------------------------------------------------------------------------

    def expire(self, low: int) -> None:
        """Samples with effective time <= low leave."""
        main = self._main
        if main.time and main.time[main.head] <= low:
            self._leave(main, bisect_right(main.time, low, main.head))
        late = self._late
        if late is not None and late.time[late.head] <= low:
            self._leave(late, bisect_right(late.time, low, late.head))

    def _leave(self, run: Run, to: int) -> None:
        """What lies before index `to` of a run leaves; the accumulator takes the cheapest way there."""
        gone, acc = to - run.head, self.acc
        left = len(self) - gone
        if not left:
            self.clear()
            return
        if gone <= SMALL_BATCH and not self._counted:
            acc.drop_few(run.value[run.head : to], run.ok[run.head : to])
        else:
            self._drop_many(run, gone, gone <= max(left, SMALL_BATCH))
            self.moved += gone
        run.release(to)
        if self._late is not None and not self._late.time:
            self._late = None
        if gone > max(left, SMALL_BATCH):
            acc.clear()
            acc.add_many(self.values(), self.flags(), self.counts())

    def _drop_many(self, run: Run, gone: int, followed: bool) -> None:
        """`followed`: the accumulator hears of it."""
        counts = run.counts(run.head)
        if counts is not None:
            counts = counts[:gone]
            self._more -= int(counts.sum()) - gone
        if followed:
            self.acc.drop_many(run.values(run.head)[:gone], run.flags(run.head)[:gone], counts)

    def bound(self, samples_max: int) -> int:
        """Holds so many samples at most from here on; how many leave for it."""
        self._max = samples_max
        return self._truncate()

    def _truncate(self) -> int:
        """The oldest leave while more than the bound are held; how many had to."""
        excess = len(self) - self._max
        if excess <= 0:
            return 0
        late = self._late
        if late is None:
            self._leave(self._main, self._main.head + excess)
            return excess
        from_late = self._oldest_in_late(late, excess)
        if from_late:
            self._leave(late, late.head + from_late)
        if excess > from_late:
            self._leave(self._main, self._main.head + excess - from_late)
        return excess

    def _oldest_in_late(self, late: Run, count: int) -> int:
        """Of the `count` oldest samples, how many lie in the late run (ties: the first run's came earlier)."""
        main = self._main

        def rank(k: int) -> int:
            return k + bisect_right(main.time, late.time[late.head + k], main.head) - main.head

        return bisect_left(range(len(late)), count, key=rank)

    # -- coming -------------------------------------------------------------------------------------------------------

    def add(self, batch: Batch, received_ms: int, low: int) -> tuple[int, int]:
        """Takes the samples newer than `low`; returns how many came too late and how many were truncated."""
        n = len(batch.ts_ms)
        if not n:
            return 0, 0
        if batch.count is not None and not self._counted:
            self._counted = True
            for run in self._runs():
                run.count_each()
        if n <= SMALL_BATCH and not self._counted:
            late = self._add_few(batch, received_ms, low)
        else:
            late = self._add_many(batch, received_ms, low)
        return late, self._truncate() if len(self) > self._max else 0

    def take(self, rows: Rows, start: int, stop: int, low: int) -> bool:
        """Expires, and takes rows that follow each other and what is held, all of them newer than `low`. False: they
        are not so, and were not taken."""
        main, times = self._main, rows.time
        held = main.time
        if self._late is not None or (held and held[main.head] <= low):
            self.expire(low)
            main = self._main
            held = main.time
        first, n = times[start], stop - start
        if (
            first <= low
            or start in rows.torn
            or (held and first < held[-1])
            or self._late is not None
            or self._counted
            or len(held) - main.head + n > self._max
        ):
            return False
        value, ok = rows.value[start:stop], rows.ok[start:stop]
        held += times[start:stop]
        main.value += value
        main.ok += ok
        if n <= SMALL_BATCH:
            self.acc.add_few(value, ok)
        else:
            self.acc.add_many(rows.batch.value[start:stop], rows.batch.ok[start:stop])
        return True

    def _add_few(self, batch: Batch, received_ms: int, low: int) -> int:
        late, values, flags = 0, list[float](), list[bool]()
        for ts_ms, value, ok in zip(batch.ts_ms.tolist(), batch.value.tolist(), batch.ok.tolist(), strict=True):
            time = ts_ms if ts_ms < received_ms else received_ms
            if time <= low:
                late += 1
                continue
            values.append(value)
            flags.append(ok)
            main = self._main
            if self._late is None and (not main.time or time >= main.time[-1]):
                main.time.append(time)
                main.value.append(value)
                main.ok.append(ok)
            else:
                self._place_one(time, value, ok)
        if values:
            self.acc.add_few(values, flags)
        return late

    def _place_one(self, time: int, value: float, ok: bool) -> None:
        main, late = self._main, self._late
        if late is not None and time <= late.time[-1]:
            self.moved += late.insert(time, value, ok)
            self._merge_runs()
        elif len(main) <= NEAR or time >= main.time[-NEAR]:
            self.moved += main.insert(time, value, ok)
        else:
            self._late = late = late or Run()
            self.moved += late.insert(time, value, ok)
            self._merge_runs()

    def _add_many(self, batch: Batch, received_ms: int, low: int) -> int:
        time, value, ok, counts = np.minimum(batch.ts_ms, received_ms), batch.value, batch.ok, batch.count
        if (time[1:] < time[:-1]).any():
            order = np.argsort(time, kind="stable")
            time, value, ok, counts = time[order], value[order], ok[order], None if counts is None else counts[order]
        late = 0
        if time[0] <= low:
            late = int(np.searchsorted(time, low, side="right"))
            time, value, ok, counts = time[late:], value[late:], ok[late:], None if counts is None else counts[late:]
        if len(time):
            self.acc.add_many(value, ok, counts)
            self._more += 0 if counts is None else int(counts.sum()) - len(counts)
            self._place_many(time, value, ok, counts)
        return late

    def _place_many(self, time: Int64, value: Float64, ok: Flags, counts: Counts) -> None:
        """Sorted columns go where they belong: the late run, its continuation, or the newest part of the first."""
        main = self._main
        if self._late is None and (not main.time or time[0] >= main.time[-1]):
            main.append(time, value, ok, counts)
            return
        deep = self._deep_count(time)
        few, rest = (None, None) if counts is None else (counts[:deep], counts[deep:])
        if deep:
            self._late = self._late or Run(self._counted)
            self.moved += self._late.merge(time[:deep], value[:deep], ok[:deep], few)
            self._merge_runs()
        self.moved += self._main.merge(time[deep:], value[deep:], ok[deep:], rest)

    def _deep_count(self, time: Int64) -> int:
        """How many of the sorted times belong into the late run."""
        main, near = self._main, NEAR + 2 * len(time)
        deep = 0
        if self._late is not None:
            deep = int(np.searchsorted(time, self._late.time[-1], side="right"))
        if len(main) > near:
            deep = max(deep, int(np.searchsorted(time, main.time[-near], side="left")))
        return deep

    def _merge_runs(self) -> None:
        """The late run joins the first once it is no longer small beside it."""
        late, main = self._late, self._main
        if late is None or len(late) <= max(LATE_MIN, len(main) // LATE_FRACTION):
            return
        time = np.frombuffer(late.time, np.int64)[late.head :]
        self.moved += main.merge(time, late.values(late.head), late.flags(late.head), late.counts(late.head))
        self._late = None


def _joined(parts: Sequence[Counts]) -> Counts:
    """Counts of runs that are all counted."""
    known = [part for part in parts if part is not None]
    return known[0] if len(known) == 1 else np.concatenate(known)
