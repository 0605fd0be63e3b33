"""A way to a PostgreSQL server that loses an answer: the server has done and committed it, the client never hears."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator

from sqlalchemy import make_url

_IDLE = b"Z\x00\x00\x00\x05I"
"""The message with which a server says that it is outside any transaction."""


class Proxy:
    """`losing`: how many statements that contain `at` still lose their answer. `lost` counts those that did."""

    def __init__(self, url: str, at: bytes) -> None:
        self._target = make_url(url)
        self._at = at
        self._tasks: set[asyncio.Task[None]] = set()
        self.losing = 0
        self.lost = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = self._target.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        try:
            yield
        finally:
            server.close()
            # clients are closed before their way is: all ends by itself
            await asyncio.wait_for(asyncio.gather(*self._tasks), 10)

    def _accept(self, client: StreamReader, to_client: StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(client, to_client)))

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._target.host, self._target.port)
        doomed = asyncio.Event()
        answers = asyncio.create_task(self._answer(server, to_client, doomed))
        answers.add_done_callback(lambda _: to_client.transport.abort())
        with contextlib.suppress(ConnectionError):
            while data := await client.read(1 << 20):
                if self.losing and self._at in data:
                    self.losing -= 1
                    doomed.set()
                to_server.write(data)
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, server: StreamReader, to_client: StreamWriter, doomed: asyncio.Event) -> None:
        """Passes answers on, until there is one to be lost: it is awaited, and then nothing more is said."""
        kept = b""
        while data := await server.read(1 << 20):
            if doomed.is_set():
                kept += data
                if kept.endswith(_IDLE):
                    self.lost += 1
                    return
            else:
                to_client.write(data)


@contextlib.asynccontextmanager
async def proxy(url: str, at: bytes = b"COMMIT\x00") -> AsyncIterator[Proxy]:
    found = Proxy(url, at)
    async with found.listening():
        yield found
