"""A lane: at most one call in flight between two processes; what arrives meanwhile rides in the next one.

No timers: idle means no delay, load means bigger calls. Organisations take turns, and within one its projects: who puts
much makes nobody else wait for longer than a call. Bounded by weight, each by what others leave free
(`transport.turns`): `put` raises Overloaded beyond that. A caller that goes away does not disturb the lane (its future
is cancelled, the call goes on).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Generic, TypeVar

from breaker_actors.errors import BreakersError, Overloaded, Unavailable
from breaker_actors.transport.turns import NestedShares, NestedTurns

T = TypeVar("T")
R = TypeVar("R")


_Entry = tuple[T, int, int, asyncio.Future[R], str, str]
"""What waits: an item, its weight, what it holds of the bound, its future, its organisation and project."""


class Lane(Generic[T, R]):
    """Carries items to `send`, which answers one result (or error) per item. Those of one project stay in the order in
    which they came. `weight_max`: what waits of a project that is alone; of its organisation less than twice as much,
    of all together less than four times as much. Weightless items always fit, and any when none with a weight waits.
    `hold`: what an item counts towards the bound, where that is not its weight.
    `call_weight_max`: what a call carries, of several items; who sends may change it from call to call."""

    def __init__(
        self,
        send: Callable[[list[T]], Awaitable[Sequence[R | BreakersError]]],
        *,
        weigh: Callable[[T], int] = lambda item: 1,
        hold: Callable[[T], int] | None = None,
        weight_max: int = 100_000,
        call_weight_max: int = 10_000,
    ) -> None:
        self._send = send
        self._weigh = weigh
        self._hold = hold
        self.call_weight_max = call_weight_max
        self._waiting: NestedTurns[_Entry[T, R]] = NestedTurns(itemgetter(1))
        self._shares = NestedShares(weight_max)
        self._pump: asyncio.Task[None] | None = None
        self.calls = 0

    @property
    def weight(self) -> int:
        """What waits."""
        return self._shares.total

    def put(self, item: T, org: str = "", project: str = "") -> asyncio.Future[R]:
        """The future result of an item. Raises Overloaded at the bound, with nothing taken."""
        weight = self._weigh(item)
        held = weight if self._hold is None else self._hold(item)
        if held and not self._shares.take(org, project, held):
            raise Overloaded("too much is in flight", {"limit": "BREAKERS_LANE_SAMPLES_MAX", "retry_after_s": 1})
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append(org, project, (item, weight, held, future, org, project))
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return future

    async def close(self) -> None:
        """Ends the pump; what still waits fails as Unavailable."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail(self._freed(list(self._waiting.drain())), Unavailable("the lane was closed"))

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._carry(self._freed(self._waiting.take(self.call_weight_max)))
        finally:
            self._pump = None

    def _freed(self, taken: list[_Entry[T, R]]) -> list[_Entry[T, R]]:
        """The same ones, which wait no more."""
        if not self._waiting:
            self._shares.clear()
            return taken
        for _, _, held, _, org, project in taken:
            if held:
                self._shares.give_back(org, project, held)
        return taken

    async def _carry(self, taken: list[_Entry[T, R]]) -> None:
        self.calls += 1
        try:
            results = await self._send([item for item, *_ in taken])
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
                elif not entry[3].done():
                    entry[3].set_result(result)

    @staticmethod
    def _fail(taken: list[_Entry[T, R]], error: BreakersError) -> None:
        for _, _, _, future, *_ in taken:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a caller that left must not cause "never retrieved" noise
