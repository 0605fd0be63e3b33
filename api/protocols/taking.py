"""From the points of one request, and what each of their series becomes, to samples and totals per router. Pure.

A gauge's value is a sample. A rise (delta) is samples at once: n observations of one value, or one sample of its value.
A total (cumulative) goes to the router's owner, who knows the one before (`core.counters`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from itertools import chain, pairwise
from math import isfinite, isnan

import msgspec
import numpy as np

from api.protocols.bounds import BUCKETS_TOTAL_MAX
from api.protocols.mapping import Outcome, Refused, Target, Unmatched, refusal
from api.protocols.points import Histogram, Points, Series
from breaker_actors.core.counters import (
    EXTRA_MAX,
    RISE_MAX,
    CounterPoint,
    encode_points,
    in_samples,
)
from breaker_actors.core.log_entries import counted, encode_samples, shares_of
from breaker_actors.core.model import COUNT_MAX
from breaker_actors.messages import Part

HUGE = f"the points of more than {COUNT_MAX} observations are too many for one request"
ERRORS_MAX = 20
"""Rejected points that are told one by one."""
SHOWN = 5
"""Reasons that an answer repeats."""
NOTHING = encode_samples([], [], np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_))


class Rejected(msgspec.Struct, frozen=True):
    """A point that was not taken: where it stands, or which series it is of, and why."""

    where: str
    code: str
    message: str


class Span(msgspec.Struct, frozen=True):
    """The times that are taken; a point that says none is of `now_ms`."""

    now_ms: int
    oldest_ms: int
    newest_ms: int


class Rows:
    """Samples of one router and metric."""

    __slots__ = ("count", "ok", "trace", "ts_ms", "value")

    def __init__(self) -> None:
        self.ts_ms: list[int] = []
        self.value: list[float] = []
        self.ok: list[bool] = []
        self.count: list[int] = []
        self.trace: list[str] = []

    def add(self, ts_ms: int, value: float, ok: bool, count: int, trace: str) -> None:
        self.ts_ms.append(ts_ms)
        self.value.append(value)
        self.ok.append(ok)
        self.count.append(count)
        self.trace.append(trace)

    def extend(self, ts_ms: int, values: Sequence[float], ok: bool, counts: Sequence[int], trace: str) -> None:
        """The same for values of one point."""
        n = len(values)
        self.ts_ms += [ts_ms] * n
        self.value += values
        self.ok += [ok] * n
        self.count += counts
        self.trace += [trace] * n


class Taking:
    """What a request's points came to.

    `taken`, `unmatched`, `absent`: points that count, that no mapping takes or a built-in one passes over, that say
    their series pauses or are NaN; all of these are accepted. `reasons`: how many were rejected, by code; `errors`
    names the first ERRORS_MAX of them. `histograms`: how many of the accepted points are histograms; `extra`: samples
    of COUNT_MAX observations, `buckets`: those of all histograms."""

    __slots__ = (
        "absent",
        "buckets",
        "errors",
        "extra",
        "histograms",
        "reasons",
        "rows",
        "taken",
        "totals",
        "unmatched",
    )

    def __init__(self) -> None:
        self.taken = self.unmatched = self.absent = self.histograms = self.extra = self.buckets = 0
        self.reasons: Counter[str] = Counter()
        self.errors: list[Rejected] = []
        self.rows: dict[str, dict[str, Rows]] = {}
        self.totals: dict[str, list[CounterPoint]] = {}

    @property
    def accepted(self) -> int:
        return self.taken + self.unmatched + self.absent

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def reject(self, where: str, code: str, message: str) -> None:
        self.reasons[code] += 1
        if len(self.errors) < ERRORS_MAX:
            self.errors.append(Rejected(where, code, message))

    def words(self, unit: str) -> str:
        """How many points, by the protocol's word for them, were rejected, and why: up to SHOWN different reasons."""
        why = dict.fromkeys(f"{one.where}: {one.message} ({one.code})" for one in self.errors)
        others = ", the others are stored" if self.accepted else ""
        return f"{self.rejected} of {self.rejected + self.accepted} {unit} rejected{others}: " + "; ".join(
            list(why)[:SHOWN]
        )

    def had_no_room(self, router_id: str, n: int, message: str) -> None:
        """Of the router's totals so many were not kept; where numbers and histograms are among them, histograms are
        thought to be first."""
        self.taken -= n
        self.histograms -= min(n, sum(point.value is None for point in self.totals[router_id]))
        for _ in range(n):
            self.reject(f"router {router_id}", "too_many_series", message)

    def parts(
        self, keys: tuple[bytes, ...], splitting: Set[str] = frozenset(), with_traces: bool = False
    ) -> list[Part]:
        """One Part per router. `splitting`: routers that share samples out by their traces; `with_traces`: the ids go
        along for everybody."""
        routers = dict.fromkeys(chain(self.rows, self.totals))
        return [self._part(router_id, keys, router_id in splitting, with_traces) for router_id in routers]

    def _part(self, router_id: str, keys: tuple[bytes, ...], splits: bool, with_traces: bool) -> Part:
        metrics, totals = self.rows.get(router_id, {}), self.totals.get(router_id, [])
        if not (splits or with_traces):
            totals = [msgspec.structs.replace(point, trace="") if point.trace else point for point in totals]
        n = sum(len(rows.ts_ms) for rows in metrics.values())
        payload = _payload(metrics, splits, with_traces) if metrics else NOTHING
        return Part(router_id, keys, payload, n + len(totals), encode_points(totals) if totals else b"")


def _payload(metrics: dict[str, Rows], splits: bool, with_traces: bool) -> bytes:
    every = list(metrics.values())
    traces = [trace for rows in every for trace in rows.trace]
    times = [ts_ms for rows in every for ts_ms in rows.ts_ms]
    count = np.array([n for rows in every for n in rows.count], np.int64)
    return encode_samples(
        list(metrics),
        [len(rows.ts_ms) for rows in every],
        np.array(times, np.int64),
        np.array([value for rows in every for value in rows.value], np.float64),
        np.array([ok for rows in every for ok in rows.ok], np.bool_),
        shares_of(traces) if splits else None,
        _once(times, traces) if with_traces and any(traces) else (),
        counted(count),
    )


def _once(times: Sequence[int], traces: Sequence[str]) -> list[str]:
    """Traces where they differ from the row before: a histogram is up to a thousand rows of one point."""
    pairs = [(0, ""), *zip(times, traces, strict=True)]
    return ["" if pair == before else pair[1] for before, pair in pairwise(pairs)]


def take(points: Points, outcomes: Sequence[Outcome], span: Span) -> Taking:
    """What the points come to. `outcomes`: of each of their series."""
    return next(found for found in taking(points, outcomes, span, sys.maxsize) if found is not None)


def taking(points: Points, outcomes: Sequence[Outcome], span: Span, step: int) -> Iterator[Taking | None]:
    """The same in steps of so many points and buckets: None before each, and the result in the end."""
    found = Taking()
    for bad in points.bad:
        found.reject(bad.where, bad.code, bad.message)
    work = 0
    columns = (points.of, points.ts_ms, points.start_ms, points.value, points.absent)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    histogram, trace = points.histograms.get, points.traces.get
    for row, (number, ts_ms, start_ms, value, absent) in enumerate(rows):
        work += 1
        if work >= step:
            yield None
            work = 0
        outcome, series = outcomes[number], points.series[number]
        if isinstance(outcome, Refused):
            found.reject(series.name, outcome.code, outcome.message)
            continue
        found.histograms += series.type == "histogram"
        if absent:
            found.absent += 1
        elif not isinstance(outcome, Target):
            found.unmatched += 1
        else:
            distribution = histogram(row) if series.type == "histogram" else None
            point = Point(series, ts_ms or span.now_ms, start_ms, value, distribution, trace(row, ""))
            work += point.histogram.size if point.histogram is not None else 0
            _take_one(found, outcome, point, span)
    yield found


class Point(msgspec.Struct, gc=False):
    """One point that has a value or a histogram, and a time."""

    series: Series
    ts_ms: int
    start_ms: int
    value: float
    histogram: Histogram | None
    trace: str


def _take_one(found: Taking, target: Target, point: Point, span: Span) -> None:
    if point.histogram is None and isnan(point.value):  # as a rule without traffic has it: nothing is known
        found.absent += 1
        return
    why = _untimely(point.ts_ms, span) or _unusable(found, target, point) or _too_many(found, point)
    if why is None:
        found.taken += 1
        if target.temporality == "cumulative":
            found.totals.setdefault(target.router_id, []).append(_total(target, point))
        else:
            _observe(found.rows.setdefault(target.router_id, {}).setdefault(target.metric, Rows()), target, point)
    elif isinstance(why, Refused):
        found.histograms -= point.histogram is not None
        found.reject(point.series.name, why.code, why.message)
    else:
        found.unmatched += 1


def _observe(rows: Rows, target: Target, point: Point) -> None:
    """The samples that a value, a rise or a distribution is."""
    histogram, ts_ms, ok, trace = point.histogram, point.ts_ms, target.ok, point.trace
    if histogram is not None:
        values, counts = histogram.numbers()
        values = tuple([value * target.scale for value in values])
        if max(counts, default=0) <= COUNT_MAX:
            rows.extend(ts_ms, values, ok, counts, trace)
            return
        for value, n in zip(values, counts, strict=True):
            for each, count in in_samples(value, n):
                rows.add(ts_ms, each, ok, count, trace)
    elif target.temporality == "delta" and target.take_as == "observations":
        for each, count in in_samples(target.scale, int(point.value)):
            rows.add(ts_ms, each, ok, count, trace)
    else:
        rows.add(ts_ms, point.value * target.scale, ok, 1, trace)


def _unusable(found: Taking, target: Target, point: Point) -> Refused | Unmatched | None:
    """Why a value or a distribution can't be used."""
    if point.histogram is None:
        refused = refusal(target, point.value)
        if refused is not None or target.temporality != "delta" or target.take_as == "value":
            return refused
        n, extra = point.value, int(min(point.value, RISE_MAX)) // COUNT_MAX
    else:
        low, high = point.histogram.ends
        if not (isfinite(low * target.scale) and isfinite(high * target.scale)):
            return Refused(code="invalid_value", message="a bucket is not a finite number")
        if target.temporality == "cumulative":
            return None
        counts = point.histogram.numbers()[1]
        n, extra = sum(counts), 0
        if n >= COUNT_MAX:
            extra = sum(count // COUNT_MAX for count in counts)
    if n > RISE_MAX:
        return Refused(code="invalid_rise", message=f"more than {RISE_MAX} observations in one point")
    if found.extra + extra > EXTRA_MAX:
        return Refused(code="invalid_rise", message=HUGE)
    found.extra += extra
    return None


def _too_many(found: Taking, point: Point) -> Refused | None:
    """Counts the buckets of a point among those of its request."""
    buckets = 0 if point.histogram is None else point.histogram.size
    if found.buckets + buckets > BUCKETS_TOTAL_MAX:
        return Refused(code="too_many_buckets", message=f"the request has more than {BUCKETS_TOTAL_MAX} buckets")
    found.buckets += buckets
    return None


def _total(target: Target, point: Point) -> CounterPoint:
    identity, histogram = point.series.identity, point.histogram
    if histogram is None:
        counts = target.take_as == "observations"
        return CounterPoint(
            identity, target.metric, point.ts_ms, point.start_ms, target.ok, target.scale, counts, point.value,
            trace=point.trace,
        )  # fmt: skip
    return CounterPoint(
        identity, target.metric, point.ts_ms, point.start_ms, target.ok, target.scale,
        layout=histogram.layout, buckets=histogram.buckets, values=histogram.values, totals=histogram.counts,
        trace=point.trace,
    )  # fmt: skip


def _untimely(ts_ms: int, span: Span) -> Refused | None:
    if ts_ms < span.oldest_ms:
        message = f"its time is more than {span.now_ms - span.oldest_ms} ms ago"
        return Refused(code="ts_ms_too_old", message=message)
    if ts_ms > span.newest_ms:
        message = f"its time is more than {span.newest_ms - span.now_ms} ms ahead"
        return Refused(code="ts_ms_in_future", message=message)
    return None
