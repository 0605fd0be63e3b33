"""SQLite's write-ahead log of the store: emptied beyond its bound, while others write and read without a pause."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import text

from breaker_actors.sql.database import Database
from breaker_actors.sql.sqlite import EMPTY_AGAIN_S, WAL_MAX, LogKeeper, make_file

MIB = 1 << 20


def opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("CREATE TABLE IF NOT EXISTS things (text)")
    return connection


def write(connection: sqlite3.Connection, size: int) -> None:
    connection.execute("INSERT INTO things VALUES (zeroblob(?))", (size,))


def size_of(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_a_log_beyond_its_bound_is_emptied_once_its_readers_have_ended(tmp_path: Path) -> None:
    """Who reads goes on to see what it saw; it is tried again a while after."""
    path = tmp_path / "a"
    make_file(path)
    writer, reader = opened(path), opened(path)
    keeper = LogKeeper(path, MIB)
    write(writer, 10)
    assert not keeper.is_due(0.0)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM things").fetchone() == (1,)
    write(writer, 2 * MIB)
    assert keeper.is_due(0.0)
    keeper.empty(writer, 0.0)
    assert size_of(path) > MIB
    assert reader.execute("SELECT count(*) FROM things").fetchone() == (1,)
    reader.execute("COMMIT")
    assert not keeper.is_due(EMPTY_AGAIN_S / 2)
    assert keeper.is_due(EMPTY_AGAIN_S)
    keeper.empty(writer, EMPTY_AGAIN_S)
    assert size_of(path) == 0
    assert reader.execute("SELECT count(*) FROM things").fetchone() == (2,)


def test_no_file_is_no_fault(tmp_path: Path) -> None:
    assert not LogKeeper(tmp_path / "none", 0).is_due(0.0)


async def test_writes_of_a_store_keep_it_within_its_bound(tmp_path: Path) -> None:
    """A commit of any size is followed by an empty log."""
    path = tmp_path / "a"
    make_file(path)
    database = Database(f"sqlite:///{path}")
    database.open()
    await database.write(lambda c: c.execute(text("CREATE TABLE things (text)")))
    await database.write_rows(lambda c: c.execute(text(f"INSERT INTO things VALUES (zeroblob({WAL_MAX}))")))
    assert size_of(path) == 0
    await database.write(lambda c: c.execute(text("INSERT INTO things VALUES (1)")))
    assert await database.read(lambda c: c.execute(text("SELECT count(*) FROM things")).scalar_one()) == 2
    await database.close()
