"""Where one router's log stands, and how takes and appends move it: pure, the same for every kind of sample log.

Offsets are dense per router and received_ms never goes back with them; both are checked here at every append, and the
reads rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from breaker_actors.core.records import VIEW
from breaker_actors.stores.samplelog import Append, RouterHead


class Head(msgspec.Struct):
    """`taken_offset` and `before_ms` make a repeated take answer like the first one, whose answer may have been lost.
    `turn` counts the takes of an epoch, so that what an owner sent before its last one is told apart.
    `keys_from_ms`: keys older than that are gone."""

    router_id: str
    epoch: int
    owner: str
    offset: int
    last_received_ms: int
    view_offset: int
    taken_offset: int
    before_ms: int
    keys_from_ms: int
    turn: int


def take(
    head: Head | None, router_id: str, epoch: int, owner: str, now_ms: int, alive: Mapping[str, int]
) -> Head | None:
    """The head under an owner incarnation, None when a higher epoch or another owner of this one holds it. `alive`:
    until when owners were up (ms). Who has taken and given no sign since was never up."""
    if head is None:
        return Head(router_id, epoch, owner, 0, 0, 0, 0, now_ms, 0, 1)
    if head.epoch > epoch or (head.epoch == epoch and head.owner != owner):
        return None
    if head.epoch == epoch and head.offset == head.taken_offset:
        return msgspec.structs.replace(head, turn=head.turn + 1)
    before_ms = max(alive.get(head.owner, 0), head.last_received_ms, head.before_ms)
    turn = head.turn + 1 if head.epoch == epoch else 1
    return msgspec.structs.replace(
        head, epoch=epoch, owner=owner, taken_offset=head.offset, before_ms=before_ms, turn=turn
    )


def told(head: Head, view: bytes | None, keys: Sequence[tuple[bytes, int]]) -> RouterHead:
    """What a new owner is told."""
    return RouterHead(
        router_id=head.router_id,
        epoch=head.epoch,
        offset=head.offset,
        last_received_ms=head.last_received_ms,
        alive_ms=head.before_ms,
        view_offset=head.view_offset,
        view=view,
        turn=head.turn,
        keys=tuple(keys),
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
        if head is None or (head.epoch, head.turn) != (record.epoch, record.turn):
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
