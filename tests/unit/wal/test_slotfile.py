"""A log file of an earlier version is brought up to date when it is opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from breaker_actors.core.log_entries import BREAKER, SAMPLES
from breaker_actors.wal.base import Append
from breaker_actors.wal.sqlite import SqliteLog
from breaker_actors.wal.sqlite_file import file_name, newest_change


async def test_bytes_are_counted_once_in_an_older_file(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    await log.acquire("r-0", "o", [("a", 1), ("b", 1)], 0, 0)
    payloads = {1: bytes(30), 2: bytes(5_000)}
    await log.append("r-0", [Append("a", 1, n, n, SAMPLES, 0, payload) for n, payload in payloads.items()])
    stock = await log.stock("r-0")
    await log.close()
    with closing(sqlite3.connect(tmp_path / file_name("r-0"))) as connection:
        connection.execute("ALTER TABLE heads DROP COLUMN bytes")
    log = SqliteLog(tmp_path)
    await log.acquire("r-0", "o", [("a", 2)], 0, 0)
    assert await log.stock("r-0") == stock
    assert stock[0].bytes > 5_000
    await log.close()


async def test_a_file_without_checksums_is_read_before_its_owner_is_there(tmp_path: Path) -> None:
    """And goes on with them."""
    log = SqliteLog(tmp_path)
    await log.acquire("r-0", "o", [("a", 1)], 0, 0)
    await log.append("r-0", [Append("a", 1, n, n, SAMPLES, 0, b"x") for n in (1, 2)])
    await log.close()
    with closing(sqlite3.connect(tmp_path / file_name("r-0"))) as connection:
        for table, columns in (
            ("records", ("before", "checksum")),
            ("heads", ("checksum", "unchained", "floor", "seal")),
        ):
            for column in columns:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    log = SqliteLog(tmp_path)
    assert [record.offset for record in await log.read("r-0", "a", 0, 9)] == [1, 2]
    (head,) = await log.acquire("r-0", "o", [("a", 2)], 0, 0)
    assert head.damage == ""
    assert await log.append("r-0", [Append("a", 2, 3, 3, SAMPLES, 0, b"y")]) == [True]
    assert [record.offset for record in await log.read("r-0", "a", 0, 9)] == [1, 2, 3]
    await log.close()


async def test_a_watermark_reads_no_head_twice_and_writes_nothing_twice(tmp_path: Path) -> None:
    log = SqliteLog(tmp_path)
    routers = [(f"r{i}", 1) for i in range(100)]
    await log.acquire("r-0", "o", routers, 0, 0)
    assert await log.advance_watermark("r-0", "o", routers, 1_000) == [True] * 100
    said: list[str] = []
    await log._write("r-0", lambda c: c.set_trace_callback(said.append), None)
    frames = tmp_path / f"{file_name('r-0')}-wal"
    assert await log.advance_watermark("r-0", "o", routers, 1_001) == [True] * 100
    assert not [one for one in said if "heads" in one]
    size = frames.stat().st_size
    assert await log.advance_watermark("r-0", "o", routers[:50], 1_001) == [True] * 50
    assert await log.advance_watermark("r-0", "o", routers[50:], 1_000) == [True] * 50
    assert frames.stat().st_size == size
    await log.close()


async def test_the_newest_change_is_known_when_its_record_is_trimmed(tmp_path: Path) -> None:
    """None of what is not in the log, of a file that is not there, of an earlier version, or that is none."""
    path, log = tmp_path / file_name("r-0"), SqliteLog(tmp_path)
    assert newest_change(path) == 0
    await log.acquire("r-0", "o", [("a", 1)], 0, 0)
    assert newest_change(path) == 0
    changes = [Append("a", 1, n, n, BREAKER, 0, b"x", change=number) for n, number in ((1, 7), (2, 5), (3, 0))]
    assert await log.append("r-0", changes) == [True] * 3
    assert await log.append("r-0", [Append("a", 1, 9, 9, BREAKER, 0, b"x", change=99)]) == [False]
    await log.trim("r-0", "a", 3)
    assert newest_change(path) == 7
    await log.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE told")
    assert newest_change(path) == 0
    path.write_bytes(b"none" * 1024)
    assert newest_change(path) == 0
