"""What a replica has on its way out at a time: large answers count until they are read, and are cut if nobody does."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from api.admission.outgoing import GRACE_S, LARGE_BYTES, PIECE_BYTES, AnswerShares, Departure, Outlet
from api.admission.shares import EVERYBODY, keyed
from api.context.replica import EXTENSION
from breaker_actors.errors import Overloaded
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft, KeyRow
from tests.contract.store_world import RULE
from tests.support.fake_gateway import FakeClock
from tests.support.web_world import World, error_of, soon
from tests.unit.api.app.test_sockets import on_uvicorn

MIB = 1 << 20
SHARE = 2 * MIB


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, bodies_in_flight_bytes=16 * MIB, max_body_bytes=MIB)


def caller(name: str) -> Any:
    row = KeyRow(id=name, org_id=name, kind="admin", project_id=None, name=name, key_prefix="", inserted_ms=1)
    return keyed(row)


async def sent(messages: list[Any], message: Any) -> None:
    messages.append(message)


def test_an_answer_fits_wherever_anything_is_left() -> None:
    shares = AnswerShares("bytes of answers", 16)
    shares.take(caller("a"), 1)
    shares.take(caller("a"), 100)
    with pytest.raises(Overloaded) as refusal:
        shares.take(caller("a"), 1)
    assert refusal.value.details["limit"] == "bytes of answers"
    shares.add(caller("a"), 5)
    assert shares.total == 106
    shares.give_back(caller("a"), 106)
    shares.take(caller("a"), 1)


async def test_a_large_answer_goes_out_in_pieces() -> None:
    outlet, messages = Outlet(FakeClock().monotonic, 16 * SHARE), list[Any]()
    departure = Departure(outlet, lambda message: sent(messages, message))
    body = bytes(range(256)) * 1_000
    departure.hold(caller("a"), len(body), done=False)
    await departure.send({"type": "http.response.start", "status": 200})
    await departure.send({"type": "http.response.body", "body": body, "more_body": True})
    await departure.send({"type": "http.response.body", "body": b"", "more_body": False})
    assert messages[0] == {"type": "http.response.start", "status": 200}
    assert b"".join(message["body"] for message in messages[1:]) == body
    assert max(len(message["body"]) for message in messages[1:]) == PIECE_BYTES
    assert [message["more_body"] for message in messages[1:]] == [True] * 4 + [False]
    assert outlet.bytes.total == len(body)
    departure.close()
    assert outlet.bytes.total == 0


async def test_small_answers_and_streams_go_as_they_are() -> None:
    outlet, messages = Outlet(FakeClock().monotonic, 16), list[Any]()
    departure = Departure(outlet, lambda message: sent(messages, message))
    departure.hold(caller("a"), LARGE_BYTES, done=False)
    message = {"type": "http.response.body", "body": b"x" * 10 * PIECE_BYTES, "more_body": True}
    await departure.send(message)
    assert messages == [message]
    assert outlet.bytes.total == 0


async def test_what_is_expected_is_replaced_by_what_it_becomes() -> None:
    outlet = Outlet(FakeClock().monotonic, 16 * SHARE)
    outlet.patience_s = 0.0
    first, second = (Departure(outlet, lambda message: sent([], message)) for _ in range(2))
    await first.expect(caller("a"), 3 * SHARE)
    with pytest.raises(Overloaded):
        await second.expect(caller("a"), LARGE_BYTES + 1)
    with pytest.raises(Overloaded):
        second.hold(caller("a"), LARGE_BYTES + 1, done=False)
    first.hold(caller("a"), LARGE_BYTES + 1, done=True)
    assert outlet.bytes.total == LARGE_BYTES + 1
    await second.expect(caller("a"), 3 * SHARE)
    second.hold(caller("a"), 10, done=True)
    first.close()
    assert outlet.bytes.total == 0
    assert outlet.bytes._held == {}


@pytest.mark.parametrize("lags", [True, False])
async def test_who_does_not_read_makes_place_for_who_asks(lags: bool) -> None:
    clock = FakeClock()
    outlet, stuck = Outlet(clock.monotonic, 16 * SHARE), asyncio.Event()
    outlet.patience_s = 0.0
    first = Departure(outlet, lambda message: _never(stuck))
    second = Departure(outlet, lambda message: sent([], message))
    first.hold(caller("a"), 3 * SHARE, done=False)
    task = asyncio.create_task(first.send({"type": "http.response.body", "body": bytes(3 * SHARE), "more_body": True}))
    await asyncio.wait_for(stuck.wait(), 5)
    clock.seconds += GRACE_S + (1 if lags else -1)
    if lags:
        await second.expect(caller("a"), SHARE)
        assert (outlet.bytes.total, outlet.room.evicted) == (SHARE, 1)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
    else:
        with pytest.raises(Overloaded):
            await second.expect(caller("a"), SHARE)
        task.cancel()


async def test_an_answer_whose_time_is_over_in_the_same_moment_makes_place() -> None:
    """Its timeout has fired, but it has not ended yet."""
    clock, loop = FakeClock(), asyncio.get_running_loop()
    outlet, stuck = Outlet(clock.monotonic, 16 * SHARE), asyncio.Event()
    outlet.still_s = 0.01
    first, second = (
        Departure(outlet, lambda message: _never(stuck)),
        Departure(outlet, lambda message: sent([], message)),
    )
    first.hold(caller("a"), 3 * SHARE, done=False)
    task = asyncio.create_task(first.send({"type": "http.response.body", "body": bytes(3 * SHARE), "more_body": True}))
    await asyncio.wait_for(stuck.wait(), 5)
    clock.seconds += GRACE_S + 1
    loop.call_later(0.02, second.hold, caller("a"), SHARE, False)
    time.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    first.close()
    assert (outlet.bytes.total, second.held_bytes, outlet.still, outlet.room.evicted) == (SHARE, SHARE, 0, 1)


async def test_a_piece_that_nobody_takes_ends_its_answer() -> None:
    outlet, stuck = Outlet(FakeClock().monotonic, 16 * SHARE), asyncio.Event()
    outlet.still_s = 0.01
    departure = Departure(outlet, lambda message: _never(stuck))
    departure.hold(caller("a"), SHARE, done=False)
    with pytest.raises(asyncio.CancelledError):
        await departure.send({"type": "http.response.body", "body": bytes(SHARE), "more_body": True})
    assert outlet.still == 1


async def _never(reached: asyncio.Event) -> None:
    reached.set()
    await asyncio.Event().wait()


# behind a real server


@pytest.mark.parametrize("path", ["breakers", "routers/{router}"])
async def test_answers_that_nobody_reads_are_bounded(world: World, path: str) -> None:
    """Sockets that read nothing hold no more than their share and one answer; who reads is served as soon as their time
    is over, and whole; what they held is free when they go."""
    ids = []
    for i in range(90):
        made = BreakerDraft(rule=RULE, name=f"b{i}", actions={"a": "x" * 60_000})
        ids.append((await world.store.create_breaker(world.project.id, made, 1))[0].id)
    router = await world.router(*ids)
    path, outlet = path.format(router=router.id), world.app.extensions[EXTENSION].intake.outlet
    outlet.patience_s = 0.0
    whole = await (await world.call("GET", path)).get_data()
    assert len(whole) > SHARE
    async with on_uvicorn(world) as port:
        held = [_ask(world, port, path) for _ in range(8)]
        await soon(lambda: outlet.bytes.refused == 7)
        await soon(lambda: outlet.room.arriving.slowest(EVERYBODY, with_bytes=True))
        assert 0 < outlet.bytes.total < 2 * len(whole)
        await error_of(await world.call("GET", path), 429, "rate_limited")
        world.clock.seconds += GRACE_S + 1
        told = await world.call("GET", path)
        assert await told.get_data() == whole
        await soon(lambda: outlet.room.evicted == 1)
        for each in held:
            each.close()
        await soon(lambda: outlet.bytes.total == 0)


async def test_a_change_is_refused_before_it_is_made(world: World) -> None:
    """Where its answer has no room; small ones go through."""
    made = BreakerDraft(rule=RULE, name="b", actions={"a": "x" * 60_000})
    row, _ = await world.store.create_breaker(world.project.id, made, 1)
    router = await world.router(row.id)
    outlet = world.app.extensions[EXTENSION].intake.outlet
    outlet.patience_s = 0.0
    outlet.bytes.add((), 16 * MIB)
    for method, path, body in (
        ("PATCH", f"routers/{router.id}", {"name": "other"}),
        ("POST", f"routers/{router.id}/breakers", {"breaker_ids": []}),
        ("POST", "routers", {"name": "third", "breaker_ids": [row.id]}),
    ):
        refused = await error_of(await world.call(method, path, json=body), 429, "rate_limited")
        assert refused["details"]["limit"] == "bytes of answers"
    rows = await world.store.list_routers(world.project.id)
    assert "third" not in {row.name for row in rows}
    assert "other" not in {row.name for row in rows}
    assert (await world.call("GET", "status")).status_code == 200


def _ask(world: World, port: int, path: str) -> socket.socket:
    """A connection that asks and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    head = f"GET {world.path}/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.keys['user']}\r\n\r\n"
    client.sendall(head.encode())
    return client
