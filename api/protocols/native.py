"""Native histograms of remote-write 1.0 and 2.0: the message `Histogram`, the same in both but for field 17.

https://prometheus.io/docs/specs/native_histograms/ . A float histogram is taken where all its counts are whole numbers.
The count of one of integers is that of its buckets; it may be more where the sum is NaN: some observations were NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan
from struct import Struct

import msgspec
import numpy as np

from api.protocols.bounds import BUCKETS_MAX, NATIVE_BUCKETS_MAX
from api.protocols.columns import STALE_BITS
from api.protocols.histograms import (
    BAD_COUNTS,
    FRACTIONS,
    MISMATCH,
    TOO_MANY_BUCKETS,
    explicit,
    explicit_cells,
    exponential,
)
from api.protocols.points import Histogram
from api.protocols.protobuf import Reader, cut_off, signed64, unreadable, zigzag32, zigzag64
from api.protocols.series import Flaw

CUSTOM = -53
"""The schema of buckets with bounds of their own."""
BAD_SPANS = Flaw("invalid_spans", "Spans of buckets must be as long as their counts, and must not overlap.")
BAD_TOTAL = Flaw("count_mismatch", "The histogram's count is not that of its buckets together.")
BAD_SCHEMA = Flaw("invalid_schema", f"Schemas are -4 to 8, and {CUSTOM} for custom buckets.")
FULL = Flaw("too_many_buckets", f"The request has more than {NATIVE_BUCKETS_MAX} buckets.")
_GAUGE, _MORE = 3, bytes(range(128, 256))
_double = Struct("<d").unpack_from
_bits = Struct("<q").unpack_from


class Native(msgspec.Struct):
    """One histogram as it was sent; `outcome` None where it is a stale marker."""

    ts_ms: int = 0
    start_ms: int = 0
    gauge: bool = False
    outcome: Histogram | Flaw | None = None


class _Side:
    """Buckets of one sign: spans of (gap before it, length), and counts. Of `deltas` some are packed: where those begin
    and end."""

    __slots__ = ("counts", "deltas", "spans")

    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []
        self.deltas: list[int | tuple[int, int]] = []
        self.counts: list[float] = []

    def cells(self, reader: Reader, floats: bool) -> list[tuple[int, int]] | Flaw:
        """Index and count of each bucket, ascending. Packed deltas are read once it is known that they are as many as
        there may be."""
        buckets = sum(length for _, length in self.spans)
        if buckets > BUCKETS_MAX or len(self.spans) > BUCKETS_MAX:
            return TOO_MANY_BUCKETS
        if not floats and sum(_numbers(reader, one) for one in self.deltas) != buckets:
            return BAD_SPANS
        if not reader.takes_buckets(buckets):
            return FULL
        counts: Sequence[int] | Flaw = _whole(self.counts) if floats else list(accumulate(self._deltas(reader)))
        if isinstance(counts, Flaw):
            return counts
        indices: list[int] = []
        at = 0
        for number, (gap, length) in enumerate(self.spans):
            if number and gap < 0:
                return BAD_SPANS
            at += gap
            indices += range(at, at + length)
            at += length
        if len(indices) != len(counts):
            return BAD_SPANS
        return list(zip(indices, counts, strict=True)) if min(counts, default=0) >= 0 else BAD_COUNTS

    def _deltas(self, reader: Reader) -> Iterator[int]:
        for one in self.deltas:
            yield from [one] if isinstance(one, int) else map(zigzag64, reader.varints(*one))


def _numbers(reader: Reader, deltas: int | tuple[int, int]) -> int:
    """How many there are: each ends with a byte below 128."""
    if isinstance(deltas, int):
        return 1
    begin, end = deltas
    return len(reader.data[begin:end].translate(None, _MORE))


def _whole(counts: Sequence[float]) -> list[int] | Flaw:
    """Counts of a float histogram, which must be whole numbers."""
    if not all(0 <= count <= 1 << 53 for count in counts):
        return BAD_COUNTS
    return [int(count) for count in counts] if all(map(float.is_integer, counts)) else FRACTIONS


def read_native(reader: Reader, begin: int, end: int) -> Native:
    """The histogram in data[begin:end]. Raises BadRequest where it can't be read, PayloadTooLarge beyond FIELDS_MAX."""
    data = reader.data
    native = Native()
    sides = {"+": _Side(), "-": _Side()}
    schema, threshold, total_sum, floats, zero, total = 0, 0.0, 0.0, False, 0.0, 0
    stale = False
    bounds: list[float] = []
    for tag, a, b in reader.fields(begin, end):
        if tag == 0x08 or tag == 0x11:
            floats, total = tag == 0x11, a
        elif tag == 0x19:
            total_sum, stale = _double(data, a)[0], _bits(data, a)[0] == STALE_BITS
        elif tag == 0x20:
            schema = zigzag32(a)
        elif tag == 0x29:
            threshold = _double(data, a)[0]
        elif tag == 0x30 or tag == 0x39:
            zero = a if tag == 0x30 else _double(data, a)[0]
        elif tag in _SIDED:
            _read_side(reader, sides[_SIDED[tag]], tag, a, b)
        elif tag == 0x70:
            native.gauge = a & 0xFFFF_FFFF == _GAUGE
        elif tag == 0x78:
            native.ts_ms = signed64(a)
        elif tag == 0x81 or tag == 0x82:
            bounds += read_doubles(reader, a, b)
        elif tag == 0x88:
            native.start_ms = signed64(a)
    if not stale:
        parts = _parts(reader, sides, floats, zero)
        native.outcome = parts if isinstance(parts, Flaw) else _outcome(schema, threshold, parts, bounds, total_sum)
        if isinstance(native.outcome, Histogram) and not floats and not _holds(native.outcome, total, total_sum):
            native.outcome = BAD_TOTAL
    return native


_SIDED = {
    0x42: "-", 0x48: "-", 0x4A: "-", 0x51: "-", 0x52: "-",
    0x5A: "+", 0x60: "+", 0x62: "+", 0x69: "+", 0x6A: "+",
}  # fmt: skip
"""Tags of spans, deltas and counts, packed or not."""


def _read_side(reader: Reader, side: _Side, tag: int, a: int, b: int) -> None:
    if tag in (0x42, 0x5A):
        gap = length = 0
        for inner, value, _ in reader.fields(a, b):
            if inner == 0x08:
                gap = zigzag32(value)
            elif inner == 0x10:
                length = value & 0xFFFF_FFFF
        side.spans.append((gap, length))
    elif tag in (0x48, 0x60):
        side.deltas.append(zigzag64(a))
    elif tag in (0x4A, 0x62):
        if b > a and reader.data[b - 1] > 127:
            raise cut_off(a)
        side.deltas.append((a, b))
    else:
        side.counts += read_doubles(reader, a, b)


def read_doubles(reader: Reader, a: int, b: int) -> list[float]:
    """Packed doubles. Raises BadRequest where the last is cut off."""
    if (b - a) % 8:
        raise unreadable(f"byte {a}", "packed numbers are cut off")
    reader.spend((b - a) // 8)
    found: list[float] = np.frombuffer(reader.data, "<f8", (b - a) // 8, a).tolist()
    return found


class _Parts(msgspec.Struct):
    positive: list[tuple[int, int]]
    negative: list[tuple[int, int]]
    zero: int


def _holds(histogram: Histogram, total: int, total_sum: float) -> bool:
    """Whether so many observations, of this sum, can be in its buckets."""
    counted = sum(histogram.numbers()[1])
    return counted == total or (counted < total and isnan(total_sum))


def _parts(reader: Reader, sides: dict[str, _Side], floats: bool, zero: float) -> _Parts | Flaw:
    positive, negative = sides["+"].cells(reader, floats), sides["-"].cells(reader, floats)
    zeros = _whole([float(zero)])
    for part in (positive, negative, zeros):
        if isinstance(part, Flaw):
            return part
    assert isinstance(positive, list)
    assert isinstance(negative, list)
    assert isinstance(zeros, list)
    return _Parts(positive, negative, zeros[0])


def _outcome(schema: int, threshold: float, parts: _Parts, bounds: list[float], total_sum: float) -> Histogram | Flaw:
    positive = parts.positive
    if schema == CUSTOM:
        if parts.negative or (positive and not 0 <= positive[0][0] <= positive[-1][0] <= len(bounds)):
            return MISMATCH
        if not bounds:
            return explicit([count for _, count in positive], bounds, total_sum=total_sum)
        return explicit_cells(positive, bounds)
    if not -4 <= schema <= 8:
        return BAD_SCHEMA
    up, down = ([(index - 1, count) for index, count in side] for side in (positive, parts.negative))
    return exponential(schema, parts.zero, up, down, threshold)
