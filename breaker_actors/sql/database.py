"""Transactions on the database: one door for reads, one for writes, and the translation of driver errors.

The work of a transaction is a plain function over a sync `Connection`, run as a whole on a thread: one hop per
transaction instead of one per statement (measured on SQLite: 0.7 against 1.6 ms for a small commit, 2.8 against 7.6 ms
for a new breaker). SQLite and PostgreSQL take the same way; what differs is in `_Modes`. The driver of PostgreSQL is
imported where it is used: five processes of a service on SQLite are up a tenth of a second of CPU sooner without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection, create_engine, event, exc, make_url
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import NullPool, QueuePool

from breaker_actors.errors import Invalid, TookTooLong, Unavailable
from breaker_actors.sql.readers import Readers
from breaker_actors.sql.retries import AGAIN, AGAIN_S, TOO_LONG, TRIES
from breaker_actors.sql.sqlite import BUSY_TIMEOUT_S, LogKeeper, synchronous
from breaker_actors.sql.turnstile import begin_write
from breaker_actors.telemetry.after_commit import said_at_the_end
from breaker_actors.telemetry.set_aside import Asides, reading_for

T = TypeVar("T")

READER_THREADS = 3
CONNECTIONS = READER_THREADS + 4
SERIAL_LOCK = 0x62726B72_0001
"""The advisory lock of PostgreSQL that makes configuration writes serial across the cluster."""
_OUR_BUGS = (exc.IntegrityError, exc.ProgrammingError, exc.DataError)
_NOT_ALLOWED = "42501"
DISK_FULL = "53100"
"""PostgreSQL's word for a disk without room."""


class _Modes(NamedTuple):
    """Execution options of the three kinds of transactions."""

    read: Mapping[str, Any]
    serial: Mapping[str, Any]
    rows: Mapping[str, Any]


class _Engines(NamedTuple):
    """One pool of connections under each kind's options."""

    read: Engine
    serial: Engine
    rows: Engine


_SQLITE = _Modes(read={}, serial={"writes": True}, rows={"writes": True})
# READ COMMITTED sees, after a wait for a lock, what was committed during it: checks made under the lock hold.
_POSTGRES = _Modes(
    read={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}, serial={"serial": True}, rows={}
)


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def sqlite_url(url: str) -> URL:
    """The URL for the sqlite3 module, whatever driver it names."""
    return make_url(url).set(drivername="sqlite+pysqlite")


def make_engine(url: str, patient: bool = False, synced: bool = False, **pool: Any) -> Engine:
    """An engine of either kind; nothing is connected before the first transaction. `synced`: commits to SQLite survive
    a power loss. Raises Invalid for other URLs."""
    pool = pool or {"poolclass": NullPool}
    if is_sqlite(url):
        engine = create_engine(sqlite_url(url), hide_parameters=True, **pool)
        _begin_by_hand(engine, synced)
        return engine
    from breaker_actors.sql import postgres

    wanted = postgres.parameters(url, patient)
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: postgres.connect(wanted, patient=patient),
        isolation_level="READ COMMITTED",
        use_native_hstore=False,
        hide_parameters=True,
        **pool,
    )
    _replace_lost(engine)
    _begin_serial(engine)
    return engine


def of_one_instant(engine: Engine) -> Engine:
    """The same engine for read transactions that see one instant; on SQLite all do."""
    return engine.execution_options(**(_SQLITE if engine.dialect.name == "sqlite" else _POSTGRES).read)


def _begin_by_hand(engine: Engine, synced: bool) -> None:
    """Takes BEGIN away from the sqlite3 module, which delays it to the first write: two readers that both go on to
    write would then fail at once instead of waiting. Writers ask for the lock when they begin."""
    folder = Path(engine.url.database or "").parent

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = None
        waits = round(BUSY_TIMEOUT_S * 1000)
        for pragma in (f"busy_timeout={waits}", f"synchronous={synchronous(synced)}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("writes", False):
            connection.exec_driver_sql("BEGIN")
            return
        try:
            begin_write(cast("sqlite3.Connection", connection.connection.driver_connection), folder)
        except sqlite3.Error as error:
            raise exc.OperationalError(None, None, error) from None


def _replace_lost(engine: Engine) -> None:
    """A connection that the server ended while nobody used it is replaced before anybody does: a restarted server is
    not noticed."""
    from breaker_actors.sql.postgres import is_quiet

    @event.listens_for(engine, "connect")
    def made(_: Any, record: Any) -> None:
        record.info["new"] = True

    @event.listens_for(engine, "checkout")
    def look(connection: Any, record: Any, _: Any) -> None:
        if not record.info.pop("new", False) and not is_quiet(connection):
            raise exc.DisconnectionError


def _begin_serial(engine: Engine) -> None:
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if connection.get_execution_options().get("serial", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SERIAL_LOCK})")


def translate(error: Exception) -> Unavailable:
    """What a driver error means; its cause is the driver's own short text, never the statement or its parameters."""
    cause = getattr(error, "orig", None) or error
    kind = TookTooLong if _state(error) in TOO_LONG else Unavailable
    full = _state(error) == DISK_FULL or getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    words = "the database takes no writes, its disk is full" if full else "the database does not answer"
    return kind(words, {}, str(_text(cause)))


def _text(cause: Exception) -> object:
    if (psycopg := sys.modules.get("psycopg")) and isinstance(cause, psycopg.Error):
        from breaker_actors.sql.postgres import error_text

        return error_text(cause)
    return cause


class Database:
    """Threads and connections, as many of each. One thread for serial writes: they take turns anyway, and waiting for
    the thread is fair and free, waiting in the database is neither. One for writes that lock nothing but their rows
    (on SQLite, whose file takes one writer at a time, the same), a few for reads, of which no organisation has all, one
    for reads in a turn that organisations share, and one for the reads of one row that every request begins with: they
    do not stand behind long ones. Closed means closed: later calls are refused.
    `asides` notes what could not be read in a transaction; `unread` is called after one while any waits.
    `around` is around the work of each transaction, within it. `options` are known to every transaction."""

    def __init__(
        self,
        url: str,
        asides: Asides | None = None,
        unread: Callable[[], None] = lambda: None,
        synced: bool = False,
        around: Callable[[Connection], AbstractContextManager[object]] = contextlib.nullcontext,
        **options: Any,
    ) -> None:
        self._url = url
        self._synced = synced
        self._options = options
        self._asides = asides or Asides()
        self._unread = unread
        self._around = around
        self._modes = _SQLITE if is_sqlite(url) else _POSTGRES
        self._engines: _Engines | None = None
        self._keeper = LogKeeper(Path(sqlite_url(url).database or "")) if is_sqlite(url) else None

    def open(self) -> None:
        """Nothing is connected before the first transaction."""
        engine = make_engine(
            self._url,
            synced=self._synced,
            poolclass=QueuePool,
            pool_size=CONNECTIONS,
            max_overflow=0,
            pool_use_lifo=True,
        )
        self._engines = _Engines(*(engine.execution_options(**mode, **self._options) for mode in self._modes))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._rows = self._writer if is_sqlite(self._url) else ThreadPoolExecutor(1, thread_name_prefix="store-rows")
        self._readers = Readers(READER_THREADS)
        self._in_turn = ThreadPoolExecutor(1, thread_name_prefix="store-turn")
        self._lookups = ThreadPoolExecutor(1, thread_name_prefix="store-lookup")

    async def close(self) -> None:
        """After the transactions under way."""
        engines, self._engines = self._engines, None
        if engines is not None:
            await asyncio.to_thread(self._shut_down, engines.read)

    def _shut_down(self, engine: Engine) -> None:
        for threads in (self._writer, self._rows, self._readers, self._in_turn, self._lookups):
            threads.shutdown(wait=True)
        engine.dispose()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one read transaction: everything it sees is of one instant. Organisations take turns (see
        `readers`)."""
        return self._done(await self._readers.run(partial(self._transact, self._open().read, work)))

    async def read_in_turn(self, work: Callable[[Connection], T]) -> T:
        """The same for a caller who holds a turn that organisations share. There are few such turns, and one caller in
        each: he waits for one read of each other turn at most, never in the line of his organisation."""
        return await self._run(self._open().read, self._in_turn, work)

    async def look_up(self, work: Callable[[Connection], T]) -> T:
        """The same for a look-up by an index, of keys and projects: nothing long comes before it."""
        return await self._run(self._open().read, self._lookups, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in one transaction, after all those that came before, of whatever process; an exception undoes
        all of it. `work` may be run again after it was undone.

        A caller that is cancelled leaves it whole: it has not begun, or it runs to its end.
        """
        return await self._run(self._open().serial, self._writer, work)

    async def write_rows(self, work: Callable[[Connection], T]) -> T:
        """The same without the turns: `work` itself locks the rows that it judges by."""
        return await self._run(self._open().rows, self._rows, work)

    def _open(self) -> _Engines:
        if self._engines is None:
            raise Unavailable("the store is closed")
        return self._engines

    async def _run(self, engine: Engine, threads: Executor, work: Callable[[Connection], T]) -> T:
        return self._done(await asyncio.get_running_loop().run_in_executor(threads, self._transact, engine, work))

    def _done(self, result: T) -> T:
        if self._asides.waiting:
            self._unread()
        return result

    def _transact(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        with reading_for(self._asides):
            done = transact(engine, partial(self._whole, work))
        if engine.get_execution_options().get("writes", False):
            self._keep_log(engine)
        return done

    def _whole(self, work: Callable[[Connection], T], c: Connection) -> T:
        with self._around(c):
            return work(c)

    def _keep_log(self, engine: Engine) -> None:
        """After a write; what goes wrong here has not harmed it."""
        now_s = time.perf_counter()
        if self._keeper is None or not self._keeper.is_due(now_s):
            return
        with contextlib.suppress(exc.SQLAlchemyError, sqlite3.Error, OSError):
            connection = engine.raw_connection()
            try:
                self._keeper.empty(cast("sqlite3.Connection", connection.driver_connection), now_s)
            finally:
                connection.close()


def transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    """One transaction. What the database gave up for the sake of another one is done again, a few times."""
    left = TRIES
    while True:
        try:
            with said_at_the_end(), engine.begin() as connection:
                return work(connection)
        except (exc.DatabaseError, exc.InterfaceError, exc.TimeoutError, OSError) as error:
            left -= 1
            if not left or _state(error) not in AGAIN:
                raise _meaning(error) from None
            time.sleep(AGAIN_S)


def _state(error: Exception) -> str | None:
    """PostgreSQL's word for what went wrong."""
    return getattr(getattr(error, "orig", None), "sqlstate", None)


def _meaning(error: Exception) -> Exception:
    if isinstance(error, exc.DataError) and "(0x00)" in str(error.orig):
        return Invalid("a text here must not contain the character U+0000")
    bug = isinstance(error, _OUR_BUGS) and _state(error) != _NOT_ALLOWED
    return error if bug else translate(error)
