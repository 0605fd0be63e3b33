"""A request of remote-write 2.0 as the strings and time series that it holds, split by the protobuf library in one go.

Only what is spelled as encoders do is split: a message that has other fields, too, or spells a size with more bytes
than it needs, is longer than one of the same strings and time series.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from api.protocols.bounds import ENTRIES_MAX, SYMBOLS_MAX

BYTES_MAX = 1 << 21
"""Longer requests are not split: one of a million empty fields takes 32 MB meanwhile."""


def _request() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="split.proto", package="breakers.split", syntax="proto3")
    request = file.message_type.add(name="Request")
    for name, number in (("symbols", 4), ("timeseries", 5)):
        request.field.add(name=name, number=number, label=3, type=12)  # repeated bytes
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("breakers.split.Request"))


_Request = _request()


def split(body: bytes) -> tuple[list[bytes], list[bytes]] | None:
    """Strings and time series, each in order. None where the body has to be read field by field: it is no message, or
    has anything else, or too much."""
    if len(body) > BYTES_MAX:
        return None
    request = _Request()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return None
    request.DiscardUnknownFields()
    symbols, series = request.symbols, request.timeseries
    if request.ByteSize() != len(body) or len(symbols) > SYMBOLS_MAX or len(series) > ENTRIES_MAX:
        return None
    return symbols[:], series[:]
