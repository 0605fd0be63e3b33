"""Protobuf's wire format, https://protobuf.dev/programming-guides/encoding: fields of a message, within bounds.

Agrees with the reference parser wherever that accepts, but for groups, which nobody writes and which are refused.
"""

from __future__ import annotations

from api.protocols.bounds import FIELDS_MAX, NATIVE_BUCKETS_MAX
from breaker_actors.errors import BadRequest, PayloadTooLarge

_64 = (1 << 64) - 1


def unreadable(where: str, what: str) -> BadRequest:
    """The error for a message that can't be read: where, and what is wrong there."""
    return BadRequest(f"The body can't be read: {what} at {where}.", {"where": where})


def cut_off(at: int) -> BadRequest:
    """The error for a field that ends behind its message."""
    return unreadable(f"byte {at}", "a field is cut off")


def read_varint(data: bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """A number of at most `most` bytes, and where what follows begins. Bits beyond the 64th are dropped."""
    value = shift = 0
    for place in range(at, min(end, at + most)):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _64, place + 1
        shift += 7
    raise cut_off(at) if at + most > end else unreadable(f"byte {at}", "a number is too long")


def signed64(value: int) -> int:
    """The int64 of a varint."""
    return value - (1 << 64) if value >> 63 else value


def zigzag32(value: int) -> int:
    """The sint32 of a varint."""
    value &= 0xFFFF_FFFF
    return (value >> 1) ^ -(value & 1)


def zigzag64(value: int) -> int:
    """The sint64 of a varint."""
    return (value >> 1) ^ -(value & 1)


class Reader:
    """Reads messages of one body, or of a part of what another reads. All that they read field by field comes off one
    budget of FIELDS_MAX, buckets of native histograms off one of NATIVE_BUCKETS_MAX."""

    __slots__ = ("budget", "data")

    def __init__(self, data: bytes, other: Reader | None = None) -> None:
        self.data = data
        self.budget: list[int] = [FIELDS_MAX, NATIVE_BUCKETS_MAX] if other is None else other.budget

    def fields(self, at: int, end: int) -> list[tuple[int, int, int]]:
        """The fields of the message in data[at:end], in order: tag (number << 3 | wire type) with value and 0 for
        varints, with begin and end of its bytes for all others."""
        data, found = self.data, list[tuple[int, int, int]]()
        add, left = found.append, self.budget[0]
        while at < end:
            begun, tag = at, data[at]
            at += 1
            if tag > 127:
                tag, at = self.tag(begun, end)
            wire = tag & 7
            if wire == 2:
                if at < end and data[at] < 128:
                    size, at = data[at], at + 1
                    if at + size > end:
                        raise cut_off(begun)
                elif at + 1 < end and data[at + 1] < 128:
                    size, at = data[at] & 127 | data[at + 1] << 7, at + 2
                    if at + size > end:
                        raise cut_off(begun)
                else:
                    size, at = self.size(at, end)
                add((tag, at, at + size))
                at += size
            elif wire == 0:
                if at < end and data[at] < 128:
                    add((tag, data[at], 0))
                    at += 1
                else:
                    value, at = read_varint(data, at, end, 10)
                    add((tag, value, 0))
            elif wire == 1 or wire == 5:
                size = 8 if wire == 1 else 4
                if at + size > end:
                    raise cut_off(begun)
                add((tag, at, at + size))
                at += size
            else:
                raise unreadable(f"byte {begun}", "there is a group or an unknown kind of field")
            if tag < 8:
                raise unreadable(f"byte {begun}", "a field has number 0")
            if len(found) > left:
                raise too_many_fields()
        self.budget[0] = left - len(found)
        return found

    def run(self, tag: int, at: int, end: int) -> tuple[list[tuple[int, int]], int]:
        """Begin and end of the messages in a row that `data[at:end]` begins with, of one tag below 128, and where what
        follows begins: another field, or one of 16,384 bytes or more, or cut off. They are fields as `fields` counts
        them."""
        data, found, last = self.data, list[tuple[int, int]](), end - 3
        add = found.append
        while at < last and data[at] == tag:
            size, begin = data[at + 1], at + 2
            if size > 127:
                if data[begin] > 127:
                    break
                size, begin = size & 127 | data[begin] << 7, begin + 1
            behind = begin + size
            if behind > end:
                break
            add((begin, behind))
            at = behind
        self.spend(len(found))
        return found, at

    def tag(self, at: int, end: int) -> tuple[int, int]:
        """A tag of any length, and where it ends."""
        tag, after = read_varint(self.data, at, end, 5)
        if tag >> 32:
            raise unreadable(f"byte {at}", "a tag is too large")
        return tag, after

    def size(self, at: int, end: int) -> tuple[int, int]:
        """The size of what begins behind it, and where that is; it ends at `end` at the latest."""
        size, after = read_varint(self.data, at, end, 5)
        if after + size > end:
            raise cut_off(at)
        return size, after

    def spend(self, numbers: int) -> None:
        """Takes packed numbers off the budget. Raises PayloadTooLarge beyond it."""
        self.budget[0] -= numbers
        if self.budget[0] < 0:
            raise too_many_fields()

    def takes_buckets(self, buckets: int) -> bool:
        """Whether there is room for so many more buckets; they are taken off."""
        has_room = buckets <= self.budget[1]
        self.budget[1] -= buckets * has_room
        return has_room

    def varints(self, at: int, end: int) -> list[int]:
        """Packed varints."""
        block = self.data[at:end]
        self.spend(len(block))
        if block.isascii():
            return list(block)
        numbers = []
        while at < end:
            number, at = read_varint(self.data, at, end, 10)
            numbers.append(number)
        return numbers


def too_many_fields() -> PayloadTooLarge:
    """The error beyond FIELDS_MAX."""
    return PayloadTooLarge(f"The body holds more than {FIELDS_MAX} fields.", {"where": "body"})


def encode_varint(value: int) -> bytes:
    """A number of 0 to 2**64 - 1."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def encode_block(tag: int, content: bytes) -> bytes:
    """A field with bytes, text or a message."""
    return encode_varint(tag) + encode_varint(len(content)) + content
