"""The state stream over raw ASGI: what a client is sent, how it is cut, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from api.app import create_app
from api.context import EXTENSION, Replica
from api.sse import HEARTBEAT, StreamTiming
from breaker_actors.errors import Unavailable
from breaker_actors.messages import FeedEntry
from tests.support.fake_gateway import moved
from tests.support.web_world import TIMING, World, error_of, soon, told


class Client:
    """One stream client on the bare ASGI interface; `stall` makes it stop reading."""

    def __init__(self, world: World, key: str = "project", path: str = "breakers/state:stream") -> None:
        self._world = world
        self._gone = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._asked = False
        self._headers = [(b"authorization", f"Bearer {world.keys.get(key, key)}".encode())]
        self._path = f"{world.path}/{path}"
        self.start: dict[str, Any] = {}
        self.body = b""
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
        }
        await self._world.app(scope, self._receive, self._send)  # type: ignore[arg-type]

    async def _receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message["body"]
            self.ended |= not message["more_body"]

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.start["headers"] if key.decode().lower() == name]
        return found[0].decode() if found else None

    def told(self) -> list[tuple[str, str, float | None]]:
        return told(self.body.replace(HEARTBEAT, b""))

    def stall(self) -> None:
        self._reads.clear()

    async def leave(self) -> None:
        """As a plain ASGI server tells it."""
        self._gone.set()
        await self.task

    async def cancelled(self) -> None:
        """As Ray Serve does it."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


def running() -> set[asyncio.Task[Any]]:
    """All tasks but those a wait inside the fake feed makes."""
    return {task for task in asyncio.all_tasks() if "Event.wait" not in repr(task.get_coro())}


def parts(world: World) -> Replica:
    found: Replica = world.app.extensions[EXTENSION]
    return found


def config(world: World, sequence: int = 1) -> FeedEntry:
    return FeedEntry(sequence, "config", world.project.id)


async def test_a_client_gets_headers_then_all_states_then_changes(world: World) -> None:
    row = await world.breaker("a")
    client = Client(world)
    await soon(lambda: client.start)
    assert client.start["status"] == 200
    assert client.header("content-type") == "text/event-stream"
    assert client.header("cache-control") == "no-cache"
    assert client.header("connection") == "keep-alive"
    assert client.header("content-length") is None
    assert client.header("content-encoding") is None
    assert client.header("x-request-id")
    assert client.body == b""
    await soon(lambda: client.body)
    assert client.told() == [("a", "closed", None)]
    world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1), moved(world.other.id, row.id, "closed", 1, 2))
    await soon(lambda: len(client.told()) == 2)
    world.gateway.say(
        moved(world.project.id, row.id, "half_open", 0.2, 2, 2), moved(world.project.id, row.id, "half_open", 0.4, 2, 3)
    )
    await soon(lambda: len(client.told()) == 4)
    assert client.told()[1:] == [("a", "open", None), ("a", "half_open", 0.2), ("a", "half_open", 0.4)]
    await client.leave()
    assert not client.ended


async def test_the_heartbeat_comes_while_nothing_happens(world: World) -> None:
    client = Client(world)
    await soon(lambda: client.body.count(HEARTBEAT) >= 2)
    assert client.told() == []
    await client.leave()


async def test_what_happens_before_the_snapshot_is_in_it_and_not_told_twice(world: World) -> None:
    row = await world.breaker("a")
    timing = StreamTiming(snapshot_s=0.3)
    world.app = create_app(world.gateway, world.settings, world.clock, timing, owns_gateway=False)
    async with world.app.test_app():
        await soon(parts(world).feed.fresh)
        client = Client(world)
        await soon(lambda: parts(world).feed.stream_count() == 1)
        world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1))
        await soon(lambda: client.body)
        await asyncio.sleep(0.03)
        assert client.told() == [("a", "open", None)]
        await client.leave()


async def test_entries_during_a_load_are_neither_lost_nor_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snapshot is read, then the breaker moves, and only then the snapshot arrives."""
    row, load = await world.breaker("a"), world.store.stream_snapshot
    gate, reading = asyncio.Event(), asyncio.Event()

    async def slow(project_id: str, now_ms: int) -> Any:
        found = await load(project_id, now_ms)
        reading.set()
        await gate.wait()
        return found

    monkeypatch.setattr(world.store, "stream_snapshot", slow)
    first, watches = Client(world), parts(world).feed._watches
    await soon(reading.is_set)
    world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1))
    await soon(lambda: watches[world.project.id].pending)
    gate.set()
    await soon(lambda: first.body)
    assert first.told() == [("a", "open", None)]
    gate.clear()
    reading.clear()
    world.gateway.say(config(world, 2))
    await soon(reading.is_set)
    world.gateway.say(moved(world.project.id, row.id, "half_open", 0.2, 2, 3))
    await soon(lambda: len(first.told()) == 2)
    gate.set()
    await soon(lambda: watches[world.project.id].loading is None)
    # The fake feed moves no stored record, so the reloaded snapshot brings `closed` only if the entries were lost.
    assert first.told() == [("a", "open", None), ("a", "half_open", 0.2)]
    await first.leave()


async def test_a_change_of_configuration_shows_at_once(world: World) -> None:
    client = Client(world)
    await soon(lambda: parts(world).feed.stream_count() == 1)
    await asyncio.sleep(0.02)
    row = await world.breaker("new")
    world.gateway.say(config(world))
    await soon(lambda: client.told() == [("new", "closed", None)])
    now = world.clock.now_ms()
    await world.store.update_breaker(world.project.id, row.id, lambda r: msgspec.structs.replace(r, name="other"), now)
    world.gateway.say(config(world), config(world), config(world))
    await soon(lambda: len(client.told()) == 3)
    assert client.told()[1:] == [("new", "closed", None), ("other", "closed", None)]
    await world.store.delete_breaker(world.project.id, row.id, now)
    world.gateway.say(config(world))
    await soon(lambda: len(client.told()) == 4)
    assert client.told()[3] == ("other", "closed", None)
    second = Client(world)
    await soon(lambda: second.body)
    assert sorted(second.told()) == [("new", "closed", None), ("other", "closed", None)], "names gone stay closed"
    await client.leave()
    await second.leave()


async def test_a_new_journal_makes_every_board_load_again(world: World) -> None:
    client = Client(world)
    await asyncio.sleep(0.05)
    await world.breaker("missed")
    world.gateway.forget()
    await soon(lambda: client.told() == [("missed", "closed", None)])
    assert parts(world).meters.value("breakers_feed_resets_total") == 2
    await client.leave()


async def test_the_pump_survives_an_unreachable_journal(world: World) -> None:
    row, client = await world.breaker("a"), Client(world)
    await soon(lambda: client.body)
    world.gateway.down = True
    world.gateway.say()
    polls = world.gateway.polls
    await soon(lambda: world.gateway.polls >= polls + 2)
    world.gateway.down = False
    world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1))
    await soon(lambda: len(client.told()) == 2)
    await client.leave()


async def test_the_snapshot_waits_for_a_store_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.breaker("a")
    load, failures = world.store.stream_snapshot, 2

    async def flaky(project_id: str, now_ms: int) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise Unavailable
        return await load(project_id, now_ms)

    monkeypatch.setattr(world.store, "stream_snapshot", flaky)
    client = Client(world)
    await soon(lambda: client.body)
    assert client.told() == [("a", "closed", None)]
    await client.leave()


async def test_a_slow_client_is_cut_and_the_others_are_not(world: World) -> None:
    row = await world.breaker("a")
    slow, quick = Client(world), Client(world)
    await soon(lambda: slow.body and quick.body)
    slow.stall()
    last = world.settings.subscriber_queue_max + 200
    for n in range(1, last + 1):
        world.gateway.say(moved(world.project.id, row.id, "half_open", n / 10_000, 1, n))
        if n % 100 == 0:
            await asyncio.sleep(0.005)
    await asyncio.wait_for(slow.task, 5)
    assert not slow.ended
    assert parts(world).meters.value("breakers_streams_closed_total", reason="slow") == 1
    await soon(lambda: quick.told()[-1][2] == last / 10_000)
    assert parts(world).feed.stream_count() == 1
    await quick.leave()


async def test_stopping_leaves_every_stream_unfinished(world: World) -> None:
    clients = [Client(world) for _ in range(3)]
    await soon(lambda: parts(world).feed.stream_count() == 3)
    await parts(world).feed.stop()
    await asyncio.wait_for(asyncio.gather(*(client.task for client in clients)), 5)
    assert not any(client.ended for client in clients)
    assert parts(world).feed.stream_count() == 0


@pytest.mark.parametrize("serve", [False, True])
@pytest.mark.parametrize("stay_s", [0.0, 0.004, 0.02])
async def test_five_hundred_clients_leave_nothing_behind(world: World, serve: bool, stay_s: float) -> None:
    await world.breaker("a")
    await asyncio.sleep(0.02)
    tasks = running()

    async def visit() -> None:
        client = Client(world)
        await asyncio.sleep(stay_s)
        await (client.cancelled() if serve else client.leave())

    await asyncio.gather(*(visit() for _ in range(500)))
    feed = parts(world).feed
    await soon(lambda: running() <= tasks)
    assert feed.stream_count() == 0
    assert feed._watches == {}


async def test_a_project_has_a_bound_of_streams(world: World) -> None:
    bound = world.settings.model_copy(update={"streams_per_project_max": 1})
    world.app = create_app(world.gateway, bound, world.clock, TIMING, owns_gateway=False)
    async with world.app.test_app():
        first = Client(world)
        await soon(lambda: parts(world).feed.stream_count() == 1)
        refused = await world.call("GET", "breakers/state:stream", "project")
        await error_of(refused, 429, "rate_limited")
        assert int(refused.headers["Retry-After"]) >= 1
        await first.leave()


@pytest.mark.parametrize(("key", "status", "code"), [("null", 401, "unauthorized"), ("stranger", 404, "not_found")])
async def test_a_refusal_takes_its_time(world: World, key: str, status: int, code: str) -> None:
    timing = StreamTiming(refusal_s=0.15)
    world.app = create_app(world.gateway, world.settings, world.clock, timing, owns_gateway=False)
    began = asyncio.get_running_loop().time()
    await error_of(await world.call("GET", "breakers/state:stream", key), status, code)
    assert asyncio.get_running_loop().time() - began >= 0.15


async def test_head_of_the_stream_ends(world: World) -> None:
    response = await world.call("HEAD", "breakers/state:stream", "project")
    assert response.status_code == 200
    assert await response.get_data() == b""


async def test_the_escaped_spelling_is_the_same_stream(world: World) -> None:
    client = Client(world)
    await soon(lambda: client.start)
    await client.leave()
    row = await world.breaker("a")
    response = await world.call("POST", "breakers/state%3Abatch", json={"breaker_ids": [row.id]})
    assert response.status_code == 200
