"""What points come to: samples and totals per router, what is rejected and why, and how much of it is remembered."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from api.lookup import series_outcomes
from api.lookup.mapping_plans import MappingPlan
from api.lookup.series_outcomes import SeriesOutcomes
from api.protocols import otlp_protobuf
from api.protocols.bounds import BUCKETS_TOTAL_MAX
from api.protocols.mapping import UNMATCHED, Mappings, Outcome, Refused, Routers, Target, resolve_all
from api.protocols.memory import Memory
from api.protocols.points import BadPoint, Histogram, Points, Series
from api.protocols.series import make_series
from api.protocols.taking import ERRORS_MAX, SHOWN, Span, Taking, take, taking
from breaker_actors.core.counters import EXTRA_MAX, RISE_MAX, packed, packed_floats
from breaker_actors.core.log_entries import decode_samples, share_of_trace
from breaker_actors.core.model import COUNT_MAX
from breaker_actors.store.mappings.model import MappingTo, SeriesMatcher
from breaker_actors.store.rows import MappingRow
from tests.support.open_protocols import NOW_MS, otlp_request
from tests.support.senders import rows_of, totals_of

ROUTER, OTHER = "r" * 36, "o" * 36
SPAN = Span(NOW_MS, NOW_MS - 1000, NOW_MS + 100)
GAUGE = make_series("g", {"a": "b"}, "gauge")
DELTA = make_series("d", {}, "sum", "delta", True)
TOTAL = make_series("t", {}, "sum", "cumulative", True)
DELTAS = make_series("h", {}, "histogram", "delta")
TOTALS = make_series("c", {}, "histogram", "cumulative")
BUCKETS = Histogram.of((0.5, 2.0), (3, 1), b"x", (0, 4))


def target(series: Series, **more: Any) -> Target:
    fields: dict[str, Any] = {
        "router_id": ROUTER, "metric": series.name, "scale": 1.0, "ok": True, "temporality": series.temporality,
        "take_as": "value" if series.temporality is None else "observations", "mapping_id": None, "mapping": "m",
        "series_max": 10,
    }  # fmt: skip
    return Target(**fields | more)


def points_of(
    *rows: tuple[Series, float | Histogram | None],
    ts_ms: int | Sequence[int] = NOW_MS,
    start_ms: int = 0,
    traces: dict[int, str] | None = None,
    bad: Sequence[BadPoint] = (),
) -> Points:
    """A request of such points; None is an absent one."""
    series = list({one.identity: one for one, _ in rows}.values())
    numbers = {one.identity: number for number, one in enumerate(series)}
    times = [ts_ms] * len(rows) if isinstance(ts_ms, int) else ts_ms
    return Points(
        series=series,
        of=np.array([numbers[one.identity] for one, _ in rows], np.int64),
        ts_ms=np.array(times, np.int64),
        start_ms=np.full(len(rows), start_ms, np.int64),
        value=np.array([value if isinstance(value, float) else nan for _, value in rows]),
        absent=np.array([value is None for _, value in rows], np.bool_),
        histograms={row: value for row, (_, value) in enumerate(rows) if isinstance(value, Histogram)},
        traces=traces or {},
        exemplars=0,
        bad=list(bad),
    )


def taken(points: Points, *outcomes: Outcome) -> Taking:
    return take(points, outcomes or [target(one) for one in points.series], SPAN)


def samples(found: Taking) -> list[tuple[str, int, float, bool, int]]:
    """Metric, time, value, ok, count of each, all of one router."""
    rows = rows_of(found.parts((b"k" * 16,)))
    assert {row[0] for row in rows} <= {ROUTER}
    return [row[1:] for row in rows]


def test_a_gauge_is_its_value() -> None:
    found = taken(points_of((GAUGE, 2.5), (GAUGE, -1.0)), target(GAUGE, scale=1000.0, ok=False))
    assert samples(found) == [("g", NOW_MS, 2500.0, False, 1), ("g", NOW_MS, -1000.0, False, 1)]
    assert (found.taken, found.accepted, found.rejected, found.histograms) == (2, 2, 0, 0)


@pytest.mark.parametrize(
    ("take_as", "value", "row"),
    [
        ("observations", 7.0, (2.0, 7)), ("observations", 0.0, None), ("value", 7.0, (14.0, 1)),
        ("value", 0.5, (1.0, 1)), ("value", -3.0, (-6.0, 1)),
    ],
)  # fmt: skip
def test_a_rise_is_observations_of_one_value_or_one_of_its_own(take_as: Any, value: float, row: Any) -> None:
    found = taken(points_of((DELTA, value)), target(DELTA, take_as=take_as, scale=2.0))
    assert samples(found) == ([] if row is None else [("d", NOW_MS, row[0], True, row[1])])
    assert (found.taken, found.rejected) == (1, 0)


@pytest.mark.parametrize("value", [0.5, -1.0, inf, 2.0**53 + 2])
def test_a_rise_that_is_no_number_of_observations_is_rejected(value: float) -> None:
    found = taken(points_of((DELTA, value), (DELTA, 1.0)), target(DELTA, mapping_id="m-1"))
    assert (found.taken, found.rejected, len(samples(found))) == (1, 1, 1)
    assert found.words("points").startswith("1 of 2 points rejected, the others are stored: d: ")
    assert found.errors[0].code in ("invalid_rise", "invalid_value")
    assert found.errors[0].where == "d"


@pytest.mark.parametrize("series", [DELTA, TOTAL])
def test_fractions_are_passed_over_by_built_in_mappings(series: Series) -> None:
    """Whoever labels all of a process's series with a router does not ask for observations of its seconds of CPU."""
    found = taken(points_of((series, 0.5), (series, 2.0)))
    assert (found.taken, found.unmatched, found.accepted, found.rejected) == (1, 1, 2, 0)
    found = taken(points_of((series, -1.0), (series, 2.0**53 + 2)))
    assert dict(found.reasons) == {"invalid_rise": 2}, "that is no fraction but a mistake"
    found = taken(points_of((series, 0.5)), target(series, take_as="value"))
    assert (found.taken, found.unmatched) == (1, 0)


@pytest.mark.parametrize(("value", "scale"), [(inf, 1.0), (-inf, 1.0), (1e300, 1e300)])
def test_what_is_not_finite_is_rejected(value: float, scale: float) -> None:
    for series, more in ((GAUGE, {}), (TOTAL, {}), (DELTA, {"take_as": "value"})):
        found = taken(points_of((series, value)), target(series, scale=scale, **more))
        assert dict(found.reasons) == {"invalid_value": 1}
        assert found.parts((b"k" * 16,)) == []


@pytest.mark.parametrize("series", [GAUGE, DELTA, TOTAL])
def test_nan_is_no_value_and_no_fault(series: Series) -> None:
    """A recording rule says it where nothing came: its sender would count whole requests as failed."""
    found = taken(points_of((series, nan), (series, 2.0)))
    assert (found.taken, found.absent, found.accepted, found.rejected) == (1, 1, 2, 0)


def test_a_histogram_of_rises_is_observations_of_its_buckets() -> None:
    found = taken(points_of((DELTAS, BUCKETS)), target(DELTAS, scale=10.0, ok=False))
    assert samples(found) == [("h", NOW_MS, 5.0, False, 3), ("h", NOW_MS, 20.0, False, 1)]
    assert (found.taken, found.histograms) == (1, 1)


@pytest.mark.parametrize("series", [DELTAS, TOTALS])
@pytest.mark.parametrize(
    ("values", "reasons"), [((-2e300, 1.0), {"invalid_value": 1}), ((1.0, 2e300), {"invalid_value": 1}), ((), {})]
)
def test_each_bucket_is_a_finite_number_once_it_is_scaled(
    series: Series, values: tuple[float, ...], reasons: dict[str, int]
) -> None:
    """Of the values, which ascend, the first and the last are looked at; a histogram may have none."""
    spread = Histogram.of(values, (1,) * len(values), BUCKETS.layout, range(len(values)))
    found = taken(points_of((series, spread), (series, BUCKETS)), target(series, scale=1e8))
    assert (dict(found.reasons), found.taken) == (reasons, 2 - len(reasons))


@pytest.mark.parametrize("series", [DELTAS, TOTALS])
def test_buckets_of_a_request_are_bounded_and_turns_go_by_them(series: Series) -> None:
    """A point of a thousand buckets is a thousand samples, of seven bytes of the request."""
    n = 1_000
    wide = Histogram.of((1.0,) * n, (1,) * n, BUCKETS.layout, range(n))
    points, outcome = points_of(*[(series, wide)] * 103), target(series)
    steps = list(taking(points, [outcome], Span(NOW_MS, NOW_MS - 1, NOW_MS + 1), 5_000))
    found = steps[-1]
    assert found is not None
    assert (found.taken, dict(found.reasons)) == (BUCKETS_TOTAL_MAX // n, {"too_many_buckets": 3})
    assert len(steps) >= BUCKETS_TOTAL_MAX // 5_000


def test_more_observations_than_a_sample_holds_are_several() -> None:
    most = 2 * COUNT_MAX + 5
    many = Histogram.of((1.0,), (most,), BUCKETS.layout, (0,))
    for points in (points_of((DELTA, float(most))), points_of((DELTAS, many))):
        assert [row[4] for row in samples(taken(points))] == [COUNT_MAX, COUNT_MAX, 5]


def test_few_bytes_ask_for_no_more_work_than_many() -> None:
    """A point of many observations is ten samples; a request has bounds for its points and its bytes alone."""
    most = EXTRA_MAX * COUNT_MAX // RISE_MAX
    found = taken(points_of(*[(DELTA, float(RISE_MAX))] * 200, (DELTA, 3.0)), target(DELTA))
    assert len(samples(found)) == EXTRA_MAX + 1
    assert (found.taken, found.rejected) == (most + 1, 200 - most)
    assert found.errors[0].code == "invalid_rise"
    exact = Histogram.of((1.0,), (COUNT_MAX,), BUCKETS.layout, (0,))
    found = taken(points_of(*[(DELTAS, exact)] * (EXTRA_MAX + 1)), target(DELTAS))
    assert (found.taken, dict(found.reasons)) == (EXTRA_MAX, {"invalid_rise": 1})


def test_totals_go_to_the_owner_of_the_router() -> None:
    points = points_of((TOTAL, 7.0), (TOTALS, BUCKETS), start_ms=5)
    found = taken(points, target(TOTAL, ok=False, scale=2.0, take_as="value"), target(TOTALS, metric="x"))
    (part,) = found.parts((b"k" * 16,))
    number, histogram = totals_of([part])
    assert (part.router_id, part.count, rows_of([part])) == (ROUTER, 2, [])
    assert (number.series, number.metric, number.ts_ms, number.start_ms) == (TOTAL.identity, "t", NOW_MS, 5)
    assert (number.ok, number.scale, number.counts, number.value) == (False, 2.0, False, 7.0)
    assert (histogram.metric, histogram.layout, histogram.value, histogram.counts) == ("x", b"x", None, True)
    assert (histogram.buckets, histogram.totals) == (packed((0, 4)), packed((3, 1)))
    assert histogram.values == packed_floats((0.5, 2.0))


def test_times_have_bounds_and_no_time_is_now() -> None:
    times = (SPAN.oldest_ms, SPAN.oldest_ms - 1, SPAN.newest_ms, SPAN.newest_ms + 1, 0)
    found = taken(points_of(*[(GAUGE, 1.0)] * 5, ts_ms=times))
    assert [row[1] for row in samples(found)] == [SPAN.oldest_ms, SPAN.newest_ms, NOW_MS]
    assert dict(found.reasons) == {"ts_ms_too_old": 1, "ts_ms_in_future": 1}


def test_what_is_absent_or_of_nobody_is_accepted_whatever_its_time() -> None:
    points = points_of((GAUGE, None), (TOTALS, None), (DELTA, nan), ts_ms=1)
    found = taken(points, target(GAUGE), target(TOTALS), UNMATCHED)
    assert (found.absent, found.unmatched, found.taken, found.rejected, found.histograms) == (2, 1, 0, 0, 1)
    assert found.parts((b"k" * 16,)) == []


def test_rejected_points_are_counted_and_the_first_named() -> None:
    refused = Refused(code="router_not_found", message="the project has no router x")
    bad = [BadPoint(f"timeseries[{n}]", "missing_name", "The series has no name.") for n in range(ERRORS_MAX)]
    found = taken(points_of((GAUGE, 1.0), (DELTAS, BUCKETS), (DELTAS, None), bad=bad), target(GAUGE), refused)
    assert dict(found.reasons) == {"missing_name": ERRORS_MAX, "router_not_found": 2}
    assert (found.accepted, found.rejected, found.histograms, len(found.errors)) == (1, ERRORS_MAX + 2, 0, ERRORS_MAX)
    assert found.words("samples").count("missing_name") == SHOWN


def test_errors_that_say_the_same_are_told_once() -> None:
    found = taken(points_of((GAUGE, inf), (GAUGE, inf), (DELTA, inf)))
    words = found.words("points")
    assert words.startswith("3 of 3 points rejected: ")
    assert words.count(": the value") == 2


def test_what_a_router_has_no_room_for_is_rejected() -> None:
    found = taken(points_of((TOTAL, 1.0), (TOTALS, BUCKETS), (GAUGE, 1.0)))
    found.had_no_room(ROUTER, 2, "full")
    assert (found.taken, found.histograms, dict(found.reasons)) == (1, 0, {"too_many_series": 2})


def test_traces_go_along_where_they_matter() -> None:
    """To routers that share samples out by them, and where the project shows them."""
    points = points_of((GAUGE, 1.0), (TOTAL, 1.0), (GAUGE, 2.0), traces={0: "ab", 1: "cd"})
    keys = (b"k" * 16,)
    (plain,) = taken(points).parts(keys)
    assert (decode_samples(plain.payload).share, list(decode_samples(plain.payload).traces)) == (None, [])
    assert totals_of([plain])[0].trace == ""
    (shared,) = taken(points).parts(keys, {ROUTER})
    share = decode_samples(shared.payload).share
    assert share is not None
    assert (share.tolist(), list(decode_samples(shared.payload).traces)) == ([share_of_trace("ab"), 0], [])
    assert totals_of([shared])[0].trace == "cd"
    (told,) = taken(points).parts(keys, set(), with_traces=True)
    assert list(decode_samples(told.payload).traces) == ["ab", ""]
    assert decode_samples(told.payload).share is None


def test_each_router_has_its_own_part() -> None:
    points = points_of((GAUGE, 1.0), (TOTAL, 2.0), (DELTA, 3.0))
    found = taken(points, target(GAUGE), target(TOTAL, router_id=OTHER), target(DELTA, router_id=OTHER))
    parts = found.parts((b"k" * 16, b"d" * 16))
    assert [(part.router_id, part.count, part.keys) for part in parts] == [
        (ROUTER, 1, (b"k" * 16, b"d" * 16)),
        (OTHER, 2, (b"k" * 16, b"d" * 16)),
    ]


def test_steps_come_to_the_same() -> None:
    points = points_of(*[(GAUGE, float(n)) for n in range(10)])
    steps = list(taking(points, [target(GAUGE)], SPAN, 3))
    assert steps[:-1] == [None] * 3
    assert steps[-1] is not None
    assert samples(steps[-1]) == samples(taken(points))


def plan_of(*to: MappingTo, routers: Sequence[str] = (ROUTER,), name: str = "*", field: str = "name") -> MappingPlan:
    rows = [
        MappingRow(
            id=f"m{n}", project_id="p", name=f"m{n}", matchers=(SeriesMatcher(field=field, op="glob", value=name),),
            to=each, position=n + 1, enabled=True, version=1, inserted_ms=1, updated_ms=1,
        )
        for n, each in enumerate(to)
    ]  # fmt: skip
    return MappingPlan(Mappings(rows), Routers({id_: id_ for id_ in routers}), rows)


def expected(points: Points) -> tuple[list[Any], list[Any], int]:
    """Samples, totals and how many are rejected, point by point, where rises are observations and nobody's temporality
    is delta."""
    rows, totals, rejected = list[Any](), list[Any](), len(points.bad)
    for row, number in enumerate(points.of.tolist()):
        series, value, histogram = points.series[number], points.value[row].item(), points.histograms.get(row)
        ts_ms = points.ts_ms[row].item() or NOW_MS
        counted = series.type == "histogram" or series.monotonic
        if points.absent[row]:
            continue
        if histogram is None and np.isnan(value):
            continue
        if not SPAN.oldest_ms <= ts_ms <= SPAN.newest_ms:
            rejected += 1
        elif histogram is None and (not np.isfinite(value) or (counted and (value < 0 or value % 1))):
            rejected += 1
        elif counted and series.temporality == "cumulative":
            totals.append((series.name, ts_ms, None if histogram is not None else value))
        elif histogram is not None:
            rows += [(series.name, ts_ms, each, n) for each, n in histogram.observations()]
        elif counted:
            rows += [(series.name, ts_ms, 1.0, value)] if value else []
        else:
            rows.append((series.name, ts_ms, value, 1))
    return rows, totals, rejected


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_lost_and_nothing_is_made_up(part: int) -> None:
    plan = plan_of(MappingTo(router=ROUTER, series_max=10_000, temporality="delta"))
    taken_in_all = 0
    for seed in range(part * 25, part * 25 + 25):
        points = otlp_protobuf.decode(otlp_request(random.Random(seed), 9).SerializeToString(), Memory())
        found = take(points, list(resolve_all(points.series, plan.mappings, plan.routers)), SPAN)
        parts, (rows, totals, rejected) = found.parts((b"k" * 16,)), expected(points)
        assert sorted((*row[1:4], row[5]) for row in rows_of(parts)) == sorted(rows)
        assert [(one.metric, one.ts_ms, one.value) for one in totals_of(parts)] == totals
        assert (found.rejected, found.accepted) == (rejected, len(points.of) + len(points.bad) - rejected)
        taken_in_all += found.taken
    assert taken_in_all > 50


# what is remembered of series


class Monotonic:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def many(first: int, n: int) -> list[Series]:
    return [make_series("m", {"n": str(number)}, "gauge") for number in range(first, first + n)]


def judged(
    outcomes: SeriesOutcomes, plan: MappingPlan, series: Sequence[Series], project: str = "p", org: str = "o"
) -> Any:
    """Outcomes, and how many series had to be judged."""
    steps = list(outcomes.judging(org, project, plan, series))
    assert steps[-1] is not None
    return steps[-1], len(steps) - 1


def test_a_series_is_judged_once_for_a_plan_and_an_hour() -> None:
    clock = Monotonic()
    outcomes, plan = SeriesOutcomes(clock), plan_of(MappingTo(router=ROUTER))
    series = many(0, 5)
    first, n = judged(outcomes, plan, series)
    assert (n, {one.router_id for one in first}) == (5, {ROUTER})
    assert judged(outcomes, plan, [*series, *many(5, 1)])[1] == 1
    other = plan_of(MappingTo(router="label.x"))
    assert [one.code for one in judged(outcomes, other, series)[0]] == ["router_missing"] * 5
    assert judged(outcomes, plan, series)[1] == 5
    clock.s = series_outcomes.HELD_S + 1
    assert judged(outcomes, plan, series)[1] == 5
    assert judged(outcomes, plan, [replace(series[0], temporality="delta"), replace(series[0], unit="s")])[1] == 1


def test_a_mapping_takes_so_many_series_over_all_requests() -> None:
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of(MappingTo(router=ROUTER, series_max=3))
    codes = [getattr(judged(outcomes, plan, many(n, 1))[0][0], "code", "") for n in range(5)]
    assert codes == ["", "", "", "too_many_series", "too_many_series"]
    assert judged(outcomes, plan, many(0, 3))[1] == 0


def test_what_a_request_had_no_effort_left_for_is_judged_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_outcomes, "REQUEST_EFFORT", 10_000)
    to = MappingTo(router=ROUTER, series_max=10_000)
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of(to, name="*1*2*3*4*", field="label.n")
    left = []
    for _ in range(200):
        found, n = judged(outcomes, plan, many(0, 500))
        refused = sum(getattr(one, "code", "") == "too_much_to_match" for one in found)
        assert n >= refused
        left.append(refused)
        if not refused:
            break
    assert left[0] > 100
    assert left == sorted(set(left), reverse=True)
    assert left[-1] == 0


def test_each_series_counts_once_for_its_mapping_also_beyond_the_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes no effort is judged after it is spent, too: a series that came with ten requests is one of three."""
    monkeypatch.setattr(series_outcomes, "REQUEST_EFFORT", 10_000)
    to = MappingTo(router=ROUTER, series_max=3)
    costly = plan_of(to, name="*1*2*3*4*", field="label.n").rows[0]
    cheap = replace(costly, id="cheap", name="cheap", matchers=(SeriesMatcher(field="name", op="=", value="cheap"),))
    rows = [costly, cheap]
    outcomes, plan = SeriesOutcomes(Monotonic()), MappingPlan(Mappings(rows), Routers({ROUTER: ROUTER}), rows)
    one = make_series("cheap", {}, "gauge")
    for n in range(10):
        found, _ = judged(outcomes, plan, [*many(500 * n, 500), one])
        assert isinstance(found[-1], Target), n


def test_requests_at_once_share_what_their_project_knows() -> None:
    """However their steps alternate, the first request of a project included."""
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of(MappingTo(router=ROUTER, series_max=4))
    one, other = (outcomes.judging("o", "p", plan, many(first, 3)) for first in (0, 10))
    found: list[Outcome] = []
    for _ in range(4):
        for steps in (one, other):
            found += next(steps) or []
    assert sum(isinstance(each, Target) for each in found) == 4


def test_an_older_plan_takes_no_place() -> None:
    """A request that began before a change ends by what it knew; the next ones go by the newer plan's."""
    outcomes, old, new = SeriesOutcomes(Monotonic()), plan_of(MappingTo(router=ROUTER)), plan_of()
    slow = outcomes.judging("o", "p", old, many(0, 2))
    next(slow)
    assert judged(outcomes, new, many(0, 2))[1] == 2
    assert [found for found in slow if found]
    assert judged(outcomes, new, many(0, 2))[1] == 0


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a million series, over many requests, with bounds a hundredth of the real ones: a flood of one
    project's series is judged anew and takes no place of another's, nor of its own that were mapped before."""
    monkeypatch.setattr(series_outcomes, "PROJECT_MAX", 1_000)
    monkeypatch.setattr(series_outcomes, "HELD_MAX", 5_000)
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of(MappingTo(router=ROUTER, series_max=20))
    mine, other = many(0, 20), plan_of(MappingTo(router=ROUTER))
    for project, its in (("quiet", other), ("flood", plan)):
        judged(outcomes, its, mine, project)
    tracemalloc.start()
    try:
        for n in range(40):
            found, _ = judged(outcomes, plan, many(1_000 + 250 * n, 250), "flood")
            assert {one.code for one in found} == {"too_many_series"}
        del found
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for project, its in (("quiet", other), ("flood", plan)):
        assert judged(outcomes, its, mine, project)[1] == 0
    assert size < 600 * 1_250


def test_series_that_became_samples_are_forgotten_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_outcomes, "PROJECT_MAX", 100)
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of(MappingTo(router=ROUTER, series_max=10_000))
    judged(outcomes, plan, many(0, 101))
    assert judged(outcomes, plan, many(0, 101))[1] == 101


def test_an_organisation_with_many_projects_forgets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them ask, and however often: those of another organisation stay known."""
    monkeypatch.setattr(series_outcomes, "HELD_MAX", 1_000)
    outcomes, plan = SeriesOutcomes(Monotonic()), plan_of()
    judged(outcomes, plan, many(0, 199), "quiet", "other")
    for n in range(20):
        judged(outcomes, plan, many(0, 199), f"p{n}")
    assert judged(outcomes, plan, many(0, 199), "quiet", "other")[1] == 0
    assert outcomes.of.weight <= 1_000
    assert outcomes.of.cut == 16
