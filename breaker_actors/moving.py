"""Moving breakers and routers to other owners: when the cluster grew, by and by, and on command.

A move is a failover: the new owner starts from the store and the log; the old one is told to let go, and refused
wherever it writes. Nothing depends on either of them answering.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Sequence

import structlog

from breaker_actors.errors import BreakersError
from breaker_actors.guard import one_round
from breaker_actors.messages import Rebalanced
from breaker_actors.net import ActorKind
from breaker_actors.placing import Placing, grouped
from breaker_actors.rebalance import Move, Plan, pace, plan

KINDS: tuple[ActorKind, ...] = ("router", "breaker")
MOVES_MAX = 100
"""Things that change their owner in one step."""
BUDGET_S = 10.0
START_S = 10.0

log = structlog.get_logger()


class Moving:
    """Keeps actors evenly loaded. `moves_per_minute`: how many things may move when the cluster grew; 0: none."""

    def __init__(self, placing: Placing, moves_per_minute: int) -> None:
        self.lock = asyncio.Lock()
        """Held while things are between two owners."""
        self._placing = placing
        self._moves_per_minute = moves_per_minute
        self._grew = asyncio.Event()

    def start(self) -> None:
        """Begins to watch the budget. What an earlier Directory may have left half done is gone on with."""
        for kind in KINDS:
            loads = [self._placing.owners[kind].count(name) for name in self._placing.names(kind)]
            if min(loads) == 0 and max(loads) > 1:
                self._grew.set()
        self._placing.spawn(self._keep_budget())
        self._placing.spawn(self._keep_even())

    async def fit_budget(self) -> None:
        """Asks how many actors there may be now. More: evens out. Fewer: nothing moves, new things go to the rest."""
        before = self._placing.budgets
        try:
            await self._placing.ask_budgets()
        except BreakersError as error:
            log.warning("budget_unknown", error=str(error))
            return
        now = self._placing.budgets
        if any(now[kind] > before[kind] for kind in KINDS):
            log.info("budget_grew", before=before, now=now)
            self._grew.set()

    async def rebalance(self, most: int) -> Rebalanced:
        """Moves up to `most` (and MOVES_MAX) things so that actors of a kind hold equally many, after all actors that
        are needed for it have been started. To be called again while anything is `left`."""
        await self._start_takers()
        async with self.lock:
            moved = left = 0
            for kind in KINDS:
                planned = self._plan(kind, min(most, MOVES_MAX) - moved)
                await self._move(kind, planned.moves)
                moved += len(planned.moves)
                left += planned.needed - len(planned.moves)
        if moved:
            log.info("rebalanced", moved=moved, left=left)
        return Rebalanced(moved=moved, left=left)

    # ------------------------------------------------------------------ inside

    async def _keep_budget(self) -> None:
        while True:
            await asyncio.sleep(BUDGET_S)
            await one_round("budget", self.fit_budget())
            for kind, name in self._placing.roster.away():
                self._placing.wake(kind, name)  # Ray restarts what died; what somebody ended is started here

    async def _keep_even(self) -> None:
        while True:
            await self._grew.wait()
            self._grew.clear()
            if self._moves_per_minute:
                await one_round("rebalance", self._even_out())

    async def _even_out(self) -> None:
        pause_s, most = pace(self._moves_per_minute)
        while True:
            try:
                if not (await self.rebalance(most)).left:
                    return
            except BreakersError as error:
                log.warning("not_rebalanced", error=str(error))
            await asyncio.sleep(pause_s)

    async def _start_takers(self) -> None:
        """Starts the actors that are to take something over, and waits for them, at most START_S."""
        wanted: list[str] = []
        for kind in KINDS:
            things = sum(map(len, self._placing.owners[kind].claimed().values()))
            for name in self._placing.names(kind)[:things]:
                wanted.append(name)
                if not self._placing.roster.is_known(name):
                    self._placing.wake(kind, name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await self._placing.until_up(wanted)

    def _plan(self, kind: ActorKind, most: int) -> Plan:
        able = self._placing.roster.up(kind)
        return plan(self._placing.owners[kind].claimed(), self._placing.names(kind), able, most)

    async def _move(self, kind: ActorKind, moves: Sequence[Move]) -> None:
        """Carries out moves. Wherever it ends early, `Placing.resume` gives what is claimed."""
        targets = {move.thing: move.target for move in moves}
        sources = {move.thing: move.source for move in moves}
        let_go = (self._placing.let_go(kind, source, ids) for source, ids in grouped(sources, sources).items())
        if kind == "router":
            # the old owner answers what it has begun, then refuses: replicas ask for the new one
            await _all(let_go)
        try:
            claimed = await self._placing.claim(kind, targets)
        except BaseException:
            self._restore(kind, sources)
            raise
        given = (self._placing.give(kind, target, ids) for target, ids in grouped(claimed, targets).items())
        await _all(given)
        if kind == "breaker":
            await _all(let_go)

    def _restore(self, kind: ActorKind, sources: dict[str, str]) -> None:
        """The store did not answer: whatever it did, the old owners are asked what they hold and given it anew."""
        for thing, source in sources.items():
            self._placing.owners[kind].place(thing, source)
            self._placing.lost(source)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """All at once; an error does not keep the others from their end."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(error, BreakersError):
            log.info("move_not_told", error=str(error))
        elif error is not None:
            raise error
