"""Windows as counts of what entered and left, and the figures over them, equal windows taken sample by sample."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core.definitions import P95, exact_value
from pipelines.columns import Chunk, Samples, passed
from pipelines.replay.vectorized.aggregates import value_bounds, value_bounds_of_one
from pipelines.replay.vectorized.prefix_columns import PrefixColumns
from pipelines.replay.vectorized.window_bounds import NotVectorizable, WindowBounds
from tests.support.history import made_up_samples


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), max_size=60), st.lists(st.integers(-50, 450), max_size=60))
def test_passed(times: list[int], limits: list[int]) -> None:
    """Counting by the millisecond and searching agree."""
    ascending, asked = np.array(sorted(times), np.int64), np.array(sorted(limits), np.int64)
    assert passed(ascending, asked).tolist() == np.searchsorted(ascending, asked, "right").tolist()


def whole(samples: Samples) -> tuple[Chunk, PrefixColumns]:
    chunk = Chunk(samples, 0)
    return chunk, PrefixColumns(chunk.eff, chunk.value, chunk.ok, chunk.in_order)


@pytest.mark.parametrize("seed", range(12))
def test_windows(seed: int) -> None:
    """In order or late: what is held at each arrival and at instants between, by its definition."""
    chunk, flow = whole(made_up_samples(random.Random(seed), 300, 5))
    window_ms = 120
    track = WindowBounds(chunk, window_ms, 1_000_000, flow)
    between = np.arange(int(chunk.times[0]), int(chunk.times[-1]), 37)
    arrived = np.searchsorted(chunk.at, between, "right")
    rows = np.arange(len(chunk.at))
    for points, ends in ((track.arrivals, chunk.ends), (track.at(between), arrived)):
        for i, now in enumerate(points.times.tolist()):
            inside = (rows < ends[i]) & (chunk.eff > now - window_ms)
            values, ok = track.prefixes.values(int(points.entered[i]), int(points.left[i]))
            assert sorted(values.tolist()) == sorted(chunk.value[inside].tolist())
            assert int(ok.sum()) == int(chunk.ok[inside].sum())


@pytest.mark.parametrize("kind", ["count", "error_rate", "sum", "avg", "stddev"])
@pytest.mark.parametrize("seed", range(8))
def test_figures(kind: str, seed: int) -> None:
    """The interval holds the definition's value, and is that value for all kinds but stddev."""
    samples = made_up_samples(random.Random(seed), 300, 5)
    chunk, flow = whole(replace(samples, value=np.round(np.clip(samples.value, -1e6, 1e6), 9)))
    points = WindowBounds(chunk, 120, 1_000_000, flow).arrivals
    low, high = value_bounds(kind, flow, points.entered, points.left)
    for i in range(len(points)):
        entered, left = int(points.entered[i]), int(points.left[i])
        if entered > left:
            value = exact_value(kind, P95, *flow.values(entered, left))
            assert low[i] <= value <= high[i]
            assert kind == "stddev" or low[i] == value == high[i]
            assert value_bounds_of_one(kind, flow, entered, left) == (low[i], high[i])


def test_stddev_of_equals_is_exact() -> None:
    """Windows of one value decide a threshold of 0 without a look at their samples."""
    value = np.repeat([0.1, 0.3, 0.7], 50)
    at = np.arange(150, dtype=np.int64)
    flow = PrefixColumns(at, value, np.ones(150, np.bool_), True)
    entered = np.arange(1, 51)
    low, high = value_bounds("stddev", flow, entered, np.zeros(50, np.int64))
    expected = [exact_value("stddev", P95, value[:n], flow.ok[:n]) for n in range(1, 51)]
    assert low.tolist() == high.tolist() == expected


def test_overflow_in_order_and_not() -> None:
    """In order, the newest are held; with late samples that can't be told by counts."""
    at = np.arange(100, dtype=np.int64)
    chunk, flow = whole(Samples(at, at, at.astype(float), at > 0))
    track = WindowBounds(chunk, 1000, 10, flow)
    assert (track.arrivals.entered - track.arrivals.left).max() == 10
    assert track.truncated_between(0, 100, 0) == 90
    late, flow = whole(Samples(at, at[::-1].copy(), at.astype(float), at > 0))
    with pytest.raises(NotVectorizable):
        WindowBounds(late, 1000, 10, flow)


def test_what_is_still_held() -> None:
    """In order the newest; else all that may lie in the window, at most so many."""
    at = np.arange(100, dtype=np.int64)
    chunk, _ = whole(Samples(at, at, at.astype(float), at > 0))
    assert chunk.still_held(20, 1000).at.tolist() == list(range(80, 100))
    assert chunk.still_held(20, 5).at.tolist() == list(range(95, 100))
    ts_ms = np.where(at % 2 == 0, at, at - 30)
    late, _ = whole(Samples(at, ts_ms, at.astype(float), at > 0))
    assert late.still_held(20, 1000).at.tolist() == list(range(80, 100, 2))
    assert late.still_held(20, 3).at.tolist() == [94, 96, 98]
