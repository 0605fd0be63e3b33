"""When which held breaker wants to be looked at again: a heap of wall-clock times, served in rounds of 50 ms."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable

from breaker_actors.clock import Clock
from breaker_actors.guard import one_round
from breaker_actors.held import Held

ROUND_S = 0.05
AGAIN_MS = 200
CLOCK_S = 1.0
"""The wall clock is looked at so often: it may have been set forward, or the machine have slept."""


class Timers:
    """Calls `fire(due, upto_ms)` for breakers whose next look lies at or before upto_ms, the wall clock."""

    def __init__(self, clock: Clock, fire: Callable[[list[Held], int], Awaitable[None]]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[int, int, Held]] = []
        self._pushed = 0
        self._earlier = asyncio.Event()

    def schedule(self, held: Held) -> None:
        """Notes when the breaker wants to be looked at next, unless an earlier look is due anyway."""
        wake = held.next_look()
        if held.wake is None or wake < held.wake:
            self._push(held, wake)

    def later(self, held: Held) -> None:
        """Looks at a breaker again in a moment: its timer is due but could not fire."""
        self._push(held, self._clock.now_ms() + AGAIN_MS)

    def _push(self, held: Held, wake: int) -> None:
        held.wake = wake
        self._pushed += 1
        heapq.heappush(self._heap, (wake, self._pushed, held))
        if self._heap[0][2] is held:
            self._earlier.set()

    async def run(self) -> None:
        """Serves due breakers for ever; at most one round in ROUND_S, so promises of many ride in one call."""
        while True:
            await self._until_due()
            now = self._clock.now_ms()
            due = [h for h in self._pop_due(now) if self._is_due(h, now)]
            if due:
                await one_round("timers", self._serve(due, now))
            await asyncio.sleep(ROUND_S)

    async def _serve(self, due: list[Held], now: int) -> None:
        try:
            await self._fire(due, now)
        except Exception:
            for held in due:
                self.later(held)
            raise

    async def _until_due(self) -> None:
        while True:
            self._earlier.clear()
            timeout = None
            if self._heap:
                timeout = (self._heap[0][0] - self._clock.now_ms()) / 1000
                if timeout <= 0:
                    return
            try:
                async with asyncio.timeout(timeout and min(timeout, CLOCK_S)):
                    await self._earlier.wait()
            except TimeoutError:
                return

    def _pop_due(self, now: int) -> list[Held]:
        due = []
        while self._heap and self._heap[0][0] <= now:
            wake, _, held = heapq.heappop(self._heap)
            if held.wake == wake:
                held.wake = None
                due.append(held)
        return due

    def _is_due(self, held: Held, now: int) -> bool:
        """Still wanted? A breaker whose timer moved is noted anew; a blocked one is when it is free again."""
        if held.dropped or held.breaker is None:
            return False
        if held.blocked:
            return False
        wake = held.next_look()
        if wake > now:
            self._push(held, wake)
        return wake <= now
