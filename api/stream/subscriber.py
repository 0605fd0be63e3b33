"""One stream client of a replica: its place in the backlog of its project, and the task that writes to its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from api.admission.outgoing import Direct
from api.stream.backlog import Backlog, Piece
from api.stream.reading import Reading
from api.stream.sse import HEARTBEAT
from api.stream.state_board import PIECE_BYTES_MAX, PIECE_MAX, Board
from breaker_actors.telemetry.meters import Meters

Ending = Literal["left", "slow", "gone", "revoked", "stopped"]
"""Why a stream ended: its client left, was too slow, its project or its key is gone, or this replica stops."""
BEATS_MISSED_MAX = 12
"""A client that takes nothing for so many heartbeats (a minute) while something waits is cut."""


class Subscriber:
    """`key`: the organisation and the id of the API key it came with. `taken`: the number of the last message it was
    given. `live`: it has got its snapshot, or the first piece of it. `direct`: where what is new is written while its
    task waits, so that it need not wake."""

    __slots__ = (
        *("_backlog", "_beat", "_direct", "_meters", "_missed", "_reading", "_task", "_waiting"),
        *("ended", "key", "live", "taken"),
    )

    def __init__(
        self,
        backlog: Backlog,
        task: asyncio.Task[object] | None,
        key: tuple[str, str] | None,
        meters: Meters,
        direct: Direct | None = None,
    ) -> None:
        self.key = key
        self.live = False
        self.taken = 0
        self.ended: Ending = "left"
        self._backlog = backlog
        self._task = task
        self._meters = meters
        self._direct = direct
        self._waiting: asyncio.Future[None] | None = None
        self._reading: Reading | None = None
        self._beat = False
        self._missed = 0

    def begin(self, board: Callable[[], Board]) -> bytes:
        """The first piece of the states of now, none when there are none: from here on it follows the backlog."""
        self.live, self.taken = True, self._backlog.newest
        self._reading = Reading(board)
        return self._read(self._reading)

    def _read(self, reading: Reading) -> bytes:
        piece = reading.next(self._backlog.newest)
        self._read_out()
        return piece

    def _read_out(self) -> None:
        """From where all pieces were given it is told what the others are told."""
        if self._reading is not None and not self._reading.more and self.taken >= self._reading.upto:
            self._reading = None

    def wake(self) -> None:
        """Something may be there for it."""
        if self._waiting is None or self._waiting.done():
            return
        if self._direct is None or not self._tell(self._direct):
            self._waiting.set_result(None)

    def _tell(self, direct: Direct) -> bool:
        """Writes what is there in its task's place, which waits. False: something is left for the task, as the
        connection takes no more now, or there is more than one piece."""
        if self.taken < self._backlog.newest:
            piece = self._piece()
            if piece.data and not direct.write(piece.data):
                return False
            self._note(piece)
        elif self._beat and not direct.write(HEARTBEAT):
            return False
        self._beat = False
        return self.taken == self._backlog.newest

    def beat(self) -> bool:
        """Has a heartbeat sent if it waits for something to say. False: it has not come back for too many of them."""
        if self._waiting is None:
            self._missed += 1
            return self._missed <= BEATS_MISSED_MAX
        self._beat = True
        self.wake()
        return True

    async def next(self) -> bytes:
        """The rest of its snapshot, then what waits, at most PIECE_MAX messages and PIECE_BYTES_MAX bytes; what is left
        comes with the next call."""
        self._missed = 0
        while True:
            if self._reading is not None and self._reading.more:
                piece = self._read(self._reading)
            else:
                while self.taken == self._backlog.newest and not self._beat:
                    await self._news()
                self._beat = False
                piece = HEARTBEAT if self.taken == self._backlog.newest else self._take()
            if piece:
                return piece

    def _take(self) -> bytes:
        """What comes next in the backlog; nothing when its snapshot had all of that."""
        piece = self._piece()
        self._note(piece)
        return piece.data

    def _piece(self) -> Piece:
        wanted = self._reading.lacks if self._reading is not None else None
        return self._backlog.after(self.taken, PIECE_MAX, PIECE_BYTES_MAX, wanted)

    def _note(self, piece: Piece) -> None:
        """It was given this."""
        self._meters.count("breakers_stream_messages_total", piece.messages)
        if merged := piece.last - self.taken - piece.messages - piece.unwanted:
            self._meters.count("breakers_stream_messages_merged_total", merged)
        self.taken = piece.last
        self._read_out()

    async def _news(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def cut(self, why: Ending) -> None:
        """Ends the client's task wherever it waits, be it in a write nobody reads.

        The response is left unfinished, so the server drops the connection: a clean end would silence one public
        client for good.
        """
        self.live = False
        self.ended = why
        if self._task is not None:
            self._task.cancel()
