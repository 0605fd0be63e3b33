"""Migrations: they end at the tables of the program, run once, and refuse a newer database. On both databases."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, func, insert, select

from breaker_actors.errors import SchemaMismatch, Unavailable
from breaker_actors.sql.database import make_engine
from breaker_actors.store import migrations
from breaker_actors.store.migrations import upgrade
from breaker_actors.store.migrations.versions.r0023_payloads import INDEXES
from breaker_actors.store.outbox.muting import is_quiet
from breaker_actors.store.quotas import weight_of
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.tables import metadata, mutes, projects, stored
from breaker_actors.wal import postgres_tables as pgtables

VERSIONS = "alembic_version"


def _schema(path: Path) -> dict[str, list[str]]:
    """The items of every statement of the schema, sorted: the order of constraints in a table means nothing, nor do the
    line breaks that a later ALTER TABLE leaves out, nor quotes around a name."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.close()
    return {name: _items(sql) for name, sql in rows if name != VERSIONS}


def _items(sql: str) -> list[str]:
    head, _, body = sql.rpartition(")")[0].partition("(")
    return [
        " ".join(head.replace('"', "").split()),
        *sorted(" ".join(item.split()) for item in re.split(r",(?![^(]*\))", body)),
    ]


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


def test_upgrade_runs_once(tmp_path: Path) -> None:
    """False when there is nothing to do."""
    url = f"sqlite:///{tmp_path / 'deep' / 'a'}"
    assert upgrade(url)
    assert not upgrade(url)


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


def _migrate(engine: Engine, target: str) -> None:
    """To an older schema than the program's, with an organisation and a workspace in it."""
    with engine.connect() as connection, connection.begin():
        config = Config()
        config.set_main_option("script_location", str(Path(migrations.__file__).parent))
        config.attributes["connection"] = connection
        command.upgrade(config, target)
        connection.exec_driver_sql("INSERT INTO orgs VALUES ('o', 'acme', 1)")
        connection.exec_driver_sql("INSERT INTO workspaces VALUES ('w', 'o', 'main', 'main', 1)")
    engine.dispose()


async def _assert_data_is_kept(store: SqlStore) -> None:
    await store.open()
    assert [row.name for row in await store.list_orgs()] == ["acme"]
    project = await store.create_project("o", "w", "shop", 2)
    assert await store.list_projects("o") == [project]
    await store.close()


async def test_a_database_of_the_first_schema_keeps_its_data(tmp_path: Path) -> None:
    """Upgraded by the next start, with nothing lost."""
    path = tmp_path / "a"
    _migrate(_engine(path), "0001")
    await _assert_data_is_kept(SqlStore(f"sqlite:///{path}", SecretBox(bytes(32))))


async def test_events_survive_the_copy_of_their_table(tmp_path: Path) -> None:
    """Another project may number its own transitions of the same id; the same project may not, twice."""
    path = tmp_path / "a"
    _migrate(_engine(path), "0007")
    columns = (
        "shard, sequence, project_id, breaker_id, name, prev, curr, ts_ms, transition_seq, reason, allow_rate, value"
    )
    values = "0, ?, ?, 'b', 'n', 'closed', 'open', 1, 1, 'r', 0.0, NULL, '{}', '{}'"
    event = f"INSERT INTO events ({columns}, rule, agg) VALUES ({values})"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(event, (1, "p"))
        connection.commit()
        before = connection.execute(f"SELECT {columns}, rule, agg FROM events").fetchall()
    assert upgrade(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(f"SELECT {columns}, rule, agg FROM events").fetchall() == before
        connection.execute(event, (2, "q"))
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            connection.execute(event, (3, "p"))


# ---------------------------------------------------------------- PostgreSQL

_COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attcollation, a.attstorage,
    pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attnum > 0
"""
_TABLES = (
    "SELECT relname, reloptions FROM pg_class WHERE relkind IN ('r', 'S') AND relnamespace = 'public'::regnamespace"
)
_CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
"""
_INDEXES = "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"


def _catalog(url: str) -> dict[str, list[str]]:
    """All there is in a database but for the order of columns."""
    with psycopg.connect(url) as connection:
        queries = (_COLUMNS, _TABLES, _CONSTRAINTS, _INDEXES)
        found = {query: connection.execute(query.encode()).fetchall() for query in queries}
    return {query: sorted(repr(row) for row in rows if row[0] != VERSIONS) for query, rows in found.items()}


def test_on_postgresql_migrations_end_at_the_tables(postgres_url: str, empty_postgres_url: str) -> None:
    """The sample log's tables are there, too."""
    engine = make_engine(empty_postgres_url)
    for tables in (metadata, pgtables.metadata):
        tables.create_all(engine)
    assert _catalog(postgres_url) == _catalog(empty_postgres_url)
    engine.dispose()
    engine = make_engine(postgres_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, [metadata, pgtables.metadata]) == []
    engine.dispose()


def test_on_postgresql_several_upgrade_at_once(empty_postgres_url: str) -> None:
    """One does it, the others wait for it."""
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(upgrade, [empty_postgres_url] * 6))
    assert sorted(done) == [False] * 5 + [True]
    assert migrations.current(empty_postgres_url) == migrations.HEAD


async def test_an_empty_postgresql_database_is_made_by_whoever_opens_it_first(empty_postgres_url: str) -> None:
    stores = [SqlStore(empty_postgres_url, SecretBox(bytes(32))) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.close() for store in stores))
    assert migrations.current(empty_postgres_url) == migrations.HEAD


async def test_on_postgresql_an_older_database_waits_for_the_command(empty_postgres_url: str) -> None:
    """It holds data: no start changes it unasked. The error says what to run, and that loses nothing."""
    _migrate(make_engine(empty_postgres_url), "0002")
    store = SqlStore(empty_postgres_url, SecretBox(bytes(32)))
    with pytest.raises(
        SchemaMismatch, match=r"^the database has schema 0002, .* needs \d+: run `breakers db upgrade`$"
    ):
        await store.open()
    assert migrations.current(empty_postgres_url) == "0002"
    assert upgrade(empty_postgres_url)
    assert not upgrade(empty_postgres_url)
    await _assert_data_is_kept(store)


async def test_on_postgresql_a_newer_database_is_refused(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    store = SqlStore(postgres_url, SecretBox(bytes(32)))
    for attempt in (store.open, lambda: asyncio.to_thread(upgrade, postgres_url)):
        with pytest.raises(SchemaMismatch, match=r"^the database has schema 9999, this program knows up to \d+"):
            await attempt()


def test_a_failed_upgrade_leaves_nothing(empty_postgres_url: str) -> None:
    """All migrations are one transaction: a table in the way undoes those before it."""
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE log_alive (x int)")
    with pytest.raises(Unavailable, match='relation "log_alive" already exists'):
        upgrade(empty_postgres_url)
    assert migrations.current(empty_postgres_url) is None
    with psycopg.connect(empty_postgres_url) as connection:
        assert connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall() == [
            ("log_alive",)
        ]


def test_held_deliveries_are_found_by_their_index(tmp_path: Path) -> None:
    """Indexes that serve alike are told apart by their age: a copy of the table must not change it."""
    path = tmp_path / "a"
    upgrade(f"sqlite:///{path}")
    engine = _engine(path)
    query = select(is_quiet(projects.c.id)).where(projects.c.id == "p")
    sql = str(query.compile(engine, compile_kwargs={"literal_binds": True}))
    with engine.connect() as connection:
        plan = "\n".join(row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}"))
        names = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE sql LIKE '%INDEX%outbox%' ORDER BY rowid"
        )
        kept = [name for name in INDEXES if name != "ix_outbox_incident"]
        assert list(names.scalars()) == [*kept, "ix_outbox_payload_id", "ix_outbox_outage"]
    engine.dispose()
    assert "ix_outbox_held" in plan, plan


def test_what_was_done_to_a_thing_is_found_by_an_index(tmp_path: Path) -> None:
    """Of all entries of a project, which may be a million."""
    path = tmp_path / "a"
    upgrade(f"sqlite:///{path}")
    engine = _engine(path)
    wanted = {
        "project_id = 'p' AND target_id = 't'": "ix_audit_target (project_id=? AND target_id=?)",
        "project_id IS NULL AND org_id = 'o'": "ix_audit_org (org_id=?)",
    }
    with engine.connect() as connection:
        for where, index in wanted.items():
            sql = f"EXPLAIN QUERY PLAN SELECT number FROM audit WHERE {where} ORDER BY number DESC LIMIT 1"
            (plan,) = connection.exec_driver_sql(sql).all()
            assert index in plan.detail
    engine.dispose()


def test_what_was_declared_before_counts_from_now_on(tmp_path: Path) -> None:
    """Else the next apply would take off what was never added."""
    path = tmp_path / "a"
    _migrate(_engine(path), "0023")
    columns = "project_id, kind, thing_id, owner, name, fields, labels, stamp, applied_ms, applied_by"
    with closing(sqlite3.connect(path)) as connection:
        for thing in ("1", "2"):
            row = f"'p', 'breakers', '{thing}', 'own', 'é', '{{\"a\":1}}', '{{}}', 0, 0, 'k'"
            connection.execute(f"INSERT INTO declared ({columns}) VALUES ({row})")
        connection.execute("INSERT INTO stored (of_id, what, used) VALUES ('p', 'configuration', 1000)")
        connection.commit()
        assert upgrade(f"sqlite:///{path}")
        found = connection.execute("SELECT of_id, what, used FROM stored").fetchall()
    assert found == [("p", "configuration", 1000 + 2 * (200 + 3 + 2 + 7 + 2))]


def _assert_mutes_count(url: str) -> None:
    """Else what takes them away would take off what was never added."""
    _migrate(make_engine(url), "0026")
    engine = make_engine(url).execution_options(writes=True)
    project = {"id": "p", "workspace_id": "w", "ingest_secret": b"", "enable_signed_ingest": False, "shard": 0}
    mute = {"project_id": "p", "matchers": (), "all": True, "starts_ms": 1, "windows": (), "zone": "UTC"}
    mute |= {"comment": "\u00e9", "created_by": "k", "created_name": "ann", "inserted_ms": 1, "updated_ms": 1}
    with engine.begin() as connection:
        connection.execute(insert(projects).values(project | {"inserted_ms": 1, "breakers_updated_ms": 1}))
        connection.execute(
            insert(mutes), [mute | {"id": id_, "ended_ms": ended} for id_, ended in (("a", None), ("b", 2))]
        )
        connection.execute(insert(stored).values(of_id="p", what="configuration", used=1_000))
    assert upgrade(url)
    with engine.begin() as connection:
        found = connection.execute(select(stored.c.used).where(stored.c.of_id == "p")).scalars().all()
        told = connection.execute(select(func.sum(weight_of(mutes)))).scalar_one()
    engine.dispose()
    assert found == [1_000 + 2 * (200 + 2 + 2 + 2 + 3)] == [1_000 + told]


def test_mutes_of_before_count_from_now_on(tmp_path: Path) -> None:
    _assert_mutes_count(f"sqlite:///{tmp_path / 'a'}")


def test_on_postgresql_mutes_of_before_count_from_now_on(empty_postgres_url: str) -> None:
    _assert_mutes_count(empty_postgres_url)


def test_an_alert_of_before_keeps_what_it_tells(tmp_path: Path) -> None:
    """Rows that are there are kept, with their numbers."""
    path = tmp_path / "a"
    _migrate(_engine(path), "0022")
    columns = "number, id, project_id, channel_id, breaker_id, kind, transition_seq, told, state, attempts, next_ms"
    row = "7, 'd', 'p', 'c', 'b', 'trip', 1, '{}', 'pending', 0, 0, 5"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"INSERT INTO outbox ({columns}, created_ms) VALUES ({row})")
        connection.commit()
        assert upgrade(f"sqlite:///{path}")
        found = connection.execute("SELECT number, id, told, payload_id FROM outbox").fetchall()
        assert found == [(7, "d", "{}", None)]
