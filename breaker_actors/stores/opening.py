"""Where a process finds its store and its sample log, from the settings."""

from __future__ import annotations

from pydantic import SecretStr

from breaker_actors.settings import Settings
from breaker_actors.stores import migrations, postgres
from breaker_actors.stores.pglog import PgLog
from breaker_actors.stores.samplelog import SampleLog
from breaker_actors.stores.secrets import SecretBox, parse_key, read_key_file
from breaker_actors.stores.sql import SqlStore
from breaker_actors.stores.sqlitelog import SqliteLog

DATABASE = "breakers.sqlite"
KEY_FILE = "secret.key"


def store_url(settings: Settings) -> str:
    """The URL of the store, with its password. Raises Invalid for one that is not PostgreSQL's."""
    if settings.database_url is None:
        return f"sqlite:///{settings.data_dir / DATABASE}"
    url = settings.database_url.get_secret_value()
    postgres.parameters(url)
    return url


def is_in_use(settings: Settings) -> bool:
    """Whether there is a store: a file in the data dir, or our tables in the PostgreSQL database."""
    if settings.database_url is None:
        return (settings.data_dir / DATABASE).is_file()
    return migrations.current(store_url(settings)) is not None


def make_store(settings: Settings) -> SqlStore:
    """The store; connect with `open()`."""
    return SqlStore(store_url(settings), SecretBox(_key(settings)), breakers_max=settings.breakers_per_project_max)


def make_log(settings: Settings) -> SampleLog:
    """The sample log; files are opened, or connections made, on first use."""
    keys_ms = max(settings.duplicate_window_ms, 30_000)
    if settings.database_url is None:
        return SqliteLog(settings.data_dir / "log", settings.log_synchronous, keys_ms)
    return PgLog(store_url(settings), keys_ms)


def resolved(settings: Settings) -> Settings:
    """The same settings for processes that don't see this data dir: they bring the key that seals secrets."""
    return settings.model_copy(update={"secret_key": SecretStr(_key(settings).hex())})


def _key(settings: Settings) -> bytes:
    if settings.secret_key is None:
        return read_key_file(settings.data_dir / KEY_FILE)
    return parse_key(settings.secret_key.get_secret_value())
