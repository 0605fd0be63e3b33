"""Clients of the state stream whose connection can be written to past their task: they are told the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from api.app import create_app
from api.context.replica import EXTENSION, Replica
from api.stream.sse import HEARTBEAT, StreamTiming
from tests.support.fake_gateway import moved
from tests.support.stream_client import Client
from tests.support.web_world import World, soon

RATE = 10_000


@pytest.fixture
async def quiet(world: World) -> AsyncIterator[World]:
    """Its heartbeats come when a test says so."""
    timing = StreamTiming(snapshot_s=0.01, heartbeat_s=3600.0, refusal_s=0.02)
    world.app = create_app(world.gateway, world.settings, world.clock, timing, owns_gateway=False)
    async with world.app.test_app():
        await soon(parts(world).feed.fresh)
        yield world


def parts(world: World) -> Replica:
    found: Replica = world.app.extensions[EXTENSION]
    return found


def beat(world: World) -> None:
    parts(world).feed._watches[world.project.id].beat()


def sent(world: World) -> float:
    return parts(world).meters.value("breakers_stream_messages_total")


async def test_what_is_new_is_written_past_the_task(quiet: World) -> None:
    """One run of bytes for all clients of a project, in order, with those that have no such connection."""
    rows = [await quiet.breaker(name) for name in "ab"]
    clients = [Client(quiet, direct=True), Client(quiet, direct=True), Client(quiet)]
    await soon(lambda: all(client.body for client in clients))
    first = len(clients[0].handed)
    quiet.gateway.say(*(moved(quiet.project.id, row.id, "open", 0.0, 1) for row in rows))
    await soon(lambda: all(len(client.told()) == 4 for client in clients))
    quiet.gateway.say(moved(quiet.project.id, rows[0].id, "half_open", 0.2, 2, 2))
    await soon(lambda: all(len(client.told()) == 5 for client in clients))
    told = [("a", "closed", None), ("b", "closed", None), ("a", "open", None), ("b", "open", None)]
    for client in clients:
        assert client.told() == [*told, ("a", "half_open", 0.2)]
    assert clients[0].handed[first:] == []
    assert len(clients[0].direct_pieces) == 2
    assert clients[0].direct_pieces[0] is clients[1].direct_pieces[0]
    assert not clients[2].direct_pieces
    assert sent(quiet) == 9
    for client in clients:
        await client.leave()


async def test_heartbeats_go_the_same_way(quiet: World) -> None:
    await quiet.breaker("a")
    client = Client(quiet, direct=True)
    await soon(lambda: client.body)
    await soon(lambda: (beat(quiet), client.direct_pieces)[1])
    assert set(client.direct_pieces) == {HEARTBEAT}
    assert HEARTBEAT not in client.handed
    await client.leave()


async def test_one_that_takes_nothing_is_told_by_its_task_and_misses_nothing(quiet: World) -> None:
    """Its task waits with one piece as for any slow reader, and nothing passes that piece."""
    row, client = await quiet.breaker("a"), Client(quiet, direct=True)
    await soon(lambda: client.body)
    client.stall()
    for n in range(1, 6):
        quiet.gateway.say(moved(quiet.project.id, row.id, "half_open", n / RATE, 1, n))
        await soon(lambda n=n: parts(quiet).feed._watches[quiet.project.id].backlog.newest == n)
    assert not client.direct_pieces
    client.go_on()
    await soon(lambda: len(client.told()) == 6)
    quiet.gateway.say(moved(quiet.project.id, row.id, "half_open", 6 / RATE, 1, 6))
    await soon(lambda: client.direct_pieces)
    assert [rate for _, _, rate in client.told()[1:]] == [n / RATE for n in range(1, 7)]
    await client.leave()


async def test_what_is_more_than_one_piece_is_left_to_the_task(quiet: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.stream.subscriber.PIECE_MAX", 2)
    row, client = await quiet.breaker("a"), Client(quiet, direct=True)
    await soon(lambda: client.body)
    quiet.gateway.say(*(moved(quiet.project.id, row.id, "half_open", n / RATE, 1, n) for n in range(1, 8)))
    await soon(lambda: len(client.told()) == 8)
    assert [rate for _, _, rate in client.told()[1:]] == [n / RATE for n in range(1, 8)]
    assert len(client.direct_pieces) == 1
    await client.leave()


async def test_one_that_is_cut_is_written_nothing_more(quiet: World) -> None:
    row, client = await quiet.breaker("a"), Client(quiet, direct=True)
    await soon(lambda: client.body)
    (subscriber,) = parts(quiet).feed._watches[quiet.project.id].subscribers
    subscriber.cut("revoked")
    quiet.gateway.say(moved(quiet.project.id, row.id, "open", 0.0, 1))
    subscriber.wake()
    await asyncio.wait_for(client.task, 5)
    assert not client.direct_pieces
    assert not client.ended
    assert parts(quiet).meters.value("breakers_streams_closed_total", reason="revoked") == 1


async def test_one_that_is_stuck_is_cut_after_the_same_heartbeats(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.stream.subscriber.BEATS_MISSED_MAX", 3)
    row, client = await quiet.breaker("a"), Client(quiet, direct=True)
    await soon(lambda: client.body)
    client.stall()
    quiet.gateway.say(moved(quiet.project.id, row.id, "open", 0.0, 1))
    await soon(lambda: len(client.handed) == 2)
    for _ in range(3):
        beat(quiet)
    assert parts(quiet).feed.stream_count() == 1
    beat(quiet)
    await asyncio.wait_for(client.task, 5)
    assert parts(quiet).meters.value("breakers_streams_closed_total", reason="slow") == 1
