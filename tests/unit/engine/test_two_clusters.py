"""Two clusters on one database, by mistake or in an upgrade that went wrong: who opened last has it, the other is
fenced, and nothing that either answered is lost. So it is too where the other comes back again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api.cli.verify import verified
from breaker_actors.core.log_entries import SAMPLES, decode_samples
from breaker_actors.persistence import make_log, make_store
from breaker_actors.settings import Settings
from breaker_actors.transport.peers import DIRECTORY, journal_name
from tests.support.cluster import Service, service
from tests.support.in_process import LocalCluster
from tests.support.virtual_time import clock_of_loop


class Sender:
    """Values through one cluster; `taken`: those that were answered ok."""

    def __init__(self, s: Service, router_id: str, first: int) -> None:
        self._s = s
        self._router_id = router_id
        self._value = float(first)
        self.taken: list[float] = []
        self.refused = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._value += 2
            try:
                outcome = await asyncio.wait_for(self._s.send(self._router_id, [self._value]), 3)
                if outcome.status == "ok":
                    self.taken.append(self._value)
                else:
                    self.refused += 1
            except Exception:
                self.refused += 1
            await asyncio.sleep(0.02)


async def logged(s: Service, router_id: str) -> list[float]:
    records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60, 1 << 30)
    return [v for r in records if r.kind == SAMPLES for v in decode_samples(r.payload).batch.value.tolist()]


class Returning:
    """What Ray does for a cluster: a Directory or Journal that was fenced ends, and comes back after a while, for as
    long as that goes on. `times`: how often one did."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._tasks: set[asyncio.Task[None]] = set()
        self.times = 0

    def watch(self) -> None:
        net = self._cluster.net
        directory: Any = net.actors[DIRECTORY]
        directory._placer._superseded = lambda: self._again(DIRECTORY, self._cluster.start_directory)
        journal: Any = net.actors[journal_name(0)]
        journal._superseded = lambda: self._again(journal_name(0), self._cluster.start_journal)

    def _again(self, name: str, start: Callable[[], Awaitable[None]]) -> None:
        async def later() -> None:
            if name in self._cluster.net.actors:
                self.times += 1
                await self._cluster.net.kill(name)
                await asyncio.sleep(0.3)
                await start()
                self.watch()

        task = asyncio.create_task(later())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@pytest.mark.parametrize("comes_back", [False, True], ids=["stays away", "comes back"])
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
async def test_nothing_that_either_answered_is_lost(
    tmp_path: Path, backend: str, comes_back: bool, request: pytest.FixtureRequest
) -> None:
    settings: dict[str, Any] = {}
    if backend == "postgresql":
        settings = {"database_url": request.getfixturevalue("postgres_url"), "secret_key": "ab" * 32}
    async with service(tmp_path, **settings) as first:
        row = await first.breaker(window_ms=500, cooldown_ms=100)
        stop = asyncio.Event()
        ones = Sender(first, row.router_ids[0], 0)
        sending = [asyncio.create_task(ones.run(stop))]
        await asyncio.sleep(1)
        made = Settings(data_dir=tmp_path, breaker_actors=2, router_actors=1, **settings)
        store = make_store(made)
        await store.open()
        async with LocalCluster(store, make_log(made), clock_of_loop(), made) as cluster:
            second = Service(cluster, first.project)
            returning = [Returning(each.cluster) for each in (first, second)] if comes_back else []
            for each in returning:
                each.watch()
            twos = Sender(second, row.router_ids[0], 1)
            sending.append(asyncio.create_task(twos.run(stop)))
            await asyncio.sleep(12)
            stop.set()
            await asyncio.gather(*sending)
            found = await logged(second, row.router_ids[0])
            assert all(each.times > 5 for each in returning)
            assert len(found) == len(set(found))
            assert set(ones.taken) | set(twos.taken) <= set(found)
            assert twos.taken
            await second.assert_events_equal_replay(row)
        await store.close()
    report = await verified(made, clock=clock_of_loop())
    assert report.faults == []
