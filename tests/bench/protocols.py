"""What a sample of an open protocol costs to decode, beside one of our own JSON in the same run.

python -m tests.bench protocols [--json FILE] [--smoke]

In microseconds of CPU time a sample, medians; the same series come again and again with new times and values. The
requests are what senders send by default: 2,000 series of 8 labels from Prometheus (in 2.0 in another order each
time), 8,192 points with 5 attributes from OpenTelemetry.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import cramjam
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from api.protocols import otlp_json, otlp_protobuf, remote_write1, remote_write2, snappy
from api.protocols.mapping import Target
from api.protocols.memory import Memory
from api.protocols.points import Points
from api.protocols.taking import Span, take
from api.wire.decoding import SAMPLES_MAX, decode_typed
from tests.bench.decoding import requests
from tests.support.figures import options_of, show
from tests.support.open_protocols import NOW_MS, Request2, WriteRequest

VARIANTS = 3
BYTES_MAX = 1 << 24


def main(argv: list[str]) -> None:
    options = options_of("protocols").parse_args(argv)
    show(measure(3, 200, 200) if options.smoke else measure(41, 2000, 8192), options.json)


def measure(turns: int, series: int, points: int) -> dict[str, float]:
    """Figures by name. Decoders take turns, so that all see the machine in the same moods."""
    decoders = {
        "our JSON": (own(), SAMPLES_MAX),
        "remote-write 1.0": (remote(remote_write1.decode, write1, series), series),
        "remote-write 1.0 with snappy": (remote(unpacked, write1, series, packed), series),
        "remote-write 2.0": (remote(remote_write2.decode, write2, series), series),
        "remote-write 2.0 of many targets": (remote(remote_write2.decode, scraped, series), series),
        "OTLP protobuf sums": (otlp("sum", points), points),
        "OTLP protobuf gauges": (otlp("gauge", points), points),
        "OTLP protobuf histograms": (otlp("histogram", points // 8), points // 8),
        "OTLP protobuf histograms, all made": (otlp("histogram", points // 8, then=made), points // 8),
        "OTLP protobuf histograms, all made and taken": (otlp("histogram", points // 8, then=totals), points // 8),
        "OTLP JSON sums": (otlp("sum", points // 8, as_json=True), points // 8),
    }
    spent: dict[str, list[float]] = {name: [] for name in decoders}
    for turn in range(turns + VARIANTS):
        for name, (decode, count) in decoders.items():
            begun = time.thread_time()
            decode(turn)
            if turn >= VARIANTS:
                spent[name].append((time.thread_time() - begun) * 1e6 / count)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    figures = {f"us {name}": value for name, value in medians.items()}
    for name, value in medians.items():
        figures[f"times our JSON, {name}"] = value / medians["our JSON"]
    return figures


def own() -> Callable[[int], object]:
    body = requests(SAMPLES_MAX)["tagged"]
    return lambda turn: decode_typed(body)


def remote(
    decode: Callable[[bytes, Memory], object],
    make: Callable[[int, int], bytes],
    series: int,
    coat: Callable[[bytes], bytes] = bytes,
) -> Callable[[int], object]:
    memory, bodies = Memory(), [coat(make(series, variant)) for variant in range(VARIANTS)]
    return lambda turn: decode(bodies[turn % VARIANTS], memory)


def packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def unpacked(body: bytes, memory: Memory) -> object:
    return remote_write1.decode(snappy.inflate(body, BYTES_MAX), memory)


def labels(number: int) -> dict[str, str]:
    return {
        "__name__": f"http_requests_{number % 40}_total", "cluster": "production-eu-1", "code": "200",
        "handler": f"/api/v1/things/{number % 50}", "instance": f"10.0.{number // 250}.{number % 250}:9090",
        "job": "web", "method": "GET", "namespace": "default",
    }  # fmt: skip


def value(number: int, variant: int) -> float:
    """One in ten has none."""
    return 0.0 if number % 10 == 0 else number * 1.37 + variant


def write1(series: int, variant: int) -> bytes:
    request = WriteRequest()
    for number in range(series):
        made = request.timeseries.add()
        for name, text in labels(number).items():
            made.labels.add(name=name, value=text)
        made.samples.add(value=value(number, variant), timestamp=NOW_MS + variant * 15_000 + number)
    return bytes(request.SerializeToString())


def write2(series: int, variant: int) -> bytes:
    request, symbols = Request2(), {"": 0}
    order = list(range(series))
    random.Random(variant).shuffle(order)
    for number in order:
        texts = [text for pair in labels(number).items() for text in pair]
        made = request.timeseries.add(labels_refs=[symbols.setdefault(text, len(symbols)) for text in texts])
        made.samples.add(value=value(number, variant), timestamp=NOW_MS + variant * 15_000 + number)
        made.metadata.type = 1
        made.metadata.help_ref = symbols.setdefault(f"Requests of kind {number % 40}.", len(symbols))
    request.symbols.extend(symbols)
    return bytes(request.SerializeToString())


def scraped(series: int, variant: int) -> bytes:
    """What Prometheus sends of targets that it scraped: families one after the other, with three to eleven labels,
    some with buckets; where a request begins and ends differs from time to time."""
    request, symbols = Request2(), {"": 0}
    for number in range(variant * 717, variant * 717 + series):
        target, place = divmod(number, 130)
        family, row = divmod(place, 13)
        pairs = {
            "__name__": f"family_{family}_{'total' if family % 3 else 'bucket'}",
            "instance": f"10.0.0.{target}:9090",
            "job": f"job-{target % 5}",
        }
        pairs |= {"le": f"{0.01 * 2**row}"} if family % 3 == 0 else {"code": str(row)}
        pairs |= {f"label_{n}": f"value-{n * row % 17}" for n in range(family % 9)}
        texts = [text for pair in sorted(pairs.items()) for text in pair]
        made = request.timeseries.add(labels_refs=[symbols.setdefault(text, len(symbols)) for text in texts])
        made.samples.add(value=value(number, variant), timestamp=NOW_MS + variant * 15_000 + number)
        made.metadata.type = 3 if family % 3 == 0 else 1
        made.metadata.help_ref = symbols.setdefault(f"Help of family {family}.", len(symbols))
    request.symbols.extend(symbols)
    return bytes(request.SerializeToString())


def made(points: Points) -> object:
    """Each histogram, as where mappings take all of them."""
    return [points.histograms.get(row) for row in range(len(points.of))]


def totals(points: Points) -> object:
    """What goes to the owner of their router."""
    target = Target(
        router_id="", metric="latency", scale=1.0, take_as="observations", ok=True, temporality="cumulative",
        mapping_id=None, mapping="", series_max=len(points.series),
    )  # fmt: skip
    found = take(points, [target] * len(points.series), Span(NOW_MS, NOW_MS - 60_000, NOW_MS + 60_000))
    return found.parts((b"k" * 16,))


def otlp(
    kind: str, points: int, as_json: bool = False, then: Callable[[Points], object] = lambda points: points
) -> Callable[[int], object]:
    """`then`: what is done with the points."""
    memory, bodies = Memory(), [otlp_request(kind, points, variant) for variant in range(VARIANTS)]
    if as_json:
        texts = [json.dumps(MessageToDict(one, use_integers_for_enums=True)).encode() for one in bodies]
        return lambda turn: otlp_json.decode(texts[turn % VARIANTS], memory)
    packed = [one.SerializeToString() for one in bodies]
    return lambda turn: then(otlp_protobuf.decode(packed[turn % VARIANTS], memory))


def otlp_request(kind: str, points: int, variant: int) -> Any:
    request = ExportMetricsServiceRequest()
    part = request.resource_metrics.add()
    part.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = part.scope_metrics.add()
    scope.scope.name = "opentelemetry.instrumentation.httpx"
    for number in range(points):
        if number % 128 == 0:
            metric = scope.metrics.add(name=f"http.client.request.duration.{number // 128}", unit="s")
            content = getattr(metric, kind)
        if kind != "gauge":
            content.aggregation_temporality = 2
        point = content.data_points.add(time_unix_nano=(NOW_MS + variant * 15_000) * 1_000_000 + number)
        for name, text in (("server.address", f"host-{number % 128}"), ("http.request.method", "GET"), ("az", "eu-1")):
            point.attributes.add(key=name).value.string_value = text
        point.attributes.add(key="http.response.status_code").value.int_value = 200
        point.attributes.add(key="server.port").value.int_value = 443
        fill(kind, point, number + variant)
    return request


def fill(kind: str, point: Any, number: int) -> None:
    if kind == "gauge":
        point.as_double = number * 0.7
        return
    point.start_time_unix_nano = (NOW_MS - 3_600_000) * 1_000_000
    if kind == "sum":
        point.as_int = number
        return
    point.explicit_bounds.extend((0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))
    point.bucket_counts.extend((0, 3, number, 5, 1, 0, 0, 0, 2, 0, 0, 0))
    point.count, point.sum, point.min, point.max = 11 + number, 5.0, 0.006, 2.0
