"""Watermarks: "nothing stamped at or before t will come any more", of the routers owned here; and how far stamps may be
ahead of the clock (semantics.md section 2, Stamps)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from breaker_actors.clock import Clock, doubted_ms
from breaker_actors.router.group import OwnedRouter
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters
from breaker_actors.wal.base import SampleLog


class Watermarks:
    """The watermarks of one process. It alone raises `OwnedRouter.watermark_ms` and
    `OwnedRouter.durable_watermark_ms`."""

    def __init__(self, log: SampleLog, incarnation: str) -> None:
        self._log = log
        self._incarnation = incarnation

    async def advance(self, routers: Iterable[OwnedRouter], upto_ms: int) -> AsyncIterator[str]:
        """Stores a watermark before it is given: a later outage must not swallow a timer that fired under it. Yields
        the routers that another owner has acquired: what lies here is not all there is of them. Raises Unavailable when
        the log does not answer; nothing may be stamped at or before `upto_ms` even then."""
        by_slot: dict[str, list[OwnedRouter]] = {}
        for router in routers:
            router.watermark_ms = max(router.watermark_ms, upto_ms)
            if upto_ms > router.durable_watermark_ms:
                by_slot.setdefault(router.slot, []).append(router)
        for slot, in_slot in by_slot.items():
            epochs = [(router.id, router.epoch) for router in in_slot]
            stored = await self._log.advance_watermark(slot, self._incarnation, epochs, upto_ms)
            for router, is_stored in zip(in_slot, stored, strict=True):
                if is_stored:
                    router.durable_watermark_ms = upto_ms
                else:
                    yield router.id


class LogsAhead:
    """Which routers of one process take no samples for that, and what is told of the clock. `max_ms`: so far a log may
    be ahead."""

    def __init__(self, owned: Mapping[str, OwnedRouter], clock: Clock, settings: Settings) -> None:
        self._owned = owned
        self._clock = clock
        self.max_ms = max(settings.clock_step_max_ms, settings.max_clock_skew_ms)

    def is_far(self, upto_ms: int, now_ms: int) -> bool:
        """Whether a watermark of that time would put a log too far ahead."""
        return upto_ms >= now_ms + self.max_ms

    def routers(self) -> dict[str, int]:
        """Routers that take no samples as their logs are ahead, and by how much (ms)."""
        now = self._clock.now_ms()
        ahead = {router.id: router.ahead_ms(now) for router in self._owned.values()}
        return {router_id: ms for router_id, ms in ahead.items() if ms > self.max_ms}

    def look(self, meters: Meters) -> None:
        """Tells how things stand (see Meters.watch)."""
        meters.gauge("breakers_logs_ahead", len(self.routers()))
        meters.gauge("breakers_clock_doubted_seconds", doubted_ms(self._clock) / 1000)
