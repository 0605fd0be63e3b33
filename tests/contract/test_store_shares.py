"""What a project may keep in the database: configuration, audit log, events. Sums that are those of what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from breaker_actors.core.model import Control, Override
from breaker_actors.errors import Invalid
from breaker_actors.messages import ProjectShare
from breaker_actors.store.config import mutes as module
from breaker_actors.store.config.audit_log import OMITTED
from breaker_actors.store.quotas import AUDIT_WEIGHT, Shares, weight_of
from breaker_actors.store.rows import BreakerItem, ChannelDraft, MuteDraft, MuteRow, RouterDraft, StoredFigures
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.tables import audit, breakers, counters, events, mutes, stored
from tests.contract.backends import Backend
from tests.contract.store_world import RULE, World, event

BULK = {"text": "x" * 10_000}


async def sums(world: World) -> dict[str, int]:
    query = select(stored.c.what, stored.c.used).where(stored.c.of_id == world.project_id)
    return {what: used for what, used in await read(world, lambda c: c.execute(query).all())}


async def read(world: World, work: Callable[[Connection], Any]) -> Any:
    assert isinstance(world.store, SqlStore)
    return await world.store._db.read(work)


async def test_a_larger_configuration_is_refused_by_the_name_of_its_limit(small: Callable[..., Any]) -> None:
    """Nothing of it is written; what shrinks and deletes goes through, and makes room."""
    world = await small(configuration_bytes=25_000)
    a = await world.breaker("a", actions=BULK)
    b = await world.breaker("b", actions=BULK)
    before = await sums(world)
    for write in (
        world.breaker("c", actions=BULK),
        world.edit(a.id, actions=BULK | {"more": "y" * 5_000}),
        world.store.create_router(world.project_id, RouterDraft(metadata={str(i): "z" * 255 for i in range(20)}), 5),
        world.store.create_channel(
            world.project_id,
            ChannelDraft(channel="webhook", config={"url": "https://a.example", "secret": "s" * 5_000}),
            5,
        ),
        world.store.replace_breakers(
            world.project_id,
            [BreakerItem(rule=RULE, name=name, actions=BULK) for name in "abc"],
            lambda rows, removed: None,
            5,
        ),
    ):
        with pytest.raises(Invalid, match="25000 is the most") as caught:
            await write
        assert caught.value.details == {"limit": "BREAKERS_CONFIGURATION_BYTES_MAX"}
        assert await sums(world) == before
    await world.edit(a.id, actions=None)
    await world.breaker("c", actions=BULK)
    await world.store.delete_breaker(world.project_id, b.id, 9)
    await world.breaker("d", actions=BULK)


async def test_beyond_the_bound_a_project_can_still_shrink(small: Callable[..., Any]) -> None:
    """Of a database that was full when the bound was set."""
    large = await small()
    rows = [await large.breaker(name, actions=BULK) for name in "abc"]
    assert isinstance(large.store, SqlStore)
    tight = SqlStore(large.store._url, SecretBox(b"k" * 32), shares=Shares(configuration_bytes=1_000))
    await tight.open()
    try:
        world = replace_store(large, tight)
        await world.edit(rows[0].id, actions=None)
        await tight.delete_breaker(world.project_id, rows[1].id, 5)
        with pytest.raises(Invalid):
            await world.breaker("d")
    finally:
        await tight.close()


def replace_store(world: World, store: SqlStore) -> World:
    return World(store, world.org_id, world.workspace_id, world.project_id, world.directory, world.journal)


async def test_two_writers_cant_pass_the_bound_together(small: Callable[..., Any], backend: Backend) -> None:
    """Of many at once on two stores as many go through as there is room for."""
    world = await small(configuration_bytes=68_000)
    other = SqlStore(backend.url, SecretBox(b"k" * 32), shares=Shares(configuration_bytes=68_000))
    await other.open()
    try:
        worlds = (world, replace_store(world, other))
        done = await asyncio.gather(
            *(worlds[i % 2].breaker(f"b{i}", actions=BULK) for i in range(12)), return_exceptions=True
        )
    finally:
        await other.close()
    assert sum(isinstance(one, Invalid) for one in done) == 6
    assert (await sums(world))["configuration"] <= 68_000


async def test_the_sums_are_those_of_what_is_there(world: World) -> None:
    """After every kind of write; a project without anything keeps nothing."""
    store, project_id = world.store, world.project_id
    a, b = await world.breaker("é" * 10, actions={"a": "ü"}, metadata={"m": "ñ"}), await world.breaker("b")
    router = await world.router(a.id, b.id, metadata={"k": "v"})
    channel = await store.create_channel(
        project_id, ChannelDraft(channel="webhook", config={"url": "https://a.example"}), 5
    )
    await store.update_channel(
        project_id, channel.id, lambda row: replace(row, config={"url": "https://b.example/long"}), 6
    )
    key, _ = await store.create_key(world.org_id, "project", "of this", 7, project_id)
    await store.update_router(project_id, router.id, lambda row: replace(row, name="another", metadata={}), 8)
    await world.edit(a.id, name="another name", actions=None)
    c = await world.breaker("c")
    await store.link_breakers(project_id, router.id, [c.id], 9)
    await store.unlink_breaker(project_id, router.id, b.id, 10)
    told = await all_sums(world)
    assert told.pop((project_id, "ended_links")) == 1  # what ended before an upgrade is not counted
    assert isinstance(store, SqlStore)
    assert told == await store._db.write(summed_anew)
    await store.revoke_key(world.org_id, key.id, 11, project_id)
    await store.delete_channel(project_id, channel.id, 12)
    await store.replace_breakers(project_id, [], lambda rows, removed: None, 13)
    await store.delete_router(project_id, router.id, 14)
    assert (await sums(world))["configuration"] == 0


async def all_sums(world: World) -> dict[tuple[str, str], int]:
    return await read(world, told_sums)


def told_sums(c: Connection) -> dict[tuple[str, str], int]:
    """Those that are not 0, of all projects and organisations."""
    rows = c.execute(select(stored.c.of_id, stored.c.what, stored.c.used).where(stored.c.used != 0))
    return {(of_id, what): int(used) for of_id, what, used in rows}


def summed_anew(c: Connection) -> dict[tuple[str, str], int]:
    """What an upgrade would make of this database."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    from breaker_actors.store.migrations.versions import r0011_stored, r0012_organisations

    c.execute(stored.delete())
    stored.drop(c)
    c.exec_driver_sql("DROP INDEX ix_outbox_project_number")
    with Operations.context(MigrationContext.configure(c)):
        r0011_stored.upgrade()
        r0012_organisations.upgrade()
    return told_sums(c)


async def test_a_deleted_project_keeps_audit_and_events_only(world: World) -> None:
    a = await world.breaker("a")
    await world.router(a.id)
    await world.store.delete_project(world.project_id, 5)
    assert "configuration" not in await sums(world)


async def test_beyond_its_share_an_audit_entry_tells_who_and_when_only(small: Callable[..., Any]) -> None:
    """Nothing old goes for it; at twice the share only what takes away goes on."""
    world = await small(audit_bytes=30_000)
    row = await world.breaker("a", actions=BULK)
    for i in range(3):
        await world.edit(row.id, now_ms=40 + i, actions=BULK | {"n": str(i)})
    entries = await world.store.audit(world.project_id, 50)
    assert [entry.action for entry in entries] == ["breaker.update"] * 3 + ["breaker.create", "project.create"]
    assert list(entries[0].before or {}) == [OMITTED]
    assert (entries[0].before or {})[OMITTED] > 9_000
    assert entries[0].at_ms == 42
    assert (entries[3].after or {})["actions"] == BULK
    assert (await world.store.stored_figures()).shortened >= 1
    told = (await sums(world))["audit"]
    assert told == await read(
        world,
        lambda c: c.execute(
            select(func.sum(AUDIT_WEIGHT)).select_from(audit).where(audit.c.project_id == world.project_id)
        ).scalar_one(),
    )
    with pytest.raises(Invalid, match="audit log of this project has 60000 bytes") as caught:
        await edit_for_ever(world, row.id)
    assert caught.value.details == {"limit": "BREAKERS_AUDIT_BYTES_MAX"}
    assert (await sums(world))["audit"] < 61_000
    await world.store.delete_breaker(world.project_id, row.id, 5_000)


async def test_an_override_can_be_set_and_ended_while_the_audit_log_is_full(small: Callable[..., Any]) -> None:
    """And nothing else be changed along with it; one entry of each for a breaker counts them."""
    world = await small(audit_bytes=2_000)
    row = await world.breaker("a")
    override = Override(kind="force_open", reason="r", by="ann", since_ms=1, until_ms=900_000, version=2)
    await world.edit(row.id, control=Control(override=override))
    with pytest.raises(Invalid, match="audit log of this project"):
        await edit_for_ever(world, row.id)
    for change in ({"name": "other"}, {"control": Control(mode="observe")}):
        with pytest.raises(Invalid, match="audit log of this project"):
            await world.edit(row.id, now_ms=2_000, **({"control": Control()} | change))
    ended, _ = await world.edit(row.id, now_ms=2_000, control=Control(by="bob", comment="it is over"))
    assert ended.controls.override is None
    assert (await world.store.audit(world.project_id, 1))[0].action == "override.end"
    for n in range(3):
        again = Override(kind="force_open", reason="r", by="ann", since_ms=n, until_ms=900_000, version=3 + n)
        assert (await world.edit(row.id, now_ms=2_001 + n, control=Control(override=again)))[0].controls.override
        await world.edit(row.id, now_ms=2_001 + n, control=Control())
    last = await world.store.audit(world.project_id, 2)
    assert [(entry.action, entry.target_id, entry.before, entry.after) for entry in last] == [
        ("override.set", row.id, None, {"times": 3, "last_ms": 2_003}),
        ("override.end", row.id, None, {"times": 4, "last_ms": 2_003}),
    ]
    told = select(func.sum(AUDIT_WEIGHT)).select_from(audit).where(audit.c.project_id == world.project_id)
    assert (await sums(world))["audit"] == await read(world, lambda c: c.execute(told).scalar_one())
    await world.store.prune(10_000)
    names = await read(world, lambda c: c.execute(select(counters.c.name)).scalars().all())
    assert not [name for name in names if name.startswith("override")]


async def edit_for_ever(world: World, breaker_id: str) -> None:
    for i in range(1_000):
        await world.edit(breaker_id, now_ms=50 + i, name=f"b{i}")


async def test_pruned_entries_make_room(small: Callable[..., Any]) -> None:
    world = await small(audit_bytes=30_000)
    row = await world.breaker("a", actions=BULK)
    await world.edit(row.id, now_ms=40, actions=BULK | {"n": "1"})
    await world.store.prune(1_000)
    assert (await sums(world))["audit"] == 0
    await world.edit(row.id, now_ms=2_000, actions=None)
    assert (await world.store.audit(world.project_id, 1))[0].before["actions"]["n"] == "1"  # type: ignore[index]


async def test_the_oldest_events_of_a_project_beyond_its_share_go_early(small: Callable[..., Any]) -> None:
    """Counted; those of other projects stay, and so does the beginning of an outage that goes on."""
    world = await small(events=10)
    row = await world.breaker("a")
    words = ("closed", "open", "half_open")
    moves = [event(i + 1, words[i % 3], words[(i + 1) % 3]) for i in range(25)]  # type: ignore[arg-type]
    await world.settle()
    await world.write(world.commit(row.id, await world.own(row.id), *moves))
    assert (await sums(world))["events"] == 25
    removed = await world.store.prune(0)
    assert removed["events"] == 15
    kept = await read(
        world, lambda c: c.execute(select(events.c.transition_seq).order_by(events.c.sequence)).scalars().all()
    )
    assert kept == list(range(16, 26))
    assert (await sums(world))["events"] == 10
    assert (await world.store.stored_figures()).dropped == 15


async def test_projects_near_a_bound_are_told(small: Callable[..., Any]) -> None:
    world = await small(configuration_bytes=25_000)
    assert await world.store.stored_figures() == StoredFigures()
    await world.breaker("a", actions=BULK)
    await world.breaker("b", actions={"text": "x" * 13_300})
    (share,) = (await world.store.stored_figures()).shares
    assert share == ProjectShare(
        project_id=world.project_id,
        limit="configuration_bytes",
        used=(await sums(world))["configuration"],
        most=25_000,
    )


async def sibling(world: World) -> World:
    """Another project of the same organisation, under the same Directory and Journal."""
    project = await world.store.create_project(world.org_id, world.workspace_id, "another", 1)
    journal = await world.store.open_journal(project.shard)
    return World(world.store, world.org_id, world.workspace_id, project.id, world.directory, journal)


async def test_many_projects_of_an_organisation_are_configured_with_so_much_together(small: Callable[..., Any]) -> None:
    """However many it has; what shrinks goes through and makes room, and another organisation has its own."""
    world = await small(configuration_bytes=25_000, full_projects=2)
    other, many = await world.neighbour("other"), [world, *[await sibling(world) for _ in range(3)]]
    rows = [await one.breaker("a", actions=BULK) for one in many]
    for write in (
        many[2].breaker("b", actions=BULK),
        many[3].edit(rows[3].id, actions=BULK | {"more": "y" * 10_000}),
        many[1].store.replace_breakers(
            many[1].project_id,
            [BreakerItem(rule=RULE, name=name, actions=BULK) for name in "ab"],
            lambda rows, removed: None,
            5,
        ),
    ):
        with pytest.raises(Invalid, match="50000 is the most, however many") as caught:
            await write
        assert caught.value.details == {"limit": "BREAKERS_ORG_FULL_PROJECTS"}
    for name in "ab":
        await other.breaker(name, actions=BULK)
    await many[3].edit(rows[3].id, actions=None)
    await many[2].breaker("b", actions=BULK)
    assert 40_000 < sum([(await sums(one))["configuration"] for one in many]) <= 50_000


async def test_many_projects_of_an_organisation_keep_so_many_events_together(small: Callable[..., Any]) -> None:
    """The largest give up their oldest ones; small ones, and those of another organisation, are not touched."""
    world = await small(events=2_000, full_projects=2)
    second, third, other = await sibling(world), await sibling(world), await world.neighbour("other")
    words = ("closed", "open", "half_open")
    for one, count in ((world, 1_800), (second, 1_800), (third, 600), (other, 1_800)):
        row = await one.breaker("a")
        await world.settle()
        moves = [event(i + 1, words[i % 3], words[(i + 1) % 3]) for i in range(count)]  # type: ignore[arg-type]
        await one.take_journal()
        await one.write(one.commit(row.id, await one.own(row.id), *moves))
    (share,) = (await world.store.stored_figures()).shares
    assert share == ProjectShare(org_id=world.org_id, limit="events", used=4_200, most=4_000)
    removed = await world.store.prune(0)
    assert removed["events"] == 200
    kept = [(await sums(one))["events"] for one in (world, second, third, other)]
    assert sorted(kept[:2]) == [1_600, 1_800]
    assert kept[2:] == [600, 1_800]


async def test_many_projects_of_an_organisation_keep_so_many_deliveries_together(small: Callable[..., Any]) -> None:
    """The largest gives up its own, as it would beyond its own share."""
    world = await small(deliveries=10, full_projects=2)
    second, third = await sibling(world), await sibling(world)
    for one, count in ((world, 9), (second, 8), (third, 6)):
        config = {"url": "https://a.example"}
        await one.store.create_channel(one.project_id, ChannelDraft(channel="webhook", config=config), 5)
        row = await one.breaker("a")
        await world.settle()
        await one.take_journal()
        epoch = await one.own(row.id)
        for seq in range(1, count + 1):
            words = ("closed", "open") if seq % 2 else ("open", "closed")
            await one.write(one.commit(row.id, epoch, event(seq, *words)))
    before = [(await sums(one))["deliveries"] for one in (world, second, third)]
    assert sum(before) > 20
    assert max(before) <= 10
    assert await world.store.shed_deliveries(100) > 0
    await world.store.shed_deliveries(200)
    after = [(await sums(one))["deliveries"] for one in (world, second, third)]
    assert sum(after) <= 20
    assert after[2] == before[2]


async def test_ten_thousand_ordinary_breakers_take_a_sixth(world: World) -> None:
    items = [BreakerItem(rule=RULE, name=f"checkout-latency-{i}", metadata={"team": "payments"}) for i in range(1_000)]
    await world.store.replace_breakers(world.project_id, items, lambda rows, removed: None, 5)
    assert (await sums(world))["configuration"] * 10 < Shares().configuration_bytes / 6
    assert await read(world, lambda c: c.execute(select(func.count()).select_from(breakers)).scalar_one()) == 1_000


async def test_mutes_count_as_long_as_they_are_kept(small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte. The oldest that have ended make room for new ones; those that have not are refused beyond the share,
    and may always end."""
    monkeypatch.setattr(module, "KEPT_BYTES", 6_000)
    world = await small(configuration_bytes=10_000)

    async def make(size: int, now_ms: int = 1) -> MuteRow:
        return await world.store.create_mute(
            world.project_id, MuteDraft(starts_ms=0, ends_ms=None, all=True, comment="c" * size), now_ms
        )

    async def numbers() -> list[int]:
        """Of the mutes that are kept, whose sum is the one that is stored."""
        query = select(func.coalesce(func.sum(weight_of(mutes)), 0)).where(mutes.c.project_id == world.project_id)
        assert (await sums(world))["configuration"] == int(await read(world, lambda c: c.execute(query).scalar_one()))
        return [row.number for row in await world.store.list_mutes(world.project_id)]

    old = [await make(2_000) for _ in range(2)]
    for row in old:
        await world.store.end_mute(world.project_id, row.id, 5)
    live = [await make(4_000) for _ in range(2)]
    assert await numbers() == [row.number for row in live]
    with pytest.raises(Invalid, match="mutes, keys and what files declare of them would take"):
        await make(4_000)
    with pytest.raises(Invalid, match="10000 is the most"):
        await world.store.update_mute(world.project_id, live[0].id, lambda row: replace(row, comment="d" * 7_000), 6)
    await world.store.update_mute(world.project_id, live[0].id, lambda row: replace(row, comment="d"), 6)
    await numbers()
    for row in live:
        await world.store.end_mute(world.project_id, row.id, 7)
    assert await numbers() == [row.number for row in live]
    assert (await world.store.prune(8))["mutes"] == 2
    assert (await numbers(), (await sums(world))["configuration"]) == ([], 0)
