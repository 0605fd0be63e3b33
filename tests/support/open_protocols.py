"""Requests of open protocols: the reference parser's messages, seeded senders, mutilation, and points to compare."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from api.protocols.points import Points, Series
from breaker_actors.errors import BreakersError

Fields = dict[str, tuple[int, str, bool]]
"""Of each field: number, type (a scalar's, or a message's name), whether it is repeated."""
_LABELS: Fields = {"labels_refs": (1, "uint32", True)}
_HISTOGRAM: Fields = {
    "count_int": (1, "uint64", False), "count_float": (2, "double", False), "sum": (3, "double", False),
    "schema": (4, "sint32", False), "zero_threshold": (5, "double", False), "zero_count_int": (6, "uint64", False),
    "zero_count_float": (7, "double", False), "negative_spans": (8, "BucketSpan", True),
    "negative_deltas": (9, "sint64", True), "negative_counts": (10, "double", True),
    "positive_spans": (11, "BucketSpan", True), "positive_deltas": (12, "sint64", True),
    "positive_counts": (13, "double", True), "reset_hint": (14, "int32", False), "timestamp": (15, "int64", False),
    "custom_values": (16, "double", True),
}  # fmt: skip
_SPAN: Fields = {"offset": (1, "sint32", False), "length": (2, "uint32", False)}
_SAMPLE: Fields = {"value": (1, "double", False), "timestamp": (2, "int64", False)}
V1: dict[str, Fields] = {
    "WriteRequest": {"timeseries": (1, "TimeSeries", True), "metadata": (3, "MetricMetadata", True)},
    "TimeSeries": {
        "labels": (1, "Label", True), "samples": (2, "Sample", True), "exemplars": (3, "Exemplar", True),
        "histograms": (4, "Histogram", True),
    },
    "Label": {"name": (1, "string", False), "value": (2, "string", False)},
    "Sample": _SAMPLE,
    "Exemplar": {"labels": (1, "Label", True), "value": (2, "double", False), "timestamp": (3, "int64", False)},
    "Histogram": _HISTOGRAM,
    "BucketSpan": _SPAN,
    "MetricMetadata": {
        "type": (1, "int32", False), "metric_family_name": (2, "string", False), "help": (4, "string", False),
        "unit": (5, "string", False),
    },
}  # fmt: skip
V2: dict[str, Fields] = {
    "Request": {"symbols": (4, "string", True), "timeseries": (5, "TimeSeries", True)},
    "TimeSeries": {
        **_LABELS, "samples": (2, "Sample", True), "histograms": (3, "Histogram", True),
        "exemplars": (4, "Exemplar", True), "metadata": (5, "Metadata", False),
        "created_timestamp": (6, "int64", False),
    },
    "Exemplar": {**_LABELS, "value": (2, "double", False), "timestamp": (3, "int64", False)},
    "Sample": {**_SAMPLE, "start_timestamp": (3, "int64", False)},
    "Metadata": {"type": (1, "int32", False), "help_ref": (3, "uint32", False), "unit_ref": (4, "uint32", False)},
    "Histogram": {**_HISTOGRAM, "start_timestamp": (17, "int64", False)},
    "BucketSpan": _SPAN,
}  # fmt: skip
_ONE_OF = {"count_int": "count", "count_float": "count", "zero_count_int": "zero", "zero_count_float": "zero"}


def _messages(package: str, messages: dict[str, Fields]) -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if fields is _HISTOGRAM or "count_int" in fields:
            message.oneof_decl.add(name="count")
            message.oneof_decl.add(name="zero")
        for field, (number, kind, repeated) in fields.items():
            made = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in messages:
                made.type, made.type_name = 11, f".{package}.{kind}"
            else:
                made.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind.upper()}")
            if field in _ONE_OF:
                made.oneof_index = 0 if _ONE_OF[field] == "count" else 1
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))  # type: ignore[no-untyped-call]
        for name in messages
    }


WriteRequest: Any = _messages("prometheus", V1)["WriteRequest"]
Request2: Any = _messages("io.prometheus.write.v2", V2)["Request"]
NOW_MS = 1_795_242_600_000
STALE = np.array([0x7FF0_0000_0000_0002], np.uint64).view(np.float64)[0].item()


def labels(rnd: random.Random, n: int) -> dict[str, str]:
    """Labels as a sender of metrics has them, now and then odd ones."""
    found = {"__name__": rnd.choice(("up", "requests_total", "latency_seconds_bucket", "queue", "size_sum", "größe"))}
    found |= {f"label{k}": f"value-{(n + k) % 7}" * rnd.choice((1, 1, 1, 9)) for k in range(rnd.randint(0, 8))}
    odd = rnd.random()
    if odd < 0.03:
        del found["__name__"]
    elif odd < 0.06:
        found[""] = "no name"
    elif odd < 0.09:
        found["empty"] = ""
    elif odd < 0.1:
        found["long"] = "x" * 3000
    return found


def number(rnd: random.Random) -> float:
    return rnd.choice(
        (0.0, -0.0, 1.0, rnd.random(), 1e300, float("inf"), float("nan"), STALE, float(rnd.randint(0, 999)))
    )


def moment(rnd: random.Random) -> int:
    return rnd.choice((NOW_MS, NOW_MS + rnd.randint(-99_999, 99_999), NOW_MS, NOW_MS, 0, -5, 1 << 50, 77))


def fill_histogram(rnd: random.Random, made: Any) -> None:
    """A native histogram, mostly a right one."""
    made.timestamp, made.sum = moment(rnd), rnd.choice((1.5, 2.0, STALE, float("nan")))
    made.schema = rnd.choice((0, 3, 8, -4, -53, 9))
    made.zero_threshold, made.reset_hint = rnd.choice((0.0, 1e-9)), rnd.choice((0, 0, 1, 2, 3))
    floats, observed = rnd.random() < 0.4, 2
    if made.schema == -53:
        made.custom_values.extend(sorted(rnd.random() * 10 for _ in range(rnd.randint(0, 6))))
    for sign in ("positive", "negative") if made.schema != -53 else ("positive",):
        total = 0
        for number in range(rnd.randint(0, 3)):
            length = rnd.randint(0, 3)
            offset = rnd.randint(0, 1) if number or made.schema == -53 else rnd.randint(-9, 9)
            getattr(made, f"{sign}_spans").add(offset=offset, length=length)
            total += length
        total += rnd.random() < 0.05
        counts = [rnd.choice((0, 1, 5, 70)) for _ in range(total)]
        observed += sum(counts)
        if floats:
            getattr(made, f"{sign}_counts").extend(c + (0.5 if rnd.random() < 0.03 else 0) for c in counts)
        else:
            getattr(made, f"{sign}_deltas").extend(b - a for a, b in zip([0, *counts], counts, strict=False))
    if floats:
        made.count_float, made.zero_count_float = 9.0, 2.0
    else:
        made.count_int, made.zero_count_int = observed + (rnd.random() < 0.05), 2


def request1(rnd: random.Random, most: int = 8) -> Any:
    """A request of remote-write 1.0."""
    request = WriteRequest()
    for n in range(rnd.randint(0, most)):
        series = request.timeseries.add()
        for name, value in labels(rnd, n).items():
            series.labels.add(name=name, value=value)
        kind = rnd.random()
        for _ in range(1 if kind < 0.7 else rnd.randint(0, 3)):
            series.samples.add(value=number(rnd), timestamp=moment(rnd))
        if kind > 0.85:
            fill_histogram(rnd, series.histograms.add())
        if kind > 0.8:
            exemplar = series.exemplars.add(value=1.0, timestamp=moment(rnd))
            exemplar.labels.add(name=rnd.choice(("trace_id", "traceID", "other")), value=f"{n:032x}")
    if rnd.random() < 0.2:
        request.metadata.add(
            type=rnd.randint(0, 8), metric_family_name=rnd.choice(("up", "requests", "queue")), unit="s"
        )
    return request


def request2(rnd: random.Random, most: int = 8) -> Any:
    """A request of remote-write 2.0."""
    request = Request2()
    symbols: dict[str, int] = {"": 0}
    for filler in range(rnd.choice((0, 0, 300))):
        symbols[f"filler{filler}"] = len(symbols)

    def refs(pairs: dict[str, str]) -> list[int]:
        found = [symbols.setdefault(text, len(symbols)) for pair in pairs.items() for text in pair]
        return found if rnd.random() > 0.03 else [*found, 9_999_999]

    for n in range(rnd.randint(0, most)):
        series = request.timeseries.add(labels_refs=refs(labels(rnd, n)))
        kind = rnd.random()
        for _ in range(1 if kind < 0.7 else rnd.randint(0, 3)):
            series.samples.add(
                value=number(rnd), timestamp=moment(rnd), start_timestamp=rnd.choice((0, 0, moment(rnd)))
            )
        if kind > 0.85:
            fill_histogram(rnd, series.histograms.add(start_timestamp=rnd.choice((0, NOW_MS))))
        if kind > 0.8:
            series.exemplars.add(labels_refs=refs({"trace_id": f"{n:032x}"}), timestamp=moment(rnd))
        if rnd.random() < 0.8:
            unit = symbols.setdefault("seconds", len(symbols)) if rnd.random() < 0.3 else 0
            series.metadata.type, series.metadata.unit_ref = rnd.randint(0, 8), unit
        if rnd.random() < 0.1:
            series.created_timestamp = moment(rnd)
    request.symbols.extend(symbols)
    return request


def fill_value(rnd: random.Random, made: Any, depth: int = 0) -> None:
    """A value of any kind."""
    kind = rnd.choice(("string", "string", "string", "int", "bool", "double", "bytes", "array", "kvlist", "none"))
    if kind == "string":
        made.string_value = rnd.choice(("GET", "", "eu-west-1", "ß" * 20))
    elif kind == "int":
        made.int_value = rnd.choice((0, 200, -1, 1 << 60))
    elif kind == "bool":
        made.bool_value = rnd.random() < 0.5
    elif kind == "double":
        made.double_value = rnd.choice((0.5, 3.0, float("nan"), float("inf"), 1e22))
    elif kind == "bytes":
        made.bytes_value = rnd.choice((b"\x00\xff", b""))
    elif kind == "array":
        made.array_value.SetInParent()
        for _ in range(rnd.randint(0, 2) if depth < 3 else 0):
            fill_value(rnd, made.array_value.values.add(), depth + 1)
    elif kind == "kvlist":
        made.kvlist_value.SetInParent()
        for n in range(rnd.randint(0, 2) if depth < 3 else 0):
            fill_value(rnd, made.kvlist_value.values.add(key=f"k{n}").value, depth + 1)


def fill_attributes(rnd: random.Random, attributes: Any) -> None:
    for n in range(rnd.randint(0, 5)):
        fill_value(rnd, attributes.add(key=f"attribute.{n}").value)
    if rnd.random() < 0.05:
        attributes.add(key=rnd.choice(("", "attribute.0"))).value.string_value = "odd"


def otlp_request(rnd: random.Random, most: int = 3) -> Any:
    """A request of OTLP metrics."""
    request = ExportMetricsServiceRequest()
    for _ in range(rnd.choice((0, 1, 1, 1, 1, 1, 2))):
        part = request.resource_metrics.add()
        fill_attributes(rnd, part.resource.attributes)
        scope = part.scope_metrics.add()
        scope.scope.name, scope.scope.version = rnd.choice((("lib", "1.0"), ("", ""), ("lib", "")))
        if rnd.random() < 0.2:
            fill_attributes(rnd, scope.scope.attributes)
        for _ in range(rnd.randint(0, most)):
            metric = scope.metrics.add(name=rnd.choice(("requests", "latency", "")), unit=rnd.choice(("", "ms")))
            kind = rnd.choice(("gauge", "sum", "sum", "histogram", "exponential_histogram", "summary"))
            content = getattr(metric, kind)
            content.SetInParent()
            if kind not in ("gauge", "summary"):
                content.aggregation_temporality = rnd.randint(0, 3)
            if kind == "sum":
                content.is_monotonic = rnd.random() < 0.5
            for _ in range(rnd.randint(0, most)):
                fill_point(rnd, kind, content.data_points.add())
    return request


def fill_point(rnd: random.Random, kind: str, point: Any) -> None:
    """A data point, mostly a right one."""
    point.time_unix_nano = max(0, moment(rnd)) * 1_000_000 % (1 << 64)
    point.start_time_unix_nano = rnd.choice((0, NOW_MS * 1_000_000))
    fill_attributes(rnd, point.attributes)
    if rnd.random() < 0.1:
        point.flags = rnd.choice((1, 2))
    if kind != "summary" and rnd.random() < 0.2:
        for n in range(rnd.randint(1, 2)):
            point.exemplars.add(time_unix_nano=rnd.randint(0, 5), trace_id=rnd.randbytes(16), as_double=n)
    if kind in ("gauge", "sum"):
        if rnd.random() < 0.5:
            point.as_double = rnd.choice((0.0, 1.5, float("nan"), float("inf")))
        elif rnd.random() < 0.95:
            point.as_int = rnd.choice((0, 7, -(1 << 63)))
    elif kind == "histogram":
        bounds = sorted(rnd.random() * 9 for _ in range(rnd.randint(0, 4)))
        point.explicit_bounds.extend(bounds)
        point.bucket_counts.extend(rnd.choice((0, 1, 50)) for _ in range(len(bounds) + (rnd.random() > 0.05)))
        point.count, point.sum = rnd.randint(0, 9), 3.0
    elif kind == "exponential_histogram":
        point.scale, point.zero_count = rnd.choice((0, 3, 20, -10, 30)), rnd.choice((0, 4))
        for side in (point.positive, point.negative):
            if rnd.random() < 0.6:
                side.offset = rnd.randint(-20, 20)
                side.bucket_counts.extend(rnd.choice((0, 1, 300)) for _ in range(rnd.randint(0, 5)))
    if kind in ("histogram", "exponential_histogram") and rnd.random() < 0.4:
        point.min, point.max = rnd.choice(((0.1, 7.0), (2.0, 2.0), (5.0, 1.0), (-3.0, 3.0)))


def mutilated(rnd: random.Random, body: bytes) -> bytes:
    """The body with a few bytes changed, cut out, doubled or put in."""
    found = bytearray(body)
    for _ in range(rnd.randint(1, 3)):
        at = rnd.randrange(len(found) + 1)
        kind = rnd.randrange(5)
        if kind == 0 and at < len(found):
            found[at] = rnd.choice((rnd.randrange(256), found[at] ^ 1 << rnd.randrange(8), 0, 127, 128, 255))
        elif kind == 1:
            del found[at : at + rnd.choice((1, 2, rnd.randint(1, 40)))]
        elif kind == 2:
            found[at:at] = found[at : at + rnd.randint(1, 40)]
        elif kind == 3:
            found[at:at] = rnd.randbytes(rnd.randint(1, 4))
        else:
            del found[at + rnd.randint(0, 40) :]
    return bytes(found)


def plain_labels(series: Series) -> Series:
    """The series with its labels in order: of equal series one may stand for the others, however they were sent."""
    return msgspec.structs.replace(series, labels=dict(sorted(series.labels.items())))


def rows(points: Points) -> Any:
    """All that points say, to compare: NaN equals NaN."""
    found = []
    for row, which in enumerate(points.of.tolist()):
        series, histogram = points.series[which], points.histograms.get(row)
        shape = None if histogram is None else (
            histogram.values, histogram.counts, histogram.layout, histogram.buckets
        )  # fmt: skip
        found.append(
            (
                repr(plain_labels(series)), points.ts_ms[row].item(), points.start_ms[row].item(),
                repr(points.value[row].item()), points.absent[row].item(), shape, points.traces.get(row),
            )
        )  # fmt: skip
    return found, points.exemplars, [(one.where, one.code) for one in points.bad], [s.identity for s in points.series]


def outcome(read: Callable[[], Points]) -> Any:
    """What reading gives: rows, or the error's class."""
    try:
        return rows(read())
    except BreakersError as error:
        return type(error).__name__, "group" in str(error)
