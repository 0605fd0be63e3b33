"""Where a process finds its store and its sample log, from the settings."""

from __future__ import annotations

from breaker_actors.settings import Settings
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore
from breaker_actors.stores.sqlitelog import SqliteLog

DATABASE = "breakers.sqlite"


def is_in_use(settings: Settings) -> bool:
    """Whether there is a store in the data dir."""
    return (settings.data_dir / DATABASE).is_file()


def make_store(settings: Settings) -> SqlStore:
    """The store of the data dir; connect with `open()`."""
    directory = settings.data_dir
    box = SecretBox.from_file(directory / "secret.key")
    url = f"sqlite:///{directory / DATABASE}"
    return SqlStore(url, box, breakers_max=settings.breakers_per_project_max)


def make_log(settings: Settings) -> SqliteLog:
    """The sample log of the data dir; files are opened on first use."""
    return SqliteLog(settings.data_dir / "log", settings.log_synchronous, max(settings.duplicate_window_ms, 30_000))
