"""What a replica remembers of keys, projects and routers so that a sample costs no query (architecture.md section 2).

Dropped by feed entries, bypassed while the feed is silent. A miss asks the store before anything is rejected, and only
for what is missing. "Not there" is remembered of routers alone, for a second: their ids are made with them, so that
nobody can have asked before for one that its creator was told of. Ids of breakers are their creators' choice.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Generic, NamedTuple, TypeVar

from api.auth import uuid_or_none
from api.lookup.shared_loads import Shared
from breaker_actors.messages import EVERY_PROJECT, SESSIONS
from breaker_actors.store.base import ReplicaStore
from breaker_actors.store.rows import BreakerBrief, KeyRow, ProjectRow, SessionRow

T = TypeVar("T")

BREAKERS_MAX = 50_000
"""Breakers remembered, of all projects together."""
ROUTERS_MAX = 100_000
"""Routers remembered, of all projects together."""
ABSENT_MAX = 10_000
"""Ids remembered as no router's, of all projects together; the oldest goes first, and is asked for again."""
ABSENT_S = 1.0
IDS_PER_QUERY_MAX = 10_000
"""Where more ids than this are missing, all of the project is read instead."""


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

    def drop_those(self, which: Callable[[T], bool]) -> None:
        """Drops every value of which this is true."""
        for name in [name for name, (value, _) in self._entries.items() if which(value)]:
            self.drop(name)

    def clear(self) -> None:
        self._entries.clear()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._entries)


class Known(NamedTuple, Generic[T]):
    """What is remembered of a project. `whole`: all there was; else what was asked for."""

    rows: dict[str, T]
    whole: bool


class Absent:
    """Ids that were not found lately; bounded in time and number."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._until: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._monotonic = monotonic

    def note(self, project_id: str, ids: Collection[str]) -> None:
        until = self._monotonic() + ABSENT_S
        for id_ in ids:
            self._until.pop((project_id, id_), None)
            self._until[project_id, id_] = until
            if len(self._until) > ABSENT_MAX:
                self._until.popitem(last=False)

    def without(self, project_id: str, ids: Collection[str]) -> set[str]:
        """Those of the ids that may be there."""
        now = self._monotonic()
        return {id_ for id_ in ids if self._until.get((project_id, id_), now) <= now}

    def clear(self) -> None:
        self._until.clear()

    def __len__(self) -> int:
        return len(self._until)


def _key_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Caches:
    """`fresh` tells whether the feed was heard from within the last second.

    A value read from the store is kept only if nothing was dropped meanwhile: otherwise a read that began before a
    change could be remembered after the change was announced.
    """

    def __init__(
        self,
        store: ReplicaStore,
        fresh: Callable[[], bool],
        monotonic: Callable[[], float],
        entries_max: int = 10_000,
    ) -> None:
        self._store = store
        self._fresh = fresh
        self._keys: Lru[KeyRow] = Lru(entries_max)
        self._sessions: Lru[SessionRow] = Lru(entries_max)
        self._projects: Lru[ProjectRow] = Lru(entries_max)
        self._routers: Lru[Known[bool]] = Lru(ROUTERS_MAX)
        self._breakers: Lru[Known[BreakerBrief]] = Lru(BREAKERS_MAX)
        self._absent = Absent(monotonic)
        self._router_loads = Shared(self._load_routers)
        self._breaker_loads = Shared(self._load_breakers)
        self._link_loads = Shared(self._load_links)
        self._drops = self._sessions_drops = 0
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, forget: Callable[[str], None]) -> None:
        """Has `forget` called with each project whose configuration changed."""
        self._watchers.append(forget)

    async def key(self, key: str) -> KeyRow | None:
        """The row of an API key, kept under a hash: the key itself is in memory for no longer than a call."""
        if not key:
            return None
        name = _key_name(key)
        found = self._recall(self._keys, name)
        if found is None:
            drops = self._drops
            found = await self._store.find_key(key)
            self._keep(self._keys, name, found, drops)
        return found

    async def session(self, token: str, now_ms: int) -> SessionRow | None:
        """The session of a token of the console, kept like a key."""
        if not token:
            return None
        name = _key_name(token)
        found = self._recall(self._sessions, name)
        if found is None:
            drops, ended = self._drops, self._sessions_drops
            found = await self._store.find_session(token, now_ms)
            if ended == self._sessions_drops:
                self._keep(self._sessions, name, found, drops)
        return found if found is not None and now_ms < found.ends_ms else None

    def remembered_session(self, token: str) -> KeyRow | None:
        """The key of a session that was found before. It says who is counted, never what is allowed."""
        found = self._sessions.get(_key_name(token)) if token else None
        return None if found is None else found.key

    def knows_session(self, token: str) -> bool:
        """Whether the session is remembered."""
        return self.remembered_session(token) is not None

    def remembered_key(self, key: str) -> KeyRow | None:
        """The row of a key that was found before, if nobody's access was changed since. It says who is counted, never
        what is allowed."""
        return self._keys.get(_key_name(key)) if key else None

    def knows_key(self, key: str) -> bool:
        """Whether the key is remembered."""
        return self.remembered_key(key) is not None

    def remembered_project(self, project_id: str) -> ProjectRow | None:
        """The row of a project that was found before."""
        return self._projects.get(project_id.lower())

    def knows_project(self, project_id: str) -> bool:
        """Whether the project is remembered."""
        return self.remembered_project(project_id) is not None

    async def project(self, project_id: str) -> ProjectRow | None:
        found = self._recall(self._projects, project_id)
        if found is None:
            drops = self._drops
            found = await self._store.get_project(project_id)
            self._keep(self._projects, project_id, found, drops)
        return found

    async def routers(self, project_id: str, wanted: Collection[str]) -> Mapping[str, bool]:
        """Those of the wanted routers that the project has, maybe with others, and whether each splits samples."""
        rows, missing = self._routers_at_hand(project_id, wanted)
        return _of(rows, wanted) | await self._router_loads.get(project_id, missing) if missing else rows

    def remembered_routers(self, project_id: str, wanted: Collection[str]) -> dict[str, bool] | None:
        """The wanted ones of these, and no others; None where the store has to be asked."""
        rows, missing = self._routers_at_hand(project_id, wanted)
        return None if missing else _of(rows, wanted)

    def _routers_at_hand(self, project_id: str, wanted: Collection[str]) -> tuple[Mapping[str, bool], Collection[str]]:
        """What is remembered of a project, and those of the wanted routers of which it is not known whether they are
        there."""
        rows = _rows(self._recall(self._routers, project_id))
        if not (missing := set(wanted) - rows.keys()):
            return rows, ()
        missing = {id_ for id_ in missing if uuid_or_none(id_) == id_}
        return rows, self._absent.without(project_id, missing) if self._fresh() else missing

    async def breakers(self, project_id: str, wanted: Collection[str] | None = None) -> Mapping[str, BreakerBrief]:
        """Those of the wanted breakers that the project has, maybe with others; None: all of them, by id."""
        known = self._recall(self._breakers, project_id)
        rows = _rows(known)
        if wanted is None:
            return rows if known and known.whole else await self._breaker_loads.get(project_id, None)
        if not (missing := set(wanted) - rows.keys()):
            return rows
        return _of(rows, wanted) | await self._breaker_loads.get(project_id, missing)

    async def links(self, project_id: str, wanted: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """The breakers of those of the wanted routers that the project has, in link order; never remembered."""
        return await self._link_loads.get(project_id, wanted) if wanted else {}

    async def _load_routers(self, project_id: str, ids: Collection[str] | None) -> dict[str, bool]:
        drops, asked = self._drops, _few(ids)
        modes = await self._store.router_modes(project_id, asked)
        found = {id_: mode != "static" for id_, mode in modes.items()}
        self._add(self._routers, project_id, found, asked is None, drops)
        if ids is not None and drops == self._drops:
            self._absent.note(project_id, set(ids) - found.keys())
        return found

    async def _load_breakers(self, project_id: str, ids: Collection[str] | None) -> dict[str, BreakerBrief]:
        drops, asked = self._drops, _few(ids)
        found = {row.id: row for row in await self._store.breaker_briefs(project_id, asked)}
        self._add(self._breakers, project_id, found, asked is None, drops)
        return found

    async def _load_links(self, project_id: str, ids: Collection[str] | None) -> dict[str, tuple[str, ...]]:
        return await self._store.router_links(project_id, sorted(ids or ()))

    def forget_project(self, project_id: str) -> None:
        """The project's configuration changed."""
        self._drops += 1
        self._projects.drop(project_id)
        self._routers.drop(project_id)
        self._breakers.drop(project_id)
        self._absent.clear()
        for forget in self._watchers:
            forget(project_id)

    def forget_access(self, project_id: str = EVERY_PROJECT) -> None:
        """A key was revoked or a project's settings changed: the project's row and its own keys go, or those of all. Of
        SESSIONS: sessions have ended, and nothing else was changed."""
        self._sessions_drops += 1
        self._sessions.clear()
        if project_id == SESSIONS:
            return
        self._drops += 1
        if project_id == EVERY_PROJECT:
            self._keys.clear()
            self._projects.clear()
        else:
            self._keys.drop_those(lambda key: key.project_id == project_id)
            self._projects.drop(project_id)

    def forget_all(self) -> None:
        """The feed lost its place: anything may have changed."""
        self.forget_access()
        self._routers.clear()
        self._breakers.clear()
        self._absent.clear()

    def _recall(self, cache: Lru[T], name: str) -> T | None:
        return cache.get(name) if self._fresh() else None

    def _keep(self, cache: Lru[T], name: str, value: T | None, drops: int) -> None:
        if value is not None and drops == self._drops:
            cache.put(name, value)

    def _add(self, cache: Lru[Known[T]], project_id: str, found: dict[str, T], whole: bool, drops: int) -> None:
        """Remembers rows beside those that are remembered, or in their place."""
        if not found or drops != self._drops:
            return
        known = None if whole else cache.get(project_id)
        rows = found if known is None else known.rows
        rows.update(found)
        cache.put(project_id, Known(rows, whole or (known is not None and known.whole)), len(rows))


def _rows(known: Known[T] | None) -> Mapping[str, T]:
    return {} if known is None else known.rows


def _of(rows: Mapping[str, T], wanted: Collection[str]) -> dict[str, T]:
    return {id_: rows[id_] for id_ in wanted if id_ in rows}


def _few(ids: Collection[str] | None) -> list[str] | None:
    """The ids that a query is to name; None where it is to read all."""
    return None if ids is None or len(ids) > IDS_PER_QUERY_MAX else sorted(ids)
