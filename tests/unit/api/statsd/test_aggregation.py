"""What lines come to between flushes: sums, last values, distinct values; bounds and what is counted beyond them."""

from __future__ import annotations

import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from api.admission.inflate import INFLATED_FREE, Inflation
from api.protocols import otlp_protobuf
from api.protocols.memory import Memory
from api.statsd import aggregation
from api.statsd.aggregation import ROOM_BYTES_MAX, Aggregate
from api.statsd.encoding import BYTES_MAX, POINTS_MAX, Encoder, Request

NOW_MS = 1_795_242_600_000
Found = dict[str, list[tuple[float, int]]]


def requests(aggregate: Aggregate, salt: tuple[int, int] = (7, 9)) -> list[Request]:
    return [one for one in aggregate.flush(Encoder(NOW_MS - 1000, NOW_MS, salt)) if one is not None]


def flushed(aggregate: Aggregate, within: bytes = b"") -> Found:
    """Value and count of each point by its series, as our own receiver reads them. `within`: of requests that have
    this."""
    found: Found = defaultdict(list)
    for request in requests(aggregate):
        if within not in request.body:
            continue
        points = otlp_protobuf.decode(request.body, Memory())
        assert not points.bad
        assert request.points == len(points.of)
        for row, number in enumerate(points.of.tolist()):
            series = points.series[number]
            tags = ",".join(f"{key}={value}" for key, value in series.labels.items())
            name = series.name + (f"{{{tags}}}" if tags else "")
            histogram = points.histograms.get(row)
            if histogram is None:
                found[name].append((points.value[row].item(), 1))
            else:
                found[name] += histogram.observations()
    return dict(found)


def summed(*lines: str, absolute: bool = False) -> Found:
    aggregate = Aggregate(absolute)
    aggregate.take("\n".join(lines).encode())
    assert not aggregate.malformed
    return flushed(aggregate)


CASES: dict[str, tuple[list[str], Found]] = {
    "counters add up": (["a:1|c", "a:2|c", "a:3:4|c"], {"a": [(10.0, 1)]}),
    "rates count": (["a:1|c|@0.1", "a:1|c|@0.5"], {"a": [(12.0, 1)]}),
    "a fraction waits": (["a:0.75|c", "a:0.5|c"], {"a": [(1.0, 1)]}),
    "nothing is a rise of 0": (["a:0|c"], {"a": [(0.0, 1)]}),
    "series are told apart by tags": (["a:1|c|#k:1", "a:2|c|#k:2"], {"a{k=1}": [(1.0, 1)], "a{k=2}": [(2.0, 1)]}),
    "the order of tags tells nothing": (["a:1|c|#k:1,l:2", "a:2|c|#l:2,k:1"], {"a{k=1,l=2}": [(3.0, 1)]}),
    "a gauge is its last value": (["a:1|g", "a:5|g", "a:3|g"], {"a": [(3.0, 1)]}),
    "a sign is a step": (["a:10|g", "a:-3|g", "a:+1|g"], {"a": [(8.0, 1)]}),
    "steps begin at 0": (["a:-3|g"], {"a": [(-3.0, 1)]}),
    "each value of a timing": (["a:3|ms", "a:1.5|h", "a:3|d", "a:3:7|ms"], {"a": [(3.0, 3), (1.5, 1), (7.0, 1)]}),
    "rates of timings": (["a:3|ms|@0.25", "a:4|ms"], {"a": [(3.0, 4), (4.0, 1)]}),
    "fractions of weights": (["a:1|ms|@0.4", "a:2|ms|@0.4", "a:3|ms|@0.4"], {"a": [(1.0, 2), (2.0, 3), (3.0, 2)]}),
    "members once": (["a:x|s", "a:y|s", "a:x|s", "a:z:1|s"], {"a": [(3.0, 1)]}),
    "odd numbers stay exact": (["a:0.1:-5e-324:1.7e308|ms"], {"a": [(0.1, 1), (-5e-324, 1), (1.7e308, 1)]}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_lines_come_to(case: str) -> None:
    lines, found = CASES[case]
    assert summed(*lines) == found


def test_a_gauges_sign_may_belong_to_its_value() -> None:
    assert summed("a:10|g", "a:-3|g", absolute=True) == {"a": [(-3.0, 1)]}


def test_what_was_sent_begins_anew_and_what_had_no_line_is_silent() -> None:
    aggregate = Aggregate()
    aggregate.take(b"c:1.5|c\ng:4|g\nt:2|ms\ns:x|s")
    assert flushed(aggregate) == {"c": [(1.0, 1)], "g": [(4.0, 1)], "t": [(2.0, 1)], "s": [(1.0, 1)]}
    assert flushed(aggregate) == {}
    aggregate.take(b"c:1.5|c\ng:+1|g\ns:x|s")
    assert flushed(aggregate) == {"c": [(2.0, 1)], "g": [(5.0, 1)], "s": [(1.0, 1)]}


def test_lines_with_a_time_are_points_of_their_own() -> None:
    aggregate = Aggregate()
    aggregate.take(b"c:1.5|c|T1795242500\nc:1|c|T1795242500\nc:2|c|T1795242501\nc:1.5|c\ng:4|g|T1795242500\ng:+1|g")
    (request,) = requests(aggregate)
    points = otlp_protobuf.decode(request.body, Memory())
    names = [points.series[number].name for number in points.of.tolist()]
    assert list(zip(names, points.ts_ms.tolist(), points.value.tolist(), strict=True)) == [
        ("c", 1_795_242_500_000, 2.0),
        ("c", 1_795_242_501_000, 2.0),
        ("c", NOW_MS, 2.0),
        ("g", 1_795_242_500_000, 4.0),
        ("g", NOW_MS, 1.0),
    ]


def test_malformed_lines_are_counted_and_the_newest_is_shown() -> None:
    aggregate = Aggregate()
    aggregate.take(b"a:1|c\nnonsense\n\nb:-1|c\nc:1|x\nd:+1|g|T1795242500\ne:1:x|ms\n" + b"f" * 500)
    assert aggregate.lines == 7
    assert aggregate.malformed == {
        "no_value": 2, "negative_count": 1, "unknown_type": 1, "invalid_time": 1, "invalid_value": 1,
    }  # fmt: skip
    assert aggregate.newest_malformed == f"no_value: {'f' * aggregation.SHOWN_BYTES}"
    assert flushed(aggregate) == {"a": [(1.0, 1)]}


LINES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from((0, 1, 2, 2.5, 7, 0.25)), st.sampled_from((1.0, 0.5, 0.3, 0.07))),
    max_size=60,
)


@given(st.lists(LINES, min_size=1, max_size=5))
def test_over_all_flushes_less_than_one_is_missing(batches: list[list[tuple[str, float, float]]]) -> None:
    """Of a counter's sum, and of a timing's observations; each value is there as often as its lines say, or one less
    or more for each line."""
    aggregate = Aggregate()
    rises, weights, sent, seen = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for batch in batches:
        for name, value, rate in batch:
            aggregate.take(f"c.{name}:{value}|c|@{rate}\nt.{name}:{value}|ms|@{rate}".encode())
            rises[f"c.{name}"] += value / rate  # type: ignore[assignment]
            weights[f"t.{name}"] += 1 / rate  # type: ignore[assignment]
        for name, points in flushed(aggregate).items():
            for value, count in points:
                assert count == int(count)
                if name.startswith("c."):
                    assert value.is_integer()
                    sent[name] += value  # type: ignore[assignment]
                else:
                    seen[name] += count
    for expected, found in ((rises, sent), (weights, seen)):
        for name in expected:
            assert -1e-6 < expected[name] - found[name] < 1, name


def test_a_whole_rate_is_exact_each_time() -> None:
    aggregate = Aggregate()
    for _ in range(1000):
        aggregate.take(b"a:1|c|@0.1\nb:5|ms|@0.1")
    assert flushed(aggregate) == {"a": [(10_000.0, 1)], "b": [(5.0, 10_000)]}


# what the reference parser sees


def test_the_reference_parser_reads_requests_as_they_are_meant() -> None:
    aggregate = Aggregate()
    aggregate.take(b"c:3|c|#k:v,b\nt:2.5|ms|@0.5\ng:-1|g")
    (request,) = requests(aggregate)
    told = ExportMetricsServiceRequest.FromString(request.body)
    (counter, timing, gauge) = told.resource_metrics[0].scope_metrics[0].metrics
    assert (counter.sum.aggregation_temporality, counter.sum.is_monotonic) == (1, True)
    (point,) = counter.sum.data_points
    assert {pair.key: pair.value.string_value for pair in point.attributes} == {"k": "v", "b": "true"}
    assert (point.as_double, point.time_unix_nano) == (3.0, NOW_MS * 1_000_000 + 9)
    assert point.start_time_unix_nano == (NOW_MS - 1000) * 1_000_000 + 7
    assert timing.histogram.aggregation_temporality == 1
    (spread,) = timing.histogram.data_points
    assert (spread.min, spread.max, spread.count, spread.sum) == (2.5, 2.5, 2, 5.0)
    assert [one.as_double for one in gauge.gauge.data_points] == [-1.0]


def test_equal_flushes_are_not_taken_for_one_that_is_sent_again() -> None:
    bodies = set[bytes]()
    for salt in ((1, 2), (1, 3), (2, 2)):
        aggregate = Aggregate()
        aggregate.take(b"a:1|c")
        bodies |= {request.body for request in requests(aggregate, salt)}
    assert len(bodies) == 3


# bounds


def test_a_request_has_at_most_so_many_points() -> None:
    aggregate = Aggregate()
    aggregate.take(b"\n".join(b"s%d:1|c" % n for n in range(POINTS_MAX - 2)) + b"\nt:1:2:3:4:5|ms")
    found = requests(aggregate)
    assert [request.points for request in found] == [POINTS_MAX, 3]
    read = [otlp_protobuf.decode(request.body, Memory()) for request in found]
    assert [len(points.of) for points in read] == [POINTS_MAX, 3]


TAGS = b"#a:" + b"x" * 2040 + b",b:" + b"y" * 2040
MANY = {
    "a timing": [b"e:" + b":".join(b"%d" % n for n in range(1000)) + b"|ms|" + TAGS],
    "many timings": [b"e%d:" % n + b":".join(b"%d" % n for n in range(1000)) + b"|ms|" + TAGS for n in range(20)],
    "gauges": [b"e%d:1|g|%s" % (n, TAGS) for n in range(300)],
    "many tags": [b"e%d:1|g|#" % n + b",".join(b"k%d:%d" % (k, k) for k in range(120)) for n in range(1000)],
    "long names": [b"e%d%s:1:2|ms" % (n, b"x" * 1000) for n in range(1000)],
    "times": [b"e:1|c|T%d|%s" % (1795242500 + n, TAGS) for n in range(300)],
}  # fmt: skip


@pytest.mark.parametrize("case", MANY)
def test_a_request_is_never_too_large_nor_shrinks_too_much(case: str) -> None:
    """For the service: what is before and behind what one sender makes of it comes, whole."""
    aggregate = Aggregate()
    aggregate.take(b"first:1:2|ms")
    for datagram in MANY[case]:
        aggregate.take(datagram)
    aggregate.take(b"last:3|c")
    found: Counter[str] = Counter()
    for request in requests(aggregate):
        assert len(request.body) <= BYTES_MAX < INFLATED_FREE
        coat = Inflation(gzip.compress(request.body, 1), "gzip", 16 << 20, structure_max=None)
        while not coat.done:
            coat.step()
        points = otlp_protobuf.decode(bytes(coat.plain), Memory())
        assert not points.bad
        found.update(points.series[number].name for number in points.of.tolist())
    assert (found["first"], found["last"]) == (2, 1)
    assert len(found) > 2


def test_series_of_each_weight_have_requests_of_their_own() -> None:
    aggregate = Aggregate()
    hot = b"d:" + b":".join(b"%d" % n for n in range(70)) + b"|ms|#k:v"
    aggregate.take(b"a:1:2:3|ms|#k:v\n" + MANY["a timing"][0] + b"\nb:1|c\nc:1|g|" + TAGS + b"\n" + hot)
    found = {
        request.weight: {one.name for one in otlp_protobuf.decode(request.body, Memory()).series}
        for request in requests(aggregate)
    }
    assert found == {0: {"a", "b"}, 2: {"c", "d"}, 4: {"e"}}


def test_the_values_of_a_timing_are_bounded_by_what_they_make() -> None:
    """Its tags come with each. All observations count all the same."""
    aggregate = Aggregate()
    aggregate.take(MANY["a timing"][0])
    found = requests(aggregate)
    assert sum(len(request.body) for request in found) <= ROOM_BYTES_MAX
    points = [otlp_protobuf.decode(request.body, Memory()) for request in found]
    seen = sum(count for one in points for row in range(len(one.of)) for _, count in one.histograms[row].observations())
    assert (seen, aggregate.room.dropped) == (1000, {})


def test_series_are_bounded_and_idle_ones_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "SERIES_MAX", 3)
    monkeypatch.setattr(aggregation, "IDLE_FLUSHES", 2)
    aggregate = Aggregate()
    aggregate.take(b"a:1|c\nb:1|c\nc:5|g\nd:1|c\nd:1|c\na:1|c")
    assert aggregate.room.dropped == {"too_many_series": 2}
    assert flushed(aggregate).keys() == {"a", "b", "c"}
    for _ in range(2):
        aggregate.take(b"c:+1|g\ne:1|c")
        assert flushed(aggregate).keys() == {"c"}
    aggregate.take(b"d:1|c\nc:+1|g\ne:1|c\nf:1|c")
    assert aggregate.series == 3
    assert aggregate.room.dropped == {"too_many_series": 5}
    assert flushed(aggregate) == {"d": [(1.0, 1)], "c": [(8.0, 1)], "e": [(1.0, 1)]}


def test_many_values_are_rounded_and_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "VALUES_MAX", 10)
    values = [random.Random(n).uniform(100, 110) for n in range(500)]
    aggregate = Aggregate()
    aggregate.take("\n".join(f"t:{value}|ms" for value in values).encode())
    assert aggregate.room.rounded == 490
    (points,) = flushed(aggregate).values()
    assert points[:10] == [(value, 1) for value in values[:10]]
    assert sum(count for _, count in points) == 500
    assert {value for value, _ in points[10:]} <= {float(n) for n in range(100, 111)}


def test_the_less_room_the_fewer_digits_and_what_finds_none_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "ROOM_BYTES_MAX", 16 * aggregation.VALUE_BYTES)
    aggregate = Aggregate()
    values = [100.0625 + n for n in range(140)]
    aggregate.take("\n".join(f"t:{value}|ms" for value in values).encode())
    (points,) = flushed(aggregate).values()
    kept = [value for value, _ in points]
    assert kept[:8] == values[:8]
    assert kept[8:12] == [108.0, 109.0, 110.0, 111.0]
    assert kept[12:] == [120.0, 130.0, 100.0, 200.0]
    assert sum(count for _, count in points) == 140 == aggregate.room.rounded + 8
    aggregate.take("\n".join(f"t:1e{n}|ms" for n in range(20)).encode() + b"\nt:1.7e308|ms")
    assert aggregate.room.dropped == {"too_many_values": 5}
    assert len(flushed(aggregate)["t"]) == 16


@pytest.mark.parametrize("tags", [b"", b"|" + TAGS])
def test_no_senders_values_take_the_room_of_all_others(tags: bytes) -> None:
    """However many timings he has; in his first flush there are fewer digits at worst."""
    aggregate = Aggregate()
    hostile = [b"e%d:" % n + b":".join(b"%d" % (n * 7 + k) for k in range(1500)) + b"|ms" + tags for n in range(100)]
    for turn in range(3):
        for datagram in hostile:
            aggregate.take(datagram)
        aggregate.take(b"pay:" + b":".join(b"%d.25" % n for n in range(1000, 1060)) + b"|ms|#router_id:pay")
        assert aggregate.room.values_bytes <= aggregation.ROOM_TOTAL_BYTES
        found = flushed(aggregate, within=b"pay")["pay{router_id=pay}"]
        assert sum(count for _, count in found) == 60
        assert found[:20] == [(n + 0.25, 1) for n in range(1000, 1020)]
        assert len(found) == 60 or turn == 0
        assert (aggregate.room.values_bytes, aggregate.room.timings) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=100))
def test_all_values_have_at_most_their_room(lines: list[tuple[int, int]]) -> None:
    """And none is lost that is not counted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "ROOM_TOTAL_BYTES", 40 * aggregation.VALUE_BYTES)
        patch.setattr(aggregation, "ROOM_BYTES_MAX", 12 * aggregation.VALUE_BYTES)
        aggregate = Aggregate()
        for name, values in lines:
            aggregate.take(f"t{name}:{':'.join(f'{name}.{n}{n}{n}' for n in range(values))}|ms".encode())
            assert aggregate.room.values_bytes <= aggregation.ROOM_TOTAL_BYTES
        found = flushed(aggregate)
    assert all(len(points) <= 12 for points in found.values())
    seen = sum(count for points in found.values() for _, count in points)
    assert seen + aggregate.room.dropped["too_many_values"] == sum(values for _, values in lines)


@pytest.mark.parametrize(
    ("bound", "reason", "lines"),
    [
        ("MEMBERS_TOTAL_MAX", "too_many_members", [f"s{n % 2}:{n}|s" for n in range(9)]),
        ("TIMED_MAX", "too_many_times", [f"c{n % 2}:1|c|T{1795242500 + n}" for n in range(9)]),
    ],
)
def test_what_finds_no_room_is_counted(
    monkeypatch: pytest.MonkeyPatch, bound: str, reason: str, lines: Iterable[str]
) -> None:
    """And there is room again after a flush."""
    monkeypatch.setattr(aggregation, bound, 5)
    aggregate = Aggregate()
    for turn in (1, 2):
        aggregate.take("\n".join((*lines, *lines)).encode())
        assert aggregate.room.dropped == {reason: 8 * turn}
        flushed(aggregate)


def test_spellings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "FORMS_MAX", 10)
    aggregate = Aggregate()
    for n in range(100):
        aggregate.take(b"a:1|c|e:%d\nb:1|c|T%d\nc:1|c|#k:%s%d" % (n, 1795242500 + n, b"x" * 1024, n))
    assert len(aggregate._forms) <= 10
    assert aggregate.series == 102
    assert flushed(aggregate)["a"] == [(100.0, 1)]


def test_lines_that_come_during_a_flush_count_in_it_or_in_the_next() -> None:
    aggregate = Aggregate()
    aggregate.take(b"a:1|c\nb:1|c\nc:1|c")
    total = Counter[str]()
    encoder = Encoder(NOW_MS - 1000, NOW_MS, (1, 2))
    sent = []
    for request in aggregate.flush(encoder):
        aggregate.take(b"a:1|c\nb:1|c\nc:1|c")
        sent += [request] if request else []
    sent += requests(aggregate)
    for request in sent:
        points = otlp_protobuf.decode(request.body, Memory())
        for number, value in zip(points.of.tolist(), points.value.tolist(), strict=True):
            total[points.series[number].name] += value
    assert len(set(total.values())) == 1
    assert total["a"] >= 4
