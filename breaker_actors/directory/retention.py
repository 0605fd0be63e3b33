"""Keeps logs and history bounded: tells routers' owners what of their logs nobody needs, removes rows that are too old.

Runs beside the Directory. Everything it does may be done twice, so a superseded one harms nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import structlog
from msgspec.structs import replace

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.messages import LogFloor
from breaker_actors.settings import Settings
from breaker_actors.store.base import RetentionStore
from breaker_actors.store.rows import KEPT_MS
from breaker_actors.telemetry.guard import log_failure, run_supervised
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import BreakerPeer, Net, RouterPeer
from breaker_actors.wal.base import LogStock, SampleLog

GONE_MIN_MS = 600_000
"""Of a deleted router's log something stays at least so long: its breakers read their own end in there."""
GONE_SPARED_MS = 60_000
"""Where room is short the rest of it goes early, but for what came within this time."""
PRUNE_EVERY_S = 600.0
"""After a round that came to its end; one that was cut short goes on in the next."""
LINK_PAGES = 40
"""A round looks at so many pages of ended links at most."""
PACE = 2
DAY_MS = 86_400_000

T = TypeVar("T")

log = structlog.get_logger()


class Retention:
    """Start with `start()`, end with `stop()`; `round()` is one pass, whose parts stand alone. `meters`: of the
    Directory."""

    def __init__(
        self, store: RetentionStore, sample_log: SampleLog, net: Net, clock: Clock, settings: Settings, meters: Meters
    ) -> None:
        self._store = store
        self._log = sample_log
        self._net = net
        self._clock = clock
        self._settings = settings
        self._meters = meters
        self._links_after = ""
        self._pruned_s: float | None = None
        self._aging: tuple[int, float] | None = None
        self._turn = asyncio.Lock()
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
            await run_supervised("upkeep", self.round())

    async def round(self) -> None:
        """Trims every log whose owner answers and, now and then, prunes the history. One at a time."""
        async with self._turn:
            now = self._clock.now_ms()
            await self._alone("logs", partial(self._trim, now))
            await self._alone("deliveries_beyond", partial(self._shed, now))
            at_s = self._clock.monotonic()
            if self._pruned_s is None or at_s - self._pruned_s >= PRUNE_EVERY_S:
                await self._prune(now, at_s)

    async def _alone(self, part: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """What a part of a round comes to; None where it fails, which keeps no other part from its turn."""
        try:
            return await work()
        except BreakersError as error:
            log.warning("upkeep_put_off", part=part, error=str(error))
        except Exception as error:
            log_failure(f"upkeep: {part}", error)
        self._meters.count("breakers_upkeep_failures_total", part=part)
        return None

    async def _shed(self, now: int) -> None:
        if shed := await self._store.shed_deliveries(now):
            log.warning("deliveries_shed", count=shed)

    async def _prune(self, now: int, at_s: float) -> None:
        """Without a time nothing is old. Deletions come last: they may wait for others' changes."""
        store = self._store
        works: dict[str, Callable[[], Awaitable[dict[str, int] | int]]] = {"ended_links": self._forget_links}
        aged_ms = await self._alone("time", partial(self._age, now, at_s))
        if aged_ms is not None:
            before_ms = aged_ms - self._settings.history_retention_days * DAY_MS
            works |= {
                "history": partial(store.prune, before_ms),
                "answers": partial(store.prune_idempotency_keys, aged_ms - KEPT_MS),
                "deliveries": partial(store.prune_deliveries, before_ms),
                "ended": partial(store.prune_ended, aged_ms),
            }
        found = {part: await self._alone(part, work) for part, work in works.items()}
        removed = dict[str, int]()
        for part, gone in found.items():
            removed |= {part: gone} if isinstance(gone, int) else gone or {}
        if any(removed.values()):
            log.info("history_pruned", **removed)
        finished = await self._alone("deletions", partial(store.finish_deletions, now))
        if None not in (aged_ms, finished, *found.values()) and not self._links_after and store.is_pruned:
            self._pruned_s = at_s

    async def _forget_links(self) -> int:
        """How many ended links were forgotten, of LINK_PAGES pages at most: the next round goes on behind them. Owners
        take routers that a breaker has left for good out of its cut; who can't be told now is when more of that
        breaker's links have ended, or gets no such cut when he starts."""
        forgotten = 0
        for _ in range(LINK_PAGES):
            some = await self._store.forget_ended_links(self._links_after)
            forgotten, self._links_after = forgotten + some.count, some.after or ""
            for owner, left in some.left.items():
                try:
                    await BreakerPeer(self._net, owner).link(left)
                except BreakersError as error:
                    log.info("left_routers_not_told", actor=owner, error=str(error))
            if some.after is None:
                break
        return forgotten

    async def _age(self, now: int, at_s: float) -> int:
        """The time by which history is old: never ahead of the clock, a day at most ahead of where it was when this
        process began, and from then on PACE times as fast as real time at most. So a clock that is wrong by a year
        removes little, and after a long rest what is too old goes a while later."""
        if self._aging is None:
            stored_ms = await self._store.history_ms()
            known_ms, upto_ms = (now, now) if stored_ms is None else (stored_ms, stored_ms + DAY_MS)
        else:
            known_ms, known_s = self._aging
            upto_ms = known_ms + round(PACE * (at_s - known_s) * 1000)
        aged_ms = max(known_ms, min(now, upto_ms))
        await self._store.note_history_ms(aged_ms)
        self._aging = aged_ms, at_s
        return min(now, aged_ms)

    async def _trim(self, now: int) -> None:
        placed = {p.log_slot for p in await self._store.placements("router") if p.log_slot}
        # first what lies there, then who needs it: a router that is made meanwhile is never taken for a gone one, and
        # what comes into a log meanwhile may be there for whoever is linked meanwhile, whoever else has read it
        stock = {slot: await self._log.stock(slot) for slot in sorted(placed)}
        ends = {entry.router_id: entry.last_offset for entries in stock.values() for entry in entries}
        floors = [
            replace(floor, offset=_least(floor.offset, ends.get(floor.router_id)))
            for floor in await self._store.log_floors()
        ]
        needed = {floor.router_id: floor for floor in floors if not floor.project_id}
        known = {floor.router_id for floor in floors if floor.project_id}
        old_ms = now - max(self._settings.log_retention_ms, GONE_MIN_MS)
        by_owner: dict[str, list[LogFloor]] = {}
        for floor in floors:
            if floor.owner:
                by_owner.setdefault(floor.owner, []).append(floor)
        for owner, mine in by_owner.items():
            left = [
                (slot, entry)
                for slot in sorted({floor.slot for floor in mine} & stock.keys())
                for entry in stock[slot]
                if entry.router_id not in known
            ]
            is_gone = [entry.last_received_ms < old_ms and entry.router_id not in needed for _, entry in left]
            gone = [(slot, entry.router_id) for (slot, entry), gone in zip(left, is_gone, strict=True) if gone]
            spared = [
                _spared(s, e, needed.get(e.router_id), now)
                for (s, e), gone in zip(left, is_gone, strict=True)
                if not gone
            ]
            await self._tell(owner, mine + spared, gone)

    async def _tell(self, owner: str, floors: list[LogFloor], gone: list[tuple[str, str]]) -> None:
        try:
            await RouterPeer(self._net, owner).trim(floors, gone)
        except BreakersError as error:
            log.info("log_not_trimmed", actor=owner, error=str(error))


def _spared(slot: str, entry: LogStock, needed: LogFloor | None, now: int) -> LogFloor:
    """What has to stay of a deleted router's log: the newest, and what a breaker that hung on it still needs."""
    newest_ms = now - GONE_SPARED_MS
    if needed is None or needed.offset is None:
        return LogFloor(entry.router_id, "", slot, entry.last_offset, newest_ms)
    since_ms = newest_ms if needed.since_ms is None else min(newest_ms, needed.since_ms)
    return LogFloor(entry.router_id, "", slot, needed.offset, since_ms)


def _least(floor: int | None, end: int | None) -> int:
    """Up to where a log may go, at most: as far as its readers are, and as it was before they were asked."""
    if floor is None:
        return end or 0
    return floor if end is None else min(floor, end)
