"""Columns of text: where each one's bytes lie, and which are alike, found out without a look at each in Python.

Alike is what has the same bytes. Texts are put beside each other as 64-bit words and thrown into a table by a
hash of those; each is then compared with the first that fell into its place, word for word. What differs from it is
thrown again by another hash. So a hash decides how long that takes and never what is alike; texts made to collide go,
after a few rounds, into a dictionary one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from api.arrow.bounds import TEXT_BYTES_MAX
from breaker_actors.core.model import Flags, Int64

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Codes = npt.NDArray[np.intp]

ABSENT, TOO_LONG = -1, -2
"""Codes of no text. They count from the end of a table that has two places more than there are texts."""
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F], np.uint64)
"""Odd, of no meaning; one for each round."""
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
_EIGHT = 8
BLOCK = 1 << 13
"""Texts that are compared at a time: what that takes fits into a processor's cache."""


class Strings(NamedTuple):
    """Texts in some bytes. `valid`: which of them are there; None: all."""

    data: Bytes
    starts: Int64
    lengths: Int64
    valid: Flags | None


class Coded(NamedTuple):
    """A column of texts of which many are alike: each row's place in `texts`, or ABSENT or TOO_LONG."""

    codes: Codes
    texts: list[bytes]


class Traced(NamedTuple):
    """A column of texts that are looked at by few: the row of each in `strings`, ABSENT for none."""

    rows: Codes
    strings: Strings

    def wrong(self, length_max: int) -> Flags:
        """Rows that are no UTF-8, or of more characters than that."""
        lengths = self.strings.lengths
        bad = lengths > length_max
        if not self.strings.data.tobytes().isascii():
            for row in np.flatnonzero(lengths <= 4 * length_max).tolist():
                text = _decoded(self.bytes_of(row))
                bad[row] = text is None or len(text) > length_max
        return np.append(bad, False)[self.rows]

    def bytes_of(self, string: int) -> bytes:
        start = int(self.strings.starts[string])
        return self.strings.data[start : start + int(self.strings.lengths[string])].tobytes()

    def size(self, rows: Int64) -> int:
        """Bytes of those of some rows together, each as often as it comes."""
        return int(np.append(self.strings.lengths, 0)[self.rows[rows]].sum())

    def texts(self, rows: Int64) -> list[str]:
        """Those of some good rows, "" for none."""
        return ["" if at == ABSENT else self.bytes_of(at).decode() for at in self.rows[rows].tolist()]


def _decoded(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


class Pool:
    """Texts of all batches of a column, or of a dictionary as its batches made it."""

    def __init__(self) -> None:
        self._parts: list[Strings] = []
        self._n = self._bytes = 0

    def __len__(self) -> int:
        return self._n

    def add(self, more: Strings) -> int:
        """Where its first text stands now."""
        start, self._n = self._n, self._n + len(more.starts)
        self._parts.append(more._replace(starts=more.starts + self._bytes) if self._bytes else more)
        self._bytes += len(more.data)
        return start

    def strings(self) -> Strings:
        """All of them."""
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        valid = None
        if any(part.valid is not None for part in parts):
            every = [np.ones(len(p.starts), np.bool_) if p.valid is None else p.valid for p in parts]
            valid = np.concatenate(every)
        return Strings(
            np.concatenate([part.data for part in parts] or [np.empty(0, np.uint8)]),
            np.concatenate([part.starts for part in parts] or [np.empty(0, np.int64)]),
            np.concatenate([part.lengths for part in parts] or [np.empty(0, np.int64)]),
            valid,
        )


def coded(strings: Strings) -> Coded:
    """Which of the texts are alike; those that are, are told once, in order of appearance."""
    known: dict[bytes, int] = {}
    n = len(strings.starts)
    codes = np.empty(n, np.intp)
    for start in range(0, n, BLOCK):
        rows = slice(start, start + BLOCK)
        valid = None if strings.valid is None else strings.valid[rows]
        codes[rows] = _block(Strings(strings.data, strings.starts[rows], strings.lengths[rows], valid), known)
    return Coded(codes, list(known))


def _block(strings: Strings, known: dict[bytes, int]) -> Codes:
    """Codes of a stretch of texts; those that come for the first time are added to the known ones."""
    data, starts, lengths, valid = strings
    is_short = lengths <= TEXT_BYTES_MAX
    if valid is not None:
        is_short &= valid
    first = np.full(len(starts), ABSENT, np.intp)
    widths = (lengths + _EIGHT - 1) // _EIGHT
    for width in np.flatnonzero(np.bincount(widths[is_short])).tolist():
        rows = np.flatnonzero(is_short & (widths == width))
        first[rows] = rows[_first_alike(_words(data, starts[rows], lengths[rows], width))]
    heads = np.flatnonzero(first == np.arange(len(starts)))
    place = np.full(len(starts) + 1, ABSENT, np.intp)
    spans = zip(starts[heads].tolist(), lengths[heads].tolist(), strict=True)
    texts = (bytes(data.data[start : start + n]) for start, n in spans)
    place[heads] = [known.setdefault(text, len(known)) for text in texts]
    codes = place[first]
    too_long = lengths > TEXT_BYTES_MAX
    if too_long.any():
        codes[too_long] = TOO_LONG
    return codes


def _words(data: Bytes, starts: Int64, lengths: Int64, width: int) -> Words:
    """Texts of one width as columns of words, the first of which are their lengths; zeros behind their end."""
    words = np.empty((width + 1, len(starts)), np.uint64)
    words[0] = lengths
    if width:
        size = _EIGHT * width
        last = len(data) - size  # from here on words go beyond the end of the data
        late = np.flatnonzero(starts > last)
        if last >= 0:
            windows = np.lib.stride_tricks.sliding_window_view(data, size)
            words[1:] = windows[np.minimum(starts, last)].view("<u8").T
        if len(late):
            tail = np.concatenate([data[max(0, last) :], np.zeros(size, np.uint8)])
            windows = np.lib.stride_tricks.sliding_window_view(tail, size)
            words[1:, late] = windows[starts[late] - max(0, last)].view("<u8").T
        words[width] &= _MASKS[lengths - _EIGHT * (width - 1)]
    return words


def _first_alike(words: Words) -> Codes:
    """For each text the first one that is equal to it."""
    first = np.arange(words.shape[1])
    left = first
    for factor in _FACTORS:
        rest = words if len(left) == len(first) else words[:, left]
        slots = _slots(rest, factor)
        table = np.empty(1 << _bits(len(left)), np.intp)
        table[slots[::-1]] = np.arange(len(left))[::-1]  # of several the last assignment holds: that of the first text
        found = table[slots]
        differs = np.zeros(len(left), np.bool_)
        for column in rest:
            differs |= column != column[found]
        if not differs.any():
            first[left] = left[found]
            return first
        alike = ~differs
        first[left[alike]] = left[found[alike]]
        left = left[differs]
    known: dict[bytes, int] = {}
    for text, row in zip(np.ascontiguousarray(words[:, left].T), left.tolist(), strict=True):
        first[row] = known.setdefault(text.tobytes(), row)
    return first


def _bits(n: int) -> int:
    """Of a table that holds so many texts without much crowding."""
    return max(8, (4 * n).bit_length())


def _slots(words: Words, factor: np.uint64) -> Codes:
    """The place of each text in such a table."""
    mixed = words[0] * factor
    for column in words[1:]:
        mixed ^= mixed >> np.uint64(29)
        mixed ^= column
        mixed *= factor
    mixed ^= mixed >> np.uint64(32)
    mixed *= factor
    slots: Codes = (mixed >> np.uint64(64 - _bits(len(mixed)))).astype(np.intp)
    return slots
