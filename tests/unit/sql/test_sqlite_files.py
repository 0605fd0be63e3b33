"""SQLite files that several processes share."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from breaker_actors.sql.sqlite import make_file

OTHER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("INSERT INTO t VALUES (2)")
connection.close()
"""


def test_a_file_that_is_there_can_be_made_while_it_is_read(tmp_path: Path) -> None:
    """Its reader sees what others write afterwards: it still has its locks, so the last other one that closes the file
    leaves the write-ahead log alone."""
    path = tmp_path / "log.sqlite"
    make_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("CREATE TABLE t (n)")
        reader.execute("INSERT INTO t VALUES (1)")
        make_file(path)
        for n in (2, 3):
            subprocess.run([sys.executable, "-c", OTHER, path], check=True)
            assert path.with_name("log.sqlite-wal").exists()
            assert reader.execute("SELECT count(*) FROM t").fetchone() == (n,)


def test_what_is_made_is_its_users_own(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log.sqlite"
    make_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
