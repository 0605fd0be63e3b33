"""Work that a BreakerActor does in the background, and what becomes of the breakers that it was about when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import structlog

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.telemetry.guard import Background, run_supervised
from breaker_actors.telemetry.set_aside import Asides

log = structlog.get_logger()


class BreakerTasks(Background):
    """The tasks of one process. What fails with what nobody expected sets its own breakers aside, and no other one."""

    def __init__(self, asides: Asides) -> None:
        super().__init__()
        self._asides = asides

    def every(self, pause_s: float, name: str, work: Callable[[], Awaitable[None]], *, at_once: bool) -> None:
        """Repeats a piece of work for ever, with a pause after it; a round that fails is logged."""

        async def rounds() -> None:
            if not at_once:
                await asyncio.sleep(pause_s)
            while True:
                await run_supervised(name, work())
                await asyncio.sleep(pause_s)

        self.spawn(rounds())

    def spawn(self, work: Coroutine[Any, Any, None], *about: HostedBreaker) -> asyncio.Task[None]:
        """Starts a task. When it fails, those it was about are set aside: they were blocked for it, and would be for
        good."""
        task = super().spawn(self._guarded(work, about))
        task.add_done_callback(lambda _: work.close())  # it was cancelled before it began
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None], about: Sequence[HostedBreaker]) -> None:
        try:
            await work
        except Exception as error:
            log.error("task_failed", breakers=len(about), error=repr(error))
            for hosted in about:
                if not hosted.dropped and (hosted.blocked or len(about) == 1):
                    self.set_aside(hosted, error)

    def set_aside(self, hosted: HostedBreaker, error: Exception) -> None:
        """Sets a breaker aside as a whole."""
        self._asides.note("state", hosted.id, error, project_id=hosted.project_id)
        hosted.set_aside()
