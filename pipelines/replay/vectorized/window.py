"""What a breaker knows of its samples while it walks over a chunk: looked up in the columns instead of kept.

`Lookup` takes the place of `core.window.Window` under `core.evidence.Evidence`; whatever it is asked, it answers as the
definitions of `core.definitions` do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from breaker_actors.core.accumulators import COMPARE, Accumulator, Columns
from breaker_actors.core.definitions import P95, exact_value, inner_kind, nearest, observations, percent_of, rank
from breaker_actors.core.evidence import LONG_AGO, Evidence
from breaker_actors.core.model import Agg, Batch, Counts, Flags, Float64, Record, Rows, Rule
from pipelines.columns import Chunk, Samples
from pipelines.replay.vectorized.aggregates import NEAR, RANKED, near_bounds_of_one, value_bounds_of_one
from pipelines.replay.vectorized.breach_tests import places_of
from pipelines.replay.vectorized.exact_sums import TooWide
from pipelines.replay.vectorized.order_statistics import cut_of, rises
from pipelines.replay.vectorized.prefix_columns import PrefixColumns


class Lookup:
    """The rows of a chunk before `stop` that are newer than what has expired, at most the newest `samples_max`: a
    `SampleWindow` of the core. A walk keeps its rule, so it is never counted anew, emptied or bounded."""

    __slots__ = ("_chunk", "_low", "_max", "_rows", "_stop", "acc", "moved", "prefixes")

    def __init__(self, rule: Rule, samples_max: int) -> None:
        self.acc: Accumulator = ChunkAccumulator(rule, self)
        self._max, self._low, self.moved = samples_max, LONG_AGO, 0
        self.place(Chunk(Samples.nothing(), 0), None)

    def place(self, chunk: Chunk, prefixes: PrefixColumns | None) -> None:
        """Over the next chunk, at its start. `prefixes`: of all its rows, given when their times never go back."""
        self._chunk, self.prefixes = chunk, prefixes
        self.stand(chunk.start)

    def stand(self, stop: int) -> None:
        """The rows before `stop` have arrived."""
        self._stop = stop
        self._rows: slice | np.typing.NDArray[np.intp] | None = None

    def rows(self) -> slice | np.typing.NDArray[np.intp]:
        """Those in the window: a slice where times never go back."""
        if self._rows is None:
            self._rows = self._slice() if self._chunk.in_order else self._scattered()
        return self._rows

    def _slice(self) -> slice:
        first = int(np.searchsorted(self._chunk.eff, self._low, "right"))
        return slice(min(max(first, self._stop - self._max), self._stop), self._stop)

    def _scattered(self) -> np.typing.NDArray[np.intp]:
        chunk = self._chunk
        first = int(np.searchsorted(chunk.at, self._low, "right"))
        rows = first + np.flatnonzero(chunk.eff[first : self._stop] > self._low)
        if len(rows) > self._max:
            rows = rows[np.argsort(chunk.eff[rows], kind="stable")[-self._max :]]
        return rows

    # -- what the evidence asks for -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        rows = self.rows()
        return rows.stop - rows.start if isinstance(rows, slice) else len(rows)

    @property
    def observations(self) -> int:
        return observations(len(self), self.counts())

    @property
    def oldest_ms(self) -> int | None:
        eff = self._chunk.eff[self.rows()]
        return int(eff.min()) if len(eff) else None

    def values(self) -> Float64:
        return self._chunk.value[self.rows()]

    def flags(self) -> Flags:
        return self._chunk.ok[self.rows()]

    def counts(self) -> Counts:
        count = self._chunk.count
        return None if count is None else count[self.rows()]

    def since(self, low: int) -> tuple[Float64, Flags, Counts]:
        rows, count = np.arange(self._stop)[self.rows()], self._chunk.count
        rows = rows[self._chunk.eff[rows] > low]
        return self._chunk.value[rows], self._chunk.ok[rows], None if count is None else count[rows]

    def add(self, batch: Batch, received_ms: int, low: int) -> tuple[int, int]:
        """The next rows have arrived. What is late or truncated is counted by who walks."""
        self.stand(self._stop + len(batch))
        return 0, 0

    def take(self, rows: Rows, start: int, stop: int, low: int) -> bool:
        raise NotImplementedError

    def expire(self, low: int) -> None:
        if low != self._low:
            self._low, self._rows = low, None

    def recount(self, acc: Accumulator) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def bound(self, samples_max: int) -> int:
        raise NotImplementedError


class ChunkAccumulator:
    """The accumulator over a `Lookup`: follows nothing, decides from prefix sums or from the values themselves."""

    __slots__ = ("_compare", "_cut", "_kind", "_percent", "_places", "_rises", "_threshold", "_window")

    def __init__(self, rule: Rule, window: Lookup) -> None:
        self._kind, self._window = inner_kind(rule), window
        self._compare, self._threshold = COMPARE[rule.op], rule.threshold
        self._cut, self._rises = cut_of(rule.op, rule.threshold), rises(rule.op)
        self._percent, self._places = percent_of(rule) if rule.kind == "percentile" else P95, places_of(rule)

    def add_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def drop_few(self, values: Sequence[float], ok: Sequence[int]) -> None: ...

    def add_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def drop_many(self, values: Float64, ok: Flags, counts: Counts = None) -> None: ...

    def clear(self) -> None: ...

    def may_breach(self, n: int) -> bool:
        """Perhaps: then ticks are run that change nothing."""
        return True

    def breach(self, n: int, columns: Columns) -> bool:
        if self._kind in RANKED:
            reached, counts = columns.values() >= self._cut, columns.counts()
            above = int(np.count_nonzero(reached)) if counts is None else int(counts[reached].sum())
            return (above > n - self._places.of(n)) is self._rises
        for bounds in (self._near, self._bounds):
            low, high = bounds()
            at_low = self._compare(low, self._threshold)
            if at_low is self._compare(high, self._threshold):
                return at_low
        return self._compare(self._exact(columns), self._threshold)

    def value(self, n: int, columns: Columns) -> float:
        low, high = (-np.inf, np.inf) if self._kind in RANKED else self._bounds()
        return low if low == high else self._exact(columns)

    def _near(self) -> tuple[float, float]:
        return self._told(near_bounds_of_one) if self._kind in NEAR else (-np.inf, np.inf)

    def _bounds(self) -> tuple[float, float]:
        return self._told(value_bounds_of_one)

    def _told(self, bounds: Callable[[str, PrefixColumns, int, int], tuple[float, float]]) -> tuple[float, float]:
        rows, prefixes = self._window.rows(), self._window.prefixes
        if prefixes is None or not isinstance(rows, slice):
            return -np.inf, np.inf
        try:
            return bounds(self._kind, prefixes, rows.stop, rows.start)
        except TooWide:
            return -np.inf, np.inf

    def _exact(self, columns: Columns) -> float:
        return exact_value(self._kind, self._percent, columns.values(), columns.flags(), columns.counts())


class ChunkEvidence(Evidence):
    """The evidence of a breaker that walks. With `figures` False, events are not asked what they report."""

    __slots__ = ("figures",)

    def __init__(self, rule: Rule, record: Record, samples_max: int, figures: bool) -> None:
        super().__init__(rule, record, samples_max)
        self.figures = figures
        if self.window is not None:
            self.window = Lookup(rule, samples_max)

    def see(self, trace: tuple[int, str] | None) -> None:
        """The newest trace of samples that were not looked at one by one."""
        if trace is not None:
            self.keep_trace(trace, trace[0])

    def value(self) -> float | None:
        return super().value() if self.figures else None

    def agg(self) -> Agg:
        """As the core tells it; where prefix sums are at hand, without adding up the window."""
        window = self.window
        if not self.figures:
            return Agg()
        rows = window.rows() if isinstance(window, Lookup) and window.prefixes is not None else None
        if not isinstance(window, Lookup) or not isinstance(rows, slice) or rows.start == rows.stop:
            return super().agg()
        return self._summary(window.values(), window.prefixes, rows) or super().agg()

    def _summary(self, values: Float64, prefixes: PrefixColumns | None, rows: slice) -> Agg | None:
        n = len(values)
        if prefixes is None:
            return None
        try:
            total = prefixes.sum_of_one(rows.stop, rows.start)
        except TooWide:
            return None
        return Agg(total / n, n, prefixes.errors_of_one(rows.stop, rows.start), nearest(values, rank(P95, n)))
