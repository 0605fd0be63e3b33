"""Who reads next: threads that read are few, and a read of an organisation with much may take a second.

So an organisation has all of them but one at most, however much it asks for at once, and organisations take turns: who
comes waits for one read of another, not for hundreds. A read that began goes on when its caller leaves, and keeps its
place until then.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TypeVar

from breaker_actors.errors import Unavailable

T = TypeVar("T")

_OWNER: ContextVar[str] = ContextVar("reads_for", default="")


def read_for(owner: str) -> None:
    """What this task reads from here on, and those that it begins, is for this organisation. What nobody asked for is
    the service's own, and has all threads."""
    _OWNER.set(owner)


class Readers:
    """The threads of a process that read. Those that wait are as many as their callers."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store-read")
        self._free = threads
        self._most = max(1, threads - 1)
        self._busy: Counter[str] = Counter()
        # who was served longest ago first
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def run(self, work: Callable[[], T]) -> T:
        """Its result, from a thread. Raises Unavailable after `shutdown`."""
        owner = _OWNER.get()
        await self._take(owner)
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, work)
        except RuntimeError:
            self._give_back(owner)
            raise Unavailable("the store is closed") from None
        if done.done():  # in line: what follows in the same round of the loop finds the place free
            self._ended(owner, done)
        else:
            done.add_done_callback(lambda ended: self._ended(owner, ended))
        return await asyncio.shield(done)

    def shutdown(self, wait: bool) -> None:
        """After the reads under way."""
        self._threads.shutdown(wait=wait)

    def _ended(self, owner: str, done: asyncio.Future[T]) -> None:
        self._give_back(owner)
        if not done.cancelled():
            done.exception()  # its caller may have left

    async def _take(self, owner: str) -> None:
        if self._may(owner):
            self._move(owner, 1)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._give_back(owner)  # it had come already
            raise

    def _may(self, owner: str) -> bool:
        return self._free > 0 and (not owner or self._busy[owner] < self._most)

    def _move(self, owner: str, places: int) -> None:
        self._free -= places
        self._busy[owner] += places
        if not self._busy[owner]:
            del self._busy[owner]

    def _give_back(self, owner: str) -> None:
        self._move(owner, -1)
        for waiting in [one for one in self._waiting if self._may(one)]:
            if self._serve(waiting):
                return

    def _serve(self, owner: str) -> bool:
        """Whether one of its reads that wait has the place now; there are none of callers who left."""
        line = self._waiting.pop(owner)
        while line:
            place = line.popleft()
            if not place.done():
                if line:
                    self._waiting[owner] = line  # behind the others
                self._move(owner, 1)
                place.set_result(None)
                return True
        return False
