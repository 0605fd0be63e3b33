"""Writes of thousands of rows in steps, between which all other writers have their turn.

SQLite has one writer, and so have the configuration writes of PostgreSQL: what changes thousands of breakers in one
transaction keeps everybody's trips and changes waiting for seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from time import perf_counter
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection

from breaker_actors.sql.database import Database

T = TypeVar("T")

STEP, STEP_BYTES = 500, 1 << 20
"""What one transaction changes at most: breakers or routers, and bytes of breakers' texts, though one of them at least.
About a tenth of a second."""
PAUSE_S = 0.05
"""The least time between two steps, which otherwise is as long as the step was. Other processes ask SQLite for its lock
again and again, and find it free then."""

log = structlog.get_logger()
_whole: set[asyncio.Task[Any]] = set()


async def pause(time_s: float) -> None:
    await asyncio.sleep(time_s)


def running() -> list[asyncio.Task[Any]]:
    """What goes on, whether its caller waits for it or not."""
    return list(_whole)


class Steps:
    """Transactions of one task, with pauses between them."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._took_s: float | None = None

    async def write(self, work: Callable[[Connection], T]) -> T:
        if self._took_s is not None:
            await pause(max(PAUSE_S, self._took_s))
        begun = perf_counter()
        done = await self._db.write(work)
        self._took_s = perf_counter() - begun
        return done


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
