"""The sliding window: edges, late samples in both runs, truncation, and equality with a sorted list throughout."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core import window as window_module
from breaker_actors.core.accumulators import Count, Total
from breaker_actors.core.model import Batch, Rows
from breaker_actors.core.window import Window


def batch(*rows: tuple[int, float]) -> Batch:
    return Batch.of([(ts_ms, value, value > 0) for ts_ms, value in rows])


def window(samples_max: int = 1_000_000) -> Window:
    return Window(Total("gt", 0.0, is_avg=False), samples_max)


@pytest.mark.parametrize("size", [1, 20])
def test_edges(size: int) -> None:
    """A sample on the lower edge is out, one after it is in; the future counts at the time of arrival."""
    held = window()
    assert held.add(batch(*[(100, 1.0)] * size), 200, low=100) == (size, 0)
    assert held.add(batch(*[(101, 1.0)] * size), 200, low=100) == (0, 0)
    assert held.add(batch(*[(999, 2.0)] * size), 200, low=100) == (0, 0)
    assert held.oldest_ms == 101
    held.expire(101)
    assert (len(held), held.oldest_ms) == (size, 200)
    held.expire(200)
    assert (len(held), held.oldest_ms) == (0, None)
    assert held.values().tolist() == []


@pytest.mark.parametrize("size", [1, 30])
def test_oldest_leave_when_full(size: int) -> None:
    """Beyond the bound the oldest by time leave, among equal times the first to arrive; a late one goes at once."""
    held = window(samples_max=3 * size)
    held.add(batch(*[(10, 1.0)] * size), 10, low=0)
    held.add(batch(*[(20, 2.0)] * size), 20, low=0)
    held.add(batch(*[(20, 3.0)] * size), 20, low=0)
    assert held.add(batch(*[(5, 9.0)] * size), 30, low=0) == (0, size)
    assert sorted(held.values().tolist()) == [1.0] * size + [2.0] * size + [3.0] * size
    assert held.add(batch(*[(30, 4.0)] * (2 * size)), 30, low=0) == (0, 2 * size)
    assert sorted(held.values().tolist()) == [3.0] * size + [4.0] * (2 * size)


def test_equal_times_leave_in_arrival_order_over_both_runs() -> None:
    """Whatever is not newer than the second run's end joins that run, so that its samples stay in arrival order."""
    with patch.object(window_module, "NEAR", 1):
        held = window(samples_max=31)
        for at in range(100, 140):
            held.expire(at - 20)
            held.add(batch((at, 1.0)), at, low=at - 20)
        assert held.add(batch(*[(120, 2.0)] * 9), 140, low=119) == (0, 0)
        assert held._late is not None
        assert held.add(batch(*[(120, 3.0)] * 12), 140, low=119) == (0, 10)
    assert sorted(held.values().tolist()) == [1.0] * 19 + [3.0] * 12


def test_recount_gives_the_columns_to_another_accumulator() -> None:
    """A new rule recounts from what is held."""
    held = window()
    held.add(batch((1, 5.0), (2, 7.0)), 5, low=0)
    total = Total("lt", 3.0, is_avg=True)
    held.recount(total)
    assert held.acc.value(2, held) == 6.0


def test_memory_goes_back_as_samples_leave() -> None:
    """The dead part in front never exceeds a third of what is held, plus a little."""
    held = Window(Count("gt", 0.0, 1), 1_000_000)
    for i in range(2000):
        held.add(batch((i, 1.0)), i, low=i - 100)
        held.expire(i - 100)
        assert len(held._main.time) <= 1.34 * len(held) + 32


class Plain:
    """The same window as one list of (time, arrival number, value, ok, how many observations)."""

    def __init__(self, samples_max: int) -> None:
        self.rows: list[tuple[int, int, float, bool, int]] = []
        self.arrivals, self.samples_max = 0, samples_max

    def add(self, rows: list[tuple[int, float, bool, int]], received: int, low: int) -> tuple[int, int]:
        late = 0
        for ts_ms, value, ok, n in rows:
            self.arrivals += 1
            if min(ts_ms, received) <= low:
                late += 1
            else:
                self.rows.append((min(ts_ms, received), self.arrivals, value, ok, n))
        self.rows.sort()
        excess = max(0, len(self.rows) - self.samples_max)
        self.rows = self.rows[excess:]
        return late, excess

    def expire(self, low: int) -> None:
        self.rows = [row for row in self.rows if row[0] > low]


arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(
            st.tuples(st.sampled_from([0, 0, 1, 2, 3, 5, 8, 13, 21, 34, 55, -3]), st.integers(-9, 9), st.booleans()),
            max_size=30,
        ),
        st.sampled_from([1, 1, 1, 4]),
        st.booleans(),
    ),
    max_size=25,
)


@given(
    arrivals=arrivals,
    length=st.sampled_from([5, 30, 60]),
    samples_max=st.sampled_from([7, 40, 10_000]),
    tight=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_window_equals_sorted_list(arrivals: list[Any], length: int, samples_max: int, tight: bool) -> None:
    """Contents, counts, oldest time and running sum equal the plain list's after every batch."""
    constants = {"NEAR": 3, "LATE_MIN": 5} if tight else {"NEAR": window_module.NEAR}
    with patch.multiple(window_module, **constants):
        held, plain, now = window(samples_max), Plain(samples_max), 100
        for wait, rows, n, in_order in arrivals:
            now += wait
            low = now - length
            plain.expire(low)
            told = [
                (now - lag, float(value), ok) for lag, value, ok in (sorted(rows, reverse=True) if in_order else rows)
            ]
            new = Batch.of(told)
            counts = [1 + (n > 1) * (i % n) for i in range(len(told))]
            new.count = np.array(counts, np.int64) if n > 1 else None
            counted = [(*row, count) for row, count in zip(told, counts, strict=True)]
            if n > 1 or not told or not held.take(Rows(new, [0, len(told)], now), 0, len(told), low):
                held.expire(low)
                assert held.add(new, now, low) == plain.add(counted, now, low)
            else:
                assert plain.add(counted, now, low) == (0, 0)
            same(held, plain, low)


def same(held: Window, plain: Plain, low: int) -> None:
    rows = sorted(zip(held.values().tolist(), held.flags().tolist(), strict=True))
    assert rows == sorted((value, ok) for _, _, value, ok, _ in plain.rows)
    counts = held.counts()
    if counts is not None:
        triples = zip(held.values().tolist(), held.flags().tolist(), counts.tolist(), strict=True)
        assert sorted(triples) == sorted(row[2:] for row in plain.rows)
        since, _, newer = held.since(low + 3)
        assert newer is not None
        pairs = sorted(zip(since.tolist(), newer.tolist(), strict=True))
        assert pairs == sorted((row[2], row[4]) for row in plain.rows if row[0] > low + 3)
    assert held.observations == sum(row[4] for row in plain.rows)
    assert len(held) == len(plain.rows)
    assert held.oldest_ms == (plain.rows[0][0] if plain.rows else None)
    assert sorted(held.since(low + 3)[0].tolist()) == sorted(row[2] for row in plain.rows if row[0] > low + 3)
    if plain.rows:
        assert held.acc.value(held.observations, held) == sum(row[2] * row[4] for row in plain.rows)


def test_what_times_go_back_in_is_known_by_metric() -> None:
    """Not where one metric ends and the next begins: times start anew there."""
    batch = Batch.of([(at, 1.0, True) for at in (5, 6, 7, 2, 1, 4, 1, 9, 9, 99, 50)])
    assert Rows(batch, [0, 3, 6, 6, 9, 11], 1_000).torn == {3, 9}
    assert Rows(batch, [0, 3, 6, 6, 9, 11], 9).torn == {3}  # the future counts at the time of arrival
    assert Rows(Batch.of([]), [0, 0], 9).torn == set()


@pytest.mark.parametrize("count", [None, 2])
def test_what_late_samples_move_is_told(count: int | None) -> None:
    """Many rewrite the rows behind them, few shift them; what comes in order moves none."""
    held, late = window(), 900

    def add(n: int, at: int) -> int:
        counts = None if count is None else np.full(n, count)
        held.add(Batch(np.full(n, at), np.ones(n), np.ones(n, np.bool_), count=counts), 500, low=0)
        moved, held.moved = held.moved, 0
        return moved

    assert add(16_000, 400) == 0
    assert add(late, 100) == 0
    assert add(9, 90) == late + 9
    assert add(1, 90) == late // window_module.SHIFTED
    assert add(9, 400) == 0
    assert add(9, 95) == late + 9
    assert held.observations == (16_000 + late + 28) * (count or 1)
    assert add(200, 110) == len(held)  # the second run is merged


@pytest.mark.parametrize("count", [None, 2])
def test_what_leaves_together_is_told(count: int | None) -> None:
    held, many = window(), 10_000
    for at in (100, 200, 300):
        counts = None if count is None else np.full(many, count)
        held.add(Batch(np.full(many, at), np.ones(many), np.ones(many, np.bool_), count=counts), 500, low=0)
    held.expire(100)
    assert (held.moved, len(held)) == (many, 2 * many)


def test_deep_late_samples_do_not_move_the_window() -> None:
    """Half the samples come 30 s late into a large window; order and sum stay exact through runs and merges."""
    held, now = window(), 0
    draw = np.random.default_rng(3)
    sent: list[np.ndarray[Any, Any]] = []
    for i in range(900):
        now = i * 100
        ts_ms = now - np.where(np.arange(50) % 2 == 0, 30_000, 0) - draw.integers(0, 50, 50)
        values = draw.integers(0, 1000, 50).astype(np.float64)
        held.expire(now - 60_000)
        held.add(Batch(ts_ms, values, np.ones(50, np.bool_)), now, now - 60_000)
        sent.append(np.stack([ts_ms, values]))
    times, values = np.concatenate(sent, axis=1)
    inside = times > now - 60_000
    assert len(held) == inside.sum() > 20_000
    assert held.acc.value(len(held), held) == values[inside].sum()
    for run in filter(None, (held._main, held._late)):
        assert (np.diff(np.array(run.time[run.head :])) >= 0).all()
