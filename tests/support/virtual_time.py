"""Time that passes only when nothing else happens: an event loop that jumps to its next timer, and its clock.

Stores and logs do their jobs for real, one after the other on the loop's own thread, each a virtual millisecond after
it was given. `asyncio.to_thread` uses a thread; time stands still meanwhile. So a slow machine changes no figure of a
test. Real sockets work, but only between ends on the same loop: for others time would run away.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar

from breaker_actors.clock import Clock, SystemClock

T = TypeVar("T")

EPOCH_MS = 1_800_000_000_000
"""Wall-clock time at which every virtual loop begins."""
JOB_S = 0.001
"""Virtual seconds that a job takes, however long it really takes."""
JOB_MAX_S = 60.0
"""A job that takes longer, in real seconds, is stuck."""


class _Selector(selectors.DefaultSelector):
    """Waits for real only while jobs are under way; otherwise waiting moves `now`, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.jobs = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.jobs:
            ready = super().select(JOB_MAX_S)
            assert ready, f"{self.jobs} jobs on threads did not end in {JOB_MAX_S} s"
        elif timeout is None:
            raise AssertionError("every task waits for something that no timer brings")
        else:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` begins at 0 and has nothing to do with the machine's clocks.

    A job for an executor of the product's own is done here, in the order given; one for the default executor on a
    thread, after all jobs that were given before it."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="virtual-loop")
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is not None:
            future: asyncio.Future[Any] = self.create_future()
            self._queue.append((future, func, args))
            self.call_later(JOB_S, self._do_next)
            return future
        while self._queue:
            self._do_next()
        job = self._pool.submit(func, *args)
        self._virtual.jobs += 1
        result = asyncio.wrap_future(job, loop=self)
        job.add_done_callback(self._told)  # after the one that brings the result
        return result

    def _do_next(self) -> None:
        if not self._queue:
            return
        future, func, args = self._queue.popleft()
        try:
            result = func(*args)
        except Exception as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    def close(self) -> None:
        super().close()
        self._pool.shutdown()

    def _told(self, _: Future[Any]) -> None:
        if not self.is_closed():
            self.call_soon_threadsafe(self._ended)

    def _ended(self) -> None:
        self._virtual.jobs -= 1
        self._virtual.now += JOB_S


class LoopClock:
    """A wall clock that follows a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return EPOCH_MS + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


def clock_of_loop() -> Clock:
    """The clock that the running loop's timers go by."""
    loop = asyncio.get_running_loop()
    return LoopClock(loop) if isinstance(loop, VirtualLoop) else SystemClock()


def run(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
