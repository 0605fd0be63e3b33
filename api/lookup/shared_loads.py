"""Loads by id that share queries, so that many who miss the same or like things cost one query, not one each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Generic, TypeVar

T = TypeVar("T")

Load = Callable[[str, Collection[str] | None], Awaitable[dict[str, T]]]
"""Reads what there is of some ids of a project; None: of all."""


class _Batch(Generic[T]):
    """What the next query of a project is to find. `ids` None: everything."""

    def __init__(self) -> None:
        self.ids: set[str] | None = set()
        self.found: asyncio.Future[dict[str, T]] = asyncio.get_running_loop().create_future()

    def add(self, ids: Collection[str] | None) -> None:
        if ids is None:
            self.ids = None
        elif self.ids is not None:
            self.ids.update(ids)


class Shared(Generic[T]):
    """One query of a project at a time; whatever is asked for meanwhile goes with the next one.

    Nobody joins a query under way: it may have begun before a change that the caller knows of. Bounded by the requests
    that wait, whose ids a batch holds; a caller that leaves does not end the query of the others."""

    def __init__(self, load: Load[T]) -> None:
        self._load = load
        self._next: dict[str, _Batch[T]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def get(self, project_id: str, ids: Collection[str] | None) -> dict[str, T]:
        """What there is of these ids, maybe with others of the project. Raises what the load raises."""
        if (batch := self._next.get(project_id)) is None:
            batch = self._next[project_id] = _Batch()
        batch.add(ids)
        if project_id not in self._running:
            self._running[project_id] = asyncio.create_task(self._run(project_id))
        return await asyncio.shield(batch.found)

    async def _run(self, project_id: str) -> None:
        try:
            while batch := self._next.pop(project_id, None):
                await self._answer(project_id, batch)
        finally:
            del self._running[project_id]

    async def _answer(self, project_id: str, batch: _Batch[T]) -> None:
        try:
            batch.found.set_result(await self._load(project_id, batch.ids))
        except Exception as error:
            batch.found.set_exception(error)
            batch.found.exception()  # its callers may all have left
        finally:
            batch.found.cancel()  # only where the load was cancelled
