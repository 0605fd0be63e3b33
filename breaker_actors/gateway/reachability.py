"""The reachability heartbeat: once a second each replica whose door is open pings every RouterActor, so that silence of
clients is told apart from a router that nobody can reach.

Silence of a router that could not be reached is no evidence (semantics.md section 2), and the router can't tell the two
apart by itself. The answer to a ping says whether the log takes writes: that makes a replica ready or not. So does it
that no owner of routers answers any more; that some don't is told in words, as all others are served.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from breaker_actors.errors import BreakersError
from breaker_actors.messages import REACHABILITY_INTERVAL_MS
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.transport.peers import DirectoryPeer, Net, RouterPeer

FIRST_S = 0.1
"""Between two questions for the RouterActors until the first one is known."""

MISSED_MAX = 10
"""Pings in a row without an answer after which a RouterActor is told of: 10 to 20 s. A successor is up before that,
after a kill or while a release is rolled out. Pings are counted and not time: who stood still learned nothing."""


class ReachabilityHeartbeat:
    """Pings every RouterActor once in REACHABILITY_INTERVAL_MS, with at most one ping under way to each. `is_open`:
    whether callers get in here at all; while they don't, nobody is pinged."""

    def __init__(self, net: Net, is_open: Callable[[], Awaitable[bool]] | None = None) -> None:
        self._net = net
        self._is_open = is_open
        self._names: list[str] = []
        self._owners: list[str] = []
        """Those of them that have routers."""
        self._pings: dict[str, asyncio.Task[None]] = {}
        self._faults: dict[str, str] = {}
        self._missed: dict[str, int] = {}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [task for task in (self._running, *self._pings.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fault(self) -> str:
        """Returns why samples can't be stored: why the log of some RouterActor does not take writes, as of its last
        answer, or that none which has routers answers; "" when neither is so."""
        unwritable = next((self._faults[name] for name in self._names if self._faults.get(name)), "")
        silent = self._silent()
        return unwritable or (_told(silent) if silent and len(silent) == len(self._owners) else "")

    def fault_of(self, name: str) -> str:
        """Returns why the log of one RouterActor does not take writes, as of its last answer; "" when it does."""
        return self._faults.get(name, "")

    async def notice(self) -> str:
        """Returns which RouterActors with routers don't answer, and what the others have to say of their clocks, the
        first of it; "" when there is nothing. Takes REACHABILITY_INTERVAL_MS at most."""
        clocks = next((words for words in await asyncio.gather(*map(self._notice, self._names)) if words), "")
        silent = self._silent()
        refused = f"{_told(silent)}, samples of their routers are refused: `breakers status`" if silent else ""
        return "; ".join(filter(None, (refused, clocks)))

    def _silent(self) -> list[str]:
        return [name for name in self._owners if self._missed.get(name, 0) >= MISSED_MAX]

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
            else:
                self._missed.clear()
            await asyncio.sleep(REACHABILITY_INTERVAL_MS / 1000 if self._names else FIRST_S)

    async def _ping_all(self) -> None:
        """While the Directory does not answer, the RouterActors it named last are pinged."""
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(REACHABILITY_INTERVAL_MS / 1000):
                actors = (await DirectoryPeer(self._net).overview()).actors
                routers = [actor for actor in actors if actor.kind == "router"]
                self._names = [actor.name for actor in routers]
                self._owners = [actor.name for actor in routers if actor.holds]
        for name in self._names:
            if name not in self._pings or self._pings[name].done():
                self._pings[name] = asyncio.create_task(self._note_fault(name))

    async def _note_fault(self, name: str) -> None:
        """A RouterActor that does not answer has no fault of its log; it missed a ping."""
        answer = await self._ping(name)
        self._faults[name] = answer or ""
        self._missed[name] = self._missed.get(name, 0) + 1 if answer is None else 0

    async def _ping(self, name: str) -> str | None:
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(REACHABILITY_INTERVAL_MS / 1000):
                return await RouterPeer(self._net, name).ping()
        return None


def _told(silent: Sequence[str]) -> str:
    more = f" and {len(silent) - 1} more RouterActors" if len(silent) > 1 else ""
    return f"{silent[0]}{more} did not answer {MISSED_MAX} pings or more"
