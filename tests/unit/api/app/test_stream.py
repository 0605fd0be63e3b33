"""The state stream over raw ASGI: what a client is sent, how it is cut, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import msgspec
import pytest
from quart import Request, Response
from werkzeug.datastructures import Headers

from api.app import create_app
from api.context.replica import EXTENSION, Replica
from api.routes import stream
from api.stream.feed import Feed
from api.stream.org_streams import OrgStreams
from api.stream.sse import HEARTBEAT, StreamTiming
from api.stream.state_board import Board
from breaker_actors.errors import Overloaded, Unavailable
from breaker_actors.messages import Commit, EventDraft, FeedEntry
from breaker_actors.settings import Settings
from breaker_actors.sql.readers import _OWNER
from breaker_actors.store.rows import BreakerRow, StreamSnapshot
from tests.support.fake_gateway import moved
from tests.support.stream_client import Client
from tests.support.web_world import TIMING, World, error_of, soon


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


def _heads() -> list[Any]:
    return [found for found in gc.get_objects() if issubclass(type(found), (Request, Response, Headers))]


async def test_an_open_stream_keeps_neither_its_request_nor_its_answer(world: World) -> None:
    """Headers, cookies and buffers of both are some 5 KB, for as long as the client stays."""
    await world.breaker("a")
    others = _heads()  # of tests before
    clients = [Client(world) for _ in range(3)]
    await soon(lambda: all(client.body for client in clients))
    gc.collect()
    assert not [found for found in _heads() if not any(found is other for other in others)]
    for client in clients:
        await client.leave()


async def test_the_heartbeat_comes_while_nothing_happens(world: World) -> None:
    client = Client(world)
    await soon(lambda: client.body.count(HEARTBEAT) >= 2)
    assert client.told() == []
    await client.leave()


@pytest.mark.parametrize(
    ("agent", "pause_s"),
    [("curl/8.5.0", 0.05), ("python-httpx/0.28.1", 0.05), ("Go-http-client/1.1", 0.05), ("", 0.3), ("new/1", 0.3)],
)
async def test_only_clients_without_a_start_up_race_are_told_at_once(
    world: World, agent: str, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is not known waits: a client that is told before it listens for it would wait for ever."""
    pauses: list[float] = []

    def follow(feed: Feed, project_id: str, pause: float, *more: Any) -> Any:
        pauses.append(pause)
        return b""

    monkeypatch.setattr(stream, "follow", follow)
    world.app = create_app(world.gateway, world.settings, world.clock, StreamTiming(), owns_gateway=False)
    await world.call("GET", "breakers/state:stream", "project", headers={"User-Agent": agent})
    assert pauses == [pause_s]


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


class Loads:
    """Counts how often boards are loaded, and of which projects."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: list[str] = []
        self._load = world.store.stream_snapshot
        monkeypatch.setattr(world.store, "stream_snapshot", self.load)

    async def load(self, project_id: str, now_ms: int) -> Any:
        self.of.append(project_id)
        return await self._load(project_id, now_ms)


async def test_clients_that_come_and_go_cost_one_load(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    row, loads = await world.breaker("a"), Loads(world, monkeypatch)
    for _ in range(5):
        client = Client(world)
        await soon(lambda client=client: client.body)
        await client.leave()
    assert loads.of == [world.project.id]
    # Without a client the board goes on following.
    world.gateway.say(moved(world.project.id, row.id, "open", 0.0, 1))
    polls = world.gateway.polls
    await soon(lambda: world.gateway.polls >= polls + 2)
    client = Client(world)
    await soon(lambda: client.body)
    assert client.told() == [("a", "open", None)]
    assert loads.of == [world.project.id]
    await client.leave()


async def test_a_client_that_leaves_before_the_board_is_there_has_it_loaded_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.breaker("a")
    loads, gate, load = Loads(world, monkeypatch), asyncio.Event(), world.store.stream_snapshot

    async def slow(project_id: str, now_ms: int) -> Any:
        found = await load(project_id, now_ms)
        await gate.wait()
        return found

    monkeypatch.setattr(world.store, "stream_snapshot", slow)
    for _ in range(5):
        client = Client(world)
        await soon(lambda: parts(world).feed.stream_count() == 1)
        await client.leave()
    gate.set()
    client = Client(world)
    await soon(lambda: client.body)
    assert client.told() == [("a", "closed", None)]
    assert loads.of == [world.project.id]
    await client.leave()


async def test_a_board_is_read_in_its_organisations_turns_whoever_begins_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client, and the feed for a change of configuration."""
    await world.breaker("a")
    whose, load = list[str](), world.store.stream_snapshot

    async def noted(project_id: str, now_ms: int) -> Any:
        whose.append(_OWNER.get())
        return await load(project_id, now_ms)

    monkeypatch.setattr(world.store, "stream_snapshot", noted)
    client = Client(world)
    await soon(lambda: client.body)
    world.gateway.say(config(world))
    await soon(lambda: len(whose) == 2)
    assert whose == [world.project.org_id] * 2
    await client.leave()


async def test_a_kept_board_is_forgotten_with_a_change_of_configuration(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.breaker("a")
    loads, feed = Loads(world, monkeypatch), parts(world).feed
    client = Client(world)
    await soon(lambda: client.body)
    await client.leave()
    await world.breaker("b")
    world.gateway.say(config(world))
    await soon(lambda: not feed._watches)
    assert len(loads.of) == 1
    client = Client(world)
    await soon(lambda: client.body)
    assert sorted(client.told()) == [("a", "closed", None), ("b", "closed", None)]
    assert len(loads.of) == 2
    await client.leave()


async def test_kept_boards_go_after_a_while_and_when_there_are_too_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(project_id: str, now_ms: int) -> Any:
        await asyncio.Event().wait()

    feed = parts(world).feed
    monkeypatch.setattr(world.store, "stream_snapshot", never)
    monkeypatch.setattr("api.stream.feed.KEPT_MAX", 2)
    names = [f"project-{i}" for i in range(4)]
    for name in names:
        feed.unsubscribe(name, feed.subscribe(name))
    assert list(feed._watches) == names[2:]
    held = feed.subscribe(names[2])
    monkeypatch.setattr("api.stream.feed.KEPT_S", 0.0)
    await soon(lambda: list(feed._watches) == [names[2]])
    feed.unsubscribe(names[2], held)
    await soon(lambda: not feed._watches)


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
    await client.leave()


async def test_new_clients_hear_of_names_gone_only_where_some_client_may_hold_another_state(world: World) -> None:
    """Of the breaker that has tripped, before and after a restart; of the one that never left closed nobody does."""
    quiet, tripped = await world.breaker("quiet"), await world.breaker("tripped")
    await trip(world, tripped)
    client = Client(world)
    await soon(lambda: client.told() == [("quiet", "closed", None), ("tripped", "open", None)])
    for row in (quiet, tripped):
        await world.store.delete_breaker(world.project.id, row.id, world.clock.now_ms())
    world.gateway.say(config(world))
    await soon(lambda: len(client.told()) == 4)
    assert sorted(client.told()[2:]) == [("quiet", "closed", None), ("tripped", "closed", None)]
    after = Client(world)
    await soon(lambda: after.body)
    assert after.told() == [("tripped", "closed", None)]
    await client.leave()
    await after.leave()
    world.app = create_app(world.gateway, world.settings, world.clock, TIMING, owns_gateway=False)
    async with world.app.test_app():
        restarted = Client(world)
        await soon(lambda: restarted.body)
        assert restarted.told() == [("tripped", "closed", None)]
        await restarted.leave()


async def test_a_board_is_made_while_others_are_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one takes a hundredth of a second or more."""
    begun, answered, waited = threading.Event(), threading.Event(), list[bool]()

    class SlowBoard(Board):
        def __init__(self, snapshot: StreamSnapshot) -> None:
            begun.set()
            waited.append(answered.wait(1))
            super().__init__(snapshot)

    monkeypatch.setattr("api.stream.feed.Board", SlowBoard)
    await world.breaker("a")
    client = Client(world)
    await soon(begun.is_set)
    answered.set()
    await soon(lambda: client.body)
    assert (client.told(), waited) == ([("a", "closed", None)], [True])
    await client.leave()


async def trip(world: World, row: BreakerRow) -> None:
    """Its transition is stored, as a Journal does it."""
    directory, head = await world.store.open_directory(), await world.store.open_journal(world.project.shard)
    epochs = await world.store.claim(directory, "breaker", {row.id: "b-0"})
    draft = EventDraft(
        name=row.name,
        prev="closed",
        curr="open",
        ts_ms=world.clock.now_ms(),
        transition_seq=1,
        reason="threshold_exceeded",
        allow_rate=0.0,
        value=1.0,
        rule={},
        agg={},
    )
    commit = Commit(
        breaker_id=row.id,
        project_id=row.project_id,
        epoch=epochs[row.id],
        events=(draft,),
        state="open",
        allow_rate=0.0,
        transition_seq=1,
        record=None,
        applied_offsets={},
    )
    assert (await world.store.commit(head, [commit]))[1] == ["ok"]


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
    assert feed._watches.keys() == feed._left.keys()  # the board, for the next client, and nobody on it
    assert feed._watches.keys() <= {world.project.id}


async def test_a_project_has_a_bound_of_streams(world: World) -> None:
    bound = world.settings.model_copy(update={"streams_per_project_max": 1})
    world.app = create_app(world.gateway, bound, world.clock, TIMING, owns_gateway=False)
    async with world.app.test_app():
        first = Client(world)
        await soon(lambda: parts(world).feed.stream_count() == 1)
        refused = await world.call("GET", "breakers/state:stream", "project")
        body = await error_of(refused, 429, "rate_limited")
        assert body["details"]["limit"] == "BREAKERS_STREAMS_PER_PROJECT_MAX"
        assert int(refused.headers["Retry-After"]) >= 1
        await first.leave()


async def test_an_organisation_has_a_bound_of_streams_in_all_its_projects(world: World) -> None:
    """Each keeps one of HAProxy's connections: of one organisation they took all, and nobody else could connect."""
    bound = world.settings.model_copy(update={"streams_per_org_max": 2})
    world.app = create_app(world.gateway, bound, world.clock, TIMING, owns_gateway=False)
    org = world.project.org_id
    other = await world.store.create_project(org, world.project.workspace_id, "other", 1)
    async with world.app.test_app():
        feed = parts(world).feed
        first = Client(world)
        await soon(lambda: feed.stream_count() == 1)
        feed.admit(other.id, org)
        second = Client(world)
        await soon(lambda: feed.stream_count() == 2)
        with pytest.raises(Overloaded) as refused:
            feed.admit(other.id, org)
        assert refused.value.details["limit"] == "BREAKERS_STREAMS_PER_ORG_MAX"
        feed.admit(world.other.id, world.other.org_id)
        body = await error_of(await world.call("GET", "breakers/state:stream", "project"), 429, "rate_limited")
        assert body["details"]["limit"] == "BREAKERS_STREAMS_PER_ORG_MAX"
        await first.leave()
        await soon(lambda: feed.stream_count() == 1)
        feed.admit(other.id, org)
        await second.leave()


def test_an_organisation_has_half_of_the_connections_at_most() -> None:
    settings = Settings(replicas=2)
    for environ, most in (({"RAY_SERVE_HAPROXY_MAXCONN": "400"}, 100), ({}, 10_000)):
        streams = OrgStreams.of(settings, environ)
        for _ in range(most):
            streams.admit("one")
            streams.opened("one")
        with pytest.raises(Overloaded):
            streams.admit("one")
        streams.admit("two")
    OrgStreams(0).admit("one")


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
