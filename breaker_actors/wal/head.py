"""The head of one router's partition, and how acquisitions and appends move it: pure, the same for every kind of
sample log.

Offsets are dense per router and received_ms never goes back with them; both are checked here at every append, and the
reads rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from breaker_actors.core.log_entries import VIEW
from breaker_actors.wal.base import Append, RouterHead


class Head(msgspec.Struct):
    """`taken_offset` and `before_ms` make a repeated acquisition answer like the first one, whose answer may have been
    lost. `generation` counts the acquisitions of an epoch: appends that an owner sent before its last one are refused.
    `keys_from_ms`: keys older than that are gone. `bytes`: what the records take up."""

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


def acquire(
    head: Head | None, router_id: str, epoch: int, owner: str, now_ms: int, alive: Mapping[str, int]
) -> Head | None:
    """Returns the head under an owner incarnation; None when a higher epoch, or another owner of this one, has it.
    `alive`: until when owners were up (ms). An owner that acquired and gave no sign since was never up."""
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


def router_head(head: Head, view: bytes | None, keys: Sequence[tuple[bytes, int]]) -> RouterHead:
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
    )


class Judged(NamedTuple):
    """`results`: True appended, False refused, None if it counts as appended exactly when it lies there already, byte
    for byte (its first answer got lost). `moved`: the heads with something fresh."""

    results: list[bool | None]
    fresh: list[Append]
    moved: list[Head]


def judge(heads: Mapping[str, Head], records: Sequence[Append]) -> Judged:
    """Which records of one call are the next of their routers; moves their heads on."""
    results: list[bool | None] = []
    fresh: list[Append] = []
    for record in records:
        head = heads.get(record.router_id)
        if head is None or (head.epoch, head.generation) != (record.epoch, record.generation):
            results.append(False)
        elif record.offset == head.offset + 1 and record.received_ms >= head.last_received_ms:
            head.offset = record.offset
            head.last_received_ms = record.received_ms
            head.view_offset = record.offset if record.kind == VIEW else record.view_offset
            fresh.append(record)
            results.append(True)
        else:
            results.append(None if record.offset > head.taken_offset else False)
    return Judged(results, fresh, [heads[id_] for id_ in dict.fromkeys(record.router_id for record in fresh)])


def due_keys_ms(head: Head, keys_ms: int) -> int | None:
    """Keys received at or before this are to be dropped now, which is so once in a tenth of their life; else None."""
    oldest_ms = head.last_received_ms - keys_ms
    if oldest_ms - head.keys_from_ms <= keys_ms // 10:
        return None
    head.keys_from_ms = oldest_ms
    return oldest_ms
