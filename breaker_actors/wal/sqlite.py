"""The sample log on SQLite: one file per slot, written by the slot's owner, read by anyone on the node.

Every file has one writer thread and one reader thread here, so that neither a commit nor a long read stops the event
loop, and a read never waits for a write (WAL). Other processes open the same files. The statements are sync
functions in `slotfile.py`; this file is the async door.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from breaker_actors.core.log_entries import LogRecord
from breaker_actors.errors import Unavailable
from breaker_actors.messages import LogRead
from breaker_actors.wal import sqlite_file as slotfile
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
    read_each,
)

T = TypeVar("T")


class _Lane:
    """One thread with one connection, opened at first use. `open` None: there is nothing to open yet."""

    def __init__(self, name: str, open_: Callable[[], sqlite3.Connection | None]) -> None:
        self._open = open_
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T], absent: T) -> T:
        """Does the work on the thread; `absent` when the file is not there."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, absent)

    def _run(self, work: Callable[[sqlite3.Connection], T], absent: T) -> T:
        try:
            if self._connection is None:
                self._connection = self._open()
            return absent if self._connection is None else work(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise Unavailable("the sample log does not answer", {}, str(error)) from None

    async def close(self) -> None:
        """After the work under way: the connection is closed by the thread that uses it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class SqliteLog:
    """Sample logs under one folder. `synced`: a commit survives a power loss, at the price of an fsync each; otherwise
    it survives anything that ends the process only. `keys_ms`: how long duplicate keys are kept."""

    def __init__(self, directory: Path, synced: bool = False, keys_ms: int = 600_000) -> None:
        self._directory = directory
        self._synced = synced
        self._keys_ms = keys_ms
        self._writers: dict[str, _Lane] = {}
        self._owners: dict[str, slotfile.Owners] = {}
        """By slot; used on its writer's thread only."""
        self._readers: dict[str, _Lane] = {}
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
        known, upto = self._known(slot), keys_upto or {}
        return await self._write(
            slot, lambda c: slotfile.acquire(c, known, owner, routers, now_ms, keys_after_ms, upto), []
        )

    async def keys(self, slot: str, after: Mapping[str, tuple[int, bytes]], each: int) -> dict[str, list[StoredKey]]:
        return await self._read(slot, lambda c: slotfile.keys(c, after, each), {})

    async def drop_keys(self, slot: str, upto: Mapping[str, int]) -> None:
        left = dict(upto)
        while await self._write(slot, lambda c: slotfile.drop_keys(c, left), False):
            pass

    async def append(self, slot: str, records: Sequence[Append]) -> list[bool]:
        return await self._write(slot, lambda c: slotfile.append(c, records, self._keys_ms), [])

    async def alive(self, slot: str, owner: str, now_ms: int) -> None:
        await self._write(slot, lambda c: slotfile.alive(c, owner, now_ms), None)

    async def advance_watermark(
        self, slot: str, owner: str, routers: Sequence[tuple[str, int]], upto_ms: int
    ) -> list[bool]:
        known = self._known(slot)
        return await self._write(
            slot, lambda c: slotfile.advance_watermark(c, known, owner, routers, upto_ms), [False] * len(routers)
        )

    async def read(
        self, slot: str, router_id: str, after: int, upto: int, limit: int = 256, bytes_max: int = READ_BYTES
    ) -> list[LogRecord]:
        return await self._read(slot, lambda c: slotfile.read(c, router_id, after, upto, limit, bytes_max), [])

    async def find(self, slot: str, router_id: str, at_ms: int) -> int:
        return await self._read(slot, lambda c: slotfile.find(c, router_id, at_ms), 0)

    async def read_some(self, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        def work(c: sqlite3.Connection) -> list[Read]:
            return read_each(lambda router_id, after, upto: slotfile.read(c, router_id, after, upto, limit), wanted)

        return await self._read(slot, work, [[] for _ in wanted])

    async def find_some(self, slot: str, wanted: Sequence[tuple[str, int]]) -> list[int]:
        def work(c: sqlite3.Connection) -> list[int]:
            return [slotfile.find(c, router_id, at_ms) for router_id, at_ms in wanted]

        return await self._read(slot, work, [0] * len(wanted))

    async def stock(self, slot: str) -> list[LogStock]:
        return await self._read(slot, slotfile.stock, [])

    async def trim(self, slot: str, router_id: str, below: int) -> int:
        """In small transactions, so that appends get through between them."""
        dropped = 0
        while True:
            count = await self._write(slot, lambda c: slotfile.trim(c, router_id, below), 0)
            dropped += count
            if count < slotfile.TRIM_ROWS:
                return dropped

    async def forget(self, slot: str, router_id: str) -> None:
        """In small transactions, the head last: until then the rest can be found and dropped again."""
        known = self._known(slot)
        while await self._write(slot, lambda c: slotfile.forget(c, known, router_id), 0) == slotfile.TRIM_ROWS:
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
        known = self._known(slot)
        return await self._write(
            slot, lambda c: slotfile.recover(c, known, router_id, upto, now_ms, entries, ahead_max_ms), []
        )

    async def faults(self, read: LogRead, now_ms: int) -> list[str]:
        absent = [f"its file {slotfile.file_name(read.log_slot)} is missing"] if read.last else []
        return await self._read(read.log_slot, lambda c: slotfile.faults(c, read, now_ms), absent)

    async def size_bytes(self, slot: str) -> int:
        """Bytes in use in a slot's file: what trimming freed is used again and not counted."""
        return await self._read(slot, slotfile.size_bytes, 0)

    async def close(self) -> None:
        self._closed = True
        for lane in (*self._writers.values(), *self._readers.values()):
            await lane.close()
        self._writers.clear()
        self._readers.clear()

    async def _write(self, slot: str, work: Callable[[sqlite3.Connection], T], absent: T) -> T:
        path = self._path(slot)
        if slot not in self._writers:
            self._writers[slot] = _Lane(f"log-{slot}", lambda: slotfile.open_writer(path, self._synced))
        return await self._writers[slot].run(work, absent)

    async def _read(self, slot: str, work: Callable[[sqlite3.Connection], T], absent: T) -> T:
        path = self._path(slot)
        if slot not in self._readers:
            self._readers[slot] = _Lane(f"logread-{slot}", lambda: slotfile.open_reader(path))
        return await self._readers[slot].run(work, absent)

    def _known(self, slot: str) -> slotfile.Owners:
        return self._owners.setdefault(slot, slotfile.Owners())

    def _path(self, slot: str) -> Path:
        if self._closed:
            raise Unavailable("the sample log is closed")
        return self._directory / slotfile.file_name(slot)


def newest_change(directory: Path) -> int:
    """The highest number of a change of configuration that any log under a folder has; 0 when none is known."""
    return max(map(slotfile.newest_change, directory.glob("*.sqlite")), default=0)
