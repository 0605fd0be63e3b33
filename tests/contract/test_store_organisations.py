"""What an organisation may keep in the database: numbers of projects, workspaces and keys, its own audit log, kept
answers. Sums that are those of what is there, also with two writers at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import func, select

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.messages import ProjectShare
from breaker_actors.store.config.audit_log import OMITTED
from breaker_actors.store.rows import ChannelDraft, Once, Repeated
from breaker_actors.store.tables import audit, events, idempotency_keys, stored
from tests.contract.store_world import World, event
from tests.contract.test_store_once import CREATES, asked
from tests.contract.test_store_shares import all_sums, read, replace_store, summed_anew

Small = Callable[..., Any]
MAKES: dict[str, Callable[[World], Awaitable[Any]]] = {
    "projects": lambda w: w.store.create_project(w.org_id, w.workspace_id, "p", 5),
    "workspaces": lambda w: w.store.create_workspace(w.org_id, "w", "w", 5),
    "keys": lambda w: w.store.create_key(w.org_id, "user", "k", 5),
}


async def org_sum(world: World, what: str) -> int:
    return (await all_sums(world)).get((world.org_id, what), 0)


async def audit_rows(world: World) -> list[Any]:
    """The organisation's own entries, oldest first."""
    mine = select(audit).where(audit.c.project_id.is_(None), audit.c.org_id == world.org_id).order_by(audit.c.number)
    return await read(world, lambda c: c.execute(mine).all())


async def rename_for_ever(world: World, workspace_id: str) -> None:
    for i in range(1_000):
        await world.store.update_workspace(workspace_id, {"name": f"n{i}" + "x" * 200}, 50 + i)


async def make_and_delete_for_ever(world: World) -> None:
    for _ in range(1_000):
        made = await MAKES["projects"](world)
        await world.store.delete_project(made.id, 7)


@pytest.mark.parametrize("what", MAKES)
async def test_a_number_beyond_the_bound_is_refused_by_name(small: Small, what: str) -> None:
    """Another organisation has numbers of its own."""
    world = await small(**{what: 3})
    begun = await org_sum(world, what)
    for _ in range(3 - begun):
        await MAKES[what](world)
    before = await all_sums(world)
    with pytest.raises(Invalid, match=f"at most 3 {what}") as caught:
        await MAKES[what](world)
    assert caught.value.details == {"limit": f"BREAKERS_{what.upper()}_PER_ORG_MAX"}
    assert await all_sums(world) == before
    other = await World.make(world.store)
    assert await org_sum(other, what) == begun


@pytest.mark.parametrize("what", MAKES)
async def test_two_writers_cant_pass_the_number_together(small: Small, what: str) -> None:
    """Of many at once on two stores as many go through as there is room for."""
    world = await small(**{what: 7})
    twin = await small(**{what: 7})
    begun = await org_sum(world, what)
    worlds = (world, replace_store(world, twin.store))
    done = await asyncio.gather(*(MAKES[what](worlds[i % 2]) for i in range(14)), return_exceptions=True)
    assert sum(isinstance(one, Invalid) for one in done) == 14 - (7 - begun)
    assert sum(isinstance(one, BaseException) for one in done) == 14 - (7 - begun)
    assert await org_sum(world, what) == 7


async def test_what_is_deleted_makes_room(small: Small) -> None:
    """Keys go with their project, and a revoked one is not kept."""
    world = await small(projects=2, workspaces=2, keys=2)
    project = await MAKES["projects"](world)
    workspace = await MAKES["workspaces"](world)
    (key, _), _ = await MAKES["keys"](world), await world.store.create_key(world.org_id, "project", "k", 5, project.id)
    for make in MAKES.values():
        with pytest.raises(Invalid):
            await make(world)
    await world.store.revoke_key(world.org_id, key.id, 6)
    with pytest.raises(NotFound):
        await world.store.revoke_key(world.org_id, key.id, 6)
    await world.store.delete_workspace(workspace.id, 6)
    await world.store.delete_project(project.id, 6)
    assert [await org_sum(world, what) for what in MAKES] == [1, 1, 0]
    for make in MAKES.values():
        await make(world)
    await MAKES["keys"](world)
    with pytest.raises(Invalid):
        await MAKES["keys"](world)


async def test_beyond_its_share_the_organisations_log_is_short_then_full(small: Small) -> None:
    """Like a project's: before and after go first, then changes are refused; deletes and revocations always pass."""
    world = await small(audit_bytes=4_000)
    key, _ = await MAKES["keys"](world)
    workspace = await MAKES["workspaces"](world)
    with pytest.raises(Invalid, match="audit log of this organisation has 8000 bytes") as caught:
        await rename_for_ever(world, workspace.id)
    assert caught.value.details == {"limit": "BREAKERS_AUDIT_BYTES_MAX"}
    entries = await audit_rows(world)
    assert entries[-1].action == "workspace.update"
    assert list(entries[-1].after) == [OMITTED]
    assert "name" in entries[2].after
    assert 8_000 <= await org_sum(world, "org_audit") < 8_500
    assert (await world.store.stored_figures()).shortened >= 1
    for make in (MAKES["keys"], MAKES["workspaces"]):
        with pytest.raises(Invalid, match="audit log of this organisation"):
            await make(world)
    await world.breaker("a")
    await world.store.delete_workspace(workspace.id, 5_000)
    await world.store.revoke_key(world.org_id, key.id, 5_000)
    assert [row.action for row in (await audit_rows(world))[-2:]] == ["workspace.delete", "key.revoke"]
    await world.store.prune(10_000)
    assert await org_sum(world, "org_audit") == 0
    await MAKES["workspaces"](world)


async def test_logs_of_deleted_projects_count_for_their_organisation(small: Small) -> None:
    """So that making and deleting projects has an end, too; until the entries are old enough."""
    world = await small(audit_bytes=2_000)
    before = (await all_sums(world))[world.project_id, "audit"]
    project = await MAKES["projects"](world)
    own = (await all_sums(world))[project.id, "audit"]
    await world.store.delete_project(project.id, 6)
    after = await all_sums(world)
    assert (project.id, "audit") not in after
    assert own < after[world.org_id, "gone_audit"]
    assert after[world.project_id, "audit"] == before
    with pytest.raises(Invalid, match="deleted projects have 32000 bytes") as caught:
        await make_and_delete_for_ever(world)
    assert caught.value.details == {"limit": "BREAKERS_AUDIT_BYTES_MAX"}
    (share,) = [s for s in (await world.store.stored_figures()).shares if s.limit == "gone_audit_bytes"]
    assert (share.org_id, share.project_id, share.most) == (world.org_id, None, 32_000)
    store: Any = world.store
    told = await all_sums(world)
    assert told == await store._db.write(summed_anew)
    await store.prune(7)
    assert 0 < await org_sum(world, "gone_audit") < told[world.org_id, "gone_audit"]
    await store.prune(8)
    assert await all_sums(world) == await store._db.write(summed_anew)
    assert await org_sum(world, "gone_audit") == 0
    await MAKES["projects"](world)


async def test_events_of_deleted_projects_go_early(small: Small) -> None:
    """Nobody can ask for them; their empty sums go, too."""
    world = await small()
    row = await world.breaker("a")
    await world.settle()
    await world.write(world.commit(row.id, await world.own(row.id), event(1, "closed", "open")))
    await world.store.prune(0)
    assert await read(world, lambda c: c.execute(select(func.count()).select_from(events)).scalar_one()) == 1
    await world.store.delete_project(world.project_id, 6)
    assert (await world.store.prune(0))["events"] == 1
    left = await read(world, lambda c: c.execute(select(stored.c.what).where(stored.c.of_id == world.project_id)).all())
    assert left == []


async def test_bytes_of_kept_answers_are_bounded(small: Small) -> None:
    """Of an organisation: the oldest go, counted; what goes makes room."""
    world = await small(answer_bytes=8_000)
    asks = [answered(world, str(n), 1_500) for n in range(6)]
    for once in asks:
        await CREATES["workspace"](world, once)
    assert [once.forgotten for once in asks[:3]] == [0, 0, 0]
    assert sum(once.forgotten for once in asks) == 6 - await kept_answers(world)
    assert 1 <= sum(once.forgotten for once in asks) <= 3
    assert 0 < await org_sum(world, "answers") <= 8_000
    store: Any = world.store
    assert await all_sums(world) == await store._db.write(summed_anew)
    with pytest.raises(Repeated):
        await CREATES["workspace"](world, answered(world, "5", 1_500))
    huge = answered(world, "huge", 50_000)
    await CREATES["workspace"](world, huge)
    assert await kept_answers(world) == 1, "the newest stays, whatever its size"
    assert await org_sum(world, "answers") > 50_000
    await CREATES["workspace"](world, answered(world, "in time", 100))
    assert (await kept_answers(world), 0 < await org_sum(world, "answers") <= 8_000) == (1, True)
    await store.prune_idempotency_keys(6)
    assert (await kept_answers(world), await org_sum(world, "answers")) == (0, 0)


def answered(world: World, key: str, size: int) -> Once:
    once = asked(world, key=key)
    once.answer = lambda made: "a" * size
    return once


async def kept_answers(world: World) -> int:
    return await read(world, lambda c: c.execute(select(func.count()).select_from(idempotency_keys)).scalar_one())


async def test_answers_go_from_the_sum_with_their_project(small: Small) -> None:
    world = await small()
    await CREATES["breaker"](world, asked(world))
    assert await org_sum(world, "answers") > 0
    await world.store.delete_project(world.project_id, 6)
    assert await org_sum(world, "answers") == 0


async def test_organisations_near_a_bound_are_told(small: Small) -> None:
    world = await small(projects=2)
    assert (await world.store.stored_figures()).shares == ()
    await MAKES["projects"](world)
    (share,) = (await world.store.stored_figures()).shares
    assert share == ProjectShare(org_id=world.org_id, limit="projects", used=2, most=2)


async def test_the_sums_of_organisations_are_those_of_what_is_there(small: Small) -> None:
    """After an upgrade of a database with two organisations, a deleted project, keys, answers and deliveries."""
    world = await small()
    other = await world.store.create_org("other", 5)
    await world.store.create_workspace(other, "w", "w", 5)
    gone = await MAKES["projects"](world)
    await world.store.create_key(world.org_id, "project", "k", 5, gone.id)
    await world.store.delete_project(gone.id, 6)
    channel = ChannelDraft(channel="webhook", config={"url": "https://a.example"})
    await world.store.create_channel(world.project_id, channel, 5, once=asked(world))
    row = await world.breaker("a")
    await world.settle()
    await world.write(world.commit(row.id, await world.own(row.id), event(1, "closed", "open")))
    told = await all_sums(world)
    assert told[world.project_id, "deliveries"] == 1
    store: Any = world.store
    assert told == await store._db.write(summed_anew)
