"""What a replica asks the store for when an id is not remembered: no more than that id, and once for all who ask."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event

from api.context.replica import EXTENSION
from api.lookup import caches as caching
from api.lookup.caches import Caches
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Unavailable
from breaker_actors.store.config import routers
from breaker_actors.store.rows import BreakerDraft, BreakerItem
from tests.support.fake_gateway import NOW_MS, FakeClock
from tests.support.web_world import RULE, World

SAMPLE = {"metric": "latency", "value": 1.0, "ts_ms": NOW_MS}
TABLES = ("routers", "breakers", "links")


class Plans:
    """The statements that read tables of configuration, and the rows they gave."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.rows = 0

    def note(self, _c: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT") and any(f"FROM {table}" in statement for table in TABLES):
            self.statements.append(statement)
            copy = cursor.connection.cursor()
            self.rows += len(copy.execute(statement, parameters).fetchall())


@pytest.fixture
def plans() -> Iterator[Plans]:
    found = Plans()
    event.listen(Engine, "after_cursor_execute", found.note)
    yield found
    event.remove(Engine, "after_cursor_execute", found.note)


async def fill(world: World, count: int) -> list[str]:
    """So many breakers with a router each; the ids of the routers."""
    items = [BreakerItem(rule=parse_rule(RULE), name=f"b{n}") for n in range(count)]
    done = await world.store.replace_breakers(world.project.id, items, lambda *_: None, world.clock.now_ms())
    return [row.router_ids[0] for row in done.rows]


async def ingest(world: World, router_id: str) -> int:
    return (await world.call("POST", "ingest", None, json=[SAMPLE | {"router_id": router_id}])).status_code


async def test_an_unknown_id_among_many_reads_no_row(world: World, plans: Plans) -> None:
    await fill(world, 1_000)
    plans.statements.clear()
    plans.rows = 0
    unknown = str(uuid4())
    assert await ingest(world, unknown) == 422
    assert (await world.call("GET", f"breakers/{unknown}/state")).status_code == 404
    for asked in ({"breaker_ids": [unknown]}, {"router_ids": [unknown]}):
        assert (await world.call("POST", "breakers/state:batch", json=asked)).status_code == 200
    assert len(plans.statements) == 4
    assert plans.rows == 0


async def test_known_ids_read_their_own_rows_alone(world: World, plans: Plans) -> None:
    known = await fill(world, 100)
    plans.rows = 0
    for router_id in (known[0], known[0], known[1]):
        assert await ingest(world, router_id) == 202
    assert plans.rows == 2
    answer = await world.call("POST", "breakers/state:batch", json={"router_ids": known[:3]})
    assert len((await answer.get_json())["states"]) == 3


async def test_a_body_without_a_router_of_ours_asks_for_nothing(world: World, plans: Plans) -> None:
    plans.statements.clear()
    for name in ("", "r", "\x00", "\ud800"):
        assert await ingest(world, name) in (400, 422)
    assert plans.statements == []


async def test_a_new_router_is_known_at_once_though_it_was_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    router_id = str(uuid4())
    assert await ingest(world, router_id) == 422
    monkeypatch.setattr(routers, "new_id", lambda: router_id)
    assert (await world.call("POST", "routers", "admin", json={})).status_code == 201
    assert await ingest(world, router_id) == 202


async def test_a_new_breaker_is_known_at_once_though_it_was_asked_for(world: World) -> None:
    """Whoever chooses its id may have asked any replica for it: that it was not there is not remembered anywhere."""
    breaker_id = str(uuid4())
    assert (await world.call("GET", f"breakers/{breaker_id}/state")).status_code == 404
    draft = BreakerDraft(rule=parse_rule(RULE), id=breaker_id)
    await world.store.create_breaker(world.project.id, draft, world.clock.now_ms())
    assert (await world.call("GET", f"breakers/{breaker_id}/state")).status_code == 200


class GatedStore:
    """Knows the routers it is told of, counts queries, and holds them while `gate` is closed."""

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}
        self.asked: list[list[str] | None] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running: Counter[str] = Counter()
        self.fault: Exception | None = None

    async def router_modes(self, project_id: str, ids: list[str] | None = None) -> dict[str, str]:
        self.asked.append(ids)
        self.running[project_id] += 1
        assert self.running[project_id] == 1, "one at a time"
        found = {id_: mode for id_, mode in self.modes.items() if ids is None or id_ in ids}
        await self.gate.wait()
        self.running[project_id] -= 1
        if self.fault:
            raise self.fault
        return found


def made(store: GatedStore, clock: FakeClock | None = None) -> Caches:
    return Caches(store, lambda: True, (clock or FakeClock()).monotonic)  # type: ignore[arg-type]


async def test_fifty_misses_at_once_make_one_query() -> None:
    store = GatedStore()
    caches = made(store)
    same, ids = str(uuid4()), [str(uuid4()) for _ in range(50)]
    await asyncio.gather(*(caches.routers("p", [same]) for _ in range(50)))
    assert store.asked == [[same]]
    await asyncio.gather(*(caches.routers("p", [id_]) for id_ in ids))
    assert store.asked[1:] == [sorted(ids)]


async def test_nobody_joins_a_query_that_may_have_begun_before_a_creation() -> None:
    store, router_id = GatedStore(), str(uuid4())
    caches = made(store)
    store.gate.clear()
    early = asyncio.create_task(caches.routers("p", [router_id]))
    while not store.asked:
        await asyncio.sleep(0)
    store.modes[router_id] = "static"
    caches.forget_project("p")
    late = asyncio.create_task(caches.routers("p", [router_id]))
    await asyncio.sleep(0)
    store.gate.set()
    assert await early == {}
    assert await late == {router_id: False}
    assert await caches.routers("p", [router_id]) == {router_id: False}
    assert len(store.asked) == 2


async def test_what_is_not_there_is_remembered_for_a_second() -> None:
    store, clock, router_id = GatedStore(), FakeClock(), str(uuid4())
    caches = made(store, clock)
    for _ in range(3):
        assert await caches.routers("p", [router_id]) == {}
    assert len(store.asked) == 1
    store.modes[router_id] = "random"
    clock.seconds += caching.ABSENT_S
    assert await caches.routers("p", [router_id]) == {router_id: True}


async def test_what_is_not_there_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest goes first and is asked for again; many at once are a query for the project instead."""
    monkeypatch.setattr(caching, "ABSENT_MAX", 3)
    monkeypatch.setattr(caching, "IDS_PER_QUERY_MAX", 4)
    store = GatedStore()
    caches = made(store)
    ids = [str(uuid4()) for _ in range(5)]
    for id_ in ids[:4]:
        await caches.routers("p", [id_])
    assert len(caches._absent) == 3
    await caches.routers("p", [ids[3]])
    await caches.routers("p", [ids[0]])
    assert store.asked == [[id_] for id_ in (*ids[:4], ids[0])]
    caches.forget_project("p")
    await caches.routers("p", ids)
    assert store.asked[-1] is None


async def test_a_failed_query_fails_for_those_who_wait_and_for_nobody_later() -> None:
    store, router_id = GatedStore(), str(uuid4())
    caches = made(store)
    store.modes[router_id], store.fault = "static", Unavailable("away")
    results = await asyncio.gather(*(caches.routers("p", [router_id]) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    store.fault = None
    assert await caches.routers("p", [router_id]) == {router_id: False}


async def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    store, router_id = GatedStore(), str(uuid4())
    caches = made(store)
    store.modes[router_id] = "static"
    store.gate.clear()
    leaves, stays = (asyncio.create_task(caches.routers("p", [router_id])) for _ in range(2))
    while not store.asked:
        await asyncio.sleep(0)
    leaves.cancel()
    store.gate.set()
    assert await stays == {router_id: False}


async def test_a_change_of_a_name_leaves_the_others_remembered(world: World) -> None:
    """It is seen by whoever asks next, and costs no other tenant a read."""
    asked: Counter[str] = Counter()
    caches = world.app.extensions[EXTENSION].caches
    store = world.store

    def counted(name: str) -> Any:
        real = getattr(store, name)

        async def call(*args: Any) -> Any:
            asked[name, args[0]] += 1  # type: ignore[index]
            return await real(*args)

        return call

    await world.call("GET", f"/v1/projects/{world.other.id}/status", "stranger")
    for name in ("find_key", "get_project"):
        setattr(store, name, counted(name))
    version = await store.access_version()
    for name in ("one", "two"):
        assert (await world.call("PATCH", world.path, "admin", json={"name": name})).status_code == 200
        assert (await (await world.call("GET", world.path, "admin")).get_json())["name"] == name
        assert (await world.call("GET", f"/v1/projects/{world.other.id}/status", "stranger")).status_code == 200
    assert caches.knows_key(world.keys["stranger"])
    assert ("get_project", world.other.id) not in asked
    assert ("find_key", world.keys["stranger"]) not in asked
    assert await store.access_version() == version, "else the Journal has every replica forget everybody"
