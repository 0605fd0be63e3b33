"""Which duplicate keys a RouterActor holds and which go: those whose time is over, and at the bound the oldest of the
project that holds most. So a project with few keys keeps them for their whole time, whatever others send. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush

from breaker_actors.router.group import OwnedRouter
from breaker_actors.wal.base import Append

RETRIES_MS = 30_000
"""A replica repeats an append for so long at most; its key must outlive that."""


class DuplicateKeys:
    """The duplicate keys of the routers owned here: it alone writes `OwnedRouter.keys`."""

    def __init__(self, keys_max: int, window_ms: int) -> None:
        """`keys_max`: in all; `window_ms`: how long a key lives, RETRIES_MS at least."""
        self._ages = KeyAges(keys_max)
        self._lives_ms = max(window_ms, RETRIES_MS)

    def __len__(self) -> int:
        return len(self._ages)

    def horizon_ms(self, now_ms: int) -> int:
        """Keys from before this time are over."""
        return now_ms - self._lives_ms

    def adopt(self, router: OwnedRouter, old: OwnedRouter | None, now_ms: int) -> None:
        """A router came with the keys in its log; those that `old` had are known with their times. The others count as
        of its last stamp at least: a clock that was behind just then must not end them once it is right again."""
        noted = old.keys if old is not None else {}
        since_ms = max(now_ms, router.last_ms)
        for key in router.keys:
            if key not in noted:
                self._ages.add(router.project_id, since_ms, router.id, key)

    def note(self, router: OwnedRouter, append: Append) -> None:
        """A record is in the log."""
        for key in append.keys:
            router.keys[key] = append.offset
            self._ages.add(router.project_id, append.received_ms, router.id, key)

    def forget(self, routers: Mapping[str, OwnedRouter], now_ms: int) -> int:
        """Drops the keys whose time is over, and beyond the bound the oldest of the project that holds most; answers
        how many of those went early."""
        for router_id, key in self._ages.expired(self.horizon_ms(now_ms)):
            _forget_key(routers, router_id, key)
        early = 0
        for router_id, key in self._ages.beyond():
            _forget_key(routers, router_id, key)
            early += 1
        return early


def _forget_key(routers: Mapping[str, OwnedRouter], router_id: str, key: bytes) -> None:
    if (router := routers.get(router_id)) is not None:
        router.keys.pop(key, None)


class KeyAges:
    """Keys with their times, oldest first in each project. A few steps for each key that comes or goes, however many
    there are; `keys_max`: so many are held in all once `beyond` was read to its end."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._held: dict[str, deque[tuple[int, str, bytes]]] = {}
        self._oldest: list[tuple[int, str]] = []
        """A heap with one entry for each project that holds keys: not later than its oldest key."""
        self._by_count: dict[int, dict[str, None]] = {}
        """Which projects hold so many keys; the one that has done so for longest is first."""
        self._most = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, project_id: str, now_ms: int, router_id: str, key: bytes) -> None:
        keys = self._held.get(project_id)
        if keys is None:
            keys = self._held[project_id] = deque()
            heappush(self._oldest, (now_ms, project_id))
        keys.append((now_ms, router_id, key))
        self._recount(project_id, len(keys) - 1, len(keys))

    def expired(self, horizon_ms: int) -> Iterator[tuple[str, bytes]]:
        """Takes out the keys from before a time: [(router_id, key)]."""
        while self._oldest and self._oldest[0][0] < horizon_ms:
            _, project_id = heappop(self._oldest)
            keys = self._held[project_id]
            before = len(keys)
            while keys and keys[0][0] < horizon_ms:
                yield keys.popleft()[1:]
            self._recount(project_id, before, len(keys))
            if keys:
                heappush(self._oldest, (keys[0][0], project_id))
            else:
                del self._held[project_id]

    def beyond(self) -> Iterator[tuple[str, bytes]]:
        """Takes out what is held beyond the bound, of the project that holds most: [(router_id, key)]."""
        while self._size > self._keys_max:
            project_id = next(iter(self._by_count[self._most]))
            keys = self._held[project_id]
            found = keys.popleft()
            self._recount(project_id, len(keys) + 1, len(keys))
            yield found[1:]

    def _recount(self, project_id: str, before: int, now: int) -> None:
        self._size += now - before
        if before and before != now:
            peers = self._by_count[before]
            del peers[project_id]
            if not peers:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[project_id] = None
        self._most = max(self._most, now)
        while self._most and self._most not in self._by_count:
            self._most -= 1
