"""Where a process finds its store and its sample log, from the settings.

What only the store needs is imported with it: an actor that reads and writes nothing but SQLite logs is up a third of a
second of CPU sooner and 30 MB smaller without SQLAlchemy, and there are many of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from breaker_actors.stores.samplelog import SampleLog
from breaker_actors.stores.sqlitelog import SqliteLog

if TYPE_CHECKING:
    from breaker_actors.stores.sql import SqlStore

DATABASE = "breakers.sqlite"
KEY_FILE = "secret.key"


def store_url(settings: Settings) -> str:
    """The URL of the store, with its password. Raises Invalid for one that is not PostgreSQL's."""
    if settings.database_url is None:
        return f"sqlite:///{settings.data_dir / DATABASE}"
    from breaker_actors.stores import postgres

    url = settings.database_url.get_secret_value()
    postgres.parameters(url)
    return url


def is_in_use(settings: Settings) -> bool:
    """Whether there is a store: a file in the data dir, or our tables in the PostgreSQL database."""
    if settings.database_url is None:
        return (settings.data_dir / DATABASE).is_file()
    from breaker_actors.stores import migrations

    return migrations.current(store_url(settings)) is not None


def check_in_use(settings: Settings) -> None:
    """Raises Invalid when there is no store yet."""
    if not is_in_use(settings):
        place = settings.data_dir if settings.database_url is None else "the database"
        raise Invalid(f"there is no data in {place}; `breakers serve` makes it")


def make_store(settings: Settings) -> SqlStore:
    """The store; connect with `open()`."""
    from breaker_actors.stores.secrets import SecretBox
    from breaker_actors.stores.sql import SqlStore

    return SqlStore(store_url(settings), SecretBox(_key(settings)), breakers_max=settings.breakers_per_project_max)


def make_log(settings: Settings) -> SampleLog:
    """The sample log; files are opened, or connections made, on first use."""
    keys_ms = max(settings.duplicate_window_ms, 30_000)
    if settings.database_url is None:
        return SqliteLog(settings.data_dir / "log", settings.log_synchronous, keys_ms)
    from breaker_actors.stores.pglog import PgLog

    return PgLog(store_url(settings), keys_ms)


def resolved(settings: Settings) -> Settings:
    """The same settings for processes that don't see this data dir: they bring the key that seals secrets."""
    return settings.model_copy(update={"secret_key": SecretStr(_key(settings).hex())})


def _key(settings: Settings) -> bytes:
    from breaker_actors.stores.secrets import parse_key, read_key_file

    if settings.secret_key is None:
        return read_key_file(settings.data_dir / KEY_FILE)
    return parse_key(settings.secret_key.get_secret_value())
