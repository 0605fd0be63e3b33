"""One request to an app on the bare ASGI interface: quicker than a client, and headers go in as they are given."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from quart import Quart

Headers = list[tuple[str, str]]


@dataclass
class Reply:
    """What came back. Of a stream that was let in there is a status and no body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The machine word of an error; "" of an answer that is none."""
        return str(self.json["code"]) if self.status >= 400 and self.body else ""


class Exchange:
    """One request and its answer; a stream is left as soon as its headers are there."""

    def __init__(self, method: str, path: str, headers: Headers, body: bytes) -> None:
        path, _, query = path.partition("?")
        lines = [(name.lower().encode(), value.encode()) for name, value in headers]
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [*lines, (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 1),
        }
        self._sent = body
        self._asked = False
        self._left = asyncio.Event()
        self.reply = Reply()

    async def run(self, app: Quart) -> Reply:
        try:
            async with asyncio.timeout(10):
                await app(self._scope, self._receive, self._send)  # type: ignore[arg-type]
        except OSError:  # the stream heard that its reader has gone
            assert self._left.is_set()
        return self.reply

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._sent, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            found = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            self.reply.status, self.reply.headers = message["status"], found
            if found.get("content-type") == "text/event-stream":
                self._left.set()
        elif not self._left.is_set():
            self.reply.body += message.get("body", b"")


async def ask(app: Quart, method: str, path: str, headers: Headers, body: Any = None) -> Reply:
    """`body`: bytes as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return await Exchange(method, path, headers, raw).run(app)
