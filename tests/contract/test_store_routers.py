"""Store: routers changed, deleted, linked and unlinked, and what of it goes into their logs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from breaker_actors.core.log_entries import BreakerSet, Link, RouterView
from breaker_actors.errors import Invalid, NotFound, RouterHasBreakers
from breaker_actors.messages import ChangeRow
from breaker_actors.store.rows import RouterRow
from tests.contract.store_world import RULE, World, decoded


async def change(world: World, router_id: str, **fields: Any) -> tuple[RouterRow, list[ChangeRow]]:
    row, ids = await world.store.update_router(
        world.project_id, router_id, lambda r: msgspec.structs.replace(r, **fields), 40
    )
    return row, await world.changes(ids)


@pytest.mark.parametrize(
    ("fields", "view", "share"),
    [
        ({"enabled": False}, {"enabled": False}, None),
        ({"mode": "weighted"}, {"mode": "weighted"}, 1.0),
        ({"mode": "canary", "metadata": {"canary:a": "10"}}, {"mode": "canary"}, 10.0),
    ],
)
async def test_another_split_is_another_view(
    world: World, fields: dict[str, Any], view: dict[str, Any], share: float | None
) -> None:
    row = await world.breaker("a")
    router = await world.router(row.id)
    changed, (told,) = await change(world, router.id, **fields)
    assert changed == msgspec.structs.replace(router, version=2, **fields)
    assert await world.store.get_router(world.project_id, router.id) == changed
    assert decoded(told) == [RouterView(version=2, links=(Link(row.id, "latency", share),), **view)]


@pytest.mark.parametrize("fields", [{"name": "z"}, {"metadata": {"team": "x"}}, {"metadata": {"canary:a": "5"}}, {}])
async def test_what_does_not_split_goes_nowhere(world: World, fields: dict[str, Any]) -> None:
    """A name, or shares that the mode does not look at: no record, no version."""
    router = await world.router((await world.breaker("a")).id)
    changed, told = await change(world, router.id, **fields)
    assert (changed, told) == (msgspec.structs.replace(router, **fields), [])


async def test_a_bad_share_is_refused(world: World) -> None:
    router = await world.router()
    with pytest.raises(Invalid):
        await change(world, router.id, metadata={"weight:a": "-1"})
    with pytest.raises(NotFound):
        await change(world, "nothing", name="z")


async def test_a_router_with_breakers_stays(world: World) -> None:
    """Without any it is gone at once, and for good when its last view is in its log."""
    row = await world.breaker("a")
    router = await world.router(row.id)
    with pytest.raises(RouterHasBreakers):
        await world.store.delete_router(world.project_id, router.id, 50)
    await world.store.unlink_breaker(world.project_id, router.id, row.id, 51)
    (told,) = await world.changes(await world.store.delete_router(world.project_id, router.id, 52))
    assert decoded(told) == [RouterView(version=3)]
    assert await world.store.get_router(world.project_id, router.id) is None
    with pytest.raises(NotFound):
        await world.store.delete_router(world.project_id, router.id, 53)
    await world.settle()
    assert router.id not in [p.id for p in await world.store.placements("router")]


async def test_a_link_carries_settings_before_its_view(world: World) -> None:
    row, other, third = [await world.breaker(name) for name in "abc"]
    router = await world.router(row.id)
    linked, ids = await world.store.link_breakers(world.project_id, router.id, [other.id, row.id, third.id], 40)
    assert linked.breaker_ids == (row.id, other.id, third.id)
    assert await world.store.get_router(world.project_id, router.id) == linked
    (told,) = await world.changes(ids)
    assert told.links == (other.id, third.id)
    links = tuple(Link(b.id, "latency") for b in (row, other, third))
    assert decoded(told) == [
        BreakerSet(breaker_id=other.id, version=1, name="b", rule=RULE),
        BreakerSet(breaker_id=third.id, version=1, name="c", rule=RULE),
        RouterView(version=2, links=links),
    ]
    assert (await world.store.list_breakers(world.project_id))[1] == 40
    again, ids = await world.store.link_breakers(world.project_id, router.id, [row.id], 41)
    assert (again, ids) == (linked, [])


async def test_a_link_is_all_or_nothing(world: World) -> None:
    row, router = await world.breaker("a"), await world.router()
    pending = await world.store.pending_changes(100)
    with pytest.raises(NotFound):
        await world.store.link_breakers(world.project_id, router.id, [row.id, "nothing"], 40)
    with pytest.raises(NotFound):
        await world.store.link_breakers(world.project_id, "nothing", [row.id], 40)
    assert await world.store.pending_changes(100) == pending


async def test_an_unlinked_breaker_is_in_the_view_no_more(world: World) -> None:
    row, other = await world.breaker("a"), await world.breaker("b")
    router = await world.router(row.id, other.id)
    (told,) = await world.changes(await world.store.unlink_breaker(world.project_id, router.id, row.id, 40))
    assert (decoded(told), told.links) == ([RouterView(version=2, links=(Link(other.id, "latency"),))], ())
    found = await world.store.get_breaker(world.project_id, row.id)
    assert found is not None
    assert found.router_ids == row.router_ids
    for breaker_id in (row.id, "nothing"):
        with pytest.raises(NotFound):
            await world.store.unlink_breaker(world.project_id, router.id, breaker_id, 41)
    await world.store.unlink_breaker(world.project_id, row.router_ids[0], row.id, 42)
    assert (await world.store.get_router(world.project_id, row.router_ids[0])) is not None
