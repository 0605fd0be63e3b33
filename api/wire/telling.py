"""Large answers, told in slices: others are served between two of them, and callers with large answers take turns.

The one way for every answer that has as many items as somebody has made. Each item is encoded once, whatever names it
has in the answer; what was encoded is never copied but in pieces. The first slice costs no turn, so that answers of few
items do not wait for anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from api.admission.intake import Turn
from api.wire.http import canonical_text, plain_text

T = TypeVar("T")

SLICE_ITEMS = 50
"""Items told at a time: 2 ms."""
SLICE_BYTES = 1 << 16
"""Bytes of items after which a slice ends early: of large items each is one."""
PIECE_BYTES = 1 << 18
"""Bytes of encoded items put together at a time."""


class Telling:
    """Tells the items of one answer, a slice of them in each turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._items = self._bytes = 0

    async def texts(self, rows: Iterable[T], tell: Callable[[T], Any]) -> list[msgspec.Raw]:
        """The JSON text of each row's item."""
        found = list[msgspec.Raw]()
        for row in rows:
            text = plain_text(tell(row))
            found.append(msgspec.Raw(text))
            await self._told(len(text))
        return found

    async def hashed(self, rows: Iterable[T], tell: Callable[[T], Any]) -> tuple[list[msgspec.Raw], str]:
        """The same, and what `digest` makes of the list of them in the order of their ids."""
        texts, canonical = list[msgspec.Raw](), dict[str, bytes]()
        for row in rows:
            item = tell(row)
            text, canonical[item.id] = plain_text(item), canonical_text(item)
            texts.append(msgspec.Raw(text))
            await self._told(2 * len(text))
        return texts, await self._digest([canonical[name] for name in sorted(canonical)])

    async def _digest(self, texts: list[bytes]) -> str:
        whole = hashlib.sha256(b"[")
        for index, text in enumerate(texts):
            whole.update(b"," + text if index else text)
            await self._passed(len(text))
        whole.update(b"]")
        return whole.hexdigest()

    async def body(self, value: msgspec.Struct) -> list[bytes]:
        """The JSON text of a body in pieces; lists of encoded items in it, at any depth, are put together piece by
        piece."""
        pieces, parts, size = list[bytes](), list[bytes](), 0
        for part in _parts(value):
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                pieces.append(b"".join(parts))
                parts, size = [], 0
                await self._next()
        return [*pieces, b"".join(parts)]

    async def _told(self, n_bytes: int) -> None:
        """One item more is told."""
        self._items += 1
        self._bytes += n_bytes
        if self._items >= SLICE_ITEMS or self._bytes >= SLICE_BYTES:
            await self._next()

    async def _passed(self, n_bytes: int) -> None:
        """So many bytes more were looked at."""
        self._bytes += n_bytes
        if self._bytes >= PIECE_BYTES:
            await self._next()

    async def _next(self) -> None:
        self._items = self._bytes = 0
        await self._turn.go_on()


def _parts(value: Any) -> Iterator[bytes]:
    """The JSON text of a value in parts, none of them much longer than an item."""
    if isinstance(value, msgspec.Struct) and not value.__struct_config__.omit_defaults:
        opening = b"{"
        for name, inner in msgspec.structs.asdict(value).items():
            if inner is not msgspec.UNSET:
                yield opening + plain_text(name) + b":"
                yield from _parts(inner)
                opening = b","
        yield b"}" if opening == b"," else b"{}"
    elif isinstance(value, list) and value and isinstance(value[0], msgspec.Raw):
        for index, text in enumerate(value):
            yield b"," if index else b"["
            yield bytes(text)
        yield b"]"
    else:
        yield plain_text(value)
