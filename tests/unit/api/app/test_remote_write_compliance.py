"""The receiver's cases of prometheus/compliance, remotewrite/receiver at commit f7ecd7c, by the names they have there.

Each is sent twice: to a project without mappings, where all that can be read is accepted, and to one that makes a
sample of every series. There a value that is not finite can't be used and is refused, which the cases don't foresee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.support.open_protocols import NOW_MS, STALE
from tests.support.remote_write import KINDS, WRITTEN, Sent, body1, body2
from tests.support.senders import Sender, map_everything, sender_of
from tests.support.web_world import World

HOUR_MS = 3_600_000
COUNTER, GAUGE, HISTOGRAM, GAUGE_HISTOGRAM, SUMMARY, INFO, STATE_SET = range(1, 8)
UP = {"__name__": "up", "job": "testjob", "instance": "localhost:9090"}
FLOATS = {"1.0": 1.0, "StaleNaN": STALE, "NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}


class Case(msgspec.Struct):
    """A request and how it is answered: `good`, or with a 4xx. `status`: exactly this one, 0 for 204 or 400. `written`:
    samples, histograms and exemplars that a good one is said to have written, and others at most."""

    series: Sequence[Sent] = ()
    good: bool = True
    written: tuple[int, int, int] = (0, 0, 0)
    status: int = 0
    headers: dict[str, str] = {}
    first: int | None = None
    v1: bool = False
    unusable: bool = False

    def body(self) -> bytes:
        """With another first byte where the case says so."""
        made = (body1 if self.v1 else body2)(*self.series)
        return made if self.first is None else bytes([self.first]) + made[1:]


def sample(labels: dict[str, str] | str, value: float = 1.0, **more: Any) -> Sent:
    return Sent(labels={"__name__": labels} if isinstance(labels, str) else labels, value=value, **more)


def native(labels: dict[str, str] | str, parts: str, total: float = 1.0, count: int | None = None, **more: Any) -> Sent:
    """A native histogram with buckets above (+), below (-) and at zero (0), or with bounds of its own (c)."""
    fields: dict[str, Any] = {"sum": total}
    counted = 0
    if "+" in parts:
        fields |= {"positive_spans": ((0, 3), (2, 2)), "positive_deltas": (1, 2, 1, 3, 1)}
        counted += 1 + 3 + 4 + 7 + 8
    if "-" in parts:
        fields |= {"negative_spans": ((0, 2),), "negative_deltas": (1, 1)}
        counted += 1 + 2
    if "0" in parts:
        fields["zero_count_int"] = 1
        counted += 1
    if "c" in parts:
        fields |= {"schema": -53, "custom_values": (0.1, 0.5, 1.0, 2.5, 5.0, 10.0)}
        fields |= {"positive_spans": ((0, 6),), "positive_deltas": (2, 1, 2, 3, -1, -2)}
        counted = 2 + 3 + 5 + 8 + 7 + 5
    fields["count_int"] = counted if count is None else count
    name = {"__name__": labels} if isinstance(labels, str) else labels
    return Sent(labels=name, histogram=fields, **more)


def trace(ts_ms: int = NOW_MS, **labels: str) -> list[tuple[dict[str, str], int]]:
    """One exemplar."""
    return [(labels, ts_ms)]


def samples(*series: Sent, **more: Any) -> Case:
    """What is good and all written."""
    exemplars = sum(len(one.exemplars) for one in series)
    values = sum(one.value is not None for one in series)
    return Case(series, written=(values, sum(one.histogram is not None for one in series), exemplars), **more)


Cases = Callable[[], Iterator[Case]]
CASES: dict[str, Cases] = {}


def case(name: str) -> Callable[[Cases], Cases]:
    def keep(cases: Cases) -> Cases:
        CASES[name] = cases
        return cases

    return keep


def alone(name: str, *series: Sent) -> None:
    """A case of one good request."""
    CASES[name] = lambda: iter([samples(*series)])


# request_test.go


@case("BadContentTypes")
def bad_types() -> Iterator[Case]:
    for kind in ("application/json", "image/png"):
        yield Case([sample("up")], good=False, status=415, headers={"Content-Type": kind}, first=0x30)


@case("BadContentEncodings")
def bad_encodings() -> Iterator[Case]:
    for coat in ("gzip", "deflate"):
        yield Case([sample("up")], good=False, status=415, headers={"Content-Encoding": coat}, first=0x30)


@case("CorruptRequestBody")
def corrupt() -> Iterator[Case]:
    yield Case([sample("up")], good=False, first=0x30)


# metric_test.go


@case("SingleMetric")
def single() -> Iterator[Case]:
    good: tuple[dict[str, str], ...] = (
        {"__name__": "up"},
        UP,
        {"__name__": "up", "job": "test\njob\n", "instance": "localhost:9090"},
        {"__name__": "resource.cpu.usage", "job.name": "testjob", "instance.name": "localhost:9090"},
        {"__name__": "resource cpu usage", "job name": "testjob", "instance name": "localhost:9090"},
    )
    for value in FLOATS.values():
        unusable = math.isinf(value)
        for labels in good:
            yield samples(sample(labels, value), unusable=unusable)
        for labels in ({"job": "testjob", "instance": "localhost:9090"}, {}):
            yield Case([sample(labels, value)], good=False, written=(1, 0, 0))


@case("MultipleMetrics")
def multiple() -> Iterator[Case]:
    for value in FLOATS.values():
        named = [sample(UP | {"instance": f"localhost:909{n}"}, value) for n in range(4)]
        nameless = [
            sample({label: text for label, text in one.labels.items() if label != "__name__"}, value) for one in named
        ]
        yield samples(*named, unusable=math.isinf(value))
        yield Case(nameless, good=False)
        yield Case([*nameless[:1], *named[1:]], good=False, written=(3, 0, 0))


alone(
    "CounterWithCreatedTimestamp",
    sample({"__name__": "http_requests_total", "job": "api"}, 100.0, start_ms=NOW_MS - HOUR_MS),
)

# histograms_test.go


@case("Histograms")
def histograms() -> Iterator[Case]:
    yield samples(native("test_histogram", "+-0"))
    yield samples(native("test_histogram", "c"))
    yield samples(native({"__name__": "test_histogram", "job": "test"}, "+0"))
    yield samples(native({"__name__": "test_histogram", "instance": "localhost"}, "-"))
    yield samples(native("minimal_hist", "0"))
    yield Case([native("minimal_hist", "+", count=99)], good=False, written=(0, 1, 0))


API = {"__name__": "request_duration_seconds", "job": "api"}
GET = {"__name__": "http_request_duration_seconds", "method": "GET"}
UPLOAD = {"__name__": "response_size_bytes", "service": "upload"}
alone("HistogramWithCreatedTimestamp", native(API, "+-0", 1.5, start_ms=NOW_MS - HOUR_MS // 2))
alone(
    "MultipleHistograms",
    native({"__name__": "hist1", "job": "test"}, "+0", 10.5),
    native({"__name__": "hist2", "job": "test"}, "-", 5.2),
)
alone("EmptyHistogram", native("empty_hist", "", 0.0))
alone(
    "HistogramWithMetadata",
    native(API, "+-0", 2.5, kind=HISTOGRAM, help="HTTP request duration in seconds", unit="seconds"),
)
alone("HistogramWithExemplar", native(GET, "+0", 1.23, exemplars=trace(trace_id="abc123def456", span_id="span789")))
alone(
    "HistogramWithMetadataAndExemplar",
    native(
        UPLOAD, "+-0", 10_485_760, kind=HISTOGRAM, help="HTTP response size in bytes", unit="bytes",
        exemplars=trace(trace_id="large_upload_trace", user_id="user456"),
    ),
)  # fmt: skip
alone(
    "MultipleHistogramsWithMetadata",
    native({"__name__": "cpu_usage_histogram", "instance": "server1"}, "+0", 0.75, kind=HISTOGRAM, unit="ratio"),
    native({"__name__": "memory_usage_histogram", "instance": "server1"}, "+-", 2**33, kind=HISTOGRAM, unit="bytes"),
)

# exemplar_test.go


@case("Exemplars")
def exemplars() -> Iterator[Case]:
    rows: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
        ({"__name__": "http_requests_total", "job": "api"}, {"trace_id": "abc123def456"}),
        ({"__name__": "request_duration_seconds", "method": "GET"}, {"trace_id": "xyz789", "span_id": "span123"}),
        ({"__name__": "cpu_usage", "instance": "host1"}, {"user_id": "user123"}),
        ({"__name__": "request_latency"}, {"trace_id": "trace456", "user": "admin", "endpoint": "/login"}),
        ({"__name__": "simple_counter"}, {}),
        ({"__name__": "test_metric"}, {"trace_id": "trace-with-dashes_and_underscores.123"}),
        ({"__name__": "unicode_test", "region": "🌍"}, {"trace_id": "unicode_trace_测试"}),
    )
    for labels, own in rows:
        yield samples(sample(labels, exemplars=[(own, NOW_MS)]))


alone(
    "ExemplarWithCreatedTimestamp",
    sample(
        {"__name__": "http_requests_total", "job": "api"}, 250.0, start_ms=NOW_MS - 2 * HOUR_MS,
        exemplars=trace(trace_id="abc123", span_id="span456"),
    ),
)  # fmt: skip
alone(
    "MultipleExemplars",
    sample({"__name__": "request_duration", "method": "GET"}, 0.1, exemplars=trace(trace_id="trace1", span_id="1")),
    sample({"__name__": "request_duration", "method": "POST"}, 0.25, exemplars=trace(trace_id="trace2", span_id="2")),
    sample({"__name__": "error_count", "service": "payment"}, exemplars=trace(trace_id="trace3", user="test_user")),
)
alone(
    "ExemplarTimestamps",
    *(
        sample("latency_hist", value, ts_ms=NOW_MS - ago, exemplars=trace(NOW_MS - ago, trace_id=name))
        for value, ago, name in ((0.05, HOUR_MS, "old"), (0.15, 60_000, "recent"), (0.08, 0, "current"))
    ),
)


@case("ExemplarValidation")
def exemplar_validation() -> Iterator[Case]:
    for labels in ({"job": "test"}, {"__name__": ""}):
        yield Case([sample(labels, exemplars=trace(trace_id="test_trace"))], good=False, written=(1, 0, 1))
    yield samples(sample("valid_metric", exemplars=trace(trace_id="test_trace")))


@case("ExemplarSpecialValues")
def exemplar_floats() -> Iterator[Case]:
    for value in (0.0, -123.456, 1e10, 1e-10, math.nan, math.inf, -math.inf):
        unusable = math.isinf(value)
        yield samples(sample("test_metric", value, exemplars=trace(trace_id="special")), unusable=unusable)


# metadata_test.go


@case("Metadata")
def metadata() -> Iterator[Case]:
    rows: tuple[tuple[str, int, str, str], ...] = (
        ("http_requests_total", COUNTER, "Total number of HTTP requests", "requests"),
        ("cpu_usage_percent", GAUGE, "Current CPU usage percentage", "percent"),
        ("simple_counter", COUNTER, "", ""),
        ("test_metric", GAUGE, 'Test metric with\nnewlines and "quotes"', "bytes/sec"),
        ("unknown_metric", 0, "Unknown metric type", ""),
        ("build_info", INFO, "Build information", ""),
        ("node_state", STATE_SET, "Node state information", ""),
        ("request_latency_summary", SUMMARY, "Request latency summary", "seconds"),
        ("temperature_histogram", GAUGE_HISTOGRAM, "Temperature distribution", "celsius"),
    )
    for name, kind, words, unit in rows:
        yield samples(sample(name, kind=kind, help=words, unit=unit))
    yield samples(native("request_duration_seconds", "+-0", kind=HISTOGRAM, help="Request duration", unit="seconds"))


REQUESTS = {"__name__": "http_requests_total", "job": "api"}
alone(
    "CounterMetadataWithCreatedTimestamp",
    sample(REQUESTS, 150.0, start_ms=NOW_MS - HOUR_MS, kind=COUNTER, help="Total HTTP requests", unit="requests"),
)
alone("MetadataWithSamples", sample(REQUESTS | {"job": "test"}, 42.0, kind=COUNTER, help="Total", unit="requests"))
alone(
    "MultipleMetadata",
    sample("cpu_usage", 85.5, kind=GAUGE, help="CPU usage percentage", unit="percent"),
    sample("memory_usage", 4_096_000_000, kind=GAUGE, help="Memory usage in bytes", unit="bytes"),
    sample({"__name__": "disk_usage", "device": "sda1"}, 75.2, kind=GAUGE, help="Disk usage", unit="percent"),
)
alone(
    "MetadataWithComplexLabels",
    native(
        GET | {"job": "api-server", "instance": "localhost:8080", "status": "200", "endpoint": "/api/v1/users"},
        "+-0", 0.25, kind=HISTOGRAM, help="HTTP request duration in seconds", unit="seconds",
    ),
)  # fmt: skip


@case("MetadataValidation")
def metadata_validation() -> Iterator[Case]:
    for labels, kind in (({"job": "test"}, COUNTER), ({"__name__": ""}, GAUGE)):
        yield Case([sample(labels, kind=kind, help="Test help", unit="unit")], good=False, written=(1, 0, 0))
    yield samples(sample("valid_metric_name", kind=COUNTER, help="Test help", unit="unit"))


# combined_test.go

POSTED = {"__name__": "http_requests_total", "job": "api", "method": "POST"}
SPECIAL = {
    "__name__": "test_metric", "job": "test-job_with.special@chars", "instance": "localhost:9090",
    "environment": "test🚀",
}  # fmt: skip
alone(
    "SamplesWithMetadataAndExemplars",
    sample(POSTED, kind=COUNTER, unit="requests", exemplars=trace(trace_id="request_trace_123", user_id="user789")),
)
alone(
    "HistogramsWithMetadataAndExemplars",
    native(
        {"__name__": "request_duration_seconds", "service": "auth"}, "+-0", 0.456, kind=HISTOGRAM, unit="seconds",
        exemplars=trace(trace_id="slow_request_trace", endpoint="/login"),
    ),
)  # fmt: skip
alone(
    "ComplexSamplesRequest",
    sample(
        {"__name__": "cpu_usage", "instance": "server1"}, 0.85, kind=GAUGE, unit="ratio",
        exemplars=trace(trace_id="high_cpu_trace", process="worker"),
    ),
    sample({"__name__": "memory_usage", "instance": "server1"}, 8_589_934_592, kind=GAUGE, unit="bytes"),
)  # fmt: skip
alone(
    "ComplexHistogramsRequest",
    native(
        {"__name__": "response_time_hist", "endpoint": "/api/v1/users"}, "+0", 0.125, kind=HISTOGRAM, unit="seconds",
        exemplars=trace(trace_id="fast_response", user="premium"),
    ),
    native({"__name__": "request_size_hist", "method": "POST"}, "-0", 1024, kind=HISTOGRAM, unit="bytes"),
)  # fmt: skip
alone(
    "MultipleMetricFamiliesSamples",
    sample(
        {"__name__": "http_requests_total", "status": "200"}, 1000, kind=COUNTER, unit="requests",
        exemplars=trace(trace_id="successful_request"),
    ),
    sample({"__name__": "temperature_celsius", "location": "datacenter1"}, 23.5, kind=GAUGE, unit="celsius"),
)  # fmt: skip
alone(
    "MultipleMetricFamiliesHistograms",
    native(
        {"__name__": "request_duration_seconds", "handler": "/metrics"}, "+0", 0.003, kind=HISTOGRAM, unit="seconds",
        exemplars=trace(trace_id="metrics_scrape", scraper="prometheus"),
    ),
)  # fmt: skip


@case("EdgeCaseCombinations")
def edges() -> Iterator[Case]:
    orphan = {"__name__": "orphan_metric"}
    yield samples(Sent(labels=orphan, kind=COUNTER, help="Orphaned metric metadata", unit="count"))
    yield samples(Sent(labels=orphan, exemplars=trace(trace_id="orphan_trace")))
    ago = trace(NOW_MS - HOUR_MS // 2, trace_id="old_trace")
    yield samples(sample("old_metric", ts_ms=NOW_MS - HOUR_MS, exemplars=ago), sample("new_metric", 2.0))


alone(
    "ManySamples",
    *(
        sample(
            {"__name__": f"counter_metric_{n}", "series": f"series_{n}"}, n * 100.0, kind=COUNTER,
            help=f"Counter metric number {n}", unit="count", exemplars=trace(trace_id=f"trace_{n}"),
        )
        for n in range(50)
    ),
)  # fmt: skip
alone(
    "ManyHistograms",
    *(
        native(
            {"__name__": f"histogram_metric_{n}", "bucket": f"bucket_{n}"}, "+0" if n % 2 else "+-0", n / 10,
            kind=HISTOGRAM, unit="seconds", exemplars=trace(trace_id=f"trace_{n}"),
        )
        for n in range(50)
    ),
)  # fmt: skip
alone(
    "SpecialCharactersCombined",
    sample(
        SPECIAL, 42.0, kind=GAUGE, help='special characters: äöü, newlines\nand "quotes"', unit="special/units",
        exemplars=trace(trace_id="special_trace_äöü-123", span_id="span_with.dots-and_underscores"),
    ),
)  # fmt: skip
alone(
    "CustomBucketsHistogramWithExemplar",
    native(
        {"__name__": "custom_latency_hist", "version": "v2"}, "c", 0.05,
        exemplars=trace(trace_id="custom_bucket_trace", bucket="0.1"),
    ),
)  # fmt: skip

# rw1_compat_test.go: who sends 1.0 is told nothing of what was written


@case("RW1BasicCompatibility")
def first_version() -> Iterator[Case]:
    yield Case([sample(UP), sample("http_requests_total", 100.0)], v1=True)


@case("RW1ErrorHandling")
def first_version_corrupt() -> Iterator[Case]:
    yield Case([sample("error_test")], good=False, v1=True, first=0xFF)


def test_there_are_39() -> None:
    assert len(CASES) == 39


@pytest.mark.parametrize("mapped", [False, True])
async def test_cases(world: World, mapped: bool) -> None:
    sender = await sender_of(world)
    if mapped:
        await map_everything(world)
    assert {
        name: found for name in CASES if (found := [await wrong(sender, one, mapped) for one in CASES[name]()])
    } == {name: [""] * len(list(cases())) for name, cases in CASES.items()}


async def wrong(sender: Sender, one: Case, mapped: bool) -> str:
    """What is wrong with the answer to a case; "" for nothing."""
    answer = await sender.remote_write(one.body(), one.v1, **one.headers)
    written = tuple(int(answer.headers.get(WRITTEN.format(kind), 0)) for kind in KINDS)
    words = await answer.get_data(as_text=True)
    good = one.good and not (mapped and one.unusable)
    if good:
        right = (answer.status_code, written, words) == (204, one.written, "")
    else:
        right = answer.status_code == (one.status or 400) and words.endswith("\n")
        right = right and all(said <= most for said, most in zip(written, one.written, strict=True))
    return "" if right else f"{answer.status_code} {written} {words} for {one}"
