"""Store: breakers and routers, and the change rows each write leaves for the routers' logs."""

from __future__ import annotations

import msgspec
import pytest

from breaker_actors.core.log_entries import BreakerSet, Link, RouterView
from breaker_actors.errors import BreakerExists, Invalid, NotFound
from breaker_actors.store.rows import BreakerRow, EventQuery, RouterDraft
from tests.contract.store_world import RULE, World, decoded, draft, event

DAY_MS = 86_400_000
OTHER_RULE = msgspec.structs.replace(RULE, metric="errors", kind="error_rate", kind_params={"a": [1, {"b": None}]})


async def test_create_makes_a_breaker_with_its_router(world: World) -> None:
    """One change row: the settings that bring it to life, then the view; the breaker starts to count with it."""
    row, ids = await world.store.create_breaker(
        world.project_id, draft("checkout", rule=OTHER_RULE, actions={"x": [1]}, metadata={"team": "a"}), 10
    )
    assert (row.version, row.created_ms, row.updated_ms, row.metadata) == (1, 10, 10, {"team": "a"})
    assert await world.store.get_breaker(world.project_id, row.id) == row
    (router,) = await world.store.list_routers(world.project_id)
    assert (router.id,) == row.router_ids
    assert (router.name, router.mode, router.enabled, router.created_by) == ("checkout", "static", True, "system")
    assert router.breaker_ids == (row.id,)
    (change,) = await world.changes(ids)
    assert (change.router_id, change.project_id, change.links) == (router.id, world.project_id, (row.id,))
    assert decoded(change) == [
        BreakerSet(breaker_id=row.id, version=1, name="checkout", rule=OTHER_RULE, created=True, after_seq=0),
        RouterView(version=1, links=(Link(row.id, "errors"),)),
    ]


async def test_a_new_breaker_has_a_closed_state_without_a_record(world: World) -> None:
    """What a state read shows before the breaker ever ran."""
    row = await world.breaker("a")
    (state,) = await world.store.stored_states(world.project_id)
    assert (state.breaker_id, state.state, state.allow_rate, state.transition_seq) == (row.id, "closed", 1.0, 0)
    assert state.record is None


@pytest.mark.parametrize("name", [None, ""])
async def test_names_are_made_up_when_missing(world: World, name: str | None) -> None:
    """Two breakers without a name get two different ones, also when the likely one is taken."""
    id_ = "0a0a0a0a-0000-4000-8000-000000000000"
    await world.breaker("breaker-0a0a0a0a")
    rows = [await world.breaker(name), await world.breaker(name, id=id_)]
    names = [row.name for row in rows]
    assert all(names)
    assert len({*names, "breaker-0a0a0a0a"}) == 3


async def test_an_existing_id_is_refused_in_every_project(world: World) -> None:
    """Nothing is written; an unknown project is NotFound."""
    row = await world.breaker("a")
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    pending = await world.store.pending_changes(10)
    for project_id in (world.project_id, other.id):
        with pytest.raises(BreakerExists):
            await world.store.create_breaker(project_id, draft("b", id=row.id), 11)
    with pytest.raises(NotFound):
        await world.store.create_breaker("nothing", draft("b"), 11)
    assert await world.store.pending_changes(10) == pending
    assert len(await world.store.list_routers(world.project_id)) == 1


async def test_a_recreated_id_goes_on_after_its_last_transition(world: World) -> None:
    """Events outlive their breaker, and numbers are never used twice."""
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    assert await world.write(world.commit(row.id, epoch, event(1), event(2, "open", "half_open"))) == ["ok"]
    await world.store.delete_breaker(world.project_id, row.id, 50)
    again, ids = await world.store.create_breaker(world.project_id, draft("a", id=row.id), 60)
    (change,) = await world.changes(ids)
    born = decoded(change)[0]
    assert isinstance(born, BreakerSet)
    assert (born.created, born.after_seq, born.version) == (True, 2, 1)
    (state,) = await world.store.stored_states(world.project_id, [again.id])
    assert (state.state, state.transition_seq) == ("closed", 2)
    epoch = await world.own(row.id)
    assert await world.write(world.commit(row.id, epoch, event(3))) == ["ok"]


async def test_an_id_begins_anew_in_another_project(world: World) -> None:
    """Numbers and events of whoever had it before stay his; both breakers' lives are told apart everywhere."""
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    theirs = [event(1), event(2, "open", "half_open"), event(3, "half_open", "open")]
    assert await world.write(world.commit(row.id, epoch, *theirs)) == ["ok"]
    await world.store.delete_breaker(world.project_id, row.id, 50)
    org = await world.store.create_org("others", 1)
    workspace = await world.store.create_workspace(org, "w", "w", 1)
    other = await world.store.create_project(org, workspace.id, "p", 1)
    again, ids = await world.store.create_breaker(other.id, draft("a", id=row.id), 60)
    born = decoded((await world.changes(ids))[0])[0]
    assert isinstance(born, BreakerSet)
    assert born.after_seq == 0
    (state,) = await world.store.stored_states(other.id, [again.id])
    assert (state.state, state.transition_seq) == ("closed", 0)
    epoch = await world.own(again.id)
    commit = world.commit(row.id, epoch, event(1), project_id=other.id)
    assert await world.write(commit) == ["ok"]
    assert await world.write(commit) == ["repeated"]
    for project_id, seqs in ((world.project_id, [3, 2, 1]), (other.id, [1])):
        found = await world.store.events(EventQuery(project_id=project_id, breaker_id=row.id))
        assert [row.transition_seq for row in found] == seqs


async def test_an_equal_edit_writes_nothing(world: World) -> None:
    """No version, no change row, no time of change."""
    row = await world.breaker("a")
    before = await world.store.list_breakers(world.project_id)
    again, changes = await world.edit(row.id, name="a")
    assert (again, changes) == (row, [])
    assert await world.store.list_breakers(world.project_id) == before


async def test_an_edit_reaches_every_router_of_the_breaker(world: World) -> None:
    """The new settings go to each log; the view too, under the next version, when the metric changed."""
    row, other = await world.breaker("a"), await world.breaker("b")
    router = await world.router(row.id, other.id)
    edited, changes = await world.edit(row.id, rule=OTHER_RULE, now_ms=40)
    assert (edited.version, edited.created_ms, edited.updated_ms) == (2, 0, 40)
    assert edited.router_ids == (*row.router_ids, router.id)
    assert [change.router_id for change in changes] == list(edited.router_ids)
    settings = BreakerSet(breaker_id=row.id, version=2, name="a", rule=OTHER_RULE)
    assert decoded(changes[0]) == [settings, RouterView(version=2, links=(Link(row.id, "errors"),))]
    assert decoded(changes[1]) == [
        settings,
        RouterView(version=2, links=(Link(row.id, "errors"), Link(other.id, "latency"))),
    ]
    assert all(change.links == () for change in changes)
    assert (await world.store.list_breakers(world.project_id))[1] == 40


async def test_an_edit_that_no_view_depends_on_writes_no_view(world: World) -> None:
    """A threshold is the breaker's own business."""
    row = await world.breaker("a")
    _, (change,) = await world.edit(row.id, rule=msgspec.structs.replace(RULE, threshold=9.0))
    assert [type(entry) for entry in decoded(change)] == [BreakerSet]
    (router,) = await world.store.list_routers(world.project_id)
    assert router.version == 1


async def test_an_edit_cannot_move_a_breaker(world: World) -> None:
    """Identity and history are the store's: an edit that changes them is not followed there."""
    row = await world.breaker("a")
    edited, _ = await world.edit(row.id, id="x", created_ms=1, version=77, router_ids=(), actions={"n": 1})
    assert edited == msgspec.structs.replace(row, actions={"n": 1}, version=2, updated_ms=30)


async def test_an_edit_that_raises_changes_nothing(world: World) -> None:
    """The caller's error comes through and the transaction is undone."""
    row = await world.breaker("a")

    def refuse(_: object) -> object:
        raise Invalid("no")

    with pytest.raises(Invalid, match="no"):
        await world.store.update_breaker(world.project_id, row.id, refuse, 30)  # type: ignore[arg-type]
    assert await world.store.get_breaker(world.project_id, row.id) == row


async def test_breakers_of_other_projects_are_not_found(world: World) -> None:
    """A right id under a wrong project is no id."""
    row = await world.breaker("a")
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    assert await world.store.get_breaker(other.id, row.id) is None
    assert await world.store.get_router(other.id, row.router_ids[0]) is None
    with pytest.raises(NotFound):
        await world.store.update_breaker(other.id, row.id, lambda r: r, 1)
    with pytest.raises(NotFound):
        await world.store.delete_breaker(other.id, row.id, 1)
    with pytest.raises(NotFound):
        await world.store.create_router(other.id, RouterDraft(breaker_ids=(row.id,)), 1)


async def test_breakers_are_listed_by_creation(world: World) -> None:
    """created_ms first, then the order of insertion."""
    rows = [await world.breaker(name, now_ms=at) for name, at in (("z", 99), ("m", 10), ("a", 10))]
    listed, updated = await world.store.list_breakers(world.project_id)
    assert [row.name for row in listed] == ["m", "a", "z"]
    assert sorted(listed, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)
    assert updated == 10


async def test_delete_takes_everything_but_the_events(world: World) -> None:
    """Row, record and links go; the deletion still goes to the log of its own, now hidden, router."""
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    await world.settle()
    await world.write(world.commit(row.id, epoch, event(1)))
    ids = await world.store.delete_breaker(world.project_id, row.id, 50)
    assert await world.store.get_breaker(world.project_id, row.id) is None
    assert await world.store.stored_states(world.project_id) == []
    assert await world.store.breaker_assignments([row.id]) == []
    assert await world.store.list_routers(world.project_id) == []
    assert await world.store.get_router(world.project_id, row.router_ids[0]) is None
    assert await world.store.list_breakers(world.project_id) == ([], 50)
    (change,) = await world.changes(ids)
    assert decoded(change) == [BreakerSet(breaker_id=row.id, version=2, name="a", rule=None), RouterView(version=2)]
    assert [p.id for p in await world.store.placements("router")] == [change.router_id]
    await world.settle(5)
    assert await world.store.placements("router") == []
    assert len(await world.store.events(EventQuery(project_id=world.project_id))) == 1


async def test_routers_with_other_breakers_outlive_a_delete(world: World) -> None:
    """User routers stay even when empty, the view loses the breaker."""
    row, other = await world.breaker("a"), await world.breaker("b")
    shared, lonely = await world.router(row.id, other.id), await world.router(row.id)
    ids = await world.store.delete_breaker(world.project_id, row.id, 50)
    changes = {change.router_id: decoded(change)[-1] for change in await world.changes(ids)}
    assert changes[shared.id] == RouterView(version=2, links=(Link(other.id, "latency"),))
    assert changes[lonely.id] == RouterView(version=2)
    await world.settle()
    routers = {router.id: router.breaker_ids for router in await world.store.list_routers(world.project_id)}
    assert routers == {other.router_ids[0]: (other.id,), shared.id: (other.id,), lonely.id: ()}


async def test_a_new_router_carries_settings_before_its_view(world: World) -> None:
    """A breaker that starts to read a log finds its settings there first, marked as no birth."""
    row, other = await world.breaker("a"), await world.breaker("b")
    await world.edit(row.id, rule=OTHER_RULE)
    wanted = RouterDraft(
        name="r",
        mode="weighted",
        enabled=False,
        metadata={"weight:a": "2.5", f"weight:{other.id}": "0"},
        breaker_ids=(other.id, row.id, other.id),
    )
    router, ids = await world.store.create_router(world.project_id, wanted, 9)
    assert (router.created_by, router.version, router.inserted_ms) == ("user", 1, 9)
    assert router.breaker_ids == (other.id, row.id)
    assert await world.store.get_router(world.project_id, router.id) == router
    (change,) = await world.changes(ids)
    assert change.links == (other.id, row.id)
    assert decoded(change) == [
        BreakerSet(breaker_id=other.id, version=1, name="b", rule=RULE),
        BreakerSet(breaker_id=row.id, version=2, name="a", rule=OTHER_RULE),
        RouterView(
            version=1,
            mode="weighted",
            enabled=False,
            links=(Link(other.id, "latency", 0.0), Link(row.id, "errors", 2.5)),
        ),
    ]


async def test_an_empty_router_gets_a_name_and_a_view(world: World) -> None:
    """All fields may be left out."""
    router = await world.router()
    assert router.name
    (change,) = await world.store.pending_changes(10)
    assert (decoded(change), change.links) == ([RouterView(version=1)], ())


async def test_a_router_needs_all_its_breakers(world: World) -> None:
    """One unknown id, or a bad share, and nothing is written."""
    row = await world.breaker("a")
    pending = await world.store.pending_changes(10)
    with pytest.raises(NotFound):
        await world.router(row.id, "nothing")
    with pytest.raises(Invalid):
        await world.router(row.id, mode="canary", metadata={"canary:a": "-1"})
    assert await world.store.pending_changes(10) == pending
    assert len(await world.store.list_routers(world.project_id)) == 1


async def test_a_rename_moves_a_share_that_names_the_breaker(world: World) -> None:
    """The view depends on names where metadata does: it is written again."""
    row = await world.breaker("a")
    router = await world.router(row.id, mode="canary", metadata={"canary:b": "10"})
    _, changes = await world.edit(row.id, name="b")
    entries = {change.router_id: decoded(change) for change in changes}
    assert entries[router.id][-1] == RouterView(version=2, mode="canary", links=(Link(row.id, "latency", 10.0),))
    assert [type(entry) for entry in entries[row.router_ids[0]]] == [BreakerSet]


async def _gone(world: World, now_ms: int = 100) -> tuple[str, ...]:
    return (await world.store.stream_snapshot(world.project_id, now_ms)).gone


async def _trip(world: World, *rows: BreakerRow) -> None:
    for row in rows:
        epoch = await world.own(row.id)
        assert await world.write(world.commit(row.id, epoch, event(1))) == ["ok"]


async def test_names_of_breakers_that_never_left_closed_are_gone_with_them(world: World) -> None:
    """Nobody was ever told that they block anything. One that takes a name over does not hide who had it before."""
    quiet, tripped = await world.breaker("quiet"), await world.breaker("tripped")
    await _trip(world, tripped)
    for row in (quiet, tripped):
        await world.store.delete_breaker(world.project_id, row.id, 10)
    assert await _gone(world) == ("tripped",)
    heir = await world.breaker("tripped", now_ms=20)
    assert await _gone(world) == ()
    await world.store.delete_breaker(world.project_id, heir.id, 30)
    assert await _gone(world) == ("tripped",)


async def test_names_gone_are_kept_for_a_day(world: World) -> None:
    """After a rename or a deletion, until the name is taken again or a day has passed."""
    row = await world.breaker("a")
    await _trip(world, row)
    await world.edit(row.id, name="b", now_ms=100)
    assert await _gone(world) == ("a",)
    await world.store.delete_breaker(world.project_id, row.id, 200)
    assert await _gone(world) == ("a", "b")
    assert await _gone(world, 100 + DAY_MS) == ("b",)
    again = await world.breaker("b", now_ms=300)
    assert await _gone(world) == ("a",)
    assert (await world.store.prune_ended(99 + DAY_MS))["gone_names"] == 0
    assert (await world.store.prune_ended(100 + DAY_MS))["gone_names"] == 1
    await world.store.delete_breaker(world.project_id, again.id, 400)
    assert await _gone(world, 0) == ("b",)


async def test_a_shared_name_is_not_gone_while_a_breaker_has_it(world: World) -> None:
    """The younger of two has its id as stream name; it inherits the name, and its id is what goes."""
    old, young = await world.breaker("a", now_ms=1), await world.breaker("a", now_ms=2)
    await _trip(world, young)
    await world.store.delete_breaker(world.project_id, old.id, 100)
    assert await _gone(world) == (young.id,)
    assert await world.store.delete_breaker(world.project_id, young.id, 101)
    assert await _gone(world) == tuple(sorted(("a", young.id)))


async def test_swapping_names_leaves_none_gone(world: World) -> None:
    """a and b exchange their names by way of a third one."""
    a, b = await world.breaker("a"), await world.breaker("b")
    await world.edit(a.id, name="x")
    await world.edit(b.id, name="a")
    await world.edit(a.id, name="b")
    assert await _gone(world) == ("x",)
