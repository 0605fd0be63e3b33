"""Long work of a process: in slices, one in each round of the loop, organisations in turn; others are served between
two. Much is long: timers of thousands of breakers, reads of logs, a breaker with a tick in each millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.transport.turns import NestedTurns

SLICE_ROWS, ENTRY_ROWS = 50_000, 200
"""Rows that are applied or loaded in a slice, and what an entry or an evaluation counts beside its rows: a few
milliseconds."""
STEP_ROWS = 50
"""What a piece of work counts at least."""
MOVED_ROWS = 4
"""So many samples that leave together, or are moved to let late ones in, cost as much as a row that is applied."""
HEAVY_ROWS, ROW_S, REST_MAX_S = 2 * SLICE_ROWS, 5e-8, 0.05
"""Work of so many rows and more in one piece, as of a window of a million samples, is followed by a rest for others, as
long as it took by the rows, REST_MAX_S at most."""
RESTS = 2
"""Times as long as a slice took is the rest after one of breakers that rest themselves: they have more to do than there
is time for, maybe for ever, and a machine has several such processes."""

Step = Callable[[], int]
"""A piece of work: how many rows it was. It does not fail."""


class Slices:
    """Who goes on next. Bounded by the breakers there are, each waits once at most, and by the tasks of the process."""

    def __init__(self) -> None:
        self._waiting: NestedTurns[tuple[Step, bool]] = NestedTurns(lambda _: 1)
        self._is_called = False
        self._free_s = 0.0
        self._turns: set[asyncio.Future[None]] = set()

    def put(self, hosted: HostedBreaker, step: Step) -> None:
        """Goes on with a breaker when its turn has come."""
        self._waiting.append(hosted.org_id, hosted.project_id, (step, hosted.resting))
        self._call()

    def work(self, breakers: Sequence[HostedBreaker]) -> Slice:
        """Long work of one task for breakers of one project; of none: the process's own, which has turns like a
        project's."""
        return Slice(self, *((breakers[0].org_id, breakers[0].project_id) if breakers else ("", "")))

    async def turn(self, org_id: str, project_id: str) -> None:
        """Returns when a slice of work of a task may begin."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(org_id, project_id, (partial(_begin, turn), False))
        self._turns.add(turn)
        turn.add_done_callback(self._turns.discard)
        self._call()
        await turn

    def close(self) -> None:
        """Nobody goes on any more; tasks that wait for a turn are cancelled."""
        for turn in list(self._turns):
            turn.cancel()
        self._waiting = NestedTurns(lambda _: 1)

    def rest(self, rows: int) -> None:
        """Nobody goes on for as long as heavy work of so many rows took; lighter work needs no rest."""
        if rows >= HEAVY_ROWS:
            self._free_s = asyncio.get_running_loop().time() + min(REST_MAX_S, rows * ROW_S)

    def _call(self) -> None:
        if not self._is_called:
            self._is_called, loop = True, asyncio.get_running_loop()
            if self._free_s > loop.time():
                loop.call_at(self._free_s, self._go_on)
            else:
                loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        done, resting, loop = 0, 0, asyncio.get_running_loop()
        begun = loop.time()
        try:
            while self._waiting and done < SLICE_ROWS:
                ((step, rests),) = self._waiting.take(1)
                rows = max(step(), STEP_ROWS)
                done, resting = done + rows, resting + rows * rests
        finally:
            self._is_called = False  # who puts itself again meanwhile comes behind the rest
            self.rest(done)
            if resting > SLICE_ROWS // 2:
                now = loop.time()
                self._free_s = max(self._free_s, now + min(REST_MAX_S, RESTS * (now - begun)))
            if self._waiting:
                self._call()


def _begin(turn: asyncio.Future[None]) -> int:
    if turn.done():  # who waited is gone
        return 0
    turn.set_result(None)
    return SLICE_ROWS


class Slice:
    """Long work of one task, done in turns of a project."""

    def __init__(self, slices: Slices, org_id: str, project_id: str) -> None:
        self._slices = slices
        self._whose = org_id, project_id
        self._done = 0

    async def worked(self, rows: int) -> None:
        """So many rows are through. Returns in the next turn when the slice is full."""
        self._done += rows
        if self._done >= SLICE_ROWS:
            self._slices.rest(self._done)
            self._done = 0
            await self._slices.turn(*self._whose)
