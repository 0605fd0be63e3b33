"""What one replica has on its way out at a time: bytes of large answers, bounded for all callers together and for each.

An answer lies in memory until its client has read it. So answers above LARGE_BYTES count for whoever asked, in the same
parts as bodies (api/admission/shares.py), until all is written or the client is gone. They go out in pieces of
PIECE_BYTES, each when the connection has taken the one before. A share that is full is made free like that of bodies
(api/admission/room.py): who needs a place in it takes it from the answer whose reader lags most; a piece that is not
taken within STILL_S ends its answer in any case. An answer that ends early is cut, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from api.admission.pace import credited
from api.admission.room import PATIENCE_S, Need, Room, end_at_once
from api.admission.shares import Holder, Holders, Shares

LARGE_BYTES = 64 << 10
"""Up to here an answer goes out at once, into what a connection may have waiting anyway."""
PIECE_BYTES = 64 << 10
STILL_S = 60.0
"""How long a client may take for one piece: as long as a connection may be silent."""
GRACE_S = 5.0
"""What a reader may stall: at the slowest pace one piece takes 4 s."""

DEPARTURE = "breakers.departure"
"""Where the scope of a request has its Departure."""
DIRECT = "breakers.direct"
"""Where it has its Direct, if the server gave one."""

Send = Callable[[Any], Awaitable[None]]


class Direct(Protocol):
    """The connection of one answer that has begun and has no end yet, past all that is between it and the app. It is
    for many small pieces, each the same for many callers: no task wakes for them."""

    def write(self, piece: bytes) -> bool:
        """Writes a piece of the body, not an empty one. False: nothing is written, since the connection takes nothing
        now, or no more; who goes on by `send` waits for it there."""


class AnswerShares(Shares):
    """An answer fits wherever anything is left, whatever its size: how large it is, is known when it is there, and
    nothing but waiting would make it smaller. So a holder has its part and one answer more at most."""

    def full(self, holders: Holders, n: int = 1) -> Holder | None:
        return super().full(holders, min(n, 1))


class Outlet:
    """The bounds of one replica. `still`: answers ended since a piece was not taken in time."""

    def __init__(self, monotonic: Callable[[], float], bytes_max: int) -> None:
        self.bytes = AnswerShares("bytes of answers", bytes_max)
        self.room = Room(monotonic)
        self.monotonic = monotonic
        self.patience_s = PATIENCE_S
        self.still_s = STILL_S
        self.still = 0


class Departure:
    """The answer of one request on its way out."""

    __slots__ = (
        *("_begun", "_given_up", "_holders", "_outlet", "_send", "_timeout"),
        *("held_bytes", "lags_from_s"),
    )

    def __init__(self, outlet: Outlet, send: Send) -> None:
        self._outlet = outlet
        self._send = send
        self._holders: Holders = ()
        self.held_bytes = 0
        self.lags_from_s = 0.0
        self._timeout: asyncio.Timeout | None = None
        self._given_up = self._begun = False

    async def expect(self, holders: Holders, n: int) -> None:
        """Counts an answer of about `n` bytes before anything is done for it, waiting for room if need be. Raises
        Overloaded."""
        if n <= LARGE_BYTES or self.held_bytes:
            return
        await self._outlet.room.take(self._need(holders, n), self._outlet.patience_s)
        self._holders, self.held_bytes = holders, n

    def hold(self, holders: Holders, n: int, done: bool) -> None:
        """Counts the answer as it is, in place of what was expected. `done`: what was asked for is done, so it has to
        be told; else Overloaded is raised beyond a share."""
        n = n if n > LARGE_BYTES else 0
        if n and not self.held_bytes and not done:
            self._outlet.room.claim(self._need(holders, n))
        else:
            if n:
                self._outlet.bytes.add(holders, n)
            self._free()
        self._holders, self.held_bytes = holders, n

    async def send(self, message: Any) -> None:
        """Hands a message to the server; the body of an answer that counts in pieces. Ends the request, cancelled, when
        its client does not take them."""
        if not self.held_bytes:
            return await self._send(message)
        arriving, holders = self._outlet.room.arriving, self._holders
        if not self._begun:
            self._begun, self.lags_from_s = True, self._outlet.monotonic() + GRACE_S
        arriving.add(self, holders)
        try:
            body = message.get("body", b"")
            for start in range(0, max(1, len(body)), PIECE_BYTES):
                piece = body[start : start + PIECE_BYTES]
                more = start + PIECE_BYTES < len(body)
                await self._hand_on({**message, "body": piece, "more_body": True} if more else _last(message, piece))
                self.lags_from_s = credited(self.lags_from_s, self._outlet.monotonic(), len(piece), GRACE_S)
        finally:
            if not self._given_up:
                arriving.remove(self, holders)

    async def _hand_on(self, message: Any) -> None:
        try:
            async with asyncio.timeout(self._outlet.still_s) as self._timeout:
                await self._send(message)
        except TimeoutError:
            self._outlet.still += not self._given_up
            raise asyncio.CancelledError from None
        finally:
            self._timeout = None
        if self._given_up:
            raise asyncio.CancelledError

    def give_up(self) -> None:
        """Gives back at once what the answer holds, and cuts it."""
        self._given_up = True
        self._outlet.room.arriving.remove(self, self._holders)
        self._free()
        end_at_once(self._timeout)

    def close(self) -> None:
        """The answer is written, or its client is gone."""
        self._free()

    def _need(self, holders: Holders, n: int) -> Need:
        return Need(self._outlet.bytes, holders, n, of_bytes=True)

    def _free(self) -> None:
        if self.held_bytes:
            self._outlet.room.give_back(self._need(self._holders, self.held_bytes))
            self.held_bytes = 0


def _last(message: Any, piece: bytes) -> Any:
    return {**message, "body": piece} if "body" in message else message
