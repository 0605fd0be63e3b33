"""What a replica remembers of keys, projects and routers so that a sample costs no query (design.md section 2).

Dropped by feed entries, bypassed while the feed is silent. A miss always asks the store before anything is rejected,
and "not there" is never remembered.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from breaker_actors.stores.base import KeyRow, ProjectRow, Store

T = TypeVar("T")


class Lru(Generic[T]):
    """A bounded map; the entry unused for longest goes first."""

    def __init__(self, entries_max: int) -> None:
        self._entries: OrderedDict[str, T] = OrderedDict()
        self._entries_max = entries_max

    def get(self, name: str) -> T | None:
        if name in self._entries:
            self._entries.move_to_end(name)
        return self._entries.get(name)

    def put(self, name: str, value: T) -> None:
        self._entries[name] = value
        self._entries.move_to_end(name)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def drop(self, name: str) -> None:
        self._entries.pop(name, None)

    def clear(self) -> None:
        self._entries.clear()

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

    def forget_project(self, project_id: str) -> None:
        """The project's configuration changed."""
        self._drops += 1
        self._projects.drop(project_id)
        self._routers.drop(project_id)

    def forget_access(self) -> None:
        """A key was revoked or a secret changed: rare, so everything about access goes."""
        self._drops += 1
        self._keys.clear()
        self._projects.clear()

    def forget_all(self) -> None:
        """The feed lost its place: anything may have changed."""
        self.forget_access()
        self._routers.clear()

    def _recall(self, cache: Lru[T], name: str) -> T | None:
        return cache.get(name) if self._fresh() else None

    def _keep(self, cache: Lru[T], name: str, value: T | None, drops: int) -> None:
        if value is not None and drops == self._drops:
            cache.put(name, value)
