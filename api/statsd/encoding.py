"""Points as OTLP requests in protobuf: `ExportMetricsServiceRequest` of opentelemetry-proto's metrics.proto. Pure.

Each distinct value of a timing is a histogram of its own with min == max == value: the receiver keeps it exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct

import msgspec

from api.protocols.protobuf import Reader, encode_block
from api.statsd.lines import Form, Kind

POINTS_MAX = 8192
"""Points of a request."""
BYTES_MAX = 1 << 19
"""Bytes of a request's body, before gzip: half of what the service takes however well it shrinks
(`api.admission.inflate.INFLATED_FREE`), so nobody's points can have those of others refused with them."""
WEIGHTS, POINT_BYTES = (1 << 9, 1 << 12, 1 << 15, 1 << 18), 64
"""A series weighs 0 to 4 in a flush, by the most that its points take, with their attributes and so much each. Series
of each weight have requests of their own: nobody can tell senders apart, but what few lines with long tags and many
values make is no reason to delay or lose what others send."""
METRIC_BYTES = 12
"""What a metric takes at most beside its name and points, and a request beside its metrics: tags and sizes."""
NS_PER_MS, NS_PER_S = 1_000_000, 1_000_000_000
_KINDS: dict[Kind, int] = {"counter": 0x3A, "gauge": 0x2A, "set": 0x2A, "timing": 0x4A}
_TAILS: dict[Kind, bytes] = {"counter": b"\x10\x01\x18\x01", "gauge": b"", "set": b"", "timing": b"\x10\x01"}
"""Delta, and monotonic."""
_number = Struct("<BQBQBd").pack
_head = Struct("<BQBQBQBd").pack
_extent = Struct("<BdBd").pack


class Point(msgspec.Struct, frozen=True):
    """A value and how often it was observed; `count` is 1 but for timings. `time_s`: None: at the flush."""

    value: float
    count: int = 1
    time_s: int | None = None


class Wire(msgspec.Struct, frozen=True):
    """What all points of a series share, encoded."""

    kind: Kind
    name: bytes
    attributes: bytes


class Request(msgspec.Struct, frozen=True):
    """One request, and how many points it has. `weight`: of each of its series, see WEIGHTS. `is_part`: it is a part of
    one that was refused as a whole."""

    body: bytes
    points: int
    weight: int = 0
    is_part: bool = False


def wire_of(form: Form) -> Wire:
    """The encoded parts of a series."""
    tag = 0x4A if form.kind == "timing" else 0x3A
    pairs = (
        encode_block(0x0A, name.encode()) + encode_block(0x12, encode_block(0x0A, value.encode()))
        for name, value in form.tags
    )
    name = encode_block(0x0A, form.name.encode())
    return Wire(form.kind, name, b"".join(encode_block(tag, pair) for pair in pairs))


def halves(request: Request) -> list[Request]:
    """A request's metrics as two requests; none where it has a single one."""
    reader = Reader(request.body)
    begin, end = 0, len(request.body)
    for _ in range(2):
        ((_, begin, end),) = reader.fields(begin, end)
    metrics = reader.fields(begin, end)
    if len(metrics) < 2:
        return []
    middle = metrics[len(metrics) // 2 - 1][2]
    points = sum(
        tag == 0x0A
        for _, a, b in metrics[: len(metrics) // 2]
        for kind, c, d in reader.fields(a, b)
        if kind != 0x0A
        for tag, _, _ in reader.fields(c, d)
    )
    return [
        Request(_body(request.body[begin:middle]), points, request.weight, True),
        Request(_body(request.body[middle:end]), request.points - points, request.weight, True),
    ]


def _body(metrics: bytes) -> bytes:
    """The request that has these metrics."""
    return encode_block(0x0A, encode_block(0x12, metrics))


class _Filling:
    """A request that is being filled: its metrics, points, and bytes at most."""

    __slots__ = ("bytes", "metrics", "points", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.metrics: list[bytes] = []
        self.points, self.bytes = 0, METRIC_BYTES

    def close(self, wire: Wire, blocks: list[bytes]) -> None:
        """Ends a metric with these points."""
        if blocks:
            content = encode_block(_KINDS[wire.kind], b"".join(blocks) + _TAILS[wire.kind])
            self.metrics.append(encode_block(0x12, wire.name + content))

    def rest(self) -> Iterator[Request]:
        """What is there, if anything is, as a request; then it begins anew."""
        if self.points:
            yield Request(_body(b"".join(self.metrics)), self.points, self.weight)
        self.metrics, self.points, self.bytes = [], 0, METRIC_BYTES


class Encoder:
    """Fills requests with the points of one flush.

    A receiver may know a request that is sent again by its body. So that no other one is taken for it, `salt`, two
    numbers below NS_PER_MS that are drawn anew for each flush, stands within the milliseconds of all times.
    """

    def __init__(self, start_ms: int, now_ms: int, salt: tuple[int, int]) -> None:
        self._start, self._now = start_ms * NS_PER_MS + salt[0], now_ms * NS_PER_MS + salt[1]
        self._salt = salt[1]
        self._fillings = [_Filling(weight) for weight in range(len(WEIGHTS) + 1)]

    def add(self, wire: Wire, points: list[Point]) -> Iterator[Request | None]:
        """Adds points of one series; gives the requests that are full, and None after each point."""
        encode = self._timing if wire.kind == "timing" else self._number
        filling = self._fillings[bisect_left(WEIGHTS, len(points) * (POINT_BYTES + len(wire.attributes)))]
        least = METRIC_BYTES + len(wire.name)
        blocks: list[bytes] = []
        for point in points:
            block = encode_block(0x0A, encode(wire, point))
            size = len(block) if blocks else least + len(block)
            if filling.points == POINTS_MAX or filling.bytes + size > BYTES_MAX:
                filling.close(wire, blocks)
                yield from filling.rest()
                blocks, size = [], least + len(block)
            blocks.append(block)
            filling.points += 1
            filling.bytes += size
            yield None
        filling.close(wire, blocks)

    def rest(self) -> Iterator[Request]:
        """The last requests, if they have any points."""
        for filling in self._fillings:
            yield from filling.rest()

    def _number(self, wire: Wire, point: Point) -> bytes:
        start, at = self._times(point)
        return _number(0x11, start, 0x19, at, 0x21, point.value) + wire.attributes

    def _timing(self, wire: Wire, point: Point) -> bytes:
        start, at = self._times(point)
        head = _head(0x11, start, 0x19, at, 0x21, point.count, 0x29, point.value * point.count)
        return b"".join((head, wire.attributes, _extent(0x59, point.value, 0x61, point.value)))

    def _times(self, point: Point) -> tuple[int, int]:
        if point.time_s is None:
            return self._start, self._now
        return 0, point.time_s * NS_PER_S + self._salt
