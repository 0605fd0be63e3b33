"""What remote-write 1.0 and 2.0 mean: types, histograms, stale markers, exemplars, what is bad and what is too much."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import pytest

from api.protocols import remote_write1, remote_write2, snappy
from api.protocols.bounds import BUCKETS_MAX, ENTRIES_MAX, FIELDS_MAX, LABELS_MAX, NATIVE_BUCKETS_MAX, SYMBOLS_MAX
from api.protocols.memory import NONE, NUMBERS_MAX, Generations, Memory, Strings
from api.protocols.native import BAD_SPANS, _Side
from api.protocols.points import Histogram, Points
from api.protocols.protobuf import Reader, encode_block
from api.protocols.series import make_series
from breaker_actors.errors import BadRequest, PayloadTooLarge
from tests.support.open_protocols import NOW_MS, STALE, Request2, WriteRequest

Filler = Callable[[Any], None]


def sample(value: float = 1.0, ts_ms: int = NOW_MS) -> Filler:
    return lambda series: series.samples.add(value=value, timestamp=ts_ms)


def one(labels: dict[str, str], *fillers: Filler, metadata: int = 0, version: int = 2, unit: str = "") -> Points:
    """The points of a request with one time series."""
    if version == 1:
        request = WriteRequest()
        series = request.timeseries.add()
        for name, value in labels.items():
            series.labels.add(name=name, value=value)
        if metadata:
            request.metadata.add(type=metadata, metric_family_name=labels["__name__"].removesuffix("_sum"), unit=unit)
        decode = remote_write1.decode
    else:
        texts = ["", unit, *(text for pair in labels.items() for text in pair)]
        request = Request2(symbols=texts)
        series = request.timeseries.add(labels_refs=range(2, len(texts)))
        series.metadata.type, series.metadata.unit_ref = metadata, 1
        decode = remote_write2.decode
    for fill in fillers:
        fill(series)
    return decode(request.SerializeToString(), Memory())


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("name", "metadata", "kind"),
    [
        ("up", 0, "unknown"), ("requests_total", 0, "sum"), ("x_count", 0, "sum"), ("x_sum", 0, "sum"),
        ("x_bucket", 0, "sum"), ("up", 1, "sum"), ("up", 2, "gauge"), ("x_sum", 3, "sum"), ("x_sum", 2, "gauge"),
        ("x", 5, "gauge"), ("x_sum", 5, "sum"), ("x", 6, "gauge"), ("x", 3, "unknown"), ("x", 99, "unknown"),
    ],
)  # fmt: skip
def test_metadata_or_else_the_name_says_the_type(version: int, name: str, metadata: int, kind: str) -> None:
    series = one({"__name__": name, "a": "b"}, sample(), metadata=metadata, version=version, unit="s").series[0]
    assert (series.name, series.labels, series.resource, series.type) == (name, {"a": "b"}, {}, kind)
    assert (series.temporality, series.monotonic) == (("cumulative", True) if kind == "sum" else (None, False))
    assert series.unit == ("s" if metadata or version == 2 else "")


def test_a_series_has_one_identity_in_both_versions_and_in_any_order() -> None:
    ways = [
        one({"__name__": "m_total", "a": "1", "b": "2"}, sample(), version=1),
        one({"b": "2", "__name__": "m_total", "a": "1", "c": ""}, sample(), version=1),
        one({"__name__": "m_total", "b": "2", "a": "1"}, sample(), metadata=1),
    ]
    assert len({points.series[0].identity for points in ways}) == 1
    others = [
        one({"__name__": "m_total", **labels}, sample()) for labels in ({"a": "1"}, {"a": "1b", "": ""}, {"a1": ""})
    ]
    assert len({points.series[0].identity for points in [ways[0], *others] if points.series}) == 3


@pytest.mark.parametrize("version", [1, 2])
def test_a_stale_marker_is_absence_and_other_nans_are_values(version: int) -> None:
    points = one({"__name__": "m"}, *map(sample, (STALE, float("nan"), 0.0, 5.0)), version=version)
    assert points.absent.tolist() == [True, False, False, False]
    assert np.isnan(points.value).tolist() == [True, True, False, False]
    assert (points.of.tolist(), len(points.series)) == ([0, 0, 0, 0], 1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("labels", "code"),
    [
        ({"a": "b"}, "missing_name"), ({"__name__": ""}, "missing_name"),
        ({"__name__": "m", "": "x"}, "empty_label_name"),
        ({"__name__": "m", "a": "x" * 2049}, "value_too_long"), ({"__name__": "m", "a" * 1025: "x"}, "name_too_long"),
        ({"__name__": "m"} | {f"l{n}": "x" for n in range(LABELS_MAX)}, "too_many_labels"),
    ],
)  # fmt: skip
def test_points_of_a_series_that_is_none_are_bad(version: int, labels: dict[str, str], code: str) -> None:
    points = one(labels, sample(), sample(), version=version)
    assert [(bad.where, bad.code) for bad in points.bad] == [
        ("timeseries[0].samples[0]", code),
        ("timeseries[0].samples[1]", code),
    ]
    assert (len(points.of), points.series) == (0, [])


def test_text_that_is_not_utf8_and_labels_that_come_twice_are_bad() -> None:
    request = WriteRequest()
    for names in (("__name__", "a", "a"), ("__name__", "X"), ("__name__",)):
        series = request.timeseries.add()
        for name in names:
            series.labels.add(name=name, value="m")
        series.samples.add(value=2, timestamp=NOW_MS)
    body = request.SerializeToString().replace(b"X", b"\xff")
    points = remote_write1.decode(body, Memory())
    assert [(bad.where, bad.code) for bad in points.bad] == [
        ("timeseries[0].samples[0]", "duplicate_label"),
        ("timeseries[1].samples[0]", "invalid_utf8"),
    ]
    assert points.value.tolist() == [2]


def test_a_place_that_the_table_does_not_have_is_bad() -> None:
    request = Request2(symbols=["", "__name__", "m"])
    for refs in ((1, 2), (1, 3), (1, 2, 0), (1, 2)):
        request.timeseries.add(labels_refs=refs).samples.add(value=1, timestamp=NOW_MS)
    points = remote_write2.decode(request.SerializeToString(), Memory())
    assert [(bad.where, bad.code) for bad in points.bad] == [
        ("timeseries[1].samples[0]", "unknown_symbol"),
        ("timeseries[2].samples[0]", "invalid_labels"),
    ]
    assert points.of.tolist() == [0, 0]


def native(**fields: Any) -> Filler:
    """A histogram with spans of positive buckets from index 0 on."""

    def fill(series: Any) -> None:
        made = series.histograms.add(timestamp=NOW_MS, **fields)
        length = len(made.positive_deltas) + len(made.positive_counts)
        if length and not made.positive_spans:
            made.positive_spans.add(offset=0, length=length)

    return fill


@pytest.mark.parametrize("version", [1, 2])
def test_native_histograms(version: int) -> None:
    points = one(
        {"__name__": "latency"},
        native(schema=0, count_int=6, zero_count_int=1, positive_deltas=[2, 1], zero_threshold=0.5),
        native(schema=-53, count_float=3.0, positive_counts=[1.0, 0.0, 2.0], custom_values=[0.1, 1.0]),
        native(schema=0, sum=STALE),
        native(schema=0, reset_hint=3, count_int=1, positive_deltas=[1]),
        version=version,
    )
    assert [(s.type, s.temporality) for s in points.series] == [("histogram", "cumulative"), ("histogram", None)]
    exponential, custom = points.histograms[0], points.histograms[1]
    values, counts = exponential.numbers()
    assert values == pytest.approx([0, 0.5**0.5, 2**0.5])
    assert counts == (1, 2, 3)
    assert custom == Histogram.of((0.05, 1.0), (1, 2), custom.layout, (0, 2))
    assert points.absent.tolist() == [False, False, True, False]
    assert 2 not in points.histograms


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"count_float": 2.0, "positive_counts": [1.5, 0.5]}, "fractional_counts"),
        ({"count_float": 2.0, "positive_counts": [-1.0]}, "invalid_counts"),
        ({"count_float": 2.0, "positive_counts": [float("nan")]}, "invalid_counts"),
        ({"positive_deltas": [1, -2]}, "invalid_counts"),
        ({"positive_deltas": [1 << 60]}, "invalid_counts"),
        ({"positive_deltas": [1] * (BUCKETS_MAX + 1)}, "too_many_buckets"),
        ({"schema": 9, "count_int": 1, "positive_deltas": [1]}, "invalid_schema"),
        ({"schema": -53, "count_int": 10, "positive_deltas": [1] * 4, "custom_values": [1.0, 2.0]}, "buckets_mismatch"),
        ({"schema": -53, "count_int": 1, "positive_deltas": [1], "custom_values": [2.0, 1.0]}, "invalid_bounds"),
        ({"schema": -53, "count_int": 1, "positive_deltas": [1], "custom_values": [float("nan")]}, "invalid_bounds"),
        ({"count_int": 2, "positive_deltas": [1]}, "count_mismatch"),
        ({"count_int": 0, "positive_deltas": [1], "sum": float("nan")}, "count_mismatch"),
    ],
)
def test_histograms_that_are_none_are_bad(fields: dict[str, Any], code: str) -> None:
    points = one({"__name__": "latency"}, native(**fields), native(count_int=1, positive_deltas=[1]))
    assert [(bad.where, bad.code) for bad in points.bad] == [("timeseries[0].histograms[0]", code)]
    assert len(points.histograms) == 1


def test_buckets_beyond_those_of_a_request_are_not_read() -> None:
    """Nor deltas that are more than the buckets of their spans: both took seconds, of a body of 48 KB."""
    full = native(count_int=BUCKETS_MAX, positive_deltas=[1] + [0] * (BUCKETS_MAX - 1))
    room = NATIVE_BUCKETS_MAX // BUCKETS_MAX
    points = one({"__name__": "latency"}, *[full] * (room + 2))
    assert [(bad.where, bad.code) for bad in points.bad] == [
        (f"timeseries[0].histograms[{room + n}]", "too_many_buckets") for n in range(2)
    ]
    assert len(points.histograms) == room
    reader = Reader(bytes(1_000))
    side = _Side()
    side.spans, side.deltas = [(0, 999)], [(0, 1_000)]
    assert side.cells(reader, False) == BAD_SPANS
    assert reader.budget == [FIELDS_MAX, NATIVE_BUCKETS_MAX]


def test_observations_that_were_nan_are_in_no_bucket() -> None:
    points = one({"__name__": "latency"}, native(count_int=3, sum=float("nan"), positive_deltas=[2]))
    assert [count for _, count in points.histograms[0].observations()] == [2]


def test_starts_and_exemplars() -> None:
    request = Request2(symbols=["", "__name__", "m", "trace_id", "new", "old"])
    started = request.timeseries.add(labels_refs=[1, 2], created_timestamp=5)
    started.samples.add(value=1, timestamp=NOW_MS)
    started.samples.add(value=1, timestamp=NOW_MS + 1, start_timestamp=7)
    alone = request.timeseries.add(labels_refs=[1, 2])
    alone.exemplars.add(labels_refs=[3, 4], timestamp=9)
    alone.exemplars.add(labels_refs=[3, 5], timestamp=8)
    points = remote_write2.decode(request.SerializeToString(), Memory())
    assert points.start_ms.tolist() == [5, 7]
    assert (points.traces, points.exemplars) == ({1: "new"}, 2)


def flood(version: int, count: int) -> bytes:
    return (b"\x0a\x00" if version == 1 else b"\x2a\x00") * count


@pytest.mark.parametrize(("version", "decode"), [(1, remote_write1.decode), (2, remote_write2.decode)])
def test_a_flood_ends_in_an_error(version: int, decode: Callable[[bytes, Memory], Points]) -> None:
    assert len(decode(flood(version, ENTRIES_MAX), Memory()).of) == 0
    with pytest.raises(PayloadTooLarge):
        decode(flood(version, ENTRIES_MAX + 1), Memory())
    samples = b"\x12\x00" * (ENTRIES_MAX + 1)
    tag = b"\x0a" if version == 1 else b"\x2a"
    size = bytes([len(samples) & 127 | 128, len(samples) >> 7 & 127 | 128, len(samples) >> 14])
    with pytest.raises(PayloadTooLarge):
        decode(tag + size + samples, Memory())
    for hostile in (
        b"",
        b"\xff\xff\xff\xff\x0f",
        b"\xff",
        b"\x05abc",
        b"\x02\x12\x7f",
        b"\x03\x12\x7f\x00",
        b"\x01\x0f",
        b"\x02\x0a\xff",
        b"\x03\x0a\xff\x00",
        b"\x02\x0a\xfa",
    ):
        with pytest.raises(BadRequest) as caught:
            decode(tag + hostile, Memory())
        assert "byte" in caught.value.details["where"]


def test_a_table_of_too_many_symbols_ends_in_an_error() -> None:
    with pytest.raises(PayloadTooLarge):
        remote_write2.decode(b"\x22\x00" * (SYMBOLS_MAX + 1), Memory())


def test_snappy_blocks_are_bounded_before_they_are_inflated() -> None:
    plain = b"some bytes " * 1000
    block = bytes(cramjam.snappy.compress_raw(plain))
    assert snappy.inflate(block, len(plain)) == plain
    with pytest.raises(PayloadTooLarge):
        snappy.inflate(block, len(plain) - 1)
    bomb = b"\xff\xff\xff\xff\x0f" + b"x" * 20
    for broken in (b"", block[:-1], block[1:], block + b"\x00", b"\x80\x80\x01abc", b"\xff" * 9, plain):
        with pytest.raises(BadRequest):
            snappy.inflate(broken, 1 << 24)
    with pytest.raises(PayloadTooLarge):
        snappy.inflate(bomb, 1 << 24)
    with pytest.raises(BadRequest):
        snappy.inflate(bomb, 1 << 40)


def test_a_memory_holds_what_was_used_last_and_no_more() -> None:
    memory: Generations[int] = Generations(lambda _: (0, NONE), 10, 1000)
    for number in range(100):
        memory.put(b"%d" % number, number)
        assert memory.get(b"0") == 0
        assert len(memory) <= 20
    assert all(memory.get(b"%d" % number) == number for number in range(95, 100))
    memory.put(b"x" * 900, 7)
    memory.put(b"y" * 900, 8)
    assert (len(memory.young), memory.get(b"x" * 900)) == (1, 7)
    memory.put(b"z" * 20_000, 9)
    assert memory.get(b"z" * 20_000) is None


def test_a_memory_holds_so_many_bytes_of_text() -> None:
    """Shared labels count once in a generation."""
    shared = {"host": "h" * 5_000}
    memory = Generations(lambda value: (len(value), shared), 1_000, 20_000)
    for number in range(50):
        memory.put(b"%d" % number, "v" * 200)
    assert len(memory.young) == 50
    others = [{"host": f"{number}" * 5_000} for number in range(50)]
    memory = Generations(lambda value: (len(value), others[int(value)]), 1_000, 20_000)
    for number in range(50):
        memory.put(b"%d" % number, f"{number}")
        assert len(memory) <= 6


def test_equal_series_of_a_generation_are_one_object() -> None:
    """Whatever keys they have; others of the same identity stay others. So those of a request are told apart by what
    they are, also where a generation ends in between."""
    rnd, memory = random.Random(3), Memory(7)
    for step in range(500):
        name, unit, key = rnd.choice("abcd"), rnd.choice(("", "s", "ms")), b"%d" % rnd.randrange(40)
        series = make_series(name, {}, "gauge", unit=unit)
        kept = memory.v1.put(key, series) if step % 3 else memory.v1.get(key)
        assert kept is None or kept is memory.v1.young[key]
        there = memory.v1.young.values()
        assert len(set(map(id, there))) == len({(one.identity, one.unit) for one in there})
    assert memory.v1.put(b"x" * 20_000, series) is None


@pytest.mark.parametrize("most", [1, 50])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("labels", "size"), [(2, 9), (11, 1480)])
def test_a_series_is_one_however_its_labels_are_ordered(labels: int, size: int, version: int, most: int) -> None:
    """Also where its key is too long to be remembered, and where a memory of one series forgets it meanwhile."""
    pairs = [("__name__", "m"), *((f"label{number}", "x" * size) for number in range(labels))]
    ways = [dict(pairs), dict(pairs[::-1]), dict([*pairs, ("empty", "")])]
    request, texts = WriteRequest(), [""]
    other = Request2()
    for way in ways:
        series = request.timeseries.add()
        for name, value in way.items():
            series.labels.add(name=name, value=value)
        series.samples.add(value=1.0, timestamp=NOW_MS)
        texts += (text for pair in way.items() for text in pair)
        refs = range(len(texts) - 2 * len(way), len(texts))
        other.timeseries.add(labels_refs=refs).samples.add(value=1.0, timestamp=NOW_MS)
    other.symbols.extend(texts)
    body, decode = (request, remote_write1.decode) if version == 1 else (other, remote_write2.decode)
    memory = Memory(most)
    for _ in range(3):
        points = decode(body.SerializeToString(), memory)
        assert (len(points.series), points.of.tolist()) == (1, [0, 0, 0])


def test_numbers_of_strings_begin_anew_before_they_need_more_than_32_bits() -> None:
    memory = Memory()
    memory._strings = Strings(100, NUMBERS_MAX - 5)
    request = Request2(symbols=["", "__name__", "m", "n", "a", "b"])
    for refs in ((1, 2), (1, 2, 4, 5), (1, 3)):
        request.timeseries.add(labels_refs=refs).samples.add(value=1.0, timestamp=NOW_MS)
    first, *others = [remote_write2.decode(request.SerializeToString(), memory) for _ in range(4)]
    assert all(points.series == first.series for points in others)
    assert memory.strings().last == 6


@pytest.mark.parametrize("version", [1, 2])
def test_labels_are_bounded_together(version: int) -> None:
    """Of one series, and of all that a request makes us keep as text: in 2.0 a few strings may be said many times."""
    long = {f"l{number}": "é" * 500 for number in range(20)}
    assert [bad.code for bad in one({"__name__": "m", **long}, sample(), version=version).bad] == ["labels_too_long"]
    assert len(many(version, 1_000).series) == 1_000
    with pytest.raises(PayloadTooLarge, match="bytes of labels"):
        many(version, 1_300)


def many(version: int, n: int) -> Points:
    """So many series of 14 kB of labels each."""
    fits = {"__name__": "m"} | {f"l{number}": "é" * 500 for number in range(14)}
    if version == 1:
        request = WriteRequest()
        for number in range(n):
            series = request.timeseries.add()
            for name, value in (fits | {"n": str(number)}).items():
                series.labels.add(name=name, value=value)
            sample()(series)
        return remote_write1.decode(request.SerializeToString(), Memory())
    texts = ["", "n", *(text for pair in fits.items() for text in pair)]
    request = Request2(symbols=[*texts, *map(str, range(n))])
    for number in range(n):
        sample()(request.timeseries.add(labels_refs=[1, len(texts) + number, *range(2, len(texts))]))
    return remote_write2.decode(request.SerializeToString(), Memory())


def test_metadata_of_all_series_comes_off_one_budget() -> None:
    """However many fields each has: also where a shortcut splits the request."""
    metadata = encode_block(0x2A, b"\x08\x02" * 1_000)
    body = b"".join(encode_block(0x22, text) for text in (b"", b"__name__", b"up"))
    series = encode_block(0x2A, encode_block(0x0A, b"\x01\x02") + encode_block(0x12, b"\x10\x01") + metadata)
    few = FIELDS_MAX // 1_000 - 10
    assert len(remote_write2.decode(body + series * few, Memory()).of) == few
    for shortcut in (True, False):
        with pytest.raises(PayloadTooLarge, match="fields"):
            remote_write2.decode(body + series * (few + 20), Memory(), shortcut)


def test_labels_without_anything_cost_as_much_as_others() -> None:
    series = encode_block(0x0A, b"\x0a\x00" * (FIELDS_MAX // 2 + 1) + encode_block(0x12, b"\x10\x01"))
    with pytest.raises(PayloadTooLarge, match="fields"):
        remote_write1.decode(series, Memory())
