"""Migrations: they end at the tables of the program, run once, and refuse a newer database."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine

from breaker_actors.errors import SchemaMismatch, Unavailable
from breaker_actors.stores import migrations
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore, upgrade
from breaker_actors.stores.tables import metadata

VERSIONS = "alembic_version"


def _schema(path: Path) -> dict[str, list[str]]:
    """The lines of every statement of the schema, sorted: the order of constraints in a table means nothing."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: sorted(line.strip(" ,\t") for line in sql.splitlines()) for name, sql in rows if name != VERSIONS}


def _engine(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


def test_migrations_end_at_the_tables(tmp_path: Path) -> None:
    """The migrated schema is the one of metadata.create_all, line by line."""
    migrated, created = tmp_path / "migrated", tmp_path / "created"
    assert upgrade(f"sqlite:///{migrated}")
    engine = _engine(created)
    metadata.create_all(engine)
    engine.dispose()
    assert _schema(migrated) == _schema(created)
    engine = _engine(migrated)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_known_revisions_are_the_files() -> None:
    """The list that saves importing Alembic is up to date."""
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert [revision.revision for revision in script.walk_revisions()][::-1] == list(migrations.KNOWN)
    assert script.get_current_head() == migrations.HEAD


def test_upgrade_is_quick_and_runs_once(tmp_path: Path) -> None:
    """False and a few milliseconds when there is nothing to do."""
    url = f"sqlite:///{tmp_path / 'deep' / 'a'}"
    start = time.perf_counter()
    assert upgrade(url)
    first = time.perf_counter()
    assert not upgrade(url)
    assert first - start < 2.0
    assert time.perf_counter() - first < 0.5


def test_several_upgrade_at_once(tmp_path: Path) -> None:
    """One does it, the others wait for it."""
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(upgrade, [f"sqlite:///{tmp_path / 'a'}"] * 6))
    assert sorted(done) == [False] * 5 + [True]


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    """In one line that names both revisions; open() says the same."""
    path = tmp_path / "a"
    upgrade(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(SchemaMismatch, match=r"^the database has schema 9999, this program knows up to \d+") as caught:
        upgrade(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)
    store = SqlStore(f"sqlite:///{path}", SecretBox(bytes(32)))
    with pytest.raises(SchemaMismatch):
        await store.open()
    await store.close()


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """Unavailable, with SQLite's own words."""
    (tmp_path / "a").write_bytes(b"x" * 5000)
    with pytest.raises(Unavailable, match="not a database"):
        upgrade(f"sqlite:///{tmp_path / 'a'}")
