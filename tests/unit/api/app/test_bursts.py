"""Bulk changes and storms of state changes: who reads is never cut, who does not is bounded, last states arrive."""

from __future__ import annotations

import asyncio

from api.context.replica import EXTENSION, Replica
from api.stream.backlog import Backlog
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import FeedEntry
from breaker_actors.store.rows import BreakerItem
from tests.support.fake_gateway import moved
from tests.support.stream_client import Client
from tests.support.web_world import RULE, World, soon

BREAKERS = 10_000


def parts(world: World) -> Replica:
    found: Replica = world.app.extensions[EXTENSION]
    return found


def slow_cuts(world: World) -> float:
    return parts(world).meters.value("breakers_streams_closed_total", reason="slow")


async def put(world: World, count: int) -> None:
    """One PUT of so many breakers."""
    items = [BreakerItem(name=f"b{n}", rule=parse_rule(RULE)) for n in range(count)]
    await world.store.replace_breakers(world.project.id, items, lambda rows, gone: None, world.clock.now_ms())
    world.gateway.say(FeedEntry(1, "config", world.project.id))


async def test_a_put_of_ten_thousand_cuts_no_client_that_reads(world: World) -> None:
    """All of it is one change of configuration: each client is told 10,000 names."""
    await world.breaker("first")
    clients = [Client(world) for _ in range(50)]
    await soon(lambda: all(client.body for client in clients))
    await put(world, BREAKERS)
    await soon(lambda: all(client.body.count(b"event: state") >= BREAKERS + 2 for client in clients), 30)
    assert slow_cuts(world) == 0
    for client in clients:
        assert {name for name, _, _ in client.told()} == {"first", *(f"b{n}" for n in range(BREAKERS))}
        await client.leave()


async def test_a_storm_cuts_no_client_that_reads(world: World) -> None:
    """5,000 breakers move twice each, as fast as the feed brings it."""
    await put(world, 5_000)
    await soon(lambda: not world.gateway.changes, 5)
    clients = [Client(world) for _ in range(20)]
    await soon(lambda: all(client.body.count(b"event: state") == 5_000 for client in clients), 20)
    rows, _ = await world.store.list_breakers(world.project.id)
    world.gateway.say(*(moved(world.project.id, row.id, "open", 0.0, 1, 1) for row in rows))
    world.gateway.say(*(moved(world.project.id, row.id, "half_open", 0.2, 2, 2) for row in rows))
    await soon(lambda: all(client.body.count(b'"half_open"') == 5_000 for client in clients), 20)
    assert slow_cuts(world) == 0
    for client in clients:
        told = client.told()
        assert {name: state for name, state, _ in told} == {row.name: "half_open" for row in rows}
        assert [rate for name, _, rate in told if name == "b7"][-1] == 0.2
        await client.leave()


async def test_a_client_that_is_far_behind_gets_the_latest_state_of_each_breaker(world: World) -> None:
    """In order, each breaker's last one; what lies between is merged and counted."""
    rows = [await world.breaker(name) for name in "abc"]
    client, last = Client(world), 3 * world.settings.subscriber_queue_max
    await soon(lambda: client.body)
    client.stall()
    for n in range(1, last + 1):
        world.gateway.say(*(moved(world.project.id, row.id, "half_open", n / 10_000, 1, n) for row in rows))
        if n % 100 == 0:
            await asyncio.sleep(0)
    await soon(lambda: _newest(world) >= 3 * last)
    client.go_on()
    await soon(lambda: client.told()[-3:] == [(name, "half_open", last / 10_000) for name in "abc"])
    for name in "abc":
        rates = [rate for told, state, rate in client.told() if told == name and state == "half_open"]
        assert rates == sorted(rates, key=lambda rate: rate or 0.0)
    given, merged = (parts(world).meters.value(f"breakers_stream_messages{kind}_total") for kind in ("", "_merged"))
    assert given + merged == 3 * last
    assert merged > last
    assert slow_cuts(world) == 0
    await client.leave()


async def test_a_client_that_reads_nothing_is_cut_after_a_minute(world: World) -> None:
    """Twelve heartbeats; what waits for it is no more than the latest states."""
    row = await world.breaker("a")
    silent, reads = Client(world), Client(world)
    await soon(lambda: silent.body and reads.body)
    silent.stall()
    for n in range(1, 20 * world.settings.subscriber_queue_max):
        world.gateway.say(moved(world.project.id, row.id, "half_open", n / 100_000, 1, n))
        if n % 500 == 0:
            await asyncio.sleep(0)
            assert len(_backlog(world)) <= 2 * world.settings.subscriber_queue_max + 1
    await asyncio.wait_for(silent.task, 10)
    assert not silent.ended, "the socket is dropped, not closed"
    assert slow_cuts(world) == 1
    assert parts(world).feed.stream_count() == 1
    await reads.leave()


def _backlog(world: World) -> Backlog:
    return parts(world).feed._watches[world.project.id].backlog


def _newest(world: World) -> int:
    return _backlog(world).newest
