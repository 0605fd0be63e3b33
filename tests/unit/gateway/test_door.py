"""Whether callers get in, as far as a replica can tell."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trustme

from breaker_actors.gateway import door
from breaker_actors.gateway.door import Door
from breaker_actors.gateway.reachability import ReachabilityHeartbeat

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def says_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def wants_a_key(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def knows_no_replica(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@asynccontextmanager
async def listening(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("answer", [says_ok, wants_a_key])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_whatever_is_answered_it_is_open(answer: Answer, host: str) -> None:
    async with listening(answer) as port:
        assert await Door(host, port).is_open()


@pytest.mark.parametrize("answer", [hangs_up, knows_no_replica])
async def test_a_door_that_is_killed_or_has_no_replica_behind_it_is_shut(answer: Answer) -> None:
    async with listening(says_ok) as port:
        way_in = Door("127.0.0.1", port)
        assert await way_in.is_open()
    async with listening(answer, port):
        assert not await way_in.is_open()
    async with listening(says_ok, port):
        assert await way_in.is_open()


async def test_a_door_that_takes_connections_and_says_nothing_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does for a process that was stopped."""
    monkeypatch.setattr(door, "ANSWER_S", 0.2)
    async with listening(says_ok) as port:
        way_in = Door("127.0.0.1", port)
        assert await way_in.is_open()
    with socket.create_server(("127.0.0.1", port), backlog=5):
        assert not await way_in.is_open()
    assert not await way_in.is_open(), "nobody listens"
    async with listening(says_ok, port):
        assert await way_in.is_open()


async def test_a_door_elsewhere_is_not_missed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was killed together with the replica comes back some seconds after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        way_in = Door("127.0.0.1", probe.getsockname()[1])
        assert not await way_in.is_open()
        monkeypatch.setattr(door, "NEVER_OPEN_S", 0.0)
        assert await way_in.is_open()


def test_what_asked_leaves_no_connection_behind_where_no_goodbye_is_answered() -> None:
    """Over TLS a close waits for the other side's. A warning of what is still open fails this test."""
    certificate, over = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), threading.Event()
    trustme.CA().issue_cert("127.0.0.1").configure_cert(certificate)

    def says_no_goodbye() -> None:
        with certificate.wrap_socket(listener.accept()[0], server_side=True) as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answers = threading.Thread(target=says_no_goodbye)
        answers.start()
        assert asyncio.run(Door("127.0.0.1", listener.getsockname()[1], tls=True).is_open())
        gc.collect()
        over.set()
        answers.join()


async def test_nobody_is_pinged_while_the_door_is_shut() -> None:
    open_, asked = asyncio.Event(), asyncio.Event()

    class Net:
        async def call(self, *_: object) -> object:
            asked.set()
            raise TimeoutError

    async def is_open() -> bool:
        looked.set()
        return open_.is_set()

    looked = asyncio.Event()
    heartbeat = ReachabilityHeartbeat(Net(), is_open)  # type: ignore[arg-type]
    heartbeat.start()
    await asyncio.wait_for(looked.wait(), 5)
    assert not asked.is_set()
    open_.set()
    await asyncio.wait_for(asked.wait(), 5)
    await heartbeat.stop()
