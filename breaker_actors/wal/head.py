"""The head of one router's partition, and how acquisitions and appends move it: pure, the same for every kind of
sample log.

Offsets are dense per router and received_ms never goes back with them; both are checked here at every append, and the
reads rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from breaker_actors.core.log_entries import VIEW, decode_lost
from breaker_actors.wal import chain
from breaker_actors.wal.base import Append, Loss, RouterHead
from breaker_actors.wal.chain import Extent, Row

_encode = msgspec.msgpack.encode


class Head(msgspec.Struct):
    """`taken_offset` and `before_ms` make a repeated acquisition answer like the first one, whose answer may have been
    lost. `generation` counts the acquisitions of an epoch: appends that an owner sent before its last one are refused.
    `keys_from_ms`: keys older than that are gone. `bytes`: what the records take up. `checksum`: the last record's.
    `unchained`, `floor`: see chain.Extent. `seal`: over all that moves with the records; 0 when it was never sealed."""

    router_id: str
    epoch: int
    owner: str
    offset: int
    last_received_ms: int
    view_offset: int
    taken_offset: int
    before_ms: int
    keys_from_ms: int
    generation: int
    bytes: int = 0
    checksum: int = 0
    unchained: int = 0
    floor: int = 0
    seal: int = 0


def sealed(head: Head) -> int:
    """The seal that a head should have. Trimming moves neither it nor what it is made of."""
    return chain.seal(
        _encode(
            (
                head.router_id,
                head.epoch,
                head.owner,
                head.offset,
                head.last_received_ms,
                head.view_offset,
                head.taken_offset,
                head.before_ms,
                head.generation,
                head.checksum,
                head.unchained,
            )
        )
    )


def is_believed(head: Head | None) -> bool:
    return head is not None and head.seal in (0, sealed(head))


def fault(head: Head | None, found: Sequence[tuple[int, int | None]], view: Row | None) -> str:
    """What is wrong with a router's log at its end; "" when nothing is. `found`: offset and checksum of the records at
    and beyond the end that the head names, two at most. `view`: the record of the view in force."""
    if head is None:
        return "records lie there without a head" if found else ""
    if not is_believed(head):
        return "its head is not what was written"
    if head.offset and head.offset >= head.floor and (not found or found[0][0] != head.offset):
        return f"record {head.offset}, its last one, is missing"
    if found and found[-1][0] != head.offset:
        return f"record {found[-1][0]} lies beyond its end"
    if found and head.offset > head.unchained and found[0][1] != head.checksum:
        return f"record {head.offset}, its last one, is not the one that was written last"
    if head.view_offset and (words := _view_fault(head, view)):
        return f"record {head.view_offset}, the view in force, {words}"
    return ""


def _view_fault(head: Head, view: Row | None) -> str:
    """Trimming keeps the view in force."""
    return "is missing" if view is None else chain.fault(view, head.unchained)


def acquire(
    head: Head | None, router_id: str, epoch: int, owner: str, now_ms: int, alive: Mapping[str, int]
) -> Head | None:
    """Returns the head under an owner incarnation; None when a higher epoch, or another owner of this one, has it.
    `alive`: until when owners were up (ms). An owner that acquired and gave no sign since was never up."""
    taken = _acquired(head, router_id, epoch, owner, now_ms, alive)
    if taken is not None:
        taken.seal = sealed(taken)
    return taken


def _acquired(
    head: Head | None, router_id: str, epoch: int, owner: str, now_ms: int, alive: Mapping[str, int]
) -> Head | None:
    if head is None:
        return Head(router_id, epoch, owner, 0, 0, 0, 0, now_ms, 0, 1)
    if head.epoch > epoch or (head.epoch == epoch and head.owner != owner):
        return None
    if head.epoch == epoch and head.offset == head.taken_offset:
        return msgspec.structs.replace(head, generation=head.generation + 1)
    before_ms = max(alive.get(head.owner, 0), head.last_received_ms, head.before_ms)
    generation = head.generation + 1 if head.epoch == epoch else 1
    return msgspec.structs.replace(
        head, epoch=epoch, owner=owner, taken_offset=head.offset, before_ms=before_ms, generation=generation
    )


def router_head(
    head: Head,
    view: bytes | None,
    keys: Sequence[tuple[bytes, int]],
    damage: str = "",
    counters: Sequence[tuple[bytes, bytes]] = (),
) -> RouterHead:
    """Returns what a new owner needs to know of its router's log."""
    return RouterHead(
        router_id=head.router_id,
        epoch=head.epoch,
        offset=head.offset,
        last_received_ms=head.last_received_ms,
        alive_ms=head.before_ms,
        view_offset=head.view_offset,
        view=view,
        generation=head.generation,
        keys=tuple(keys),
        log_bytes=head.bytes,
        damage=damage,
        counters=tuple(counters),
    )


def extent(head: Head | None, bounds: tuple[int, int, int]) -> Extent:
    """What is to be believed of a head before its log is recovered. `bounds`: of what lies there, the first offset, the
    last one, and the last without a checksum; 0 where there is none."""
    first, last, unchained = bounds
    if head is None:
        return Extent(last, first, unchained)
    return Extent(head.offset if is_believed(head) else last, head.floor, head.unchained)


def promised_ms(head: Head | None, alive: Mapping[str, int]) -> int:
    """Until when a router's owner may have said that it stamps nothing any more: breakers have gone on up to there. Any
    owner, where the head can't be believed."""
    if head is None or not is_believed(head):
        return max(alive.values(), default=0)
    return max(alive.get(head.owner, 0), head.before_ms)


def is_ahead(head: Head | None, promised_ms: int, now_ms: int, ahead_max_ms: int | None) -> bool:
    """Whether what is stamped next is ahead of `now_ms` by more than `ahead_max_ms`; None: that is not asked."""
    if head is None or ahead_max_ms is None:
        return False
    return max(head.last_received_ms, promised_ms) > now_ms + ahead_max_ms


def last_of(head: Head | None, stood: Extent, lying: Row | None, router_id: str, upto: int) -> Row | None:
    """What a recovered log goes on behind: its last record, or where all up to its end is trimmed, one like it, since
    no offset is given twice. None: nothing was ever there. `upto`: so far the log was read."""
    offset = max(stood.offset, stood.floor - 1, upto)
    if lying is not None and lying.offset >= offset:
        return lying
    if not offset:
        return None
    believed = head if is_believed(head) else None
    received_ms = max(believed.last_received_ms if believed else 0, lying.received_ms if lying else 0)
    return Row(router_id, offset, received_ms, VIEW, 0, b"", None, believed.checksum if believed else None)


def recovered(stood: Extent, last: Row, view_offset: int, taken_up: int, promised_ms: int) -> Head:
    """The head of a log that is whole again, and that nobody owns. `last`: the record at its end; `taken_up`: the bytes
    of all."""
    found = Head(
        router_id=last.router_id,
        epoch=0,
        owner="",
        offset=last.offset,
        last_received_ms=last.received_ms,
        view_offset=view_offset,
        taken_offset=last.offset,
        before_ms=max(last.received_ms, promised_ms),
        keys_from_ms=0,
        generation=0,
        bytes=taken_up,
        checksum=last.checksum or 0,
        unchained=min(stood.unchained, last.offset),
        floor=stood.floor,
    )
    found.seal = sealed(found)
    return found


def losses(found: Sequence[tuple[int, Row]], head: Head | None, view: Row | None, until_ms: int) -> list[Loss]:
    """What chain.losses found, as it is told; where that is nothing, the view in force may be lost, which lies below
    the first record that is kept. `view`: its record."""
    spans = ((first, row, decode_lost(row.payload)) for first, row in found)
    told = [Loss(row.router_id, first, row.offset, lost.from_ms, lost.to_ms) for first, row, lost in spans]
    if told or head is None or not head.view_offset or not is_believed(head):
        return told
    lost = Loss(head.router_id, head.view_offset, head.view_offset, 0, until_ms)
    return [lost] if _view_fault(head, view) else []


class Judged(NamedTuple):
    """`results`: True appended, False refused, None if it counts as appended exactly when it lies there already, byte
    for byte (its first answer got lost). `fresh`: the rows to be stored, of `appends`. `moved`: the heads with
    something fresh."""

    results: list[bool | None]
    appends: list[Append]
    fresh: list[Row]
    moved: list[Head]


def judge(heads: Mapping[str, Head], records: Sequence[Append]) -> Judged:
    """Which records of one call are the next of their routers; moves their heads on."""
    results: list[bool | None] = []
    appends: list[Append] = []
    fresh: list[Row] = []
    for record in records:
        head = heads.get(record.router_id)
        if head is None or (head.epoch, head.generation) != (record.epoch, record.generation):
            results.append(False)
        elif record.offset == head.offset + 1 and record.received_ms >= head.last_received_ms:
            head.offset = record.offset
            head.last_received_ms = record.received_ms
            head.view_offset = record.offset if record.kind == VIEW else record.view_offset
            before, values = head.checksum, values_of(record)
            head.checksum = chain.checksum(before, *values)
            appends.append(record)
            fresh.append(Row(*values, before, head.checksum))
            results.append(True)
        else:
            results.append(None if record.offset > head.taken_offset else False)
    moved = [heads[id_] for id_ in dict.fromkeys(record.router_id for record in appends)]
    for head in moved:
        head.seal = sealed(head)
    return Judged(results, appends, fresh, moved)


def last_counters(appends: Sequence[Append]) -> dict[tuple[str, bytes], bytes]:
    """What is left to be stored of cumulative series, by router and series."""
    return {(record.router_id, series): state for record in appends for series, state in record.counters}


def values_of(r: Append) -> tuple[str, int, int, int, int, bytes]:
    """What of a record lies in the log."""
    return r.router_id, r.offset, r.received_ms, r.kind, r.view_offset, r.payload


def due_keys_ms(head: Head, keys_ms: int) -> int | None:
    """Keys received at or before this are to be dropped now, which is so once in a tenth of their life; else None."""
    oldest_ms = head.last_received_ms - keys_ms
    if oldest_ms - head.keys_from_ms <= keys_ms // 10:
        return None
    head.keys_from_ms = oldest_ms
    return oldest_ms
