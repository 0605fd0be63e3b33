"""Store: bulk replaces and ends of projects take steps, between which all other writers have their turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select, update

from breaker_actors.errors import BreakerExists, Invalid, NotFound, Unavailable
from breaker_actors.store import steps
from breaker_actors.store import tables as t
from breaker_actors.store.config import bulk_steps, project_end, projects
from breaker_actors.store.config.change_set import Plan
from breaker_actors.store.quotas import Shares
from breaker_actors.store.rows import BreakerRow, RouterDraft
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.steps import Who
from tests.contract.backends import Backend
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import RULE, World, draft
from tests.contract.test_store_bulk import OTHER, item, replace

Act = Callable[[], Awaitable[Any]]


class Pauses:
    """What others do between two steps: one act a pause, in order; then nothing."""

    def __init__(self) -> None:
        self.acts: list[Act] = []
        self.begun = False
        self.seen = 0

    async def before_a_step(self) -> None:
        if self.begun:
            self.seen += 1
            if self.acts:
                await self.acts.pop(0)()
        self.begun = True


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    found = Pauses()
    monkeypatch.setattr(steps, "STEP", 2)
    monkeypatch.setattr(project_end, "STEP", 2)
    write = steps.Steps.write

    async def step(self: steps.Steps, who: Any, work: Any) -> Any:
        await found.before_a_step()
        return await write(self, who, work)

    monkeypatch.setattr(steps.Steps, "write", step)
    monkeypatch.setattr(steps, "REST", 0)
    monkeypatch.setattr(steps, "PAUSE_S", 0)
    monkeypatch.setattr(steps, "LONG_S", 60.0)
    return found


async def names(world: World) -> list[str]:
    return [row.name for row in (await world.store.list_breakers(world.project_id))[0]]


async def claim_of(world: World) -> str | None:
    query = select(t.projects.c.replacing).where(t.projects.c.id == world.project_id)
    found: str | None = await world.store._db.read(lambda c: c.execute(query).scalar())  # type: ignore[attr-defined]
    return found


async def claim(world: World, word: str | None) -> None:
    statement = update(t.projects).where(t.projects.c.id == world.project_id).values(replacing=word)
    await world.store._db.write(lambda c: c.execute(statement))  # type: ignore[attr-defined]


async def test_many_take_steps_and_come_to_the_same(world: World, pauses: Pauses) -> None:
    for name in "abcde":
        await world.breaker(name)
    done = await replace(world, *map(item, "abfghij"), item("c", rule=OTHER), item("k", metadata={"x": "y"}))
    assert [row.name for row in done.rows] == ["a", "b", "c", "f", "g", "h", "i", "j", "k"]
    assert (done.rows, 50) == await world.store.list_breakers(world.project_id)
    assert pauses.seen == 4  # six are made, one is changed, two go: nine in steps of two
    assert len(await world.changes(done.change_ids)) == 9
    assert await claim_of(world) is None
    assert not (await replace(world, *(item(row.name, rule=row.rule) for row in done.rows))).changed


async def test_others_have_their_turn_in_between(world: World, pauses: Pauses) -> None:
    """What they make stays, what they delete stays deleted, what they change is kept where the replace has no say."""
    rows = {name: await world.breaker(name, metadata={"of": name}) for name in "abcdef"}

    async def beside() -> None:
        await world.breaker("new", id="0a0a0a0a-0000-4000-8000-000000000001", now_ms=60)
        await world.edit(rows["c"].id, actions={"n": 1}, rule=msgspec.structs.replace(RULE, threshold=7.0))
        await world.store.delete_breaker(world.project_id, rows["d"].id, 61)
        await world.edit(rows["f"].id, metadata={"of": "nobody"})

    pauses.acts.append(beside)
    await replace(world, *(item(name, rule=OTHER) for name in "abcde"))
    found = {row.name: row for row in (await world.store.list_breakers(world.project_id))[0]}
    assert found.keys() == {"a", "b", "c", "e", "new"}
    assert {found[name].rule for name in "abce"} == {OTHER}
    assert (found["c"].actions, found["c"].metadata, found["c"].version) == ({"n": 1}, {"of": "c"}, 3)


async def test_an_id_that_was_taken_in_between_is_changed(world: World, pauses: Pauses) -> None:
    wanted = "0a0a0a0a-0000-4000-8000-000000000002"
    pauses.acts.append(lambda: world.breaker("mine", id=wanted))
    await replace(world, item("a"), item("b"), item("c", id=wanted, rule=OTHER))
    (row,) = (await world.store.list_breakers(world.project_id, [wanted]))[0]
    assert (row.name, row.rule, row.version) == ("c", OTHER, 2)


async def test_a_step_that_fails_leaves_the_project_free(world: World, pauses: Pauses) -> None:
    """Another project takes an id: what was done stays, the same replace again does the rest."""
    wanted = "0a0a0a0a-0000-4000-8000-000000000003"
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    pauses.acts.append(lambda: world.store.create_breaker(other.id, draft("x", id=wanted), 60))
    with pytest.raises(BreakerExists):
        await replace(world, item("a"), item("b"), item("c", id=wanted))
    assert (await names(world), await claim_of(world)) == (["a", "b"], None)
    with pytest.raises(Invalid, match="is taken"):
        await replace(world, item("a"), item("b"), item("c", id=wanted))
    assert (await replace(world, item("a"), item("b"), item("c"))).changed


async def test_what_has_no_room_changes_nothing(backend: Backend, pauses: Pauses) -> None:
    store = SqlStore(backend.url, SecretBox(b"k" * 32), shares=Shares(configuration_bytes=10_000))
    await store.open()
    try:
        world = await World.make(store)
        await world.breaker("a", actions={"x": "y" * 2_000})
        with pytest.raises(Invalid, match="10000 is the most"):
            await replace(world, *(item(name, actions={"x": "y" * 1_800}) for name in "abcdef"))
        assert (await names(world), await claim_of(world)) == (["a"], None)
        await replace(world, *(item(name) for name in "abcdef"))
        assert await names(world) == list("abcdef")
        exact = await world.store.configuration_bytes(world.project_id)
        assert 6 * 500 < exact < 10_000
    finally:
        await store.close()


async def test_a_caller_that_hangs_up_leaves_no_half(world: World, pauses: Pauses) -> None:
    gone, goes_on = asyncio.Event(), asyncio.Event()

    async def hang_up() -> None:
        gone.set()
        await goes_on.wait()

    pauses.acts.append(hang_up)
    asked = asyncio.create_task(replace(world, *map(item, "abcde")))
    await gone.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await names(world) == ["a", "b"]
    goes_on.set()
    await asyncio.gather(*steps.running())
    assert await names(world) == list("abcde")


# one replace after the other


async def test_who_comes_later_waits(world: World, pauses: Pauses, make_store: Any) -> None:
    """In this process and another one, however small it is."""
    beside = await make_store()
    later: list[asyncio.Task[Any]] = []

    async def begin() -> None:
        for store, name in ((world.store, "x"), (beside, "y")):
            work = store.replace_breakers(world.project_id, [item(name)], lambda rows, removed: None, 60)
            later.append(asyncio.create_task(work))
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in later)

    pauses.acts.append(begin)
    first = await replace(world, *map(item, "abcde"))
    assert [row.name for row in first.rows] == list("abcde")
    found = [[row.name for row in done.rows] for done in await asyncio.gather(*later)]
    assert sorted(found) == [["x"], ["y"]]
    assert await names(world) in found


async def test_what_a_dead_process_began_holds_nobody_up_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_steps, "AWAY_S", 0.2)
    await claim(world, "of one that died")
    await replace(world, *map(item, "abc"))
    assert (await names(world), await claim_of(world)) == (["a", "b", "c"], None)


async def test_who_goes_on_is_waited_for_to_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_steps, "AWAY_S", 0.5)
    monkeypatch.setattr(bulk_steps, "WAIT_S", 1.0)

    async def go_on() -> None:
        for i in range(1_000):
            await claim(world, f"step {i}")
            await asyncio.sleep(0.02)

    other = asyncio.create_task(go_on())
    try:
        with pytest.raises(Unavailable, match="under way"):
            await replace(world, item("a"))
    finally:
        other.cancel()
    assert await names(world) == []


async def test_who_was_taken_for_dead_ends(world: World, pauses: Pauses) -> None:
    pauses.acts.append(lambda: claim(world, "of another one"))
    with pytest.raises(Unavailable, match="taken over"):
        await replace(world, *map(item, "abcde"))
    assert (await names(world), await claim_of(world)) == (["a", "b"], "of another one")


async def test_a_look_that_is_always_overtaken_is_taken_under_the_lock(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    begin = bulk_steps.BulkReplace._look

    async def overtaken(self: bulk_steps.BulkReplace) -> Any:
        look = await begin(self)
        seen.append(len(look.rows))
        await world.breaker(f"other {len(seen)}")
        return look

    monkeypatch.setattr(bulk_steps.BulkReplace, "_look", overtaken)
    asked: list[int] = []
    done = await replace(world, item("a"), check=lambda rows, removed: asked.append(len(rows)))
    assert (seen, asked) == ([0, 1, 2], [0, 1, 2, 3])
    assert [row.name for row in done.rows] == await names(world) == ["a"]


async def test_checks_hold_when_the_first_step_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's change between the look and the step has the checks asked again."""
    begin = bulk_steps.BulkReplace._look
    others = iter(["x"])

    async def overtaken(self: bulk_steps.BulkReplace) -> Any:
        look = await begin(self)
        for name in others:
            await world.breaker(name)
        return look

    monkeypatch.setattr(bulk_steps.BulkReplace, "_look", overtaken)

    def refuse(rows: Any, removed: int) -> None:
        if removed:
            raise Invalid("one would go")

    with pytest.raises(Invalid, match="one would go"):
        await replace(world, item("a"), check=refuse)
    assert await names(world) == ["x"]


async def test_one_looks_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of others find a thread."""
    see, at_once, most = bulk_steps.BulkReplace._see, 0, 0

    def slow(self: bulk_steps.BulkReplace, *args: Any, **more: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        at_once -= 1
        return see(self, *args, **more)

    monkeypatch.setattr(bulk_steps.BulkReplace, "_see", slow)
    await asyncio.gather(*(replace(world, *map(item, "abc")) for _ in range(5)))
    assert most == 1


# whose turn it is


async def test_turns_go_round() -> None:
    """Between organisations, then between projects of one; who is cancelled is passed over."""
    turns, order = steps.Turns(), list[str]()
    await turns.take(Who("a", "1"))

    async def one(org: str, project: str) -> None:
        await turns.take(Who(org, project))
        order.append(org + project)
        await asyncio.sleep(0)
        turns.give_back()

    wanted = ["a1", "a1", "a1", "a2", "b1", "a1", "b2"]
    waiting = [asyncio.create_task(one(*name)) for name in wanted]
    await asyncio.sleep(0)
    waiting[1].cancel()
    turns.give_back()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["a1", "b1", "a2", "b2", "a1", "a1"]
    await asyncio.wait_for(turns.take(Who("c", "1")), 1)


async def test_a_turn_given_to_who_is_cancelled_goes_on() -> None:
    """Both at the same moment."""
    turns = steps.Turns()
    await turns.take(Who("a", "1"))
    first, second = (asyncio.create_task(turns.take(Who("a", "1"))) for _ in range(2))
    await asyncio.sleep(0)
    turns.give_back()
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert first.cancelled()


async def test_small_changes_wait_for_no_turn(world: World) -> None:
    """Somebody's large one is under way; others make, change and end what is small."""
    held: steps.Steps = world.store._steps  # type: ignore[attr-defined]
    await held._large_turns.take(Who("somebody", "else"))
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    await asyncio.wait_for(replace(world, item("a"), item("b")), 5)
    await asyncio.wait_for(world.store.delete_project(other.id, 60), 5)
    large = asyncio.create_task(replace(world, *map(item, "abc")))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(large), 0.1)
    assert await names(world) == ["a", "b"]
    held._large_turns.give_back()
    await asyncio.wait_for(large, 5)
    assert await names(world) == ["a", "b", "c"]


async def test_who_hangs_up_before_the_first_step_has_asked_for_nothing(world: World) -> None:
    """Nothing of it goes on, and its place is another one's."""
    held: steps.Steps = world.store._steps  # type: ignore[attr-defined]
    await held._large_turns.take(Who("somebody", "else"))
    asked = [asyncio.create_task(replace(world, *map(item, "abc"))) for _ in range(20)]
    await asyncio.sleep(0.1)
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    assert steps.running() == []
    held._large_turns.give_back()
    await asyncio.wait_for(held._large_turns.take(Who("b", "1")), 1)
    assert await names(world) == []
    held._large_turns.give_back()


async def test_an_organisation_has_so_many_under_way(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one waits, still its caller's."""
    monkeypatch.setattr(steps, "LARGE_AT_ONCE", 2)
    under_way = most = 0
    goes_on = asyncio.Event()

    async def carry_out(self: bulk_steps.BulkReplace, look: Any) -> list[int]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await goes_on.wait()
        under_way -= 1
        return []

    monkeypatch.setattr(bulk_steps.BulkReplace, "_carry_out", carry_out)
    asked = [asyncio.create_task(replace(world, *map(item, "abc"))) for _ in range(5)]
    await asyncio.sleep(0.2)
    assert (most, len(steps.running())) == (2, 2)
    goes_on.set()
    await asyncio.gather(*asked)
    assert (most, under_way, steps.running()) == (2, 0, [])


async def test_a_live_claim_is_nobody_elses(world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its next step waits for its turn."""
    monkeypatch.setattr(bulk_steps, "AWAY_S", 0.1)
    goes_on = asyncio.Event()

    async def wait() -> None:
        await goes_on.wait()

    pauses.acts.append(wait)
    first = asyncio.create_task(replace(world, *map(item, "abcde")))
    while await claim_of(world) is None:
        await asyncio.sleep(0.01)
    second = asyncio.create_task(replace(world, *map(item, "xyz")))
    await asyncio.sleep(0.4)
    assert not second.done()
    goes_on.set()
    assert [row.name for row in (await first).rows] == list("abcde")
    assert [row.name for row in (await second).rows] == await names(world) == list("xyz")


# room


@pytest.fixture
async def tight(backend: Backend) -> AsyncIterator[World]:
    """A project with four breakers, which may have five."""
    store = SqlStore(backend.url, SecretBox(b"k" * 32), breakers_max=5)
    await store.open()
    world = await World.make(store)
    for name in "abcd":
        await world.breaker(name)
    yield world
    await store.close()


async def test_a_full_project_is_replaced_within_its_bound(tight: World, pauses: Pauses) -> None:
    found: list[list[str]] = []

    async def look() -> None:
        found.append(await names(tight))

    pauses.acts += [look] * 9
    await replace(tight, *map(item, "efghi"))
    assert await names(tight) == list("efghi")
    assert found
    assert all(len(each) <= 5 for each in found)


async def test_replaces_that_fail_in_the_middle_never_pass_the_bound(tight: World, pauses: Pauses) -> None:
    """Each leaves what it has done; the next one finds the project as it is."""
    other = await tight.store.create_project(tight.org_id, tight.workspace_id, "other", 1)
    for n in range(4):
        taken = f"0a0a0a0a-0000-4000-8000-00000000000{n}"
        pauses.begun = False
        pauses.acts = [lambda taken=taken: tight.store.create_breaker(other.id, draft(taken, id=taken), 60)]
        with pytest.raises(BreakerExists):
            await replace(tight, *(item(f"{n} {m}") for m in range(4)), item(f"{n} last", id=taken))
        assert len(await names(tight)) <= 5


async def test_who_fills_a_project_up_meanwhile_comes_first(tight: World, pauses: Pauses) -> None:
    async def beside() -> None:
        for n in range(5 - len(await names(tight))):
            await tight.breaker(f"new {n}")

    pauses.acts += [beside] * 5
    with pytest.raises(Invalid, match="at most 5 breakers"):
        await replace(tight, *(item(name) for name in "efghi"))
    assert len(await names(tight)) == 5


# the end of a project


async def counts(world: World) -> list[int]:
    """Breakers, routers that are not deleted, projects: as rows."""

    def work(c: Any) -> list[int]:
        live = select(func.count()).select_from(t.routers).where(t.routers.c.deleted_ms.is_(None))
        queries = [select(func.count()).select_from(t.breakers), live, select(func.count()).select_from(t.projects)]
        return [c.execute(query).scalar_one() for query in queries]

    found: list[int] = await world.store._db.read(work)  # type: ignore[attr-defined]
    return found


async def test_a_project_is_gone_before_its_first_pause(world: World, pauses: Pauses) -> None:
    rows = [await world.breaker(name) for name in "abcde"]
    await world.router(*(row.id for row in rows))
    await world.store.create_router(world.project_id, RouterDraft(), 20)
    await world.settle()

    async def look() -> None:
        assert await world.store.get_project(world.project_id) is None
        with pytest.raises(NotFound):
            await world.breaker("late")
        await world.settle(7)
        assert (await counts(world))[2] == 1

    pauses.acts += [look] * 4
    ids = await world.store.delete_project(world.project_id, 50)
    assert (pauses.seen, await counts(world)) == (2, [0, 0, 1])
    assert len(ids) == len(set(ids)) == 5 + 3 + 1 + 1  # their own routers, the shared one at each step, the last views
    await world.settle(9)
    assert await counts(world) == [0, 0, 0]


async def test_what_a_process_that_died_left_is_ended_later(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcde":
        await world.breaker(name)
    pauses.acts.append(die)
    with pytest.raises(RuntimeError, match="killed"):
        await world.store.delete_project(world.project_id, 50)
    assert (await counts(world))[0] == 3
    soon = 50 + project_end.UNFINISHED_MS
    assert await world.store.finish_deletions(soon) == 0
    assert await world.store.finish_deletions(soon + 1) == 1
    assert (await counts(world))[:2] == [0, 0]
    assert await world.store.finish_deletions(soon + 1) == 0
    await world.settle(9)
    assert await counts(world) == [0, 0, 0]


async def begin_to_delete(pauses: Pauses, *worlds: World) -> None:
    """Deletes projects with five breakers; who does it is killed after the first step."""
    for each in worlds:
        for name in "abcde":
            await each.breaker(name)
        pauses.begun = False
        pauses.acts = [die]
        with pytest.raises(RuntimeError, match="killed"):
            await each.store.delete_project(each.project_id, 50)


async def test_a_deletion_that_fails_keeps_no_other(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor upkeep: it is put off, and taken up again."""
    other = await world.neighbour("other")
    await begin_to_delete(pauses, world, other)
    real, broken = projects.end_rest, world.project_id

    async def end_rest(steps: Any, who: Any, place: Any) -> list[int]:
        if place.project_id == broken:
            raise Unavailable("not now")
        return await real(steps, who, place)

    monkeypatch.setattr(projects, "end_rest", end_rest)
    soon = 51 + project_end.UNFINISHED_MS
    assert await world.store.finish_deletions(soon) == 2
    assert await world.store.finish_deletions(soon) == 1
    broken = ""
    assert [await world.store.finish_deletions(soon) for _ in range(2)] == [1, 0]


async def test_deletions_that_fail_let_others_go_first(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for a part of them goes on behind the last ones; an error that nobody expected is no other one's."""
    deleted = [world, await world.neighbour("other"), await world.neighbour("third")]
    await begin_to_delete(pauses, *deleted)
    asked = list[str]()

    async def end_rest(steps: Any, who: Any, place: Any) -> list[int]:
        asked.append(place.project_id)
        raise RuntimeError("a bug")

    monkeypatch.setattr(projects, "end_rest", end_rest)
    monkeypatch.setattr(projects, "FINISHED_AT_ONCE", 2)
    soon = 51 + project_end.UNFINISHED_MS
    assert [await world.store.finish_deletions(soon) for _ in range(3)] == [2, 2, 2]
    first, second, third = sorted(each.project_id for each in deleted)
    assert [set(asked[n : n + 2]) for n in (0, 2, 4)] == [{first, second}, {third, first}, {second, third}]


async def die() -> None:
    raise RuntimeError("killed")


def test_a_step_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEP", 4)
    sizes: list[tuple[list[int], int]] = [
        ([], 0),
        ([steps.STEP_BYTES * 3], 1),
        ([1, steps.STEP_BYTES], 1),
        ([steps.STEP_BYTES - 1, 1, 1], 2),
        ([1] * 9, 4),
    ]
    assert [steps.first_few(iter(found)) for found, _ in sizes] == [count for _, count in sizes]


async def test_breakers_on_many_routers_fill_a_step_sooner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a breaker goes to the logs of all its routers."""
    monkeypatch.setattr(steps, "STEP", 500)
    rows = [await world.breaker(f"b{n}") for n in range(4)]
    spread = [msgspec.structs.replace(row, router_ids=row.router_ids * 400) for row in rows]
    few, many = (
        [[len(step.edited), len(step.removed)] for step in bulk_steps._steps(plan, 0, 0, {})]
        for some in (rows, spread)
        for plan in [Plan(edited=[(row, row) for row in some[:3]], removed=some[3:])]
    )
    assert few == [[3, 1]]
    assert many == [[2, 0], [1, 1]]


MANY, HEARD = 12, 100
"""Open breakers, and channels that heard of each: more notifications than a step has."""


async def heard(world: World) -> tuple[OutboxWorld, list[BreakerRow]]:
    """MANY closed breakers of a project with HEARD channels."""
    told = OutboxWorld(world)
    await told.open()
    for _ in range(HEARD):
        await told.channel()
    rows = [await told.breaker(f"b{number}") for number in range(MANY)]
    await world.take_journal()
    return told, rows


async def trip(told: OutboxWorld, rows: Sequence[BreakerRow]) -> None:
    assert set(await told.world.write(*(told.commit(row.id, "open") for row in rows))) == {"ok"}


async def written(world: World, kind: str) -> int:
    query = select(func.count()).select_from(t.outbox).where(t.outbox.c.kind == kind)
    found: int = await world.store._db.read(lambda c: c.execute(query).scalar_one())  # type: ignore[attr-defined]
    return found


async def test_breakers_that_many_channels_heard_of_fill_a_step_sooner(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them has a notification for each channel: a thousand are a step."""
    monkeypatch.setattr(steps, "STEP", 500)
    told, rows = await heard(world)
    await trip(told, rows)
    await replace(world)
    assert (pauses.seen, await written(world, "resolve")) == (1, MANY * HEARD)
    assert (await names(world), await claim_of(world)) == ([], None)


@pytest.mark.parametrize("others", [0, 3])
async def test_a_step_whose_breakers_opened_since_the_look_is_taken_in_several(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """What goes of it goes first; what is new, and changed, comes with the rest."""
    monkeypatch.setattr(steps, "STEP", 500)
    told, rows = await heard(world)
    pauses.begun = True
    pauses.acts.append(lambda: trip(told, rows))
    items = [item(f"new{number}") for number in range(others)]
    done = await replace(world, *items)
    assert (pauses.seen, await written(world, "resolve")) == (2, MANY * HEARD)
    assert (await names(world), await claim_of(world)) == ([row.name for row in items], None)
    assert len(await world.changes(done.change_ids)) == MANY + others


async def test_closed_breakers_take_no_more_steps_for_channels(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "STEP", 500)
    await heard(world)
    await replace(world)
    assert (pauses.seen, await names(world)) == (0, [])


async def test_the_end_of_a_project_writes_no_notifications(
    world: World, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could be told: its channels are gone. So there is nothing to take steps for."""
    monkeypatch.setattr(steps, "STEP", 500)
    monkeypatch.setattr(project_end, "STEP", 500)
    told, rows = await heard(world)
    await trip(told, rows)
    await world.store.delete_project(world.project_id, 50)
    assert (pauses.seen, await written(world, "resolve")) == (0, 0)
