"""Work that a BreakerActor does in the background, and what becomes of the breakers that it was about when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

import structlog

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.breaker.slices import Slices
from breaker_actors.messages import BreakerAssignment
from breaker_actors.telemetry.guard import Background, run_supervised
from breaker_actors.telemetry.set_aside import Asides

Read = Callable[[str, Sequence[HostedBreaker], int], Awaitable[None]]
Refill = Callable[[list[HostedBreaker]], Awaitable[None]]
Assigned = list[tuple[HostedBreaker, BreakerAssignment]]

KEPT_ROWS_MAX = 200_000
"""So many rows, and one at least for each breaker, are kept of what comes for breakers while they are restored; what
comes beyond them is read from the log later."""

log = structlog.get_logger()


class BreakerTasks(Background):
    """The tasks of one process, and its slices of long work. What fails with what nobody expected sets its own breakers
    aside, and no other one."""

    def __init__(self) -> None:
        super().__init__()
        self.asides = Asides()
        self.slices = Slices()

    async def stop(self) -> None:
        self.slices.close()
        await super().stop()

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
        self.asides.note("state", hosted.id, error, project_id=hosted.project_id)
        hosted.set_aside()


class Restores:
    """Groups of breakers of one project each that are restored, and what is kept of what comes for them meanwhile: so
    much for all together, each as much as the others. A project that has used up its transitions is restored for as
    long as its breakers move.

    `restore` restores a group. When that fails with what nobody expected, each is begun `anew` and alone: one must not
    take the others with it. Bounded by the breakers there are."""

    def __init__(
        self,
        tasks: BreakerTasks,
        restore: Callable[[Assigned], Awaitable[None]],
        anew: Callable[[Assigned], Sequence[Assigned]],
    ) -> None:
        self._tasks = tasks
        self._restore = restore
        self._anew = anew
        self.under_way = 0

    def begin(self, groups: Sequence[Assigned]) -> None:
        self.under_way += sum(map(len, groups))
        for group in groups:
            for hosted, _ in group:
                hosted.keeps = max(1, KEPT_ROWS_MAX // self.under_way)
            self._tasks.spawn(self._run(group), *(hosted for hosted, _ in group))

    async def _run(self, group: Assigned) -> None:
        try:
            await self._restore(group)
        except Exception as error:
            if len(group) == 1:
                raise
            log.error("restore_failed", breakers=len(group), error=repr(error))
            self.begin(self._anew([(h, assignment) for h, assignment in group if h.blocked and not h.dropped]))
        finally:
            self.under_way -= len(group)


class LogReads:
    """Reads of routers' logs that blocked breakers wait for: one at a time of each router, for all that wait for it. A
    record of a router with thousands of breakers concerns one of them, or all: were each to read by itself, each would
    read past the records of all others.

    `read` reads a log for breakers up to an offset, and applies it; `free` lets one of them go on. A read that fails is
    done again for each breaker alone: one must not take the others with it. Bounded by the breakers there are: each
    waits for one read at most."""

    def __init__(self, tasks: BreakerTasks, read: Read, free: Callable[[HostedBreaker], object]) -> None:
        self._tasks = tasks
        self._read = read
        self._free = free
        self._waiting: dict[str, list[tuple[HostedBreaker, int]]] = {}
        self._under_way: set[str] = set()

    def ask(self, hosted: HostedBreaker, router_id: str, upto: int) -> None:
        """Reads for a breaker, with those that ask before its turn comes."""
        self._waiting.setdefault(router_id, []).append((hosted, upto))
        if router_id not in self._under_way:
            self._under_way.add(router_id)
            self._tasks.spawn(self._run(router_id))

    async def _run(self, router_id: str) -> None:
        try:
            while waiting := self._waiting.pop(router_id, None):
                await self._read_for(router_id, [hosted for hosted, _ in waiting], max(upto for _, upto in waiting))
        finally:
            self._under_way.discard(router_id)

    async def _read_for(self, router_id: str, group: Sequence[HostedBreaker], upto: int) -> None:
        try:
            await self._read(router_id, group, upto)
            for hosted in group:
                self._free(hosted)
        except Exception as error:
            if len(group) == 1:
                self._tasks.set_aside(group[0], error)
                return
            log.error("log_read_failed", breakers=len(group), error=repr(error))
            for hosted in group:
                if hosted.blocked and not hosted.dropped:
                    await self._read_for(router_id, [hosted], upto)


class Refills:
    """Windows that are filled from the logs, of breakers that wait for it: one read at a time of a project, for all of
    its breakers that asked meanwhile. A set of thousands on one router that gets longer windows would read its log as
    often otherwise.

    `refill` fills the windows of a group; where it fails each is filled alone. Bounded by the breakers there are: each
    waits for one at most."""

    def __init__(self, tasks: Background, refill: Refill) -> None:
        self._tasks = tasks
        self._refill = refill
        self._waiting: dict[str, list[tuple[HostedBreaker, asyncio.Future[None]]]] = {}
        self._under_way: set[str] = set()

    async def fill_now(self, breakers: Iterable[HostedBreaker]) -> None:
        """Fills the windows of those that ask for it, for who reads for all of them."""
        group = {hosted.id: hosted for hosted in breakers if hosted.needs_refill and not hosted.dropped}
        for hosted in group.values():
            hosted.needs_refill = False
        if group:
            await self._refill(list(group.values()))

    async def fill(self, hosted: HostedBreaker) -> None:
        """Returns once the window is what the logs say, if its breaker asks for that."""
        if hosted.dropped or not hosted.needs_refill:
            return
        hosted.needs_refill = False
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(hosted.project_id, []).append((hosted, done))
        if hosted.project_id not in self._under_way:
            self._under_way.add(hosted.project_id)
            self._tasks.spawn(self._run(hosted.project_id))
        await done

    async def _run(self, project_id: str) -> None:
        try:
            while waiting := self._waiting.pop(project_id, None):
                await self._fill_all(waiting)
        finally:
            self._under_way.discard(project_id)

    async def _fill_all(self, waiting: Sequence[tuple[HostedBreaker, asyncio.Future[None]]]) -> None:
        try:
            await self._refill([hosted for hosted, _ in waiting])
            error = None
        except Exception as found:
            error = found
            log.error("refill_failed", breakers=len(waiting), error=repr(error))
        if error is not None and len(waiting) > 1:
            for one in waiting:
                await self._fill_all([one])
            return
        for _, done in waiting:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)
