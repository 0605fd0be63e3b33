"""The body of an ingest request without its gzip coat, in steps, so that neither bytes nor time run away.

What a body may become is bound by what was sent (INFLATED_FREE bytes, or INFLATED_RATIO times as much) and by the
setting BREAKERS_MAX_INFLATED_BYTES; what it may hold by STRUCTURE_MAX. Both are looked at after every step.
"""

from __future__ import annotations

import zlib

from breaker_actors.errors import BadRequest, PayloadTooLarge

STEP_BYTES = 1 << 18
"""What one step inflates at most: about half a millisecond."""
INFLATED_FREE = 1 << 20
INFLATED_RATIO = 64
"""Samples whose times and values differ shrink by less than this, however much else of them repeats."""
STRUCTURE_MAX = 200_000
"""Commas and quotes in one body: 1000 samples with every field and 32 tags have 185,000. Reading costs by these."""
GZIP_MEMBERS_MAX = 16
_FEED_BYTES = 1 << 16


class Inflation:
    """One body on its way out of its coat. Raises BadRequest for a coat that is broken or unknown, PayloadTooLarge
    beyond a bound."""

    def __init__(
        self, body: bytes, encoding: str | None, bytes_max: int, structure_max: int | None = STRUCTURE_MAX
    ) -> None:
        """`structure_max` None: who reads the body looks at what it holds by himself."""
        word = (encoding or "").strip().lower()
        if word not in ("", "identity", "gzip", "x-gzip"):
            raise BadRequest(f"Content-Encoding {word[:40]!r} is not supported.")
        self._body = memoryview(body)
        self._at = 0  # of the body: what is before it is done
        self._member: zlib._Decompress | None = None
        self._members = 0
        self._structure = 0
        self._structure_max = structure_max
        self._bytes_max = bytes_max
        self.done = word in ("", "identity")
        self._counted = 0  # of what is plain
        self.plain: bytes | bytearray = body if self.done else bytearray()
        if self.done:
            self._check()
        else:
            self._bytes_max = min(bytes_max, max(INFLATED_FREE, INFLATED_RATIO * len(body)))

    def step(self, bytes_max: int = STEP_BYTES) -> None:
        """Inflates up to `bytes_max` more."""
        end = len(self.plain) + bytes_max
        while len(self.plain) < end and not self.done:
            self._feed(end - len(self.plain))

    def _feed(self, room: int) -> None:
        member = self._member or self._begin()
        piece = self._body[self._at : self._at + _FEED_BYTES]
        try:
            plain = member.decompress(piece, room)
        except zlib.error:
            raise BadRequest("The body is not valid gzip.") from None
        self._at += len(piece) - len(member.unconsumed_tail) - len(member.unused_data)
        self.plain += plain
        self._check()
        if member.eof:
            self._member, self.done = None, self._at == len(self._body)
        elif not plain and self._at == len(self._body):
            raise BadRequest("The gzip body ends early.")

    def _begin(self) -> zlib._Decompress:
        # Each member costs a new state of 32 KiB, so a body of nothing but empty members must not get far.
        self._members += 1
        if self._members > GZIP_MEMBERS_MAX:
            raise BadRequest("The gzip body has too many members.")
        self._member = zlib.decompressobj(wbits=31)
        return self._member

    def _check(self) -> None:
        if len(self.plain) > self._bytes_max:
            raise PayloadTooLarge("The body is too large, or too large after gzip for what was sent.")
        if self._structure_max is None or len(self.plain) <= self._structure_max:
            return
        start, self._counted = self._counted, len(self.plain)
        self._structure += self.plain.count(b",", start) + self.plain.count(b'"', start)
        if self._structure > self._structure_max:
            raise PayloadTooLarge("The body holds too many values.")
