"""How a router splits samples: static, canary and weighted (semantics.md section 7)."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breaker_actors.core.log_entries import (
    SAMPLES,
    Link,
    LogRecord,
    Mode,
    RouterView,
    SampleColumns,
    Splitter,
    decode_samples,
    encode_samples,
    merge_samples,
    share_of_trace,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Transition
from breaker_actors.core.rules import parse_rule
from breaker_actors.wal.reader import concerned

ROWS = 20_000


def columns(traces: list[str] | None = None, rows: int = ROWS, metric: str = "m") -> SampleColumns:
    share = None if traces is None else np.array([share_of_trace(t) if t else 0 for t in traces], np.int64)
    return decode_samples(
        encode_samples(
            ["other", metric],
            [1, rows - 1],
            np.arange(rows),
            np.arange(rows, dtype=float),
            np.ones(rows, bool),
            share,
        )
    )


def taken(mode: Mode, shares: dict[str, float | None], asked: SampleColumns, **view: object) -> dict[str, list[int]]:
    links = tuple(Link(breaker_id, "m", share) for breaker_id, share in shares.items())
    splitter = Splitter(RouterView(version=1, mode=mode, links=(*links, Link("else", "x")), **view))  # type: ignore[arg-type]
    return {
        breaker_id: list(range(start, stop)) if rows is None else rows.tolist()
        for breaker_id, start, stop, rows in splitter.split(asked, "router", 7)
    }


def test_static_gives_everything_of_the_metric_to_all() -> None:
    got = taken("static", {"a": None, "b": None}, columns(rows=10))
    assert got == {"a": list(range(1, 10)), "b": list(range(1, 10))}


def test_a_disabled_router_gives_nothing() -> None:
    assert taken("static", {"a": None}, columns(rows=10), enabled=False) == {}


def test_canary_gives_a_share_and_everything_to_the_others() -> None:
    got = taken("canary", {"all": None, "ten": 10.0, "none": 0.0, "full": 100.0}, columns())
    assert len(got["all"]) == len(got["full"]) == ROWS - 1
    assert len(got["ten"]) / ROWS == pytest.approx(0.10, abs=0.01)
    assert "none" not in got


def test_weighted_gives_each_sample_to_exactly_one_in_proportion() -> None:
    got = taken("weighted", {"a": 1.0, "b": 3.0, "zero": 0.0}, columns())
    assert sorted(row for rows in got.values() for row in rows) == list(range(1, ROWS))
    assert len(got["b"]) / len(got["a"]) == pytest.approx(3, rel=0.1)
    assert "zero" not in got


def test_weighted_with_all_weights_zero_gives_to_nobody() -> None:
    assert taken("weighted", {"a": 0.0, "b": 0.0}, columns(rows=50)) == {}


def test_one_trace_always_goes_the_same_way_and_a_replay_splits_alike() -> None:
    traces = [f"trace-{i % 40}" if i % 2 else "" for i in range(2_000)]
    asked = columns(traces, rows=2_000)
    first = taken("weighted", {"a": 1.0, "b": 1.0}, asked)
    assert taken("weighted", {"a": 1.0, "b": 1.0}, asked) == first
    homes: dict[str, Counter[str]] = {}
    for breaker_id, rows in first.items():
        for row in rows:
            if traces[row]:
                homes.setdefault(traces[row], Counter())[breaker_id] += 1
    assert all(len(home) == 1 for home in homes.values())
    assert len({next(iter(home)) for home in homes.values()}) == 2


SHARES = st.sampled_from([None, 0.0, 0.1, 1.0, 12.5, 50.0, 99.9, 100.0, 250.0])


@given(mode=st.sampled_from(["canary", "weighted"]), shares=st.lists(SHARES, min_size=1, max_size=30))
def test_breakers_take_what_each_would_by_itself(mode: Mode, shares: list[float | None]) -> None:
    """As the split was written first, link by link: logs that were written then are read now."""
    rows = 200
    digests = [share_of_trace(f"t{row}") for row in range(rows)]
    place = (np.array(digests, np.int64).view(np.uint64) >> np.uint64(11)).astype(float) * 2.0**-53
    if mode == "canary":
        naive = [np.arange(rows) if s is None else np.flatnonzero(place * 100 < s) for s in shares]
    else:
        ends = np.cumsum([1.0 if s is None else s for s in shares])
        last = int(np.flatnonzero(np.diff(ends, prepend=0.0) > 0)[-1]) if ends[-1] > 0 else 0
        chosen = np.minimum(np.searchsorted(ends, place * ends[-1], side="right"), last)
        naive = [np.flatnonzero((chosen == i) & (ends[-1] > 0)) for i in range(len(shares))]
    asked = columns([*(f"t{row}" for row in range(-1, rows))], rows=rows + 1)
    wanted = {str(i): (found + 1).tolist() for i, found in enumerate(naive) if len(found)}
    got = taken(mode, {str(i): share for i, share in enumerate(shares)}, asked)
    assert got == wanted
    assert list(got) == list(wanted), "in their order"
    links = tuple(Link(str(i), "m", share) for i, share in enumerate(shares))
    some = {str(i) for i in range(0, len(shares), 3)}
    narrow = Splitter(RouterView(version=1, mode=mode, links=links), some)
    asked_only = [i for i, *_ in narrow.split(asked, "router", 7)]
    assert asked_only == [i for i in wanted if i in some], "asked for some of them alone"


def test_thousands_with_one_share_take_one_copy_of_the_rows() -> None:
    """A record of a router with 10,000 breakers is not copied 10,000 times, by its owner or by who reads its log."""
    links = tuple(Link(str(i), "m", (50.0, 100.0, None)[i % 3]) for i in range(3_000))
    splitter, asked = Splitter(RouterView(version=1, mode="canary", links=links)), columns(rows=1_000)
    arrays = [rows for _, _, _, rows in splitter.split(asked, "router", 7) if rows is not None]
    assert len(arrays) == 1_000, "who takes everything gets the record itself"
    assert len(set(map(id, arrays))) == 1
    payload = encode_samples(["m"], [999], np.arange(999), np.ones(999), np.ones(999, bool))
    read = list(concerned(LogRecord("router", 7, 0, SAMPLES, 1, payload), splitter))
    assert len(read) == 3_000
    assert len({id(body) for _, body, _, _ in read}) == 2


def test_weights_of_thousands_cost_by_the_rows() -> None:
    """One sample for a router of 10,000 breakers looks at none of those that do not get it."""
    links = tuple(Link(str(i), "m", None) for i in range(10_000))
    splitter, asked = Splitter(RouterView(version=1, mode="weighted", links=links)), columns(rows=2)
    assert len(list(splitter.split(asked, "router", 7))) == 1
    begun = time.thread_time()
    for offset in range(100):
        assert len(list(splitter.split(asked, "router", offset))) == 1
    assert time.thread_time() - begun < 0.1, "10 ms each before"


def test_merging_keeps_the_traces_of_either_part() -> None:
    plain = encode_samples(["m"], [1], np.array([1]), np.array([1.0]), np.ones(1, bool))
    traced = encode_samples(["m"], [1], np.array([2]), np.array([2.0]), np.ones(1, bool), np.array([77]))
    merged = decode_samples(merge_samples([plain, traced]))
    assert merged.share is not None
    assert merged.share.tolist() == [0, 77]


def test_traces_go_with_their_rows() -> None:
    """Through merging and picking, and the newest of a range is found; the last one among equals."""
    two = [np.array([5, 7], np.int64), np.array([1.0, 2.0]), np.ones(2, bool)]
    first = encode_samples(["m", "n"], [1, 1], *two, traces=["a", ""])
    second = encode_samples(["m"], [2], *two, traces=["", "c"])
    plain = encode_samples(["m"], [2], *two)
    merged = decode_samples(merge_samples([first, second, plain]))
    assert list(merged.traces) == ["a", "", "c", "", "", ""]
    m, n = merged.of("m"), merged.of("n")
    assert m is not None
    assert n is not None
    assert (m.trace, n.trace) == ((7, "c"), None)
    assert merged.pick(0, np.array([0, 1])).rows(0, 2).trace == (5, "a")
    same = decode_samples(encode_samples(["m"], [2], np.array([5, 5]), *two[1:], traces=["a", "b"]))
    assert same.rows(0, 2).trace == (5, "b")
    assert decode_samples(plain).rows(0, 2).trace is None


def test_a_transition_names_the_newest_trace_in_the_window() -> None:
    def batch(value: float, trace: tuple[int, str] | None) -> Batch:
        return Batch(np.array([0]), np.array([value]), np.ones(1, bool), trace)

    rule = parse_rule({"metric": "m", "kind": "max", "op": "gt", "threshold": 9, "window_ms": 100,
                       "min_state_duration_ms": 0, "cooldown_ms": 50, "eval_interval_ms": 10_000})  # fmt: skip
    breaker, _ = Breaker.create(rule, 0)
    breaker.ingest(batch(1.0, (40, "old")), 40)
    breaker.ingest(batch(1.0, (20, "late")), 50)
    breaker.ingest(batch(1.0, None), 60)
    copy = Breaker.restore(rule, breaker.record())
    for each, at in ((batch(1.0, (40, "old")), 40), (batch(1.0, (20, "late")), 50)):
        copy.load(each, at)
    for each_breaker in (breaker, copy):
        assert isinstance(trip := each_breaker.ingest(Batch.of([(70, 10.0, True)]), 70)[0], Transition)
        assert trip.trace_id == "old"
    breaker.advance(130)
    breaker.ingest(batch(1.0, None), 200)
    assert breaker.view(200).state == "half_open"
    assert isinstance(again := breaker.ingest(Batch.of([(210, 10.0, True)]), 210)[0], Transition)
    assert (again.curr, again.trace_id) == ("open", None)
