"""Store: writes under an Idempotency-Key are done once and answered alike, and forgotten in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select

from breaker_actors.errors import IdempotencyKeyReused, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.config import idempotency as module
from breaker_actors.store.mappings.model import MappingTo, SeriesMatcher
from breaker_actors.store.rows import KEPT_MS, ChannelDraft, MappingDraft, Once, Repeated, RouterDraft
from breaker_actors.store.sql_store import SqlStore
from tests.contract.store_world import World, draft

CREATES: dict[str, Callable[[World, Once], Awaitable[Any]]] = {
    "workspace": lambda w, once: w.store.create_workspace(w.org_id, "n", "n", 5, once=once),
    "project": lambda w, once: w.store.create_project(w.org_id, w.workspace_id, "n", 5, once=once),
    "key": lambda w, once: w.store.create_key(w.org_id, "project", "n", 5, w.project_id, once=once),
    "channel": lambda w, once: w.store.create_channel(
        w.project_id, ChannelDraft(channel="webhook", config={"url": "https://x.example"}), 5, once=once
    ),
    "breaker": lambda w, once: w.store.create_breaker(w.project_id, draft("n"), 5, once=once),
    "mapping": lambda w, once: w.store.create_mapping(
        w.project_id,
        MappingDraft(matchers=(SeriesMatcher(field="name", op="=", value="n"),), to=MappingTo(router="label.router")),
        5,
        once=once,
    ),
    "router": lambda w, once: w.store.create_router(w.project_id, RouterDraft(name="n"), 5, once=once),
    "secret": lambda w, once: w.store.rotate_secret(w.project_id, 5, 1_000, once=once),
}


def asked(world: World, key: str = "k", now_ms: int = 5, body: str = "body", what: str = "POST /x") -> Once:
    return Once(
        org_id=world.org_id,
        project_id=world.project_id,
        operation=what,
        key=key,
        fingerprint=body,
        status=201,
        answer=lambda made: repr(made),
        now_ms=now_ms,
    )


async def counts(world: World) -> dict[str, int]:
    tables = (t.workspaces, t.projects, t.api_keys, t.channels, t.breakers, t.routers, t.mappings, t.changes, t.audit)
    store: Any = world.store
    return await store._db.read(lambda c: {table.name: len(c.execute(select(table)).all()) for table in tables})


@pytest.mark.parametrize("kind", CREATES)
async def test_ten_equal_creates_at_once_make_one_thing(
    world: World, make_store: Callable[[], Awaitable[SqlStore]], kind: str
) -> None:
    """From two processes. The others get the answer of the one that did it."""
    stores = [world.store, await make_store()]
    where = (world.org_id, world.workspace_id, world.project_id, 0, world.journal)
    worlds = [World(stores[n % 2], *where) for n in range(10)]
    results = await asyncio.gather(*(CREATES[kind](w, asked(w)) for w in worlds), return_exceptions=True)
    (made,) = [result for result in results if not isinstance(result, Repeated)]
    assert len(results) == 10
    after = await counts(world)
    repeated = [result for result in results if isinstance(result, Repeated)]
    assert {r.status for r in repeated} == {201}
    assert len({r.body for r in repeated}) == 1
    if kind in ("breaker", "router"):
        assert {tuple(r.change_ids) for r in repeated} == {tuple(made[1])}
    assert "body" != repeated[0].body != ""
    await CREATES[kind](world, asked(world, key="another"))
    more = await counts(world)
    assert (more["audit"], after["audit"] - more["audit"]) == (after["audit"] + 1, -1)


async def test_another_request_under_the_key_is_refused(world: World) -> None:
    await CREATES["breaker"](world, asked(world))
    with pytest.raises(IdempotencyKeyReused):
        await CREATES["breaker"](world, asked(world, body="another"))
    with pytest.raises(Repeated):
        await CREATES["breaker"](world, asked(world))
    await CREATES["breaker"](world, asked(world, what="POST /y", body="another"))


async def test_a_create_that_fails_uses_no_key_up(world: World) -> None:
    with pytest.raises(NotFound):
        await world.store.create_router(world.project_id, RouterDraft(breaker_ids=("x",)), 5, once=asked(world))
    await CREATES["router"](world, asked(world, body="another"))


async def test_keys_are_forgotten_after_a_day(world: World) -> None:
    await CREATES["breaker"](world, asked(world, now_ms=5))
    with pytest.raises(Repeated):
        await CREATES["breaker"](world, asked(world, now_ms=5 + KEPT_MS - 1))
    await CREATES["breaker"](world, asked(world, now_ms=5 + KEPT_MS, body="another"))
    assert await world.store.prune_idempotency_keys(5 + KEPT_MS) == 0
    assert await world.store.prune_idempotency_keys(6 + KEPT_MS) == 1


async def test_an_organisation_has_a_bound_of_keys(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, counted."""
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    forgotten = []
    for n in range(5):
        once = asked(world, key=str(n))
        await CREATES["workspace"](world, once)
        forgotten.append(once.forgotten)
    assert forgotten == [0, 0, 0, 1, 1]
    with pytest.raises(Repeated):
        await CREATES["workspace"](world, asked(world, key="2"))
    await CREATES["workspace"](world, asked(world, key="1"))


async def test_the_newest_is_never_forgotten_for_its_size(world: World) -> None:
    """What went before goes, as it takes more than the share is."""
    store: Any = world.store
    large = asked(world, key="2")
    large.answer = lambda made: "x" * (65 << 20)
    await CREATES["workspace"](world, asked(world, key="1"))
    await CREATES["workspace"](world, large)
    assert large.forgotten == 1
    with pytest.raises(Repeated):
        await CREATES["workspace"](world, large)
    assert len(await store._db.read(lambda c: c.execute(select(t.idempotency_keys.c.key)).all())) == 1


async def test_answers_are_sealed_and_go_with_their_project(world: World) -> None:
    _, text = await CREATES["key"](world, asked(world))
    store: Any = world.store
    rows = await store._db.read(lambda c: c.execute(select(t.idempotency_keys)).all())
    assert len(rows) == 1
    assert text not in repr(rows)
    assert text.encode() not in rows[0].sealed
    await world.store.delete_project(world.project_id, 10)
    assert await store._db.read(lambda c: c.execute(select(t.idempotency_keys)).all()) == []
