"""What OTLP's protobuf and JSON have in common: values as text, who sent, metrics, series.

https://opentelemetry.io/docs/specs/otlp/ and opentelemetry-proto's metrics.proto. A scope tells streams of one name
apart, so it stands in the resource: `otel.scope.name`, `otel.scope.version`, and `otel.scope.` with each attribute.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from api.protocols.bounds import LABELS_MAX, NESTING_MAX, RESOURCE_BYTES_MAX, RESOURCE_VALUE_BYTES_MAX
from api.protocols.memory import Memory, Metric, Origin
from api.protocols.points import Series, SeriesType, Temporality
from api.protocols.series import (
    TOO_MANY,
    TWICE,
    Flaw,
    Text,
    encode_labels,
    labels_of,
    make_series,
    name_of,
    stream_of,
    unit_of,
)

Kind = Literal["gauge", "sum", "histogram", "exponentialHistogram", "summary"]
TYPES: dict[Kind, SeriesType] = {
    "gauge": "gauge",
    "sum": "sum",
    "histogram": "histogram",
    "exponentialHistogram": "histogram",
    "summary": "summary",
}
TEMPORALITIES: dict[int, Temporality] = {1: "delta", 2: "cumulative"}
NO_VALUE = Flaw("no_value", "The point has neither a value nor the flag that it has none.")
SUMMARY = Flaw(
    "summary_unsupported", "A summary's quantiles can't be counted or added up: send a histogram or a gauge instead."
)
NO_RECORDED_VALUE = 1
TOO_DEEP = Flaw("nested_too_deep", f"An attribute nests lists at most {NESTING_MAX} deep.")
Plain = str | bool | int | float | bytes | list["Plain"] | dict[str, "Plain"] | None
"""The value of an attribute."""
_SCOPE = "otel.scope."


def text_of(value: Plain) -> str:
    """The text that stands for an attribute's value: booleans and numbers as Prometheus prints them, bytes in base64,
    lists and maps as compact JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return text_of_float(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return msgspec.json.encode(_for_json(value), order="sorted").decode()


def text_of_float(value: float) -> str:
    """A decimal number as Prometheus prints it: no fraction where it has none, NaN, +Inf, -Inf."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


def _for_json(value: Plain) -> Plain:
    if isinstance(value, list):
        return [_for_json(one) for one in value]
    if isinstance(value, dict):
        return {name: _for_json(one) for name, one in value.items()}
    return text_of_float(value) if isinstance(value, float) and not math.isfinite(value) else value


Attributes = Sequence[tuple[bytes, bytes]]
"""Name and text of each attribute, in UTF-8."""


def origin_of(resource: Attributes, name: bytes, version: bytes, scope: Attributes, text: Text) -> Origin | Flaw:
    """Who sent: attributes of resource and scope."""
    bounds = text, RESOURCE_VALUE_BYTES_MAX, RESOURCE_BYTES_MAX
    labels = labels_of(resource, *bounds)
    if isinstance(labels, Flaw):
        return labels
    own = labels_of([(b"name", name), (b"version", version)], *bounds)
    others = labels_of(scope, *bounds)
    for part in (own, others):
        if isinstance(part, Flaw):
            return part
        named = {_SCOPE + label: text for label, text in part.items()}
        if part is others:
            named = {label: text for label, text in named.items() if label not in (f"{_SCOPE}name", f"{_SCOPE}version")}
        if named.keys() & labels.keys():
            return TWICE
        labels |= named
    return TOO_MANY if len(labels) > 2 * LABELS_MAX else Origin(labels, encode_labels(labels))


def metric_of(
    memory: Memory, origin: Origin | Flaw, name: bytes, unit: bytes, kind: Kind, temporality: int, monotonic: bool
) -> Metric | Flaw:
    """The metric that a message describes, by its origin and all that tells it apart."""
    if isinstance(origin, Flaw):
        return origin
    if kind == "summary":
        return SUMMARY
    words = origin.number, kind, TEMPORALITIES.get(temporality), monotonic, len(name)
    key = b"%d %b %b %d %d " % (words[0], words[1].encode(), str(words[2]).encode(), words[3], words[4]) + name + unit
    known = memory.metrics.get(key)
    if known is None:
        named, measured = name_of(name), unit_of(unit)
        if isinstance(named, Flaw):
            return named
        if isinstance(measured, Flaw):
            return measured
        stream = stream_of(measured, kind if kind == "exponentialHistogram" else "")
        known = Metric(origin, named, measured, TYPES[kind], TEMPORALITIES.get(temporality), monotonic, stream)
        memory.metrics.put(key, known)
    return known


def series_of(metric: Metric, attributes: Attributes, text: Text) -> Series | Flaw:
    """The series of a metric with these attributes."""
    labels = labels_of(attributes, text)
    if isinstance(labels, Flaw):
        return labels
    origin = metric.origin
    return make_series(
        metric.name, labels, metric.kind, metric.temporality, metric.monotonic, metric.unit,
        origin.resource, origin.encoded, metric.stream,
    )  # fmt: skip


def trace_hex(trace: bytes) -> str:
    """A trace id of 16 bytes as hex; "" for all others, and for zeros."""
    return trace.hex() if len(trace) == 16 and any(trace) else ""
