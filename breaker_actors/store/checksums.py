"""Checksums of what is stored of breakers: each event's goes over that of the event before it, a record's over the
record and how far it has read. Pure.

XXH3, as in the log (`wal.chain`): it finds what disks, copies and restored backups do. Events and records that were
stored before schema 0017 have none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from xxhash import xxh3_64

from breaker_actors.messages import Commit

_encode = msgspec.json.Encoder(order="deterministic").encode
_NUMBERS = struct.Struct("<qqqq")
_BY_HAND = ("hidden_by", "by", "comment")
_TEXTS = ("project_id", "breaker_id", "name", "prev", "curr", "reason")


def chained(rows: Sequence[Mapping[str, Any]], before: int | None) -> list[dict[str, Any]]:
    """Rows of one breaker's events, oldest first, with their checksums. `before`: that of the event before them; None:
    there is none, or it has none."""
    found = []
    for row in rows:
        checksum = event_checksum(row, before)
        found.append({**row, "before": before, "checksum": checksum})
        before = checksum
    return found


def is_as_written(event: Mapping[str, Any]) -> bool:
    """Whether a stored event is the one that its checksum was made of. Earlier versions hashed a value of -0.0 with its
    sign, which SQLite does not keep."""
    zeros = (0.0, -0.0) if event["value"] == 0 else (0.0,)
    return any(event["checksum"] == event_checksum(event, event["before"], zero) for zero in zeros)


def event_checksum(row: Mapping[str, Any], before: int | None, zero: float = 0.0) -> int:
    """Of all that is stored of an event, numbers as the database keeps them: `zero` stands for a value of 0, since
    SQLite has no -0.0."""
    value = row["value"]
    texts = [row[name] for name in _TEXTS]
    texts += [float(row["allow_rate"]), None if value is None else float(value) or zero, row["rule"], row["agg"]]
    if any(row[name] is not None for name in _BY_HAND):  # nothing of events from before there were any changes
        texts += [row[name] for name in _BY_HAND]
    found = xxh3_64(_encode(texts))
    found.update(_NUMBERS.pack(row["shard"], row["sequence"], row["ts_ms"], row["transition_seq"]))
    found.update(b"" if before is None else struct.pack("<q", before))
    return _signed(found)


def checksum_of(commit: Commit) -> int:
    return record_checksum(
        commit.breaker_id,
        commit.transition_seq,
        commit.state,
        commit.allow_rate,
        commit.record,
        commit.applied_offsets,
    )


def record_checksum(
    breaker_id: str, transition_seq: int, state: str, allow_rate: float, record: bytes | None, cut: Mapping[str, int]
) -> int:
    """Of a breaker's record and what is stored beside it, but for its settings."""
    found = xxh3_64(_encode([breaker_id, transition_seq, state, float(allow_rate), cut]))
    found.update(record or b"")
    return _signed(found)


def _signed(found: xxh3_64) -> int:
    """In 64 bits with a sign, as databases keep integers."""
    return int.from_bytes(found.digest(), "big", signed=True)
