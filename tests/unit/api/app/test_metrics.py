"""What a replica counts and logs of the requests it answers and the streams it feeds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from api.context.replica import EXTENSION, Replica
from api.middleware import request_log as observing
from api.routes.stream import follow
from api.stream.feed import Feed
from breaker_actors.messages import AppendResult, Part
from breaker_actors.telemetry import logs
from breaker_actors.telemetry.meters import Meters
from tests.support.fake_gateway import NOW_MS, moved
from tests.support.web_world import TIMING, World, soon

NIL = "00000000-0000-0000-0000-000000000000"


def parts(world: World) -> Replica:
    found: Replica = world.app.extensions[EXTENSION]
    return found


def said(meters: Meters, name: str) -> dict[tuple[str, ...], float]:
    """Every series of a counter or histogram that is not zero, by its label values."""
    counted = {key[1:]: n for key, n in meters.counters.items() if key[0] == name and n}
    return counted | {key[1:]: sum(b.counts) for key, b in meters.histograms.items() if key[0] == name}


def sample(router_id: str, **more: Any) -> dict[str, Any]:
    return {"router_id": router_id, "metric": "latency", "ts_ms": NOW_MS, "value": 1} | more


# requests


async def test_requests_are_timed_by_group_of_routes_and_status(world: World) -> None:
    meters = parts(world).meters
    await world.call("GET", "breakers")
    await world.call("GET", f"breakers/{NIL}")
    await world.call("GET", "breakers", key="nobody")
    await world.call("GET", "/nowhere")
    await world.call("GET", "/api/healthz", key=None)
    assert said(meters, "breakers_http_request_seconds") == {
        ("breakers", "2xx"): 1,
        ("breakers", "4xx"): 2,
        ("none", "4xx"): 1,
        ("health", "2xx"): 1,
    }


async def test_a_refusal_for_too_many_requests_stands_for_itself(world: World) -> None:
    for _ in range(50 * world.settings.rate_events_per_s):  # the budget refills meanwhile
        answer = await world.call("GET", "events")
        if answer.status_code == 429:
            break
    assert answer.status_code == 429
    assert said(parts(world).meters, "breakers_http_request_seconds")["events", "429"] == 1


async def test_samples_and_requests_are_counted_by_what_became_of_them(world: World) -> None:
    row, meters = await world.breaker(), parts(world).meters
    router_id = row.router_ids[0]

    async def post(*samples: dict[str, Any]) -> int:
        return (await world.call("POST", "ingest", None, json=list(samples))).status_code

    assert await post(sample(router_id), sample(router_id), sample(NIL), sample(router_id, value="x")) == 202
    assert await post(sample(NIL), sample(router_id, ts_ms=1), sample(router_id, ts_ms=NOW_MS * 2)) == 422
    assert await post() == 202
    assert (await world.call("POST", "ingest", None, data=b"{")).status_code == 400
    for word, status in (("duplicate", 202), ("full", 429), ("failed", 503), ("not_owner", 503)):
        world.gateway.word = word
        assert await post(sample(router_id)) == status
    assert said(meters, "breakers_ingest_requests_total") == {
        ("accepted",): 2,
        ("invalid",): 2,
        ("duplicate",): 1,
        ("full",): 1,
        ("unavailable",): 2,
    }
    assert said(meters, "breakers_samples_accepted_total") == {(): 3}
    assert said(meters, "breakers_samples_rejected_total") == {
        ("invalid_router_id",): 2,
        ("invalid_value",): 1,
        ("ts_ms_too_old",): 1,
        ("ts_ms_in_future",): 1,
        ("full",): 1,
        ("unavailable",): 2,
    }


async def test_more_bad_samples_than_are_listed_are_all_counted(world: World) -> None:
    await world.breaker()
    await world.call("POST", "ingest", None, json=[sample(NIL)] * 300)
    assert said(parts(world).meters, "breakers_samples_rejected_total") == {("invalid_router_id",): 300}


async def test_a_request_of_which_a_part_found_no_room_counts_as_a_whole(world: World) -> None:
    """It has to be sent again as a whole; what was stored is recognised then."""
    rows, meters = [await world.breaker(), await world.breaker()], parts(world).meters

    async def ingest(project_id: str, sent: list[Part], org_id: str) -> list[AppendResult]:
        return [AppendResult("ok", 1), AppendResult("full")]

    world.gateway.ingest = ingest  # type: ignore[method-assign, assignment]
    asked = [sample(row.router_ids[0]) for row in rows]
    assert (await world.call("POST", "ingest", None, json=asked)).status_code == 429
    assert said(meters, "breakers_samples_rejected_total") == {("full",): 2}
    assert said(meters, "breakers_samples_accepted_total") == {}


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((202, "accepted"), (400, "invalid"), (401, "unauthorized"), (404, "invalid"), (413, "invalid")),
        *((422, "invalid"), (429, "limited"), (500, "failed"), (503, "unavailable")),
    ],
)
def test_outcomes_of_ingest_requests_by_status(status: int, outcome: str) -> None:
    assert observing.outcome_of(status) == outcome


# logs


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    before, handlers = structlog.get_config(), list(logging.getLogger().handlers)
    yield
    structlog.configure(**before)
    logging.getLogger().handlers[:] = handlers


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


Captured = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("logging_as_before")
async def test_requests_that_go_well_are_not_logged(world: World, capsys: Captured) -> None:
    row = await world.breaker()
    logs.configure("api")
    await world.call("POST", "ingest", None, json=[sample(row.router_ids[0])])
    await world.call("GET", "breakers", key="nobody")
    assert lines(capsys) == []


@pytest.mark.usefixtures("logging_as_before")
async def test_a_failure_is_logged_under_the_id_that_the_caller_sees(world: World, capsys: Captured) -> None:
    row = await world.breaker()
    logs.configure("api")

    async def ingest(project_id: str, sent: list[Part], org_id: str) -> list[AppendResult]:
        raise RuntimeError(f"no way with {world.keys['user']}")

    world.gateway.ingest = ingest  # type: ignore[method-assign, assignment]
    answer = await world.call(
        "POST", "ingest?x=1", "user", json=[sample(row.router_ids[0])], headers={"X-Request-ID": "mine-1"}
    )
    assert (answer.status_code, answer.headers["X-Request-ID"]) == (500, "mine-1")
    failed, request = lines(capsys)
    assert (failed["event"], failed["request_id"]) == ("request_failed", "mine-1")
    assert "in ingest" in failed["traceback"]
    assert world.keys["user"] not in json.dumps([failed, request])
    assert {name: request[name] for name in ("event", "level", "request_id", "method", "route", "status")} == {
        "event": "request",
        "level": "error",
        "request_id": "mine-1",
        "method": "POST",
        "route": "/v1/projects/<project_id>/ingest",
        "status": 500,
    }
    assert request["duration_ms"] >= 0


@pytest.mark.usefixtures("logging_as_before")
async def test_a_slow_request_is_logged(world: World, capsys: Captured) -> None:
    logs.configure("api")

    async def take_long(store: Any = None) -> None:
        world.clock.seconds += 1.25

    world.gateway.ready = take_long  # type: ignore[method-assign]
    answer = await world.call("GET", "/api/readyz")
    (line,) = [line for line in lines(capsys) if line["event"] == "request"]
    assert (line["level"], line["status"], line["duration_ms"]) == ("warning", 200, 1250)
    assert line["request_id"] == answer.headers["X-Request-ID"]


@pytest.mark.usefixtures("logging_as_before")
async def test_requests_at_the_same_time_keep_their_ids_apart(world: World, capsys: Captured) -> None:
    logs.configure("api")
    both = asyncio.Barrier(2)

    async def fail(*_: object) -> None:
        await both.wait()
        structlog.get_logger().info("inside")
        raise RuntimeError

    path = f"breakers/{(await world.breaker()).id}/state"
    world.gateway.states = fail  # type: ignore[method-assign, assignment]
    answers = [world.call("GET", path, headers={"X-Request-ID": name}) for name in ("one", "two")]
    await asyncio.gather(*answers)
    ids = [line["request_id"] for line in lines(capsys) if line["event"] == "inside"]
    assert sorted(ids) == ["one", "two"]


# streams


class Listener:
    """A client that reads as fast as it may, until `hold` is set."""

    def __init__(self, feed: Feed, project_id: str) -> None:
        self.got = 0
        self.reads = asyncio.Event()
        self.reads.set()
        self.task = asyncio.create_task(self._run(feed, project_id))

    async def _run(self, feed: Feed, project_id: str) -> None:
        async for _ in follow(feed, project_id, TIMING.snapshot_s):
            self.got += 1
            await self.reads.wait()

    async def end(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def listen(world: World) -> Listener:
    listener = Listener(parts(world).feed, world.project.id)
    await soon(lambda: listener.got)
    return listener


async def test_streams_are_counted_when_they_open_and_why_they_end(world: World) -> None:
    row, meters, feed = await world.breaker(), parts(world).meters, parts(world).feed
    leaves, stays = await listen(world), await listen(world)
    meters.refresh()
    assert meters.value("breakers_stream_clients") == 2
    await leaves.end()
    feed.cut_all()
    await soon(stays.task.done)
    slow = await listen(world)
    slow.reads.clear()
    for n in range(3 * world.settings.subscriber_queue_max):
        state = "open" if n % 2 else "closed"
        world.gateway.say(moved(world.project.id, row.id, state, 0.0, n + 1, n + 1))
    await soon(slow.task.done)
    meters.refresh()
    assert meters.value("breakers_stream_clients") == 0
    assert said(meters, "breakers_streams_opened_total") == {(): 3}
    assert said(meters, "breakers_streams_closed_total") == {("left",): 1, ("slow",): 1, ("stopped",): 1}
    assert 0 < meters.value("breakers_stream_messages_total") < world.settings.subscriber_queue_max
    # The board stays for who comes next.
    assert said(meters, "breakers_board_loads_total") == {("ok",): 1}


async def test_streams_of_a_project_that_is_gone_say_so(world: World) -> None:
    listener, meters = await listen(world), parts(world).meters
    await world.store.delete_project(world.project.id, world.clock.now_ms())
    world.gateway.forget()
    await soon(listener.task.done)
    assert said(meters, "breakers_streams_closed_total") == {("gone",): 1}
    assert meters.value("breakers_feed_resets_total") == 2


async def test_streams_beyond_the_bound_and_a_silent_feed_are_counted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    meters = parts(world).meters
    refuse: Callable[[str], Awaitable[None] | int] = lambda project_id: world.settings.streams_per_project_max  # noqa: E731
    monkeypatch.setattr(parts(world).feed, "stream_count", refuse)
    assert (await world.call("GET", "breakers/state:stream")).status_code == 429
    assert meters.value("breakers_streams_refused_total") == 1
    world.gateway.down = True
    await soon(lambda: meters.value("breakers_feed_failures_total"))


async def test_key_uses_that_cannot_be_written_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from breaker_actors.errors import Unavailable

    async def fail(uses: dict[str, int]) -> None:
        raise Unavailable("no")

    monkeypatch.setattr("api.lookup.key_usage.WRITE_S", 0.0)
    monkeypatch.setattr(world.store, "touch_keys", fail)
    await world.call("GET", "breakers")
    await soon(lambda: parts(world).meters.value("breakers_key_uses_unwritten_total") == 1)
