"""Where the contract tests keep their data: one class per kind of database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psycopg

from breaker_actors.store.quotas import Shares
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.postgres import PgLog
from breaker_actors.wal.sqlite import SqliteLog

STORE = "store.sqlite"


@dataclass(frozen=True)
class Backend:
    """Where one test keeps its data, so that several stores (and processes) can share it. `database`: the URL of a
    PostgreSQL database of its own; "": SQLite files in the folder."""

    folder: Path
    database: str = ""

    @property
    def url(self) -> str:
        return self.database or f"sqlite:///{self.folder / STORE}"

    def store(self, shares: Shares | None = None, shards: int = 1) -> SqlStore:
        return SqlStore(self.url, SecretBox.from_file(self.folder / "secret.key"), shards, shares=shares)

    def log(self) -> SampleLog:
        return PgLog(self.database) if self.database else SqliteLog(self.folder / "log")

    def stored_bytes(self) -> bytes:
        """Everything the store wrote, to search for what must not be there."""
        if not self.database:
            return b"".join(p.read_bytes() for p in self.folder.glob(f"{STORE}*"))
        with psycopg.connect(self.database) as connection:
            query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
            return b"".join(_copied(connection, name) for (name,) in connection.execute(query).fetchall())


def _copied(connection: psycopg.Connection, table: str) -> bytes:
    with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)".encode()) as rows:
        return b"".join(rows)
