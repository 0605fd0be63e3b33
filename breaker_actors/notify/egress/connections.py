"""The HTTP connections of a process, kept between requests.

On connections of httpcore, without its pool: that one looks at each of its connections whenever a request begins or
ends, and keeps none for later while it has more than it may keep idle. So a storm of notifications, with hundreds at
once, made a connection for each of them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpcore


class _Idle(NamedTuple):
    org_id: str
    origin: httpcore.Origin
    until_s: float


class Connections:
    """At most `total_max` requests at a time, whoever comes then waits. Of connections that wait for their next request
    `idle_max` are kept, the newest, for `idle_s` each.

    An organisation has connections of its own: what a receiver sends beyond an answer is read as the answer to the next
    request of the connection, which must not be somebody else's."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        backend: httpcore.AsyncNetworkBackend,
        *,
        total_max: int,
        idle_max: int,
        idle_s: float,
    ) -> None:
        self._tls = tls
        self._backend = backend
        self._places = asyncio.Semaphore(total_max)
        self._idle_max = idle_max
        self._idle_s = idle_s
        self._busy: set[httpcore.AsyncHTTPConnection] = set()
        # oldest first
        self._idle: OrderedDict[httpcore.AsyncHTTPConnection, _Idle] = OrderedDict()

    @property
    def connections(self) -> list[httpcore.AsyncHTTPConnection]:
        """All that are open."""
        return [*self._busy, *self._idle]

    @asynccontextmanager
    async def stream(
        self, method: str, url: httpcore.URL, *, headers: Sequence[tuple[bytes, bytes]], content: bytes, org_id: str
    ) -> AsyncIterator[httpcore.Response]:
        """One request; the block reads its answer. What httpcore raises comes through."""
        async with self._places:
            connection = await self._take(org_id, url.origin)
            self._busy.add(connection)
            try:
                async with connection.stream(method, url, headers=headers, content=content) as response:
                    yield response
            finally:
                self._busy.discard(connection)
                await self._put_back(connection, org_id, url.origin)

    async def close(self) -> None:
        """Closes all; requests under way fail."""
        for connection in self.connections:
            self._idle.pop(connection, None)
            await connection.aclose()

    async def _take(self, org_id: str, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """The organisation's connection to that origin that became idle last, if its server did not close it; else a
        new one."""
        await self._shed(self._idle_max)
        while (connection := self._newest(org_id, origin)) is not None:
            del self._idle[connection]
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(origin, ssl_context=self._tls, network_backend=self._backend)

    def _newest(self, org_id: str, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection | None:
        asked = (org_id, origin)
        return next(
            (known for known, idle in reversed(self._idle.items()) if (idle.org_id, idle.origin) == asked), None
        )

    async def _put_back(self, connection: httpcore.AsyncHTTPConnection, org_id: str, origin: httpcore.Origin) -> None:
        if connection.is_available():
            self._idle[connection] = _Idle(org_id, origin, asyncio.get_running_loop().time() + self._idle_s)
            await self._shed(self._idle_max)
        else:
            await connection.aclose()

    async def _shed(self, most: int) -> None:
        """Closes the oldest idle ones, as long as there are more than `most`, or their time is over."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            connection, idle = next(iter(self._idle.items()))
            if len(self._idle) <= most and idle.until_s > now_s:
                return
            del self._idle[connection]
            await connection.aclose()
