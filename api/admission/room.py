"""Room for what comes in: a share that is full is made free by bodies that arrive too slowly, or waited for.

Who needs a place in a full share takes it from the body of that share which lags most (api/admission/pace.py): that one
is ended with 408 and counted. Where none lags yet, but some are on their way, the newcomer waits PATIENCE_S at most,
which is longer than a body can stall unpunished. At most WAITING_MAX wait, each caller a part, callers in turn. Beyond
that, and where all that is held is being worked on, a newcomer is refused at once (429).

So to keep others out of a share takes FLOOR_BYTES_PER_S for each of its places, or all of its places anew every
GRACE_S: of one address and project 500 requests a second with the usual bounds. Then callers compete by number.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from api.admission.pace import GRACE_S, Arriving
from api.admission.shares import Holder, Holders, Shares

WAITING_MAX = 1_024
PATIENCE_S = GRACE_S + 1.0
"""How long one request waits for room in all."""
_PAUSE_MIN_S = 0.01


class Need(NamedTuple):
    """`n` more of something for these holders; `of_bytes`: only a body that holds bytes can make place."""

    shares: Shares
    holders: Holders
    n: int
    of_bytes: bool

    @property
    def caller(self) -> tuple[Holders, bool]:
        """Who waits in one queue: nobody behind what is of another kind."""
        return self.holders, self.of_bytes


def end_at_once(timeout: asyncio.Timeout | None) -> None:
    """Has what a timeout is around end now, unless it has fired already: then that ends by itself."""
    if timeout is not None and not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time())


class Room:
    """Takes from shares, evicts from them, and lets callers wait for them. `evicted` counts bodies."""

    def __init__(self, monotonic: Callable[[], float], waiting_max: int = WAITING_MAX) -> None:
        self.arriving = Arriving()
        self.evicted = 0
        self._monotonic = monotonic
        self._places = Shares("requests waiting for room", waiting_max)
        self._waiting: dict[tuple[Holders, bool], deque[tuple[Need, asyncio.Future[None]]]] = {}
        self._alarm: asyncio.TimerHandle | None = None

    def claim(self, need: Need) -> None:
        """Takes at once, evicting what lags. Raises Overloaded."""
        if self._attempt(need, {}) is not None:
            need.shares.refuse(need.holders, need.n)

    async def take(self, need: Need, patience_s: float) -> float:
        """The same, waiting where that may help; returns how many seconds that took. Raises Overloaded."""
        again_s = self._attempt(need, {})
        if again_s is None:
            return 0.0
        if math.isinf(again_s) or patience_s <= 0 or self._places.full(need.holders):
            need.shares.refuse(need.holders, need.n)
        begun_s = self._monotonic()
        self._places.take(need.holders)
        try:
            await self._wait(need, again_s, patience_s)
        finally:
            self._places.give_back(need.holders)
        return self._monotonic() - begun_s

    def give_back(self, need: Need) -> None:
        need.shares.give_back(need.holders, need.n)
        if self._waiting:
            self._look_again(0.0)

    def _attempt(self, need: Need, in_time: dict[tuple[Holder, bool], float]) -> float | None:
        """None when it was taken; else when the first of the bodies in the way begins to lag, infinity when there is
        none. `in_time`: the same for holders that were looked through already."""
        while full := need.shares.full(need.holders, need.n):
            if (full, need.of_bytes) not in in_time:
                body = self.arriving.slowest(full, need.of_bytes)
                if body is not None and body.lags_from_s <= self._monotonic():
                    self.evicted += 1
                    body.give_up()
                    continue
                in_time[full, need.of_bytes] = body.lags_from_s if body else math.inf
            return in_time[full, need.of_bytes]
        need.shares.take(need.holders, need.n)
        return None

    async def _wait(self, need: Need, again_s: float, patience_s: float) -> None:
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(need.caller, deque()).append((need, admitted))
        self._look_again(again_s - self._monotonic())
        try:
            await asyncio.wait([admitted], timeout=patience_s)
        except asyncio.CancelledError:
            if admitted.done():
                self.give_back(need)
            raise
        finally:
            if not admitted.done():
                self._leave(need, admitted)
        if not admitted.done():
            need.shares.refuse(need.holders, need.n)

    def _leave(self, need: Need, admitted: asyncio.Future[None]) -> None:
        queue = self._waiting[need.caller]
        queue.remove((need, admitted))
        if not queue:
            del self._waiting[need.caller]

    def _look_again(self, in_s: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + in_s
        if self._alarm is not None:
            if self._alarm.when() <= when:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(when, self._admit)

    def _admit(self) -> None:
        """Gives what is free to those who wait: one to each caller, in turn, as long as there is any."""
        self._alarm = None
        in_time: dict[tuple[Holder, bool], float] = {}
        callers, again_s = list(self._waiting), math.inf
        while callers:
            served = []
            for caller in callers:
                need, admitted = self._waiting[caller][0]
                when_s = self._attempt(need, in_time)
                if when_s is not None:
                    again_s = min(again_s, when_s)
                    continue
                admitted.set_result(None)
                queue = self._waiting.pop(caller)
                queue.popleft()
                if queue:
                    self._waiting[caller] = queue  # behind the others
                    served.append(caller)
            callers = served
        if self._waiting and not math.isinf(again_s):
            self._look_again(max(_PAUSE_MIN_S, again_s - self._monotonic()))
