"""How a new client is told a board: piece by piece in the order of names, as fast as it takes them. Pure, no waiting.

Nothing is kept for it but the name it has got to. Each piece tells the states of the moment it is given, and the client
follows the backlog from the moment of its first piece; what a piece has told already is left out there. So no change is
lost or told twice, each breaker's are told in order, and a client that stops reading holds one piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from api.stream.state_board import Board


class Reading:
    """A client's way through the board of its project, which may be another one with each piece.

    `more`: there are pieces left. `upto`: the number of the newest message when the last piece was given."""

    def __init__(self, board: Callable[[], Board]) -> None:
        self._board = board
        self._ends: list[str] = []
        self._numbers: list[int] = []
        self.more = True
        self.upto = 0

    def next(self, newest: int) -> bytes:
        """A piece; `newest` is the number of the message that brought the board to where it is."""
        data, end = self._board().piece(self._ends[-1] if self._ends else None)
        self.upto = newest
        if end is None:
            self.more = False
        elif self._numbers and self._numbers[-1] == newest:
            self._ends[-1] = end
        else:
            self._ends.append(end)
            self._numbers.append(newest)
        return data

    def lacks(self, number: int, name: str) -> bool:
        """Whether this message came after the piece that had, or would have had, its name."""
        at = bisect_left(self._ends, name)
        return number > (self._numbers[at] if at < len(self._ends) else self.upto)
