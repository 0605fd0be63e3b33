"""Knocks: replicas show routers' owners that samples could reach them, whether or not there are any.

A router that nobody could reach must not take silence for evidence (semantics.md section 2). It can't tell by itself
whether there is nothing to say or nobody who could say it.
"""

from __future__ import annotations

import asyncio
import contextlib

from breaker_actors.errors import BreakersError
from breaker_actors.guard import one_round
from breaker_actors.net import DirectoryPeer, Net, RouterPeer

KNOCK_MS = 1_000
FIRST_S = 0.1


class Knocking:
    """Knocks at every RouterActor once in KNOCK_MS, with one knock at a time under way to each."""

    def __init__(self, net: Net) -> None:
        self._net = net
        self._names: list[str] = []
        self._knocks: dict[str, asyncio.Task[None]] = {}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._running, *self._knocks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await one_round("knocking", self._round())
            await asyncio.sleep(KNOCK_MS / 1000 if self._names else FIRST_S)

    async def _round(self) -> None:
        """While the Directory is away, those that were there are knocked at."""
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(KNOCK_MS / 1000):
                seats = (await DirectoryPeer(self._net).overview()).seats
                self._names = [seat.name for seat in seats if seat.kind == "router"]
        for name in self._names:
            if name not in self._knocks or self._knocks[name].done():
                self._knocks[name] = asyncio.create_task(self._knock(name))

    async def _knock(self, name: str) -> None:
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(KNOCK_MS / 1000):
                await RouterPeer(self._net, name).knock()
