"""What is wrong with a router's log, found by reading all of it once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from breaker_actors.core.log_entries import (
    BREAKER,
    DAMAGED,
    GAPS,
    SAMPLES,
    UNREADABLE,
    VIEW,
    decode_breaker,
    decode_gap,
    decode_samples,
    decode_view,
)
from breaker_actors.messages import LogRead
from breaker_actors.wal import chain
from breaker_actors.wal import head as loghead
from breaker_actors.wal.chain import Extent, Row
from breaker_actors.wal.head import Head

BYTES_OFF = 0.1
"""A running count of bytes may be off by this share (LogStock)."""
TOLD_MAX = 20
"""Faults of one kind that are told of one log."""


class Lying(NamedTuple):
    """What lies there of one router, as of one moment. `end`: offset and checksum of the first two records at and
    beyond the end that the head names; `view`: the record of the view in force there; `twice`: the first and the last
    offset of each key that lies at several. `size`: bytes that a record takes up, by those of its payload."""

    head: Head | None
    extent: Extent
    end: list[tuple[int, int | None]]
    view: Row | None
    rows: Iterable[Row]
    twice: Iterable[tuple[int, int]]
    size: Callable[[int], int]


def faults(lying: Lying, read: LogRead, now_ms: int) -> Iterator[str]:
    """Words for each fault."""
    head, floor = lying.head, lying.extent.floor
    if words := loghead.fault(head, lying.end, lying.view):
        yield words
    looked = _Looked(lying.rows, lying.size)
    losses = list(chain.losses(looked, read.router_id, lying.extent, read.last, now_ms))  # reads all, so count is right
    for first, row in losses[:TOLD_MAX]:
        which = f"record {first} is" if first == row.offset else f"records {first} to {row.offset} are"
        yield f"{which} missing, or not what was written"
    yield from looked.found
    if read.first is not None and read.first + 1 < floor > lying.extent.unchained + 1:
        yield f"its records below {floor} are trimmed, but a breaker has read up to record {read.first} only"
    for first, last in islice(lying.twice, TOLD_MAX):
        yield f"one request lies in it twice, in records {first} and {last}"
    if head is not None and abs(head.bytes - looked.bytes) > BYTES_OFF * max(head.bytes, looked.bytes):
        yield f"its head counts {head.bytes} bytes, its records take up {looked.bytes}"


class _Looked:
    """Rows as they pass by, and what is wrong with them beside their checksums."""

    def __init__(self, rows: Iterable[Row], size: Callable[[int], int]) -> None:
        self._rows = rows
        self._size = size
        self.bytes = 0
        self.found: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        """What was lost may have been a view: none is known behind that until the next one."""
        received_ms, view = 0, None
        for row in self._rows:
            self.bytes += self._size(len(row.payload))
            if row.received_ms < received_ms:
                self._tell(f"record {row.offset} was received before the one before it")
            if view is not None and row.view_offset != view:
                self._tell(f"record {row.offset} was split by view {row.view_offset}, in force was {view}")
            try:
                _decode(row)
            except Exception as error:
                self._tell(f"record {row.offset} can't be read: {type(error).__name__}: {error}")
            received_ms = row.received_ms
            view = row.offset if row.kind == VIEW else None if row.kind == DAMAGED else view
            yield row

    def _tell(self, words: str) -> None:
        if len(self.found) < TOLD_MAX:
            self.found.append(words)


def _decode(row: Row) -> None:
    if row.kind == SAMPLES:
        decode_samples(row.payload)
    elif row.kind == BREAKER:
        decode_breaker(row.payload)
    elif row.kind == VIEW:
        decode_view(row.payload)
    elif row.kind in GAPS:
        decode_gap(row.payload)
    elif row.kind != UNREADABLE:
        raise ValueError(f"kind {row.kind} is unknown")
