"""What routers' owners send: applied or queued, breaker by breaker, so that no organisation's part of a call keeps
others waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from breaker_actors.breaker.applying import Applying, DecodedEntries, Todo
from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.breaker.slices import SLICE_ROWS
from breaker_actors.messages import BreakerEpoch, Delivery, Target

CALL_ROWS, PUT_ROWS = 2_000_000, 50
"""Work of a call that is done before it is answered, of one organisation: as many evaluations as it has rows at most.
What costs more is put off, each at the cost of so many rows, and read from the log in later turns."""

Queue = deque[tuple[HostedBreaker, Target]]


class Deliveries:
    """Of the breakers in `hosted`. `step` runs a synchronous step of one breaker, and sees to what comes of it."""

    def __init__(
        self,
        hosted: Mapping[str, HostedBreaker],
        applying: Applying,
        step: Callable[[HostedBreaker, Callable[[], Todo | None]], object],
    ) -> None:
        self._hosted = hosted
        self._applying = applying
        self._step = step

    async def take(self, delivery: Delivery) -> list[BreakerEpoch]:
        """Applies or queues a call; returns what is refused, since it is not hosted under that epoch. What one
        organisation gets beyond a slice comes behind that of others, and others are served in between."""
        refused = []
        entries: DecodedEntries = [None] * len(delivery.records)
        spent: dict[str, int] = {}
        waiting: dict[str, Queue] = {}
        applying, accept = self._applying, self._applying.accept
        for target in delivery.targets:
            hosted = self._hosted.get(target.breaker_id)
            if hosted is None or hosted.epoch != target.epoch or hosted.aside:
                refused.append(BreakerEpoch(target.breaker_id, target.epoch))
                continue
            org = hosted.org_id
            if (done := spent.get(org, 0)) >= SLICE_ROWS:
                waiting.setdefault(org, deque()).append((hosted, target))
                continue
            begun = applying.worked
            self._step(hosted, partial(accept, hosted, target, delivery, entries))
            spent[org] = done + applying.worked - begun
        while waiting:
            await asyncio.sleep(0)
            org = next(iter(waiting))
            targets = waiting.pop(org)
            spent[org] += self._take_more(targets, delivery, entries, CALL_ROWS - spent[org])
            if targets:
                waiting[org] = targets
        for entry in delivery.records:
            applying.count_lag(entry.received_ms)
        return refused

    def _take_more(self, targets: Queue, delivery: Delivery, entries: DecodedEntries, left: int) -> int:
        """A slice of what an organisation gets, which may work for so many rows in this call yet; answers how many it
        was."""
        applying, begun, put_off = self._applying, self._applying.worked, 0
        while targets and (done := applying.worked - begun + put_off) < SLICE_ROWS:
            hosted, target = targets.popleft()
            if hosted.dropped:
                continue
            if done < left:
                self._step(hosted, partial(applying.accept, hosted, target, delivery, entries))
            else:
                put_off += PUT_ROWS
                self._step(hosted, partial(applying.put_off, hosted, target))
        return applying.worked - begun
