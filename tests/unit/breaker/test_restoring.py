"""What a restart reads: the logs of many routers together, and of each what it would have read by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.breaker.recovery import Recovery, restore_record
from breaker_actors.breaker.slices import Slices
from breaker_actors.core.log_entries import (
    BREAKER,
    GAP,
    SAMPLES,
    VIEW,
    BreakerSet,
    Gap,
    Link,
    RouterView,
    encode_entry,
    encode_samples,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import LogDamaged, Unavailable
from breaker_actors.messages import BreakerAssignment, RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import Append, Read, Stretch
from breaker_actors.wal.reader import CHUNK, LogReader
from breaker_actors.wal.sqlite import SqliteLog

SLOT, AT_MS = "slot-0", 1_000_000
ROUTERS, LONG, LONG_RECORDS = 250, 7, 2 * CHUNK + 5
READS_MAX = 25
RULE = parse_rule({"metric": "load", "kind": "avg", "op": "gt", "threshold": 100, "window_ms": 600_000})
APPLIED = 3
"""Offsets: a view, the creation, samples; a gap and more samples come behind what is stored."""


class CountedLog(SqliteLog):
    """Counts what is read; can be made not to answer for many at once."""

    reads = 0
    refuses = False

    async def _read(self, *args: Any) -> Any:
        self.reads += 1
        return await super()._read(*args)

    async def read_some(self, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        if self.refuses:
            raise Unavailable("no")
        found = await super().read_some(slot, wanted, limit)
        return found[: max(1, len(found) - 3)]  # as where there is no room for all


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[CountedLog]:
    """A log for each breaker, one of them long."""
    made = CountedLog(tmp_path)
    await made.acquire(SLOT, "o", [(f"r{n}", 1) for n in range(ROUTERS)], 0, 0)
    for n in range(ROUTERS):
        assert all(await made.append(SLOT, records_of(n)))
    yield made
    await made.close()


def records_of(n: int) -> list[Append]:
    view = RouterView(version=1, links=(Link(f"b{n}", "load"),))
    settings = BreakerSet(breaker_id=f"b{n}", version=1, name="b", rule=RULE, created=True)
    entries = [(VIEW, encode_entry(view)), (BREAKER, encode_entry(settings)), (SAMPLES, samples(n))]
    entries += [(GAP, encode_entry(Gap(AT_MS + 3, AT_MS + 4)))]
    entries += [(SAMPLES, samples(n + k)) for k in range(LONG_RECORDS if n == LONG else n % 3)]
    return [
        Append(f"r{n}", 1, at, AT_MS + at, kind, 1 if at > 1 else 0, body)
        for at, (kind, body) in enumerate(entries, start=1)
    ]


def samples(value: int) -> bytes:
    return encode_samples(["load"], [1], np.array([AT_MS]), np.array([float(value)]), np.array([True]))


def restored() -> list[HostedBreaker]:
    """As they were stored, having applied their first samples."""
    found = []
    for n in range(ROUTERS):
        core, _ = Breaker.create(RULE, AT_MS + 2)
        core.advance(AT_MS + APPLIED)
        settings = BreakerSet(breaker_id=f"b{n}", version=1, name="b", rule=RULE, created=True)
        assignment = BreakerAssignment(
            breaker_id=f"b{n}",
            project_id="p",
            shard=0,
            epoch=1,
            name="b",
            routers=(RouterRef(f"r{n}", "o", SLOT, 1),),
            applied_offsets={f"r{n}": APPLIED},
            record=msgspec.msgpack.encode(core.record()),
            settings=encode_entry(settings),
        )
        hosted = HostedBreaker(assignment)
        restore_record(hosted, assignment, AT_MS + 10, 1_000, Asides())
        found.append(hosted)
    return found


async def restore(log: SqliteLog) -> list[HostedBreaker]:
    group, recovery = restored(), Recovery(log, cast(Any, None), Asides(), Slices())
    await recovery.refill(group)
    async for hosted, item in recovery.read_all(group):
        hosted.apply(item, 1_000)
    return group


def values(hosted: HostedBreaker) -> list[float]:
    assert hosted.breaker is not None
    window = hosted.breaker.evidence.window
    assert window is not None
    return window.values().tolist()


def due(n: int) -> list[float]:
    return [float(n), *(float(n + k) for k in range(LONG_RECORDS if n == LONG else n % 3))]


@pytest.mark.parametrize("refuses", [False, True])
async def test_windows_and_cuts_are_what_the_logs_say(log: CountedLog, refuses: bool) -> None:
    """Also where the log does not answer for many at once, or for some of them only."""
    log.refuses = refuses
    group = await restore(log)
    for n, hosted in enumerate(group):
        assert values(hosted) == due(n)
        assert hosted.applied_offsets == {f"r{n}": len(records_of(n))}
        assert hosted.breaker is not None
        assert hosted.breaker.schedule.record.gap_end_ms == AT_MS + 4


async def test_logs_are_not_read_one_by_one(log: CountedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CountedLog, "read_some", SqliteLog.read_some)
    log.reads = 0
    await restore(log)
    assert log.reads <= READS_MAX, f"{log.reads} reads for {ROUTERS} routers"


async def test_breakers_that_are_made_keep_no_views(log: CountedLog) -> None:
    """Each reads its creation, and a first view before which nobody is named."""
    reader = LogReader(log)
    for n in range(3):
        router = RouterRef(f"r{n}", "o", SLOT, 0)
        async for record in reader.after(router, 0, 2):
            assert (await reader.splitter(router, record)).view.links == ()
    assert len(reader._views) == 0


async def test_a_damaged_log_stops_those_that_read_it(log: CountedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other breaker."""

    async def read_some(self: CountedLog, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        found = await SqliteLog.read_some(self, slot, wanted, limit)
        error = LogDamaged("gone", {"router_id": "r5", "offset": 4})
        return [error if router_id == "r5" else one for (router_id, _, _), one in zip(wanted, found, strict=True)]

    monkeypatch.setattr(CountedLog, "read_some", read_some)
    group = await restore(log)
    assert [n for n, hosted in enumerate(group) if hosted.aside] == [5]
    assert values(group[6]) == due(6)
