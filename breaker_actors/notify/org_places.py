"""Places that organisations share in one process: of forks of apprise, of test notifications. Those of deliveries,
which go by turns and by project, too, are `places`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Places:
    """Who may have one of `total`: an organisation as many as are left free, so that whoever comes finds one."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._taken: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def has_one(self, org_id: str) -> bool:
        """Whether the organisation would get one without a wait."""
        return self._taken[org_id] < self._free

    @asynccontextmanager
    async def place(self, org_id: str) -> AsyncIterator[None]:
        """Waits for a place; for how long is the caller's to say."""
        while not self.has_one(org_id):
            self._changed.clear()
            await self._changed.wait()
        self._move(org_id, 1)
        try:
            yield
        finally:
            self._move(org_id, -1)

    def _move(self, org_id: str, taken: int) -> None:
        self._free -= taken
        self._taken[org_id] += taken
        if not self._taken[org_id]:
            del self._taken[org_id]
        self._changed.set()
