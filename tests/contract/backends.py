"""Where the contract tests keep their data: one class per kind of database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore
from breaker_actors.stores.sqlitelog import SqliteLog


@dataclass(frozen=True)
class Backend:
    """Where one test keeps its data, so that several stores (and processes) can share it."""

    name: str
    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'store.sqlite'}"

    @property
    def log_folder(self) -> Path:
        return self.folder / "log"

    def store(self) -> SqlStore:
        return SqlStore(self.url, SecretBox.from_file(self.folder / "secret.key"))

    def log(self) -> SqliteLog:
        return SqliteLog(self.log_folder, synchronous_full=False)

    def stored_bytes(self) -> bytes:
        """Everything the backend wrote, to search for what must not be there."""
        return b"".join(p.read_bytes() for p in self.folder.glob("store.sqlite*"))
