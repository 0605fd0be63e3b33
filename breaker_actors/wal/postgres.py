"""The sample log on PostgreSQL: all slots in one set of tables, written and read from any node.

Calls run on threads with a connection each, made on first use and again after it was lost: one for writes, so that
they keep their order, and a few for reads. The statements are sync functions in `pgrecords.py`; this file is the async
door. Whether an append survives a power loss is for the server's synchronous_commit to say.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from breaker_actors.core.log_entries import LogRecord
from breaker_actors.errors import Unavailable
from breaker_actors.messages import LogRead
from breaker_actors.sql import postgres
from breaker_actors.sql.retries import AGAIN, AGAIN_S, TRIES
from breaker_actors.wal import postgres_sql as pgrecords
from breaker_actors.wal.base import (
    READ_BYTES,
    Append,
    Entry,
    LogStock,
    Loss,
    Read,
    RouterHead,
    StoredKey,
    Stretch,
    check_slot,
    read_each,
)
from breaker_actors.wal.head import Head
from breaker_actors.wal.postgres_sql import Connection

T = TypeVar("T")

READER_THREADS = 2


class _Lane:
    """Threads with a connection each."""

    def __init__(self, name: str, threads: int, wanted: Mapping[str, Any]) -> None:
        self._wanted = wanted
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._mine = threading.local()
        self._connections: set[Connection] = set()

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Does the work on a thread. What the database gave up for the sake of another transaction is done again, a few
        times."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: Callable[[Connection], T]) -> T:
        left = TRIES
        while True:
            try:
                return self._try(work)
            except psycopg.Error as error:
                left -= 1
                if not left or error.sqlstate not in AGAIN:
                    raise Unavailable("the sample log does not answer", {}, postgres.error_text(error)) from None
                time.sleep(AGAIN_S)

    def _try(self, work: Callable[[Connection], T]) -> T:
        connection = self._connection()
        try:
            return work(connection)
        except BaseException:
            if connection.info.transaction_status != TransactionStatus.IDLE:
                self._drop(connection)  # which undoes what was under way
            raise

    def _connection(self) -> Connection:
        """The connection of this thread, in working order as far as can be seen."""
        connection: Connection | None = getattr(self._mine, "connection", None)
        if connection is not None and not postgres.is_quiet(connection):
            self._drop(connection)
            connection = None
        if connection is None:
            connection = self._mine.connection = postgres.connect(self._wanted, autocommit=True)
            self._connections.add(connection)
        return connection

    def _drop(self, connection: Connection) -> None:
        self._mine.connection = None
        self._connections.discard(connection)
        connection.close()

    async def close(self) -> None:
        """After the work under way."""
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._connections:
            connection.close()
        self._connections.clear()


class PgLog:
    """The sample logs of a database. `keys_ms`: how long duplicate keys are kept. Raises Invalid for a wrong URL."""

    def __init__(self, url: str, keys_ms: int = 600_000) -> None:
        wanted = postgres.parameters(url)
        self._keys_ms = keys_ms
        # where our own appends left the heads, by slot and router; used on the writer's thread only
        self._heads: dict[str, dict[str, Head]] = {}
        self._writer = _Lane("log", 1, wanted)
        self._readers = _Lane("logread", READER_THREADS, wanted)
        self._closed = False

    async def acquire(
        self,
        slot: str,
        owner: str,
        routers: Sequence[tuple[str, int]],
        now_ms: int,
        keys_after_ms: int,
        keys_upto: Mapping[str, int] | None = None,
    ) -> list[RouterHead]:
        upto = keys_upto or {}
        return await self._write(
            slot, lambda c: pgrecords.acquire(c, slot, owner, routers, now_ms, keys_after_ms, upto)
        )

    async def keys(self, slot: str, after: Mapping[str, tuple[int, bytes]], each: int) -> dict[str, list[StoredKey]]:
        return await self._read(slot, lambda c: pgrecords.keys(c, slot, after, each))

    async def drop_keys(self, slot: str, upto: Mapping[str, int]) -> None:
        while await self._write(slot, lambda c: pgrecords.drop_keys(c, slot, upto)):
            pass

    async def append(self, slot: str, records: Sequence[Append]) -> list[bool]:
        known = self._heads.setdefault(slot, {})
        return await self._write(slot, lambda c: pgrecords.append(c, slot, records, self._keys_ms, known))

    async def alive(self, slot: str, owner: str, now_ms: int) -> None:
        await self._write(slot, lambda c: pgrecords.alive(c, slot, owner, now_ms))

    async def advance_watermark(
        self, slot: str, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int
    ) -> list[bool]:
        return await self._write(slot, lambda c: pgrecords.advance_watermark(c, slot, owner, routers, upto_ms))

    async def read(
        self, slot: str, router_id: str, after: int, upto: int, limit: int = 256, bytes_max: int = READ_BYTES
    ) -> list[LogRecord]:
        return await self._read(slot, lambda c: pgrecords.read(c, slot, router_id, after, upto, limit, bytes_max))

    async def find(self, slot: str, router_id: str, at_ms: int) -> int:
        return await self._read(slot, lambda c: pgrecords.find(c, slot, router_id, at_ms))

    async def read_some(self, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        def work(c: Connection) -> list[Read]:
            return read_each(
                lambda router_id, after, upto: pgrecords.read(c, slot, router_id, after, upto, limit), wanted
            )

        return await self._read(slot, work)

    async def find_some(self, slot: str, wanted: Sequence[tuple[str, int]]) -> list[int]:
        def work(c: Connection) -> list[int]:
            return [pgrecords.find(c, slot, router_id, at_ms) for router_id, at_ms in wanted]

        return await self._read(slot, work)

    async def stock(self, slot: str) -> list[LogStock]:
        return await self._read(slot, lambda c: pgrecords.stock(c, slot))

    async def trim(self, slot: str, router_id: str, below: int) -> int:
        """In small transactions, so that appends get through between them."""
        dropped = 0
        while count := await self._write(slot, lambda c: pgrecords.trim(c, slot, router_id, below)):
            dropped += count
        return dropped

    async def forget(self, slot: str, router_id: str) -> None:
        """In small transactions, the head last: until then the rest can be found and dropped again."""
        self._heads.get(slot, {}).pop(router_id, None)
        while await self._write(slot, lambda c: pgrecords.forget(c, slot, router_id)):
            pass

    async def recover(
        self,
        slot: str,
        router_id: str,
        upto: int,
        now_ms: int,
        entries: Sequence[Entry] | None,
        ahead_max_ms: int | None = None,
    ) -> list[Loss]:
        self._heads.get(slot, {}).pop(router_id, None)
        return await self._write(
            slot, lambda c: pgrecords.recover(c, slot, router_id, upto, now_ms, entries, ahead_max_ms)
        )

    async def faults(self, read: LogRead, now_ms: int) -> list[str]:
        return await self._read(read.log_slot, lambda c: pgrecords.faults(c, read, now_ms))

    async def size_bytes(self, slot: str) -> int:
        """A running count, kept with the heads: what records are known to take up, right within 6 percent. Duplicate
        keys, which live for minutes, are not in it."""
        return await self._read(slot, lambda c: pgrecords.size_bytes(c, slot))

    async def close(self) -> None:
        self._closed = True
        await self._writer.close()
        await self._readers.close()

    async def _write(self, slot: str, work: Callable[[Connection], T]) -> T:
        return await self._run(self._writer, slot, work)

    async def _read(self, slot: str, work: Callable[[Connection], T]) -> T:
        return await self._run(self._readers, slot, work)

    async def _run(self, lane: _Lane, slot: str, work: Callable[[Connection], T]) -> T:
        check_slot(slot)
        if self._closed:
            raise Unavailable("the sample log is closed")
        return await lane.run(work)
