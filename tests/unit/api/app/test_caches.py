"""What a replica remembers, and when it does not."""

from __future__ import annotations

import asyncio
from typing import Any

from api.context.replica import EXTENSION, Replica
from api.lookup.caches import Caches, Lru
from breaker_actors.messages import SESSIONS, FeedEntry
from breaker_actors.store.rows import KeyRow
from tests.support.web_world import World, soon

ROW = KeyRow(id="k", org_id="o", project_id=None, kind="user", name="n", key_prefix="eb", inserted_ms=0)


class CountingStore:
    """Answers every key but "unknown", and counts the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None

    async def find_key(self, key: str) -> KeyRow | None:
        self.asked.append(key)
        if self.gate is not None:
            await self.gate.wait()
        return None if key == "unknown" else ROW


def caches(store: Any, fresh: bool = True) -> Caches:
    return Caches(store, lambda: fresh, lambda: 0.0)


def test_the_least_used_goes_first() -> None:
    found: Lru[int] = Lru(2)
    found.put("a", 1)
    found.put("b", 2)
    assert found.get("a") == 1
    found.put("c", 3)
    assert (found.get("a"), found.get("b"), found.get("c"), len(found)) == (1, None, 3, 2)


async def test_a_key_is_asked_for_once_and_never_kept_itself() -> None:
    store = CountingStore()
    made = caches(store)
    for _ in range(3):
        assert await made.key("secret") == ROW
    assert store.asked == ["secret"]
    assert "secret" not in str(vars(made._keys))


async def test_what_is_not_there_is_asked_for_every_time() -> None:
    store = CountingStore()
    made = caches(store)
    for _ in range(2):
        assert await made.key("unknown") is None
    assert await made.key("") is None
    assert store.asked == ["unknown", "unknown"]


async def test_a_silent_feed_means_no_memory() -> None:
    store = CountingStore()
    made = caches(store, fresh=False)
    for _ in range(2):
        await made.key("a")
    assert store.asked == ["a", "a"]


async def test_a_read_that_began_before_a_drop_is_not_kept() -> None:
    store = CountingStore()
    store.gate = asyncio.Event()
    made = caches(store)
    reading = asyncio.create_task(made.key("a"))
    await asyncio.sleep(0)
    made.forget_access()
    store.gate.set()
    await reading
    await made.key("a")
    assert store.asked == ["a", "a"]


async def test_sessions_that_end_have_no_key_asked_for_again() -> None:
    store = CountingStore()
    made = caches(store)
    await made.key("secret")
    store.gate = asyncio.Event()
    loading = asyncio.ensure_future(made.key("another"))
    await asyncio.sleep(0)
    made.forget_access(SESSIONS)
    store.gate.set()
    await loading
    for name in ("secret", "another"):
        assert await made.key(name) == ROW
    assert store.asked == ["secret", "another"]


async def test_the_feed_tells_the_caches_what_to_forget(world: World) -> None:
    parts: Replica = world.app.extensions[EXTENSION]
    assert await parts.caches.project(world.project.id) == world.project
    await world.store.update_project(world.project.id, {"name": "changed elsewhere"}, 2)
    assert await parts.caches.project(world.project.id) == world.project, "nobody has said so"
    for kind, name in (("config", "changed elsewhere"), ("keys", "again")):
        await world.store.update_project(world.project.id, {"name": name}, 3)
        world.gateway.say(FeedEntry(1, kind, world.project.id))  # type: ignore[arg-type]
        await soon(lambda: not len(parts.caches._projects))
        found = await parts.caches.project(world.project.id)
        assert found is not None
        assert found.name == name


async def test_a_feed_not_heard_from_for_a_second_is_not_trusted(world: World) -> None:
    parts: Replica = world.app.extensions[EXTENSION]
    await parts.caches.project(world.project.id)
    world.gateway.down = True
    polls = world.gateway.polls
    world.gateway.say()
    await soon(lambda: world.gateway.polls > polls)
    world.clock.seconds += 1.5
    assert not parts.feed.fresh()
    await world.store.update_project(world.project.id, {"name": "unheard of"}, 2)
    found = await parts.caches.project(world.project.id)
    assert found is not None
    assert found.name == "unheard of"
