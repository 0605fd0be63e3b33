"""Watermarks: "nothing stamped at or before t will come any more", of the routers owned here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from breaker_actors.router.group import OwnedRouter
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
