"""Which duplicate keys a RouterActor holds and which go: those whose time is over, and at the bound those of the
organisation that holds most, of it the oldest of the project that does. So an organisation with few keys keeps them for
their whole time, whatever others send and in however many projects. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from breaker_actors.messages import RouterAssignment
from breaker_actors.router.group import OwnedRouter
from breaker_actors.wal.base import Append, StoredKey

RETRIES_MS = 30_000
"""A replica repeats an append for so long at most; its key must outlive that."""


class DuplicateKeys:
    """The duplicate keys of the routers owned here: it alone writes `OwnedRouter.keys`."""

    def __init__(self, keys_max: int, window_ms: int) -> None:
        """`keys_max`: in all; `window_ms`: how long a key lives, RETRIES_MS at least."""
        self._ages = KeyAges(keys_max)
        self._lives_ms = max(window_ms, RETRIES_MS)
        self._early: dict[str, int] = {}
        self._of: dict[str, dict[bytes, int]] = {}
        """By router, also of those that are not owned any more, while they have any: what `OwnedRouter.keys` is. A key
        in here has an age already."""

    def __len__(self) -> int:
        return len(self._ages)

    def horizon_ms(self, now_ms: int) -> int:
        """Keys from before this time are over."""
        return now_ms - self._lives_ms

    def learn(self, router: RouterAssignment, stored: Sequence[StoredKey], now_ms: int) -> None:
        """Keys in the log of a router that is to be owned here. They count as of now, or as of their stamp where that
        is later: a clock that is behind just now must not end them once it is right again."""
        horizon_ms = self.horizon_ms(now_ms)
        alive = [one for one in stored if one.received_ms > horizon_ms]
        keys = self._of.setdefault(router.router_id, {}) if alive else {}
        for offset, key, received_ms in alive:
            if key not in keys:
                since_ms = max(now_ms, received_ms)
                self._ages.add(router.org_id, router.project_id, since_ms, router.router_id, key)
            keys[key] = offset

    def adopt(self, router: OwnedRouter, now_ms: int) -> None:
        """A router came with the keys in its log that this process did not know. The others are known with their times,
        also where it had lost the router; these count as of its last stamp at least (see `learn`)."""
        known = self._of.get(router.id, {})
        since_ms = max(now_ms, router.last_ms)
        for key in router.keys:
            if key not in known:
                self._ages.add(router.org_id, router.project_id, since_ms, router.id, key)
        known.update(router.keys)
        router.keys = known
        if known:
            self._of[router.id] = known

    def note(self, router: OwnedRouter, append: Append) -> None:
        """A record is in the log."""
        if append.keys:
            router.keys = self._of.setdefault(router.id, router.keys)
        for key in append.keys:
            if key not in router.keys:
                self._ages.add(router.org_id, router.project_id, append.received_ms, router.id, key)
            router.keys[key] = append.offset

    def forget(self, now_ms: int) -> int:
        """Drops the keys whose time is over, and beyond the bound the oldest of who holds most; answers how many of
        those went early."""
        for gone in self._ages.expired(self.horizon_ms(now_ms)):
            self._drop(*gone)
        early = 0
        for router_id, key in self._ages.beyond():
            offset = self._drop(router_id, key)
            self._early[router_id] = max(offset, self._early.get(router_id, 0))
            early += 1
        return early

    def take_early(self) -> dict[str, int]:
        """By router up to which offset keys went early since the last call: its log need not keep them either. Those
        that came with one record may go a little before the rest of them."""
        early, self._early = self._early, {}
        return early

    def _drop(self, router_id: str, key: bytes) -> int:
        """Answers the offset at which a key was stored; 0 when it is not known."""
        keys = self._of.get(router_id, {})
        offset = keys.pop(key, 0)
        if not keys:
            self._of.pop(router_id, None)
        return offset


class _Holders:
    """How much each of some owners holds, and which of them most."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        """Who holds so much; the one that has done so for longest is first."""
        self._most = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def grow(self, owner: str, more: int) -> None:
        """By a few steps for each key more or less, however many owners there are."""
        before = self._held.pop(owner, 0)
        now = before + more
        if before:
            peers = self._by_count[before]
            del peers[owner]
            if not peers:
                del self._by_count[before]
        if now:
            self._held[owner] = now
            self._by_count.setdefault(now, {})[owner] = None
        self._most = max(self._most, now)
        while self._most and self._most not in self._by_count:
            self._most -= 1

    def largest(self) -> str:
        return next(iter(self._by_count[self._most]))


class KeyAges:
    """Keys with their times, oldest first in each project. A few steps for each key that comes or goes, however many
    there are; `keys_max`: so many are held in all once `beyond` was read to its end."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._held: dict[tuple[str, str], deque[tuple[int, str, bytes]]] = {}
        """By organisation and project."""
        self._oldest: list[tuple[int, tuple[str, str]]] = []
        """A heap with one entry for each project that holds keys: not later than its oldest key."""
        self._orgs = _Holders()
        self._projects: dict[str, _Holders] = {}
        """Of each organisation that holds keys."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, org_id: str, project_id: str, now_ms: int, router_id: str, key: bytes) -> None:
        whose = org_id, project_id
        keys = self._held.get(whose)
        if keys is None:
            keys = self._held[whose] = deque()
            heappush(self._oldest, (now_ms, whose))
        keys.append((now_ms, router_id, key))
        self._grow(whose, 1)

    def expired(self, horizon_ms: int) -> Iterator[tuple[str, bytes]]:
        """Takes out the keys from before a time: [(router_id, key)]."""
        while self._oldest and self._oldest[0][0] < horizon_ms:
            _, whose = heappop(self._oldest)
            keys = self._held[whose]
            before = len(keys)
            while keys and keys[0][0] < horizon_ms:
                yield keys.popleft()[1:]
            self._grow(whose, len(keys) - before)
            if keys:
                heappush(self._oldest, (keys[0][0], whose))
            else:
                del self._held[whose]

    def beyond(self) -> Iterator[tuple[str, bytes]]:
        """Takes out what is held beyond the bound, of who holds most: [(router_id, key)]."""
        while self._size > self._keys_max:
            org_id = self._orgs.largest()
            whose = org_id, self._projects[org_id].largest()
            found = self._held[whose].popleft()
            self._grow(whose, -1)
            yield found[1:]

    def _grow(self, whose: tuple[str, str], more: int) -> None:
        org_id, project_id = whose
        self._size += more
        self._orgs.grow(org_id, more)
        projects = self._projects.setdefault(org_id, _Holders())
        projects.grow(project_id, more)
        if not projects:
            del self._projects[org_id]
