"""New databases without their migrations: a SQLite file of the current schema is made once per process and copied."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.exc import OperationalError

from breaker_actors.persistence import KEY_FILE
from breaker_actors.sql import database
from breaker_actors.store.migrations import upgrade
from breaker_actors.store.secrets import read_key_file


def migrated(path: Path) -> None:
    """Puts a file with the current schema and nothing else at `path`, unless one is there, and a sealing key beside it.
    Migrating one takes 0.2 s, more than most tests that need it."""
    if not path.exists():
        read_key_file(path.parent / KEY_FILE)
        path.write_bytes(_template())


@functools.cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.sqlite"
        upgrade(f"sqlite:///{path}")
        assert [found.name for found in path.parent.iterdir()] == [path.name], "not all is in the file"
        return path.read_bytes()


@contextmanager
def statements_compiled_once() -> Iterator[None]:
    """Every store made meanwhile knows the statements that any other on the same kind of database compiled: they are
    made anew for each engine otherwise, which takes a new store longer than to carry them out."""
    make = database.make_engine
    dialects: dict[bool, Dialect] = {}
    caches: dict[bool, dict[Any, Any]] = {True: {}, False: {}}

    def make_engine(url: str, patient: bool = False, synced: bool = False, **pool: Any) -> Engine:
        engine = make(url, patient, synced, **pool)
        kind = database.is_sqlite(url)
        if kind not in dialects:
            try:
                engine.connect().close()  # a dialect asks its first connection what the server is
            except OperationalError:
                return engine
            dialects[kind] = engine.dialect
        engine.dialect = dialects[kind]  # what is compiled is known by its dialect
        return engine.execution_options(compiled_cache=caches[kind])

    with patch.object(database, "make_engine", make_engine):
        yield
