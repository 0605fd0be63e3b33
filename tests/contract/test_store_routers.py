"""Store: routers changed, deleted, linked and unlinked, and what of it goes into their logs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy.event import listens_for

from breaker_actors.core.log_entries import BreakerSet, Link, RouterView
from breaker_actors.errors import Invalid, NotFound, RouterHasBreakers
from breaker_actors.messages import ChangeRow
from breaker_actors.store.config import router_set
from breaker_actors.store.rows import RouterRow
from tests.contract.backends import Backend
from tests.contract.store_world import RULE, World, decoded, draft

COUNTED = 2
"""Statements more where many changes are on their way: these are counted then."""


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


async def test_a_shadow_of_many_routers_takes_few_statements(world: World) -> None:
    """As many for forty routers as for three, but for change rows on SQLite; each router's log hears of it."""
    statements: list[str] = []

    @listens_for(world.store._db._engines.serial, "before_cursor_execute")  # type: ignore[attr-defined]
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("INSERT INTO changes"):
            statements.append(statement)

    async def shadowed(name: str, n: int) -> int:
        watched = await world.breaker(name)
        for _ in range(n):
            await world.router(watched.id)
        statements.clear()
        made = draft(f"{name}, too", shadow_of=watched.id)
        row, ids = await world.store.create_breaker(world.project_id, made, 40)
        count = len(statements)
        _, *told = await world.changes(ids)
        found = await world.store.get_breaker(world.project_id, watched.id)
        assert found is not None
        assert row.router_ids[1:] == tuple(one.router_id for one in told) == found.router_ids
        assert row == await world.store.get_breaker(world.project_id, row.id)
        both = (Link(watched.id, "latency"), Link(row.id, "latency"))
        settings = BreakerSet(breaker_id=row.id, version=1, name=row.name, rule=RULE)
        for change, version in zip(told, (2, *[2] * n), strict=True):
            assert (decoded(change), change.links) == ([settings, RouterView(version=version, links=both)], (row.id,))
        notes = [one for one in await world.store.audit(world.project_id, n + 1) if one.action == "router.link"]
        assert {one.target_id for one in notes} == set(found.router_ids)
        assert {tuple(one.after["breaker_ids"]) for one in notes} == {(watched.id, row.id)}
        return count

    assert await shadowed("b", 40) <= await shadowed("a", 3) + COUNTED


async def test_what_hangs_on_too_many_routers_has_no_new_shadow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_set, "SHADOWED_MAX", 2)
    row = await world.breaker("a")
    await world.router(row.id)
    await world.store.create_breaker(world.project_id, draft("b", shadow_of=row.id), 40)
    await world.router(row.id)
    with pytest.raises(Invalid) as refused:
        await world.store.create_breaker(world.project_id, draft("c", shadow_of=row.id), 40)
    assert "2 routers" in refused.value.details["shadow_of"]
    assert len(await world.store.list_routers(world.project_id)) == 4


async def test_links_of_shadows_end_in_few_statements(world: World) -> None:
    """With a breaker go all its shadows from a router, in as many statements for twenty as for two."""
    statements: list[str] = []

    @listens_for(world.store._db._engines.serial, "before_cursor_execute")  # type: ignore[attr-defined]
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    async def counted(name: str, n: int) -> tuple[int, int]:
        watched, router = await world.breaker(name), await world.router()
        for i in range(n):
            await world.store.create_breaker(world.project_id, draft(f"{name}{i}", shadow_of=watched.id), 40)
        statements.clear()
        linked, _ = await world.store.link_breakers(world.project_id, router.id, [watched.id], 41)
        assert len(linked.breaker_ids) == n + 1
        linking = len(statements)
        statements.clear()
        (told,) = await world.changes(await world.store.unlink_breaker(world.project_id, router.id, watched.id, 42))
        assert decoded(told) == [RouterView(version=3)]
        return linking, len(statements)

    few, many = await counted("a", 2), await counted("b", 20)
    assert many[0] <= few[0] + COUNTED
    assert many[1] <= few[1] + COUNTED


async def test_a_breaker_hangs_on_so_many_routers_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change of it goes to the logs of all. What is there stays, and another breaker is linked."""
    monkeypatch.setattr(router_set, "ROUTERS_MAX", 3)
    row, other = await world.breaker("a"), await world.breaker("b")
    empty = await world.router()
    for _ in range(2):
        await world.router(row.id)
    with pytest.raises(Invalid, match="at most 3 routers"):
        await world.router(other.id, row.id)
    with pytest.raises(Invalid, match="at most 3 routers"):
        await world.store.link_breakers(world.project_id, empty.id, [other.id, row.id], 40)
    await world.store.link_breakers(world.project_id, empty.id, [other.id], 40)
    await world.edit(row.id, name="c")
    found = await world.store.list_routers(world.project_id)
    assert sorted(len(one.breaker_ids) for one in found) == [1] * 5


async def test_what_is_told_again_is_beyond_what_any_log_has(world: World) -> None:
    """Of one version the first counts: the other router's log may have one more."""
    row = await world.breaker("a")
    here, there = await world.router(row.id), await world.router(row.id)
    await world.settle()
    views = [RouterView(version=router.version) for router in (here, there)]
    highest = {row.id: 6}

    async def again(router: RouterRow, view: RouterView, version: int) -> list[str]:
        told = {row.id: (10, version, False)}
        return await world.store.tell_again(world.project_id, router.id, view, told, highest, 50)

    assert await again(here, views[0], 5) == [row.id]
    assert await again(there, views[1], 6) == []
    found = await world.store.get_breaker(world.project_id, row.id)
    assert found is not None
    assert found.version == 7
    pending = await world.store.pending_changes(100)
    settings = [one for change in pending for one in decoded(change) if isinstance(one, BreakerSet)]
    assert [one.version for one in settings] == [7]


async def test_changes_are_numbered_behind_those_of_logs(world: World, backend: Backend) -> None:
    """Once what the logs have later is caught up with. On PostgreSQL they have nothing later, ever."""
    row = await world.breaker("a")
    last = max(change.id for change in await world.store.pending_changes(100))
    await world.settle()
    assert not await world.store.is_behind(last), "settled changes count"
    is_ever = not backend.database
    assert await world.store.is_behind(last + 1) == is_ever
    assert await world.store.is_behind(last) == is_ever, "until it is put right"
    await world.store.caught_up(last + 100)
    assert not await world.store.is_behind(last + 100)
    await world.store.caught_up(last + 50)
    _, changes = await world.edit(row.id, rule=msgspec.structs.replace(RULE, threshold=9.0))
    if is_ever:
        assert min(change.id for change in changes) == last + 101
