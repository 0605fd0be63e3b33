"""A Notifier in virtual time: a sender that does as scripted, a clock that leaps to whatever comes next."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.notify.notifier import NotifierHost
from breaker_actors.settings import Settings
from breaker_actors.store.base import Store
from tests.support.fake_gateway import FakeClock

SENT = Attempt(result="sent", status=200)
DOWN = Attempt(result="retry", error="the connection was refused")
REFUSED = Attempt(result="refused", status=404, error="answered 404 Not Found")
Script = Callable[[Destination, Message], Attempt]


class ScriptedSender:
    """Answers as `script` says; keeps what it was asked. Until the event `hold` is set nothing is answered, or only
    nothing of the channels in `held`."""

    def __init__(self, clock: FakeClock, script: Script = lambda to, message: SENT) -> None:
        self.script = script
        self.asked: list[tuple[int, Destination, Message, Attempt]] = []
        self.renewed: list[tuple[int, Destination, tuple[Message, ...], Attempt]] = []
        self.under_way = 0
        self.most: Counter[str] = Counter()
        self.hold: asyncio.Event | None = None
        self.held: set[str] = set()
        self.stuck = 0
        self._clock = clock
        self._now: Counter[str] = Counter()

    async def send(self, to: Destination, message: Message) -> Attempt:
        self.under_way += 1
        self._now[to.channel_id] += 1
        self.most[to.channel_id] = max(self.most[to.channel_id], self._now[to.channel_id])
        try:
            await asyncio.sleep(0)
            if self.hold is not None and (not self.held or to.channel_id in self.held):
                await self._stick(self.hold)
            attempt = self.script(to, message)
            self.asked.append((self._clock.now_ms(), to, message, attempt))
            return attempt
        finally:
            self.under_way -= 1
            self._now[to.channel_id] -= 1

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        return [""] * len(many)

    async def renew(self, to: Destination, trips: Sequence[Message], now_ms: int) -> Attempt:
        """Scripted by the first of them; kept apart from what was sent."""
        self.under_way += 1
        try:
            await asyncio.sleep(0)
            if self.hold is not None and (not self.held or to.channel_id in self.held):
                await self._stick(self.hold)
            attempt = self.script(to, trips[0])
            self.renewed.append((self._clock.now_ms(), to, tuple(trips), attempt))
            return attempt
        finally:
            self.under_way -= 1

    async def close(self) -> None:
        pass

    async def _stick(self, hold: asyncio.Event) -> None:
        self.stuck += 1
        try:
            await hold.wait()
        finally:
            self.stuck -= 1

    def got(self, channel_id: str) -> list[Message]:
        """What the receiver of a channel took, in order."""
        return [m for _, to, m, attempt in self.asked if to.channel_id == channel_id and attempt.result == "sent"]

    def kinds(self, channel_id: str) -> list[str]:
        return [message.kind for message in self.got(channel_id)]

    def attempts(self, channel_id: str, from_ms: int = 0, to_ms: int = 1 << 62) -> int:
        return sum(to.channel_id == channel_id and from_ms <= at < to_ms for at, to, _, _ in self.asked)


class VirtualNotifier:
    """NotifierHosts over one store, one after the other; nothing takes time but waiting, and that takes none."""

    def __init__(self, store: Store, clock: FakeClock, sender: ScriptedSender, settings: Settings) -> None:
        self.store = store
        self.clock = clock
        self.sender = sender
        self.settings = settings
        self.pace = Pace()
        self.host: NotifierHost | None = None
        self._plans: list[tuple[int, int, Callable[[], Awaitable[Any]]]] = []
        self._until_ms = 0
        self._arrived = asyncio.Event()
        self._started = 0
        self.stopped_s = 60.0
        """Real seconds after which a run that does not come to its end is a failure."""

    def at(self, ms: int, plan: Callable[[], Awaitable[Any]]) -> None:
        """Does something when that time has come."""
        self._plans.append((ms, len(self._plans), plan))
        self._plans.sort()

    async def start(self) -> None:
        self._started += 1
        host = NotifierHost(
            self.store,
            self.sender,
            self.clock,
            self.settings,
            pace=self.pace,
            chance=random.Random(self._started),
            idle=lambda wake, ms: self._idle(host, wake, ms),
        )
        await host.start()
        self.host = host

    async def kill(self) -> None:
        """kill -9: nothing more of it is heard."""
        assert self.host is not None
        await self.host.stop()
        self.host = None

    async def run_until(self, ms: int) -> None:
        """Goes on until the time, with what was planned on the way."""
        self._until_ms = ms
        self._arrived.clear()
        if self.host is None:
            await self.start()
        assert self.host is not None
        await self.host.nudge()
        async with asyncio.timeout(self.stopped_s):
            await self._arrived.wait()

    async def run_for(self, ms: int) -> None:
        await self.run_until(self.clock.ms + ms)

    async def _idle(self, host: NotifierHost, wake: asyncio.Event, ms: int) -> None:
        """Waits for what is under way and not held by the sender, then time passes."""
        await asyncio.sleep(0)  # what has just ended is no longer under way
        while host.under_way > self.sender.stuck and not wake.is_set():
            await asyncio.sleep(0.0005)
        if wake.is_set():
            return
        due = self._plans[0][0] if self._plans else self._until_ms
        self.clock.ms = max(self.clock.ms, min(self.clock.ms + ms, due, self._until_ms))
        while self._plans and self._plans[0][0] <= self.clock.ms:
            await self._plans.pop(0)[2]()
        if self.clock.ms >= self._until_ms:
            self._arrived.set()
            await wake.wait()
