"""The app behind real servers on a loopback socket: a stream that stops must never end cleanly (no last chunk)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config

from api.app import create_app
from api.context.replica import EXTENSION, Replica
from api.stream.feed import Feed
from api.stream.sse import StreamTiming
from tests.support.fake_gateway import moved
from tests.support.on_uvicorn import on_uvicorn
from tests.support.racing_client import start
from tests.support.web_world import World, soon

Server = Callable[[World], AbstractAsyncContextManager[int]]


@asynccontextmanager
async def on_hypercorn(world: World) -> AsyncIterator[int]:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            raise NotImplementedError("the test has started the app already")
        await world.app(scope, receive, send)

    config, stop = Config(), asyncio.Event()
    config.bind = ["127.0.0.1:0"]
    config.graceful_timeout = 0.2
    config.errorlog = None
    sockets = config.create_sockets()
    port = sockets.insecure_sockets[0].getsockname()[1]
    config.create_sockets = lambda: sockets  # type: ignore[method-assign]
    task = asyncio.create_task(serve(bare, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    yield port
    stop.set()
    await task


async def ask(world: World, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path = f"{world.path}/breakers/state:stream"
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.keys['project']}\r\n"
        "Accept-Encoding: gzip\r\n\r\n".encode()
    )
    return reader, writer


@pytest.mark.parametrize("server", [on_uvicorn, on_hypercorn])
async def test_a_stream_that_is_cut_lacks_the_last_chunk(world: World, server: Server) -> None:
    row = await world.breaker("a")
    feed = _feed(world)
    async with server(world) as port:
        reader, writer = await ask(world, port)
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).decode().lower()
        assert head.startswith("http/1.1 200")
        assert "content-type: text/event-stream\r\n" in head
        assert "cache-control: no-cache\r\n" in head
        assert "connection: keep-alive\r\n" in head
        assert "transfer-encoding: chunked\r\n" in head
        assert "content-encoding" not in head
        assert b'"closed"' in await asyncio.wait_for(reader.readuntil(b"}\n\n"), 5)
        world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1))
        assert b'"open"' in await asyncio.wait_for(reader.readuntil(b"}\n\n"), 5)
        feed.cut_all()
        rest = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert b"0\r\n\r\n" not in rest
    assert feed.stream_count() == 0


async def test_a_client_that_is_slow_to_listen_is_told_when_it_does(world: World) -> None:
    """One public client hears only what comes after it has built all it needs: 20 ms, more on a busy machine."""
    await world.breaker("a")
    world.app = create_app(world.gateway, world.settings, world.clock, StreamTiming(), owns_gateway=False)
    path, key = f"{world.path}/breakers/state:stream", world.keys["project"]
    async with world.app.test_app(), on_uvicorn(world) as port:
        assert await asyncio.to_thread(start, port, path, key, partial(time.sleep, 0.12))


@pytest.mark.parametrize("server", [on_uvicorn, on_hypercorn])
async def test_a_server_that_stops_ends_no_stream_cleanly(world: World, server: Server) -> None:
    async with server(world) as port:
        reader, writer = await ask(world, port)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert b"0\r\n\r\n" not in await asyncio.wait_for(reader.read(), 5)
    writer.close()


@pytest.mark.parametrize("server", [on_uvicorn, on_hypercorn])
async def test_a_client_that_drops_its_socket_is_forgotten(world: World, server: Server) -> None:
    async with server(world) as port:
        reader, writer = await ask(world, port)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()
        await soon(lambda: not _feed(world).stream_count())


async def test_a_body_that_does_not_end_in_time_ends_its_connection(world: World) -> None:
    """However steadily it trickles on."""
    world.app.extensions[EXTENSION].intake.timeout_s = 0.1
    async with on_uvicorn(world) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {world.path}/ingest HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc"
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"bad_request"' in answer


@pytest.mark.parametrize("server", [on_uvicorn, on_hypercorn])
async def test_answers_without_a_body_say_so(world: World, server: Server) -> None:
    """HEAD keeps the length of GET, 204 and 304 have none at all, and nothing follows the head."""
    row = await world.breaker("a")
    tag = (await world.call("GET", "breakers")).headers["ETag"]
    async with server(world) as port:
        for method, path, more, status, length in [
            ("HEAD", "/api/healthz", "", 200, "15"),
            ("HEAD", f"{world.path}/status", "", 200, "82"),
            ("GET", f"{world.path}/breakers", f"If-None-Match: {tag}\r\n", 304, None),
            ("DELETE", f"{world.path}/breakers/{row.id}", "", 204, None),
            ("POST", f"{world.path}/ingest_secret/rotate", "Content-Type: application/json\r\n", 200, "124"),
        ]:
            head, rest = await talk(world, port, method, path, more)
            assert head.startswith(f"http/1.1 {status} "), head
            lengths = [line.partition(": ")[2] for line in head.splitlines() if line.startswith("content-length")]
            assert lengths == ([] if length is None else [length])
            assert head.count("x-request-id: ") == 1
            assert "transfer-encoding" not in head
            assert (rest == b"") == (method != "POST")


async def talk(world: World, port: int, method: str, path: str, more: str) -> tuple[str, bytes]:
    """Head and rest of one answer on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {world.keys['user']}", "Connection: close"]
    writer.write(("\r\n".join(lines) + f"\r\n{more}\r\n").encode())
    head, _, rest = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    return head.decode().lower(), rest


def _feed(world: World) -> Feed:
    parts: Replica = world.app.extensions[EXTENSION]
    return parts.feed
