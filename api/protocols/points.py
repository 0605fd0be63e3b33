"""Series and points as every open protocol gives them: what a mapping looks at, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from breaker_actors.core.model import Flags, Float64, Int64

SeriesType = Literal["gauge", "sum", "histogram", "summary", "unknown"]
Temporality = Literal["delta", "cumulative"]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One series: its name and what describes it.

    `labels`: of the data point (OTLP attributes, Prometheus labels without `__name__`, StatsD tags); `resource`: of who
    sent it (OTLP resource attributes; empty for others). All values are text, as Prometheus would print them (true,
    false, decimal numbers). `temporality`: None where it has none, or nobody said. `monotonic`: a sum that only rises.
    `identity`: 16 bytes, the same for the same project-independent series in every request, replica and process
    (xxh3_128 over a canonical encoding of name, sorted labels, sorted resource, type).
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
    point of one layout.
    """

    values: tuple[float, ...]
    counts: tuple[int, ...]
    layout: bytes
    buckets: tuple[int, ...]


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
