"""An event loop whose time is a number: when nothing is ready it jumps to the next timer. No sleeping, no threads."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any

from tests.sim.process import OUTSIDE, RUNS_IN

ROUNDS_MAX = 50_000
"""So many rounds without time passing are a loop that will not end."""


class Stuck(Exception):
    """Nothing can happen any more, or time stands still."""


class _Jump(selectors.SelectSelector):
    """Nothing is ever ready to be read: waiting moves the time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._rounds = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("every task waits for something that no timer brings")
        self._rounds = 0 if timeout > 0 else self._rounds + 1
        if self._rounds > ROUNDS_MAX:
            raise Stuck(f"{ROUNDS_MAX} rounds in one instant")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Work for an executor is done at once, in line: what would be done on a thread is one step here."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class StoppingLoop(VirtualLoop):
    """Processes can be stopped and go on (as SIGSTOP and SIGCONT do): what they would do meanwhile waits, in order."""

    def _call_soon(self, callback: Any, args: Any, context: Context | None) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer


def _waits(handle: Any) -> bool:
    """Whether what a handle would do belongs to a process that is stopped."""
    process = handle._context.get(RUNS_IN)
    if process is None or process.held is None or handle._context.get(OUTSIDE):
        return False
    process.held.append(handle)
    return True


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        if not _waits(self):
            super()._run()  # type: ignore[misc]


class _Timer(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        if not _waits(self):
            super()._run()  # type: ignore[misc]
