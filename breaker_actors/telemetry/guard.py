"""Supervised loops and background tasks: an iteration that fails is logged, and the loop goes on."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger()


async def run_supervised(loop: str, work: Awaitable[None]) -> None:
    """Runs one iteration of a background loop; logs and swallows its exception. A bug in it must not stop timers,
    checkpoints or heartbeats for good."""
    try:
        await work
    except Exception as error:
        log_failure(loop, error)


def log_failure(loop: str, error: Exception) -> None:
    """Call it where an exception is handled that nobody expected."""
    # the trace as text: a renderer that shows local variables could show a secret
    log.error("round_failed", loop=loop, error=str(error), trace=traceback.format_exc(limit=8))


class Background:
    """Tasks that nobody awaits; `stop` ends them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
