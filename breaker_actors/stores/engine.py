"""Transactions on the database: one door for reads, one for writes, and the translation of driver errors.

The work of a transaction is a plain function over a sync `Connection` (SQLAlchemy runs it in a greenlet), so it is the
same for every driver. Cancelling a caller never cuts a transaction in two: it runs on and ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import DatabaseError, DataError, IntegrityError, InterfaceError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from breaker_actors.errors import Unavailable

T = TypeVar("T")

BUSY_TIMEOUT_MS = 5_000
POOL_SIZE = 4
_OUR_BUGS = (IntegrityError, ProgrammingError, DataError)


def begin_by_hand(engine: Engine) -> None:
    """Takes BEGIN away from the sqlite3 module, which delays it to the first write: two readers that both go on to
    write would then fail at once instead of waiting. Writers ask for the lock when they begin."""

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def sqlite_url(url: str, driver: str) -> URL:
    """The URL with the wanted driver ("" = the sync one)."""
    parsed = make_url(url)
    return parsed.set(drivername=f"{parsed.get_backend_name()}{driver}")


def is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def translate(error: Exception) -> Unavailable:
    """What callers see of a driver error: its own short text, never the statement or its parameters."""
    cause = getattr(error, "orig", None) or error
    return Unavailable(f"the database does not answer: {cause}")


class Database:
    """A small pool of connections. Closed means closed: later calls are refused instead of connecting again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: AsyncEngine | None = None
        self._free = asyncio.Semaphore(POOL_SIZE)
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        url = sqlite_url(self._url, "+aiosqlite") if is_sqlite(self._url) else make_url(self._url)
        engine = create_async_engine(url, pool_size=POOL_SIZE, max_overflow=0, hide_parameters=True)
        if is_sqlite(self._url):
            begin_by_hand(engine.sync_engine)
        self._engine = engine

    async def close(self) -> None:
        """Waits for the transactions under way: a connection that outlives its pool would never be closed."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        for _ in range(POOL_SIZE):
            await self._free.acquire()
        await engine.dispose()
        for _ in range(POOL_SIZE):
            self._free.release()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one read transaction: everything it sees is of one instant."""
        return await asyncio.shield(asyncio.ensure_future(self._run(work, False)))

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one transaction that holds the write lock from its start; an exception undoes all of it."""
        return await asyncio.shield(asyncio.ensure_future(self._write(work)))

    async def _write(self, work: Callable[[Connection], T]) -> T:
        # SQLite has one writer per file: waiting here is fair and free, waiting inside SQLite is polling.
        async with self._writing:
            return await self._run(work, True)

    async def _run(self, work: Callable[[Connection], T], writes: bool) -> T:
        async with self._free:
            if self._engine is None:
                raise Unavailable("the store is closed")
            try:
                async with self._engine.connect() as connection:
                    await connection.execution_options(writes=writes)
                    async with connection.begin():
                        return await connection.run_sync(work)
            except (DatabaseError, InterfaceError, PoolTimeout, OSError) as error:
                if isinstance(error, _OUR_BUGS):
                    raise
                raise translate(error) from None
