"""What the door without HAProxy lets through of one source, with the server that Serve starts, and lets wait in it."""

from __future__ import annotations

import asyncio
import json
import socket
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api.launch import serve_bounds
from api.launch.processes import free_port
from api.launch.serve_bounds import KeylessRate, ProxyBounds
from tests.support.cluster import until

with warnings.catch_warnings(action="ignore"):
    from ray.serve.config import HTTPOptions

    from api.launch import serve_ingress

LARGE = 1 << 20


class Proxy:
    """Serve's proxy, as far as bounds go: it has an answer whole before its client reads it."""

    def __init__(self) -> None:
        self.size = LARGE
        self.begun = self.ended = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        try:
            headers = [(b"content-length", b"%d" % self.size)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": bytes(self.size)})
        finally:
            self.ended += 1


class Client:
    """A client at the proxy's app, which reads when it is told to."""

    def __init__(self, app: Any, path: str = "/docs", method: str = "GET", key: str = "", address: str = "9.9.9.9"):
        self.status = 0
        self.reads = asyncio.Event()
        headers = [(b"authorization", key.encode())] if key else []
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": (address, 1)}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        return {"type": "http.request"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body" and self.status == 200:
            await self.reads.wait()

    async def answered(self) -> int:
        await until(lambda: asyncio.sleep(0, self.status))
        return self.status

    async def end(self) -> None:
        self.reads.set()
        await self.task


async def test_answers_that_nobody_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one source without a key, of all such sources; whoever has a key has room beside them."""
    monkeypatch.setattr(serve_bounds, "ANSWERS_BYTES_MAX", 32 * LARGE)
    monkeypatch.setattr(serve_bounds, "KEYLESS_PER_S", 10_000)
    app = ProxyBounds(Proxy())
    silent = [Client(app) for _ in range(20)]
    assert [await each.answered() for each in silent] == [200] * 2 + [429] * 18
    others = [Client(app, address=f"9.9.9.{n}") for n in range(20)]
    assert [await each.answered() for each in others].count(200) == 2
    keyed = Client(app, key="Bearer x")
    assert await keyed.answered() == 200
    for each in (*silent, *others, keyed):
        await each.end()
    again = Client(app)
    assert await again.answered() == 200
    await again.end()


async def test_small_answers_and_those_of_writes_are_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_bounds, "ANSWERS_BYTES_MAX", 16 * LARGE)
    proxy = Proxy()
    app = ProxyBounds(proxy)
    clients = [Client(app, "/v1/x", "PUT", "Bearer x") for _ in range(20)]
    assert [await each.answered() for each in clients] == [200] * 20
    assert await Client(app, "/v1/x", "GET", "Bearer x").answered() == 429
    proxy.size = 1_000
    small = Client(app, "/v1/x", "GET", "Bearer x")
    assert await small.answered() == 200
    for each in (*clients, small):
        await each.end()


async def test_a_client_that_is_gone_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_bounds, "ANSWERS_BYTES_MAX", 16 * LARGE)
    app = ProxyBounds(Proxy())
    for _ in range(5):
        client = Client(app)
        assert await client.answered() == 200
        client.task.cancel()
        await asyncio.wait([client.task])


async def test_requests_without_a_key_have_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source its own; keys and ingest are none of it."""
    proxy = Proxy()
    proxy.size = 10
    app = ProxyBounds(proxy)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 7.5)

    async def asked(count: int, **how: Any) -> list[int]:
        clients = [Client(app, **how) for _ in range(count)]
        for each in clients:
            await each.end()
        return [each.status for each in clients]

    assert (await asked(60)).count(200) == 50
    assert await asked(60, path="/v1/projects/p/ingest", method="POST") == [200] * 60
    assert await asked(60, key="Bearer x") == [200] * 60
    assert await asked(1, address="8.8.8.8") == [200]
    assert await asked(1, path="/v1/projects/p/ingest", method="GET") == [429]


def test_a_second_begins_anew() -> None:
    rate = KeylessRate(2)
    assert [rate.takes("a", 1.0), rate.takes("a", 1.5), rate.takes("a", 1.9)] == [True, True, False]
    assert [rate.takes("b", 1.9), rate.takes("a", 2.0)] == [True, True]


def test_sources_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_bounds, "SOURCES_MAX", 10)
    rate = KeylessRate(2)
    assert all(rate.takes(f"source {n}", 1.0) for n in range(1_000))
    assert len(rate._seen) <= 11


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(serve_ingress, "CONNECTIONS_MAX", 10)
    monkeypatch.setattr(serve_ingress, "STILL_S", 0.3)
    port, proxy = free_port(), Proxy()
    proxy.size = 32 * LARGE
    options, loop = HTTPOptions(host="127.0.0.1", port=port), asyncio.get_running_loop()
    task, server = await serve_ingress.start_bounded(proxy, options, event_loop=loop, enable_so_reuseport=False)
    async with asyncio.timeout(20):
        while not server.started:
            await asyncio.sleep(0.01)
    yield port
    server.should_exit = server.force_exit = True
    await task


async def test_one_source_has_half_of_the_connections(port: int) -> None:
    there = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(_until_closed(reader), 5) == b""
    writer.close()
    there.pop()[1].close()

    async def served() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        line = await _first_line(reader)
        writer.close()
        return line.startswith(b"HTTP/1.1 200")

    await until(served)
    for _, writer in there:
        writer.close()


async def test_who_takes_nothing_of_an_answer_is_cut(port: int) -> None:
    """Long before a connection's silence would be: what waits for it is memory."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    async def cut() -> bool:
        try:
            client.send(b"x")
        except OSError:
            return True
        return False

    await until(cut)
    client.close()


async def test_a_refusal_is_an_error_object(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    async def send(message: Any) -> None:
        told.append(message)

    monkeypatch.setattr(serve_bounds, "ANSWERS_BYTES_MAX", 0)
    scope = {"type": "http", "method": "GET", "path": "/docs", "headers": [], "client": ("9.9.9.9", 1)}
    await ProxyBounds(Proxy())(scope, None, send)  # type: ignore[arg-type]
    start, body = told
    assert start["status"] == 429
    assert json.loads(body["body"])["code"] == "rate_limited"
    assert (b"retry-after", b"1") in start["headers"]


async def _until_closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def _first_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""


async def test_what_is_serves_own_is_kept_from_strangers() -> None:
    seen = list[tuple[bytes, bytes]]()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])

    async def ask(path: str, **headers: bytes) -> int:
        answers = list[Any]()

        async def send(message: Any) -> None:
            answers.append(message)

        given = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
        scope = {"type": "http", "method": "GET", "path": path, "headers": given}
        await serve_ingress.ServesOwn(serve)(scope, None, send)  # type: ignore[arg-type]
        return answers[0]["status"] if answers else 200

    assert [await ask(path) for path in ("/-", "/-/routes", "/-/healthz")] == [404] * 3
    assert seen == []
    odd = {
        "x_request_id": b"\x80\x81",
        "X_Session_Id": b"a",
        "serve_multiplexed_model_id": b"m",
        "traceparent": b"\xff",
    }
    assert await ask("/v1/x", **odd, accept=b"a/b") == 200
    assert seen == [(b"accept", b"a/b")]
    assert await ask("/v1/x", x_request_id=b"mine-1") == 200
    assert seen[1:] == [(b"x-request-id", b"mine-1")]
