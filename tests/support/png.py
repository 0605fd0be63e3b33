"""The pixels of a screenshot, for tests that look at one: 8 bits a channel, not interlaced."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

CHANNELS = {2: 3, 6: 4}


def pixels(path: Path) -> npt.NDArray[np.uint8]:
    """Rows x columns x (red, green, blue)."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", body)
        packed += body if kind == b"IDAT" else b""
        at += length + 12
    assert (depth, interlaced) == (8, 0)
    return _unfiltered(zlib.decompress(packed), width, height, CHANNELS[colour])[:, :, :3]


def _unfiltered(rows: bytes, width: int, height: int, channels: int) -> npt.NDArray[np.uint8]:
    stride, above = width * channels, bytes(width * channels)
    out = np.empty((height, stride), np.uint8)
    for number in range(height):
        start = number * (stride + 1)
        above = _row(rows[start], bytearray(rows[start + 1 : start + 1 + stride]), above, channels)
        out[number] = np.frombuffer(above, np.uint8)
    return out.reshape(height, width, channels)


def _row(how: int, row: bytearray, above: bytes, channels: int) -> bytes:
    """One row, each byte told as a difference to what its neighbours foretell."""
    if how == 2:
        return bytes(((np.frombuffer(row, np.uint8) + np.frombuffer(above, np.uint8)) & 255).astype(np.uint8))
    for i in range(len(row)) if how else ():
        left, corner = (row[i - channels], above[i - channels]) if i >= channels else (0, 0)
        row[i] = (row[i] + (left, 0, (left + above[i]) // 2, _nearest(left, above[i], corner))[how - 1]) & 255
    return bytes(row)


def _nearest(left: int, up: int, corner: int) -> int:
    """Of the three, the one next to left + up - corner."""
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))
