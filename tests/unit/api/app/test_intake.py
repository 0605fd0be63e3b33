"""What a replica takes in at a time: bodies as they arrive, requests in flight, turns of heavy work."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from werkzeug.exceptions import RequestTimeout

from api.admission.intake import PACE_BYTES, Arrival, Intake, Turns
from api.admission.pace import GRACE_S
from api.admission.shares import Shares, asking, keyed, keyless, signed
from api.context.replica import EXTENSION
from breaker_actors.errors import Overloaded, PayloadTooLarge
from breaker_actors.settings import Settings
from breaker_actors.store.rows import KeyKind, KeyRow
from tests.support.fake_gateway import FakeClock
from tests.support.web_world import World, error_of, soon

MIB = 1 << 20


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, bodies_in_flight_bytes=4 * MIB, max_body_bytes=MIB, body_timeout_ms=200)


def key(name: str, org: str = "o", kind: KeyKind = "user") -> KeyRow:
    return KeyRow(id=name, org_id=org, kind=kind, project_id=None, name=name, key_prefix="", inserted_ms=1)


def test_shares_are_bounded_in_all_and_for_each_holder() -> None:
    held = Shares("bytes", 16)
    held.take(keyless("a", "p"), 2)
    with pytest.raises(Overloaded, match="this caller"):
        held.take(keyless("a", "p"))
    held.take(keyless("b", "p"), 2)
    with pytest.raises(Overloaded, match="this caller"):
        held.take(keyless("c", "p"))
    held.take(keyless("c", "q"), 2)
    with pytest.raises(Overloaded, match="without a known key"):
        held.take(keyless("d", "r"))
    held.take(asking("a"))
    held.take(asking("b"))
    with pytest.raises(Overloaded, match="without a known key"):
        held.take(asking("c"))
    for n in range(4):
        held.take(keyed(key(f"k{n}", f"o{n}")), 2)
    with pytest.raises(Overloaded, match="all callers"):
        held.take(keyed(key("k", "o")))
    assert (held.total, held.refused) == (16, 5)
    held.give_back(keyless("a", "p"), 2)
    held.take(keyless("c", "p"), 1)
    assert (held.total, held.refused) == (15, 5)


def test_lesser_keys_leave_a_part_of_their_organisation_to_greater_ones() -> None:
    """However many keys of a kind there are."""
    held = Shares("bytes", 16)
    held.take(keyed(key("p", kind="project")))
    held.take(keyed(key("q", kind="project")))
    with pytest.raises(Overloaded):
        held.take(keyed(key("r", kind="project")))
    held.take(keyed(key("u")))
    for refused in (key("v"), key("r", kind="project")):
        with pytest.raises(Overloaded):
            held.take(keyed(refused))
    held.take(keyed(key("admin", kind="admin")))
    held.take(signed("x", "o"), 2)
    with pytest.raises(Overloaded):
        held.take(keyed(key("admin", kind="admin")))


def test_what_comes_with_an_ingest_token_shares_with_signed_ingest_alone() -> None:
    """However many tokens a project has: neither keys nor what nobody signed take its place, nor it theirs."""
    held, token = Shares("bytes", 16), msgspec.structs.replace(key("t", kind="ingest"), project_id="p")
    held.take(keyed(token), 2)
    for refused in (keyed(msgspec.structs.replace(token, id="another")), signed("p", "o")):
        with pytest.raises(Overloaded):
            held.take(refused)
    held.take(signed("q", "o"), 2)
    held.take(keyed(key("u")), 2)
    held.take(keyless("a", "p"), 2)


def test_a_small_share_is_one_body_at_least() -> None:
    held = Shares("bytes", 16, 5)
    held.take(keyless("a", "p"), 5)
    with pytest.raises(Overloaded, match="this caller"):
        held.take(keyless("a", "p"))


async def test_turns_go_round_the_callers_and_waiting_is_bounded() -> None:
    """The one with many in the queue waits for the one with few; who leaves the queue holds nobody up."""
    turns, order = Turns(128), list[str]()
    go = asyncio.Event()

    async def work(caller: str, n: int) -> None:
        async with turns.turn(keyless("10.0.0.1", caller)):
            await go.wait()
            order.append(f"{caller}{n}")

    tasks = [asyncio.create_task(work(caller, n)) for caller, n in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("a", 4))]
    await asyncio.sleep(0)
    tasks[2].cancel()
    for n in range(5, 18):
        tasks.append(asyncio.create_task(work("a", n)))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="this caller"):
        await work("a", 18)
    go.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order[:4] == ["a1", "a2", "b1", "a4"]
    assert len(order) == 17
    await work("b", 2)


async def test_many_keys_of_an_organisation_have_the_turns_of_one() -> None:
    turns, order = Turns(128), list[str]()
    go = asyncio.Event()

    async def work(name: str, org: str) -> None:
        async with turns.turn(keyed(key(name, org))):
            await go.wait()
            order.append(name)

    names = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a"), ("b1", "b"), ("b2", "b")]
    tasks = [asyncio.create_task(work(*one)) for one in names]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*tasks)
    assert order == ["a1", "a2", "b1", "a3", "b2", "a4"]


async def test_pieces_share_a_round_of_the_loop_until_its_time_is_over() -> None:
    """Nobody else has the turn while one holds it through several rounds."""
    clock, order = FakeClock(), list[str]()
    turns = Turns(128, "pieces", clock.monotonic, round_s=2.0)
    go = asyncio.Event()

    async def work(name: str, seconds: float) -> None:
        async with turns.turn(keyless("10.0.0.1", name)):
            order.append(name)
            clock.seconds += seconds

    async def hold() -> None:
        async with turns.turn(keyless("10.0.0.1", "held")):
            order.append("held")
            await go.wait()

    tasks = [asyncio.create_task(work(name, 1.0)) for name in "abcd"]
    await asyncio.sleep(0)
    assert order == ["a", "b"]
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "d"]
    tasks = [asyncio.create_task(work("e", 1.0)), asyncio.create_task(hold()), asyncio.create_task(work("f", 1.0))]
    await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
        assert order[4:] == ["e", "held"]
    go.set()
    await asyncio.gather(*tasks)
    assert order[6:] == ["f"]


class Pipe:
    """What a client sends: pieces as they are put in."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.asked = 0

    def put(self, body: bytes, more: bool = True) -> None:
        self._queue.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._queue.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        return await self._queue.get()


def intake(bytes_max: int = 4 * MIB, timeout_ms: int = 5_000) -> Intake:
    held = Intake(FakeClock(), bytes_max, MIB, timeout_ms)
    held.patience_s = 0.0
    return held


async def test_nothing_is_received_before_the_handler_asks_and_all_is_given_back() -> None:
    pipe, held = Pipe(), intake()
    arrival = Arrival(held, pipe.receive, True)
    watching = asyncio.create_task(arrival.left())
    pipe.put(b"ab")
    pipe.put(b"c", more=False)
    await asyncio.sleep(0.01)
    assert pipe.asked == 0
    assert await arrival.read(None, 3) == b"abc"
    assert held.bytes.total == 3
    pipe.leave()
    await watching
    arrival.close()
    assert held.bytes.total == 0


async def test_bytes_count_while_they_arrive_and_one_caller_takes_its_part() -> None:
    held = intake()
    pipes = [Pipe() for _ in range(4)]
    arrivals = [Arrival(held, pipe.receive, True) for pipe in pipes]
    for n, one in enumerate(arrivals):
        await one.enter(keyless("x", "p") if n < 3 else keyed(key("y")))
    readers = [asyncio.create_task(one.read(None, MIB)) for one in arrivals]
    for pipe in (pipes[0], pipes[1], pipes[3]):
        pipe.put(bytes(MIB // 2))
    await soon(lambda: held.bytes.total == 3 * MIB // 2)
    pipes[2].put(b"1")
    with pytest.raises(Overloaded):
        await readers[2]
    pipes[3].put(b"1", more=False)
    assert len(await readers[3]) == MIB // 2 + 1
    for reader in readers[:2]:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    for arrival in arrivals:
        arrival.close()
    assert held.bytes.total == 0


async def test_a_body_too_large_is_refused_by_its_length_or_by_the_byte_too_many() -> None:
    for declared, sent in ((5, 0), (None, 5)):
        pipe, held = Pipe(), intake()
        arrival = Arrival(held, pipe.receive, True)
        pipe.put(bytes(sent))
        with pytest.raises(PayloadTooLarge):
            await arrival.read(declared, 4)
        assert held.bytes.total == 0
        assert pipe.asked == (sent > 0)


async def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    """A byte now and then does not keep it alive; 64 KiB do."""
    pipe, held = Pipe(), intake(timeout_ms=50)
    arrival = Arrival(held, pipe.receive, True)
    pipe.put(b"1")
    with pytest.raises(RequestTimeout):
        await arrival.read(None, MIB)
    assert held.given_up == 1
    clock = FakeClock()
    held = Intake(clock, 4 * MIB, MIB, 1_000)
    pipe, arrival = Pipe(), Arrival(held, pipe.receive, True)
    arrival = Arrival(held, pipe.receive, True)
    pipe.put(bytes(PACE_BYTES))
    pipe.put(b"1")
    pipe.put(b"", more=False)
    assert len(await arrival.read(None, MIB)) == PACE_BYTES + 1


async def test_a_body_whose_time_is_over_in_the_same_moment_makes_place() -> None:
    """Its timeout has fired, but it has not ended yet."""
    clock, loop = FakeClock(), asyncio.get_running_loop()
    held = Intake(clock, 4 * MIB, MIB, 50)
    held.requests = Shares("requests", 1)
    slow, newcomer = (Arrival(held, Pipe().receive, True) for _ in range(2))
    await slow.enter(keyless("x", "p"))
    reader = asyncio.create_task(slow.read(None, MIB))
    await asyncio.sleep(0)
    clock.seconds += GRACE_S + 1
    entered: asyncio.Future[Any] = loop.create_future()

    def enter() -> None:
        held.room.claim(newcomer._place(keyless("y", "q")))
        entered.set_result(None)

    loop.call_later(0.06, enter)
    time.sleep(0.1)
    with pytest.raises(RequestTimeout):
        await asyncio.wait_for(reader, 5)
    assert entered.done()
    slow.close()
    assert (held.requests.total, held.given_up, held.room.evicted) == (1, 0, 1)


async def test_a_client_that_leaves_amid_its_body_ends_the_request() -> None:
    pipe, held = Pipe(), intake()
    arrival = Arrival(held, pipe.receive, True)
    reader, watching = asyncio.create_task(arrival.read(None, 9)), asyncio.create_task(arrival.left())
    pipe.put(b"1")
    pipe.leave()
    await asyncio.wait_for(watching, 5)
    assert not reader.done()
    reader.cancel()


# the app


def scope_of(path: str, address: str, length: int, method: str = "POST", **headers: str) -> dict[str, Any]:
    return {
        "type": "http",
        "method": method,
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-length", str(length).encode()), *_raw(headers)],
        "client": (address, 1),
        "http_version": "1.1",
        "root_path": "",
        "asgi": {"version": "3.0"},
        "extensions": {},
        "state": {},
    }


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]


class Call:
    """One request to the app whose body is sent by hand."""

    def __init__(self, world: World, address: str, length: int, path: str = "ingest", **headers: str) -> None:
        self.pipe = Pipe()
        self.statuses: list[int] = []
        scope: Any = scope_of(path if path.startswith("/") else f"{world.path}/{path}", address, length, **headers)
        self.task = asyncio.create_task(world.app(scope, self.pipe.receive, self._send))

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])

    async def end(self) -> None:
        self.pipe.leave()
        await asyncio.wait([self.task])


async def test_bodies_in_flight_are_bounded_for_a_source_and_others_get_through(world: World) -> None:
    """The round's forty bodies with one byte missing: what is held stays within the share; another project is served,
    and so is the same once the slow ones are given up with 408."""
    held = world.app.extensions[EXTENSION].intake
    calls = [Call(world, "10.0.0.1", MIB) for _ in range(40)]
    for call in calls:
        call.pipe.put(bytes(MIB - 1))
    peak = 0
    while not all(call.statuses for call in calls):
        peak = max(peak, held.bytes.total)
        await asyncio.sleep(0)
    assert peak <= MIB
    assert {status for call in calls for status in call.statuses} == {408, 429}
    for call in calls:
        await call.end()
    assert held.bytes.total == held.requests.total == 0
    refused = held.refusals()
    assert (refused["bytes"] + refused["slow"], refused["requests"]) == (40, 0)
    assert (await world.call("POST", "ingest", None, data=b"[]")).status_code == 202


async def test_no_body_is_received_for_what_does_not_exist_or_has_no_key(world: World) -> None:
    for path in (f"/v1/projects/{world.workspace_id}/ingest", f"{world.path}/breakers"):
        pipe = Pipe()
        pipe.put(bytes(10), more=False)
        asked_before_answer: list[int] = []

        async def send(message: Any, pipe: Pipe = pipe, found: list[int] = asked_before_answer) -> None:
            found.append(pipe.asked)

        scope: Any = scope_of(path, "10.0.0.1", 10)
        await asyncio.wait_for(world.app(scope, pipe.receive, send), 5)
        assert asked_before_answer
        assert set(asked_before_answer) == {0}


async def test_a_body_that_is_no_set_of_breakers_is_a_mebibyte_at_most(world: World) -> None:
    big = json.dumps({"name": "x" * MIB}).encode()
    await error_of(await world.call("POST", "breakers", data=big), 413, "payload_too_large")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much each step inflated."""
    from api.admission.inflate import Inflation

    found, step = list[int](), Inflation.step

    def counted(self: Inflation, *bytes_max: int) -> None:
        before = len(self.plain)
        step(self, *bytes_max)
        found.append(len(self.plain) - before)

    monkeypatch.setattr(Inflation, "step", counted)
    return found


async def test_a_large_body_is_inflated_in_steps_between_which_others_are_served(
    world: World, steps: list[int]
) -> None:
    router = await world.router()
    sample = {"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1, "x": "y" * 900}
    body = gzip.compress(json.dumps([sample] * 1000).encode())
    done = asyncio.create_task(world.call("POST", "ingest", None, data=body, headers={"Content-Encoding": "gzip"}))
    turns = 0
    while not done.done():
        await asyncio.sleep(0)
        turns += bool(steps)
    assert (await done).status_code == 202
    assert len(steps) >= 4
    assert max(steps) <= 1 << 18
    assert turns > len(steps)
