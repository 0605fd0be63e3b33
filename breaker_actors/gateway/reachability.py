"""The reachability heartbeat: once a second each replica whose door is open pings every RouterActor, so that silence of
clients is told apart from a router that nobody can reach.

Silence of a router that could not be reached is no evidence (semantics.md section 2), and the router can't tell the two
apart by itself. The answer to a ping says whether the log takes writes: that makes a replica ready or not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from breaker_actors.errors import BreakersError
from breaker_actors.messages import REACHABILITY_INTERVAL_MS
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.transport.peers import DirectoryPeer, Net, RouterPeer

FIRST_S = 0.1
"""Between two questions for the RouterActors until the first one is known."""


class ReachabilityHeartbeat:
    """Pings every RouterActor once in REACHABILITY_INTERVAL_MS, with at most one ping under way to each. `is_open`:
    whether callers get in here at all; while they don't, nobody is pinged."""

    def __init__(self, net: Net, is_open: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._net = net
        self._is_open = is_open
        self._names: list[str] = []
        self._pings: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, str] = {}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._running, *self._pings.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fault(self) -> str:
        """Returns why the log of some RouterActor does not take writes, as of its last answer; "" when all do."""
        return next((self._faults[name] for name in self._names if self._faults.get(name)), "")

    def fault_of(self, name: str) -> str:
        """Returns why the log of one RouterActor does not take writes, as of its last answer; "" when it does."""
        return self._faults.get(name, "")

    async def notice(self) -> str:
        """Returns what RouterActors have to say of their clocks, the first of it; "" when they have nothing. Takes
        REACHABILITY_INTERVAL_MS at most."""
        return next((words for words in await asyncio.gather(*map(self._notice, self._names)) if words), "")

    async def _notice(self, name: str) -> str:
        words = []
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(REACHABILITY_INTERVAL_MS / 1000):
                figures = await RouterPeer(self._net, name).status()
                if step_ms := figures.clock_doubted_ms:
                    words.append(f"the clock stepped ahead by {step_ms / 1000:.0f} s, believed if that lasts a minute")
                if figures.logs_ahead:
                    ahead = f"logs are up to {figures.ahead_ms / 1000:.0f} s ahead of the clock"
                    words.append(f"{ahead}, samples of their routers are refused: `breakers status`")
        return "; ".join(words)

    async def _run(self) -> None:
        while True:
            if self._is_open is None or await self._is_open():
                await run_supervised("reachability heartbeat", self._ping_all())
            await asyncio.sleep(REACHABILITY_INTERVAL_MS / 1000 if self._names else FIRST_S)

    async def _ping_all(self) -> None:
        """While the Directory does not answer, the RouterActors it named last are pinged."""
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(REACHABILITY_INTERVAL_MS / 1000):
                actors = (await DirectoryPeer(self._net).overview()).actors
                self._names = [actor.name for actor in actors if actor.kind == "router"]
        for name in self._names:
            if name not in self._pings or self._pings[name].done():
                self._pings[name] = asyncio.create_task(self._note_fault(name))

    async def _note_fault(self, name: str) -> None:
        """A RouterActor that does not answer has no fault of its log: whether it runs is the Directory's to say."""
        self._faults[name] = await self._ping(name)

    async def _ping(self, name: str) -> str:
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(REACHABILITY_INTERVAL_MS / 1000):
                return await RouterPeer(self._net, name).ping()
        return ""
