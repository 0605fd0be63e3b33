"""OTLP metrics in protobuf and JSON give the same rows, and those that the specification asks for."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from api.protocols import otlp_answers, otlp_json, otlp_protobuf
from api.protocols.bounds import LABELS_MAX, NESTING_MAX, POINTS_MAX
from api.protocols.memory import Memory
from breaker_actors.errors import BadRequest, PayloadTooLarge
from tests.support.open_protocols import otlp_request, rows

NS = 1_544_712_660_300_000_000


def attribute(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def point(**fields: Any) -> dict[str, Any]:
    named = attribute("attr", {"stringValue": "some value"})
    return {"startTimeUnixNano": str(NS), "timeUnixNano": NS, "attributes": [named], **fields}


def request_of(*metrics: dict[str, Any], **resource: Any) -> dict[str, Any]:
    sender = {"attributes": [attribute("service.name", {"stringValue": "my.service"})], **resource}
    scope = {"name": "my.library", "version": "1.0.0", "attributes": [attribute("own", {"stringValue": "x"})]}
    return {"resourceMetrics": [{"resource": sender, "scopeMetrics": [{"scope": scope, "metrics": list(metrics)}]}]}


def decode(request: dict[str, Any]) -> Any:
    return otlp_json.decode(json.dumps(request).encode(), Memory())


def bad(request: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.where, one.code) for one in decode(request).bad]


OFFICIAL = request_of(
    {
        "name": "my.counter",
        "unit": "1",
        "description": "I am a Counter",
        "sum": {"aggregationTemporality": 1, "isMonotonic": True, "dataPoints": [point(asDouble=5)]},
    },
    {"name": "my.gauge", "unit": "1", "gauge": {"dataPoints": [point(asDouble=10)]}},
    {
        "name": "my.histogram",
        "unit": "1",
        "histogram": {
            "aggregationTemporality": 1,
            "dataPoints": [
                point(count=2, sum=2, bucketCounts=[1, 1], explicitBounds=[1], min=0, max=2),
            ],
        },
    },
    {
        "name": "my.exponential.histogram",
        "exponentialHistogram": {
            "aggregationTemporality": 1,
            "dataPoints": [
                point(
                    count="3", sum=10, scale=0, zeroCount="1", positive={"offset": 1, "bucketCounts": ["0", "2"]},
                    min=0, max=5,
                ),
            ],
        },
    },
)  # fmt: skip
"""A request built as opentelemetry-proto's examples/metrics.json is."""


def test_the_official_example_gives_its_rows() -> None:
    points = decode(OFFICIAL)
    assert [(s.name, s.type, s.temporality, s.monotonic, s.unit) for s in points.series] == [
        ("my.counter", "sum", "delta", True, "1"),
        ("my.gauge", "gauge", None, False, "1"),
        ("my.histogram", "histogram", "delta", False, "1"),
        ("my.exponential.histogram", "histogram", "delta", False, ""),
    ]
    assert {tuple(s.labels.items()) for s in points.series} == {(("attr", "some value"),)}
    assert points.series[0].resource == {
        "service.name": "my.service",
        "otel.scope.name": "my.library",
        "otel.scope.version": "1.0.0",
        "otel.scope.own": "x",
    }
    assert points.value[:2].tolist() == [5, 10]
    assert set(points.ts_ms.tolist()) == set(points.start_ms.tolist()) == {NS // 1_000_000}
    explicit, exponential = points.histograms[2], points.histograms[3]
    assert [*explicit.observations()] == [(0.5, 1), (1.5, 1)]
    values, counts = exponential.numbers()
    assert values == pytest.approx([0, (4 * 5) ** 0.5])
    assert counts == (1, 2)
    assert points.bad == []


def as_json(request: Any) -> bytes:
    """A request in OTLP's JSON, which is protobuf's but for ids and enums."""

    def change(found: Any) -> Any:
        if isinstance(found, list):
            return [change(one) for one in found]
        if not isinstance(found, dict):
            return found
        hexed = {key: base64.b64decode(found[key]).hex() for key in ("traceId", "spanId") if key in found}
        return {key: change(value) for key, value in found.items()} | hexed

    return json.dumps(change(MessageToDict(request, use_integers_for_enums=True))).encode()


@pytest.mark.parametrize("part", range(4))
def test_json_and_protobuf_give_the_same_points(part: int) -> None:
    memory = Memory(20)
    for seed in range(30):
        request = otlp_request(random.Random(seed * 4 + part))
        expected = rows(otlp_protobuf.decode(request.SerializeToString(), Memory()))
        for _ in range(2):
            assert rows(otlp_json.decode(as_json(request), memory)) == expected


def test_unit_and_kind_of_histogram_tell_series_apart() -> None:
    """By OpenTelemetry's data model they are part of what a stream is; what has neither keeps its identity."""
    total = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": [point(asInt=1)]}
    explicit = {"aggregationTemporality": 2, "dataPoints": [point(count=1, bucketCounts=[1, 0], explicitBounds=[1])]}
    exponential = {"aggregationTemporality": 2, "dataPoints": [point(count=1, scale=0, zeroCount=1)]}
    metrics: list[dict[str, Any]] = [
        *({"name": "m", "unit": unit, "sum": total} for unit in ("", "By", "1")),
        *({"name": "m", "unit": unit, "histogram": explicit} for unit in ("", "s", "exponentialHistogram")),
        *({"name": "m", "unit": unit, "exponentialHistogram": exponential} for unit in ("", "s")),
    ]
    memory, request = Memory(), json.dumps(request_of(*metrics)).encode()
    first, again = (otlp_json.decode(request, memory) for _ in range(2))
    identities = [one.identity for one in first.series]
    assert identities == [one.identity for one in again.series]
    assert len(set(identities)) == len(metrics)
    assert [len(identity) for identity in identities] == [16, 24, 24, 16, 24, 24, 24, 24]
    assert {identity[:16] for identity in identities[:3]} == {identities[0]}
    assert {identity[:16] for identity in identities[3:]} == {identities[3]}


def test_numbers_are_text_or_numbers() -> None:
    for spelled, value in (("7", 7), (7, 7), (7.0, 7), ("-9223372036854775808", -(1 << 63))):
        points = decode(request_of({"name": "m", "gauge": {"dataPoints": [point(asInt=spelled)]}}))
        assert points.value.tolist() == [value]
    for spelled, text in (("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("1e3", "1000.0"), (2, "2.0")):
        points = decode(request_of({"name": "m", "gauge": {"dataPoints": [point(asDouble=spelled)]}}))
        assert repr(points.value[0].item()) == text
        assert not points.absent[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"asInt": "1_0"}, {"asInt": 7.5}, {"asInt": "9223372036854775808"}, {"asInt": " 7"}, {"asDouble": "nan"},
        {"asDouble": "1_0"}, {"timeUnixNano": -1}, {"flags": "x"}, {"attributes": {}}, {"asInt": [1]},
    ],
)  # fmt: skip
def test_what_is_spelled_wrong_is_no_request(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(request_of({"name": "m", "gauge": {"dataPoints": [point(**fields)]}}))
    assert "where" in caught.value.details


def test_enums_are_integers_and_names_camel_case() -> None:
    with pytest.raises(BadRequest):
        decode(request_of({"name": "m", "sum": {"aggregationTemporality": "AGGREGATION_TEMPORALITY_DELTA"}}))
    assert bad(request_of({"name": "m", "gauge": {"dataPoints": [{"as_double": 1, "unknown": [{}]}]}})) == [
        ("resourceMetrics[0].scopeMetrics[0].metrics[0].gauge.dataPoints[0]", "no_value")
    ]


def test_values_of_attributes_are_text() -> None:
    nested = {"kvlistValue": {"values": [attribute("b", {"doubleValue": "NaN"}), attribute("a", {"intValue": "1"})]}}
    kinds = {
        "text": {"stringValue": "x"}, "yes": {"boolValue": True}, "int": {"intValue": "-5"},
        "whole": {"doubleValue": 3},
        "float": {"doubleValue": 0.25}, "inf": {"doubleValue": "-Infinity"}, "bytes": {"bytesValue": "AP8="},
        "list": {"arrayValue": {"values": [{"stringValue": "a"}, {"boolValue": False}, {}]}}, "map": nested,
        "none": {}, "empty": {"stringValue": ""}, "huge": {"doubleValue": 1e22},
    }  # fmt: skip
    attributes = [attribute(key, value) for key, value in kinds.items()]
    points = decode(request_of({"name": "m", "gauge": {"dataPoints": [point(asInt=1, attributes=attributes)]}}))
    assert points.series[0].labels == {
        "text": "x", "yes": "true", "int": "-5", "whole": "3", "float": "0.25", "inf": "-Inf", "bytes": "AP8=",
        "list": '["a",false,null]', "map": '{"a":1,"b":"NaN"}', "huge": "1e+22",
    }  # fmt: skip


def test_bad_points_leave_the_others_alone() -> None:
    where = "resourceMetrics[0].scopeMetrics[0].metrics[0].sum.dataPoints"
    deep: dict[str, Any] = {"stringValue": "x"}
    for _ in range(NESTING_MAX + 1):
        deep = {"arrayValue": {"values": [deep]}}
    odd = [
        [attribute("", {"stringValue": "x"})],
        [attribute("a", {}), attribute("a", {})],
        [attribute(f"a{n}", {"intValue": n}) for n in range(LABELS_MAX + 1)],
        [attribute("a", {"stringValue": "x" * 3000})],
        [attribute("a", deep)],
    ]
    points = [point(asInt=1), *(point(asInt=1, attributes=attributes) for attributes in odd), point(asInt=2)]
    found = decode(request_of({"name": "m", "sum": {"dataPoints": points}}))
    assert found.value.tolist() == [1, 2]
    assert [(one.where, one.code) for one in found.bad] == [
        (f"{where}[1]", "empty_label_name"),
        (f"{where}[2]", "duplicate_label"),
        (f"{where}[3]", "too_many_labels"),
        (f"{where}[4]", "value_too_long"),
        (f"{where}[5]", "nested_too_deep"),
    ]
    assert found.of.tolist() == [0, 0]


def test_summaries_and_metrics_without_a_name_are_bad() -> None:
    request = request_of(
        {"name": "m", "summary": {"dataPoints": [{"quantileValues": 7}]}}, {"gauge": {"dataPoints": [point(asInt=1)]}}
    )
    codes = [code for _, code in bad(request)]
    assert codes == ["summary_unsupported", "missing_name"]


def test_no_recorded_value_is_absent_and_exemplars_name_traces() -> None:
    exemplars = [
        {"timeUnixNano": "5", "traceId": "ab" * 16},
        {"timeUnixNano": 4, "traceId": "cd" * 16},
        {"traceId": "?"},
    ]
    buckets = {"bucketCounts": ["1"], "flags": 1}
    found = decode(
        request_of(
            {"name": "m", "gauge": {"dataPoints": [point(flags=1), point(asInt=3, exemplars=exemplars)]}},
            {"name": "h", "histogram": {"dataPoints": [point(**buckets)]}},
        )
    )
    assert found.absent.tolist() == [True, False, True]
    assert (found.traces, found.exemplars, found.histograms) == ({1: "ab" * 16}, 3, {})


def test_a_request_has_at_most_so_many_points() -> None:
    body = request_of({"name": "m", "gauge": {"dataPoints": [{"asInt": 1}] * (POINTS_MAX + 1)}})
    with pytest.raises(PayloadTooLarge):
        decode(body)
    request = ExportMetricsServiceRequest()
    gauge = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge
    for _ in range(POINTS_MAX + 1):
        gauge.data_points.add(as_int=1)
    with pytest.raises(PayloadTooLarge):
        otlp_protobuf.decode(request.SerializeToString(), Memory())


@pytest.mark.parametrize("texts", [["{}"] * 1_000_001, ["1.2345678901234567e-300"] * 60_000, ["1"] * 1_000_002])
def test_a_json_body_holds_so_many_values(texts: list[str]) -> None:
    with pytest.raises(PayloadTooLarge):
        otlp_json.decode(f'{{"unknown":[{",".join(texts)}]}}'.encode(), Memory())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"resourceMetrics": 5}', b"\xff", b'{"a":' * 5000])
def test_what_is_no_json_is_no_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        otlp_json.decode(body, Memory())


def test_an_empty_request_has_no_points() -> None:
    for points in (otlp_json.decode(b"{}", Memory()), otlp_protobuf.decode(b"", Memory())):
        assert (len(points.of), points.bad, points.series) == (0, [], [])


@pytest.mark.parametrize(("rejected", "message"), [(0, ""), (0, "no mapping"), (300, "why — ß"), (3, "")])
def test_answers_are_what_the_reference_reads(rejected: int, message: str) -> None:
    body = otlp_answers.response(rejected, message, json=False)
    parsed = ExportMetricsServiceResponse.FromString(body)
    assert parsed.HasField("partial_success") == bool(rejected or message)
    assert (parsed.partial_success.rejected_data_points, parsed.partial_success.error_message) == (rejected, message)
    assert json.loads(otlp_answers.response(rejected, message, json=True)) == MessageToDict(parsed)


@pytest.mark.parametrize(("code", "message"), [(3, "the body can't be read"), (14, ""), (0, "")])
def test_errors_are_what_the_reference_reads(code: int, message: str) -> None:
    parsed = Status.FromString(otlp_answers.status(code, message, json=False))
    assert (parsed.code, parsed.message) == (code, message)
    assert json.loads(otlp_answers.status(code, message, json=True)) == {"code": code, "message": message}


def test_resources_are_bounded_together() -> None:
    """One that is too long makes its points bad; one that fits counts for each scope that it comes with."""
    text = {"stringValue": "é" * 7_000}
    long = [attribute(f"r{number}", text) for number in range(5)]
    gauge = {"name": "g", "gauge": {"dataPoints": [point(asDouble=1)]}}
    assert [code for _, code in bad(request_of(gauge, attributes=long))] == ["labels_too_long"]
    request = request_of(gauge, attributes=long[:4])
    part = request["resourceMetrics"][0]
    part["scopeMetrics"] = [{"scope": {"name": f"s{number}"}, "metrics": [gauge]} for number in range(290)]
    assert len(decode(request).series) == 290
    part["scopeMetrics"] = [{"scope": {"name": f"s{number}"}, "metrics": [gauge]} for number in range(310)]
    with pytest.raises(PayloadTooLarge, match="bytes of labels"):
        decode(request)
