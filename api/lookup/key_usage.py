"""When each key was used last: noted in memory, written now and then, never waited for by a request."""

from __future__ import annotations

import asyncio

import structlog

from api.lookup.caches import Lru
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.store.base import AccountStore
from breaker_actors.store.rows import KeyRow
from breaker_actors.telemetry.meters import Meters

NOTE_MS = 60_000
WRITE_S = 1.0
KEYS_MAX = 10_000

log = structlog.get_logger(__name__)


class KeyUses:
    """At most one write a minute for a key; the store keeps to that across replicas."""

    def __init__(self, store: AccountStore, clock: Clock, meters: Meters) -> None:
        self._store = store
        self._clock = clock
        self._meters = meters
        self._noted: Lru[int] = Lru(KEYS_MAX)
        self._due: dict[str, int] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What was not written yet is lost: the next use is noted again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def note(self, key: KeyRow) -> None:
        """This key is being used."""
        now_ms, last_ms = self._clock.now_ms(), self._noted.get(key.id) or key.last_used_ms
        if last_ms is None or now_ms - last_ms >= NOTE_MS:
            self._noted.put(key.id, now_ms)
            self._due[key.id] = now_ms
            self._news.set()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(WRITE_S)
            self._news.clear()
            uses, self._due = self._due, {}
            try:
                await self._store.touch_keys(uses)
            except BreakersError as error:
                self._meters.count("breakers_key_uses_unwritten_total", len(uses))
                log.warning("key_uses_not_written", keys=len(uses), error=str(error))
                for key_id in uses:
                    self._noted.drop(key_id)
