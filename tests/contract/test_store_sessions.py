"""Store: sessions of the console, and the links that begin one."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import func, insert, select

from breaker_actors.errors import Invalid, NotFound
from breaker_actors.store import tables as t
from breaker_actors.store.config.audit_log import FEW
from breaker_actors.store.config.sessions import SESSIONS_MAX
from breaker_actors.store.quotas import AUDIT_WEIGHT, Shares
from breaker_actors.store.rows import AuditFilter, KeyRow
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.steps import Turns, Who
from tests.contract.backends import Backend
from tests.contract.store_world import World
from tests.contract.test_outage_effort import Counted, counting

HOUR = 3_600_000


async def key_of(world: World) -> KeyRow:
    return (await world.store.create_key(world.org_id, "user", "ann", 1))[0]


async def test_a_session_is_its_keys_until_its_end(world: World) -> None:
    key = await key_of(world)
    made = await world.store.create_session(key.id, "token", 10, 10 + HOUR)
    assert (made.key, made.ends_ms) == (key, 10 + HOUR)
    assert await world.store.find_session("token", 9 + HOUR) == made
    assert await world.store.find_session("token", 10 + HOUR) is None
    assert await world.store.find_session("other", 11) is None
    assert await world.store.live_sessions(["token", "other"], 11) == {"token"}
    assert await world.store.live_sessions(["token"], 10 + HOUR) == set()


async def test_a_link_opens_one_session_once(world: World) -> None:
    key = await key_of(world)
    await world.store.create_link(key.id, "link", 10, 100)
    assert await world.store.find_session("link", 11) is None, "a link is no session"
    assert await world.store.redeem_link("link", "late", 100, HOUR) is None
    both = await asyncio.gather(*(world.store.redeem_link("link", f"token {n}", 50, HOUR) for n in range(2)))
    assert [found.key for found in both if found] == [key]
    assert await world.store.redeem_link("link", "again", 60, HOUR) is None


async def test_a_session_ends_when_somebody_signs_out_and_with_its_key(world: World) -> None:
    key, before = await key_of(world), await world.store.access_version()
    for token in ("one", "two"):
        await world.store.create_session(key.id, token, 10, HOUR)
    await world.store.end_session("one", 11)
    assert await world.store.live_sessions(["one", "two"], 12) == {"two"}
    assert await world.store.access_version() == (before.access, before.sessions + 1)
    await world.store.revoke_key(world.org_id, key.id, 13)
    assert await world.store.find_session("two", 14) is None
    with pytest.raises(NotFound):
        await world.store.create_session(key.id, "three", 15, HOUR)
    with pytest.raises(NotFound):
        await world.store.create_link(key.id, "link", 15, HOUR)


async def test_sessions_of_a_deleted_project_are_gone(world: World) -> None:
    key, _ = await world.store.create_key(world.org_id, "project", "p", 1, world.project_id)
    await world.store.create_session(key.id, "token", 10, HOUR)
    await world.store.delete_project(world.project_id, 11)
    assert await world.store.find_session("token", 12) is None


async def test_rows_go_with_their_time_whoever_signs_in(world: World) -> None:
    """Others' sign-ins look at their own key's alone."""
    old, _ = await world.store.create_key(world.org_id, "project", "p", 1, world.project_id)
    key = await key_of(world)
    await world.store.create_session(old.id, "old", 10, HOUR)
    await world.store.create_session(key.id, "short", 10, 20)
    await world.store.delete_project(world.project_id, 11)
    assert await world.store.redeem_link("old", "new", 12, HOUR) is None
    await world.store.create_session(key.id, "token", HOUR, 2 * HOUR)
    assert await rows(world) == 2
    assert (await world.store.prune_ended(HOUR - 1))["sessions"] == 0
    assert (await world.store.prune_ended(HOUR))["sessions"] == 1
    assert await world.store.live_sessions(["old", "token"], HOUR) == {"token"}


async def rows(world: World) -> int:
    query = select(func.count()).select_from(t.console_sessions)
    found: int = await world.store._db.read(lambda c: c.execute(query).scalar_one())  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("ask", ["sign in", "delete project"])
async def test_what_sessions_of_others_cost(backend: Backend, world: World, ask: str) -> None:
    """Nothing, however many there are: neither who signs in, nor the end of a project whose keys have them."""

    async def cost(world: World, count: int) -> Counted:
        theirs, _ = await world.store.create_key(world.org_id, "project", "p", 1, world.project_id)
        mine, _ = await world.store.create_key(world.org_id, "user", "ann", 1)
        row = {"kind": "session", "key_id": theirs.id, "inserted_ms": 1, "ends_ms": HOUR}
        many = [row | {"token_sha256": f"{world.org_id} {n}"} for n in range(count)]
        await world.store._db.write(lambda c: c.execute(insert(t.console_sessions), many))  # type: ignore[attr-defined]
        with counting(world) as counted:
            if ask == "sign in":
                await world.store.create_session(mine.id, world.org_id, 10, HOUR)
            else:
                await world.store.delete_project(world.project_id, 10)
        return counted

    few = await cost(world, 20)
    many = await cost(await world.neighbour("other"), 4_000)
    assert many.statements <= few.statements  # the first one makes some counters
    if not backend.database:
        assert many.steps < 1.5 * few.steps, (few.steps, many.steps)


async def test_of_too_many_the_oldest_end(world: World) -> None:
    key, before = await key_of(world), await world.store.access_version()
    for n in range(SESSIONS_MAX + 2):
        await world.store.create_session(key.id, f"token {n}", 10 + n, HOUR)
    tokens = [f"token {n}" for n in range(SESSIONS_MAX + 2)]
    assert await world.store.live_sessions(tokens, 1_000) == set(tokens[2:])
    assert await world.store.access_version() == (before.access, before.sessions + 2), "keys are as they were"


async def test_sessions_are_written_in_the_turn_of_their_organisation(world: World) -> None:
    """While others wait for theirs, so do they."""
    key = await key_of(world)
    await world.store.create_session(key.id, "one", 10, HOUR)
    await world.store.create_link(key.id, "link", 10, HOUR)
    turns: Turns = world.store._steps._turns  # type: ignore[attr-defined]
    await turns.take(Who("another"))
    writes = [
        world.store.create_session(key.id, "two", 11, HOUR),
        world.store.end_session("one", 11),
        world.store.create_link(key.id, "link 2", 11, HOUR),
        world.store.redeem_link("link", "three", 11, HOUR),
    ]
    tasks = [asyncio.ensure_future(write) for write in writes]
    async with asyncio.timeout(5):
        while len(turns._waiting.get(world.org_id, {}).get("", ())) < len(tasks):
            await asyncio.sleep(0.01)
    assert await world.store.live_sessions(["one", "two", "three"], 12) == {"one"}
    turns.give_back()
    await asyncio.gather(*tasks)
    assert await world.store.live_sessions(["one", "two", "three"], 12) == {"two", "three"}


async def test_many_sign_ins_of_a_day_are_one_entry(world: World) -> None:
    """After a few that have their own; the next day begins anew."""
    key, day = await key_of(world), 20_000 * 86_400_000
    for n in range(FEW + 5):
        await world.store.create_session(key.id, f"token {n}", day + n, day + HOUR)
    for n in range(2):
        await world.store.create_session(key.id, f"next {n}", day + 86_400_000 + n, day + 86_400_000 + HOUR)
    for n in range(FEW + 5):
        await world.store.create_session(key.id, f"late {n}", day + 86_400_002 + n, day + 86_400_000 + HOUR)
    entries = await world.store.org_audit(world.org_id, 100, None, AuditFilter(action="console"))
    first = [entry for entry in entries if entry.at_ms < day + 86_400_000]
    assert [entry.after for entry in first] == [{"times": 5, "last_ms": day + FEW + 4}] + [None] * FEW
    rest = entries[: len(entries) - len(first)]
    assert [entry.after for entry in rest] == [{"times": 7, "last_ms": day + 86_400_002 + FEW + 4}] + [None] * FEW


async def test_tokens_are_not_in_the_database_and_signing_in_is_in_the_audit_log(world: World) -> None:
    key = await key_of(world)
    await world.store.create_session(key.id, "a secret token", 10, HOUR)
    await world.store.end_session("a secret token", 11)
    rows = await world.store._db.read(lambda c: c.execute(select(t.console_sessions)).all())  # type: ignore[attr-defined]
    assert "a secret token" not in str(rows)
    entries = await world.store.org_audit(world.org_id, 5, None, AuditFilter(action="console"))
    assert [(entry.action, entry.who) for entry in entries] == [
        ("console.sign_out", key.id),
        ("console.sign_in", key.id),
    ]


async def make_keys_for_ever(world: World) -> None:
    for n in range(100):
        await world.store.create_key(world.org_id, "user", f"key {n}", 2)


async def test_a_full_audit_log_stops_nobody_from_signing_in_or_out(backend: Backend) -> None:
    """It has one entry for a key that counts them, and grows no more."""
    store = SqlStore(backend.url, SecretBox(b"k" * 32), shares=Shares(audit_bytes=1_000))
    await store.open()
    world = await World.make(store)
    key = await key_of(world)
    with pytest.raises(Invalid, match="audit log"):
        await make_keys_for_ever(world)
    sizes = []
    for n in range(12):
        await store.create_session(key.id, f"token {n}", 10 + n, HOUR)
        await store.end_session(f"token {n}", 10 + n)
        size = select(func.sum(AUDIT_WEIGHT)).where(t.audit.c.org_id == world.org_id, t.audit.c.project_id.is_(None))
        sizes.append(await store._db.read(lambda c, size=size: c.execute(size).scalar_one()))
    used = select(t.stored.c.used).where(t.stored.c.of_id == world.org_id, t.stored.c.what == "org_audit")
    assert await store._db.read(lambda c: c.execute(used).scalar_one()) == sizes[-1]
    assert sizes[-1] - sizes[0] <= 4
    entries = await store.org_audit(world.org_id, 50, None, AuditFilter(action="console"))
    assert [(entry.action, entry.after, entry.at_ms) for entry in entries] == [
        ("console.sign_out", {"times": 12, "last_ms": 21}, 10),
        ("console.sign_in", {"times": 12, "last_ms": 21}, 10),
    ]
    await store.revoke_key(world.org_id, key.id, 30)
    names = await store._db.read(lambda c: c.execute(select(t.counters.c.name)).scalars().all())
    assert not [name for name in names if name.startswith("console")]
    await store.close()
