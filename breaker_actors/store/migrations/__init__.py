"""Brings a database to the schema this program knows. In: the URL of a database. Out: the schema of HEAD in one
transaction, or `SchemaMismatch` for a database that another release has made.

Runs in a thread: Alembic is synchronous. Alembic itself is imported only when there is something to do: a service that
starts on an up-to-date database pays one query.

Public: `HEAD`, `check`, `current`, `revision`, `upgrade`, `word`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, Engine, inspect, select, text
from sqlalchemy.exc import DBAPIError

from breaker_actors.errors import SchemaMismatch
from breaker_actors.sql.database import is_sqlite, make_engine, sqlite_url, translate
from breaker_actors.sql.sqlite import make_file

KNOWN = tuple(f"{number:04}" for number in range(1, 28))
HEAD = KNOWN[-1]
UPGRADE_LOCK = 0x62726B72_0002
"""The advisory lock of PostgreSQL under which a schema is changed."""


def upgrade(url: str, told: list[str] | None = None) -> bool:
    """Upgrades the database; False when it was up to date. `told` gets a line for each thing that was put right. Safe
    when several processes do it together: one does it in one transaction, the others wait for it. Raises SchemaMismatch
    for a newer database."""
    with engine_of(url) as engine:
        if is_sqlite(url):
            _prepare_file(url)
        with engine.connect() as connection:
            if _known(revision(connection)) == HEAD:
                return False
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            if not is_sqlite(url):
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})")
            return _known(revision(connection)) != HEAD and _run(connection, [] if told is None else told)


def current(url: str) -> str | None:
    """The revision of the database, whether this program knows it or not; None for an empty one."""
    with engine_of(url) as engine, engine.connect() as connection:
        return revision(connection)


def revision(connection: Connection) -> str | None:
    """The stored revision; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(select(text("version_num")).select_from(text("alembic_version"))).scalar()
    return None if found is None else str(found)


def word(found: str | None) -> Literal["empty", "current", "older", "newer"]:
    """How the schema of a database compares with the one of this program."""
    if found is None:
        return "empty"
    if found not in KNOWN:
        return "newer"
    return "current" if found == HEAD else "older"


def check(found: str | None) -> None:
    """Raises SchemaMismatch unless the revision is the one this program works with."""
    if _known(found) != HEAD:
        raise SchemaMismatch(f"the database has schema {found}, this program needs {HEAD}: run `breakers db upgrade`")


def _known(found: str | None) -> str | None:
    if found is not None and found not in KNOWN:
        raise SchemaMismatch(
            f"the database has schema {found}, this program knows up to {HEAD}: run a newer version of it"
        )
    return found


@contextmanager
def engine_of(url: str, synced: bool = True) -> Iterator[Engine]:
    """An engine for a moment, without limits on time; `synced` as for `make_engine`. Raises Unavailable for errors
    of the database."""
    engine = make_engine(url, patient=True, synced=synced)
    try:
        yield engine
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise translate(error) from None
    finally:
        engine.dispose()


def _run(connection: Connection, told: list[str]) -> bool:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    config.attributes["told"] = told
    command.upgrade(config, "head")
    return True


def _prepare_file(url: str) -> None:
    path = sqlite_url(url).database
    assert path, "a SQLite store is a file: its processes share it"
    make_file(Path(path))
