"""What child processes of the contract tests do: `python -m tests.contract.processes JOB FOLDER DATABASE ARGUMENT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from breaker_actors.core.log_entries import SAMPLES
from breaker_actors.store.rows import BreakerDraft
from breaker_actors.wal.base import Append
from tests.contract.backends import Backend
from tests.contract.store_world import RULE


async def create(backend: Backend, project_id: str) -> None:
    """Opens the store (perhaps the first to do it) and, given a project, makes 40 breakers in it."""
    store = backend.store()
    await store.open()
    if project_id != "-":
        for _ in range(40):
            await store.create_breaker(project_id, BreakerDraft(rule=RULE), 1)
    await store.close()


async def flood(backend: Backend, epoch: str) -> None:
    """Appends for ever, a few records a call, and says after each call up to where."""
    log = backend.log()
    (head,) = await log.acquire("r-0", f"o{epoch}", [("a", int(epoch))], 1, 0)
    offset = head.offset
    while True:
        records = [_record(int(epoch), offset + n) for n in range(1, 8)]
        assert all(await log.append("r-0", records))
        offset += len(records)
        print(offset, flush=True)


def _record(epoch: int, offset: int) -> Append:
    key = offset.to_bytes(16, "big")
    return Append("a", epoch, offset, offset, SAMPLES, 0, key * 300, (key,))


if __name__ == "__main__":
    job, folder, database, argument = sys.argv[1:]
    asyncio.run({"create": create, "flood": flood}[job](Backend(Path(folder), database), argument))
