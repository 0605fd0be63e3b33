"""What a process loads for its store and its log."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.log_entries import SAMPLES
from breaker_actors.persistence import make_log
from breaker_actors.settings import Settings
from breaker_actors.wal.base import Append
from breaker_actors.wal.sqlite import SqliteLog

LOADED = """
import sys
from pathlib import Path
import breaker_actors.breaker.host, breaker_actors.router.host
from breaker_actors.ray_runtime import actors
from breaker_actors.settings import Settings
from breaker_actors.persistence import make_log
make_log(Settings(data_dir=Path("nowhere")))
print(*sorted({"sqlalchemy", "alembic", "psycopg", "cryptography"} & sys.modules.keys()))
"""

STORE = """
import asyncio, sys
from pathlib import Path
from breaker_actors.persistence import make_store
from breaker_actors.ray_runtime.presence import show_presence
from breaker_actors.settings import Settings

async def main():
    settings = Settings(data_dir=Path(sys.argv[1]))
    store = make_store(settings)
    await store.open()
    assert show_presence(settings, "session") is None
    assert not await store.has_org()
    await store.close()

asyncio.run(main())
print(*sorted({"alembic", "psycopg"} & sys.modules.keys()))
"""


def test_a_store_on_sqlite_is_opened_without_the_driver_of_postgresql(tmp_path: Path) -> None:
    """Five processes of a service do; the driver costs each 0.1 s of CPU."""
    for loaded in (["alembic"], []):  # the first makes the schema
        command = [sys.executable, "-c", STORE, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.split() == loaded


def test_an_actor_that_only_logs_to_sqlite_loads_nothing_of_the_store() -> None:
    """There are many of them: it would cost each a third of a second of CPU to start, and 30 MB."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("settings", "synchronous"),
    [({}, 2), ({"durability": "process"}, 1), ({"log_synchronous": True}, 2), ({"log_synchronous": False}, 1)],
)
async def test_appends_are_synced_one_by_one_when_they_are_to_survive_a_power_loss(
    tmp_path: Path, settings: dict[str, Any], synchronous: int
) -> None:
    """SQLite's words: 2 is FULL, an fsync for every commit; 1 is NORMAL, which is enough for a process that dies."""

    def asked(connection: sqlite3.Connection) -> tuple[str, int]:
        return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))

    log = make_log(Settings(data_dir=tmp_path, **settings))
    assert isinstance(log, SqliteLog)
    try:
        await log.acquire("router-0", "owner", [("a", 1)], 0, 0)
        assert await log.append("router-0", [Append("a", 1, 1, 100, SAMPLES, 0, b"payload")]) == [True]
        assert await log._write("router-0", asked, ("", 0)) == ("wal", synchronous)
        assert [record.offset for record in await log.read("router-0", "a", 0, 9)] == [1]
    finally:
        await log.close()


def test_the_bounds_of_a_store_are_those_of_the_settings(tmp_path: Path) -> None:
    """Each setting reaches its own; the defaults are the same in both places."""
    from breaker_actors.persistence import make_store
    from breaker_actors.store.quotas import Shares

    key = "ab" * 32
    given = Settings(data_dir=tmp_path, secret_key=key)  # type: ignore[arg-type]
    assert make_store(given)._db._options["shares"] == Shares()
    names = (
        "deliveries_max",
        "projects_per_org_max",
        "workspaces_per_org_max",
        "keys_per_org_max",
        "org_full_projects",
    )
    changed = given.model_copy(update={name: 2_000 + i for i, name in enumerate(names)})
    assert make_store(changed)._db._options["shares"] == Shares(
        deliveries=2_000, projects=2_001, workspaces=2_002, keys=2_003, full_projects=2_004
    )
