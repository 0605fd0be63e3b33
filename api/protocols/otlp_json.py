"""OTLP metrics in JSON: `ExportMetricsServiceRequest` to points.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding : lowerCamelCase names alone, unknown fields ignored,
enums as integers, 64-bit integers as numbers or text, NaN and Infinity as text, ids in hex. Null is absent. Attributes
stay JSON text until they are needed: text that was read before names the same series.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, cast

import msgspec
import numpy as np
from msgspec import Meta, Raw

from api.protocols.bounds import (
    BUCKETS_MAX,
    ENTRIES_MAX,
    JSON_COMMAS_MAX,
    JSON_EXPONENTS_MAX,
    JSON_OBJECTS_MAX,
    NESTING_MAX,
)
from api.protocols.columns import Columns, too_many_entries
from api.protocols.histograms import TOO_MANY_BUCKETS, Extent, explicit, exponential
from api.protocols.memory import Memory, Metric, Origin
from api.protocols.otlp import (
    NO_RECORDED_VALUE,
    NO_VALUE,
    TOO_DEEP,
    Attributes,
    Kind,
    Plain,
    metric_of,
    origin_of,
    series_of,
    text_of,
    trace_hex,
)
from api.protocols.points import Histogram, Points, Series
from api.protocols.protobuf import unreadable
from api.protocols.series import Flaw
from breaker_actors.errors import BadRequest, PayloadTooLarge

Int = int | Annotated[str, Meta(max_length=24)] | float | None
Float = float | Annotated[str, Meta(max_length=400)] | None
Text = str | None
_EMPTY = Raw(b"[]")
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FEW_EXPONENTS = 1 << 20
"""Shorter bodies are not looked at for large exponents."""
_EXPONENTS = (b"E", b"e+", b"e-", *(b"e%d" % digit for digit in range(10)))
_LARGE_EXPONENT = re.compile(rb"[0-9][eE][+-]?0*(?:[2-9][0-9]|[1-9][0-9]{2})")
_INTEGER = re.compile(r"-?[0-9]+\Z")
_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?\Z")


class _Message(msgspec.Struct, rename="camel", gc=False):
    pass


class AnyValue(_Message):
    """The value of an attribute."""

    string_value: Text = None
    bool_value: bool | None = None
    int_value: Int = None
    double_value: Float = None
    bytes_value: Text = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValues | None = None


class ArrayValue(_Message):
    """A list of values."""

    values: list[AnyValue | None] | None = None


class KeyValue(_Message):
    """One attribute."""

    key: Text = None
    value: AnyValue | None = None


class KeyValues(_Message):
    """A map of values."""

    values: list[KeyValue] | None = None


class Exemplar(_Message):
    """One measurement, and the trace it was made in."""

    time_unix_nano: Int = None
    trace_id: Text = None


class _Point(_Message):
    attributes: Raw = _EMPTY
    start_time_unix_nano: Int = None
    time_unix_nano: Int = None
    exemplars: list[Exemplar] | None = None
    flags: Int = None


class NumberDataPoint(_Point):
    """A point of a gauge or a sum."""

    as_double: Float = None
    as_int: Int = None


class Buckets(_Message):
    """Exponential buckets of one sign."""

    offset: Int = None
    bucket_counts: list[Int] | None = None


class HistogramDataPoint(_Point):
    """A point of a histogram of either kind."""

    count: Int = None
    sum: Float = None
    min: Float = None
    max: Float = None
    bucket_counts: list[Int] | None = None
    explicit_bounds: list[Float] | None = None
    scale: Int = None
    zero_count: Int = None
    zero_threshold: Float = None
    positive: Buckets | None = None
    negative: Buckets | None = None


class Numbers(_Message):
    """A gauge or a sum."""

    data_points: list[NumberDataPoint] | None = None
    aggregation_temporality: int | None = None
    is_monotonic: bool | None = None


class Histograms(_Message):
    """A histogram of either kind."""

    data_points: list[HistogramDataPoint] | None = None
    aggregation_temporality: int | None = None


class Summaries(_Message):
    """A summary: its points are counted."""

    data_points: list[Raw] | None = None


class JsonMetric(_Message):
    """One metric: at most one of its kinds is there."""

    name: Text = None
    unit: Text = None
    gauge: Numbers | None = None
    sum: Numbers | None = None
    histogram: Histograms | None = None
    exponential_histogram: Histograms | None = None
    summary: Summaries | None = None


class Scope(_Message):
    """The library that measured."""

    name: Text = None
    version: Text = None
    attributes: list[KeyValue] | None = None


class ScopeMetrics(_Message):
    """The metrics of one library."""

    scope: Scope | None = None
    metrics: list[JsonMetric] | None = None


class Resource(_Message):
    """Who sent."""

    attributes: list[KeyValue] | None = None


class ResourceMetrics(_Message):
    """The metrics of one sender."""

    resource: Resource | None = None
    scope_metrics: list[ScopeMetrics] | None = None


class Request(_Message):
    """The body."""

    resource_metrics: list[ResourceMetrics] | None = None


_request = msgspec.json.Decoder(Request)
_attributes = msgspec.json.Decoder(list[KeyValue] | None)


def decode(body: bytes, memory: Memory) -> Points:
    """The points of a body.

    Raises BadRequest where it can't be read (it is no JSON, or a field is of another type), PayloadTooLarge beyond
    POINTS_MAX, ENTRIES_MAX, JSON_OBJECTS_MAX, JSON_COMMAS_MAX or JSON_EXPONENTS_MAX.
    """
    if body.count(b"{") > JSON_OBJECTS_MAX or body.count(b",") > JSON_COMMAS_MAX or _has_many_exponents(body):
        raise PayloadTooLarge("The body holds too many values.", {"where": "body"})
    try:
        body.decode()
        request = _request.decode(body)
    except UnicodeDecodeError as error:
        raise unreadable(f"byte {error.start}", "it is not UTF-8") from None
    except RecursionError:
        raise unreadable("body", "it nests too deep") from None
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not an OTLP metrics request: {error}", {"where": _place(error)}) from None
    walk = Walk(memory)
    walk.read(request)
    zeros = np.zeros(len(walk.columns.found), np.int64)
    return walk.columns.points(zeros, zeros.copy(), np.zeros(len(zeros)))


def _has_many_exponents(body: bytes) -> bool:
    if len(body) <= _FEW_EXPONENTS or sum(map(body.count, _EXPONENTS)) <= JSON_EXPONENTS_MAX:
        return False
    return len(_LARGE_EXPONENT.findall(body)) > JSON_EXPONENTS_MAX


def _digest(attributes: Attributes) -> bytes:
    return blake2b(msgspec.msgpack.encode(attributes), digest_size=32).digest()


def _place(error: Exception) -> str:
    found = re.search(r"at `\$\.?(.*)`|\((byte \d+)\)", str(error))
    return (found[1] or found[2] or "body") if found else "body"


class Walk:
    """One request on its way into columns."""

    __slots__ = ("columns", "entries", "memory")

    def __init__(self, memory: Memory) -> None:
        self.memory, self.columns, self.entries = memory, Columns(memory.otlp), 0

    def _count_entry(self) -> None:
        self.entries += 1
        if self.entries > ENTRIES_MAX:
            raise too_many_entries()

    def read(self, request: Request) -> None:
        """Reads all."""
        for number, part in enumerate(request.resource_metrics or ()):
            self._count_entry()
            sender = texts_of(None if part.resource is None else part.resource.attributes)
            digest = b"" if isinstance(sender, Flaw) else _digest(sender)
            for place, library in enumerate(part.scope_metrics or ()):
                self._count_entry()
                origin = self._origin(sender, digest, library.scope or Scope())
                for at, metric in enumerate(library.metrics or ()):
                    self._count_entry()
                    where = f"resourceMetrics[{number}].scopeMetrics[{place}].metrics[{at}]"
                    self._read_metric(where, origin, metric)

    def _origin(self, attributes: Attributes | Flaw, digest: bytes, scope: Scope) -> Origin | Flaw:
        """`digest`: of the attributes, which may be long."""
        own = texts_of(scope.attributes)
        if isinstance(attributes, Flaw):
            return attributes
        if isinstance(own, Flaw):
            return own
        name, version = (scope.name or "").encode(), (scope.version or "").encode()
        key = msgspec.msgpack.encode((digest, name, version, own))
        known = self.memory.origins.get(key)
        if known is not None:
            return known
        origin = origin_of(attributes, name, version, own, self.columns.text)
        if isinstance(origin, Origin):
            self.memory.origins.put(key, origin)
        return origin

    def _read_metric(self, where: str, origin: Origin | Flaw, metric: JsonMetric) -> None:
        kinds: dict[Kind, Numbers | Histograms | Summaries | None] = {
            "gauge": metric.gauge,
            "sum": metric.sum,
            "histogram": metric.histogram,
            "exponentialHistogram": metric.exponential_histogram,
            "summary": metric.summary,
        }
        given = [(kind, content) for kind, content in kinds.items() if content is not None]
        if len(given) > 1:
            raise unreadable(where, "there is more than one kind of data")
        for kind, content in given:
            points = cast(Sequence[NumberDataPoint | HistogramDataPoint | Raw], content.data_points or ())
            self.columns.check_size(len(points))
            temporality = 0 if isinstance(content, Summaries) else content.aggregation_temporality or 0
            monotonic = isinstance(content, Numbers) and kind == "sum" and bool(content.is_monotonic)
            name, unit = (metric.name or "").encode(), (metric.unit or "").encode()
            described = metric_of(
                self.memory, origin, name, unit, kind, 0 if kind == "gauge" else temporality, monotonic
            )  # fmt: skip
            for number, point in enumerate(points):
                self._read_point(f"{where}.{kind}.dataPoints[{number}]", kind, described, point)

    def _read_point(
        self, where: str, kind: Kind, metric: Metric | Flaw, point: NumberDataPoint | HistogramDataPoint | Raw
    ) -> None:
        if isinstance(metric, Flaw) or isinstance(point, Raw):
            self.columns.refuse(where, metric if isinstance(metric, Flaw) else NO_VALUE)
            return
        series = self._series(where, metric, point.attributes)
        ts_ms, start_ms = (
            whole(spelled, where, 64) // 1_000_000 for spelled in (point.time_unix_nano, point.start_time_unix_nano)
        )
        absent = bool(whole(point.flags, where, 32) & NO_RECORDED_VALUE)
        value: float | None = None
        outcome: Histogram | Flaw | None = None
        if isinstance(point, NumberDataPoint):
            value = number_of(point, where)
            outcome = NO_VALUE if value is None and not absent else None
        else:
            outcome = distribution(kind, point, where)
        flaw = series if isinstance(series, Flaw) else outcome
        if isinstance(series, Flaw) or (isinstance(outcome, Flaw) and not absent):
            self.columns.refuse(where, flaw if isinstance(flaw, Flaw) else NO_VALUE)
            return
        self._note_trace(where, point.exemplars or [])
        if isinstance(point, NumberDataPoint):
            self.columns.add(series, ts_ms, start_ms, value or 0.0, absent)
        else:
            self.columns.add_histogram(
                series, ts_ms, start_ms, outcome if isinstance(outcome, Histogram) and not absent else None
            )  # fmt: skip

    def _series(self, where: str, metric: Metric, spelled: Raw) -> Series | Flaw:
        key = metric.prefix + b"j" + bytes(spelled)  # no attributes in protobuf begin so
        series = self.memory.otlp.get(key)
        if series is None:
            try:
                attributes = texts_of(_attributes.decode(spelled))
            except msgspec.DecodeError as error:
                raise BadRequest(f"{where}.attributes can't be read: {error}", {"where": where}) from None
            except RecursionError:
                raise unreadable(where, "attributes nest too deep") from None
            made = attributes if isinstance(attributes, Flaw) else series_of(metric, attributes, self.columns.text)
            return self.columns.remember(key, made) if isinstance(made, Series) else made
        return series

    def _note_trace(self, where: str, exemplars: list[Exemplar]) -> None:
        newest, trace = -1, ""
        for exemplar in exemplars:
            self.columns.exemplars += 1
            at = whole(exemplar.time_unix_nano, where, 64)
            try:
                found = trace_hex(binascii.unhexlify(exemplar.trace_id or ""))
            except ValueError:
                found = ""
            if at >= newest and found:
                newest, trace = at, found
        if trace:
            self.columns.traces[len(self.columns.found)] = trace


def whole(spelled: Int, where: str, bits: int, signed: bool = False) -> int:
    """The integer that a number or text spells; 0 for none. Raises BadRequest where it is none of so many bits."""
    if isinstance(spelled, str) and not _INTEGER.match(spelled):
        raise unreadable(where, "an integer is spelled wrong")
    try:
        value = 0 if spelled is None else int(spelled)
    except (ValueError, OverflowError):
        raise unreadable(where, "an integer is spelled wrong") from None
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    if not low <= value < high or (isinstance(spelled, float) and spelled != value):
        raise unreadable(where, "an integer is out of range")
    return value


def real(spelled: Float, where: str) -> float | None:
    """The number that a number or text spells; None for none. Raises BadRequest for other text."""
    if not isinstance(spelled, str):
        return spelled
    if spelled in _FLOATS:
        return _FLOATS[spelled]
    if not _DECIMAL.match(spelled):
        raise unreadable(where, "a number is spelled wrong")
    return float(spelled)


def number_of(point: NumberDataPoint, where: str) -> float | None:
    """The value of a gauge's or sum's point; None where it has none."""
    if point.as_int is not None:
        return float(whole(point.as_int, where, 64, signed=True))
    return real(point.as_double, where)


def distribution(kind: Kind, point: HistogramDataPoint, where: str) -> Histogram | Flaw:
    """The histogram of a point, or what is wrong with it."""
    extent = Extent.of(real(point.min, where), real(point.max, where))
    if kind == "histogram":
        if len(point.bucket_counts or ()) > BUCKETS_MAX or len(point.explicit_bounds or ()) > BUCKETS_MAX:
            return TOO_MANY_BUCKETS
        counts = [whole(count, where, 64) for count in point.bucket_counts or ()]
        bounds = [real(bound, where) or 0.0 for bound in point.explicit_bounds or ()]
        return explicit(counts, bounds, extent, whole(point.count, where, 64), real(point.sum, where))
    sides = []
    for side in (point.positive or Buckets(), point.negative or Buckets()):
        if len(side.bucket_counts or ()) > BUCKETS_MAX:
            return TOO_MANY_BUCKETS
        counts = [whole(count, where, 64) for count in side.bucket_counts or ()]
        sides.append(list(enumerate(counts, whole(side.offset, where, 32, signed=True))))
    scale, zero = whole(point.scale, where, 32, signed=True), whole(point.zero_count, where, 64)
    return exponential(scale, zero, sides[0], sides[1], real(point.zero_threshold, where) or 0.0, extent)


def texts_of(attributes: list[KeyValue] | None) -> Attributes | Flaw:
    """Names and texts of attributes."""
    found = []
    for one in attributes or ():
        value = plain(one.value, 0)
        if isinstance(value, Flaw):
            return value
        found.append(((one.key or "").encode(), text_of(value).encode()))
    return found


def plain(value: AnyValue | None, depth: int) -> Plain | Flaw:
    """The value of an attribute."""
    if value is None:
        return None
    if depth > NESTING_MAX:
        return TOO_DEEP
    if value.string_value is not None:
        return value.string_value
    if value.bool_value is not None:
        return value.bool_value
    if value.int_value is not None:
        return whole(value.int_value, "an attribute", 64, signed=True)
    if value.double_value is not None:
        return real(value.double_value, "an attribute")
    if value.bytes_value is not None:
        return _bytes_of(value.bytes_value)
    if value.array_value is not None:
        inner = [plain(one, depth + 1) for one in value.array_value.values or ()]
        flaw = next((one for one in inner if isinstance(one, Flaw)), None)
        return flaw or [one for one in inner if not isinstance(one, Flaw)]
    if value.kvlist_value is not None:
        named = {one.key or "": plain(one.value, depth + 1) for one in value.kvlist_value.values or ()}
        flaw = next((one for one in named.values() if isinstance(one, Flaw)), None)
        return flaw or {name: one for name, one in named.items() if not isinstance(one, Flaw)}
    return None


def _bytes_of(spelled: str) -> bytes:
    try:
        return base64.b64decode(spelled.translate(_URL_SAFE) + "=" * (-len(spelled) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise unreadable("an attribute", "bytes are not base64") from None


_URL_SAFE = str.maketrans("-_", "+/")
