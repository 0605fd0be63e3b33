"""Bounds over pages of windows hold every window of theirs, and what they let pass comes to what each window says."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core.model import Rule
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Chunk, Samples
from pipelines.replay.reference import replay_samples
from pipelines.replay.vectorized.aggregates import NEAR, near_bounds_of_one, near_values, page_bounds, value_bounds
from pipelines.replay.vectorized.aggregates import test_of as comparison
from pipelines.replay.vectorized.breach_tests import breach_test_of, places_of
from pipelines.replay.vectorized.exact_sums import ExactSums, TooWide
from pipelines.replay.vectorized.near_sums import Edges, NearSums
from pipelines.replay.vectorized.order_statistics import Cuts, class_bounds, cut_of
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import WindowBounds
from tests.support.history import made_up_samples, walked

numbers = st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False)
tricky = st.sampled_from([2.0**60, -(2.0**60), 2.0**54 - 1, 1.0, -1.0, 0.5, 2.0**-20, 3.0, 0.1, 0.0])
WINDOWS_MS = (15, 900)
COUNT, SPACING_MS = 3_000, 1


def rule_of(kind: str, op: str, threshold: float, window_ms: int, **more: Any) -> Rule:
    fields = {"metric": "m", "kind": kind, "op": op, "threshold": threshold, "window_ms": window_ms, "min_count": 3}
    return parse_rule(fields | {"eval_interval_ms": 100, "min_state_duration_ms": 0} | more)


def samples_of(seed: int) -> Samples:
    found = made_up_samples(random.Random(seed), COUNT, SPACING_MS)
    value = np.round(np.clip(found.value, -1e6, 1e6), 9)
    return Samples(found.at, found.ts_ms, value, found.ok)


def windows_over(samples: Samples, window_ms: int) -> WindowBounds:
    chunk = Chunk(samples, 0)
    prefixes = PrefixColumns(chunk.eff, chunk.value, chunk.ok, chunk.in_order)
    return WindowBounds(chunk, window_ms, 1_000_000, prefixes)


@settings(deadline=None)
@given(st.one_of(st.lists(numbers, min_size=1, max_size=200), st.lists(tricky, min_size=1, max_size=200)), st.data())
def test_near_sums(values: list[float], data: st.DataObject) -> None:
    """However values cancel: no sum is off by more than is said, in one go or alone, and pages hold their windows."""
    entered = np.array(sorted(data.draw(st.integers(1, len(values))) for _ in range(8)))
    left = np.minimum(sorted(data.draw(st.integers(0, len(values) - 1)) for _ in range(8)), entered)
    near = NearSums(np.array(values))
    found, error = near.total(entered, left)
    expected = [math.fsum(values[start:stop]) for start, stop in zip(left, entered, strict=True)]
    for one, total, start, stop in zip(found, expected, left, entered, strict=True):
        assert abs(one - total) <= error
        alone, off = near.one(int(stop), int(start))
        assert abs(alone - total) <= off
    edges = Edges(entered[:1], entered[-1:], left[:1], left[-1:])
    least, low, high = near.between(edges)
    for total, n in zip(expected, entered - left, strict=True):
        assert low[0] <= math.fsum([total, -least * int(n)]) + 1e-9 * abs(total)
        assert math.fsum([total, -least * int(n)]) <= high[0] + 1e-9 * abs(total)


def test_near_sums_refuse_what_may_overflow() -> None:
    with pytest.raises(TooWide):
        NearSums(np.array([1e300, 1e300]))
    assert NearSums(np.zeros(0)).total(np.array([0]), np.array([0]))[1] == 0


@pytest.mark.parametrize("window_ms", WINDOWS_MS)
@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize("seed", range(6))
def test_pages_hold_their_values(seed: int, kind: str, window_ms: int) -> None:
    """In order or late: bounds of pages, values to within a bound, and single windows."""
    bounds = windows_over(samples_of(seed), window_ms)
    points, prefixes = bounds.arrivals, bounds.prefixes
    expected, _ = value_bounds(kind, prefixes, points.entered, points.left)
    low, high = page_bounds(kind, prefixes, points.edges())
    page = np.arange(len(points)) // points.page
    assert len(low) > 30
    assert (low[page] <= expected).all()
    assert (expected <= high[page]).all()
    value, off = near_values(kind, prefixes, points.entered, points.left)
    held = points.entered > points.left
    assert (abs(value - expected) <= off)[held].all()
    for i in np.flatnonzero(held)[::97].tolist():
        below, above = near_bounds_of_one(kind, prefixes, int(points.entered[i]), int(points.left[i]))
        assert below <= expected[i] <= above


@pytest.mark.parametrize("window_ms", WINDOWS_MS)
@pytest.mark.parametrize("kind", ["p95", "percentile", "max", "min"])
@pytest.mark.parametrize("seed", range(6))
def test_pages_hold_their_classes(seed: int, kind: str, window_ms: int) -> None:
    params = {"kind_params": {"percentile": 33.3}} if kind == "percentile" else {}
    places = places_of(rule_of(kind, "gt", 1, window_ms, **params))
    samples = samples_of(seed)
    bounds = windows_over(samples, window_ms)
    points, prefixes = bounds.arrivals, bounds.prefixes
    ranks = prefixes.ranks(Cuts(np.quantile(samples.value, [0.1, 0.3, 0.35, 0.5, 0.9, 0.95, 0.97, 1]).tolist()))
    n = points.entered - points.left
    classes = ranks.select(points.entered, points.left, places.all(n))
    low, high = class_bounds(ranks, points.edges(), places, prefixes.ordered)
    page, held = np.arange(len(points)) // points.page, n > 0
    assert (low[page] <= classes)[held].all()
    assert (classes <= high[page])[held].all()


@pytest.mark.parametrize("op", ["gt", "gte", "lt", "lte"])
@pytest.mark.parametrize("kind", [*NEAR, "p95", "max"])
@pytest.mark.parametrize("seed", range(4))
def test_the_first_breach(seed: int, kind: str, op: str) -> None:
    """From anywhere to anywhere, also for thresholds that are values of windows, one rule after the other over the same
    pages."""
    samples = samples_of(seed)
    for window_ms in WINDOWS_MS:
        bounds = windows_over(samples, window_ms)
        points = bounds.arrivals
        entered, left = windows_over(samples, window_ms).arrivals.windows(0, len(points))
        values = exact_values(kind, bounds, entered, left)
        held, drawn = entered - left >= 3, random.Random(seed)
        thresholds = [float(np.quantile(values, part, method="nearest")) for part in (0, 0.01, 0.5, 0.97, 1)]
        cuts = Cuts([cut_of(op, one) for one in thresholds]) if kind in ("p95", "max") else None
        for threshold in thresholds:
            test = breach_test_of(rule_of(kind, op, threshold, window_ms), bounds, cuts)
            hits = held & comparison(op, threshold)(values)
            for start in (0, *(drawn.randrange(len(points)) for _ in range(5))):
                stop = drawn.choice([len(points), drawn.randrange(start, len(points)) + 1])
                found = np.flatnonzero(hits[start:stop])
                assert test.first(points, start, stop) == (start + int(found[0]) if len(found) else None)


@pytest.mark.parametrize("kind", ["avg", "p95"])
def test_calm_pages_are_passed_by(kind: str) -> None:
    """Of windows far from the threshold none is worked out."""
    at = np.arange(20_000, dtype=np.int64)
    value = 100 + np.random.default_rng(4).normal(0, 1, len(at)) + 20 * (at > 15_000)
    bounds = windows_over(Samples(at, at, value, at >= 0), 4_000)
    threshold = 112.0
    test = breach_test_of(
        rule_of(kind, "gt", threshold, 4_000), bounds, Cuts([cut_of("gt", threshold)]) if kind == "p95" else None
    )
    found = test.first(bounds.arrivals, 0, len(at))
    assert found is not None
    assert 15_000 < found < 19_000
    assert bounds.arrivals._settled.mean() < 0.1


def exact_values(kind: str, bounds: WindowBounds, entered: np.ndarray, left: np.ndarray) -> np.ndarray:
    if kind in NEAR:
        return np.asarray(value_bounds(kind, bounds.prefixes, entered, left)[0], np.float64)
    places, out = places_of(rule_of(kind, "gt", 1, 100)), np.zeros(len(entered))
    for i, (stop, start) in enumerate(zip(entered.tolist(), left.tolist(), strict=True)):
        if stop > start:
            values, _ = bounds.prefixes.values(stop, start)
            out[i] = np.sort(values)[places.of(len(values)) - 1]
    return out


def test_sums_of_single_windows() -> None:
    """Those added up for themselves and those out of the sums of all are the same."""
    value = np.round(np.random.default_rng(3).lognormal(4, 1, 500), 3)
    prefixes = PrefixColumns(np.arange(500), value, np.ones(500, np.bool_), True)
    expected = ExactSums(value)
    for start in range(0, 400, 7):
        assert prefixes.sum_of_one(start + 100, start) == expected.one(start + 100, start)
    assert prefixes.sum_of_one(100, 0) == prefixes.sums().one(100, 0)


@pytest.mark.parametrize("threshold", [0.0, 0.25, 1e15])
def test_values_too_wide_for_sums_found_on_the_way(threshold: float) -> None:
    """Where bounds don't tell, and exact sums can't be had either: the core takes the rest of the chunk."""
    draw = np.random.default_rng(9)
    value = np.where(np.arange(2_000) % 400 < 40, 1e18, 0.0) * draw.choice([1.0, -1.0], 2_000)
    value += np.where(np.arange(2_000) % 50 == 7, 1e-30, 0.25)
    at = np.arange(2_000, dtype=np.int64) * 3
    rule = rule_of("avg", "gt", threshold, 300, cooldown_ms=100)
    samples = Samples(at, at, value, np.ones(len(at), np.bool_))
    expected = replay_samples(rule, samples)
    assert walked(rule, samples, chunk_rows=700) == expected
    assert len(expected[0]) > 2
