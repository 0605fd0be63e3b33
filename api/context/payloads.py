"""In which of the open protocols a request is, by its headers: how its body is unpacked, and how it is read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from quart import request
from werkzeug.http import parse_options_header

from api.admission.inflate import Inflation
from api.protocols import otlp_json, otlp_protobuf, remote_write1, remote_write2
from api.protocols.memory import Memory
from api.protocols.points import Points
from api.protocols.snappy import inflate
from breaker_actors.errors import UnsupportedMedia

Inflate = Callable[[bytes, int], Awaitable[bytes]]
"""From a body as it was sent to the plain one of so many bytes at most."""
Decode = Callable[[bytes, Memory], Points]
"""From a plain body, and what is remembered of its project's, to its points; raises what is wrong with it."""

JSON, PROTOBUF = "application/json", "application/x-protobuf"
V1, V2 = "prometheus.WriteRequest", "io.prometheus.write.v2.Request"
_REMOTE_WRITE: dict[str, Decode] = {V1: remote_write1.decode, V2: remote_write2.decode}
COATS = ("", "identity", "gzip", "x-gzip")
_METRICS = re.compile(rb'\s*\{\s*"resourceMetrics"\s*:')


def written_version() -> str:
    """The message of remote-write that Content-Type names; without `proto` it is 1.0. Looks at Content-Encoding as
    well. Raises UnsupportedMedia."""
    kind, options = parse_options_header(request.headers.get("Content-Type"))
    version = options.get("proto", V1)
    if kind != PROTOBUF or version not in _REMOTE_WRITE:
        raise UnsupportedMedia(f"Content-Type is {PROTOBUF}, with proto={V1} or {V2}.")
    if _coat("snappy") != "snappy":
        raise UnsupportedMedia("Content-Encoding is snappy, in its block format.")
    return version


def written_decoder(version: str) -> Decode:
    """Reads requests of that message of remote-write."""
    return _REMOTE_WRITE[version]


def previewed_payload(raw: bytes) -> tuple[Inflate, Decode] | None:
    """How a body that may be of any of the protocols is read: a snappy block is remote-write, JSON that begins with
    `resourceMetrics` is OTLP; None where it is of no protocol. Raises UnsupportedMedia."""
    if request.mimetype == PROTOBUF:
        if _coat() == "snappy" or "proto=" in request.headers.get("Content-Type", ""):
            return unsnap, written_decoder(written_version())
        return gunzip, otlp_protobuf.decode
    if _coat() == "gzip" or _METRICS.match(raw):
        return gunzip, otlp_json.decode
    return None


async def gunzip(raw: bytes, bytes_max: int) -> bytes:
    """The body without the coat that Content-Encoding names: gzip, or none. Raises UnsupportedMedia for others."""
    if _coat() not in COATS:
        raise UnsupportedMedia("Content-Encoding is gzip, or none.")
    body = Inflation(raw, _coat(), bytes_max, structure_max=None)
    while not body.done:
        body.step()
        await asyncio.sleep(0)
    return bytes(body.plain)


async def unsnap(raw: bytes, bytes_max: int) -> bytes:
    """The body out of its snappy block."""
    return inflate(raw, bytes_max)


def _coat(default: str = "") -> str:
    return request.headers.get("Content-Encoding", default).strip().lower()
