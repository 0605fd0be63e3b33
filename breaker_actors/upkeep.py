"""Keeps logs and history bounded: tells routers' owners what of their logs nobody needs, removes rows that are too old.

Runs beside the Directory. Everything it does may be done twice, so a superseded one harms nothing.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.guard import one_round
from breaker_actors.messages import LogFloor
from breaker_actors.net import Net, RouterPeer
from breaker_actors.settings import Settings
from breaker_actors.stores.base import Store
from breaker_actors.stores.samplelog import SampleLog

GONE_MIN_MS = 600_000
"""A deleted router's log stays at least so long: its breakers read their own end in there."""
PRUNE_EVERY_MS = 600_000
PRUNED_MANY = 1_000
"""A round that removed so many rows of a table is not waited behind: there may be more of them."""
DAY_MS = 86_400_000

log = structlog.get_logger()


class Upkeep:
    """Start with `start()`, end with `stop()`; `round()` is one pass."""

    def __init__(self, store: Store, sample_log: SampleLog, net: Net, clock: Clock, settings: Settings) -> None:
        self._store = store
        self._log = sample_log
        self._net = net
        self._clock = clock
        self._settings = settings
        self._pruned_ms = 0
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.upkeep_interval_ms / 1000)
            await one_round("upkeep", self.round())

    async def round(self) -> None:
        """Trims every log whose owner answers and, now and then, prunes the history."""
        now = self._clock.now_ms()
        try:
            await self._trim(now)
            if now - self._pruned_ms >= PRUNE_EVERY_MS:
                before_ms = now - self._settings.history_retention_days * DAY_MS
                removed = await self._store.prune(before_ms)
                removed["deliveries"] = await self._store.prune_deliveries(before_ms)
                if max(removed.values()) < PRUNED_MANY:
                    self._pruned_ms = now
                if any(removed.values()):
                    log.info("history_pruned", **removed)
        except BreakersError as error:
            log.warning("upkeep_put_off", error=str(error))

    async def _trim(self, now: int) -> None:
        placed = {p.log_slot for p in await self._store.placements("router") if p.log_slot}
        # first what lies there, then who needs it: a router that is made meanwhile is never taken for a gone one, and
        # what comes into a log that nobody listens to may be there for whoever is linked meanwhile
        stock = {slot: await self._log.stock(slot) for slot in sorted(placed)}
        ends = {entry.router_id: entry.last_offset for entries in stock.values() for entry in entries}
        floors = [
            floor if floor.offset is not None else replace(floor, offset=ends.get(floor.router_id, 0))
            for floor in await self._store.log_floors()
        ]
        known = {floor.router_id for floor in floors}
        old_ms = now - max(self._settings.log_retention_ms, GONE_MIN_MS)
        by_owner: dict[str, list[LogFloor]] = {}
        for floor in floors:
            if floor.owner:
                by_owner.setdefault(floor.owner, []).append(floor)
        for owner, mine in by_owner.items():
            gone = [
                (slot, entry.router_id)
                for slot in sorted({floor.slot for floor in mine} & stock.keys())
                for entry in stock[slot]
                if entry.router_id not in known and entry.last_received_ms < old_ms
            ]
            await self._tell(owner, mine, gone)

    async def _tell(self, owner: str, floors: list[LogFloor], gone: list[tuple[str, str]]) -> None:
        try:
            await RouterPeer(self._net, owner).trim(floors, gone)
        except BreakersError as error:
            log.info("log_not_trimmed", actor=owner, error=str(error))
