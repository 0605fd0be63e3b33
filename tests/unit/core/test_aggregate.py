"""Aggregates: the exact definitions, and accumulators that answer as those do, sample by sample."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breaker_actors.core import accumulators as agg
from breaker_actors.core import definitions as exact
from breaker_actors.core.exact_sums import FLOAT_MAX
from breaker_actors.core.model import COUNT_MAX, Agg, Rule
from tests.support import oracle

KINDS = ["error_rate", "avg", "sum", "max", "min", "p95", "percentile", "stddev", "count"]


def array(values: list[float]) -> Any:
    return np.array(values, np.float64)


@pytest.mark.parametrize(
    ("percent", "n", "place"),
    [
        ("55", 100, 55),
        ("95", 20, 19),
        ("95", 21, 20),
        ("99.9", 1000, 999),
        ("99.9", 1001, 1000),
        ("100", 7, 7),
        ("0.001", 5, 1),
        ("70", 10, 7),
        ("29", 100, 29),
        ("1e-05", 3, 1),
        ("95", 1, 1),
        ("58", 50, 29),
    ],
)
def test_rank_is_exact(percent: str, n: int, place: int) -> None:
    """Nearest rank in whole numbers: in floats 0.55 * 100 is above 55 and would give rank 56."""
    assert exact.rank(Fraction(percent), n) == place


def test_sum_is_fsum() -> None:
    """The running sum equals fsum where a plain float sum does not, also after samples have left."""
    total = agg.Total("gt", 0.0, is_avg=False)
    values = [1e16, 1.0, 1.0, -1e16, 0.1, 0.2, 0.3]
    for value in values:
        total.add_few([value], [True])
    window = Held([(v, True) for v in values])
    assert total.value(7, window) == math.fsum(values) != sum(values)
    total.drop_few([1e16, -1e16], [True, True])
    assert total.value(5, Held([(v, True) for v in values if abs(v) < 2])) == math.fsum([1.0, 1.0, 0.1, 0.2, 0.3])


def test_lost_bits_come_back() -> None:
    """0.1 does not fit beside 2**50 and 2**104; when those have left, it decides."""
    total = agg.Total("gt", 0.0, is_avg=True)
    total.add_many(array([2.0**50, 2.0**104, 0.0, 0.1]), np.ones(4, np.bool_))
    total.drop_many(array([2.0**50, 2.0**104]), np.ones(2, np.bool_))
    assert total.breach(2, Held([(0.0, True), (0.1, True)]))


@pytest.mark.parametrize(
    ("values", "sum_", "mean"),
    [
        ([1e308, 1e308, -1e308], 1e308, 1e308 / 3),
        ([1e308] * 4, FLOAT_MAX, 1e308),
        ([-1e308] * 4, -FLOAT_MAX, -1e308),
        ([1e308, 1e308, -1e308, -1e308, 3.0], 3.0, 0.6),
        ([5e-324] * 3, 1.5e-323, 5e-324),
    ],
)
def test_extreme_sums(values: list[float], sum_: float, mean: float) -> None:
    """Where fsum overflows on the way, the sum is exact and kept within the finite floats; the average is finite."""
    assert exact.total(array(values)) == sum_
    assert exact.mean(array(values)) == mean


def test_deviation() -> None:
    """Population standard deviation; one value has none; huge values don't overflow."""
    assert exact.deviation(array([2, 4, 4, 4, 5, 5, 7, 9])) == 2.0
    assert exact.deviation(array([3.7])) == 0.0
    assert exact.deviation(array([1e308, -1e308])) == 1e308
    assert exact.deviation(array([1e9 + 1, 1e9 + 2, 1e9 + 3])) == pytest.approx(math.sqrt(2 / 3), rel=1e-15)


@given(
    rows=st.lists(st.tuples(st.integers(-3, 40), st.sampled_from([1, 1, 2, 7, COUNT_MAX])), min_size=1, max_size=60),
    part=st.floats(0, 1),
)
def test_counted_samples_are_ranked_by_halves_as_by_sorting(rows: list[tuple[int, int]], part: float) -> None:
    """Whatever is left out on the way."""
    values, counts = np.array([float(value) for value, _ in rows]), np.array([count for _, count in rows])
    place, past = max(1, math.ceil(Fraction(part) * int(counts.sum()))), 0
    with patch.object(exact, "SORTED_MAX", 2):
        found = exact.nearest(values, place, counts)
    for value, count in sorted(rows):
        past += count
        if past >= place:
            assert found == value
            break


def test_many_counted_samples_are_not_sorted() -> None:
    values = np.random.default_rng(1).random(100_000)
    with patch.object(np, "argsort", wraps=np.argsort) as sort:
        found = exact.nearest(values, 190_000, np.full(len(values), 2))
    assert found == np.partition(values, 94_999)[94_999]
    assert sum(len(call.args[0]) for call in sort.call_args_list) <= 10_000


def test_summary() -> None:
    """`agg` of an event: average, count, failures, p95; zeros for nothing."""
    values = array([float(i) for i in range(1, 21)])
    ok = np.array([i % 4 != 0 for i in range(20)])
    assert exact.summary(values, ok) == Agg(10.5, 20, 5, 19.0)
    assert exact.summary(array([]), np.array([], np.bool_)) == Agg(0.0, 0, 0, 0.0)


class Held:
    """A window as plain lists."""

    def __init__(self, samples: list[tuple[float, bool]]) -> None:
        self.samples = samples

    def values(self) -> Any:
        return array([v for v, _ in self.samples])

    def flags(self) -> Any:
        return np.array([ok for _, ok in self.samples], np.bool_)

    def counts(self) -> Any:
        return None


class Counted(Held):
    """The same where each sample is (value, ok, how many observations it stands for)."""

    def counts(self) -> Any:
        return np.array([row[2] for row in self.samples], np.int64)  # type: ignore[misc]

    def values(self) -> Any:
        return array([row[0] for row in self.samples])

    def flags(self) -> Any:
        return np.array([row[1] for row in self.samples], np.bool_)


numbers = st.one_of(
    st.sampled_from(
        [0.0, 0.1, 0.2, 0.3, 1.0, 2.0, 3.0, -1.0, 1e16, -1e16, 1e-300, 5e-324, 2.0**970, -(2.0**970), 1e308]
    ),
    st.builds(lambda sign, power: sign * 2.0**power, st.sampled_from([1, -1, 1.1]), st.integers(-60, 200)),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(min_value=-1000, max_value=1000),
)
samples = st.lists(st.tuples(numbers, st.booleans()), min_size=1, max_size=12)
moves = st.lists(
    st.one_of(st.tuples(st.just("add"), samples), st.tuples(st.just("drop"), st.integers(1, 15))), max_size=8
)


@pytest.mark.parametrize("kind", KINDS)
@given(
    op=st.sampled_from(["gt", "lt", "gte", "lte"]), threshold=numbers, moves=moves, scalar=st.booleans(), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_accumulator_equals_definition(
    kind: str, op: Any, threshold: float, moves: list[tuple[str, Any]], scalar: bool, data: st.DataObject
) -> None:
    """After any samples came and went: same value, same verdict, and no breach by expiry that was ruled out."""
    params = {"percentile": data.draw(st.sampled_from([1, 33.3, 50, 99.9, 100]))} if kind == "percentile" else {}
    rule = Rule(metric="m", kind=kind, op=op, threshold=threshold, kind_params=params)  # type: ignore[arg-type]
    acc, held = agg.accumulator_for(rule), Held([])
    for word, what in moves:
        if word == "add":
            held.samples = held.samples + what
            change(acc.add_few, acc.add_many, what, scalar)
        else:
            gone, held.samples = held.samples[:what], held.samples[what:]
            change(acc.drop_few, acc.drop_many, gone, scalar)
        if not held.samples:
            acc.clear()
            continue
        n = len(held.samples)
        value = oracle.aggregate(kind, params, held.samples, 1)
        assert value is not None
        assert acc.breach(n, held) is oracle.OPS[op](value, threshold)
        assert acc.value(n, held) == value
        if not acc.breach(n, held) and not acc.may_breach(n):
            for left in range(1, n):
                later = oracle.aggregate(kind, params, held.samples[left:], 1)
                assert not oracle.OPS[op](later, threshold)


counted = st.lists(st.tuples(numbers, st.booleans(), st.integers(1, 5)), min_size=1, max_size=8)


@pytest.mark.parametrize("kind", KINDS)
@given(
    op=st.sampled_from(["gt", "lt", "gte", "lte"]),
    threshold=numbers,
    moves=st.lists(
        st.one_of(st.tuples(st.just("add"), counted), st.tuples(st.just("drop"), st.integers(1, 10))), max_size=6
    ),
    percent=st.sampled_from([1, 33.3, 50, 99.9, 100]),
)
@settings(max_examples=60, deadline=None)
def test_a_counted_sample_is_so_many_samples(
    kind: str, op: Any, threshold: float, moves: list[tuple[str, Any]], percent: float
) -> None:
    """Samples that stand for several observations have the value and the verdict of so many samples."""
    params = {"percentile": percent} if kind == "percentile" else {}
    rule = Rule(metric="m", kind=kind, op=op, threshold=threshold, kind_params=params)  # type: ignore[arg-type]
    acc, held = agg.accumulator_for(rule), Counted([])
    for word, what in moves:
        rows, many = (what, acc.add_many) if word == "add" else (held.samples[:what], acc.drop_many)
        held.samples = held.samples + what if word == "add" else held.samples[what:]
        if rows:
            some = Counted(rows)
            many(some.values(), some.flags(), some.counts())
        if not held.samples:
            acc.clear()
            continue
        each = expanded(held.samples)
        value = oracle.aggregate(kind, params, each, 1)
        assert value is not None
        assert acc.value(len(each), held) == value
        assert acc.breach(len(each), held) is oracle.OPS[op](value, threshold)
        percentile = Fraction(repr(percent)) if params else exact.P95
        assert exact.exact_value(kind, percentile, held.values(), held.flags(), held.counts()) == value
        if not acc.breach(len(each), held) and not acc.may_breach(len(each)):
            for left in range(1, len(held.samples)):
                later = oracle.aggregate(kind, params, expanded(held.samples[left:]), 1)
                assert not oracle.OPS[op](later, threshold)


def expanded(rows: list[Any]) -> list[tuple[float, bool]]:
    """Observation by observation."""
    return [(value, ok) for value, ok, n in rows for _ in range(n)]


@given(values=st.lists(numbers, min_size=1, max_size=20), data=st.data())
@settings(max_examples=200, deadline=None)
def test_sums_of_millions_are_exact(values: list[float], data: st.DataObject) -> None:
    """Of any finite values, each up to ten million times: the exact sum, rounded once."""
    counts = [data.draw(st.integers(1, COUNT_MAX)) for _ in values]
    whole = sum((Fraction(value) * n for value, n in zip(values, counts, strict=True)), Fraction(0))
    assert exact.total(array(values), np.array(counts)) == oracle.to_float(whole)


near = st.one_of(
    st.sampled_from([0.0, 0.1, 0.3, 1.0, -1.0, -3.0, 2.9999999999999996, 1e-300, 2.0**970, -(2.0**970)]),
    st.floats(min_value=-4, max_value=4),
)


@given(
    op=st.sampled_from(["gt", "lt", "gte", "lte"]),
    threshold=st.sampled_from([3.0, 0.3, 0.0, -3.0]),
    batches=st.lists(st.tuples(st.lists(near, min_size=1, max_size=6), st.booleans(), st.booleans()), max_size=30),
    length=st.sampled_from([3, 8, 30]),
)
@settings(max_examples=300, deadline=None)
def test_an_average_that_rests_decides_as_its_definition(
    op: Any, threshold: float, batches: list[tuple[list[float], bool, bool]], length: int
) -> None:
    """A sum is not followed while no value comes near the threshold, and is made anew when one does."""
    acc, held = agg.accumulator_for(Rule(metric="m", kind="avg", op=op, threshold=threshold)), Held([])
    for values, scalar, asked in batches:
        new = [(value, True) for value in values]
        gone, held.samples = held.samples[: -length + len(new)], [*held.samples[-length + len(new) :], *new]
        change(acc.drop_few, acc.drop_many, gone, scalar)
        change(acc.add_few, acc.add_many, new, scalar)
        n = len(held.samples)
        value = oracle.aggregate("avg", {}, held.samples, 1)
        assert value is not None
        assert acc.breach(n, held) is oracle.OPS[op](value, threshold)
        assert not asked or acc.value(n, held) == value


def test_a_sum_that_rests_is_not_followed() -> None:
    """What it was stays as it was; a value near the threshold has it made anew from the window."""
    total, held = agg.Total("gt", 100.0, is_avg=True), Held([])
    for _ in range(40):
        held.samples = [*held.samples, (1.0, True)]
        total.add_few([1.0], [True])
        assert not total.breach(len(held.samples), held)
    assert total._rests
    assert total._high < 40
    held.samples = [*held.samples, (10_000.0, True)]
    total.add_few([10_000.0], [True])
    assert total.breach(41, held)
    assert not total._rests
    assert total.value(41, held) == 10_040 / 41


def change(one: Any, many: Any, what: list[tuple[float, bool]], scalar: bool) -> None:
    if scalar:
        if what:
            one([value for value, _ in what], [ok for _, ok in what])
    elif what:
        many(array([v for v, _ in what]), np.array([ok for _, ok in what], np.bool_))


class Untouchable:
    """A window that is not to be looked at."""

    def values(self) -> Any:
        raise LookupError

    flags = counts = values


def test_deviation_filter_decides_without_columns() -> None:
    """A clear case is decided from the running sums; only a close one looks at the window, once."""
    acc = agg.Deviation("gt", 50.0)
    values, ok = np.random.default_rng(5).normal(1e6, 10.0, 5000), np.ones(5000, np.bool_)
    acc.add_many(values, ok)
    acc.drop_many(values[:1000], ok[:1000])
    assert acc.breach(4000, Untouchable()) is False
    close = agg.Deviation("gt", exact.deviation(values))
    close.add_many(values, ok)
    with pytest.raises(LookupError):
        close.breach(5000, Untouchable())


class Looked(Held):
    """Counts how often its values are looked at."""

    looks = 0

    def values(self) -> Any:
        self.looks += 1
        return super().values()


WIDE_VALUES = [1e300, 0.1, 2.0**104, -1e300, 1e-300, 7.0, 1e308, 3.0, -1e308, 2.0**50]
"""They differ in size by more than two floats hold, some are beyond the sums of floats."""


@pytest.mark.parametrize(
    ("kind", "threshold", "read", "values"),
    [
        ("sum", 10.0, False, WIDE_VALUES),
        ("avg", 0.0, False, WIDE_VALUES),
        ("avg", 0.0, True, WIDE_VALUES),
        ("avg", 100.0, True, [1.0, 2.0, 3.0]),
        ("stddev", 2.0, False, [1.0, 5.0]),  # on the threshold for as long as as many of each are held
        ("stddev", 2.0, True, WIDE_VALUES),
        ("stddev", 1e9, True, [1.0, 2.0, 5.0]),
    ],
)
def test_a_window_is_not_summed_anew(kind: Any, threshold: float, read: bool, values: list[float]) -> None:
    """A thousand evaluations, a sample leaving before each, read or not: the window is looked at once at most, and
    each answer is that of the definition."""
    acc = agg.accumulator_for(Rule(metric="m", kind=kind, op="gt", threshold=threshold))
    held = Looked([(values[i % len(values)], True) for i in range(1000)])
    for value, ok in held.samples:
        acc.add_few([value], [ok])
    for i in range(1000):
        new = values[i % len(values)]
        gone, held.samples = held.samples[0], [*held.samples[1:], (new, True)]
        acc.drop_few([gone[0]], [True])
        acc.add_few([new], [True])
        looks = held.looks
        breach, value = acc.breach(1000, held), acc.value(1000, held) if read else None
        assert held.looks == looks or (held.looks, looks) == (1, 0)
        if not i % 100:
            expected = exact.exact_value(kind, exact.P95, Held.values(held), held.flags())
            assert breach is (expected > threshold)
            assert value is None or value == expected


def test_what_is_followed_for_nobody_is_dropped() -> None:
    """Exact sums of a deviation that nobody asks for, and that the filter decides: not followed for ever, and not made
    anew before many evaluations have passed."""
    acc, held = agg.Deviation("gt", 50.0), Looked([(float(i % 7), True) for i in range(800)])
    acc.add_many(held.values(), held.flags())
    expected = acc.value(800, held)
    looks = held.looks
    for _ in range(100):
        assert acc._exact is not None
        assert not acc.breach(800, Untouchable())
    assert acc._exact is None
    assert not acc.breach(800, Untouchable())
    assert acc._bounds(800)[0] <= expected <= acc._bounds(800)[1]
    assert acc.value(800, held) == expected
    assert held.looks == looks + 1
