"""The write-ahead log (sample log): one dense sequence of records per router, the order of everything (architecture.md
section 3.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from breaker_actors.core.log_entries import LogRecord
from breaker_actors.errors import Invalid, LogDamaged
from breaker_actors.messages import LogRead


class Append(msgspec.Struct, frozen=True, array_like=True):
    """One record to append. Its offset and received_ms are the caller's (the router's owner), checked by the log.
    `generation`: the lease generation under which the owner learned where the log stands. `counters`: the last points
    of cumulative series, (series, state), stored with it; a state of no bytes is dropped. `change`: the number of the
    change of configuration that it belongs to, 0 for what is none."""

    router_id: str
    epoch: int
    offset: int
    received_ms: int
    kind: int
    view_offset: int
    payload: bytes
    keys: tuple[bytes, ...] = ()
    generation: int = 1
    counters: tuple[tuple[bytes, bytes], ...] = ()
    change: int = 0


class RouterHead(msgspec.Struct, frozen=True, kw_only=True):
    """Where a router's log stands when an owner takes it over. `alive_ms`: until when its last owner was surely up.
    `generation`: the lease generation. Counts the acquisitions within an epoch, from 1; appends sent under an earlier
    one are refused, so a retry can't land behind a watermark."""

    router_id: str
    epoch: int
    offset: int
    last_received_ms: int
    alive_ms: int
    view_offset: int
    view: bytes | None
    generation: int
    keys: tuple[tuple[bytes, int], ...]
    """Duplicate keys still alive, with the offset they were stored at, oldest first."""
    log_bytes: int = 0
    """What its records take up."""
    damage: str = ""
    """Why nothing may be appended: the log is not as it was written."""
    counters: tuple[tuple[bytes, bytes], ...] = ()
    """The last points of cumulative series."""


class StoredKey(NamedTuple):
    """A duplicate key as it lies in a router's log, where the order is that of `offset` and `key`."""

    offset: int
    key: bytes
    received_ms: int


class LogStock(msgspec.Struct, frozen=True):
    """How much of a router's log is kept. An empty log has `last_offset` 0. `bytes`: what its records take up, a
    running count kept with every append and trim, right within 10 percent; duplicate keys are not in it."""

    router_id: str
    last_offset: int
    last_received_ms: int
    bytes: int = 0


Stretch = tuple[str, int, int]
"""A router, and offsets: records of it with after < offset <= upto."""
Read = list[LogRecord] | LogDamaged
"""Of a stretch: its records, or why they can't be read."""
READ_BYTES = 4_000_000
"""Payloads in one answer of `read`, and what the last record in it has more; of `read_some`, and what the last stretch
in it has more."""

Entry = tuple[int, bytes]
"""Kind and payload of a record."""


class Loss(msgspec.Struct, frozen=True):
    """Records of a router that are lost: offsets, the first and the last of a run, and when they were received."""

    router_id: str
    first: int
    last: int
    from_ms: int
    to_ms: int


_SLOT = re.compile(r"[a-z0-9-]{1,64}")


def check_slot(slot: str) -> str:
    """The slot itself. Raises Invalid for a name that could be more than a name where logs are kept."""
    if _SLOT.fullmatch(slot) is None:
        raise Invalid(f"not a log slot: {slot!r}")
    return slot


def is_full(payloads: Sequence[bytes], limit: int, bytes_max: int = READ_BYTES) -> bool:
    """Whether a read that answered these is as much as it may be, so that more may lie behind."""
    return len(payloads) >= limit or sum(map(len, payloads)) >= bytes_max


def read_each(read: Callable[[str, int, int], list[LogRecord]], wanted: Sequence[Stretch]) -> list[Read]:
    """The answer of `read_some`, stretch by stretch."""
    found: list[Read] = []
    taken = 0
    for router_id, after, upto in wanted:
        if taken > READ_BYTES:
            break
        try:
            records = read(router_id, after, upto)
        except LogDamaged as error:
            found.append(error)
            continue
        found.append(records)
        taken += sum(len(record.payload) for record in records)
    return found


class SampleLog(Protocol):
    """Appends are fenced by epoch; reads need none. Raises errors.Unavailable when the log can't be reached."""

    async def acquire(
        self,
        slot: str,
        owner: str,
        routers: Sequence[tuple[str, int]],
        now_ms: int,
        keys_after_ms: int,
        keys_upto: Mapping[str, int] | None = None,
    ) -> list[RouterHead]:
        """Acquires routers [(id, epoch)] for an owner incarnation; appends of lower epochs are refused from here on. A
        router that has a higher epoch is left out of the answer. Each acquisition begins a lease generation: an owner
        that acquires again what it has learns where the log stands, and its own earlier appends are refused, too.
        `keys_upto`: by router the offset up to which the caller knows its duplicate keys; those behind it are answered
        alone. Who has not read them with `keys` gets them all, in one statement."""

    async def keys(self, slot: str, after: Mapping[str, tuple[int, bytes]], each: int) -> dict[str, list[StoredKey]]:
        """The duplicate keys of routers behind a place (offset, key), ascending, at most `each` of a router. Also of
        routers that somebody else owns: what is read up to stays as it is, but for keys that are dropped."""

    async def drop_keys(self, slot: str, upto: Mapping[str, int]) -> None:
        """Drops the duplicate keys of routers up to an offset each, in small transactions."""

    async def append(self, slot: str, records: Sequence[Append]) -> list[bool]:
        """Appends all in one transaction; False where epoch or generation are not the router's, or the offset is not
        its next."""

    async def alive(self, slot: str, owner: str, now_ms: int) -> None:
        """Stores the heartbeat (or watermark) of an owner incarnation, durable when this returns; never goes back."""

    async def advance_watermark(
        self, slot: str, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int
    ) -> list[bool]:
        """Stores a watermark for routers [(id, epoch)]: their owner stamps nothing at or before `upto_ms` any more.
        Durable when this returns; False for routers that are not (or no longer) its own."""

    async def read(
        self, slot: str, router_id: str, after: int, upto: int, limit: int = 256, bytes_max: int = READ_BYTES
    ) -> list[LogRecord]:
        """Records with after < offset <= upto, ascending, at most `limit`, and none behind the one whose payload comes
        to `bytes_max` with those before it. Raises LogDamaged when one of them is missing or not as it was written."""

    async def find(self, slot: str, router_id: str, at_ms: int) -> int:
        """The offset of the last record received at or before a time; 0 when none (any more) is that old."""

    async def read_some(self, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        """What `read` answers for each of the first of these stretches: for as many as take READ_BYTES. One call for
        thousands of routers costs a fraction of thousands of calls."""

    async def find_some(self, slot: str, wanted: Sequence[tuple[str, int]]) -> list[int]:
        """What `find` answers for each of these routers and times."""

    async def stock(self, slot: str) -> list[LogStock]:
        """What lies in a slot, one entry per router that was ever acquired there and not forgotten."""

    async def trim(self, slot: str, router_id: str, below: int) -> int:
        """Drops records below an offset except the view in force; returns how many."""

    async def forget(self, slot: str, router_id: str) -> None:
        """Drops all that is kept of a router that exists no more."""

    async def recover(
        self,
        slot: str,
        router_id: str,
        upto: int,
        now_ms: int,
        entries: Sequence[Entry] | None,
        ahead_max_ms: int | None = None,
    ) -> list[Loss]:
        """Makes a damaged log whole: DAMAGED records stand for what is lost, it ends at `upto` at least, and these
        entries come behind all of that. Answers what is lost; None: does nothing else. Its owner, if there is one,
        loses it. A log that is ahead of `now_ms` by more than `ahead_max_ms` is set back to it: what is stamped later
        is lost, too, and breakers that read on go on from their states as of then. None: no log is."""

    async def faults(self, read: LogRead, now_ms: int) -> list[str]:
        """Words for all that is wrong with a router's log. Reads all of it, and changes nothing."""

    async def size_bytes(self, slot: str) -> int:
        """Bytes a slot takes up; what trimming freed is not counted."""

    async def close(self) -> None: ...
