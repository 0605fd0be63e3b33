"""Store: mappings of projects keep their order, all or nothing, on both databases."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.mappings.model import UNREADABLE_SERIES, MappingTo, SeriesMatcher
from breaker_actors.store.quotas import Shares
from breaker_actors.store.rows import MappingDraft, MappingItem, MappingRow
from tests.contract.backends import Backend
from tests.contract.store_world import World

NAMED = (SeriesMatcher(field="name", op="=", value="requests"),)
BY_LABEL = MappingTo(router="label.router")


def wanted(name: str | None = None, **fields: Any) -> MappingDraft:
    return MappingDraft(**{"matchers": NAMED, "to": BY_LABEL, "name": name} | fields)


def item(name: str | None = None, **fields: Any) -> MappingItem:
    return MappingItem(**{"matchers": NAMED, "to": BY_LABEL, "name": name} | fields)


async def make(world: World, *names: str) -> list[MappingRow]:
    return [await world.store.create_mapping(world.project_id, wanted(name), 5, by="k1") for name in names]


async def edit(world: World, row: MappingRow, now_ms: int = 7, **fields: Any) -> MappingRow:
    return await world.store.update_mapping(
        world.project_id, row.id, lambda row: msgspec.structs.replace(row, **fields), now_ms, by="k2"
    )


async def order(world: World) -> str:
    rows = await world.store.list_mappings(world.project_id)
    assert [row.position for row in rows] == list(range(1, len(rows) + 1))
    return "".join(row.name for row in rows)


async def actions(world: World) -> list[str]:
    """What the audit log says of mappings, oldest first."""
    return [f"{one.action[8:]} {one.who}" for one in reversed(await world.store.audit(world.project_id, 50))][1:]


async def test_a_mapping_is_kept_as_it_was_made(world: World) -> None:
    to = MappingTo(router="resource.team", metric="latency", scale=1000.0, take_as="value", series_max=5)
    row = await world.store.create_mapping(world.project_id, wanted("a", to=to, enabled=False), 5)
    assert await world.store.get_mapping(world.project_id, row.id) == row
    assert (row.position, row.version, row.to, row.enabled, row.inserted_ms) == (1, 1, to, False, 5)
    assert await world.store.list_mappings(world.project_id) == [row]
    unnamed = await world.store.create_mapping(world.project_id, wanted(), 6)
    assert unnamed.name == f"mapping-{unnamed.id[:8]}"
    for call in (
        world.store.update_mapping(world.project_id, "x", lambda row: row, 9),
        world.store.delete_mapping("y", row.id, 9),
    ):
        with pytest.raises(NotFound):
            await call


async def test_mappings_have_an_order_and_move_in_it(world: World) -> None:
    a, b, c = await make(world, *"abc")
    assert await order(world) == "abc"
    await world.store.create_mapping(world.project_id, wanted("d", position=1), 6)
    await world.store.create_mapping(world.project_id, wanted("e", position=99), 6)
    assert await order(world) == "dabce"
    moved = await edit(world, c, position=2)
    assert await order(world) == "dcabe"
    assert (moved.position, moved.version, moved.updated_ms) == (2, 2, 7)
    assert (await edit(world, c, position=99)).position == 5
    assert await order(world) == "dabec"
    await world.store.delete_mapping(world.project_id, a.id, 8)
    assert await order(world) == "dbec"
    others = {row.name: row.version for row in await world.store.list_mappings(world.project_id)}
    assert others == {"d": 1, "b": 1, "e": 1, "c": 3}, "who only moves keeps his version"
    assert await edit(world, b) == (await world.store.list_mappings(world.project_id))[1], "no change"


async def test_changes_are_in_the_audit_log(world: World) -> None:
    a, _ = await make(world, *"ab")
    await edit(world, a, enabled=False)
    await edit(world, a, position=2)
    await world.store.delete_mapping(world.project_id, a.id, 8, by="k3")
    await world.store.replace_mappings(world.project_id, [item("b"), item("c")], 9, by="k4")
    assert await actions(world) == [
        "create k1", "create k1", "update k2", "update k2", "delete k3", "create k4",
    ]  # fmt: skip
    entry = (await world.store.audit(world.project_id, 10))[3]
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["enabled"], entry.after["enabled"]) == (True, False)


async def test_the_whole_list_is_replaced_or_nothing_is(world: World) -> None:
    a, b, c = await make(world, *"abc")
    rows, changed = await world.store.replace_mappings(
        world.project_id, [item("c"), item("new"), item("renamed", id=a.id, enabled=False)], 9
    )
    assert changed
    assert [(row.name, row.version, row.position) for row in rows] == [("c", 2, 1), ("new", 1, 2), ("renamed", 2, 3)]
    assert rows == await world.store.list_mappings(world.project_id)
    assert [row.id for row in rows][::2] == [c.id, a.id]
    assert await world.store.get_mapping(world.project_id, b.id) is None
    items = [item("c"), item("new"), item("renamed", enabled=False)]
    assert await world.store.replace_mappings(world.project_id, items, 10) == (rows, False)
    swapped = [item("new", id=c.id), item("c", id=rows[1].id), item("renamed", enabled=False)]
    assert (await world.store.replace_mappings(world.project_id, swapped, 11))[1]
    kept = await world.store.list_mappings(world.project_id)
    for bad, place in (
        ([item("x"), item("x")], "mappings[1].name"),
        ([item("x", to=MappingTo(router=world.project_id))], "mappings[0].to.router"),
        ([item("x", id=c.id), item("y", id=c.id)], "mappings[1].id"),
    ):
        with pytest.raises(Invalid) as caught:
            await world.store.replace_mappings(world.project_id, bad, 12)
        assert list(caught.value.details) == [place]
        assert await world.store.list_mappings(world.project_id) == kept
    assert (await world.store.replace_mappings(world.project_id, [], 13)) == ([], True)


async def test_an_id_of_another_project_is_taken(world: World) -> None:
    other = await world.neighbour("other")
    (theirs,) = await make(other, "a")
    with pytest.raises(Invalid, match="is taken"):
        await world.store.replace_mappings(world.project_id, [item("a", id=theirs.id)], 9)
    assert await world.store.get_mapping(world.project_id, theirs.id) is None
    assert await other.store.list_mappings(other.project_id) == [theirs]


async def test_a_name_is_had_once(world: World) -> None:
    _, b = await make(world, *"ab")
    with pytest.raises(Invalid, match="another mapping has it"):
        await make(world, "a")
    with pytest.raises(Invalid, match="another mapping has it"):
        await edit(world, b, name="a")
    assert await make(await world.neighbour("other"), "a")


async def test_a_router_that_is_named_is_the_projects(world: World) -> None:
    """One that goes later leaves the mapping, which then refuses what it takes."""
    router, other = await world.router(), await world.neighbour("other")
    theirs = await other.router()
    for id_ in (theirs.id, world.project_id):
        with pytest.raises(Invalid, match="no router"):
            await world.store.create_mapping(world.project_id, wanted("a", to=MappingTo(router=id_)), 5)
    row = await world.store.create_mapping(world.project_id, wanted("a", to=MappingTo(router=router.id)), 5)
    assert await world.store.router_names(world.project_id) == {router.id: router.name}
    await world.store.delete_router(world.project_id, router.id, 6)
    assert await world.store.router_names(world.project_id) == {}
    await make(world, "b")
    assert not (await edit(world, row, enabled=False)).enabled
    with pytest.raises(Invalid, match="no router"):
        await edit(world, row, to=MappingTo(router=theirs.id))


async def test_a_project_has_so_many_mappings(backend: Backend) -> None:
    store = backend.store(shares=Shares(mappings=2))
    await store.open()
    world = await World.make(store)
    a, _ = await make(world, *"ab")
    with pytest.raises(Invalid, match="at most 2 mappings"):
        await make(world, "c")
    with pytest.raises(Invalid, match="at most 2 mappings"):
        await store.replace_mappings(world.project_id, [item(name) for name in "abc"], 9)
    await store.delete_mapping(world.project_id, a.id, 9)
    await make(world, "c")
    await store.close()


async def test_mappings_count_in_the_configuration_of_their_project(world: World) -> None:
    empty = await world.store.configuration_bytes(world.project_id)
    a, _ = await make(world, *"ab")
    two = await world.store.configuration_bytes(world.project_id)
    assert two > empty + 400
    await edit(world, a, name="a" * 101)
    assert await world.store.configuration_bytes(world.project_id) == two + 100
    await world.store.replace_mappings(world.project_id, [], 9)
    assert await world.store.configuration_bytes(world.project_id) == empty


async def test_they_go_with_their_project(world: World) -> None:
    await make(world, *"ab")
    await world.store.delete_project(world.project_id, 9)
    store: Any = world.store
    assert await store._db.read(lambda c: c.execute(select(t.mappings.c.id)).all()) == []


async def test_what_cannot_be_read_stays_as_it_is_until_it_is_given_anew(world: World) -> None:
    a, b = await make(world, *"ab")
    store: Any = world.store
    await store._db.write(lambda c: c.exec_driver_sql("UPDATE mappings SET matchers = 'nonsense' WHERE name = 'a'"))
    (read, _) = await store.list_mappings(world.project_id)
    assert read.matchers == UNREADABLE_SERIES
    await edit(world, b, position=1)
    assert (await edit(world, a, enabled=False)).matchers == UNREADABLE_SERIES
    texts = "SELECT matchers FROM mappings WHERE name = 'a'"
    assert await store._db.read(lambda c: c.exec_driver_sql(texts).scalar()) == "nonsense"
    assert (await edit(world, a, matchers=NAMED)).matchers == NAMED


@pytest.mark.parametrize("seed", range(3))
async def test_any_changes_leave_the_list_that_a_list_would_be(world: World, seed: int) -> None:
    """Against a Python list."""
    rng, model, made = random.Random(seed), list[str](), dict[str, str]()
    for n in range(25):
        match rng.choice(("create", "create", "move", "delete", "replace")):
            case "create":
                at = rng.choice((None, 1, rng.randint(1, len(model) + 2)))
                row = await world.store.create_mapping(world.project_id, wanted(f"{n},", position=at), n)
                made[row.name] = row.id
                model.insert(len(model) if at is None else at - 1, row.name)
            case "move" if model:
                name, at = rng.choice(model), rng.randint(1, len(model) + 1)
                await world.store.update_mapping(
                    world.project_id,
                    made[name],
                    lambda row, at=at: msgspec.structs.replace(row, position=at),
                    n,  # type: ignore[misc]
                )
                model.remove(name)
                model.insert(at - 1, name)
            case "delete" if model:
                name = model.pop(rng.randrange(len(model)))
                await world.store.delete_mapping(world.project_id, made[name], n)
            case "replace":
                model = rng.sample(model, rng.randint(0, len(model)))
                await world.store.replace_mappings(world.project_id, [item(name) for name in model], n)
        assert await order(world) == "".join(model)
