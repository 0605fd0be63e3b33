"""Snappy's block format (format_description.txt of google/snappy): the coat of remote-write."""

from __future__ import annotations

import cramjam

from api.protocols.bounds import SNAPPY_RATIO_MAX
from api.protocols.protobuf import read_varint
from breaker_actors.errors import BadRequest, PayloadTooLarge


def inflate(body: bytes, bytes_max: int) -> bytes:
    """The plain bytes of a block. What it says it holds is looked at before anything is inflated: at most `bytes_max`
    (else PayloadTooLarge) and SNAPPY_RATIO_MAX times its size. Raises BadRequest for a block that is broken."""
    try:
        size, _ = read_varint(body, 0, len(body), 5)
    except BadRequest:
        raise _broken() from None
    if size > bytes_max:
        raise PayloadTooLarge(f"The body holds {size} bytes, at most {bytes_max} are taken.", {"where": "body"})
    if size > SNAPPY_RATIO_MAX * len(body):
        raise _broken()
    try:
        plain = bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise _broken() from None
    if len(plain) != size:
        raise _broken()
    return plain


def _broken() -> BadRequest:
    return BadRequest("The body is not a valid snappy block.", {"where": "body"})
