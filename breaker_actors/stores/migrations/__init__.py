"""Brings a database to the schema this program knows. Runs in a thread: Alembic is synchronous.

Alembic itself is imported only when there is something to do: a service that starts on an up-to-date database pays one
query.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy import Connection, create_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from breaker_actors.errors import SchemaMismatch
from breaker_actors.stores.engine import begin_by_hand, is_sqlite, sqlite_url, translate
from breaker_actors.stores.sqlite_files import make_file

HEAD = "0002"
KNOWN = ("0001", "0002")


def upgrade(url: str) -> bool:
    """Upgrades the database; False when it was up to date. Safe when several processes do it together."""
    engine = create_engine(sqlite_url(url) if is_sqlite(url) else url, poolclass=NullPool, hide_parameters=True)
    try:
        if is_sqlite(url):
            _prepare_file(url)
            begin_by_hand(engine)
        with engine.connect() as connection:
            if revision(connection) == HEAD:
                return False
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            return revision(connection) != HEAD and _run(connection)
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise translate(error) from None
    finally:
        engine.dispose()


def revision(connection: Connection) -> str | None:
    """The stored revision; None for an empty database. Raises SchemaMismatch for one this program does not know."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(select(text("version_num")).select_from(text("alembic_version"))).scalar()
    if found is not None and found not in KNOWN:
        raise SchemaMismatch(f"the database has schema {found}, this program knows up to {HEAD}: use a newer program")
    return found


def _run(connection: Connection) -> bool:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return True


def _prepare_file(url: str) -> None:
    path = sqlite_url(url).database
    assert path, "a SQLite store is a file: its processes share it"
    make_file(Path(path))
