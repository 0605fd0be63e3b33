"""Store: commits of the Journal and their fences (architecture.md sections 3.2, 3.4, 3.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from breaker_actors.errors import Fenced
from breaker_actors.messages import Commit
from breaker_actors.store import faults, migrations
from breaker_actors.store import tables as t
from breaker_actors.store.base import Store
from breaker_actors.store.checksums import is_as_written
from breaker_actors.store.rows import EventQuery, EventRow, JournalHead, StoredState
from tests.contract.backends import Backend
from tests.contract.store_world import World, event


@pytest.fixture
async def breaker_id(world: World) -> str:
    """A breaker owned under epoch 1."""
    row = await world.breaker("a")
    assert await world.own(row.id) == 1
    return row.id


async def _state(world: World) -> StoredState:
    (state,) = await world.store.stored_states(world.project_id)
    return state


async def _events(world: World) -> list[EventRow]:
    return await world.store.events(EventQuery(project_id=world.project_id, after_sequence=0))


async def test_a_transition_is_event_and_record_together(world: World, breaker_id: str) -> None:
    """Everything of the commit can be read back, under the journal's next number."""
    draft = event(1)
    assert await world.write(world.commit(breaker_id, 1, draft)) == ["ok"]
    place = {"sequence": 1, "project_id": world.project_id, "breaker_id": breaker_id}
    assert await _events(world) == [EventRow(**place, **msgspec.structs.asdict(draft))]
    state = await _state(world)
    assert (state.state, state.allow_rate, state.transition_seq, state.record) == ("open", 0.0, 1, b"record")


async def test_numbers_are_counted_alike_whatever_the_result(world: World, breaker_id: str) -> None:
    """n events take n numbers, an announcement one, a checkpoint none, a fenced commit as many as an accepted one."""
    commits = [
        world.commit(breaker_id, 9, event(1)),
        world.commit(breaker_id, 1, event(1), event(2, "open", "half_open")),
        world.commit(breaker_id, 1, seq=2, state="half_open", allow_rate=0.4, announce=True),
        world.commit(breaker_id, 1, seq=2, state="half_open", allow_rate=0.4),
        world.commit(breaker_id, 1, event(3, "half_open", "closed")),
    ]
    assert await world.write(*commits) == ["fenced", "ok", "ok", "ok", "ok"]
    assert world.journal.sequence == 5
    assert [row.sequence for row in await _events(world)] == [2, 3, 5]


async def test_an_older_journal_is_refused(world: World, breaker_id: str) -> None:
    """Opening a shard fences its journal; the sequence goes on where it was."""
    await world.write(world.commit(breaker_id, 1, event(1)))
    newer = await world.store.open_journal(world.journal.shard)
    assert newer == JournalHead(world.journal.shard, world.journal.epoch + 1, 1)
    with pytest.raises(Fenced):
        await world.write(world.commit(breaker_id, 1, seq=1))
    with pytest.raises(Fenced):
        await world.store.commit(JournalHead(77, 1, 0), [])
    assert await world.store.commit(newer, []) == (msgspec.structs.replace(newer, sequence=2), [])


async def test_a_checkpoint_that_comes_late_undoes_no_newer_one(world: World, breaker_id: str) -> None:
    """It may say less of the log and of the settings than the one that took its place."""
    old = world.journal
    await world.write(world.commit(breaker_id, 1, seq=0, state="closed", allow_rate=1.0))
    with pytest.raises(Fenced):
        await world.store.commit(old, [world.commit(breaker_id, 1, seq=0, state="closed", allow_rate=1.0)])


async def test_a_head_is_good_for_one_commit(world: World, breaker_id: str) -> None:
    """A journal that does not know that its commit was done must open again: its old head is behind."""
    old = world.journal
    await world.write(world.commit(breaker_id, 1, event(1)))
    with pytest.raises(Fenced):
        await world.store.commit(old, [world.commit(breaker_id, 1, event(2, "open", "half_open"))])


async def test_the_first_answer_may_get_lost(world: World, breaker_id: str) -> None:
    """The same events again are "repeated" and stored once, also after later ones; other events are "fenced"."""
    first = world.commit(breaker_id, 1, event(1))
    second = world.commit(breaker_id, 1, event(2, "open", "half_open"), record=b"second")
    assert await world.write(first) == ["ok"]
    assert await world.write(first) == ["repeated"]
    assert await world.write(second, first) == ["ok", "repeated"]
    different = world.commit(breaker_id, 1, event(2, "open", "half_open", ts_ms=7))
    assert await world.write(different) == ["fenced"]
    assert [row.transition_seq for row in await _events(world)] == [1, 2]
    state = await _state(world)
    assert (state.transition_seq, state.record) == (2, b"second")


async def test_a_commit_and_its_repetition_in_one_call(world: World, breaker_id: str) -> None:
    """The journal may have both waiting: one is stored, the other one known."""
    commit = world.commit(breaker_id, 1, event(1), event(2, "open", "half_open"))
    other = world.commit(breaker_id, 1, event(1, ts_ms=7), event(2, "open", "half_open"))
    assert await world.write(commit, commit, other) == ["ok", "repeated", "fenced"]
    assert [row.transition_seq for row in await _events(world)] == [1, 2]


async def test_an_older_owner_is_fenced(world: World, breaker_id: str) -> None:
    """Neither transitions nor checkpoints nor announcements of an epoch that is over."""
    assert await world.own(breaker_id, owner="b-1") == 2
    old: list[Commit] = [
        world.commit(breaker_id, 1, event(1)),
        world.commit(breaker_id, 1),
        world.commit(breaker_id, 1, announce=True),
    ]
    assert await world.write(*old) == ["fenced"] * 3
    assert (await _state(world)).record is None
    assert await _events(world) == []
    assert await world.write(world.commit(breaker_id, 2, event(1))) == ["ok"]


@pytest.mark.parametrize("seq", [0, 2])
async def test_a_checkpoint_must_match_the_transition(world: World, breaker_id: str, seq: int) -> None:
    """A record of before or after the stored transition is not written over it."""
    await world.write(world.commit(breaker_id, 1, event(1)))
    assert await world.write(world.commit(breaker_id, 1, seq=seq, record=b"other")) == ["fenced"]
    assert (await _state(world)).record == b"record"


async def test_a_hole_in_the_numbers_fails(world: World, breaker_id: str) -> None:
    """Transition numbers are dense: a commit that is not is refused, the others of the call are done."""
    other = await world.breaker("b")
    await world.own(other.id)
    holed = world.commit(breaker_id, 1, event(1), event(3))
    ahead = world.commit(breaker_id, 1, event(2))
    assert await world.write(holed, ahead, world.commit(other.id, 1, event(1))) == ["failed", "fenced", "ok"]
    assert [row.breaker_id for row in await _events(world)] == [other.id]


async def test_settings_stay_until_given_again(world: World, breaker_id: str) -> None:
    """A commit without settings keeps the stored ones; state and cut are always written."""
    await world.write(world.commit(breaker_id, 1, settings=b"one", applied_offsets={"r": 1}))
    await world.write(world.commit(breaker_id, 1, applied_offsets={"r": 2}, state="half_open", allow_rate=0.2))
    (assignment,) = await world.store.breaker_assignments([breaker_id])
    assert (assignment.settings, assignment.applied_offsets) == (b"one", {"r": 2})
    state = await _state(world)
    assert (state.state, state.allow_rate) == ("half_open", 0.2)
    await world.write(world.commit(breaker_id, 1, settings=b"two"))
    (assignment,) = await world.store.breaker_assignments([breaker_id])
    assert assignment.settings == b"two"


async def test_a_deleted_breaker_is_fenced(world: World, breaker_id: str) -> None:
    """Its owner may not know yet; even a commit that was stored before is refused then."""
    commit = world.commit(breaker_id, 1, event(1))
    await world.write(commit)
    await world.store.delete_breaker(world.project_id, breaker_id, 50)
    late = world.commit(breaker_id, 1, event(2, "open", "half_open"))
    assert await world.write(commit, late, world.commit(breaker_id, 1, seq=1)) == ["fenced"] * 3
    assert len(await _events(world)) == 1


async def test_of_two_journals_one_wins(
    world: World, breaker_id: str, make_store: Callable[[], Awaitable[Store]]
) -> None:
    """Two stores commit under one head at once: the events are stored once."""
    other = await make_store()
    commit = world.commit(breaker_id, 1, event(1))
    answers = await asyncio.gather(
        *(store.commit(world.journal, [commit]) for store in (world.store, other)), return_exceptions=True
    )
    assert sorted(type(answer) for answer in answers if isinstance(answer, Exception)) == [Fenced]
    assert len(await _events(world)) == 1


@pytest.fixture
async def shards(backend: Backend) -> AsyncIterator[list[World]]:
    """A project of each of two shards, of one organisation, each with its Journal."""
    store = backend.store(shards=2)
    await store.open()
    first = await World.make(store)
    found = {first.journal.shard: first}
    while len(found) < 2:
        project = await store.create_project(first.org_id, first.workspace_id, "shop", 1)
        if project.shard not in found:
            journal = await store.open_journal(project.shard)
            found[project.shard] = World(store, first.org_id, first.workspace_id, project.id, first.directory, journal)
    yield [found[0], found[1]]
    await store.close()


async def _flicker(world: World, breaker_id: str, count: int) -> None:
    """So many transitions, each a commit of its own."""
    for seq in range(1, count + 1):
        prev, curr = ("closed", "open") if seq % 2 else ("open", "closed")
        assert await world.write(world.commit(breaker_id, 1, event(seq, prev, curr))) == ["ok"]  # type: ignore[arg-type]


async def test_shards_have_an_order_each(shards: list[World]) -> None:
    """Numbers of one say nothing of the other's, and commits of both go on beside each other."""
    ids = [(await world.breaker("a")).id for world in shards]
    await shards[0].own(*ids)
    await asyncio.gather(_flicker(shards[0], ids[0], 7), _flicker(shards[1], ids[1], 12))
    for world, count in zip(shards, (7, 12), strict=True):
        assert [(row.sequence, row.transition_seq) for row in await _events(world)] == [
            (n, n) for n in range(1, count + 1)
        ]
        assert (await world.store.journal_head(world.journal.shard)).sequence == count
    snapshots = [await world.store.stream_snapshot(world.project_id, 1) for world in shards]
    assert [snapshot.position for snapshot in snapshots] == [7, 12]


async def test_a_fence_is_of_one_shard(shards: list[World]) -> None:
    """Another Journal of one shard ends its predecessor, and nobody else's."""
    ids = [(await world.breaker("a")).id for world in shards]
    await shards[0].own(*ids)
    newer = await shards[1].store.open_journal(1)
    with pytest.raises(Fenced):
        await shards[1].write(shards[1].commit(ids[1], 1, event(1)))
    assert await shards[0].write(shards[0].commit(ids[0], 1, event(1))) == ["ok"]
    shards[1].journal = newer
    assert await shards[1].write(shards[1].commit(ids[1], 1, event(1))) == ["ok"]


async def test_numbers_go_on_beyond_all_that_were_given_out_before(world: World) -> None:
    """In a database that was restored, too, which does not know of them. A clock that is behind lowers nothing, and one
    that is ahead leaves room for numbers of JSON."""
    store, shard = world.store, world.journal.shard
    before = await store.open_journal(shard, 1_000_000)
    assert before.sequence == 1_000_000_000
    later = await store.open_journal(shard, 1_000_001)
    assert later.sequence == before.sequence + 1_000
    world.journal = await store.open_journal(shard, 5)
    assert world.journal.sequence == later.sequence == (await store.journal_head(shard)).sequence
    row = await world.breaker("a")
    assert await world.write(world.commit(row.id, await world.own(row.id), event(1))) == ["ok"]
    (stored,) = await store.events(EventQuery(project_id=world.project_id, limit=2))
    assert stored.sequence == later.sequence + 1
    assert (await store.open_journal(shard, 1 << 60)).sequence == 1 << 52


async def test_journals_are_counted(backend: Backend, shards: list[World]) -> None:
    """Those that new projects are spread over, and those that projects have, until they are deleted and have ended."""
    assert await shards[0].store.journals() == 2
    fewer, more = backend.store(shards=1), backend.store(shards=5)
    for store, count in ((fewer, 2), (more, 5)):
        await store.open()
        assert await store.journals() == count
    made = [await fewer.create_project(shards[0].org_id, shards[0].workspace_id, "shop", 1) for _ in range(8)]
    assert {project.shard for project in made} == {0}
    of_both = await fewer.list_projects(shards[0].org_id)
    for project in of_both:
        if project.shard == 1:
            await fewer.delete_project(project.id, 9)
    assert (await fewer.journals(), await more.journals()) == (1, 5)
    for store in (fewer, more):
        await store.close()


async def test_what_verify_looks_at_ends_where_each_shard_stood(backend: Backend, shards: list[World]) -> None:
    """Events that come later are not held against records of before, whichever shard is further."""
    ids = [(await world.breaker("a")).id for world in shards]
    await shards[0].own(*ids)
    await _flicker(shards[0], ids[0], 6)
    await _flicker(shards[1], ids[1], 2)
    with migrations.engine_of(backend.url) as engine, engine.connect() as c:
        upto = faults.newest_events(c)
        assert upto == {0: 6, 1: 2}
        c.rollback()
        assert await shards[1].write(shards[1].commit(ids[1], 1, event(3))) == ["ok"]
        told = [faults.moves_of(c, w.project_id, id_, upto) for w, id_ in zip(shards, ids, strict=True)]
        assert [[move[0] for move in moves] for moves in told] == [[1, 2, 3, 4, 5, 6], [1, 2]]
        assert faults.moves_of(c, shards[0].project_id, ids[0], {}) == []


async def test_what_was_said_with_a_nul_is_stored_on_every_database(
    backend: Backend, world: World, breaker_id: str
) -> None:
    """Logs of earlier versions hold such words of people. The checksum is that of what is stored."""
    said = msgspec.structs.replace(event(1), reason="override_ended", by="me", comment="a\0b")
    assert await world.write(world.commit(breaker_id, 1, said)) == ["ok"]
    (stored,) = await _events(world)
    assert (stored.by, stored.comment) == ("me", "a\ufffdb")
    with migrations.engine_of(backend.url) as engine, engine.connect() as c:
        (row,) = c.execute(t.events.select())
        assert is_as_written(row._mapping)
