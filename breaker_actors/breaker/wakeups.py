"""When which held breaker wants to be looked at again: a heap of wall-clock times, with all who want one of them. Most
idle breakers share theirs."""

from __future__ import annotations

import asyncio
import heapq

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.clock import Clock

AGAIN_MS = 200
CLOCK_S = 1.0
"""The wall clock is looked at so often: it may have been set forward, or the machine have slept."""


class Timers:
    """Knows whose next look lies at or before the wall clock. It alone sets `HostedBreaker.wake`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times: list[int] = []
        self._at: dict[int, HostedBreaker | list[HostedBreaker]] = {}
        """Of each of these times: in the order in which they came."""
        self._earlier = asyncio.Event()

    def schedule(self, hosted: HostedBreaker) -> None:
        """Notes when the breaker wants to be looked at next, unless an earlier look is due anyway."""
        wake = hosted.next_look()
        if hosted.wake is None or wake < hosted.wake:
            self._push(hosted, wake)

    def later(self, hosted: HostedBreaker) -> None:
        """Looks at a breaker again in a moment: its timer is due but could not fire."""
        self._push(hosted, self._clock.now_ms() + AGAIN_MS)

    def _push(self, hosted: HostedBreaker, wake: int) -> None:
        hosted.wake = wake
        known = self._at.get(wake)
        if known is None:
            self._at[wake] = hosted
            heapq.heappush(self._times, wake)
            if self._times[0] == wake:
                self._earlier.set()
        elif isinstance(known, list):
            known.append(hosted)
        else:
            self._at[wake] = [known, hosted]

    async def due(self) -> tuple[list[HostedBreaker], int]:
        """Waits until a look may be due; answers whose it is, perhaps nobody's, and the time."""
        await self._until_due()
        now = self._clock.now_ms()
        return [hosted for hosted in self._pop_due(now) if self._is_due(hosted, now)], now

    async def _until_due(self) -> None:
        while True:
            self._earlier.clear()
            timeout = None
            if self._times:
                timeout = (self._times[0] - self._clock.now_ms()) / 1000
                if timeout <= 0:
                    return
            try:
                async with asyncio.timeout(timeout and min(timeout, CLOCK_S)):
                    await self._earlier.wait()
            except TimeoutError:
                return

    def _pop_due(self, now: int) -> list[HostedBreaker]:
        due = []
        while self._times and self._times[0] <= now:
            wake = heapq.heappop(self._times)
            found = self._at.pop(wake)
            for hosted in found if isinstance(found, list) else (found,):
                if hosted.wake == wake:
                    hosted.wake = None
                    due.append(hosted)
        return due

    def _is_due(self, hosted: HostedBreaker, now: int) -> bool:
        """Still wanted? A breaker whose timer moved is noted anew; a blocked one is when it is free again."""
        if hosted.dropped or hosted.breaker is None:
            return False
        if hosted.blocked:
            return False
        wake = hosted.next_look()
        if wake > now:
            self._push(hosted, wake)
        return wake <= now
