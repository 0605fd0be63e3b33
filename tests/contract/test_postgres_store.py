"""What the store does on PostgreSQL only: turns, locks, retries, lost connections and lost answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, insert, select, text, update

from breaker_actors.errors import Invalid, Unavailable
from breaker_actors.sql.retries import AGAIN, TRIES
from breaker_actors.store import section
from breaker_actors.store import tables as t
from breaker_actors.store.operational.retention import PAGE
from breaker_actors.store.quotas import UNMUTED, UNSENT, add, used
from breaker_actors.store.rows import BreakerItem
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.section import bump
from breaker_actors.store.sql_store import SqlStore
from tests.contract.mute_world import AHEAD_MS, HOUR, MuteWorld
from tests.contract.store_world import RULE, World, draft, event
from tests.support.pgproxy import proxy

Open = Callable[[str], Awaitable[SqlStore]]


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    stores: list[SqlStore] = []

    async def make(url: str) -> SqlStore:
        stores.append(SqlStore(url, SecretBox(bytes(32))))
        await stores[-1].open()
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


def with_options(url: str, **options: str) -> str:
    """The same database under other settings."""
    return f"{url}?options=" + "%20".join(f"-c%20{name}%3D{value}" for name, value in options.items())


def rename(c: Connection, org_id: str) -> None:
    c.execute(text("UPDATE orgs SET name = name || '!' WHERE id = :id"), {"id": org_id})


async def test_a_read_is_of_one_instant_and_changes_nothing(postgres_url: str, open_store: Open) -> None:
    store = await open_store(postgres_url)
    asked, written = threading.Event(), threading.Event()

    def look(c: Connection) -> tuple[int, int]:
        count = text("SELECT count(*) FROM orgs")
        first = c.execute(count).scalar_one()
        asked.set()
        assert written.wait(10)
        return first, c.execute(count).scalar_one()

    reading = asyncio.create_task(store._db.read(look))
    await asyncio.to_thread(asked.wait, 10)
    await store.create_org("acme", 1)
    written.set()
    assert await reading == (0, 0)
    with pytest.raises(Unavailable, match="read-only transaction"):
        await store._db.read(lambda c: c.execute(text("DELETE FROM orgs")))


async def test_configuration_writes_take_turns_and_the_journal_does_not_wait(
    postgres_url: str, open_store: Open
) -> None:
    """While one process is inside a configuration write, another one's waits; commits and uses of keys go through."""
    store, beside = await open_store(postgres_url), await open_store(postgres_url)
    world = await World.make(store)
    row = await world.breaker("a")
    epoch = await world.own(row.id)
    key, _ = await store.create_key(world.org_id, "user", "ci", 1)
    inside, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(c: Connection) -> None:
        inside.set()
        assert leave.wait(10)
        order.append("slow")

    holding = asyncio.create_task(store._db.write(slow))
    await asyncio.to_thread(inside.wait, 10)
    waiting = asyncio.create_task(beside.create_breaker(world.project_id, draft("b"), 1))
    waiting.add_done_callback(lambda _: order.append("b"))
    head = await beside.open_journal(0)
    _, results = await beside.commit(head, [world.commit(row.id, epoch, event(1))])
    await beside.touch_keys({key.id: 100_000})
    assert results == ["ok"]
    assert not waiting.done()
    leave.set()
    await asyncio.gather(holding, waiting)
    assert order == ["slow", "b"]


async def test_change_rows_are_numbered_in_order_of_their_commits(postgres_url: str, open_store: Open) -> None:
    """Who has seen a change has seen all with smaller numbers, though five processes write."""
    stores = [await open_store(postgres_url) for _ in range(5)]
    world = await World.make(stores[0])
    seen: list[set[int]] = []

    async def watch() -> None:
        while len(seen[-1] if seen else ()) < 50:
            seen.append({change.id for change in await stores[0].pending_changes(1000)})

    async def write(store: SqlStore) -> None:
        for _ in range(10):
            await store.create_breaker(world.project_id, draft(), 1)

    await asyncio.gather(watch(), *map(write, stores))
    assert all(min(new - old, default=1 << 60) > max(old, default=0) for old, new in pairwise(seen))


async def test_a_deadlock_is_done_again(postgres_url: str, open_store: Open) -> None:
    """Two transactions lock two rows crosswise: both are carried out, each once."""
    url = with_options(postgres_url, deadlock_timeout="50ms")
    stores = [await open_store(url), await open_store(url)]
    orgs = [await stores[0].create_org(name, 1) for name in ("a", "b")]
    met = threading.Barrier(2)
    tries = [0, 0]

    def crosswise(who: int) -> Callable[[Connection], None]:
        def work(c: Connection) -> None:
            tries[who] += 1
            rename(c, orgs[who])
            if tries[who] == 1:
                met.wait(10)
            rename(c, orgs[1 - who])

        return work

    await asyncio.gather(*(store._db.write_rows(crosswise(who)) for who, store in enumerate(stores)))
    assert sorted(tries) == [1, 2]
    assert sorted(row.name for row in await stores[0].list_orgs()) == ["a!!", "b!!"]


def someone_waits(c: psycopg.Connection[Any]) -> bool:
    """Whether anybody waits for a lock on this database."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return c.execute(waiting.encode()).fetchone() is not None


async def first_waits(url: str, table: str, key: str, ids: list[str], work: Coroutine[Any, Any, Any]) -> None:
    """Asserts that work which waits for the first of these rows has locked none of the others: two who lock several
    rows in one order never wait for each other."""
    with psycopg.connect(url, autocommit=True) as looker, psycopg.connect(url) as blocker:
        blocker.execute(f"SELECT 1 FROM {table} WHERE {key} = %s FOR UPDATE".encode(), (ids[0],))
        working = asyncio.create_task(work)
        while not await asyncio.to_thread(someone_waits, looker):
            assert not working.done()
        free = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {key} = ANY(%s) FOR UPDATE SKIP LOCKED) AS free"
        found = looker.execute(free.encode(), (ids[1:],)).fetchone()
        blocker.rollback()
        await working
    assert found == (len(ids) - 1,)


async def test_a_commit_locks_what_is_held_in_order_of_numbers(
    postgres_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the ids of its breakers are, and in however many statements: as the look at what is held does."""
    monkeypatch.setattr(section, "PARAMETERS_MAX", 2)
    m = MuteWorld(await World.make(await open_store(postgres_url)))
    await m.open()
    channel = await m.channel()
    await m.mute()
    ids = [f"{n}0000000-0000-4000-8000-000000000000" for n in range(1, 6)]
    for id_ in ids:
        await m.world.breaker(id_, id=id_)
        await m.adopt(id_)
    for id_ in ids[::-1]:
        await m.moves(id_, "open")
    rows = await m.rows(channel.id)
    assert [row.breaker_id for row in rows] == ids[::-1]
    again = [m.commit(id_, "half_open", "open") for id_ in ids]
    await first_waits(postgres_url, "outbox", "id", [row.id for row in rows], m.world.write(*again))
    assert await m.words(channel.id) == ["trip suppressed"] * 5 + ["trip held"] * 5


@pytest.mark.parametrize("first_goes", [True, False])
async def test_a_change_locks_its_breakers_in_order_whatever_becomes_of_them(
    postgres_url: str, open_store: Open, first_goes: bool
) -> None:
    """As the Journal locks those of a commit: neither ever waits for what the other has behind its own."""
    store = await open_store(postgres_url)
    world = await World.make(store)
    ids = [f"{n}0000000-0000-4000-8000-000000000000" for n in range(1, 5)]
    for id_ in ids:
        await world.breaker(id_, id=id_)
    gone = ids[0] if first_goes else ids[-1]
    items = [BreakerItem(rule=RULE, id=id_, name=f"new {id_}") for id_ in ids if id_ != gone]
    work = store.replace_breakers(world.project_id, items, lambda *_: None, 10)
    await first_waits(postgres_url, "breakers", "id", ids, work)
    assert sorted(row.name for row in (await store.list_breakers(world.project_id))[0]) == [
        f"new {id_}" for id_ in ids if id_ != gone
    ]


async def test_removal_of_old_events_takes_from_sums_in_order(postgres_url: str, open_store: Open) -> None:
    """Of a whole step, as the Journal adds to those of a commit: whoever's events come first in it."""
    store = await open_store(postgres_url)
    world = await World.make(store)
    other = await world.neighbour("other")
    first, last = sorted([world, other], key=lambda world: world.project_id)
    await first.take_journal()
    row = await first.breaker("a")
    assert await first.write(first.commit(row.id, await first.own(row.id), event(1))) == ["ok"]

    def fill(c: Connection) -> None:
        like = dict(c.execute(select(t.events)).one()._mapping)
        places = [last.project_id, first.project_id] * (PAGE // 2 - 1) + [last.project_id]
        c.execute(update(t.events).values(sequence=PAGE, breaker_id="gone"))
        rows = [like | {"sequence": n, "transition_seq": 1 + n, "project_id": id_} for n, id_ in enumerate(places, 1)]
        c.execute(insert(t.events), [row | {"breaker_id": "gone"} for row in rows])
        for id_ in (first.project_id, last.project_id):
            add(c, id_, "events", places.count(id_))

    await store._db.write(fill)
    ids = [first.project_id, last.project_id]
    await first_waits(postgres_url, "stored", "what = 'events' AND of_id", ids, store.prune(1 << 60))
    left = select(t.stored.c.used).where(t.stored.c.what == "events")
    assert await store._db.read(lambda c: c.execute(left).scalars().all()) == [0, 0]


async def test_who_adds_to_the_same_sums_in_other_orders_is_not_sent_away(postgres_url: str, open_store: Open) -> None:
    """A change and a commit, each of which has added to what the other adds to next: both go through at the first
    try."""
    changes, commits = await open_store(postgres_url), await open_store(postgres_url)
    both, tries = threading.Barrier(2, timeout=20), Counter[str]()

    def adding(name: str, order: int) -> Callable[[Connection], None]:
        def work(c: Connection) -> None:
            tries[name] += 1
            first, last = (
                lambda: [bump(c, UNMUTED), add(c, "b", "deliveries", 1)],
                lambda: [add(c, "a", "deliveries", 1), bump(c, UNSENT)],
            )[::order]
            first()
            if tries[name] == 1:
                both.wait()
            last()

        return work

    await changes._db.write(lambda c: [add(c, id_, "deliveries", 1) for id_ in "ab"])
    await asyncio.gather(changes._db.write(adding("a change", 1)), commits._db.write_rows(adding("a commit", -1)))
    assert tries == {"a change": 1, "a commit": 1}
    sums = await changes._db.read(lambda c: [used(c, id_, "deliveries") for id_ in "ab"])
    assert sums == [3, 3]


async def test_warnings_of_mutes_lock_sums_in_order(postgres_url: str, open_store: Open) -> None:
    """Of projects, as the Journal does, whatever the ids of their mutes are."""
    store = await open_store(postgres_url)
    world = await World.make(store)
    epoch = await store.open_notifier()
    worlds = sorted([world, await world.neighbour("other")], key=lambda world: world.project_id)
    behind: dict[str, dict[str, int]] = {}
    for one in worlds:
        told = MuteWorld(one)
        channel, others = await told.channel(), [await told.mute() for _ in range(8)]
        behind |= {mute.id: {channel.id: 1} for mute in others}
        await store._db.write(lambda c, id_=one.project_id: add(c, id_, "deliveries", 1))  # type: ignore[misc]
    ids = [one.project_id for one in worlds]
    work = store.warn_of_ends(epoch, HOUR - AHEAD_MS, AHEAD_MS, behind)
    await first_waits(postgres_url, "stored", "what = 'deliveries' AND of_id", ids, work)
    assert await store._db.read(lambda c: [used(c, id_, "deliveries") for id_ in ids]) == [9, 9]


@pytest.mark.parametrize("state", AGAIN)
async def test_tries_are_counted(postgres_url: str, open_store: Open, state: str) -> None:
    store = await open_store(postgres_url)
    tries = 0

    def refused(c: Connection) -> None:
        nonlocal tries
        tries += 1
        c.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    with pytest.raises(Unavailable, match=r"does not answer: again$"):
        await store._db.write(refused)
    assert tries == TRIES


async def test_a_lock_is_not_waited_for_for_ever(postgres_url: str, open_store: Open) -> None:
    store = await open_store(with_options(postgres_url, lock_timeout="100ms"))
    org = await store.create_org("acme", 1)
    with psycopg.connect(postgres_url) as blocker:
        blocker.execute("SELECT * FROM orgs FOR UPDATE")
        with pytest.raises(Unavailable, match="canceling statement due to lock timeout"):
            await store._db.write(lambda c: rename(c, org))
        blocker.rollback()
    await store._db.write(lambda c: rename(c, org))


async def test_who_stops_in_the_middle_holds_nobody_up(postgres_url: str, open_store: Open) -> None:
    """A process that sleeps inside a transaction loses it, and with it the turn it held."""
    sleeper = await open_store(with_options(postgres_url, idle_in_transaction_session_timeout="200ms"))
    store = await open_store(postgres_url)
    inside, leave = threading.Event(), threading.Event()

    def sleep(c: Connection) -> None:
        c.execute(text("INSERT INTO orgs VALUES ('o', 'half', 1)"))
        inside.set()
        assert leave.wait(10)
        c.execute(text("SELECT 1"))

    sleeping = asyncio.create_task(sleeper._db.write(sleep))
    await asyncio.to_thread(inside.wait, 10)
    await store.create_org("acme", 1)
    leave.set()
    with pytest.raises(Unavailable):
        await sleeping
    assert [row.name for row in await sleeper.list_orgs()] == ["acme"]


async def test_connections_that_the_server_ended_are_replaced_unnoticed(postgres_url: str, open_store: Open) -> None:
    """As after a restart: no caller gets an error for a connection that was not in use."""
    store = await open_store(postgres_url)
    await asyncio.gather(store.create_org("acme", 1), *(store.list_orgs() for _ in range(6)))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        admin.execute(f"SELECT pg_terminate_backend(pid, 5000) {others}".encode())
        assert admin.execute(f"SELECT count(*) {others}".encode()).fetchone() == (0,)
    await asyncio.gather(store.create_org("next", 2), *(store.list_orgs() for _ in range(6)))


async def test_a_commit_whose_answer_is_lost_is_no_success(postgres_url: str, open_store: Open) -> None:
    """It is Unavailable; sent again, it is found to be stored, and is stored once."""
    async with proxy(postgres_url) as way:
        store = await open_store(way.url)
        world = await World.make(store)
        row = await world.breaker("a")
        epoch = await world.own(row.id)
        commit = world.commit(row.id, epoch, event(1))
        way.losing = 1
        with pytest.raises(Unavailable, match="does not answer"):
            await store.commit(world.journal, [commit])
        assert way.lost == 1
        world.journal = await store.open_journal(0)
        assert await world.write(commit) == ["repeated"]
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)
        way.losing = 1
        with pytest.raises(Unavailable):
            await store.create_org("twin", 1)
        assert "twin" in [org.name for org in await store.list_orgs()]
        await store.close()


async def test_a_text_that_postgresql_can_not_hold_is_invalid(postgres_url: str, open_store: Open) -> None:
    store = await open_store(postgres_url)
    with pytest.raises(Invalid, match=r"U\+0000"):
        await store.create_org("a\0b", 1)


async def test_connections_are_as_many_as_threads_at_most(postgres_url: str, open_store: Open) -> None:
    store = await open_store(postgres_url)
    many = [store.create_org(str(n), n) for n in range(30)]
    await asyncio.gather(*many, *(store.touch_keys({"x": n}) for n in range(30)), *(store.ping() for _ in range(90)))
    with psycopg.connect(postgres_url) as connection:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'breakers' AND datname = current_database()"
        )
        (count,) = connection.execute(query.encode()).fetchone() or (0,)
        assert 3 <= count <= 5  # one of each kind of work at least; a second reader is made when the first is busy
