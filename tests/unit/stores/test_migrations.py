"""Migrations: they end at the tables of the program, run once, and refuse a newer database."""

from __future__ import annotations

import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
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
    """The items of every statement of the schema, sorted: the order of constraints in a table means nothing, nor do the
    line breaks that a later ALTER TABLE leaves out."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: _items(sql) for name, sql in rows if name != VERSIONS}


def _items(sql: str) -> list[str]:
    head, _, body = sql.rpartition(")")[0].partition("(")
    return [" ".join(head.split()), *sorted(" ".join(item.split()) for item in re.split(r",(?![^(]*\))", body))]


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


async def test_a_database_of_the_first_schema_keeps_its_data(tmp_path: Path) -> None:
    """Upgraded by the next start, with nothing lost."""
    path = tmp_path / "a"
    engine = _engine(path)
    with engine.connect() as connection, connection.begin():
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.exec_driver_sql("INSERT INTO orgs VALUES ('o', 'acme', 1)")
        connection.exec_driver_sql("INSERT INTO workspaces VALUES ('w', 'o', 'main', 'main', 1)")
    engine.dispose()
    store = SqlStore(f"sqlite:///{path}", SecretBox(bytes(32)))
    await store.open()
    assert [row.name for row in await store.list_orgs()] == ["acme"]
    project = await store.create_project("o", "w", "shop", 2)
    assert await store.list_projects("o") == [project]
    await store.close()
