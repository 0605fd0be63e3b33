"""The Journals as a replica sees them: how many there are, and what they are told or asked together.

What is announced goes to each of them: a replica that hears one of them is up to date, whichever else is away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Literal

from breaker_actors.errors import BreakersError
from breaker_actors.store.base import JournalCount
from breaker_actors.transport.peers import JournalPeer, Net, journal_name

COUNT_S = 5.0
"""How often they are counted: their number changes with a setting, at a start."""
ANNOUNCE_S = 1.0


class Journals:
    """Of one replica. `known`: how many there are at least."""

    def __init__(self, net: Net, store: JournalCount, known: int) -> None:
        self._net = net
        self._store = store
        self._known = known
        self._counting: asyncio.Task[None] | None = None
        # bounded by the callers, of whom each leaves one for each Journal, for ANNOUNCE_S at most
        self._telling: set[asyncio.Task[bool]] = set()

    def start(self) -> None:
        """Has them counted from here on."""
        self._counting = asyncio.create_task(self._count())

    def count(self) -> int:
        """How many there are, as far as the store has said."""
        return self._known

    def names(self) -> list[str]:
        return [journal_name(shard) for shard in range(self._known)]

    async def announce(self, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> None:
        """Tells all of them; returns when one has heard, or nobody can be told within ANNOUNCE_S. One that is away
        holds up nobody."""
        left = {asyncio.create_task(self._tell(name, kind, project_ids)) for name in self.names()}
        self._telling |= left
        for task in left:
            task.add_done_callback(self._telling.discard)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if any(task.result() for task in done):
                return

    async def ready(self) -> None:
        """Returns when each of them holds its shard."""
        await asyncio.gather(*(JournalPeer(self._net, name).ready() for name in self.names()))

    async def stop(self) -> None:
        tasks = [*self._telling, *((self._counting,) if self._counting is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            with contextlib.suppress(BreakersError):
                self._known = await self._store.journals()
            await asyncio.sleep(COUNT_S)

    async def _tell(self, name: str, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> bool:
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(ANNOUNCE_S):
                await JournalPeer(self._net, name).announce(kind, project_ids)
                return True
        return False
