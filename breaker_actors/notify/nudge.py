"""Tells the Notifier of new rows: at most one call is under way, and none is waited for."""

from __future__ import annotations

import asyncio
import contextlib

from breaker_actors.errors import BreakersError
from breaker_actors.transport.peers import Net, NotifierPeer


class Nudge:
    """Call it after rows were committed. A call that gets lost is made up for: the Notifier looks by itself, too."""

    def __init__(self, net: Net) -> None:
        self._peer = NotifierPeer(net)
        self._wanted = False
        self._telling: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        self._wanted = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        while self._wanted:
            self._wanted = False
            with contextlib.suppress(BreakersError):
                await self._peer.nudge()
