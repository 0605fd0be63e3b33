"""Series and points as every open protocol gives them: what a mapping looks at, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct, unpack
from typing import Literal

import msgspec

from breaker_actors.core.counters import packed, packed_floats
from breaker_actors.core.model import Flags, Float64, Int64

SeriesType = Literal["gauge", "sum", "histogram", "summary", "unknown"]
Temporality = Literal["delta", "cumulative"]
_double = Struct("<d").unpack_from


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series: its name and what describes it.

    `labels`: of the data point (OTLP attributes, Prometheus labels without `__name__`, StatsD tags); `resource`: of who
    sent it (OTLP resource attributes; empty for others). All values are text, as Prometheus would print them (true,
    false, decimal numbers). `temporality`: None where it has none, or nobody said. `monotonic`: a sum that only rises.
    `identity`: 16 bytes, the same for the same project-independent series in every request, replica and process
    (xxh3_128 over a canonical encoding of name, sorted labels, sorted resource, type); of OTLP 8 more where there is a
    unit or the histogram is exponential (xxh3_64 over both).
    """

    name: str
    labels: dict[str, str]
    resource: dict[str, str]
    type: SeriesType
    temporality: Temporality | None
    monotonic: bool
    unit: str
    identity: bytes


class Histogram(msgspec.Struct, frozen=True, gc=False):
    """One histogram point: what was observed since `start_ms` (0: nobody said).

    `values`: what stands for each bucket that is not empty, ascending (the one value where min == max; the middle of
    the bucket's bounds, clipped to min and max where given; geometric middle for exponential ones); `counts`: how many
    each holds, whole numbers. `layout`: names the scheme of buckets; cumulative points of another layout can't be
    subtracted. `buckets`: number of the bucket that each value stands for; the same bucket has the same number in every
    point of one layout. All three are packed as those of a `CounterPoint`, so a total is passed on as it was made.
    """

    values: bytes
    counts: bytes
    layout: bytes
    buckets: bytes

    @classmethod
    def of(cls, values: Sequence[float], counts: Sequence[int], layout: bytes, buckets: Sequence[int]) -> Histogram:
        """The same from numbers."""
        return cls(packed_floats(values), packed(counts), layout, packed(buckets))

    @property
    def size(self) -> int:
        """How many buckets are not empty."""
        return len(self.values) >> 3

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest of its values, 0 where it has none."""
        return (_double(self.values)[0], _double(self.values, -8)[0]) if self.values else (0.0, 0.0)

    def numbers(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Its values, and how many each stands for."""
        n = len(self.values) >> 3
        return unpack(f"<{n}d", self.values), unpack(f"<{n}q", self.counts)

    def observations(self) -> Iterator[tuple[float, int]]:
        """The same in pairs."""
        return zip(*self.numbers(), strict=True)


class BadPoint(msgspec.Struct, frozen=True):
    """A point that could not be read although its message could.

    `where`: "resourceMetrics[0].scopeMetrics[0].metrics[3].sum.dataPoints[1]" or "timeseries[7].samples[0]".
    """

    where: str
    code: str
    message: str


@dataclass(slots=True, kw_only=True, eq=False)
class Points:
    """The points of one request as plain columns, in the order of the request.

    `series`: distinct, in order of appearance; `of`: index into `series` per point. `ts_ms`: 0 where the sender gave
    none; `start_ms`: 0 where nobody said. `value`: NaN for histograms and for absent ones. `absent`: stale marker or no
    recorded value: the series has ended or pauses, never a value. `histograms`: by point number; many
    are made when somebody asks for them. `traces`: trace id (hex) of its newest exemplar by point number; `exemplars`:
    how many came along. `bad`: points that are in no column.
    """

    series: list[Series]
    of: Int64
    ts_ms: Int64
    start_ms: Int64
    value: Float64
    absent: Flags
    histograms: Mapping[int, Histogram]
    traces: dict[int, str]
    exemplars: int
    bad: list[BadPoint]
