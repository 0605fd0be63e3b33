"""The rebalancer moves routers and breakers to even out the actors' loads: gradually after the cluster grew, at once on
request.

A move is a failover: the new owner starts from the store and the log; the old one is asked to let go, and refused
wherever it writes. Nothing depends on either of them answering.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Sequence

import structlog

from breaker_actors.directory.placement import Placer, grouped
from breaker_actors.directory.rebalance_plan import Move, Plan, plan, step_size
from breaker_actors.directory.supervision import Supervision
from breaker_actors.errors import BreakersError
from breaker_actors.messages import Rebalanced
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.transport.peers import ActorKind

KINDS: tuple[ActorKind, ...] = ("router", "breaker")
MOVES_MAX = 100
"""Things that change their owner in one step."""
BUDGET_S = 10.0
START_S = 10.0

log = structlog.get_logger()


class Rebalancer:
    """Keeps actors evenly loaded. `moves_per_minute`: how many things may move when the cluster grew; 0: none."""

    def __init__(self, placer: Placer, supervision: Supervision, moves_per_minute: int) -> None:
        self.lock = asyncio.Lock()
        """Held while things are between two owners."""
        self._placer = placer
        self._supervision = supervision
        self._moves_per_minute = moves_per_minute
        self._grew = asyncio.Event()
        self._late: set[str] = set()
        """Actors that were to take something over and did not come up in time: once they do, it goes on."""

    def start(self) -> None:
        """Begins to watch the budget. What an earlier Directory may have left half done is gone on with."""
        for kind in KINDS:
            loads = [self._placer.assignments[kind].count(name) for name in self._placer.names(kind)]
            if min(loads) == 0 and max(loads) > 1:
                self._grew.set()
        self._placer.tasks.spawn(self._watch_budget())
        self._placer.tasks.spawn(self._rebalance_on_growth())

    async def fit_budget(self) -> None:
        """Asks how many actors there may be now. More, or one that came up late: evens out. Fewer: nothing moves, new
        things go to the rest."""
        before = self._placer.budgets
        try:
            await self._placer.ask_budgets()
        except BreakersError as error:
            log.warning("budget_unknown", error=str(error))
            return
        now = self._placer.budgets
        if any(now[kind] > before[kind] for kind in KINDS):
            log.info("budget_grew", before=before, now=now)
            self._grew.set()
        if came := {name for name in self._late if self._placer.membership.is_up(name)}:
            self._late -= came
            self._grew.set()

    async def rebalance(self, most: int) -> Rebalanced:
        """Moves up to `most` (and MOVES_MAX) things so that actors of a kind hold equally many, after all actors that
        are needed for it have been started. To be called again while anything is `left`."""
        await self._start_targets()
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

    async def _watch_budget(self) -> None:
        while True:
            await asyncio.sleep(BUDGET_S)
            await run_supervised("budget", self.fit_budget())
            for kind, name in self._placer.membership.away():
                self._supervision.wake(kind, name)  # Ray restarts what died; what somebody ended is started here

    async def _rebalance_on_growth(self) -> None:
        while True:
            await self._grew.wait()
            self._grew.clear()
            if self._moves_per_minute:
                await run_supervised("rebalance", self._rebalance_all())

    async def _rebalance_all(self) -> None:
        pause_s, most = step_size(self._moves_per_minute)
        while True:
            try:
                if not (await self.rebalance(most)).left:
                    return
            except BreakersError as error:
                log.warning("not_rebalanced", error=str(error))
            await asyncio.sleep(pause_s)

    async def _start_targets(self) -> None:
        """Starts the actors that are to take something over, and waits for them, at most START_S."""
        wanted: list[str] = []
        for kind in KINDS:
            things = sum(map(len, self._placer.assignments[kind].claimed().values()))
            for name in self._placer.names(kind)[:things]:
                wanted.append(name)
                if not self._placer.membership.is_known(name):
                    self._supervision.wake(kind, name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                await self._supervision.until_up(wanted)
        self._late.update(filter(self._placer.membership.is_starting, wanted))

    def _plan(self, kind: ActorKind, most: int) -> Plan:
        able = self._placer.membership.up(kind)
        return plan(self._placer.assignments[kind].claimed(), self._placer.names(kind), able, most)

    async def _move(self, kind: ActorKind, moves: Sequence[Move]) -> None:
        """Carries out moves. Wherever it ends early, `Supervision.resume` gives what is claimed."""
        targets = {move.thing: move.target for move in moves}
        sources = {move.thing: move.source for move in moves}
        let_go = (self._placer.let_go(kind, source, ids) for source, ids in grouped(sources, sources).items())
        if kind == "router":
            # the old owner answers what it has begun, then refuses: replicas ask for the new one
            await _all(let_go)
        try:
            claimed = await self._placer.claim(kind, targets)
        except BaseException:
            self._restore(kind, sources)
            raise
        given = (self._placer.give(kind, target, ids) for target, ids in grouped(claimed, targets).items())
        await _all(given)
        if kind == "breaker":
            await _all(let_go)

    def _restore(self, kind: ActorKind, sources: dict[str, str]) -> None:
        """The store did not answer: whatever it did, the old owners are asked what they hold and given it anew."""
        for thing, source in sources.items():
            self._placer.assignments[kind].assign(thing, source)
            self._placer.membership.lost(source)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """All at once; an error does not keep the others from their end."""
    for error in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(error, BreakersError):
            log.info("move_not_notified", error=str(error))
        elif error is not None:
            raise error
