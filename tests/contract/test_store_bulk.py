"""Store: the whole set of a project's breakers replaced (semantics.md section 8)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy.event import listens_for

from breaker_actors.core.log_entries import BreakerSet, Link, RouterView
from breaker_actors.errors import GuardrailBlocked, Invalid
from breaker_actors.store.rows import BreakerItem, Replaced, RouterDraft
from tests.contract.store_world import RULE, World, decoded, draft, event

OTHER = msgspec.structs.replace(RULE, threshold=9.0)


def item(name: str | None = None, **fields: Any) -> BreakerItem:
    return BreakerItem(rule=fields.pop("rule", RULE), name=name, **fields)


async def replace(
    world: World, *items: BreakerItem, now_ms: int = 50, check: Any = lambda rows, removed: None
) -> Replaced:
    return await world.store.replace_breakers(world.project_id, items, check, now_ms)


async def test_what_is_missing_is_made_and_what_is_more_goes(world: World) -> None:
    kept, gone = await world.breaker("kept", metadata={"team": "x"}), await world.breaker("gone")
    done = await replace(world, item("new"), item("kept", rule=OTHER))
    assert done.changed
    assert [row.name for row in done.rows] == ["kept", "new"]
    assert done.rows[0] == msgspec.structs.replace(kept, rule=OTHER, version=2, updated_ms=50)
    assert (done.rows, 50) == await world.store.list_breakers(world.project_id)
    told = {change.router_id: decoded(change) for change in await world.changes(done.change_ids)}
    assert told[kept.router_ids[0]] == [BreakerSet(breaker_id=kept.id, version=2, name="kept", rule=OTHER)]
    assert told[gone.router_ids[0]][0] == BreakerSet(breaker_id=gone.id, version=2, name="gone", rule=None)
    born = told[done.rows[1].router_ids[0]][0]
    assert isinstance(born, BreakerSet)
    assert born.created
    assert len(told) == 3


async def test_matched_breakers_keep_their_state(world: World) -> None:
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    await world.write(world.commit(row.id, epoch, event(1)))
    await replace(world, item("a", rule=OTHER))
    (state,) = await world.store.stored_states(world.project_id)
    assert (state.state, state.transition_seq) == ("open", 1)


async def test_the_same_again_changes_nothing(world: World) -> None:
    first = await replace(world, item("a"), item("b", metadata={"x": "y"}))
    audit = await world.store.audit(world.project_id, 100)
    again = await replace(world, item("b"), item("a"), now_ms=60)
    assert (again.changed, again.rows, again.change_ids) == (False, first.rows, [])
    assert (await world.store.list_breakers(world.project_id))[1] == 50
    assert await world.store.audit(world.project_id, 100) == audit


async def test_metadata_is_kept_when_omitted_and_replaced_when_not(world: World) -> None:
    await world.breaker("a", metadata={"x": "y"}, actions={"n": 1})
    kept = (await replace(world, item("a"))).rows[0]
    assert (kept.metadata, kept.actions) == ({"x": "y"}, None)
    assert (await replace(world, item("a", metadata={}))).rows[0].metadata == {}


async def test_ids_go_before_names(world: World) -> None:
    """Names can be swapped; an id nobody has with a known name means the one with the name."""
    a, b = await world.breaker("a"), await world.breaker("b")
    swapped = await replace(world, item("b", id=a.id), item("a", id=b.id))
    assert [(row.id, row.name) for row in swapped.rows] == [(a.id, "b"), (b.id, "a")]
    assert (await world.store.stream_snapshot(world.project_id, 51)).gone == ()
    unknown = "0a0a0a0a-0000-4000-8000-000000000001"
    again = await replace(world, item("b", id=unknown), item("a"))
    assert (again.changed, [row.id for row in again.rows]) == (False, [a.id, b.id])
    fresh = await replace(world, item(id=unknown), item(id=a.id))
    assert [(row.id, row.name) for row in fresh.rows] == [(a.id, "b"), (unknown, "breaker-0a0a0a0a")]


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([item()], "breakers[0].name"),
        ([item("a"), item("a")], "breakers[0].name"),
        ([item("a", id="1"), item("b", id="1")], "breakers[1].id"),
        ([item(id="STORED"), item("stored")], "breakers[1].name"),
        ([item("x", id="FOREIGN")], "breakers[0].id"),
    ],
)
async def test_items_that_do_not_fit_are_refused_first(world: World, items: list[BreakerItem], field: str) -> None:
    """Before the check is asked; nothing is written."""
    row = await world.breaker("stored")
    other = await world.store.create_project(world.org_id, world.workspace_id, "other", 1)
    foreign, _ = await world.store.create_breaker(other.id, draft("foreign"), 1)
    ids = {"STORED": row.id, "FOREIGN": foreign.id}
    given = [msgspec.structs.replace(i, id=ids.get(i.id or "", i.id)) for i in items]

    def never(*_: object) -> None:
        raise AssertionError

    with pytest.raises(Invalid) as caught:
        await replace(world, *given, check=never)
    assert list(caught.value.details) == [field]
    assert (await world.store.list_breakers(world.project_id))[0] == [row]


async def test_a_check_that_raises_keeps_everything(world: World) -> None:
    row, _ = await world.breaker("a"), await world.breaker("b")
    seen: list[tuple[list[str], int]] = []

    def refuse(rows: Any, removed: int) -> None:
        seen.append(([r.name for r in rows], removed))
        raise GuardrailBlocked

    with pytest.raises(GuardrailBlocked):
        await replace(world, item("a", rule=OTHER), check=refuse)
    assert seen == [(["a", "b"], 1)]
    assert await world.store.get_breaker(world.project_id, row.id) == row


async def test_breakers_of_one_router_share_a_change(world: World) -> None:
    """Their settings, then one view; it goes to every router of theirs."""
    a, b = await world.breaker("a"), await world.breaker("b")
    shared = await world.router(a.id, b.id)
    other = msgspec.structs.replace(RULE, metric="errors")
    done = await replace(world, item("a", rule=other), item("b", rule=other))
    told = {change.router_id: decoded(change) for change in await world.changes(done.change_ids)}
    assert told.keys() == {shared.id, *a.router_ids, *b.router_ids}
    assert [type(entry) for entry in told[shared.id]] == [BreakerSet, BreakerSet, RouterView]
    assert told[shared.id][-1] == RouterView(version=2, links=(Link(a.id, "errors"), Link(b.id, "errors")))


async def test_a_project_has_so_many_breakers_at_most(backend: Any) -> None:
    from breaker_actors.store.secrets import SecretBox
    from breaker_actors.store.sql_store import SqlStore

    store = SqlStore(backend.url, SecretBox(b"k" * 32), breakers_max=2)
    await store.open()
    try:
        world = await World.make(store)
        await world.breaker("a")
        await world.breaker("b")
        with pytest.raises(Invalid, match="at most 2"):
            await world.breaker("c")
        with pytest.raises(Invalid, match="at most 2"):
            await replace(world, item("a"), item("b"), item("c"))
        await replace(world, item("c"), item("d"))
        await store.create_router(world.project_id, RouterDraft(), 1)
    finally:
        await store.close()


async def test_five_thousand_take_a_few_hundred_statements(world: World) -> None:
    """Nothing is done breaker by breaker, but for change rows on SQLite, whose ids it gives out one by one only."""
    items = [item(f"b{i}", metadata={"i": str(i)}) for i in range(5_000)]
    statements: list[str] = []

    @listens_for(world.store._db._engines.serial, "before_cursor_execute")  # type: ignore[attr-defined]
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("INSERT INTO changes"):
            statements.append(statement)

    async def counted(most: int) -> Replaced:
        statements.clear()
        done = await replace(world, *items)
        assert len(statements) < most
        return done

    assert len((await counted(330)).change_ids) == 5_000
    assert not (await counted(100)).changed
    items[7] = item("b7", rule=OTHER)
    assert len((await counted(100)).change_ids) == 1


async def test_replaces_of_one_project_are_serial(world: World, make_store: Any) -> None:
    """Two at once, from two processes' stores: the outcome is that of the one or the other, whole."""
    beside = await make_store()
    ones, others = [item(f"a{i}") for i in range(50)], [item(f"b{i}") for i in range(50)]

    async def through(store: Any, items: list[BreakerItem]) -> Replaced:
        done: Replaced = await store.replace_breakers(world.project_id, items, lambda rows, removed: None, 50)
        return done

    await asyncio.gather(*(through(s, i) for s, i in ((world.store, ones), (beside, others)) * 3))
    names = {row.name for row in (await world.store.list_breakers(world.project_id))[0]}
    assert names in ({i.name for i in ones}, {i.name for i in others})
