"""How long a RouterActor's logs grow: a retention, a byte bound, and never past what a breaker still has to read."""

from __future__ import annotations

from collections.abc import Sequence

from breaker_actors.messages import LogFloor
from breaker_actors.stores.samplelog import SampleLog

EARLY_SHARE = 0.8
"""From this share of the byte bound on, records go before their retention is over."""
SHORTER = 0.75
ROW_BYTES = 64
_SHORTEST_MS = 1_000


class Trimming:
    """Trims logs and knows which slots are `full`: they have reached the byte bound and take no samples for now."""

    def __init__(self, log: SampleLog, retention_ms: int, bytes_max: int) -> None:
        self._log = log
        self._retention_ms = retention_ms
        self._bytes_max = bytes_max
        self._bytes: dict[str, int] = {}
        self._trimmed: dict[str, int] = {}
        self.full: frozenset[str] = frozenset()
        self.by_retention = self.by_size = 0

    def note(self, slot: str, payload_bytes: int) -> None:
        """A record was appended."""
        self._set_bytes(slot, self._bytes.get(slot, 0) + payload_bytes + ROW_BYTES)

    @property
    def size_bytes(self) -> int:
        """What all logs take, as far as is known."""
        return sum(self._bytes.values())

    async def run(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]], now_ms: int) -> int:
        """One round over all slots of these floors; answers how many records went."""
        for slot, router_id in gone:
            await self._log.forget(slot, router_id)
            self._trimmed.pop(router_id, None)
        by_slot: dict[str, list[LogFloor]] = {slot: [] for slot, _ in gone}
        for floor in floors:
            by_slot.setdefault(floor.slot, []).append(floor)
        return sum([await self._trim_slot(slot, some, now_ms) for slot, some in by_slot.items()])

    async def _trim_slot(self, slot: str, floors: list[LogFloor], now_ms: int) -> int:
        """By retention; near the byte bound by ever shorter ones, so that the newest stay as long as there is room."""
        keep_ms = self._retention_ms
        dropped = await self._trim_older(slot, floors, now_ms - keep_ms)
        self.by_retention += dropped
        while (size := await self._log.size_bytes(slot)) > EARLY_SHARE * self._bytes_max and keep_ms > 0:
            keep_ms = int(keep_ms * SHORTER) if keep_ms > _SHORTEST_MS else 0
            early = await self._trim_older(slot, floors, now_ms - keep_ms)
            dropped += early
            self.by_size += early
        self._set_bytes(slot, size)
        return dropped

    async def _trim_older(self, slot: str, floors: list[LogFloor], before_ms: int) -> int:
        dropped = 0
        for floor in floors:
            old_ms = before_ms if floor.since_ms is None else min(before_ms, floor.since_ms)
            last = await self._log.find(slot, floor.router_id, old_ms)
            if floor.offset is not None:
                last = min(last, floor.offset)
            if last > self._trimmed.get(floor.router_id, 0):
                dropped += await self._log.trim(slot, floor.router_id, last + 1)
                self._trimmed[floor.router_id] = last
        return dropped

    def _set_bytes(self, slot: str, size: int) -> None:
        self._bytes[slot] = size
        if (size >= self._bytes_max) != (slot in self.full):
            self.full = self.full ^ {slot}
