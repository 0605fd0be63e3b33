"""The messages of an Arrow IPC stream (arrow.apache.org, "columnar format", "encapsulated message format")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from api.arrow.bounds import MESSAGES_MAX, METADATA_BYTES_MAX
from api.arrow.flatbuffer import Table, broken
from breaker_actors.errors import PayloadTooLarge

SCHEMA, DICTIONARY, ROWS = 1, 2, 3
_CONTINUES = b"\xff\xff\xff\xff"
_V4, _V5 = 3, 4
_FILE = b"ARROW1"


class Message(NamedTuple):
    """`kind`: one of the above. `header`: its table. `body`: the bytes of its buffers."""

    kind: int
    header: Table
    body: memoryview


def messages(plain: memoryview) -> Iterator[Message]:
    """The messages of a stream, the schema first. Raises BadRequest where it is broken, cut off or goes on behind its
    end, PayloadTooLarge beyond MESSAGES_MAX."""
    if plain[: len(_FILE)] == _FILE:
        raise broken("this is an Arrow file. Write a stream: write_ipc_stream, pa.ipc.new_stream.", "body")
    at = number = 0
    while True:
        where = "schema" if number == 0 else f"message {number}"
        mark, size = plain[at : at + 4], int.from_bytes(plain[at + 4 : at + 8], "little")
        if len(plain) - at < 8:
            raise broken("it does not end with an end-of-stream mark. Was its writer closed?", where)
        if mark != _CONTINUES:
            raise broken("a message does not begin as those of Arrow 0.15 and later do.", where)
        at += 8
        if size == 0:
            break
        if size > METADATA_BYTES_MAX:
            raise PayloadTooLarge(f"Metadata of a message has at most {METADATA_BYTES_MAX} bytes.", {"where": where})
        if number > MESSAGES_MAX:
            raise PayloadTooLarge(
                f"An Arrow stream has at most {MESSAGES_MAX} batches. Write larger ones (rechunk, combine_chunks).",
                {"where": where},
            )
        message, at = _message(plain, at, size, where)
        if (message.kind == SCHEMA) != (number == 0) or message.kind not in (SCHEMA, DICTIONARY, ROWS):
            raise broken("a message is of a kind that does not belong here.", where)
        yield message
        number += 1
    if number == 0:
        raise broken("it has no schema.", "schema")
    if at != len(plain):
        raise broken("something follows its end.", f"byte {at}")


def _message(plain: memoryview, at: int, size: int, where: str) -> tuple[Message, int]:
    if size > len(plain) - at:
        raise broken("it is cut off.", where)
    table = Table.root(plain[at : at + size], where)
    if table.int16(0) not in (_V4, _V5):
        raise broken("its metadata is of another version than V4 or V5.", where)
    at, n = at + size, table.int64(3)
    if not 0 <= n <= len(plain) - at:
        raise broken("a body is cut off.", where)
    return Message(table.int8(1), table.needed(2), plain[at : at + n]), at + n
