"""An event loop whose time is a number: when nothing is ready it jumps to the next timer. No sleeping, no threads."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

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
