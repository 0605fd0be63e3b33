"""A stream client on the bare ASGI interface of an app."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from api.admission.outgoing import DIRECT
from api.stream.sse import HEARTBEAT
from tests.support.web_world import World, told


class Client:
    """One stream client on the bare ASGI interface; `stall` makes it stop reading. `handed`: the bytes objects the
    server was given for it, read or not. `direct`: its connection is the request's Direct as well; `direct_pieces`:
    what came that way, part of `body`."""

    def __init__(
        self, world: World, key: str = "project", path: str = "breakers/state:stream", direct: bool = False
    ) -> None:
        self._world = world
        self._gone = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._asked = False
        self._headers = [(b"authorization", f"Bearer {world.keys.get(key, key)}".encode())]
        self._path = f"{world.path}/{path}"
        self.start: dict[str, Any] = {}
        self.body = b""
        self.handed: list[bytes] = []
        self.direct_pieces: list[bytes] = []
        self._given: dict[str, Any] = {DIRECT: self} if direct else {}
        self.ended = False
        self.task: asyncio.Task[None] = asyncio.create_task(self._run())

    async def _run(self) -> None:
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": self._headers,
            **self._given,
        }
        await self._world.app(scope, self._receive, self._send)  # type: ignore[arg-type]

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.handed.append(message["body"])
        await self._reads.wait()
        self.body += message["body"]
        self.ended |= not message["more_body"]

    def write(self, piece: bytes) -> bool:
        if not self._reads.is_set() or self._gone.is_set():
            return False
        self.direct_pieces.append(piece)
        self.body += piece
        return True

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.start["headers"] if key.decode().lower() == name]
        return found[0].decode() if found else None

    def told(self) -> list[tuple[str, str, float | None]]:
        return told(self.body.replace(HEARTBEAT, b""))

    def stall(self) -> None:
        self._reads.clear()

    def go_on(self) -> None:
        self._reads.set()

    async def leave(self) -> None:
        """As a plain ASGI server tells it."""
        self._gone.set()
        await self.task

    async def cancelled(self) -> None:
        """As Ray Serve does it."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
