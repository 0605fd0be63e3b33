"""Several processes on one store and one log: creation, writing side by side, and a writer killed in the middle."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable

from breaker_actors.core.log_entries import LogRecord
from breaker_actors.store.base import Store
from breaker_actors.wal.base import SampleLog
from tests.contract.backends import STORE, Backend
from tests.contract.store_world import World


async def _start(backend: Backend, job: str, argument: str) -> Process:
    command = [sys.executable, "-m", "tests.contract.processes", job, str(backend.folder), backend.database, argument]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE)


async def test_processes_share_a_store(backend: Backend, make_store: Callable[[], Awaitable[Store]]) -> None:
    """Two open a new database at once; then two create breakers side by side and none is lost."""
    (backend.folder / STORE).unlink(missing_ok=True)
    openers = [await _start(backend, "create", "-") for _ in range(2)]
    assert [await process.wait() for process in openers] == [0, 0]
    world = await World.make(await make_store())
    writers = [await _start(backend, "create", world.project_id) for _ in range(2)]
    assert [await process.wait() for process in writers] == [0, 0]
    rows, _ = await world.store.list_breakers(world.project_id)
    assert len({row.name for row in rows}) == 80
    assert len(await world.store.pending_changes(100)) == 80


async def _all(log: SampleLog) -> list[LogRecord]:
    records: list[LogRecord] = []
    while page := await log.read("r-0", "a", len(records), 10**9):
        records += page
    return records


async def test_a_killed_writer_leaves_whole_calls(backend: Backend, log: SampleLog) -> None:
    """Whatever was answered is there, no call is there in part, and the next owner goes on after it."""
    writer = await _start(backend, "flood", "1")
    assert writer.stdout is not None
    answered = [int(await writer.stdout.readline()) for _ in range(40)]
    assert len(await log.read("r-0", "a", 0, 10)) == 10
    writer.kill()
    await writer.wait()
    answered += map(int, (await writer.stdout.read()).splitlines())
    # the server may still be carrying out the last call of who was killed: the next owner waits for that
    (head,) = await log.acquire("r-0", "o2", [("a", 2)], 10**6, -1)
    records = await _all(log)
    assert [record.offset for record in records] == list(range(1, len(records) + 1))
    assert len(records) >= answered[-1]
    assert len(records) % 7 == 0
    assert all(record.payload == record.offset.to_bytes(16, "big") * 300 for record in records)
    assert (head.offset, len(head.keys)) == (len(records), len(records))
