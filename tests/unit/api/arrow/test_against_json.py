"""The same rows as JSON and as an Arrow stream: the same are taken, and the others refused for the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.arrow.frames import read_frame
from api.wire import samples
from api.wire.sample_columns import Pieces, frame_routers, judge_frame, names_bytes
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.core.model import COUNT_MAX
from breaker_actors.errors import PayloadTooLarge
from breaker_actors.messages import Part
from tests.support.arrow_streams import WRITERS, coded, of_pyarrow, table

R1, R2, R3 = (f"0000000a-0000-0000-0000-00000000000{n}" for n in "123")
NOW = 1_795_242_600_000
KEYS = (b"a" * 16, b"b" * 16)
NAMES = ("router_id", "metric", "ts_ms", "value", "ok", "trace_id", "count", "extra")
NEEDED = ("router_id", "metric", "value")
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "router_id": st.sampled_from([R1, R1.upper(), R2, R2, R3, "", "x", None, "K" * 600]),
    "metric": st.sampled_from(["latency", "errors", "é" * 128, "m" * 128, "m" * 129, "m" * 520, "m" * 8, "", None]),
    "ts_ms": st.sampled_from(
        [NOW, NOW - 1, NOW - 3_600_000, NOW - 3_600_001, NOW + 300_000, NOW + 300_001, None, (1 << 63) - 1, -(1 << 63)]
    ),
    "value": st.floats() | st.sampled_from([1.0, None]),
    "ok": st.sampled_from([True, False, None]),
    "trace_id": st.sampled_from(["t", "", None, "é" * 1024, "é" * 1025, "x" * 1024, "x" * 1025, "z" * 4100, "abc"]),
    "count": st.sampled_from([1, 1, 2, COUNT_MAX, COUNT_MAX + 1, 0, -1, None]),
    "extra": st.just(1),
}
GOOD = {"router_id": R1, "metric": "latency", "ts_ms": NOW, "value": 1.0, "ok": True, "trace_id": "t", "count": 1}


def spoiled(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    """A row that is good, but for some fields that may be."""
    row: dict[str, Any] = {name: GOOD.get(name, 1) for name in names}
    for name in draw(st.sets(st.sampled_from(names), max_size=3)):
        row[name] = draw(FIELDS[name])
    return row


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]]]:
    """Some columns, and rows of them."""
    more = draw(st.sets(st.sampled_from([name for name in NAMES if name not in NEEDED])))
    names = list(draw(st.permutations([*NEEDED, *more])))
    return names, [spoiled(draw, names) for _ in range(draw(st.integers(0, 12)))]


Found = tuple[Mapping[str, int], list[Any], dict[tuple[str, str], list[Any]], list[str]]


def told(parts: list[Part]) -> dict[tuple[str, str], list[Any]]:
    """What parts say, by router and metric, rows in their order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for part in parts:
        columns = decode_samples(part.payload)
        n, batch = columns.starts[-1], columns.batch
        assert part.count == n > 0
        assert all(size > 0 for size in map(int.__sub__, columns.starts[1:], columns.starts))
        counts = [1] * n if batch.count is None else batch.count.tolist()
        share = [0] * n if columns.share is None else columns.share.tolist()
        traces = columns.traces or [""] * n
        every = zip(batch.ts_ms.tolist(), batch.value.tolist(), batch.ok.tolist(), counts, share, traces, strict=True)
        rows = list(every)
        for metric, start, stop in zip(columns.metrics, columns.starts, columns.starts[1:], strict=False):
            found.setdefault((part.router_id, metric), []).extend(rows[start:stop])
        flags = (batch.count is None, columns.share is None, not columns.traces)
        found.setdefault((part.router_id, ""), []).append(flags)
    return found


def by_json(rows: list[dict[str, Any]], bounds: samples.ValidationContext, traced: bool) -> Found:
    given = [{name: value for name, value in row.items() if value is not None} for row in rows]
    request = samples.Request(json.dumps(given).encode())
    result = request.validate(bounds)
    parts = samples.to_parts(result.good, KEYS, {R2}, traced) if result.good else []
    return result.reasons, result.errors, told(parts), sorted(request.router_ids())


def by_arrow(body: bytes, bounds: samples.ValidationContext, traced: bool) -> Found:
    frame = read_frame(body, 1 << 20)
    judged = judge_frame(frame, bounds)
    pieces = Pieces(judged, bounds, {R2}, traced)
    parts = pieces.parts(KEYS)
    assert len(parts) <= 1
    found = told([part for group in parts for part in group])
    assert pieces.pairs == {pair for pair in found if pair[1]}
    assert judged.accepted == sum(part.count for group in parts for part in group)
    return judged.reasons, judged.errors, found, sorted(frame_routers(frame))


@pytest.mark.parametrize("writer", WRITERS)
@settings(deadline=None, max_examples=12)
@given(requests(), st.sampled_from([None, NOW, 5, 1 << 70]), st.booleans(), st.booleans())
def test_both_ways_decide_alike(
    writer: str, given: tuple[list[str], list[dict[str, Any]]], default_ms: int | None, strict: bool, traced: bool
) -> None:
    names, rows = given
    bounds = samples.ValidationContext.at(NOW, 3_600_000, 300_000, {R1: False, R2: True}, default_ms, strict)
    ours = by_arrow(WRITERS[writer](table(rows, names)), bounds, traced)
    theirs = by_json(rows, bounds, traced)
    assert ours[:3] == theirs[:3]
    assert ours[3] == [name for name in theirs[3] if len(name) == len(R1)]


@pytest.mark.parametrize("name", ["trace_id", "metric"])
def test_few_bytes_of_texts_become_no_more_of_the_log(name: str) -> None:
    """A dictionary has one entry for all rows that have it, the log has it for each, or for each router."""
    bounds = samples.ValidationContext.at(NOW, 3_600_000, 300_000, {R1: False, R2: True}, NOW, False)
    for n, taken in ((10, True), (1_000, False)):
        texts = [f"{k % 500:0100}" for k in range(n)]
        columns = {"router_id": [R1, R2] * (n // 2), "metric": ["m"] * n, "value": np.zeros(n)} | {name: texts}
        frame = read_frame(of_pyarrow(coded(pa.table(columns))), 1 << 20)
        pieces = Pieces(judge_frame(frame, bounds), bounds, frozenset(), with_traces=True, names_max=40_000)
        with contextlib.nullcontext() if taken else pytest.raises(PayloadTooLarge, match="40000 bytes of the log"):
            assert pieces.parts(KEYS)


def test_what_the_log_may_have_goes_by_what_was_sent() -> None:
    assert [names_bytes(sent) for sent in (2_176, 1 << 17, 1 << 30)] == [1 << 20, 1 << 23, 1 << 24]


def test_more_than_a_hundred_errors() -> None:
    rows = [GOOD | {"value": None if n % 2 else 1.0} for n in range(600)]
    bounds = samples.ValidationContext.at(NOW, 3_600_000, 300_000, {R1: False}, None)
    ours = by_arrow(WRITERS["polars"](table(rows, NAMES[:7])), bounds, False)
    assert ours[0] == {"invalid_value": 300}
    assert ours[:3] == by_json(rows, bounds, False)[:3]
    assert len(ours[1]) == 100
