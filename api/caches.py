"""What a replica remembers of keys, projects and routers so that a sample costs no query (design.md section 2).

Dropped by feed entries, bypassed while the feed is silent. A miss always asks the store before anything is rejected,
and "not there" is never remembered.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from breaker_actors.stores.base import BreakerRow, KeyRow, ProjectRow, Store

T = TypeVar("T")

BREAKERS_MAX = 50_000
"""Breakers remembered, of all projects together."""


class Lru(Generic[T]):
    """A map of bounded weight; the entry unused for longest goes first, one that is too heavy alone is not kept."""

    def __init__(self, weight_max: int) -> None:
        self._entries: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._weight_max = weight_max
        self._weight = 0

    def get(self, name: str) -> T | None:
        if name not in self._entries:
            return None
        self._entries.move_to_end(name)
        return self._entries[name][0]

    def put(self, name: str, value: T, weight: int = 1) -> None:
        self.drop(name)
        self._entries[name] = (value, weight)
        self._weight += weight
        while self._weight > self._weight_max:
            self._weight -= self._entries.popitem(last=False)[1][1]

    def drop(self, name: str) -> None:
        if name in self._entries:
            self._weight -= self._entries.pop(name)[1]

    def clear(self) -> None:
        self._entries.clear()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)


class Caches:
    """`fresh` tells whether the feed was heard from within the last second.

    A value read from the store is kept only if nothing was dropped meanwhile: otherwise a read that began before a
    change could be remembered after the change was announced.
    """

    def __init__(self, store: Store, fresh: Callable[[], bool], entries_max: int = 10_000) -> None:
        self._store = store
        self._fresh = fresh
        self._keys: Lru[KeyRow] = Lru(entries_max)
        self._projects: Lru[ProjectRow] = Lru(entries_max)
        self._routers: Lru[dict[str, bool]] = Lru(entries_max)
        self._breakers: Lru[dict[str, BreakerRow]] = Lru(BREAKERS_MAX)
        self._drops = 0

    async def key(self, key: str) -> KeyRow | None:
        """The row of an API key, kept under a hash: the key itself is in memory for no longer than a call."""
        if not key:
            return None
        name = hashlib.sha256(key.encode()).hexdigest()
        found = self._recall(self._keys, name)
        if found is None:
            drops = self._drops
            found = await self._store.find_key(key)
            self._keep(self._keys, name, found, drops)
        return found

    async def project(self, project_id: str) -> ProjectRow | None:
        found = self._recall(self._projects, project_id)
        if found is None:
            drops = self._drops
            found = await self._store.get_project(project_id)
            self._keep(self._projects, project_id, found, drops)
        return found

    async def routers(self, project_id: str, wanted: Collection[str]) -> dict[str, bool]:
        """A project's routers, and whether each splits samples; asks again when one of the wanted isn't known."""
        found = self._recall(self._routers, project_id)
        if found is None or not found.keys() >= set(wanted):
            drops = self._drops
            found = {router.id: router.mode != "static" for router in await self._store.list_routers(project_id)}
            self._keep(self._routers, project_id, found, drops)
        return found

    async def breakers(self, project_id: str, wanted: Collection[str] = ()) -> dict[str, BreakerRow]:
        """A project's breakers by id, in creation order; asks again when one of the wanted isn't known."""
        found = self._recall(self._breakers, project_id)
        if found is None or not found.keys() >= set(wanted):
            drops = self._drops
            rows, _ = await self._store.list_breakers(project_id)
            found = {row.id: row for row in rows}
            self._keep(self._breakers, project_id, found or None, drops, len(found))
        return found

    def forget_project(self, project_id: str) -> None:
        """The project's configuration changed."""
        self._drops += 1
        self._projects.drop(project_id)
        self._routers.drop(project_id)
        self._breakers.drop(project_id)

    def forget_access(self) -> None:
        """A key was revoked or a secret changed: rare, so everything about access goes."""
        self._drops += 1
        self._keys.clear()
        self._projects.clear()

    def forget_all(self) -> None:
        """The feed lost its place: anything may have changed."""
        self.forget_access()
        self._routers.clear()
        self._breakers.clear()

    def _recall(self, cache: Lru[T], name: str) -> T | None:
        return cache.get(name) if self._fresh() else None

    def _keep(self, cache: Lru[T], name: str, value: T | None, drops: int, weight: int = 1) -> None:
        if value is not None and drops == self._drops:
            cache.put(name, value, weight)
