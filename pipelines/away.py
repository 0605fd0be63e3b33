"""When a project's routers could take no samples, as their own logs tell: the service was down, restarted, or out of
reach of its log. Nothing is written.

An outage concerns every router of a RouterActor, and each of them writes it down. So one router of each log slot is
read: of those that are old enough the one with the smallest log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from breaker_actors.core.log_entries import GAPS, decode_gap
from breaker_actors.messages import RouterRef
from breaker_actors.persistence import make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.store.base import Store
from breaker_actors.wal.base import SampleLog
from breaker_actors.wal.reader import LogReader
from pipelines.sources.service_log import OwnLoop

SLOTS_MAX = 16
"""Log slots of a project that are looked at."""
CHUNK, RECORDS_MAX = 256, 50_000
"""Records between two looks at whether it is late, and at most of one slot, the newest first."""
Stretch = tuple[int, int]


class Away(NamedTuple):
    """`stretches`: from when to when, in ms, oldest first, none of which touch; they are known since `known_ms`."""

    stretches: list[Stretch]
    known_ms: int


class _Log(NamedTuple):
    """What of a router's log is looked at. `since_ms`: since when the router is there."""

    slot: str
    router_id: str
    last_offset: int
    bytes: int
    since_ms: int


def away(project_id: str, settings: Settings, since_ms: int, now_ms: int, late: Callable[[], bool]) -> Away:
    """The stretches that ended after `since_ms`. Where there is more to read than may be, or it is `late`, the newest
    of them. Raises Unavailable where the log can't be reached, LogDamaged where it is not as it was written."""

    async def found() -> Away:
        store, log = make_store(settings), make_log(settings)
        await store.open()
        try:
            return await _away(store, log, project_id, max(since_ms, now_ms - settings.log_retention_ms), late)
        finally:
            await log.close()
            await store.close()

    with OwnLoop() as loop:
        return loop.run(found())


async def _away(store: Store, log: SampleLog, project_id: str, since_ms: int, late: Callable[[], bool]) -> Away:
    stretches, known_ms = list[Stretch](), since_ms
    for one in await _logs(store, log, project_id, since_ms):
        more, from_ms = await _read(log, one, since_ms, late)
        stretches += more
        known_ms = max(known_ms, from_ms)
    return Away(joined(stretch for stretch in stretches if stretch[1] > since_ms), known_ms)


async def _logs(store: Store, log: SampleLog, project_id: str, since_ms: int) -> list[_Log]:
    """One of each slot: the smallest of those that were there at `since_ms`, else that of the oldest router."""
    made = {router.id: router.inserted_ms for router in await store.list_routers(project_id)}
    slots = {one.log_slot for one in await store.router_assignments(list(made)) if one.log_slot}
    found = list[_Log]()
    for slot in sorted(slots)[:SLOTS_MAX]:
        kept = [one for one in await log.stock(slot) if one.router_id in made and one.last_offset]
        logs = [_Log(slot, one.router_id, one.last_offset, one.bytes, made[one.router_id]) for one in kept]
        if logs:
            found.append(min(logs, key=lambda one: (max(one.since_ms, since_ms), one.bytes, one.router_id)))
    return found


async def _read(log: SampleLog, one: _Log, since_ms: int, late: Callable[[], bool]) -> tuple[list[Stretch], int]:
    """The stretches of one router, and since when all of them were read."""
    begin = await log.find(one.slot, one.router_id, since_ms)
    reader, router = LogReader(log), RouterRef(one.router_id, "", one.slot, 0)
    upto, found, known_ms = one.last_offset, list[Stretch](), since_ms
    while upto > begin:
        after, first_ms = max(begin, upto - CHUNK), 0
        async for record in reader.after(router, after, upto):
            first_ms = first_ms or record.received_ms
            if record.kind in GAPS:
                gap = decode_gap(record.payload)
                found.append((gap.from_ms, gap.to_ms))
        if after > begin and (late() or one.last_offset - after >= RECORDS_MAX):
            known_ms = max(known_ms, first_ms)
            break
        upto = after
    return found, known_ms


def joined(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Stretches in order; those that touch or overlap are one. Pure."""
    found = list[Stretch]()
    for begin, end in sorted(stretches):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
