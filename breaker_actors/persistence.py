"""Where a process finds its store and its sample log, from the settings.

What only the store needs is imported with it: an actor that reads and writes nothing but SQLite logs is up a third of a
second of CPU sooner and 30 MB smaller without SQLAlchemy, and there are many of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic import SecretStr

from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.sqlite import SqliteLog
from breaker_actors.wal.sqlite import newest_change as newest_change_in

if TYPE_CHECKING:
    from breaker_actors.store.secrets import SecretBox
    from breaker_actors.store.sql_store import SqlStore

DATABASE = "breakers.sqlite"
LOG_FOLDER = "log"
KEY_FILE = "secret.key"


def store_url(settings: Settings) -> str:
    """The URL of the store, with its password. Raises Invalid for one that is not PostgreSQL's."""
    if settings.database_url is None:
        return f"sqlite:///{settings.data_dir / DATABASE}"
    from breaker_actors.sql import postgres

    url = settings.database_url.get_secret_value()
    postgres.parameters(url)
    return url


def is_in_use(settings: Settings) -> bool:
    """Whether there is a store: a file in the data dir, or our tables in the PostgreSQL database."""
    if settings.database_url is None:
        return (settings.data_dir / DATABASE).is_file()
    from breaker_actors.store import migrations

    return migrations.current(store_url(settings)) is not None


def check_in_use(settings: Settings) -> None:
    """Raises Invalid when there is no store yet, or nothing is left of it."""
    if not is_in_use(settings):
        place = settings.data_dir if settings.database_url is None else "the database"
        raise Invalid(f"there is no data in {place}; `breakers serve` makes it")
    path = settings.data_dir / DATABASE
    if settings.database_url is None and not path.stat().st_size:
        raise Invalid(f"{path} is empty; put a backup in its place")


def database_id(settings: Settings) -> str | None:
    """The id of the database that the settings name, which has this program's schema; None if it is not made yet."""
    if not is_in_use(settings):
        return None
    from breaker_actors.store import identity, migrations

    with migrations.engine_of(store_url(settings)) as engine, engine.connect() as connection:
        return identity.known(connection)


def place_of_store(settings: Settings) -> str:
    """Where it is, without user and password."""
    if settings.database_url is None:
        return f"SQLite in {settings.data_dir}"
    from breaker_actors.sql import postgres

    given = postgres.parameters(store_url(settings))
    host = given.get("host") or given.get("hostaddr") or "localhost"
    return f"PostgreSQL {given.get('dbname', '')} on {host}:{given.get('port', 5432)}"


def make_store(settings: Settings) -> SqlStore:
    """The store; connect with `open()`."""
    from breaker_actors.store.quotas import Shares
    from breaker_actors.store.sql_store import SqlStore

    shares = Shares(
        links=2 * settings.breakers_per_project_max,
        gone_names=2 * settings.breakers_per_project_max,
        configuration_bytes=settings.configuration_bytes_max,
        audit_bytes=settings.audit_bytes_max,
        events=settings.events_max,
        deliveries=settings.deliveries_max,
        projects=settings.projects_per_org_max,
        workspaces=settings.workspaces_per_org_max,
        keys=settings.keys_per_org_max,
        mutes=settings.mutes_per_project_max,
        mappings=settings.mappings_per_project_max,
        full_projects=settings.org_full_projects,
    )
    return SqlStore(
        store_url(settings),
        make_box(settings),
        shards=settings.journals,
        breakers_max=settings.breakers_per_project_max,
        shares=shares,
        synced=settings.synced,
    )


def make_box(settings: Settings) -> SecretBox:
    """What seals secrets, and opens them. Its key is made before the database; raises Invalid where it is missing
    beside one."""
    from breaker_actors.store.secrets import SecretBox

    return SecretBox(_key(settings))


def existing_box(settings: Settings) -> SecretBox | None:
    """The same where its key is there already; it is not made. Raises Invalid for a key that is none."""
    there = settings.secret_key is not None or (settings.data_dir / KEY_FILE).is_file()
    return make_box(settings) if there else None


def kept_box(settings: Settings) -> SecretBox:
    """The same for a store that is in use: raises Invalid where its key is missing."""
    if _lacks_key(settings):
        raise _missing(settings)
    return make_box(settings)


def make_log(settings: Settings) -> SampleLog:
    """The sample log; files are opened, or connections made, on first use."""
    keys_ms = max(settings.duplicate_window_ms, 30_000)
    if settings.database_url is None:
        return SqliteLog(settings.data_dir / LOG_FOLDER, settings.synced, keys_ms)
    from breaker_actors.wal.postgres import PgLog

    return PgLog(store_url(settings), keys_ms)


def newest_change(settings: Settings) -> int:
    """The highest number of a change of configuration that any log has; 0 on PostgreSQL, whose logs lie in the
    database."""
    if settings.database_url is not None:
        return 0
    return newest_change_in(settings.data_dir / LOG_FOLDER)


def resolved(settings: Settings) -> Settings:
    """The same settings for processes that don't see this data dir: they bring the key that seals secrets."""
    return settings.model_copy(update={"secret_key": SecretStr(_key(settings).hex())})


def _key(settings: Settings) -> bytes:
    from breaker_actors.store.secrets import parse_key, read_key_file

    if settings.secret_key is None:
        if settings.database_url is None and is_in_use(settings) and _lacks_key(settings):
            raise _missing(settings)
        return read_key_file(settings.data_dir / KEY_FILE)
    return parse_key(settings.secret_key.get_secret_value())


def _lacks_key(settings: Settings) -> bool:
    return settings.secret_key is None and not os.path.lexists(settings.data_dir / KEY_FILE)


def _missing(settings: Settings) -> Invalid:
    path, what = settings.data_dir / KEY_FILE, place_of_store(settings)
    return Invalid(f"{path} is missing, the key of {what}: put it back, as from a backup, or set BREAKERS_SECRET_KEY")
