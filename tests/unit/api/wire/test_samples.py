"""From the bytes of an ingest request to columns, or to one error per bad sample."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from api.wire import decoding, samples
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.errors import BadRequest, PayloadTooLarge
from tests.support.bombs import unpacked

R1, R2, R3 = (f"0000000a-0000-0000-0000-00000000000{n}" for n in "123")
NOW = 1_795_242_600_000
BOUNDS = samples.ValidationContext.at(NOW, 3_600_000, 300_000, {R1: False, R2: True}, None)
GOOD = {"router_id": R1, "metric": "latency", "ts_ms": NOW, "value": 1.5}


def sort(body: Any, bounds: samples.ValidationContext = BOUNDS) -> samples.Validated:
    return samples.Request(body if isinstance(body, bytes) else json.dumps(body).encode()).validate(bounds)


def rows(found: samples.Validated) -> list[tuple[str, str, int, float, bool, int]]:
    good = found.good
    counts = [1 if count is None else count for count in good.count]
    return list(zip(good.router_id, good.metric, good.ts_ms, good.value, good.ok, counts, strict=True))


def raw(**fields: str) -> bytes:
    """A list of one sample, with fields replaced by JSON text."""
    texts = {name: json.dumps(value) for name, value in GOOD.items()} | fields
    return b"[{" + ",".join(f'"{name}":{text}' for name, text in texts.items()).encode() + b"}]"


def test_a_bare_list_and_an_envelope_are_the_same() -> None:
    assert rows(sort([GOOD])) == rows(sort({"samples": [GOOD], "more": 1})) == [(R1, "latency", NOW, 1.5, True, 1)]


@pytest.mark.parametrize(
    ("field", "text", "code"),
    [
        ("router_id", "null", "invalid_router_id"),
        ("router_id", "5", "invalid_router_id"),
        ("router_id", json.dumps(R3), "invalid_router_id"),
        ("metric", "null", "invalid_metric"),
        ("metric", '""', "invalid_metric"),
        ("metric", "7", "invalid_metric"),
        ("metric", json.dumps("m" * 129), "invalid_metric"),
        ("metric", '"\\ud800"', "invalid_metric"),
        ("ts_ms", "null", "invalid_ts_ms"),
        ("ts_ms", '"1"', "invalid_ts_ms"),
        ("ts_ms", "true", "invalid_ts_ms"),
        ("ts_ms", f"{NOW}.0", "invalid_ts_ms"),
        ("ts_ms", "1e12", "invalid_ts_ms"),
        ("ts_ms", "NaN", "invalid_ts_ms"),
        ("ts_ms", "9" * 5000, "invalid_ts_ms"),
        ("ts_ms", str(NOW - 3_600_001), "ts_ms_too_old"),
        ("ts_ms", "-" + "9" * 30, "ts_ms_too_old"),
        ("ts_ms", str(NOW + 300_001), "ts_ms_in_future"),
        ("ts_ms", "9" * 30, "ts_ms_in_future"),
        ("value", "null", "invalid_value"),
        ("value", "NaN", "invalid_value"),
        ("value", "Infinity", "invalid_value"),
        ("value", "-Infinity", "invalid_value"),
        ("value", "1e400", "invalid_value"),
        ("value", "9" * 310, "invalid_value"),
        ("value", "9" * 5000, "invalid_value"),
        ("value", "true", "invalid_value"),
        ("value", '"1"', "invalid_value"),
        ("value", "[1]", "invalid_value"),
        ("ok", "null", "invalid_ok"),
        ("ok", "1", "invalid_ok"),
        ("ok", '"true"', "invalid_ok"),
        ("tags", "[]", "invalid_tags"),
        ("tags", '{"a":1}', "invalid_tags"),
        ("tags", '{"a":null}', "invalid_tags"),
        ("tags", json.dumps({str(n): "v" for n in range(33)}), "invalid_tags"),
        ("trace_id", "5", "invalid_trace_id"),
        ("trace_id", json.dumps("x" * 1025), "invalid_trace_id"),
        ("count", "0", "invalid_count"),
        ("count", "-1", "invalid_count"),
        ("count", "2.0", "invalid_count"),
        ("count", "true", "invalid_count"),
        ("count", '"2"', "invalid_count"),
        ("count", "10000001", "invalid_count"),
        ("count", "9" * 5000, "invalid_count"),
    ],
)
def test_a_bad_field_spoils_its_sample_only(field: str, text: str, code: str) -> None:
    found = sort(raw(**{field: text}))
    assert (len(found.good), found.rejected) == (0, 1)
    assert found.errors == [samples.SampleError(0, field, code, samples.SENTENCES[code].format(BOUNDS))]
    both = sort(raw()[:-1] + b"," + raw(**{field: text})[1:])
    assert rows(both) == rows(sort([GOOD]))
    assert both.errors == [samples.SampleError(1, field, code, samples.SENTENCES[code].format(BOUNDS))]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("ts_ms", str(NOW - 3_600_000)),
        ("ts_ms", str(NOW + 300_000)),
        ("value", "9" * 308),
        ("value", "-0"),
        ("value", "5e-324"),
        ("metric", json.dumps("é" * 128)),
        ("tags", "null"),
        ("tags", "{}"),
        ("tags", json.dumps({str(n): "v" for n in range(32)})),
        ("trace_id", "null"),
        ("trace_id", '"t"'),
        ("router_id", json.dumps(R1.upper())),
        ("ok", "false"),
        ("count", "null"),
        ("count", "1"),
        ("count", "10000000"),
        ("unknown", "[[1]]"),
    ],
)
def test_a_field_at_its_bound_is_good(field: str, text: str) -> None:
    found = sort(raw(**{field: text}))
    assert found.rejected == 0
    assert found.good.router_id == [R1]


def test_a_missing_time_is_taken_from_the_header() -> None:
    bare = {name: value for name, value in GOOD.items() if name != "ts_ms"}
    assert sort([bare]).errors[0].code == "invalid_ts_ms"
    for sample in (bare, GOOD | {"ts_ms": None}):
        assert sort([sample], samples.ValidationContext.at(NOW, 1000, 1000, {R1: False}, NOW - 5)).good.ts_ms == [
            NOW - 5
        ]
        assert (
            sort([sample], samples.ValidationContext.at(NOW, 1000, 1000, {R1: False}, 5)).errors[0].code
            == "ts_ms_too_old"
        )


@pytest.mark.parametrize("name", ["pay", R3[:-1], R3 + "0", "x" * 200])
def test_a_name_in_the_place_of_an_id_is_told_where_names_count(name: str) -> None:
    wrong = [samples.SampleError(0, "router_id", "invalid_router_id", samples.NO_ID)]
    assert sort([GOOD | {"router_id": name}]).errors == wrong
    assert sort(raw(router_id=json.dumps(name), trace_id="5")).errors == wrong  # one that is decoded loosely
    assert "OTLP, Prometheus and StatsD" in samples.NO_ID


def test_what_is_not_an_object_has_no_router() -> None:
    found = sort([1, None, "x", [], GOOD])
    assert [(e.index, e.code) for e in found.errors] == [(n, "invalid_router_id") for n in range(4)]
    assert len(found.good) == 1


def test_of_many_bad_samples_the_first_hundred_are_named() -> None:
    found = sort([GOOD | {"value": "x"}] * 300 + [GOOD])
    assert (found.rejected, len(found.errors), len(found.good)) == (300, 100, 1)
    assert found.errors[-1].index == 99


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"null",
        b"5",
        b'"x"',
        b'{"samples":null}',
        b'{"samples":{}}',
        b"[1,]",
        b"[1] x",
        b"\xff",
        b'["\xff"]',
        b"[" * 200_000,
        b"[" * 100_000 + b"]" * 100_000,
        "[]".encode("utf-16"),
    ],
)
def test_what_is_not_a_list_of_samples_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        samples.Request(body)


def test_more_than_a_thousand_samples_are_too_many_whatever_they_are() -> None:
    assert len(samples.Request(json.dumps([GOOD] * 1000).encode())) == 1000
    for sample in (GOOD, 1):
        with pytest.raises(PayloadTooLarge):
            samples.Request(json.dumps([sample] * 1001).encode())


# fast and slow agree

_texts = st.sampled_from([R1, R2, R3, R1.upper(), "", "x"])
_odd = st.sampled_from([None, True, 1, 1.5, "1", [], {}, "\ud800"])
_times = st.one_of(st.none(), st.integers(NOW - 3_600_002, NOW + 300_002), st.just(1 << 70), st.just(-(1 << 70)), _odd)
_values = st.one_of(
    st.floats(), st.integers(-(1 << 70), 1 << 70), st.just(10**308), st.just(10**309), st.floats(0, 10), _odd
)
_metrics = st.one_of(st.text(max_size=4), st.just("m" * 128), st.just("m" * 129), st.just("😀" * 128), _odd)
_tags = st.one_of(
    st.none(),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    st.dictionaries(_texts, _odd),
    _odd,
)
_good = st.fixed_dictionaries(
    {
        "router_id": st.sampled_from([R1, R2]),
        "metric": st.sampled_from(["a", "b"]),
        "ts_ms": st.integers(NOW - 9, NOW),
        "value": st.floats(allow_nan=False, allow_infinity=False),
    },
    optional={
        "ok": st.booleans(),
        "tags": st.just({"a": "b"}),
        "trace_id": st.text(max_size=3),
        "count": st.integers(1, 10_000_000),
    },
)
_any = st.fixed_dictionaries(
    {},
    optional={
        "router_id": st.one_of(_texts, _odd),
        "metric": _metrics,
        "ts_ms": _times,
        "value": _values,
        "ok": st.one_of(st.booleans(), _odd),
        "tags": _tags,
        "trace_id": st.one_of(st.none(), st.text(max_size=3), _odd),
        "count": st.one_of(st.none(), st.integers(-2, 3), _odd),
        "other": _odd,
    },
)
_lists = st.lists(st.one_of(_good, _good, _any), max_size=6)


@given(_lists, st.sampled_from([None, NOW, 5]), st.booleans())
@example([GOOD | {"value": 10**309}], None, False)
@example([GOOD | {"ts_ms": 1 << 70}], None, True)
@settings(deadline=None, max_examples=250)
def test_the_fast_way_and_the_slow_way_agree(found: list[Any], default_ms: int | None, escaped: bool) -> None:
    text = json.dumps(found, ensure_ascii=escaped)
    bounds = samples.ValidationContext.at(NOW, 3_600_000, 300_000, {R1: False, R2: True}, default_ms)
    body = text.encode(errors="replace")
    fast = samples.Request(body).validate(bounds)
    slow = samples.judge(decoding.Texts(body), bounds)
    assert rows(fast) == rows(slow)
    assert (fast.rejected, fast.errors) == (slow.rejected, slow.errors)
    assert all(math.isfinite(value) for value in fast.good.value)


@given(st.lists(_good, min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_parts_hold_every_good_sample_once_in_order(found: list[Any]) -> None:
    good = sort(found).good
    parts = samples.to_parts(good, (b"k" * 16,))
    assert sum(part.count for part in parts) == len(found)
    assert len({part.router_id for part in parts}) == len(parts)
    for part in parts:
        columns = decode_samples(part.payload)
        for metric in columns.metrics:
            batch = columns.of(metric)
            wanted = [s for s in found if s["router_id"] == part.router_id and s["metric"] == metric]
            assert batch is not None
            np.testing.assert_array_equal(batch.value, [s["value"] for s in wanted])
            np.testing.assert_array_equal(batch.ts_ms, [s["ts_ms"] for s in wanted])
            np.testing.assert_array_equal(batch.ok, [s.get("ok", True) for s in wanted])
            counts = [s.get("count", 1) for s in wanted]
            assert (counts if batch.count is None else batch.count.tolist()) == counts


# gzip


def test_gzip_is_inflated_also_in_several_members() -> None:
    assert unpacked(gzip.compress(b"ab") + gzip.compress(b"cd"), "gzip", 4) == b"abcd"
    assert unpacked(gzip.compress(b""), "GZIP", 4) == b""
    assert unpacked(b"as it is", None, 8) == unpacked(b"as it is", "identity", 8) == b"as it is"
    with pytest.raises(PayloadTooLarge):
        unpacked(b"as it is", None, 7)


def test_a_gzip_bomb_is_stopped_at_the_bound_and_not_after_it() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(PayloadTooLarge):
        unpacked(bomb, "gzip", 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    with pytest.raises(PayloadTooLarge):
        unpacked(gzip.compress(b"abc", mtime=0) + gzip.compress(b"de"), "gzip", 4)


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"plain", "gzip"),
        (gzip.compress(b"abc", mtime=0)[:-3], "gzip"),
        (gzip.compress(b"abc", mtime=0) + b"junk", "gzip"),
        (gzip.compress(b"abc", mtime=0)[:-8] + bytes(8), "gzip"),
        (gzip.compress(b"", mtime=0) * 100_000, "gzip"),
        (b"x", "br"),
        (b"x", "gzip, gzip"),
    ],
)
def test_broken_or_unknown_coats_are_bad_requests(body: bytes, encoding: str) -> None:
    with pytest.raises(BadRequest):
        unpacked(body, encoding, 1000)


# repetitions


def test_a_repetition_is_known_by_signature_and_key_or_else_by_time_and_body() -> None:
    keys = samples.duplicate_keys
    assert keys(None, None, None, b"b", b"b") == ()
    assert keys("s", None, "1", b"b", b"b") == keys("s", None, None, b"other", b"other")
    by_both = (*keys("s", None, None, b"", b""), *keys(None, "i", None, b"b", b"b"))
    assert keys("s", "i", "1", b"b", b"b") == by_both
    assert keys(None, "i", "1", b"b", b"b") == keys(None, "i", "2", b"packed", b"b")
    assert keys(None, None, "1", b"b", b"b") == keys(None, None, "1", b"b", b"b")
    one, other = keys(None, "i", None, b"b", b"b"), keys(None, "i", None, b"other", b"other")
    assert one[0] != other[0], "another body is another request"
    assert one[1] == other[1], "and is found out by the key alone"
    distinct = {
        *keys("x", None, None, b"", b""),
        *keys(None, "x", None, b"", b""),
        *keys(None, None, "x", b"", b""),
        *keys(None, None, "1", b"1.b", b""),
        *keys(None, None, "1.1", b"b", b""),
    }
    assert len(distinct) == 6
    assert all(len(found) == 16 for found in distinct)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", {}),
        (b"[", {}),
        (b"[1]", {}),
        (b'{"samples": []}', {}),
        (b'{"success": 1}', {}),
        (b' [ {"a": 1} , {"b": 2, "ok": true, "a": 3} ]', {"a": (0, False), "b": (1, True)}),
        (b'{"samples":[{"a":NaN},{"\\ud800":1}]}', {"a": (0, False), "?": (1, False)}),
        (b'[{"a":1}' + b" " * 2_048 + b',{"b":2}]', {"a": (0, False)}),
        (b'[{"a":"' + b"x" * 2_048 + b'"}]', {}),
        (b"[" * 1_500, {}),
        (b'[{"a":1},{"\xff":1}', {"a": (0, False), "\ufffd": (1, False)}),
    ],
)
def test_a_look_at_the_first_samples(body: bytes, expected: dict[str, tuple[int, bool]]) -> None:
    assert decoding.strange_fields(body) == expected


def test_a_look_finds_so_many() -> None:
    body = json.dumps([{f"a{n}": 1 for n in range(15)}, {f"b{n}": 1 for n in range(15)}]).encode()
    assert len(decoding.strange_fields(body)) == 20


def test_what_is_too_old_is_told_the_limit_and_where_it_may_go() -> None:
    (error,) = sort(raw(ts_ms="5")).errors
    assert "3600000 ms old" in error.message
    assert "breakers backfill" in error.message
