"""What the sample log does on PostgreSQL only: fences between sessions, lost answers, the count of its bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest

from breaker_actors.core.log_entries import SAMPLES, VIEW
from breaker_actors.errors import Unavailable
from breaker_actors.wal import postgres_sql as pgrecords
from breaker_actors.wal.base import Append
from breaker_actors.wal.postgres import PgLog
from tests.support.pgproxy import proxy

SLOT = "r-0"
Open = Callable[..., PgLog]


@pytest.fixture
async def open_log() -> AsyncIterator[Open]:
    logs: list[PgLog] = []

    def make(url: str, **options: int) -> PgLog:
        logs.append(PgLog(url, **options))
        return logs[-1]

    yield make
    for log in logs:
        await log.close()


def rec(offset: int, router: str = "a", epoch: int = 1, payload: bytes = b"p", **fields: object) -> Append:
    values = {"received_ms": 100 * offset, "kind": SAMPLES, "view_offset": 0, "keys": (offset.to_bytes(16, "big"),)}
    return Append(router_id=router, epoch=epoch, offset=offset, payload=payload, **{**values, **fields})  # type: ignore[arg-type]


async def test_an_append_whose_answer_is_lost(postgres_url: str, open_log: Open) -> None:
    """It is Unavailable; the repetition says that it is there, and there it is once."""
    async with proxy(postgres_url, at=b"INSERT INTO log_records") as way:
        log = open_log(way.url)
        await log.acquire(SLOT, "o1", [("a", 1)], 0, 0)
        assert await log.append(SLOT, [rec(1)]) == [True]
        for offset in (2, 4):
            records = [rec(offset), rec(offset + 1)]
            way.losing = 1
            with pytest.raises(Unavailable, match=r"^the sample log does not answer: "):
                await log.append(SLOT, records)
            assert await log.append(SLOT, records) == [True, True]
            assert await log.append(SLOT, [rec(offset, payload=b"other")]) == [False]
        assert way.lost == 2
        assert [r.offset for r in await log.read(SLOT, "a", 0, 99)] == [1, 2, 3, 4, 5]
        await log.close()


async def test_a_take_whose_answer_is_lost_answers_alike(postgres_url: str, open_log: Open) -> None:
    async with proxy(postgres_url) as way:
        log = open_log(way.url)
        await log.acquire(SLOT, "o1", [("a", 1)], 1000, 0)
        await log.alive(SLOT, "o1", 5000)
        way.losing = 1
        with pytest.raises(Unavailable):
            await log.acquire(SLOT, "o2", [("a", 2)], 9000, 0)
        await log.alive(SLOT, "o2", 9500)
        (head,) = await log.acquire(SLOT, "o2", [("a", 2)], 9600, 0)
        assert (head.epoch, head.alive_ms) == (2, 5000)
        await log.close()


async def test_of_many_who_take_a_new_router_the_highest_epoch_has_it(postgres_url: str, open_log: Open) -> None:
    """Whatever the order in which they get through, epochs only go up and one can append."""
    logs = [open_log(postgres_url) for _ in range(6)]
    routers = ["a", "b", "c"]

    async def contend(epoch: int) -> list[str]:
        wanted = [(router, epoch) for router in (routers if epoch % 2 else routers[::-1])]
        return [head.router_id for head in await logs[epoch].acquire(SLOT, f"o{epoch}", wanted, 0, 0)]

    taken = await asyncio.gather(*map(contend, range(6)))
    assert sorted(taken[5]) == routers
    appended = [await logs[n].append(SLOT, [rec(1, router, n) for router in routers]) for n in range(6)]
    assert appended == [[False] * 3] * 5 + [[True] * 3]
    await asyncio.gather(*(logs[n].alive(SLOT, f"o{n}", 1) for n in range(6)))
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT owner FROM log_alive").fetchall() == [("o5",)]


async def test_a_promise_and_a_take_never_miss_each_other(postgres_url: str, open_log: Open) -> None:
    """A promise that was given is in what the next owner is told; one that it is not told of was not given."""
    old, new = open_log(postgres_url), open_log(postgres_url)
    for n in range(1, 30):
        await old.acquire(SLOT, f"old{n}", [("a", 2 * n)], 0, 0)
        given, (head,) = await asyncio.gather(
            old.advance_watermark(SLOT, f"old{n}", [("a", 2 * n)], 10_000 + n),
            new.acquire(SLOT, f"new{n}", [("a", 2 * n + 1)], 0, 0),
        )
        assert given == [head.alive_ms == 10_000 + n]


async def test_a_promise_reads_the_heads_that_it_is_for(postgres_url: str, open_log: Open) -> None:
    """Not all of the slot, in whatever plan, also while nothing is known of the table."""
    ids = [f"r{i:04}" for i in range(2_000)]
    await open_log(postgres_url).acquire(SLOT, "o", [(id_, 1) for id_ in ids], 0, 0)
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'log_heads'"
    for mode in ("force_custom_plan", "force_generic_plan"):
        with psycopg.connect(f"{postgres_url}?options=-c%20plan_cache_mode%3D{mode}") as connection:
            given = pgrecords.advance_watermark(connection, SLOT, "o", [(id_, 1) for id_ in ids[:100]], 1)
            assert given == [True] * 100
            assert connection.execute(read).fetchone() == (100,)


async def test_a_zombie_inside_an_append_gets_nothing_in(postgres_url: str, open_log: Open) -> None:
    """One that sleeps with its heads locked is thrown out; the next owner does not wait for it for ever."""
    log = open_log(postgres_url)
    await log.acquire(SLOT, "o1", [("a", 1)], 0, 0)
    with psycopg.connect(f"{postgres_url}?options=-c%20idle_in_transaction_session_timeout%3D200ms") as zombie:
        locked = zombie.execute(pgrecords._LOCK_HEADS.encode(), {"slot": SLOT, "ids": ["a"]}).fetchall()
        assert len(locked) == 1
        await log.acquire(SLOT, "o2", [("a", 2)], 0, 0)
        with pytest.raises(psycopg.Error, match="idle-in-transaction"):
            zombie.execute("INSERT INTO log_records VALUES ('r-0', 'a', 1, 1, 1, 0, '')")
    assert await log.append(SLOT, [rec(1, epoch=2)]) == [True]


async def test_readers_and_trims_hold_no_writer_up(postgres_url: str, open_log: Open) -> None:
    """With a reader in the middle of the table and a long trim going on, appends get through and are all there."""
    log, upkeep = open_log(postgres_url), open_log(postgres_url)
    await log.acquire(SLOT, "o1", [("a", 1)], 0, 0)
    await log.append(SLOT, [rec(1, kind=VIEW)])
    await log.append(SLOT, [rec(n, view_offset=1) for n in range(2, 3000)])
    with psycopg.connect(postgres_url) as reader:
        assert reader.execute("SELECT count(*) FROM log_records").fetchone() == (2999,)
        trimming = asyncio.create_task(upkeep.trim(SLOT, "a", 2900))
        for n in range(3000, 3100):
            assert await log.append(SLOT, [rec(n, view_offset=1)]) == [True]
        assert await trimming == 2898
    offsets = [r.offset for r in await log.read(SLOT, "a", 0, 9999, 9999)]
    assert offsets == [1, *range(2900, 3100)]
    assert await log.size_bytes(SLOT) == 201 * pgrecords.record_bytes(1)


async def test_the_count_of_bytes_is_about_what_the_tables_take_up(postgres_url: str, open_log: Open) -> None:
    """With payloads small and large."""
    log, router = open_log(postgres_url), "b2c1a9d4-7a35-4f0e-8f3b-2d9c5e6f7a81"
    for size in (64, 1_500, 20_000):
        slot = f"r-{size}"
        await log.acquire(slot, "o1", [(router, 1)], 0, 0)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            before = _table_bytes(connection)
            for start in range(0, 2000, 100):
                records = [rec(start + n, router, payload=os.urandom(size), keys=()) for n in range(1, 101)]
                assert all(await log.append(slot, records))
            taken_up = _table_bytes(connection) - before
        assert await log.size_bytes(slot) == pytest.approx(taken_up, rel=0.1)


def _table_bytes(connection: psycopg.Connection) -> int:
    connection.execute("VACUUM log_records")
    row = connection.execute("SELECT pg_total_relation_size('log_records')").fetchone()
    assert row is not None
    return int(row[0])


async def test_a_forgotten_router_leaves_no_row(postgres_url: str, open_log: Open) -> None:
    """Neither records nor keys nor a head, however many there were; its neighbour keeps its own."""
    log = open_log(postgres_url)
    await log.acquire(SLOT, "o1", [("a", 1), ("b", 1)], 0, 0)
    many = tuple(n.to_bytes(16, "big") for n in range(1500))
    await log.append(SLOT, [*(rec(n) for n in range(1, 1200)), rec(1200, keys=many), rec(1, "b")])
    await log.forget(SLOT, "a")
    with psycopg.connect(postgres_url) as connection:
        for table in ("log_records", "log_heads", "log_keys"):
            assert connection.execute(f"SELECT router_id FROM {table}".encode()).fetchall() == [("b",)]


async def test_connections_are_as_many_as_threads_at_most(postgres_url: str, open_log: Open) -> None:
    """Two for reads, one for writes; an ended one is replaced unnoticed."""
    log = open_log(postgres_url)
    await log.acquire(SLOT, "o1", [("a", 1)], 0, 0)
    for n in (1, 2):
        await asyncio.gather(log.append(SLOT, [rec(n)]), *(log.read(SLOT, "a", 0, 9) for _ in range(20)))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            mine = "FROM pg_stat_activity WHERE application_name = 'breakers' AND datname = current_database()"
            assert connection.execute(f"SELECT pg_terminate_backend(pid, 5000) {mine}".encode()).rowcount <= 3
    assert len(await log.read(SLOT, "a", 0, 9)) == 2


async def test_a_take_reads_the_keys_that_are_not_known_alone(postgres_url: str, open_log: Open) -> None:
    """Neither all of a slot nor all of a router, in whatever plan, also while nothing is known of the table."""
    ids = [f"r{i}" for i in range(20)]
    await open_log(postgres_url).acquire(SLOT, "o1", [(id_, 1) for id_ in ids], 0, 0)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        fill = """INSERT INTO log_keys SELECT 'r-0', 'r' || n % 20, n, decode(md5(n::text), 'hex'), n
            FROM generate_series(1, 20000) AS n"""
        connection.execute(fill)
    read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'log_keys'"
    upto = {"slot": SLOT, "ids": ids[:10], "upto": [19_900] * 10, "after_ms": 0}
    page = {"slot": SLOT, "ids": ids[:10], "offsets": [10_000] * 10, "keys": [b""] * 10, "each": 7}
    for mode in ("force_custom_plan", "force_generic_plan"):
        for statement, values, rows in ((pgrecords._KEYS, upto, 50), (pgrecords._KEYS_PAGE, page, 70)):
            with psycopg.connect(f"{postgres_url}?options=-c%20plan_cache_mode%3D{mode}") as connection:
                assert len(connection.execute(statement.encode(), values, binary=True).fetchall()) == rows
                assert connection.execute(read).fetchone() == (rows,)
