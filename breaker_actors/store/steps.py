"""Writes of thousands of rows in steps, between which all other writers have their turn.

SQLite has one writer, and so have the configuration writes of PostgreSQL: what changes thousands of breakers in one
transaction keeps everybody's trips and changes waiting for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from time import perf_counter
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection

from breaker_actors.sql.database import Database

T = TypeVar("T")

STEP, STEP_BYTES = 500, 1 << 20
"""What one transaction changes at most: breakers or routers, and bytes of breakers' texts, though one of them at least.
About a tenth of a second."""
REST, PAUSE_S, SHORT_S = 2, 0.05, 0.02
"""So many times as long as a step took, and PAUSE_S at least where it was not short, no other one begins: all steps of
a process take a third of a core's time, whoever asks for how many. Other processes ask SQLite for its lock again and
again, and find it free in between."""

log = structlog.get_logger()
_whole: set[asyncio.Task[Any]] = set()


async def pause(time_s: float) -> None:
    await asyncio.sleep(time_s)


def running() -> list[asyncio.Task[Any]]:
    """What goes on, whether its caller waits for it or not."""
    return list(_whole)


class Steps:
    """The steps of all large changes of a process, one at a time, in the order in which they were asked for."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._turn = asyncio.Lock()
        self._rested = 0.0

    async def write(self, work: Callable[[Connection], T]) -> T:
        return await self._in_turn(self._db.write, work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        return await self._in_turn(self._db.read, work)

    async def _in_turn(
        self, transact: Callable[[Callable[[Connection], T]], Awaitable[T]], work: Callable[[Connection], T]
    ) -> T:
        clock = asyncio.get_running_loop().time
        async with self._turn:
            if (left := self._rested - clock()) > 0:
                await pause(left)
            begun = perf_counter()
            try:
                return await transact(work)
            finally:
                took = perf_counter() - begun
                self._rested = clock() + max(REST * took, PAUSE_S if took > SHORT_S else 0.0)


def first_few(sizes: Iterable[int]) -> int:
    """How many of what has such sizes make a step: one at least, where there is one."""
    count = taken = 0
    for size in sizes:
        taken += size
        if count == STEP or (count and taken > STEP_BYTES):
            break
        count += 1
    return count


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Runs to its end, also where the caller is cancelled: who hangs up leaves no half of it behind."""
    task = asyncio.create_task(work)
    _whole.add(task)
    task.add_done_callback(_ended)
    return await asyncio.shield(task)


def _ended(task: asyncio.Task[Any]) -> None:
    _whole.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("steps_ended", error=str(error))
