"""What a process loads for its store and its log."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.records import SAMPLES
from breaker_actors.settings import Settings
from breaker_actors.stores.opening import make_log
from breaker_actors.stores.samplelog import Append
from breaker_actors.stores.sqlitelog import SqliteLog

LOADED = """
import sys
from pathlib import Path
import breaker_actors.host, breaker_actors.router
from breaker_actors import actors
from breaker_actors.settings import Settings
from breaker_actors.stores.opening import make_log
make_log(Settings(data_dir=Path("nowhere")))
print(*sorted({"sqlalchemy", "alembic", "psycopg", "cryptography"} & sys.modules.keys()))
"""


def test_an_actor_that_only_logs_to_sqlite_loads_nothing_of_the_store() -> None:
    """There are many of them: it would cost each a third of a second of CPU to start, and 30 MB."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("settings", "synchronous"), [({"log_synchronous": True}, 2), ({}, 1)])
async def test_appends_are_synced_one_by_one_when_they_are_to_survive_a_power_loss(
    tmp_path: Path, settings: dict[str, Any], synchronous: int
) -> None:
    """SQLite's words: 2 is FULL, an fsync for every commit; 1 is NORMAL, which is enough for a process that dies."""

    def asked(connection: sqlite3.Connection) -> tuple[str, int]:
        return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))

    log = make_log(Settings(data_dir=tmp_path, **settings))
    assert isinstance(log, SqliteLog)
    try:
        await log.take("router-0", "owner", [("a", 1)], 0, 0)
        assert await log.append("router-0", [Append("a", 1, 1, 100, SAMPLES, 0, b"payload")]) == [True]
        assert await log._write("router-0", asked, ("", 0)) == ("wal", synchronous)
        assert [record.offset for record in await log.read("router-0", "a", 0, 9)] == [1]
    finally:
        await log.close()
