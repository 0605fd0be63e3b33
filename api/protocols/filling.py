"""Explicit histograms of one OTLP request that are spelled plainly, worked out together: what `histograms.filled` does
for each.

A plain one has all its fields in the order of their numbers, and no exemplars: start, time, count and sum (36 bytes),
counts and bounds; then attributes; then min and max (18 bytes), or neither. Neighbours mostly have the same shape: the
same number of counts, the same bounds, min and max or none. So a point is asked only for the bytes of its bounds and
attributes while it is read; that all others stand where the shape has them is looked at for all points of the shape at
once. Values are worked out for blocks of which somebody asks for a histogram: of most series no mapping does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from api.protocols.bounds import BUCKETS_MAX
from api.protocols.histograms import COUNT_MAX, Scheme, packed_scheme
from api.protocols.points import Histogram
from api.protocols.protobuf import encode_varint
from breaker_actors.core.model import Float64, Int64

_HEAD = b"\x11\x19\x21\x29\x32"
"""Tags of start, time, count, sum and counts, nine bytes apart."""
_TAIL = b"\x59\x61"
"""Tags of min and max, nine bytes apart."""
_COUNTS = [b"\x32" + encode_varint(8 * number) for number in range(BUCKETS_MAX + 1)]
_BOUNDS = [b"\x3a" + encode_varint(8 * number) for number in range(BUCKETS_MAX + 1)]
"""What stands before so many packed counts, or bounds."""
_AT_ONCE = 1 << 13
"""Buckets of a block, worked out at a time, in half a millisecond."""
SHAPES_MAX = 100
"""Shapes of a request, each looked at by itself; histograms of more are read field by field."""


class Shape(NamedTuple):
    """How points are spelled: `size` bytes, of which those from `at_bounds` on are `bounds` with tag and size;
    attributes; `tail` bytes. `number`: its place in the request's list."""

    number: int
    size: int
    tail: int
    at_bounds: int
    bounds: bytes
    scheme: Scheme


class Filling:
    """Plain histograms of a body by their shapes, which wait for somebody to ask for their values."""

    __slots__ = ("_blocks", "_body", "_known", "_rows", "_shapes", "_spans")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._known: dict[tuple[bytes, int], Shape | None] = {}
        self._shapes: list[Shape] = []
        self._rows: list[list[int]] = []
        self._spans: list[list[tuple[int, int]]] = []
        self._blocks: list[Block] = []

    def shape(self, begin: int, end: int) -> Shape | None:
        """The shape of the point in body[begin:end], which has at least one bound; None where it is not plain, or the
        request has too many."""
        body = self._body
        if end - begin < 64 or body[begin : begin + 37 : 9] != _HEAD:
            return None
        size, at = body[begin + 37], begin + 38
        if size > 127:
            size, at = size & 127 | body[at] << 7, at + 1
        buckets = size >> 3
        if size & 7 or not 1 < buckets <= BUCKETS_MAX or at - begin != 36 + len(_COUNTS[buckets]):
            return None
        head = _BOUNDS[buckets - 1]
        rest = at + 8 * buckets + len(head) + 8 * (buckets - 1)
        bounds = body[at + 8 * buckets : rest]
        if rest > end or not bounds.startswith(head):
            return None
        tail = 18 if end - rest >= 18 and body[end - 18 : end : 9] == _TAIL else 0
        return self._shape(rest - begin, tail, bounds, len(head))

    def _shape(self, size: int, tail: int, bounds: bytes, head: int) -> Shape | None:
        if (bounds, tail) not in self._known:
            if len(self._known) == SHAPES_MAX:
                return None
            scheme = packed_scheme(bounds[head:])
            shape = None
            if isinstance(scheme, Scheme):
                shape = Shape(len(self._shapes), size, tail, size - len(bounds), bounds, scheme)
                self._shapes.append(shape)
                self._rows.append([])
                self._spans.append([])
            self._known[bounds, tail] = shape
        return self._known[bounds, tail]

    def add(self, shape: int, row: int, spans: list[tuple[int, int]]) -> None:
        """Points from a row on that seem to be of a shape: where each begins and ends. Their bounds are those of the
        shape."""
        self._rows[shape] += range(row, row + len(spans))
        self._spans[shape] += spans

    def blocks(self) -> list[Block]:
        """All of them, once they are added."""
        if not self._blocks:
            for shape, rows, spans in zip(self._shapes, self._rows, self._spans, strict=True):
                of = np.array(rows, np.int64)
                where = np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans)).reshape(-1, 2)
                step = _AT_ONCE // len(shape.scheme.middles)
                for a in range(0, len(of), step):
                    self._blocks.append(Block(self._body, shape, of[a : a + step], where[a : a + step]))
        return self._blocks


class Block:
    """Plain histograms of one shape. `rows`: theirs, ascending."""

    __slots__ = ("_begin", "_body", "_end", "_shape", "rows")

    def __init__(self, body: bytes, shape: Shape, rows: Int64, spans: Int64) -> None:
        self._body, self._shape, self.rows = body, shape, rows
        self._begin, self._end = spans[:, 0], spans[:, 1]

    def has(self, row: int) -> bool:
        """Whether a row is among them."""
        place = np.searchsorted(self.rows, row)
        return bool(place < len(self.rows) and self.rows[place] == row)

    def _bytes(self, at: Int64, size: int) -> bytes:
        """So many bytes at each place, one after the other."""
        return np.ndarray(len(self._body) - size + 1, f"V{size}", self._body, strides=(1,))[at].tobytes()

    def _words(self, at: Int64) -> Int64:
        """The number at each place."""
        return np.frombuffer(self._bytes(at, 8), "<u8")

    def is_right(self) -> bool:
        """Whether all have the tags and sizes of their shape, and counts of at most COUNT_MAX. Bounds and attributes
        are compared already."""
        shape, n = self._shape, len(self.rows)
        if (self._begin + (shape.size + shape.tail) > self._end).any():
            return False
        head = _COUNTS[len(shape.scheme.middles)]
        tags = np.frombuffer(self._bytes(self._begin, 37), np.uint8).reshape(n, -1)[:, ::9]
        return bool(
            tags.tobytes() == _HEAD * n
            and self._bytes(self._begin + 36, len(head)) == head * n
            and (not shape.tail or self._tails()[:, ::9].tobytes() == _TAIL * n)
            and self._counts().max() <= COUNT_MAX
        )

    def _counts(self) -> Any:
        """The counts of each."""
        buckets = len(self._shape.scheme.middles)
        at = self._begin + (self._shape.at_bounds - 8 * buckets)
        return np.frombuffer(self._bytes(at, 8 * buckets), "<u8").reshape(-1, buckets)

    def _tails(self) -> Any:
        return np.frombuffer(self._bytes(self._end - 18, 18), np.uint8).reshape(-1, 18)

    def times_ms(self) -> tuple[Int64, Int64]:
        """Time and start of each."""
        time, start = ((self._words(self._begin + at) // 1_000_000).astype(np.int64) for at in (10, 1))
        return time, start

    def histograms(self) -> list[Histogram]:
        """All of them, in order."""
        counts, layout = self._counts(), self._shape.scheme.layout
        full = counts > 0
        of, number = full.nonzero()
        ends = (8 * np.cumsum(np.count_nonzero(full, axis=1))).tolist()
        value, count, bucket = self._values(of, number).tobytes(), counts[full].tobytes(), number.tobytes()
        return [Histogram(value[a:b], count[a:b], layout, bucket[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def _values(self, of: Int64, number: Int64) -> Float64:
        """What stands for each bucket, by the number of its histogram and its own."""
        scheme = self._shape.scheme
        low, high = (limit[of] for limit in self._extents())
        lower, upper = scheme.lower[number], scheme.upper[number]
        values: Float64 = np.array(scheme.middles)[number]
        clipped = np.flatnonzero(~((lower >= low) & (upper <= high)))
        values[clipped] = _clipped(lower[clipped], upper[clipped], low[clipped], high[clipped])
        return values

    def _extents(self) -> tuple[Float64, Float64]:
        """Min and max of each, infinite where they are not numbers in order; see `Extent`."""
        if not self._shape.tail:
            return np.full(len(self.rows), -np.inf), np.full(len(self.rows), np.inf)
        low, high = (self._words(self._end - behind).view("<f8") for behind in (17, 8))
        low = np.where(np.isfinite(low), low, -np.inf)
        high = np.where(np.isfinite(high), high, np.inf)
        ordered = low <= high
        return np.where(ordered, low, -np.inf), np.where(ordered, high, np.inf)


def _clipped(lower: Float64, upper: Float64, low: Float64, high: Float64) -> Float64:
    """What stands for buckets that are not all within the limits, or have no bound below or above (NaN)."""
    above = np.where(np.isnan(upper), np.where(high < np.inf, high, lower), upper)
    beneath = np.where(low > -np.inf, low, np.where(above < 0, above, 0.0))
    below = np.where(np.isnan(lower), beneath, lower)
    mean = np.where(below > low, below, low) / 2 + np.where(above < high, above, high) / 2
    return np.where(mean < low, low, np.where(mean > high, high, mean))


class Histograms(Mapping[int, Histogram]):
    """All histograms of a request by row: those in `made`, and plain ones, which come into it block by block."""

    __slots__ = ("_made", "_waiting")

    def __init__(self, made: dict[int, Histogram], plain: list[Block]) -> None:
        self._made, self._waiting = made, dict(enumerate(plain))

    def get(self, row: int, default: Any = None) -> Any:
        """The histogram of a row."""
        made = self._made.get(row)
        return super().get(row, default) if made is None else made

    def __getitem__(self, row: int) -> Histogram:
        if row not in self._made:
            which = next((number for number, block in self._waiting.items() if block.has(row)), None)
            if which is None:
                raise KeyError(row)
            block = self._waiting.pop(which)
            self._made.update(zip(block.rows.tolist(), block.histograms(), strict=True))
        return self._made[row]

    def __iter__(self) -> Iterator[int]:
        waiting = (block.rows.tolist() for block in self._waiting.values())
        return iter(sorted(chain(self._made, *waiting)))

    def __len__(self) -> int:
        return len(self._made) + sum(len(block.rows) for block in self._waiting.values())
