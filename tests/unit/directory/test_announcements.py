"""Announcements to several Journals: none is left out, and one that is away holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from breaker_actors.directory.announcements import Announcements
from breaker_actors.errors import Unavailable
from breaker_actors.telemetry.guard import Background


class Net:
    """Journals by name: away, or slow until told otherwise; `heard` is what each was told."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.slow: dict[str, asyncio.Event] = {}
        self.heard: list[tuple[str, list[str]]] = []

    async def call(self, actor: str, method: str, kind: str, project_ids: list[str]) -> None:
        assert (method, kind) == ("announce", "config")
        if actor in self.slow:
            await self.slow[actor].wait()
        if actor in self.away:
            raise Unavailable(f"{actor} does not answer")
        self.heard.append((actor, project_ids))


class World:
    def __init__(self) -> None:
        self.net, self.tasks = Net(), Background()
        net: Any = self.net
        self.told = Announcements(net, self.tasks)
        self.told.extend(2)

    def of(self, shard: int) -> list[list[str]]:
        return [projects for name, projects in self.net.heard if name == f"journal-{shard}"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World()
    yield found
    await found.tasks.stop()


async def test_what_one_does_not_hear_waits_for_it(world: World) -> None:
    world.net.away = {"journal-1"}
    for project in ("a", "b"):
        world.told.note([project])
        await world.told.tell()
    assert (world.of(0), world.of(1), world.told.is_left()) == ([["a"], ["b"]], [], True)
    world.net.away = set()
    world.told.note(["c"])
    await world.told.tell()
    while world.told.is_left() or world.told._telling:
        await asyncio.sleep(0)
    assert (world.of(0)[-1], world.of(1)) == (["c"], [["a", "b", "c"]])


async def test_nothing_is_lost_where_nobody_hears(world: World) -> None:
    world.net.away = {"journal-0", "journal-1"}
    world.told.note(["a"])
    await world.told.tell()
    assert (world.net.heard, world.told.is_left()) == ([], True)
    world.net.away = {"journal-0"}
    await world.told.tell()
    assert (world.of(0), world.of(1)) == ([], [["a"]])


async def test_one_that_hangs_is_not_waited_for(world: World) -> None:
    world.net.slow["journal-0"] = hung = asyncio.Event()
    world.told.note(["a"])
    await world.told.tell()
    world.told.note(["b"])
    await world.told.tell()
    assert (world.of(0), world.of(1)) == ([], [["a"], ["b"]])
    assert not world.told._waiting[1]
    hung.set()
    del world.net.slow["journal-0"]
    while world.told._telling:
        await asyncio.sleep(0)
    assert (world.of(0), world.told.is_left()) == ([["a"]], True)
    await world.told.tell()  # nothing new: what the other has not heard
    while world.told._telling:
        await asyncio.sleep(0)
    assert (world.of(0), world.told.is_left()) == ([["a"], ["b"]], False)


async def test_who_comes_while_one_is_told_waits_for_the_next_call(world: World) -> None:
    world.net.away = {"journal-1"}
    world.net.slow["journal-0"] = slow = asyncio.Event()
    world.told.note(["a"])
    first = asyncio.create_task(world.told.tell())
    for _ in range(5):
        await asyncio.sleep(0)
    world.told.note(["b"])
    second = asyncio.create_task(world.told.tell())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    slow.set()
    await asyncio.gather(first, second)
    assert world.of(0) == [["a"], ["b"]]
