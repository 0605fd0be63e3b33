"""Checksums of the log: each record's goes over what the record before it had, each head's over the head. Pure.

XXH3 finds what disks, copies and restored files do; it is no proof against who means harm and may write here anyway.
A record without a checksum was written before there were any; its head says up to where that is so.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from xxhash import xxh3_64

from breaker_actors.core.log_entries import DAMAGED, GAP, SAMPLES, VIEW, LogRecord, Lost, decode_lost, encode_entry
from breaker_actors.errors import log_damaged

_SPLIT = (SAMPLES, GAP)
_NUMBERS = struct.Struct("<qqqqq")


class Row(NamedTuple):
    """A record as it lies in its table, with its checksum and that of the record before it."""

    router_id: str
    offset: int
    received_ms: int
    kind: int
    view_offset: int
    payload: bytes
    before: int | None
    checksum: int | None


class Extent(NamedTuple):
    """What a head says of its records: the last one's offset; below `floor` some are trimmed; up to `unchained` they
    have no checksums."""

    offset: int
    floor: int
    unchained: int


def checksum(
    before: int, router_id: str, offset: int, received_ms: int, kind: int, view_offset: int, payload: bytes
) -> int:
    """Of one record, in 64 bits with a sign, as databases keep integers."""
    found = xxh3_64(_NUMBERS.pack(before, offset, received_ms, kind, view_offset))
    found.update(router_id.encode())
    found.update(payload)
    return _signed(found.intdigest())


def seal(encoded: bytes) -> int:
    """Of a head's bytes; never 0, which is no seal."""
    return _signed(xxh3_64(encoded).intdigest()) or 1


def _signed(digest: int) -> int:
    return digest - (1 << 64) if digest >> 63 else digest


def fault(row: Row, unchained: int) -> str:
    """What is wrong with a record by itself; "" when nothing is."""
    if row.before is None or row.checksum is None:
        return "" if row.offset <= unchained else "has no checksum"
    return "" if row.checksum == checksum(row.before, *row[:6]) else "is not what was written"


def verified(
    router_id: str,
    rows: Sequence[Row],
    extent: Extent,
    after: int,
    upto: int,
    behind: Callable[[], Row | None] | None,
) -> list[LogRecord]:
    """The records with after < offset <= upto that a read found. `behind`: the record that follows `upto`, if there is
    one; None: the read answered as much as it may, and more of them may follow. Raises LogDamaged, with the first
    offset that is not as it was written, when one is missing, changed, or does not follow the one before it."""
    last, before = after, None
    for row in rows:
        if (begin := _begin(row, extent)) > last + 1:
            _check_trimmed(router_id, last + 1, begin, extent)
            before = None
        if words := fault(row, extent.unchained):
            raise log_damaged(router_id, f"record {row.offset} {words}", row.offset)
        if before is not None and row.before is not None and row.before != before:
            raise log_damaged(router_id, f"record {row.offset} does not follow the one before it", row.offset)
        last, before = row.offset, None if row.kind == DAMAGED else row.checksum
    end = min(upto, extent.offset) + 1
    if behind is not None and end > max(last + 1, extent.floor):
        found = behind()
        _check_trimmed(router_id, last + 1, end if found is None else min(end, _begin(found, extent)), extent)
    return [LogRecord(*row[:6]) for row in rows]


def _check_trimmed(router_id: str, first: int, end: int, extent: Extent) -> None:
    """Nothing lies from `first` up to before `end`: it has been trimmed, or is missing."""
    if end > first and end > extent.floor:
        missing = max(first, extent.floor)
        which = f"record {missing} is" if missing == end - 1 else f"records {missing} to {end - 1} are"
        raise log_damaged(router_id, f"{which} missing", missing)


def losses(
    rows: Iterable[Row], router_id: str, extent: Extent, upto: int, now_ms: int, is_ahead: bool = False
) -> Iterator[tuple[int, Row]]:
    """What of a router's log is lost: for each run of records that are missing, or not as they were written, its first
    offset and the DAMAGED record that is to stand at its last. What was split by a view that is lost is lost with it.
    `rows`: all there are; `upto`: so far the log was read at least. What is lost at the end is a gap until `now_ms`.
    `is_ahead`: records stamped after that go, too, and a record stands behind all that was read, that sets breakers
    back."""
    good: Row | None = None
    next_, first, last, view = max(1, extent.floor), 0, 0, 0
    upto = max(upto, extent.offset) + 1 if is_ahead else upto
    for row in rows:
        if (begin := _begin(row, extent)) > next_:
            first, last = first or next_, begin - 1
        torn = good is not None and not first and not _follows(row, good)
        goes = is_ahead and row.received_ms > now_ms
        if goes or torn or fault(row, extent.unchained) or (row.kind in _SPLIT and row.view_offset != view):
            first, last = first or row.offset, row.offset
        else:
            if first:
                yield first, _stand_in(router_id, first, last, good, row.received_ms, view)
            good, first = row, 0
            view = row.offset if row.kind == VIEW else view
        next_ = max(next_, row.offset + 1)
    end = max(extent.offset, upto, next_ - 1)
    if first or next_ <= end:
        yield first or next_, _stand_in(router_id, first or next_, end, good, now_ms, view, is_ahead)


def behind(last: Row, view: int, entries: Iterable[tuple[int, bytes]], after_ms: int) -> Iterator[Row]:
    """Records that follow the last one, all of one time, which is after `after_ms`. `view`: the routing table in force
    there."""
    received_ms = max(last.received_ms, after_ms + 1)
    for kind, payload in entries:
        values = (last.router_id, last.offset + 1, received_ms, kind, view, payload)
        before = last.checksum or 0
        yield (last := Row(*values, before, checksum(before, *values)))
        view = last.offset if kind == VIEW else view


def _begin(row: Row, extent: Extent) -> int:
    """The first offset that a record takes up. What one says that is itself damaged counts for nothing."""
    stands_in = row.kind == DAMAGED and not fault(row, extent.unchained)
    return decode_lost(row.payload).first if stands_in else row.offset


def _follows(row: Row, before: Row) -> bool:
    if before.kind == DAMAGED or row.offset != before.offset + 1 or row.before is None or before.checksum is None:
        return True
    return row.before == before.checksum


def _stand_in(
    router_id: str, first: int, offset: int, good: Row | None, now_ms: int, view: int, is_ahead: bool = False
) -> Row:
    since = 0 if good is None else good.received_ms
    before = 0 if good is None else good.checksum or 0
    payload = encode_entry(Lost(from_ms=since, to_ms=max(since, now_ms), first=first, sets_back=is_ahead))
    values = (router_id, offset, max(since, now_ms), DAMAGED, view, payload)
    return Row(*values, before, checksum(before, *values))
