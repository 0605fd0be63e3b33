"""Store: whoever asks for many changes at once has them in turn with everybody else's, and not more than so many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import thread_time
from typing import Any, NamedTuple

import pytest

from breaker_actors.errors import NotFound, Overloaded, Unavailable
from breaker_actors.sql.database import READER_THREADS
from breaker_actors.store import pending, steps
from breaker_actors.store.rows import BreakerRow
from breaker_actors.store.steps import Steps, Who
from tests.contract.store_world import World, draft
from tests.contract.test_store_bulk import item, replace


class Neighbour(NamedTuple):
    """Another organisation, with a project."""

    org_id: str
    project_id: str


@pytest.fixture
async def neighbour(world: World) -> Neighbour:
    org_id = await world.store.create_org("neighbour", 1)
    workspace = await world.store.create_workspace(org_id, "w", "w", 1)
    return Neighbour(org_id, (await world.store.create_project(org_id, workspace.id, "p", 1)).id)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """No write counts as long, however slow the machine is."""
    monkeypatch.setattr(steps, "LONG_S", 60.0)


def steps_of(world: World) -> Steps:
    found: Steps = world.store._steps  # type: ignore[attr-defined]
    return found


async def rename(world: World, row: BreakerRow, number: int) -> int:
    await world.edit(row.id, name=f"renamed {number}")
    return number


async def waiting_for(turns: steps.Turns, count: int) -> None:
    async with asyncio.timeout(10):
        while sum(len(each) for projects in turns._waiting.values() for each in projects.values()) < count:
            await asyncio.sleep(0.001)


async def test_many_changes_of_one_let_others_in_between(world: World, neighbour: Neighbour) -> None:
    """Twenty wait; somebody else's comes behind one of them, of whatever kind it is."""
    row, held, order = await world.breaker("a"), steps_of(world)._turns, list[str]()
    await held.take(Who("somebody"))

    async def noted(name: str, act: Any) -> None:
        await act
        order.append(name)

    many = [asyncio.create_task(noted("many", rename(world, row, n))) for n in range(20)]
    await waiting_for(held, 20)
    store, (org_id, project_id) = world.store, neighbour
    acts = {
        "breaker": store.create_breaker(project_id, draft("x"), 2),
        "key": store.create_key(org_id, "user", "k", 2),
        "project": store.update_project(project_id, {"name": "other"}, 2),
    }
    others = [asyncio.create_task(noted(name, act)) for name, act in acts.items()]
    await waiting_for(held, 23)
    held.give_back()
    await asyncio.gather(*many, *others)
    assert {name for name in order[:6] if name != "many"} == acts.keys()


async def test_more_than_so_many_are_refused(
    world: World, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "WAITING_MAX", 3)
    row, held = await world.breaker("a"), steps_of(world)._turns
    await held.take(Who("somebody"))
    asked = [asyncio.create_task(rename(world, row, n)) for n in range(3)]
    await waiting_for(held, 3)
    with pytest.raises(Overloaded, match="wait for their turn"):
        await rename(world, row, 4)
    seen: list[Any] = []
    with pytest.raises(Overloaded, match="wait for their turn"):
        await replace(world, item("x"), check=lambda *what: seen.append(what))
    assert seen == [], "nothing is read for what is refused"
    other = asyncio.create_task(world.store.create_breaker(neighbour.project_id, draft("x"), 2))
    await waiting_for(held, 4)
    asked[0].cancel()
    await asyncio.wait([asked[0]])
    asked.append(asyncio.create_task(rename(world, row, 5)))  # whoever goes away makes room
    await waiting_for(held, 4)
    held.give_back()
    assert await asyncio.gather(*asked[1:]) == [1, 2, 5]
    await other


async def test_who_waits_too_long_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "TURN_S", 0.05)
    row, held = await world.breaker("a"), steps_of(world)._turns
    await held.take(Who("somebody"))
    with pytest.raises(Overloaded, match="wait for their turn"):
        await rename(world, row, 1)
    held.give_back()
    assert await rename(world, row, 2) == 2


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write counts as long."""
    monkeypatch.setattr(steps, "LONG_S", 0.0)
    monkeypatch.setattr(steps, "PAUSE_S", 0.0)


@pytest.mark.usefixtures("long")
async def test_who_has_written_for_long_rests(
    world: World, neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He shares a third of the time with the large ones, and nobody else does; after a while he is like all others."""
    row, held = await world.breaker("a"), steps_of(world)._large_turns
    await held.take(Who("somebody"))
    slow = asyncio.create_task(rename(world, row, 1))
    await waiting_for(held, 1)
    monkeypatch.setattr(steps, "LONG_S", 60.0)
    steps_of(world)._slow.pop(neighbour.org_id)
    await asyncio.wait_for(world.store.create_breaker(neighbour.project_id, draft("x"), 2), 5)
    assert not slow.done()
    steps_of(world)._slow[world.org_id] = 0.0  # a while ago
    await asyncio.wait_for(rename(world, row, 2), 5)
    held.give_back()
    assert await slow == 1


@pytest.mark.usefixtures("long")
async def test_a_long_write_that_fails_counts_too(world: World) -> None:
    steps_of(world)._slow.clear()
    with pytest.raises(NotFound):
        await world.edit("0a0a0a0a-0000-4000-8000-000000000009", name="x")
    assert world.org_id in steps_of(world)._slow


async def test_many_short_writes_count_as_a_long_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 40 ms of a core by itself; two or three in a second are no burden, one behind the other they are."""
    monkeypatch.setattr(steps, "LONG_S", 0.1)
    held, loop = steps_of(world), asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    for _ in range(20):
        held._count("patient", 0.04)
        now += 0.4
    assert not held._is_slow("patient")
    for _ in range(3):
        assert not held._is_slow("busy")
        held._count("busy", 0.04)
        now += 0.01
    assert held._is_slow("busy")
    assert not held._is_slow("patient")
    now += steps.SLOW_S
    assert not held._is_slow("busy")
    held._count("busy", 0.04)
    assert not held._is_slow("busy"), "what it took is forgotten by then"


async def test_looks_that_change_nothing_count_as_well(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same set again and again is read, decoded and compared each time, and rests with the large ones then."""
    monkeypatch.setattr(steps, "LONG_S", 0.0)
    await replace(world, *map(item, "abc"))
    held = steps_of(world)
    held._slow.clear()
    held._spent.clear()
    await replace(world, *map(item, "abc"))
    assert held._is_slow(world.org_id)
    rests: list[float] = []

    async def rest(time_s: float) -> None:
        rests.append(time_s)

    monkeypatch.setattr(steps, "pause", rest)
    held._rested = asyncio.get_running_loop().time() + 60.0
    await replace(world, *map(item, "abc"))
    assert len(rests) == 1


@pytest.mark.usefixtures("long")
async def test_steps_of_a_large_change_keep_nothing_else_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They rest by themselves; small changes of the same organisation are none of it."""
    monkeypatch.setattr(steps, "STEP", 1)
    steps_of(world)._slow.clear()
    await replace(world, *map(item, "abc"))
    assert world.org_id not in steps_of(world)._slow


# what a turn is held over


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


class Holdup:
    """Work of a transaction that goes on for as long as it is told to."""

    def __init__(self, spent_s: float = 0.0) -> None:
        self._spent_s = spent_s
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def __call__(self, _: object) -> str:
        self.begun.set()
        assert self.goes_on.wait(30)
        burn(self._spent_s)
        return "done"


def burn(time_s: float) -> None:
    end = thread_time() + time_s
    while thread_time() < end:
        pass


async def test_the_large_turn_is_not_held_in_the_line_of_its_organisations_reads(world: World) -> None:
    """However many reads of its own wait: what a large change looks at is looked at at once."""
    held, holdup = steps_of(world), Holdup()
    reads = [asyncio.create_task(held._db.read(holdup)) for _ in range(3 * READER_THREADS)]
    try:
        await until(holdup.begun.is_set)
        assert await asyncio.wait_for(held.read(Who(world.org_id, "p", True), lambda _: "seen"), 10) == "seen"
    finally:
        holdup.goes_on.set()
        await asyncio.gather(*reads)


async def test_a_large_step_comes_before_all_else_of_its_organisation(world: World) -> None:
    """It holds up the large ones of everybody, and waits for one of each other organisation."""
    held, order = steps_of(world), list[str]()
    await held._turns.take(Who("somebody"))
    small = [Who("a", "1")] * 3 + [Who("a", "2"), Who("b", "1"), Who("b", "1")]
    asked = [
        asyncio.create_task(held.write_small(who, lambda _, name=who.org_id: order.append(name)))  # type: ignore[misc]
        for who in small
    ]
    await waiting_for(held._turns, 6)
    asked.append(asyncio.create_task(held.write_small(Who("a", "2", True), lambda _: order.append("large"))))
    await waiting_for(held._turns, 7)
    held._turns.give_back()
    await asyncio.gather(*asked)
    assert order == ["large", "b", "a", "b", "a", "a", "a"]


async def test_large_ones_rest_by_their_work_and_not_by_their_line(world: World) -> None:
    """Its write waits for the thread for a third of a second, and takes no time by itself."""
    held, holdup, loop = steps_of(world), Holdup(), asyncio.get_running_loop()
    before = asyncio.create_task(held._db.write(holdup))
    await until(holdup.begun.is_set)
    asked = asyncio.create_task(held.write_small(Who(world.org_id, "p", True), lambda _: None))
    await asyncio.sleep(0.3)
    holdup.goes_on.set()
    await asyncio.gather(before, asked)
    assert held._rested - loop.time() < 0.3


@pytest.mark.usefixtures("long")
async def test_who_hangs_up_gives_nothing_away_before_the_end(world: World) -> None:
    """Turns, account and rest are those of the transaction, which goes on."""
    held, holdup, loop = steps_of(world), Holdup(spent_s=0.1), asyncio.get_running_loop()
    held._slow["hasty"] = loop.time() + 60.0
    held._spent.clear()
    asked = asyncio.create_task(held.write_small(Who("hasty"), holdup))
    await until(holdup.begun.is_set)
    asked.cancel()
    await asyncio.wait([asked])
    order = list[str]()

    async def other(name: str, is_large: bool) -> None:
        await held.write_small(Who(name, "", is_large), lambda _: None)
        order.append(name)

    others = [asyncio.create_task(other("small", False)), asyncio.create_task(other("large", True))]
    await waiting_for(held._turns, 1)
    await waiting_for(held._large_turns, 1)
    holdup.goes_on.set()
    begun = loop.time()
    await asyncio.gather(*others)
    assert order == ["small", "large"]
    assert loop.time() - begun > (1 + steps.REST) * 0.1, "it rests as long as if its caller had stayed"
    assert "hasty" in held._spent


@pytest.mark.parametrize("act", ["read", "write_small"])
async def test_what_goes_on_without_its_caller_counts(world: World, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    held, holdup = steps_of(world), Holdup(spent_s=0.05)
    counted: list[tuple[str, float]] = []
    monkeypatch.setattr(held, "_count", lambda *given: counted.append(given))
    asked = asyncio.create_task(getattr(held, act)(Who("hasty"), holdup))
    await until(holdup.begun.is_set)
    asked.cancel()
    await asyncio.wait([asked])
    holdup.goes_on.set()
    await until(lambda: counted)
    ((who, spent_s),) = counted
    assert who == "hasty"
    assert spent_s >= 0.05


async def test_who_hangs_up_in_a_line_has_asked_for_nothing(world: World) -> None:
    """His turns are others', and nothing of it is written."""
    held, done = steps_of(world), list[str]()
    held._slow["hasty"] = asyncio.get_running_loop().time() + 60.0
    await held._turns.take(Who("somebody"))
    asked = asyncio.create_task(held.write_small(Who("hasty"), lambda _: done.append("hasty")))
    await waiting_for(held._turns, 1)
    asked.cancel()
    await asyncio.wait([asked])
    held._turns.give_back()
    await asyncio.wait_for(held.write_small(Who("b", "", True), lambda _: done.append("b")), 10)
    assert done == ["b"]


# what is on its way


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "PENDING_MAX", 4)
    monkeypatch.setattr(pending, "LOOKED_FROM", 1)


@pytest.mark.usefixtures("few")
async def test_so_many_changes_are_on_their_way(world: World, neighbour: Neighbour) -> None:
    """Of an organisation, over all its projects; then it waits for them, and others don't."""
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    for name in "ab":
        await world.breaker(name)
        await world.store.create_breaker(other.id, draft(name), 1)
    with pytest.raises(Overloaded, match="on their way"):
        await world.breaker("c")
    await world.store.create_breaker(neighbour.project_id, draft("x"), 2)
    await world.settle()
    await world.breaker("c")
    rows, _ = await world.store.list_breakers(world.project_id)
    assert [row.name for row in rows] == ["a", "b", "c"]


async def test_so_many_bytes_are_on_their_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LOOKED_FROM", 1)
    for name in "ab":
        await world.breaker(name)
    monkeypatch.setattr(pending, "PENDING_BYTES_MAX", 100)
    with pytest.raises(Overloaded, match="on their way"):
        await world.breaker("c")


@pytest.mark.usefixtures("few")
async def test_steps_wait_until_what_came_before_is_carried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP", 1)
    monkeypatch.setattr(steps, "CARRIED_AGAIN_S", 0.01)
    asked = asyncio.create_task(replace(world, *map(item, "abcdef")))
    most = 0
    async with asyncio.timeout(20):
        while not asked.done():
            count = await world.store.count_pending(100)
            most = max(most, count)
            if count == 2:
                await asyncio.sleep(0.05)
                assert await world.store.count_pending(100) == 2
                await world.settle()
            await asyncio.sleep(0.001)
    assert [row.name for row in (await asked).rows] == list("abcdef")
    assert most == 2


@pytest.mark.usefixtures("few")
async def test_steps_that_wait_in_vain_say_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done stays, the project is free, the same replace again does the rest."""
    monkeypatch.setattr(steps, "STEP", 1)
    monkeypatch.setattr(steps, "CARRIED_AGAIN_S", 0.01)
    monkeypatch.setattr(steps, "CARRIED_S", 0.05)
    with pytest.raises(Unavailable, match="on their way"):
        await replace(world, *map(item, "abcd"))
    assert len((await world.store.list_breakers(world.project_id))[0]) == 2
    await world.settle()
    monkeypatch.setattr(pending, "PENDING_MAX", 100)
    assert len((await replace(world, *map(item, "abcd"))).rows) == 4
