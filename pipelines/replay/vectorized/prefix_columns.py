"""Samples that enter windows and leave them again, as two orders of the same columns.

A sample enters with its arrival and leaves when its own time is `window_ms` past; one that comes too late never enters.
Prefix sums over both orders then give any figure of any window as a difference. Where times never go back the two
orders are one, and a window is a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from breaker_actors.core.model import Flags, Float64, Int64
from pipelines.replay.vectorized.exact_sums import ExactSums, Index, TooWide
from pipelines.replay.vectorized.near_sums import NearSums
from pipelines.replay.vectorized.order_statistics import Cuts, Ranks


class PrefixColumns:
    """Samples that enter in this order and leave in the order of their times; `ordered`: that is the same order.

    What figures need of them is worked out once, on demand. `part`: of prefix columns whose sums are known to fit.
    """

    __slots__ = (
        "_known", "_one", "_ranks", "_rows_added", "eff", "gone_eff", "gone_ok", "gone_value", "ok", "ordered", "part",
        "value",
    )  # fmt: skip

    def __init__(self, eff: Int64, value: Float64, ok: Flags, ordered: bool, part: bool = False) -> None:
        self.part = part
        self.eff, self.value, self.ok, self.ordered = eff, value, ok, ordered
        self._known: dict[object, Any] = {}
        self._ranks: tuple[Cuts, Ranks] | None = None
        self._one, self._rows_added = (0, 0, 0.0), 0
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

    def gone_times(self) -> Int64:
        """The times of samples, in the order in which these leave, each once."""
        times: Int64 = self.known("gone times", lambda: distinct(self.gone_eff))
        return times

    def errors_of_one(self, entered: int, left: int) -> int:
        """`errors` of a single window."""
        if self.ordered and "errors" not in self._known:
            return entered - left - int(np.count_nonzero(self.ok[left:entered]))
        return int(self.errors(entered, left))

    def sums(self) -> ExactSums:
        """Sums of values; raises TooWide."""
        sums: ExactSums | None = self.known("sums", self._exact_sums)
        if sums is None:
            raise TooWide
        return sums

    def _exact_sums(self) -> ExactSums | None:
        try:
            return ExactSums(self.value, None if self.ordered else self.gone_value, part=self.part)
        except TooWide:
            return None

    def sum_of_one(self, entered: int, left: int) -> float:
        """The exact sum of a single window; raises TooWide. The first few are added up for themselves."""
        if "sums" in self._known or not self.ordered or self._rows_added > len(self.value):
            return self.sums().one(entered, left)
        if self._one[:2] != (entered, left):
            self._rows_added += entered - left
            self._one = entered, left, ExactSums(self.value[left:entered]).one(entered - left, 0)
        return self._one[2]

    def near(self) -> NearSums:
        """Sums of values to within a bound; raises TooWide."""
        gone = None if self.ordered else self.gone_value
        near: NearSums = self.known("near", lambda: NearSums(self.value, gone))
        return near

    def ranks(self, cuts: Cuts) -> Ranks:
        """Order statistics by class, under the cuts last asked for: a sweep has many, each as large as the columns."""
        if self._ranks is None or self._ranks[0] is not cuts:
            self._ranks = None
            self._ranks = cuts, Ranks(cuts, self.value, None if self.ordered else self.gone_value)
        return self._ranks[1]

    def values(self, entered: int, left: int) -> tuple[Float64, Flags]:
        """The values and flags in one window."""
        if self.ordered:
            return self.value[left:entered], self.ok[left:entered]
        inside = np.ones(entered, np.bool_) if not left else self.eff[:entered] > self.gone_eff[left - 1]
        return self.value[:entered][inside], self.ok[:entered][inside]


def distinct(ascending: Int64) -> Int64:
    """Each value once; np.unique would not know that they ascend, and takes a hundred times as long."""
    if not len(ascending):
        return ascending
    return np.asarray(ascending[np.append(True, ascending[1:] != ascending[:-1])])


def running(flags: Flags) -> Int64:
    """How many are set before each place, one more than there are."""
    counts = np.zeros(len(flags) + 1, np.int64)
    np.cumsum(flags, out=counts[1:])
    return counts
