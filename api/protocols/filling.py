"""Explicit histograms of one OTLP request that are spelled plainly, worked out together: what `histograms.filled` does
for each.

A plain one has all its fields in the order of their numbers, and no exemplars: start, time, count and sum (36 bytes),
counts and bounds; then attributes; then min and max (18 bytes), or neither. Neighbours mostly have the same shape: the
same number of counts, the same bounds, min and max or none. So a point is asked only for the bytes of its bounds and
attributes while it is read; that all others stand where the shape has them is looked at for all points at once. Values
are worked out for blocks of which somebody asks for a histogram: of most series no mapping does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
_HEAD_AT, _HEAD_TAGS = np.arange(0, 36, 9), np.frombuffer(_HEAD[:4], np.uint8)
_TAIL_BEFORE, _TAIL_TAGS = np.array((18, 9)), np.frombuffer(_TAIL, np.uint8)
_AT_ONCE = 1 << 13
"""Buckets of a block, worked out at a time, in half a millisecond."""


Words = npt.NDArray[np.uint64]


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
    """Plain histograms of a body, which wait for somebody to ask for their values.

    For each: `rows` has its row, ascending, `begins` and `ends` where it is, `shapes` the number of its shape.
    """

    __slots__ = ("_body", "_known", "_list", "begins", "ends", "rows", "shapes")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._known: dict[tuple[bytes, int], Shape | None] = {}
        self._list: list[Shape] = []
        self.rows: list[int] = []
        self.begins: list[int] = []
        self.ends: list[int] = []
        self.shapes: list[int] = []

    def shape(self, begin: int, end: int) -> Shape | None:
        """The shape of the point in body[begin:end], which has at least one bound; None where it is not plain."""
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
            scheme = packed_scheme(bounds[head:])
            shape = (
                Shape(len(self._list), size, tail, size - len(bounds), bounds, scheme)
                if isinstance(scheme, Scheme)
                else None
            )
            self._known[bounds, tail] = shape
            self._list += [] if shape is None else [shape]
        return self._known[bounds, tail]

    def are_right(self) -> bool:
        """Whether all are what they look like, and their counts such as histograms have."""
        return all(self.block(a, b).is_right() for a, b in pairwise(self.blocks()))

    def blocks(self) -> list[int]:
        """Where each block begins, and the last one ends."""
        buckets = np.array([len(shape.scheme.middles) for shape in self._list], np.int64)
        number = np.cumsum(buckets[self.shapes]) // _AT_ONCE
        return [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)] if self.rows else []

    def block(self, a: int, b: int) -> Block:
        """Those from one number to another."""
        numbers = np.array(self.shapes[a:b])
        own = np.flatnonzero(np.bincount(numbers))
        shapes, which = [self._list[number] for number in own.tolist()], np.searchsorted(own, numbers)
        return Block(self._body, shapes, which, np.array(self.begins[a:b]), np.array(self.ends[a:b]))


class Block:
    """Plain histograms that are neighbours. `which`: of `shapes`, for each; `since`, `until`: the first of its counts
    among those of all, and the first behind."""

    __slots__ = ("begin", "body", "end", "shapes", "since", "sizes", "until", "which", "words")

    def __init__(self, body: bytes, shapes: list[Shape], which: Int64, begin: Int64, end: Int64) -> None:
        self.body, self.words = np.frombuffer(body, np.uint8), np.ndarray(len(body) - 7, "<u8", body, strides=(1,))
        self.shapes, self.which, self.begin, self.end = shapes, which, begin, end
        self.sizes = np.array([len(shape.scheme.middles) for shape in shapes])
        self.until = np.cumsum(self.sizes[which])
        self.since = self.until - self.sizes[which]

    def is_right(self) -> bool:
        """Whether all have the tags and sizes of their shapes, and counts of at most COUNT_MAX. Bounds and attributes
        are compared already."""
        size, tail = (np.array([shape[at] for shape in self.shapes])[self.which] for at in (1, 2))
        heads = [_COUNTS[len(shape.scheme.middles)] for shape in self.shapes]
        head = np.array([int.from_bytes(spelled, "little") for spelled in heads], np.uint64)[self.which]
        mask = np.array([(1 << 8 * len(spelled)) - 1 for spelled in heads], np.uint64)[self.which]
        tailed = self.end[tail > 0]
        return bool(
            (self.begin + size + tail <= self.end).all()
            and (self.body[self.begin[:, None] + _HEAD_AT] == _HEAD_TAGS).all()
            and (self.words[self.begin + 36] & mask == head).all()
            and (self.body[tailed[:, None] - _TAIL_BEFORE] == _TAIL_TAGS).all()
            and self._counts().max() <= COUNT_MAX
        )

    def _counts(self) -> Words:
        """The counts of all, one after the other."""
        at_bounds = np.array([shape.at_bounds for shape in self.shapes])
        first = self.begin + (at_bounds - 8 * self.sizes)[self.which]
        counts: Words = self.words[
            np.repeat(first - 8 * self.since, self.until - self.since) + 8 * np.arange(self.until[-1])
        ]
        return counts

    def histograms(self) -> Iterator[Histogram]:
        """All of them, in order."""
        counts = self._counts()
        full = np.flatnonzero(counts)
        of = np.searchsorted(self.until, full, "right")
        number = full - self.since[of]
        low, high = self._extents()
        values = self._values(self.which[of], number, low[of], high[of])
        ends = np.searchsorted(of, np.arange(len(self.which)), "right").tolist()
        value, count, bucket = (tuple(part.tolist()) for part in (values, counts[full].astype(np.int64), number))
        for which, (a, b) in zip(self.which.tolist(), pairwise((0, *ends)), strict=True):
            yield Histogram(value[a:b], count[a:b], self.shapes[which].scheme.layout, bucket[a:b])

    def _extents(self) -> tuple[Float64, Float64]:
        """Min and max of each, infinite where they are not numbers in order; see `Extent`."""
        tailed = np.array([shape.tail > 0 for shape in self.shapes])[self.which]
        low, high = self.words[self.end - 17].view("<f8"), self.words[self.end - 8].view("<f8")
        low = np.where(tailed & np.isfinite(low), low, -np.inf)
        high = np.where(tailed & np.isfinite(high), high, np.inf)
        ordered = low <= high
        return np.where(ordered, low, -np.inf), np.where(ordered, high, np.inf)

    def _values(self, which: Int64, number: Int64, low: Float64, high: Float64) -> Float64:
        """What stands for each bucket, by shape, its own number and the limits of its histogram."""
        at = (np.cumsum(self.sizes) - self.sizes)[which] + number
        lower, upper, middle = (
            np.concatenate([getattr(shape.scheme, edge) for shape in self.shapes])[at]
            for edge in ("lower", "upper", "middles")
        )
        clipped = np.flatnonzero(~((lower >= low) & (upper <= high)))
        middle[clipped] = _clipped(lower[clipped], upper[clipped], low[clipped], high[clipped])
        values: Float64 = middle
        return values


def _clipped(lower: Float64, upper: Float64, low: Float64, high: Float64) -> Float64:
    """What stands for buckets that are not all within the limits, or have no bound below or above (NaN)."""
    above = np.where(np.isnan(upper), np.where(high < np.inf, high, lower), upper)
    beneath = np.where(low > -np.inf, low, np.where(above < 0, above, 0.0))
    below = np.where(np.isnan(lower), beneath, lower)
    mean = np.where(below > low, below, low) / 2 + np.where(above < high, above, high) / 2
    return np.where(mean < low, low, np.where(mean > high, high, mean))


class Histograms(Mapping[int, Histogram]):
    """All histograms of a request by row: those in `made`, and plain ones, which come into it block by block."""

    __slots__ = ("_blocks", "_filling", "_made", "_plain")

    def __init__(self, made: dict[int, Histogram], filling: Filling) -> None:
        self._made, self._filling, self._plain = made, filling, filling.rows
        self._blocks = filling.blocks()

    def get(self, row: int, default: Any = None) -> Any:
        """The histogram of a row."""
        made = self._made.get(row)
        return super().get(row, default) if made is None else made

    def __getitem__(self, row: int) -> Histogram:
        if row not in self._made:
            place = bisect_left(self._plain, row)
            if place == len(self._plain) or self._plain[place] != row:
                raise KeyError(row)
            block = bisect_right(self._blocks, place)
            a, b = self._blocks[block - 1 : block + 1]
            self._made.update(zip(self._plain[a:b], self._filling.block(a, b).histograms(), strict=True))
        return self._made[row]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._made, *self._plain}))

    def __len__(self) -> int:
        return len({*self._made, *self._plain})
