"""The buffers of one batch: each lies within its message, is inflated within the request's budget, and is long enough
for the rows that are said to be in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import numpy.typing as npt

from api.arrow.flatbuffer import Table, broken
from api.arrow.schema import BUFFERS, LARGE_UTF8, NULL, UTF8_VIEW, VIEWS, Kind
from api.arrow.texts import Bytes, Strings
from breaker_actors.core.model import Flags, Int64
from breaker_actors.errors import BadRequest, PayloadTooLarge

_INFLATE: tuple[Callable[[Any, Any], int], ...] = (cramjam.lz4.decompress_into, cramjam.zstd.decompress_into)
_SIZE = 8
_INLINE = 12
"""Views of texts of up to so many bytes hold them themselves."""


class Budget:
    """Bytes that buffers of one request may have after they were inflated."""

    def __init__(self, bytes_max: int) -> None:
        self._max = self._left = bytes_max

    def spend(self, n: int, where: str) -> None:
        """Raises PayloadTooLarge beyond it."""
        self._left -= n
        if self._left < 0:
            raise PayloadTooLarge(f"The columns hold more than {self._max} bytes.", {"where": where})


class Batch:
    """A batch of rows, whose columns are read or passed over in their order. Everything raises BadRequest for what is
    broken, and PayloadTooLarge beyond the budget."""

    def __init__(self, table: Table, body: memoryview, budget: Budget) -> None:
        self.where = table.where
        self.rows = table.int64(0)
        self._body, self._budget = body, budget
        self._nodes, self._buffers = table.int64s(1, 2), table.int64s(2, 2)
        # One after the other, as the format has them: else a few bytes could stand for many.
        if np.maximum(self._buffers[:, 1], 0).sum(dtype=np.float64) > len(body):
            raise broken("buffers of a batch overlap.", self.where)
        self._variadic = table.int64s(4)[:, 0]
        self._codec = self._codec_of(table.table(3))
        self._node = self._buffer = self._views = 0
        if self.rows < 0:
            raise broken("a batch has a negative number of rows.", self.where)

    def _codec_of(self, table: Table | None) -> int | None:
        if table is None:
            return None
        codec = table.int8(0)
        if codec >= len(_INFLATE) or table.int8(1):
            raise broken("it is compressed in a way that is not known: lz4 and zstd are.", self.where)
        return codec

    # -- columns, in order

    def skip(self, kind: Kind) -> None:
        """Passes over a column."""
        self._begin()
        self._buffer += BUFFERS[kind.type] + (self._views_of_next() if kind.type in VIEWS else 0)

    def nothing(self, kind: Kind) -> bool:
        """Whether the next column is of the type that holds nothing; then it is passed over."""
        if kind.type == NULL:
            self.skip(kind)
        return kind.type == NULL

    def numbers(self, kind: Kind) -> tuple[npt.NDArray[Any], Flags | None]:
        """A column of numbers, and which are there (None: all)."""
        valid = self._valid()
        return self._typed(self._next(), kind.dtype, self.rows), valid

    def flags(self) -> tuple[Flags, Flags | None]:
        """A column of booleans likewise."""
        valid = self._valid()
        return self._bits(self._next()), valid

    def texts(self, kind: Kind) -> Strings:
        """A column of texts."""
        valid = self._valid()
        if kind.type == UTF8_VIEW:
            return self._viewed(valid)
        dtype = "<i8" if kind.type == LARGE_UTF8 else "<i4"
        offsets, data = self._next(), self._next()
        if not self.rows:
            return Strings(data[:0], np.empty(0, np.int64), np.empty(0, np.int64), None)
        ends = self._typed(offsets, dtype, self.rows + 1).astype(np.int64)
        lengths = np.diff(ends)
        if ends[0] < 0 or (ends[1:] < ends[:-1]).any() or ends[-1] > len(data):
            raise broken("texts lie outside of their buffer.", self.where)
        return Strings(data, ends[:-1], _present(lengths, valid), valid)

    def _viewed(self, valid: Flags | None) -> Strings:
        views = self._typed(self._next(), "<i4", 4 * self.rows).reshape(-1, 4)
        parts = [self._next() for _ in range(self._views_of_next())]
        begins = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        lengths = _present(views[:, 0].astype(np.int64), valid)
        starts = begins[-1] + 4 + 16 * np.arange(self.rows, dtype=np.int64)
        far = np.flatnonzero(lengths > _INLINE)
        which, at = views[far, 2].astype(np.int64), views[far, 3].astype(np.int64)
        if (lengths < 0).any() or (which < 0).any() or (which >= len(parts)).any() or (at < 0).any():
            raise broken("texts lie outside of their buffers.", self.where)
        if len(far):
            starts[far] = begins[which] + at
            if (starts[far] + lengths[far] > begins[which + 1]).any():
                raise broken("texts lie outside of their buffers.", self.where)
            self._budget.spend(int(lengths[far].sum()), self.where)  # views may share bytes
        data = np.concatenate([*parts, views.reshape(-1).view(np.uint8)])
        return Strings(data, starts, lengths, valid)

    def end(self) -> None:
        """After the last column: nothing is left."""
        if self._node != len(self._nodes) or self._buffer != len(self._buffers) or self._views != len(self._variadic):
            raise broken("a batch has more columns than its schema.", self.where)

    # -- buffers

    def _begin(self) -> int:
        """The next column's number of absent values."""
        if self._node >= len(self._nodes):
            raise broken("a batch has fewer columns than its schema.", self.where)
        rows, absent = self._nodes[self._node].tolist()
        self._node += 1
        if rows != self.rows or not 0 <= absent <= rows:
            raise broken("a column has another number of rows than its batch.", self.where)
        return int(absent)

    def _valid(self) -> Flags | None:
        absent, bits = self._begin(), self._next()
        if not len(bits):
            if absent:
                raise broken("a column does not say which of its values are absent.", self.where)
            return None
        valid = self._bits(bits)
        return None if valid.all() else valid

    def _views_of_next(self) -> int:
        if self._views >= len(self._variadic):
            raise broken("a column of views does not say how many buffers it has.", self.where)
        n = int(self._variadic[self._views])
        self._views += 1
        if not 0 <= n <= len(self._buffers) - self._buffer:
            raise broken("a column of views has more buffers than its batch.", self.where)
        return n

    def _next(self) -> Bytes:
        if self._buffer >= len(self._buffers):
            raise broken("a batch has fewer buffers than its schema asks for.", self.where)
        start, n = self._buffers[self._buffer].tolist()
        self._buffer += 1
        if start < 0 or n < 0 or start > len(self._body) or n > len(self._body) - start:
            raise broken("a buffer lies outside of its message.", self.where)
        plain = np.frombuffer(self._body, np.uint8, n, start) if n else np.empty(0, np.uint8)
        return plain if self._codec is None or not n else self._inflated(plain, self._codec)

    def _inflated(self, packed: Bytes, codec: int) -> Bytes:
        if len(packed) < _SIZE:
            raise broken("a compressed buffer is cut off.", self.where)
        size = int.from_bytes(packed[:_SIZE].tobytes(), "little", signed=True)
        if size == -1:
            return packed[_SIZE:]
        if size < 0:
            raise broken("a compressed buffer has a negative size.", self.where)
        self._budget.spend(size, self.where)
        plain = np.empty(size, np.uint8)
        if not size:
            return plain
        try:
            n = _INFLATE[codec](packed[_SIZE:], plain)
        except cramjam.DecompressionError:
            raise self._misinflated() from None
        if n != size:
            raise self._misinflated()
        return plain

    def _misinflated(self) -> BadRequest:
        return broken("a compressed buffer is broken, or of another size than it says.", self.where)

    def _typed(self, plain: Bytes, dtype: str, n: int) -> npt.NDArray[Any]:
        if n > len(plain) // np.dtype(dtype).itemsize:
            raise broken("a buffer is shorter than its rows.", self.where)
        return np.frombuffer(plain, dtype, n)

    def _bits(self, plain: Bytes) -> Flags:
        if self.rows > 8 * len(plain):
            raise broken("a buffer is shorter than its rows.", self.where)
        return np.unpackbits(plain[: (self.rows + 7) // 8], count=self.rows, bitorder="little").view(np.bool_)


def _present(lengths: Int64, valid: Flags | None) -> Int64:
    """Nothing lies behind what is absent."""
    return lengths if valid is None else np.where(valid, lengths, 0)
