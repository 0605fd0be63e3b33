"""Tables of a flatbuffer (flatbuffers.dev, "internals"): the form of the metadata of Arrow messages. Every offset is
checked before it is followed, and nothing is read but what is asked for, so nesting costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import numpy as np

from breaker_actors.core.model import Int64
from breaker_actors.errors import BadRequest, PayloadTooLarge

_U8, _I16, _U16, _I32, _U32, _I64 = (Struct(f"<{letter}") for letter in "BhHiIq")


def broken(words: str, where: str) -> BadRequest:
    """The error of bytes that are no Arrow stream."""
    return BadRequest(f"The body is no valid Arrow stream: {words}", {"where": where})


class Table:
    """One table of a message. `where`: which message, for errors."""

    __slots__ = ("_at", "_data", "_size", "_vtable", "where")

    def __init__(self, data: memoryview, at: int, where: str) -> None:
        self._data, self._at, self.where = data, at, where
        self._vtable = at - self._read(_I32, at)
        self._size = self._read(_U16, self._vtable)

    @classmethod
    def root(cls, data: memoryview, where: str) -> Table:
        """The table at which a flatbuffer begins. Raises BadRequest, as every other method does."""
        if len(data) < _U32.size:
            raise broken("its metadata is cut off.", where)
        return cls(data, _U32.unpack_from(data)[0], where)

    def _read(self, form: Struct, at: int) -> int:
        if not 0 <= at <= len(self._data) - form.size:
            raise broken("its metadata points outside of itself.", self.where)
        found: int = form.unpack_from(self._data, at)[0]
        return found

    def _place(self, slot: int) -> int | None:
        """Where a field stands; None where it is left out."""
        entry = 4 + 2 * slot
        offset = self._read(_U16, self._vtable + entry) if entry + 2 <= self._size else 0
        return self._at + offset if offset else None

    def _number(self, form: Struct, slot: int, default: int) -> int:
        at = self._place(slot)
        return default if at is None else self._read(form, at)

    def int8(self, slot: int, default: int = 0) -> int:
        """A byte: a type of a union, a bool, a small enum."""
        return self._number(_U8, slot, default)

    def int16(self, slot: int, default: int = 0) -> int:
        return self._number(_I16, slot, default)

    def int32(self, slot: int, default: int = 0) -> int:
        return self._number(_I32, slot, default)

    def int64(self, slot: int, default: int = 0) -> int:
        return self._number(_I64, slot, default)

    def table(self, slot: int) -> Table | None:
        """The table that a field points to."""
        at = self._place(slot)
        return None if at is None else Table(self._data, at + self._read(_U32, at), self.where)

    def needed(self, slot: int) -> Table:
        """The same of one that has to be there."""
        found = self.table(slot)
        if found is None:
            raise broken("its metadata lacks a part.", self.where)
        return found

    def text(self, slot: int, bytes_max: int) -> str:
        """A string, "" where it is left out; what is no UTF-8 in it is replaced. Raises PayloadTooLarge for a longer
        one."""
        start, n = self._vector(slot, 1)
        if n > bytes_max:
            raise PayloadTooLarge(f"A name has at most {bytes_max} bytes.", {"where": self.where})
        return bytes(self._data[start : start + n]).decode(errors="replace")

    def length(self, slot: int) -> int:
        """How many entries a vector of offsets says it has."""
        return self._vector(slot, 4)[1]

    def tables(self, slot: int) -> Iterator[Table]:
        """The tables of a vector, one after the other."""
        start, n = self._vector(slot, 4)
        for at in range(start, start + 4 * n, 4):
            yield Table(self._data, at + self._read(_U32, at), self.where)

    def int64s(self, slot: int, width: int = 1) -> Int64:
        """A vector of integers, or of structs of so many of them, as rows of them."""
        start, n = self._vector(slot, 8 * width)
        return np.frombuffer(self._data, "<i8", n * width, start).reshape(n, width)

    def _vector(self, slot: int, size: int) -> tuple[int, int]:
        """Where a vector of elements of so many bytes begins, and how many it has."""
        at = self._place(slot)
        if at is None:
            return 0, 0
        at += self._read(_U32, at)
        n = self._read(_U32, at)
        if n * size > len(self._data) - at - 4:
            raise broken("its metadata points outside of itself.", self.where)
        return at + 4, n
