"""What stream clients of one project have still to be told: one log of messages for all, and a place in it for each.

The newest `keep` messages are kept one by one; of older ones only the last of each breaker. So a client that keeps up
gets every message, one that falls behind gets the latest state of each breaker, in order either way, and a bulk change
of any size cuts nobody. What waits is bounded by the log, not by the number of clients. Pure: no waiting, no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple


class Piece(NamedTuple):
    """Messages in one run of bytes: how many, and the number of the last one. `unwanted`: so many were left out."""

    last: int
    messages: int
    data: bytes
    unwanted: int = 0


class Backlog:
    """Numbered messages, the oldest first. `keep`: so many of the newest are never merged. `most`: the bound of all;
    beyond it the oldest go, and who has not had them is `lost`. `taken`: the number up to which every client has all.
    """

    def __init__(self, keep: int, most: int, taken: Callable[[], int]) -> None:
        self._keep, self._most = keep, max(keep, most)
        self._taken = taken
        self._limit = 2 * keep
        self._numbers: list[int] = []
        self._names: list[str] = []
        self._messages: list[bytes] = []
        self._memo: tuple[int, int, Piece] | None = None
        self.newest = 0
        """The number of the last message so far; the first one is 1."""
        self.lost = 0
        """Who has not had the messages up to this one can't be brought up to date any more."""

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, name: str, message: bytes) -> None:
        """Appends the message of a stream name."""
        self.newest += 1
        self._numbers.append(self.newest)
        self._names.append(name)
        self._messages.append(message)
        if len(self._numbers) > self._limit:
            self._merge()

    def after(
        self, number: int, count_max: int, bytes_max: int, wanted: Callable[[int, str], bool] | None = None
    ) -> Piece:
        """At most so many messages and bytes behind a number, but one at least. Clients that stand at one place share
        the bytes. `wanted`: of these a client wants only messages with such a number and name."""
        if wanted is None and self._memo is not None and self._memo[:2] == (number, self.newest):
            return self._memo[2]
        start = bisect_right(self._numbers, number)
        end = self._fitting(start, count_max, bytes_max)
        if start == end:
            return Piece(number, 0, b"")
        if wanted is not None:
            names, numbers = self._names[start:end], self._numbers[start:end]
            places = zip(numbers, names, self._messages[start:end], strict=True)
            found = [message for n, name, message in places if wanted(n, name)]
            return Piece(numbers[-1], len(found), b"".join(found), len(numbers) - len(found))
        piece = Piece(self._numbers[end - 1], end - start, b"".join(self._messages[start:end]))
        self._memo = (number, self.newest, piece)
        return piece

    def _fitting(self, start: int, count_max: int, bytes_max: int) -> int:
        """The place behind the last message of a piece that begins at `start`."""
        sizes = list(accumulate(map(len, self._messages[start : start + count_max])))
        if not sizes or sizes[-1] <= bytes_max:
            return start + len(sizes)
        return start + max(1, bisect_right(sizes, bytes_max))

    def _merge(self) -> None:
        """Forgets what all clients have, what an older message of the same name adds to a newer one, and beyond `most`
        the oldest. It takes as many steps as there are messages, and as many come before the next time."""
        kept = self._standing()
        if len(kept) > self._most:
            self.lost = self._numbers[kept[-self._most - 1]]
            kept = kept[-self._most :]
        self._numbers = [self._numbers[i] for i in kept]
        self._names = [self._names[i] for i in kept]
        self._messages = [self._messages[i] for i in kept]
        self._limit = len(kept) + max(self._keep, len(kept))
        self._memo = None

    def _standing(self) -> list[int]:
        """Places of what somebody still needs, in order."""
        first, end = bisect_right(self._numbers, self._taken()), len(self._numbers)
        seen: set[str] = set()
        kept: list[int] = []
        for i in range(end - 1, first - 1, -1):
            if end - i <= self._keep or self._names[i] not in seen:
                kept.append(i)
            seen.add(self._names[i])
        return kept[::-1]
