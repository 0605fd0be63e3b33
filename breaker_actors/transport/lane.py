"""A lane: at most one call in flight between two processes; what arrives meanwhile rides in the next one.

No timers: idle means no delay, load means bigger calls. Bounded by weight: `put` raises Overloaded beyond the limit.
A caller that goes away does not disturb the lane (its future is cancelled, the call goes on).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from breaker_actors.errors import BreakersError, Overloaded, Unavailable
from breaker_actors.transport.turns import Turns

T = TypeVar("T")
R = TypeVar("R")


class Lane(Generic[T, R]):
    """Carries items to `send`, which answers one result (or error) per item, in order. Weightless items always fit.
    With `owner_of` owners take turns: who puts much makes nobody else wait for longer than a call."""

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R | BreakersError]]],
        *,
        weigh: Callable[[T], int] = lambda item: 1,
        weight_max: int = 100_000,
        call_weight_max: int = 10_000,
        owner_of: Callable[[T], str] | None = None,
    ) -> None:
        self._send = send
        self._weigh = weigh
        self._weight_max = weight_max
        self._call_weight_max = call_weight_max
        line: Turns[tuple[T, int, asyncio.Future[R]]] | None = None
        if owner_of is not None:
            line = Turns(lambda entry: owner_of(entry[0]))
        self._waiting: deque[tuple[T, int, asyncio.Future[R]]] | Turns[tuple[T, int, asyncio.Future[R]]] = (
            deque() if line is None else line
        )
        self._pump: asyncio.Task[None] | None = None
        self.weight = 0
        self.calls = 0

    def put(self, item: T) -> asyncio.Future[R]:
        """The future result of an item. Raises Overloaded at the bound, with nothing taken."""
        weight = self._weigh(item)
        if weight and self._waiting and self.weight + weight > self._weight_max:
            raise Overloaded("too much is in flight", {"limit": "BREAKERS_LANE_SAMPLES_MAX", "retry_after_s": 1})
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, weight, future))
        self.weight += weight
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return future

    async def close(self) -> None:
        """Ends the pump; what still waits fails as Unavailable."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        while self._waiting:
            self._fail([self._waiting.popleft()], Unavailable("the lane was closed"))

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._carry(self._take())
        finally:
            self._pump = None

    def _take(self) -> list[tuple[T, int, asyncio.Future[R]]]:
        taken, weight = [self._waiting.popleft()], 0
        weight = taken[0][1]
        while self._waiting and weight + self._waiting[0][1] <= self._call_weight_max:
            taken.append(self._waiting.popleft())
            weight += taken[-1][1]
        self.weight -= weight
        return taken

    async def _carry(self, taken: list[tuple[T, int, asyncio.Future[R]]]) -> None:
        self.calls += 1
        try:
            results = await self._send([item for item, _, _ in taken])
            assert len(results) == len(taken), "one result per item"
        except asyncio.CancelledError:
            self._fail(taken, Unavailable("the lane was closed"))
            raise
        except BreakersError as error:
            self._fail(taken, error)
        except Exception as error:
            self._fail(taken, Unavailable(f"unexpected {type(error).__name__}: {error}"))
        else:
            for entry, result in zip(taken, results, strict=True):
                if isinstance(result, BreakersError):
                    self._fail([entry], result)
                elif not entry[2].done():
                    entry[2].set_result(result)

    @staticmethod
    def _fail(taken: list[tuple[T, int, asyncio.Future[R]]], error: BreakersError) -> None:
        for _, _, future in taken:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that left must not cause "never retrieved" noise
