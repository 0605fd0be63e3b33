"""What trimming costs: a look at the logs that have something old, not at all logs there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import SAMPLES, LogRecord
from breaker_actors.errors import LogDamaged
from breaker_actors.messages import LogFloor
from breaker_actors.router.retention import LogRetention
from breaker_actors.wal.base import LogStock, Read, Stretch

ROUTERS, KEPT_MS, MB = 50, 1_000, 1 << 20


class CountedLog:
    """Logs as lists of times of arrival, by router, and how often each was looked at."""

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {f"r{n}": [100, 200, 5_000] for n in range(ROUTERS)}
        self.floors = dict.fromkeys(self.times, 0)
        self.looked: list[str] = []
        self.damaged = ""

    async def find_some(self, slot: str, wanted: Sequence[tuple[str, int]]) -> list[int]:
        self.looked += [router_id for router_id, _ in wanted]
        return [sum(time <= at_ms for time in self.times[router_id]) for router_id, at_ms in wanted]

    async def read_some(self, slot: str, wanted: Sequence[Stretch], limit: int) -> list[Read]:
        """Answers for a few of them at a time."""
        return [self._read(*stretch, limit) for stretch in wanted[:7]]

    def _read(self, router_id: str, after: int, upto: int, limit: int) -> Read:
        if router_id == self.damaged:
            return LogDamaged("a record is missing")
        times = self.times[router_id][after:upto]
        return [LogRecord(router_id, after + 1, time, SAMPLES, 0, b"") for time in times][:limit]

    async def trim(self, slot: str, router_id: str, below: int) -> int:
        dropped, self.floors[router_id] = below - 1 - self.floors[router_id], below - 1
        return dropped

    async def size_bytes(self, slot: str) -> int:
        return MB

    async def stock(self, slot: str) -> list[LogStock]:
        return [LogStock(id_, len(times), times[-1], 100) for id_, times in self.times.items()]


@pytest.fixture
def log() -> CountedLog:
    return CountedLog()


@pytest.fixture
def retention(log: CountedLog) -> LogRetention:
    return LogRetention(log, KEPT_MS, 100 * MB, 50 * MB)  # type: ignore[arg-type]


def floors(offset: int | None = None, since_ms: int | None = None) -> list[LogFloor]:
    return [LogFloor(f"r{n}", f"p{n}", "slot", offset, since_ms) for n in range(ROUTERS)]


async def test_logs_without_anything_old_are_not_looked_at(log: CountedLog, retention: LogRetention) -> None:
    assert await retention.run(floors(), [], 3_000) == 2 * ROUTERS
    assert len(log.looked) == ROUTERS
    log.looked.clear()
    for now_ms in range(3_000, 6_000, 100):
        assert await retention.run(floors(), [], now_ms) == 0
    assert log.looked == []
    log.times["r7"].append(9_000)
    assert await retention.run(floors(), [], 6_000) == ROUTERS
    log.looked.clear()
    assert await retention.run(floors(), [], 9_999) == 0
    assert set(log.looked) == log.times.keys() - {"r7"}  # what they get may be as old as the last look
    log.looked.clear()
    assert await retention.run(floors(), [], 10_000) == 1
    assert log.looked == ["r7"]


async def test_what_somebody_still_has_to_read_is_looked_at_again(log: CountedLog, retention: LogRetention) -> None:
    assert await retention.run(floors(offset=1), [], 3_000) == ROUTERS
    log.looked.clear()
    assert await retention.run(floors(offset=2), [], 3_100) == ROUTERS
    assert len(log.looked) == ROUTERS


async def test_what_readers_hold_up_is_looked_at_once(log: CountedLog) -> None:
    """However full a share is: only when they have moved on there is something to trim again."""
    retention = LogRetention(log, KEPT_MS, 100 * MB, 100)  # type: ignore[arg-type]
    held_up = [replace(floor, project_id="p") for floor in floors(offset=1)]
    assert await retention.run(held_up, [], 3_000) == ROUTERS
    assert len(log.looked) == ROUTERS
    log.looked.clear()
    assert await retention.run(held_up, [], 3_100) == 0
    assert log.looked == []
    held_up[7] = replace(held_up[7], offset=3)
    assert await retention.run(held_up, [], 3_200) == 1
    assert log.looked == ["r7"]


async def test_damaged_logs_are_looked_at_once_for_each_time(log: CountedLog) -> None:
    log.damaged = "r3"
    log.times = {"r3": log.times["r3"]}
    retention = LogRetention(log, KEPT_MS, 100 * MB, 100)  # type: ignore[arg-type]
    floor = LogFloor("r3", "o", "slot", 3, None, "p")
    for _ in range(2):
        await retention.run([floor], [], 3_000)
    assert len(log.looked) == 2, "once by retention, once by the shortest one"


async def test_a_round_that_comes_while_one_goes_on_is_left_out(log: CountedLog, retention: LogRetention) -> None:
    goes_on, find_some = asyncio.Event(), log.find_some

    async def slow(slot: str, wanted: Sequence[tuple[str, int]]) -> list[int]:
        found = await find_some(slot, wanted)
        await goes_on.wait()
        return found

    log.find_some = slow  # type: ignore[method-assign]
    first = asyncio.create_task(retention.run(floors(), [], 3_000))
    while not log.looked:
        await asyncio.sleep(0)
    assert await asyncio.wait_for(retention.run(floors(), [], 3_100), 5) == 0
    goes_on.set()
    assert await first == 2 * ROUTERS
    assert len(log.looked) == ROUTERS
    assert await retention.run(floors(), [], 5_999) == 0
    assert await retention.run(floors(), [], 6_000) == ROUTERS


async def test_a_damaged_log_keeps_no_other_one(log: CountedLog, retention: LogRetention) -> None:
    log.damaged = "r3"
    assert await retention.run(floors(), [], 3_000) == 2 * ROUTERS


async def test_a_router_that_is_gone_and_comes_again_is_looked_at(log: CountedLog, retention: LogRetention) -> None:
    async def forget(slot: str, router_id: str) -> None:
        log.times[router_id], log.floors[router_id] = [50], 0

    log.forget = forget  # type: ignore[attr-defined]
    await retention.run(floors(), [], 3_000)
    log.looked.clear()
    assert await retention.run(floors(), [("slot", "r5")], 3_100) == 1
    assert log.looked == ["r5"]


async def test_near_a_bound_a_log_that_its_readers_hold_is_looked_at_once(log: CountedLog) -> None:
    """Not for each of the ever shorter times, nor in each round, until they have read on."""
    full = LogRetention(log, KEPT_MS, 100 * MB, 100)  # type: ignore[arg-type]
    assert await full.run(floors(offset=1), [], 9_000) == ROUTERS
    assert len(log.looked) == ROUTERS
    for now_ms in range(9_100, 9_500, 100):
        assert await full.run(floors(offset=1), [], now_ms) == 0
        assert await full.run(floors(offset=3, since_ms=150), [], now_ms) == 0
    assert len(log.looked) == 2 * ROUTERS
    assert await full.run(floors(offset=3), [], 9_500) == 2 * ROUTERS


async def test_one_round_at_a_time(log: CountedLog, retention: LogRetention, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for rounds gives one up that takes long, and asks for the next while it goes on."""
    go_on, size_bytes = asyncio.Event(), log.size_bytes

    async def slow(slot: str) -> int:
        await go_on.wait()
        return await size_bytes(slot)

    monkeypatch.setattr(log, "size_bytes", slow)
    first = asyncio.create_task(retention.run(floors(), [], 3_000))
    await asyncio.sleep(0)
    log.times["r0"].append(2_000)
    assert await retention.run(floors(), [], 9_000) == 0
    go_on.set()
    assert await first == 2 * ROUTERS
    assert await retention.run(floors(), [], 9_000) > 0
