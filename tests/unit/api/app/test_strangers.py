"""Slow strangers: bodies without a key that arrive too slowly make place for others, fast ones are left alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from api.admission import intake as intake_module
from api.admission import pace as pacing
from api.admission.intake import Arrival, Intake
from api.admission.pace import FLOOR_BYTES_PER_S, GRACE_S, credited
from api.admission.room import Need, Room
from api.admission.shares import Shares, keyed, keyless
from api.context.replica import EXTENSION
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Overloaded
from breaker_actors.settings import Settings
from tests.support.fake_gateway import FakeClock
from tests.support.web_world import World, soon
from tests.unit.api.app.test_intake import MIB, Call, Pipe, key

HERE = "<local>"
"""Where the tests' own requests come from, as a project's clients do."""
ADDRESSES = [[HERE], ["10.0.0.1", "10.0.0.2"], [HERE, *(f"10.0.0.{n}" for n in range(9))]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, bodies_in_flight_bytes=16 * MIB, max_body_bytes=MIB, rate_waste_bytes_per_s=0)


@pytest.fixture
def intake(world: World) -> Intake:
    """The replica's, with room for 64 requests: of one address and project 8, of an address or a project 16, of all
    that is not proven 24."""
    found: Intake = world.app.extensions[EXTENSION].intake
    found.requests = Shares("requests", 64)
    return found


async def ingest(world: World, router_id: str) -> int:
    sample = {"router_id": router_id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}
    return (await world.call("POST", "ingest", None, data=json.dumps([sample]).encode())).status_code


class Strangers:
    """Slow requests to the project from some addresses: as many as get in, and more in the place of each that ends."""

    def __init__(self, world: World, addresses: list[str], sent: int) -> None:
        self._world, self._addresses, self._sent = world, addresses, sent
        self.calls: list[Call] = []

    async def press(self, n: int) -> None:
        """So many more, each of which gets in or waits."""
        calls = [Call(self._world, self._addresses[i % len(self._addresses)], MIB) for i in range(n)]
        for call in calls:
            call.pipe.put(bytes(self._sent))
        self.calls += calls
        await soon(lambda: all(call.pipe.asked or call.statuses for call in calls))

    def statuses(self) -> list[int]:
        return [status for call in self.calls for status in call.statuses]

    async def leave(self) -> None:
        for call in self.calls:
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self.calls), return_exceptions=True)


@pytest.mark.parametrize("sent", [1, MIB - 1])
@pytest.mark.parametrize("addresses", ADDRESSES, ids=len)
async def test_clients_are_served_beside_slow_strangers(
    world: World, intake: Intake, addresses: list[str], sent: int
) -> None:
    """Those fill every share there is for the project, with requests or with bytes, and come again and again. What
    clients send is answered 202 as soon as the strangers have stalled for GRACE_S, at once and without any wait."""
    router, strangers = await world.router(), Strangers(world, addresses, sent)
    try:
        for _ in range(5):
            await strangers.press(8 * min(len(addresses), 2))
            world.clock.seconds += GRACE_S
            async with asyncio.timeout(1.0):
                assert [await ingest(world, router.id) for _ in range(10)] == [202] * 10
        assert intake.room.evicted > 0
        await soon(lambda: strangers.statuses().count(408) == intake.room.evicted)
    finally:
        await strangers.leave()
    assert intake.refusals()["evicted"] == intake.room.evicted
    assert intake.bytes.total == intake.requests.total == 0


async def test_a_byte_now_and_then_keeps_no_place_and_a_steady_body_does(world: World, intake: Intake) -> None:
    """Strangers send a byte now and then; a client at the same address sends a large body twice as fast as the floor.
    Newcomers take the places of the strangers, and never that of the client."""
    router, strangers = await world.router(), Strangers(world, [HERE], 1)
    body = json.dumps([{"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}]).encode()
    body += b" " * (20 * FLOOR_BYTES_PER_S - len(body))
    steady = Call(world, HERE, len(body))
    try:
        for step in range(20):
            steady.pipe.put(body[step * FLOOR_BYTES_PER_S :][:FLOOR_BYTES_PER_S], more=step < 19)
            for call in strangers.calls:
                call.pipe.put(b" ")
            if step % 5 == 0:
                await strangers.press(7)
            for _ in range(20):
                await asyncio.sleep(0)
            world.clock.seconds += GRACE_S / 2
            if step % 5 > 1:
                assert await ingest(world, router.id) == 202
        await soon(lambda: steady.statuses)
        assert steady.statuses == [202]
        assert strangers.statuses().count(408) >= 8
    finally:
        await strangers.leave()
        await steady.end()


async def test_who_has_begun_fast_and_stalls_makes_place_too(world: World, intake: Intake) -> None:
    """Two bodies of a mebibyte without their last byte fill the bytes of their address and project."""
    router, strangers = await world.router(), Strangers(world, [HERE], MIB - 1)
    try:
        await strangers.press(2)
        await soon(lambda: intake.bytes.total == 2 * (MIB - 1))
        world.clock.seconds += GRACE_S
        assert await ingest(world, router.id) == 202
        assert intake.room.evicted == 1
    finally:
        await strangers.leave()


async def test_a_newcomer_waits_until_somebody_lags(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With time that passes by itself: the place is free after GRACE_S, not after BREAKERS_BODY_TIMEOUT_MS."""
    for module in (pacing, intake_module):
        monkeypatch.setattr(module, "GRACE_S", 0.1)
    held = Intake(SystemClock(), 4 * MIB, MIB, 10_000)
    held.requests = Shares("requests", 16)
    slow = [Arrival(held, Pipe().receive, True) for _ in range(2)]
    for one in slow:
        await one.enter(keyless("a", "p"))
    reading = [asyncio.create_task(one.read(None, 9)) for one in slow]
    await asyncio.sleep(0)
    newcomer = Arrival(held, Pipe().receive, True)
    async with asyncio.timeout(2.0):
        await newcomer.enter(keyless("a", "p"))
    assert held.room.evicted == 1
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in (*slow, newcomer):
        one.close()
    assert held.requests.total == 0


# waiting


class Lying:
    """A body on its way in that never lags."""

    lags_from_s = 1e9
    held_bytes = 0

    def give_up(self) -> None:
        raise AssertionError


def room_of(shares: Shares, *holders: tuple[str, str], waiting_max: int = 1_024) -> Room:
    """A room in which somebody is on the way, so that waiting makes sense."""
    room = Room(FakeClock().monotonic, waiting_max)
    room.arriving.add(Lying(), holders)
    return room


async def test_callers_who_wait_get_places_in_turn() -> None:
    """The one with many in the queue comes behind the one with few; who leaves the queue holds nothing."""
    shares = Shares("requests", 16)
    address, project = keyless("a", "p"), keyless("a", "q")
    room, order = room_of(shares, *address, *project), list[str]()
    shares.take(address, 2)
    shares.take(project, 2)

    async def ask(name: str, holders: tuple[tuple[str, str], ...]) -> None:
        await room.take(Need(shares, tuple(holders), 1, False), 5.0)
        order.append(name)

    tasks = [asyncio.create_task(ask(f"p{n}", tuple(address))) for n in range(4)]
    tasks.append(asyncio.create_task(ask("q0", tuple(project))))
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    for holders in (address, address, project, project):
        room.give_back(Need(shares, holders, 1, False))
    await soon(lambda: len(order) == 3)
    assert order == ["p0", "q0", "p2"]
    room.give_back(Need(shares, address, 1, False))
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["p0", "q0", "p2", "p3"]
    assert shares.total == 3


async def test_a_place_that_came_as_its_caller_left_is_given_back() -> None:
    shares, caller = Shares("requests", 16), keyed(key("k"))
    room = room_of(shares, *caller)
    shares.take(caller, 2)
    need = Need(shares, caller, 1, False)
    waiting = asyncio.create_task(room.take(need, 5.0))
    await asyncio.sleep(0)
    room.give_back(need)
    room._admit()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert shares.total == 1


async def test_waiting_is_bounded_in_time_and_number() -> None:
    """Each caller's share of those who wait; where nobody is on the way, nobody waits."""
    shares, caller = Shares("requests", 16), keyless("a", "p")
    room, need = room_of(shares, *caller, waiting_max=16), Need(shares, caller, 1, False)
    shares.take(caller, 2)
    waiting = [asyncio.create_task(room.take(need, 0.05)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await room.take(need, 60.0)
    for one in waiting:
        with pytest.raises(Overloaded, match="this caller: requests"):
            await one
    assert shares.refused == 3
    with pytest.raises(Overloaded):
        await asyncio.wait_for(Room(FakeClock().monotonic).take(need, 60.0), 1.0)


def test_credit_cannot_be_saved_up_and_debt_adds_up() -> None:
    assert credited(102.0, 100.0, 100 * FLOOR_BYTES_PER_S) == 100.0 + GRACE_S
    assert credited(100.25, 100.0, FLOOR_BYTES_PER_S // 2) == 100.75
    lags_from_s = 100.0 + GRACE_S
    for second in range(60):
        lags_from_s = credited(lags_from_s, 100.0 + second, 1)
    assert lags_from_s < 100.0 + GRACE_S + 0.01
