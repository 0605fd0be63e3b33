"""Rows of one request on their way into columns."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from api.protocols.bounds import ENTRIES_MAX, POINTS_MAX
from api.protocols.memory import Generations, told_apart
from api.protocols.points import BadPoint, Histogram, Points, Series
from api.protocols.series import Flaw, Text
from breaker_actors.core.model import Float64, Int64
from breaker_actors.errors import PayloadTooLarge

STALE_BITS = 0x7FF0_0000_0000_0002
"""The NaN by which Prometheus says that a series has ended."""
NAN = float("nan")
_identity: Callable[[Series], bytes] = attrgetter("identity")


def too_many_points() -> PayloadTooLarge:
    """The error beyond POINTS_MAX."""
    return PayloadTooLarge(f"A request has at most {POINTS_MAX} points.", {"where": "body"})


def too_many_entries() -> PayloadTooLarge:
    """The error beyond ENTRIES_MAX."""
    return PayloadTooLarge(
        f"A request has at most {ENTRIES_MAX} time series, resources, scopes, metrics.", {"where": "body"}
    )


class Columns:
    """Rows so far. A row is its series in `found`, and numbers: either in what a shortcut collects (which then has a
    row for each of `found`), or in `patches` by row number: ts_ms, start_ms, value, absent.

    `memory`: where `found` are from. All are of the generation that is young when the request begins, unless another is
    young in the end, or there were `strangers`, which are not remembered."""

    __slots__ = (
        "_memory", "_young", "bad", "exemplars", "found", "histograms", "newest", "patches", "strangers", "text",
        "traces",
    )  # fmt: skip

    def __init__(self, memory: Generations[Series]) -> None:
        self._memory, self._young, self.strangers = memory, memory.young, False
        self.found: list[Series] = []
        self.patches: dict[int, tuple[int, int, float, bool]] = {}
        self.histograms: dict[int, Histogram] = {}
        self.traces: dict[int, str] = {}
        self.newest: dict[bytes, tuple[int, str]] = {}
        self.exemplars = 0
        self.text = Text()
        self.bad: list[BadPoint] = []

    def remember(self, key: bytes, series: Series) -> Series:
        """Puts a series into the memory, and gives the one that stands for it from now on."""
        kept = self._memory.put(key, series)
        self.strangers = self.strangers or kept is None
        return series if kept is None else kept

    def add(self, series: Series, ts_ms: int, start_ms: int, value: float, absent: bool) -> None:
        """A row that no shortcut took."""
        self.patches[len(self.found)] = (_int64(ts_ms), _int64(start_ms), NAN if absent else value, absent)
        self.found.append(series)
        self.check_size()

    def add_histogram(self, series: Series, ts_ms: int, start_ms: int, histogram: Histogram | None) -> None:
        """The same for a histogram; None where it is absent."""
        if histogram is not None:
            self.histograms[len(self.found)] = histogram
        self.add(series, ts_ms, start_ms, NAN, histogram is None)

    def refuse(self, where: str, flaw: Flaw) -> None:
        """A point that is in no column."""
        self.bad.append(BadPoint(where, flaw.code, flaw.message))
        self.check_size()

    def check_size(self, more: int = 0) -> None:
        """Raises PayloadTooLarge where there are more than POINTS_MAX, with `more` to come."""
        if len(self.found) + len(self.bad) + more > POINTS_MAX:
            raise too_many_points()

    def note_trace(self, series: Series, ts_ms: int, trace: str) -> None:
        """The trace of a series' exemplar; the newest goes to the last point of the series."""
        self.text.spend(len(trace))
        known = self.newest.get(series.identity)
        if known is None or known[0] <= ts_ms:
            self.newest[series.identity] = (ts_ms, trace)

    def points(self, ts_ms: Int64, start_ms: Int64, value: Float64) -> Points:
        """All rows as columns; what is in `patches` replaces what the given columns hold."""
        self.check_size()
        value = value.copy()
        absent = value.view(np.int64) == STALE_BITS
        if self.patches:
            rows = np.fromiter(self.patches, np.int64, len(self.patches))
            columns: Any = list(zip(*self.patches.values(), strict=True))
            ts_ms[rows], start_ms[rows], value[rows], absent[rows] = columns
        value[absent] = NAN
        series, of = distinct(self.found, not self.strangers and self._memory.young is self._young)
        if self.newest:
            last = {series[number].identity: row for row, number in enumerate(of.tolist())}
            self.traces |= {last[who]: trace for who, (_, trace) in self.newest.items() if who in last}
        return Points(
            series=series, of=of, ts_ms=ts_ms, start_ms=start_ms, value=value, absent=absent,
            histograms=self.histograms, traces=self.traces, exemplars=self.exemplars, bad=self.bad,
        )  # fmt: skip


def distinct(found: list[Series], of_one_generation: bool = False) -> tuple[list[Series], Int64]:
    """Each series once, in order of appearance, and the number of each one found. `of_one_generation`: of a memory, so
    that no two objects among them are equal; that is known without a look at any of them."""
    tell: Callable[[Series], object] = id if of_one_generation else _identity
    if len(set(map(tell, found))) == len(found):
        return found, np.arange(len(found), dtype=np.int64)
    numbers: dict[object, int] = {}
    series: list[Series] = []
    of = []
    for one in found:
        number = numbers.setdefault(told_apart(one), len(series))
        if number == len(series):
            series.append(one)
        of.append(number)
    return series, np.array(of, np.int64)


def retyped(points: Points, change: Callable[[Series], Series]) -> None:
    """Gives each series its type anew; those that get equal become one."""
    series, of = distinct([change(one) for one in points.series])
    points.series, points.of = series, of[points.of]


def _int64(value: int) -> int:
    return max(-(1 << 63), min(value, (1 << 63) - 1))
