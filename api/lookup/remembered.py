"""Looks that many ask for: one at a time for each name, told to all who ask meanwhile and for a moment after it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

NAMES_MAX = 10_000
"""Names whose last look is remembered; the one begun longest ago goes first."""


class _Look(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.until_s: float | None = None
        """Until when it is told; None while it is under way."""


class Remembered(Generic[T]):
    """What was seen, good or bad, for `keep_s` from the end of the look. A caller that leaves does not end the look of
    the others. More looks than `names_max` are under way only where as many callers wait."""

    def __init__(self, keep_s: float, monotonic: Callable[[], float], names_max: int = NAMES_MAX) -> None:
        self._keep_s = keep_s
        self._monotonic = monotonic
        self._names_max = names_max
        self._looks: OrderedDict[str, _Look[T]] = OrderedDict()

    async def get(self, name: str, look: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the last look saw, or a new one. Raises what the look raises."""
        found = self._looks.get(name)
        if found is None or (found.until_s is not None and found.until_s <= self._monotonic()):
            found = self._begin(name, look())
        return await asyncio.shield(found.task)

    def drop(self, name: str) -> None:
        """Whoever asks from now on has a new look."""
        self._looks.pop(name, None)

    def _begin(self, name: str, look: Coroutine[Any, Any, T]) -> _Look[T]:
        begun = _Look(asyncio.create_task(look))
        begun.task.add_done_callback(lambda _: self._end(begun))
        self._looks.pop(name, None)
        self._looks[name] = begun
        if len(self._looks) > self._names_max:
            self._looks.popitem(last=False)
        return begun

    def _end(self, look: _Look[T]) -> None:
        look.until_s = self._monotonic() + self._keep_s
        if not look.task.cancelled():
            look.task.exception()  # its callers may all have left
