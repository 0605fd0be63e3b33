"""OTLP metrics in protobuf: `ExportMetricsServiceRequest` to points.

A number's point is mostly its times and value (27 bytes, or 18 without a start) and its attributes, in the order of
their field numbers; an explicit histogram's its times, count and sum (36 bytes), counts, bounds, attributes, min, max.
So the attributes are looked up as a whole among the blocks that were walked before; everything else is walked field by
field. Both ways give the same points.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import cast

import numpy as np

from api.protocols.bounds import BUCKETS_MAX, ENTRIES_MAX, NESTING_MAX
from api.protocols.columns import Columns, too_many_entries
from api.protocols.filling import Filling, Histograms
from api.protocols.histograms import TOO_MANY_BUCKETS, Extent, explicit, exponential
from api.protocols.memory import Memory, Metric, Origin
from api.protocols.native import read_doubles
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
from api.protocols.protobuf import Reader, encode_block, signed64, unreadable, zigzag32
from api.protocols.series import NOT_UTF8, Flaw
from breaker_actors.core.model import Float64, Int64

Span = tuple[int, int]
Field = tuple[int, int, int]
_KINDS: dict[int, Kind] = {
    0x2A: "gauge", 0x3A: "sum", 0x4A: "histogram", 0x52: "exponentialHistogram", 0x5A: "summary",
}  # fmt: skip
_ATTRIBUTES: dict[Kind, int] = {"gauge": 0x3A, "sum": 0x3A, "histogram": 0x4A, "exponentialHistogram": 0x0A}
_EXEMPLARS: dict[Kind, int] = {"gauge": 0x2A, "sum": 0x2A, "histogram": 0x42, "exponentialHistogram": 0x5A}
NO_START = b"\x11" + bytes(8)
PLACEHOLDER = NO_START + b"\x19" + bytes(8) + b"\x21" + bytes(8)
"""Stands where a row is in the patches."""
_double = Struct("<d").unpack_from
_fixed = Struct("<Q").unpack_from
_signed = Struct("<q").unpack_from


def decode(body: bytes, memory: Memory, shortcut: bool = True) -> Points:
    """The points of a body. `shortcut`: False has everything walked field by field.

    Raises BadRequest where the message can't be read, PayloadTooLarge beyond POINTS_MAX, ENTRIES_MAX or FIELDS_MAX.
    """
    walk = Walk(body, memory, shortcut)
    walk.read()
    plain = walk.filling.blocks()
    if not all(block.is_right() for block in plain):
        return decode(body, memory, shortcut=False)
    ts_ms, start_ms, value = _numbers(walk.heads)
    for block in plain:
        (ts_ms[block.rows], start_ms[block.rows]), value[block.rows] = block.times_ms(), np.nan
    points = walk.columns.points(ts_ms, start_ms, value)
    if plain:
        points.histograms = Histograms(walk.columns.histograms, plain)
    return points


def _numbers(heads: list[bytes]) -> tuple[Int64, Int64, Float64]:
    """Time, start and value of each row from its first 27 bytes."""
    rows = np.frombuffer(b"".join(heads), np.uint8).reshape(-1, 27)
    start, time, value = (np.ascontiguousarray(rows[:, at : at + 8]).view("<u8").reshape(-1) for at in (1, 10, 19))
    number = np.where(rows[:, 18] == 0x31, value.view(np.int64).astype(np.float64), value.view(np.float64))
    return (time // 1_000_000).astype(np.int64), (start // 1_000_000).astype(np.int64), number


class Walk(Reader):
    """One request read field by field."""

    __slots__ = ("columns", "entries", "filling", "heads", "memory", "shortcut")

    def __init__(self, body: bytes, memory: Memory, shortcut: bool) -> None:
        super().__init__(body)
        self.memory, self.shortcut = memory, shortcut
        self.columns = Columns(memory.otlp)
        self.filling = Filling(body)
        self.heads: list[bytes] = []
        self.entries = 0

    def _count_entry(self) -> None:
        self.entries += 1
        if self.entries > ENTRIES_MAX:
            raise too_many_entries()

    def read(self) -> None:
        """Reads the request."""
        number = 0
        for tag, a, b in self.fields(0, len(self.data)):
            if tag == 0x0A:
                self._read_resource(f"resourceMetrics[{number}]", a, b)
                number += 1

    def _read_resource(self, where: str, begin: int, end: int) -> None:
        self._count_entry()
        parts, scopes = list[bytes](), list[Span]()
        for tag, a, b in self.fields(begin, end):
            if tag == 0x0A:
                parts.append(self.data[a:b])
            elif tag == 0x12:
                scopes.append((a, b))
        sender = Sender(b"".join(parts), self)
        for number, (a, b) in enumerate(scopes):
            self._count_entry()
            scope, metrics = list[bytes](), list[Span]()
            for tag, c, d in self.fields(a, b):
                if tag == 0x0A:
                    scope.append(self.data[c:d])
                elif tag == 0x12:
                    metrics.append((c, d))
            origin = sender.origin(self, b"".join(scope))
            for place, (c, d) in enumerate(metrics):
                self._read_metric(f"{where}.scopeMetrics[{number}].metrics[{place}]", origin, c, d)

    def _read_metric(self, where: str, origin: Origin | Flaw, begin: int, end: int) -> None:
        self._count_entry()
        data, name, unit = self.data, b"", b""
        kind, spans = 0, list[Span]()
        for tag, a, b in self.fields(begin, end):
            if tag == 0x0A:
                name = data[a:b]
            elif tag == 0x1A:
                unit = data[a:b]
            elif tag in _KINDS:
                if tag != kind:
                    kind, spans = tag, []
                spans.append((a, b))
        if not kind:
            return
        points, temporality, monotonic = list[Span](), 0, False
        for a, b in spans:
            some, behind = self.run(0x0A, a, b)
            points += some
            for tag, c, d in self.fields(behind, b):
                if tag == 0x0A:
                    points.append((c, d))
                elif tag == 0x10 and kind in (0x3A, 0x4A, 0x52):
                    temporality = c & 0xFFFF_FFFF
                elif tag == 0x18 and kind == 0x3A:
                    monotonic = c != 0
        self.columns.check_size(len(points))
        metric = metric_of(self.memory, origin, name, unit, _KINDS[kind], temporality, monotonic)
        where = f"{where}.{_KINDS[kind]}.dataPoints"
        if isinstance(metric, Flaw):
            for number in range(len(points)):
                self.columns.refuse(f"{where}[{number}]", metric)
        elif kind in (0x2A, 0x3A):
            self._read_numbers(where, metric, _KINDS[kind], points)
        elif kind == 0x4A and self.shortcut:
            self._read_explicit(where, metric, points)
        else:
            for number, (a, b) in enumerate(points):
                self._read_histogram(f"{where}[{number}]", metric, _KINDS[kind], a, b)

    def _read_numbers(self, where: str, metric: Metric, kind: Kind, points: list[Span]) -> None:
        data, prefix = self.data, metric.prefix
        add_series, add_head = self.columns.found.append, self.heads.append
        known = self.memory.otlp.young.get
        most = 27 if self.shortcut else len(data) + 1
        for number, (begin, end) in enumerate(points):
            if end - begin >= most and data[begin] == 0x11 and data[begin + 9] == 0x19:
                series = known(prefix + data[begin + 27 : end])
                if series is not None and (data[begin + 18] == 0x21 or data[begin + 18] == 0x31):
                    add_series(series)
                    add_head(data[begin : begin + 27])
                    continue
            elif end - begin >= most - 9 and data[begin] == 0x19:
                series = known(prefix + data[begin + 18 : end])
                if series is not None and (data[begin + 9] == 0x21 or data[begin + 9] == 0x31):
                    add_series(series)
                    add_head(NO_START + data[begin : begin + 18])
                    continue
            self._read_number(f"{where}[{number}]", metric, kind, begin, end)
            known = self.memory.otlp.young.get

    def _read_number(self, where: str, metric: Metric, kind: Kind, begin: int, end: int) -> None:
        start = time = flags = 0
        value: float | None = None
        fields = self.fields(begin, end)
        for tag, a, _ in fields:
            if tag == 0x21:
                value = _double(self.data, a)[0]
            elif tag == 0x31:
                value = float(_signed(self.data, a)[0])
            elif tag == 0x19:
                time = _fixed(self.data, a)[0]
            elif tag == 0x11:
                start = _fixed(self.data, a)[0]
            elif tag == 0x40:
                flags = a
        series = self._series(metric, kind, fields)
        absent = bool(flags & NO_RECORDED_VALUE)
        if isinstance(series, Flaw) or (value is None and not absent):
            self.columns.refuse(where, series if isinstance(series, Flaw) else NO_VALUE)
            return
        self._note_trace(kind, fields)
        self.columns.add(series, time // 1_000_000, start // 1_000_000, value or 0.0, absent)
        self.heads.append(PLACEHOLDER)

    def _series(self, metric: Metric, kind: Kind, fields: list[Field]) -> Series | Flaw:
        """The series of a point, by its attributes as a shortcut sees them."""
        own, data = _ATTRIBUTES[kind], self.data
        blocks = [
            data[a - 2 : b] if data[a - 1] == b - a and data[a - 2] == own else encode_block(own, data[a:b])
            for tag, a, b in fields
            if tag == own
        ]
        key = metric.prefix + b"".join(blocks)
        series = self.memory.otlp.get(key)
        if series is None:
            attributes = read_attributes(Reader(key[8:], self), own)
            made = attributes if isinstance(attributes, Flaw) else series_of(metric, attributes, self.columns.text)
            return self.columns.remember(key, made) if isinstance(made, Series) else made
        return series

    def _note_trace(self, kind: Kind, fields: list[Field]) -> None:
        """Counts the exemplars of the next row, and gives it the trace of the newest."""
        newest, trace = -1, ""
        own = _EXEMPLARS[kind]
        for tag, a, b in fields:
            if tag == own:
                self.columns.exemplars += 1
                at, name = 0, b""
                for inner, c, d in self.fields(a, b):
                    if inner == 0x11:
                        at = _fixed(self.data, c)[0]
                    elif inner == 0x2A:
                        name = self.data[c:d]
                if at >= newest and trace_hex(name):
                    newest, trace = at, trace_hex(name)
        if trace:
            self.columns.traces[len(self.columns.found)] = trace

    def _read_explicit(self, where: str, metric: Metric, points: list[Span]) -> None:
        """Reads explicit histograms. Those that seem to have the shape of the one before wait in `filling`, where all
        are looked at; a shape is found by the first that has it."""
        data, prefix, filling = self.data, metric.prefix, self.filling
        add_series = self.columns.found.append
        known = self.memory.otlp.young.get
        shape, size, tail, at_bounds, bounds = 0, 0, 0, 0, b"none yet"
        begun = 0  # the first of those in a row with this shape
        for number, (begin, end) in enumerate(points):
            series = known(prefix + data[begin + size : end - tail])
            if series is None or data[begin + at_bounds : begin + size] != bounds:
                self._add_plain(shape, points[begun:number])
                begun, series, plain = number, None, filling.shape(begin, end)
                if plain is not None:
                    shape, size, tail, at_bounds, bounds, _ = plain
                    series = known(prefix + data[begin + size : end - tail])
                if series is None:
                    begun = number + 1
                    self._read_histogram(f"{where}[{number}]", metric, "histogram", begin, end)
                    known = self.memory.otlp.young.get
                    continue
            add_series(series)
        self._add_plain(shape, points[begun:])

    def _add_plain(self, shape: int, points: list[Span]) -> None:
        """Notes the last rows as plain histograms of one shape."""
        if points:
            self.filling.add(shape, len(self.columns.found) - len(points), points)
            self.heads += [PLACEHOLDER] * len(points)

    def _read_histogram(self, where: str, metric: Metric, kind: Kind, begin: int, end: int) -> None:
        fields = self.fields(begin, end)
        point = _Distribution()
        if kind == "histogram":
            point.read_explicit(self, fields)
        else:
            point.read_exponential(self, fields)
        absent = bool(point.flags & NO_RECORDED_VALUE)
        series = self._series(metric, kind, fields)
        outcome = None if absent else point.outcome(kind, self)
        if isinstance(series, Flaw) or isinstance(outcome, Flaw):
            self.columns.refuse(where, series if isinstance(series, Flaw) else cast(Flaw, outcome))
            return
        self._note_trace(kind, fields)
        self.columns.add_histogram(series, point.time // 1_000_000, point.start // 1_000_000, outcome)
        self.heads.append(PLACEHOLDER)


class Sender:
    """The resource of a request's part; its scopes are looked up by a digest of it."""

    __slots__ = ("_attributes", "_digest", "_resource")

    def __init__(self, resource: bytes, walk: Walk) -> None:
        self._resource = resource
        self._digest = blake2b(resource, digest_size=32).digest()
        self._attributes: Attributes | Flaw | None = None

    def origin(self, walk: Walk, scope: bytes) -> Origin | Flaw:
        """The origin of this resource and a scope."""
        key = self._digest + scope
        known = walk.memory.origins.get(key)
        if known is not None:
            return known
        if self._attributes is None:
            self._attributes = read_attributes(Reader(self._resource, walk), 0x0A)
        library, name, version = Reader(scope, walk), b"", b""
        for tag, a, b in library.fields(0, len(scope)):
            if tag == 0x0A:
                name = scope[a:b]
            elif tag == 0x12:
                version = scope[a:b]
        own = read_attributes(library, 0x1A)
        if isinstance(self._attributes, Flaw):
            return self._attributes
        origin = own if isinstance(own, Flaw) else origin_of(self._attributes, name, version, own, walk.columns.text)
        if isinstance(origin, Origin):
            walk.memory.origins.put(key, origin)
        return origin


class _Flawed(Exception):
    """An attribute can't be taken."""

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(flaw)
        self.flaw = flaw


def read_attributes(reader: Reader, own: int) -> Attributes | Flaw:
    """Names and texts of the messages `KeyValue` that are the fields `own` of a whole message."""
    found = []
    try:
        for tag, a, b in reader.fields(0, len(reader.data)):
            if tag == own:
                name, value = _read_pair(reader, a, b, 0)
                found.append((name, text_of(value).encode() if not isinstance(value, _Text) else value))
    except _Flawed as error:
        return error.flaw
    return found


class _Text(bytes):
    """Text that is still to be looked at."""


def _read_pair(reader: Reader, begin: int, end: int, depth: int) -> tuple[bytes, Plain]:
    name, parts = b"", list[bytes]()
    for tag, a, b in reader.fields(begin, end):
        if tag == 0x0A:
            name = reader.data[a:b]
        elif tag == 0x12:
            parts.append(reader.data[a:b])
    return name, _read_value(Reader(b"".join(parts), reader), depth)


def _read_value(reader: Reader, depth: int) -> Plain:
    """The value of a whole message `AnyValue`: of its kinds the last; lists that come in parts are one."""
    if depth > NESTING_MAX:
        raise _Flawed(TOO_DEEP)
    kind, last, parts, data = 0, (0, 0), list[bytes](), reader.data
    for tag, a, b in reader.fields(0, len(data)):
        if tag in _VALUES:
            if tag != kind or tag not in _LISTS:
                kind, parts = tag, []
            if tag in _LISTS:
                parts.append(data[a:b])
            last = (a, b)
    a, b = last
    if kind == 0x0A:
        return _Text(data[a:b]) if depth == 0 else _decoded(data[a:b])
    if kind == 0x10:
        return a != 0
    if kind == 0x18:
        return signed64(a)
    if kind == 0x21:
        return float(_double(data, a)[0])
    if kind == 0x3A:
        return data[a:b]
    if kind in _LISTS:
        inner = Reader(b"".join(parts), reader)
        spans = [(c, d) for tag, c, d in inner.fields(0, len(inner.data)) if tag == 0x0A]
        if kind == 0x2A:
            return [_read_value(Reader(inner.data[c:d], reader), depth + 1) for c, d in spans]
        pairs = [_read_pair(inner, c, d, depth + 1) for c, d in spans]
        return {_decoded(name): value for name, value in pairs}
    return None


_LISTS = (0x2A, 0x32)
_VALUES = frozenset((0x0A, 0x10, 0x18, 0x21, *_LISTS, 0x3A, 0x40))


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise _Flawed(NOT_UTF8) from None


class _Distribution:
    """A histogram's point as it was sent."""

    __slots__ = (
        "bounds", "count", "counts", "flags", "high", "low", "negative", "positive", "scale", "start", "sum",
        "threshold", "time", "zero",
    )  # fmt: skip

    def __init__(self) -> None:
        self.start = self.time = self.flags = self.count = self.scale = self.zero = 0
        self.sum: float | None = None
        self.low: float | None = None
        self.high: float | None = None
        self.threshold = 0.0
        self.counts: list[int] = []
        self.bounds: list[float] = []
        self.positive: list[bytes] = []
        self.negative: list[bytes] = []

    def _read_common(self, data: bytes, fields: list[Field], low: int, high: int) -> dict[int, int]:
        """Reads what explicit and exponential histograms have under the same tag, and min and max. Gives where the
        last field of each tag is, or its value."""
        last = {tag: a for tag, a, _ in fields}
        self.start = _fixed(data, last[0x11])[0] if 0x11 in last else 0
        self.time = _fixed(data, last[0x19])[0] if 0x19 in last else 0
        self.count = _fixed(data, last[0x21])[0] if 0x21 in last else 0
        self.sum = _double(data, last[0x29])[0] if 0x29 in last else None
        self.low = _double(data, last[low])[0] if low in last else None
        self.high = _double(data, last[high])[0] if high in last else None
        self.flags = last.get(0x50, 0)
        return last

    def read_explicit(self, reader: Reader, fields: list[Field]) -> None:
        """Reads the fields of `HistogramDataPoint`."""
        self._read_common(reader.data, fields, 0x59, 0x61)
        for tag, a, b in fields:
            if tag == 0x32 or tag == 0x31:
                if (b - a) % 8:
                    raise unreadable(f"byte {a}", "packed numbers are cut off")
                reader.spend((b - a) // 8)
                self.counts += np.frombuffer(reader.data, "<u8", (b - a) // 8, a).tolist()
            elif tag == 0x3A or tag == 0x39:
                self.bounds += read_doubles(reader, a, b)

    def read_exponential(self, reader: Reader, fields: list[Field]) -> None:
        """Reads the fields of `ExponentialHistogramDataPoint`."""
        last = self._read_common(reader.data, fields, 0x61, 0x69)
        self.scale = zigzag32(last.get(0x30, 0))
        self.zero = _fixed(reader.data, last[0x39])[0] if 0x39 in last else 0
        self.threshold = _double(reader.data, last[0x71])[0] if 0x71 in last else 0.0
        self.positive = [reader.data[a:b] for tag, a, b in fields if tag == 0x42]
        self.negative = [reader.data[a:b] for tag, a, b in fields if tag == 0x4A]

    def outcome(self, kind: Kind, reader: Reader) -> Histogram | Flaw:
        """The histogram, or what is wrong with it."""
        extent = Extent.of(self.low, self.high)
        if kind == "histogram":
            return explicit(self.counts, self.bounds, extent, self.count, self.sum)
        positive, negative = (_read_buckets(Reader(b"".join(side), reader)) for side in (self.positive, self.negative))
        if isinstance(positive, Flaw):
            return positive
        return negative if isinstance(negative, Flaw) else exponential(
            self.scale, self.zero, positive, negative, self.threshold, extent
        )  # fmt: skip


def _read_buckets(reader: Reader) -> list[tuple[int, int]] | Flaw:
    """Index and count of each bucket in a whole message `Buckets`."""
    offset, counts = 0, list[int]()
    for tag, a, b in reader.fields(0, len(reader.data)):
        if tag == 0x08:
            offset = zigzag32(a)
        elif tag == 0x12:
            counts += reader.varints(a, b)
        elif tag == 0x10:
            counts.append(a)
    return TOO_MANY_BUCKETS if len(counts) > BUCKETS_MAX else list(enumerate(counts, offset))
