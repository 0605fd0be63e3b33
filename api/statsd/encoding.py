"""Points as OTLP requests in protobuf: `ExportMetricsServiceRequest` of opentelemetry-proto's metrics.proto. Pure.

Each distinct value of a timing is a histogram of its own with min == max == value: the receiver keeps it exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec

from api.protocols.protobuf import encode_block
from api.statsd.lines import Form, Kind

POINTS_MAX = 8192
"""Points of a request."""
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
    """One request, and how many points it has."""

    body: bytes
    points: int


def wire_of(form: Form) -> Wire:
    """The encoded parts of a series."""
    tag = 0x4A if form.kind == "timing" else 0x3A
    pairs = (
        encode_block(0x0A, name.encode()) + encode_block(0x12, encode_block(0x0A, value.encode()))
        for name, value in form.tags
    )
    name = encode_block(0x0A, form.name.encode())
    return Wire(form.kind, name, b"".join(encode_block(tag, pair) for pair in pairs))


class Encoder:
    """Fills requests with the points of one flush.

    A receiver may know a request that is sent again by its body. So that no other one is taken for it, `salt`, two
    numbers below NS_PER_MS that are drawn anew for each flush, stands within the milliseconds of all times.
    """

    def __init__(self, start_ms: int, now_ms: int, salt: tuple[int, int]) -> None:
        self._start, self._now = start_ms * NS_PER_MS + salt[0], now_ms * NS_PER_MS + salt[1]
        self._salt = salt[1]
        self._metrics: list[bytes] = []
        self._points = 0

    def add(self, wire: Wire, points: list[Point]) -> Iterator[Request]:
        """Adds points of one series; gives the requests that are full."""
        encode = self._timing if wire.kind == "timing" else self._number
        while points:
            room = POINTS_MAX - self._points
            now, points = points[:room], points[room:]
            blocks = b"".join(encode_block(0x0A, encode(wire, point)) for point in now)
            content = encode_block(_KINDS[wire.kind], blocks + _TAILS[wire.kind])
            self._metrics.append(encode_block(0x12, wire.name + content))
            self._points += len(now)
            if self._points == POINTS_MAX:
                yield from self.rest()

    def rest(self) -> Iterator[Request]:
        """The last request, if it has any points."""
        if self._points:
            scope = b"".join(self._metrics)
            yield Request(encode_block(0x0A, encode_block(0x12, scope)), self._points)
        self._metrics, self._points = [], 0

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
