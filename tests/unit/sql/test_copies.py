"""Copies of SQLite files are of one instant, whatever others write meanwhile."""

from __future__ import annotations

import errno
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from breaker_actors.errors import Unavailable
from breaker_actors.sql import copies
from breaker_actors.sql.sqlite import make_file
from breaker_actors.sql.turnstile import begin_write
from tests.support.full_disk import full_disk

ROWS = 3_000
OTHER = """
import sqlite3, sys
for path in sys.argv[1:]:
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    connection.execute("UPDATE t SET n = n + 1")
    connection.execute("INSERT INTO t SELECT 7, randomblob(2000) FROM t LIMIT 500")
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.close()
"""


def made(path: Path) -> Path:
    make_file(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (n, filler)")
        connection.executemany("INSERT INTO t VALUES (1, randomblob(2000))", [()] * ROWS)
    return path


def rows(path: Path) -> tuple[int, int, int]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found: tuple[int, int, int] = connection.execute("SELECT count(*), min(n), max(n) FROM t").fetchone()
        return found


def test_what_others_write_meanwhile_is_in_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes before the first file is copied, and in the middle of each copy."""
    monkeypatch.setattr(copies, "STEP_PAGES", 500)
    first, other = made(tmp_path / "first.sqlite"), made(tmp_path / "log" / "other.sqlite")

    def write() -> None:
        subprocess.run([sys.executable, "-c", OTHER, first, other], check=True)

    for number in range(2):  # with write-ahead logs that are there, and without
        before, told = [rows(first), rows(other)], list[int]()

        def tell(done: int, told: list[int] = told) -> None:
            told.append(done)
            if not told[1:] or told[-2] > done:
                write()

        with copies.pinned(first, lambda: [other]) as files:
            write()
            assert [file.path for file in files] == [first, other]
            for file in files:
                copies.copy(file, tmp_path / f"{number}-{file.path.name}", tell)
            assert told[-1] == files[-1].size > 6_000_000
            assert len(told) >= 6
        found = [tmp_path / f"{number}-{path.name}" for path in (first, other)]
        assert [rows(path) for path in found] == before
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in found)
        assert rows(first)[0] > before[0][0]


def test_who_writes_waits_until_all_are_pinned(tmp_path: Path) -> None:
    first, other = made(tmp_path / "first.sqlite"), made(tmp_path / "other.sqlite")
    written = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(first, isolation_level=None)) as connection:
            begin_write(connection, tmp_path)
            connection.execute("COMMIT")
        written.set()

    writer = threading.Thread(target=write)

    def others() -> list[Path]:
        writer.start()
        assert not written.wait(0.2)
        return [other]

    with copies.pinned(first, others):
        writer.join(5)
        assert written.is_set(), "it waits no longer"


def test_a_writer_that_goes_on_is_waited_for_no_longer_than_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breaker_actors.sql.turnstile.BUSY_TIMEOUT_S", 0.1)
    first = made(tmp_path / "first.sqlite")
    with closing(sqlite3.connect(first, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match=r"first\.sqlite: database is locked"), copies.pinned(first, list):
            pass


def test_what_can_not_be_copied_is_named(tmp_path: Path) -> None:
    first, broken = made(tmp_path / "first.sqlite"), tmp_path / "broken.sqlite"
    broken.write_bytes(b"nothing of SQLite" * 500)
    with (
        pytest.raises(Unavailable, match=r"broken\.sqlite: file is not a database"),
        copies.pinned(first, lambda: [broken]),
    ):
        pass
    with (
        pytest.raises(Unavailable, match=r"gone\.sqlite: unable to open"),
        copies.pinned(tmp_path / "gone.sqlite", list),
    ):
        pass


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made(tmp_path / "first.sqlite")
    with copies.pinned(first, list) as (file,):
        with full_disk(1 << 20), pytest.raises(Unavailable, match=re.escape(str(tmp_path / "copy.sqlite"))):
            copies.copy(file, tmp_path / "copy.sqlite")
    connect = copies._connect

    def small(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count=100")
        return connection

    with copies.pinned(first, list) as (file,):
        monkeypatch.setattr(copies, "_connect", small)
        with pytest.raises(OSError, match="No space left") as raised:
            copies.copy(file, tmp_path / "full.sqlite")
        assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "full.sqlite"))
