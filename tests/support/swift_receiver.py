"""A receiver of very many webhooks in a process of its own: it answers 200 to all, and notes what came and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

LEAVE_S = 30.0
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Came(NamedTuple):
    """One request: when it was whole (time.perf_counter), its Idempotency-Key and its body."""

    at: float
    key: str
    body: dict[str, Any]


class SwiftReceiver:
    """The receiver as its test sees it; it is there as long as the block."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.port: int = self._pipe.recv()

    def __enter__(self) -> SwiftReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(LEAVE_S)
        self._process.kill()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def count(self) -> int:
        """Requests until now."""
        self._pipe.send("count")
        return int(self._pipe.recv())

    def came(self) -> list[Came]:
        """All of them, in order."""
        self._pipe.send("came")
        raw: list[tuple[float, bytes, bytes]] = self._pipe.recv()
        return [Came(at, _key_of(head), json.loads(body)) for at, head, body in raw]


def _key_of(head: bytes) -> str:
    lines = (line.partition(b": ") for line in head.split(b"\r\n"))
    return next(value.decode() for name, _, value in lines if name.lower() == b"idempotency-key")


class _Conversation(asyncio.Protocol):
    """One connection: requests with a Content-Length, one after another."""

    def __init__(self, came: list[tuple[float, bytes, bytes]]) -> None:
        self._came = came
        self._raw = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while (end := self._raw.find(b"\r\n\r\n")) >= 0:
            head = self._raw[:end]
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            stop = end + 4 + length
            if len(self._raw) < stop:
                return
            self._came.append((time.perf_counter(), head, self._raw[end + 4 : stop]))
            self._raw = self._raw[stop:]
            self._transport.write(ANSWER)


def _child(pipe: Connection) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    came: list[tuple[float, bytes, bytes]] = []
    server = await asyncio.get_running_loop().create_server(lambda: _Conversation(came), "127.0.0.1", 0, backlog=1024)
    pipe.send(server.sockets[0].getsockname()[1])
    with contextlib.suppress(EOFError):
        while True:
            asked = await asyncio.to_thread(pipe.recv)
            pipe.send(len(came) if asked == "count" else came)
