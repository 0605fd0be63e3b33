"""Store: owners and epochs, change rows, assignments; everything the Directory does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import literal_column, update

from breaker_actors.core.log_entries import BREAKER, VIEW, BreakerSet, decode_breaker, decode_view
from breaker_actors.errors import Fenced
from breaker_actors.messages import RouterAssignment, RouterRef
from breaker_actors.store import tables as t
from breaker_actors.store.base import Store
from breaker_actors.store.operational import leases
from breaker_actors.store.rows import BreakerItem, Placement, RouterDraft
from breaker_actors.store.sql_store import SqlStore
from tests.contract.store_world import RULE, World, decoded, draft, event


async def test_an_older_directory_is_refused(world: World) -> None:
    """Opening raises the epoch; the one before can neither claim nor settle from then on."""
    row = await world.breaker("a")
    newer = await world.store.open_directory()
    assert newer == world.directory + 1 == await world.store.directory_epoch()
    with pytest.raises(Fenced):
        await world.store.claim(world.directory, "breaker", {row.id: "b-0"})
    (change,) = await world.store.pending_changes(10)
    with pytest.raises(Fenced):
        await world.store.settle_changes(world.directory, {change.id: 1})
    assert await world.store.pending_changes(10) == [change]
    assert (await world.store.placements("breaker"))[0].owner is None
    assert await world.store.claim(newer, "breaker", {row.id: "b-0"}) == {row.id: 1}


async def test_a_directory_opens_anew_only_where_it_stands(world: World) -> None:
    """After a write of unknown outcome; what it wrote under the former epoch is refused when it lands late."""
    row = await world.breaker("a")
    again = await world.store.open_directory(world.directory)
    assert again == world.directory + 1
    with pytest.raises(Fenced):
        await world.store.claim(world.directory, "breaker", {row.id: "b-0"})
    with pytest.raises(Fenced):
        await world.store.open_directory(world.directory)
    assert await world.store.directory_epoch() == again


async def test_claims_raise_epochs(world: World) -> None:
    """Each claim by one, also by the same owner; unknown ids are left out."""
    row, other = await world.breaker("a"), await world.breaker("b")
    claim = world.store.claim
    assert await claim(world.directory, "breaker", {row.id: "b-0", other.id: "b-1", "nothing": "b-0"}) == {
        row.id: 1,
        other.id: 1,
    }
    assert await claim(world.directory, "breaker", {row.id: "b-0"}) == {row.id: 2}
    assert await claim(world.directory, "breaker", {}) == {}
    assert await world.store.placements("breaker") == [
        Placement(id=row.id, project_id=world.project_id, owner="b-0", epoch=2),
        Placement(id=other.id, project_id=world.project_id, owner="b-1", epoch=1),
    ]


async def test_a_router_keeps_its_first_log_slot(world: World) -> None:
    """The slot is the first owner's name for ever; before it there is no assignment."""
    row = await world.breaker("a")
    (router_id,) = row.router_ids
    assert await world.store.router_assignments([router_id]) == []
    for epoch, owner in enumerate(("r-0", "r-1"), 1):
        assert await world.store.claim(world.directory, "router", {router_id: owner}) == {router_id: epoch}
        assert await world.store.placements("router") == [
            Placement(id=router_id, project_id=world.project_id, owner=owner, epoch=epoch, log_slot="r-0")
        ]
    assert await world.store.router_assignments(["nothing", router_id]) == [
        RouterAssignment(router_id=router_id, project_id=world.project_id, epoch=2, log_slot="r-0", org_id=world.org_id)
    ]


async def test_concurrent_claims_take_turns(world: World, make_store: Callable[[], Awaitable[Store]]) -> None:
    """Several stores claim one breaker at once: every claim gets an epoch of its own."""
    row = await world.breaker("a")
    stores = [world.store, await make_store(), await make_store()]
    claims = [s.claim(world.directory, "breaker", {row.id: f"b-{n}"}) for n, s in enumerate(stores * 5)]
    answers = await asyncio.gather(*claims)
    assert sorted(answer[row.id] for answer in answers) == list(range(1, 16))


async def test_changes_come_in_order_and_go_when_settled(world: World) -> None:
    """pending_changes is oldest first and bounded; settled ids never come back."""
    rows = [await world.breaker(name) for name in "abc"]
    pending = await world.store.pending_changes(2)
    assert [change.links for change in pending] == [(row.id,) for row in rows[:2]]
    await world.settle()
    assert await world.store.pending_changes(10) == []
    await world.breaker("d")
    (change,) = await world.store.pending_changes(10)
    assert change.id > pending[-1].id + 1


async def test_a_project_with_many_changes_holds_up_nobody_elses(world: World) -> None:
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    first, second, third = [await world.breaker(name) for name in "abc"]
    row, _ = await world.store.create_breaker(other.id, draft("x"), 2)
    pending = await world.store.pending_changes(3)
    assert {change.router_id for change in pending[:2]} == {first.router_ids[0], row.router_ids[0]}
    assert pending[2].router_id == second.router_ids[0]
    claimed = {r.router_ids[0]: "r-0" for r in (first, second, third)}
    await world.store.claim(world.directory, "router", claimed | {row.router_ids[0]: "r-1"})
    pending = await world.store.pending_changes(3, ["r-0"])
    assert [change.router_id for change in pending] == [r.router_ids[0] for r in (first, second, third)]
    pending = await world.store.pending_changes(3, ["r-0"], but=second.router_ids)
    assert [change.router_id for change in pending] == [r.router_ids[0] for r in (first, third)]


async def rounds(world: World, count: int, limit: int) -> list[list[str]]:
    """The projects whose changes come in so many rounds, none of which is settled."""
    seen, served = list[list[str]](), dict[str, int]()
    for number in range(1, count + 1):
        seen.append([change.project_id for change in await world.store.pending_changes(limit, served=served)])
        served.update(dict.fromkeys(seen[-1], number))
    return seen


async def test_projects_come_in_rotation(world: World) -> None:
    """Who had his longest ago is first."""
    ids = [(await world.store.create_project(world.org_id, world.workspace_id, f"p{n}", 1)).id for n in range(5)]
    for id_ in ids:
        for name in "ab":
            await world.store.create_breaker(id_, draft(name), 2)
    first, second, third, fourth, fifth = sorted(ids)
    assert await rounds(world, 4, 2) == [[first, second], [third, fourth], [fifth, first], [second, third]]
    assert await world.store.count_pending(7) == 7
    assert await world.store.count_pending(100) == 10


async def test_organisations_come_in_rotation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with many projects keeps nobody waiting for all of them, also where a change fills a round by itself."""
    for n in range(6):
        mine = await world.store.create_project(world.org_id, world.workspace_id, f"p{n}", 1)
        await world.store.create_breaker(mine.id, draft(), 2)
    org_id = await world.store.create_org("other", 1)
    workspace = await world.store.create_workspace(org_id, "w", "w", 1)
    other = await world.store.create_project(org_id, workspace.id, "o", 1)
    for _ in range(2):
        await world.store.create_breaker(other.id, draft(), 2)
    for seen in await rounds(world, 4, 2):
        assert other.id in seen
    monkeypatch.setattr(leases, "PENDING_BYTES", 1)
    alone = [project_id for (project_id,) in await rounds(world, 12, 10)]
    assert alone.count(other.id) == 6
    assert len(set(alone)) == 7


async def test_a_round_takes_so_many_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One change at least, however large it is."""
    for name in "abc":
        await world.breaker(name)
    monkeypatch.setattr(leases, "PENDING_BYTES", 1)
    assert len(await world.store.pending_changes(10)) == 1
    monkeypatch.setattr(leases, "PENDING_BYTES", 1 << 20)
    assert len(await world.store.pending_changes(10)) == 3


async def test_a_link_counts_from_where_its_change_lies(world: World) -> None:
    """since_offset is one below the change's first record; a link without it is not assigned."""
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    (assignment,) = await world.store.breaker_assignments([row.id, "nothing"])
    assert (assignment.routers, assignment.epoch, assignment.name) == ((), epoch, "a")
    assert (assignment.project_id, assignment.shard) == (world.project_id, world.journal.shard)
    (change,) = await world.store.pending_changes(10)
    await world.store.settle_changes(world.directory, {change.id: 8, 12345: 3})
    (assignment,) = await world.store.breaker_assignments([row.id])
    assert assignment.routers == (RouterRef(row.router_ids[0], "", "", 7),)
    await world.store.claim(world.directory, "router", {row.router_ids[0]: "r-0"})
    router = await world.router(row.id)
    await world.settle(1)
    await world.store.claim(world.directory, "router", {router.id: "r-1"})
    (assignment,) = await world.store.breaker_assignments([row.id])
    assert assignment.routers == (
        RouterRef(row.router_ids[0], "r-0", "r-0", 7),
        RouterRef(router.id, "r-1", "r-1", 0),
    )


async def test_assignments_carry_the_committed_record(world: World) -> None:
    """Record, cut and settings as last committed; nothing before the first commit."""
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    (fresh,) = await world.store.breaker_assignments([row.id])
    assert (fresh.record, fresh.applied_offsets, fresh.settings) == (None, {}, None)
    await world.write(world.commit(row.id, epoch, event(1), record=b"R", applied_offsets={"r": 9}, settings=b"S"))
    (assignment,) = await world.store.breaker_assignments([row.id])
    assert (assignment.record, assignment.applied_offsets, assignment.settings) == (b"R", {"r": 9}, b"S")


async def test_a_log_has_reached_what_anybody_read_of_it(world: World) -> None:
    """Also breakers that are gone, and configuration that was settled: a log that ends before that is damaged."""
    row = await world.breaker("a")
    router = await world.router(row.id)
    epoch = await world.own(row.id)
    birth, link = await world.store.pending_changes(10)
    await world.store.settle_changes(world.directory, {birth.id: 8, link.id: 3})
    own = row.router_ids[0]
    await world.store.claim(world.directory, "router", {own: "r-0", router.id: "r-0"})

    async def reached() -> list[int]:
        return [one.reached_offset for one in await world.store.router_assignments([own, router.id])]

    assert await reached() == [8, 3]
    await world.write(world.commit(row.id, epoch, event(1), applied_offsets={own: 12, router.id: 9}))
    assert await reached() == [12, 9]
    await world.store.unlink_breaker(world.project_id, router.id, row.id, 50)
    assert await reached() == [12, 9]
    await world.store.delete_breaker(world.project_id, row.id, 60)
    assert await reached() == [12, 9]


async def test_how_far_logs_reached_takes_one_look_at_each_breaker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One on a thousand routers names all of them: a look for each link would be the square of that. One that can't be
    read is noted once, and says nothing."""
    rows = [await world.breaker(name) for name in "ab"]
    routers = [(await world.router(*(row.id for row in rows))).id for _ in range(5)]
    await world.store.claim(world.directory, "router", dict.fromkeys(routers, "r-0"))
    await world.settle()
    for n, row in enumerate(rows):
        epoch = await world.own(row.id)
        await world.write(world.commit(row.id, epoch, applied_offsets=dict.fromkeys(routers[: 4 + n], 5 + n)))
    assert [one.reached_offset for one in await world.store.router_assignments(routers)] == [6] * 5
    assert isinstance(world.store, SqlStore)
    unreadable = update(t.records).where(t.records.c.breaker_id == rows[1].id).values(cut=literal_column("'no'"))
    await world.store._db.write(lambda c: c.execute(unreadable))
    noted: list[str] = []
    monkeypatch.setattr(t, "note_column", lambda place, *_: noted.append(place))
    found = await world.store.router_assignments(routers)
    assert [one.reached_offset for one in found] == [5, 5, 5, 5, 1]
    assert noted == ["records.cut"]


async def test_a_recovered_router_brings_breakers_to_life_that_are_not_stored_yet(world: World) -> None:
    """Their creation may have been lost; it was in the log of the router that was made with them. The routing table
    keeps its version: changes on the way come behind it."""
    young, old = await world.breaker("a"), await world.breaker("b")
    epoch = await world.own(old.id)
    await world.write(world.commit(old.id, epoch, event(1)))
    shared = (await world.store.create_router(world.project_id, RouterDraft(name="r", breaker_ids=(young.id,)), 20))[0]
    told = []
    for router_id in (young.router_ids[0], old.router_ids[0], shared.id):
        entries = await world.store.router_entries(world.project_id, router_id, 50)
        (settings,) = (decode_breaker(payload) for kind, payload in entries if kind == BREAKER)
        (view,) = (decode_view(payload) for kind, payload in entries if kind == VIEW)
        told.append((settings.created, settings.again, settings.after_seq, view.version))
    assert told == [(True, True, 0, 1), (False, False, 0, 1), (False, False, 0, 1)]


@pytest.mark.parametrize("linked", ["before", "after"])
async def test_a_breaker_that_left_the_router_it_was_made_with_comes_to_life_again(world: World, linked: str) -> None:
    """Its creation was lost with a log that it has left, before anything of it was stored. The router that it is linked
    to tells of it; without one the log that it left, which it still reads."""
    row = await world.breaker("a")
    first = row.router_ids[0]
    before = [(await world.router(row.id)).id] if linked == "before" else []
    await world.store.unlink_breaker(world.project_id, first, row.id, 30)
    await world.settle()
    await world.own(row.id)
    for _ in range(2):  # as often as that log is recovered
        entries = await world.store.router_entries(world.project_id, first, 50)
        there = [decode_breaker(payload) for kind, payload in entries if kind == BREAKER]
        assert [(one.breaker_id, one.created, one.again) for one in there] == [(row.id, True, True)] * (not before)
        assert entries[-1][0] == VIEW
    (assigned,) = await world.store.breaker_assignments([row.id])
    assert [ref.router_id for ref in assigned.routers] == [*(before or [first])]
    after = [(await world.router(row.id, now_ms=60)).id, (await world.router(row.id, now_ms=61)).id]
    told = [
        (change.router_id, one.created, one.again)
        for change in await world.store.pending_changes(100_000)
        for one in decoded(change)
        if isinstance(one, BreakerSet)
    ]
    assert told == [(router, router in before, router in before) for router in (*before, *after)]


async def test_a_deletion_waits_for_all_its_changes(world: World) -> None:
    """The router of a deleted breaker stays placeable until its last change is in the log."""
    row = await world.breaker("a")
    (birth,) = await world.store.pending_changes(10)
    (death,) = await world.store.delete_breaker(world.project_id, row.id, 50)
    await world.store.settle_changes(world.directory, {birth.id: 1})
    assert await world.store.claim(world.directory, "router", {birth.router_id: "r-0"}) == {birth.router_id: 1}
    assert len(await world.store.router_assignments([birth.router_id])) == 1
    await world.store.settle_changes(world.directory, {death: 3})
    assert await world.store.router_assignments([birth.router_id]) == []


async def test_bulk(world: World) -> None:
    """Many breakers at once: more ids than one statement takes."""
    count = 700
    items = [BreakerItem(rule=RULE, name=f"b{n}") for n in range(count)]
    rows = (await world.store.replace_breakers(world.project_id, items, lambda rows, removed: None, 0)).rows
    ids = [row.id for row in rows]
    epochs = await world.store.claim(world.directory, "breaker", {id_: f"b-{n}" for n, id_ in enumerate(ids)})
    await world.store.claim(world.directory, "router", {row.router_ids[0]: "r-0" for row in rows})
    await world.settle(2)
    assignments = await world.store.breaker_assignments(ids)
    results = await world.write(*(world.commit(id_, 1, event(1)) for id_ in ids))
    states = await world.store.stored_states(world.project_id, ids)
    assert epochs == dict.fromkeys(ids, 1)
    assert [assignment.breaker_id for assignment in assignments] == ids
    assert {assignment.routers[0].since_offset for assignment in assignments} == {1}
    assert (results, world.journal.sequence) == (["ok"] * count, count)
    assert [state.breaker_id for state in states] == ids
