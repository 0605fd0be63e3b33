"""Processes of the simulated cluster: tasks that die together, a clock of their own, and being dead for good.

A task belongs to the process in whose context it was made. Killing a process cancels its tasks where they wait; what
they then still try to do outside of themselves is refused, so no `finally` of theirs reaches anybody.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from breaker_actors.clock import SteadyClock

EPOCH_MS = 1_800_000_000_000
"""Wall-clock time at which every simulation begins."""

RUNS_IN: contextvars.ContextVar[Process | None] = contextvars.ContextVar("RUNS_IN", default=None)
STEP_LASTS_S = 60.0
"""A step ahead is believed once it has been there for so long (docs/operations/log.md)."""
HOURS_MS = 3_000_000
OUTSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("OUTSIDE", default=False)
"""True for what a process has handed on: calls under way, operations of a database. They go on while it is stopped."""


class ProcessClock:
    """The wall clock of one process, apart from the true time by `offset_ms`; and a monotonic one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_ms: int) -> None:
        self._loop = loop
        self.offset_ms = offset_ms
        self.stepped_s = -STEP_LASTS_S
        """When it was last set ahead by hours, from where it was about right."""
        self._noticed: Callable[[], None] | None = None
        self._stands_at: float | None = None

    def jump(self, step_ms: int, noticed: Callable[[], None]) -> None:
        """Sets the clock by so much; `noticed` is called when somebody reads it next."""
        self.offset_ms += step_ms
        self._noticed = noticed
        if self.offset_ms > HOURS_MS >= self.offset_ms - step_ms:
            self.stepped_s = self._loop.time()

    def stand_still(self, noticed: Callable[[], None]) -> None:
        """Shows the same time until it goes on."""
        self._stands_at, self._noticed = self._loop.time(), noticed

    def go_on(self) -> None:
        """It is set right, too."""
        self._stands_at = None

    def now_ms(self) -> int:
        if self._noticed is not None:
            noticed, self._noticed = self._noticed, None
            noticed()
        time_s = self._loop.time() if self._stands_at is None else self._stands_at
        return EPOCH_MS + int(time_s * 1000) + self.offset_ms

    def monotonic(self) -> float:
        return self._loop.time()


class ActorClock(SteadyClock):
    """What an actor believes of its process's clock. `highest_ms`: the latest time it ever did."""

    latest_ms = 0
    """The same of all actors of a run: nobody may act earlier than that again."""
    hasty = ""
    """Of all actors of a run, too: that one believed a step before it had lasted."""

    def __init__(self, clock: ProcessClock, step_max_ms: int) -> None:
        super().__init__(clock, step_max_ms)
        self._own, self._bound_ms = clock, step_max_ms
        self._furthest_ms = float(self._offset_ms)
        self.highest_ms = 0

    def now_ms(self) -> int:
        now_ms = super().now_ms()
        self.highest_ms = max(self.highest_ms, now_ms)
        ActorClock.latest_ms = max(ActorClock.latest_ms, now_ms)
        at_s = self._own.monotonic()
        offset_ms = now_ms - 1000 * at_s
        furthest_ms = self._furthest_ms
        if offset_ms > furthest_ms + self._bound_ms + 1 and at_s - self._own.stepped_s < STEP_LASTS_S:
            ahead_s, since_s = (offset_ms - furthest_ms) / 1000, at_s - self._own.stepped_s
            ActorClock.hasty = f"a step of {ahead_s:.1f} s is believed after {since_s:.1f} s"
        self._furthest_ms = max(furthest_ms, offset_ms)
        return now_ms


class Process:
    """One actor, replica or client. `part` is there once it is up; calls wait for that."""

    def __init__(
        self, kind: str, name: str, number: int, loop: asyncio.AbstractEventLoop, offset_ms: int, step_max_ms: int
    ) -> None:
        self.kind = kind
        self.name = name
        self.label = f"{name}#{number}"
        self.clock = ProcessClock(loop, offset_ms)
        self.believed = ActorClock(self.clock, step_max_ms)
        self.part: Any = None
        self.up = asyncio.Event()
        self.alive = True
        self.replaced = False
        self.held: list[asyncio.Handle] | None = None
        """While it is stopped: what it does when it goes on."""
        self.serving: dict[int, Callable[[], None]] = {}
        self._loop = loop
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._made = 0

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    def set_up(self, part: Any) -> None:
        self.part = part
        self.up.set()

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of this process."""
        context = contextvars.copy_context()
        context.run(RUNS_IN.set, self)
        context.run(OUTSIDE.set, False)
        return self._loop.create_task(work, context=context)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._made += 1
        number = self._made
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def must_live(self) -> None:
        """The dead do nothing: what still runs of them ends here."""
        if not self.alive:
            raise asyncio.CancelledError

    def stop(self) -> None:
        """As SIGSTOP: it does nothing, and whoever calls it waits."""
        if self.held is None:
            self.held = []

    def go_on(self) -> None:
        """As SIGCONT."""
        loop: Any = self._loop
        held, self.held = self.held, None
        loop._ready.extend(held or ())

    def die(self) -> None:
        """As a kill: whoever waits for an answer learns it, later."""
        self.alive = False
        self.go_on()
        for task in list(self._tasks.values()):
            task.cancel()
        for lost in list(self.serving.values()):
            lost()
        self.serving.clear()


def task_factory(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    """Tells every new task's process of it."""
    owner = RUNS_IN.get() if context is None else context.get(RUNS_IN)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    if owner is not None:
        owner.adopt(task)
        if not owner.alive:
            task.cancel()
    return task
