"""The PostgreSQL server dies, or hangs, under a running service: nothing is lost, nothing is counted twice, and all of
it goes on by itself when the server is back."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from breaker_actors.core.log_entries import SAMPLES, decode_samples, encode_samples
from breaker_actors.errors import Unavailable
from breaker_actors.gateway import gateway
from breaker_actors.messages import AppendResult, Part
from breaker_actors.sql.postgres import BoundedConnection
from tests.support.cluster import Service, service, until
from tests.support.postgres import Postgres, own_server

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with own_server() as found:
        yield found


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage lasts a moment here, so what waits for its end may not wait long."""
    monkeypatch.setattr(gateway, "INGEST_S", 1.0)
    monkeypatch.setattr(BoundedConnection, "answer_s", 1.0)


class Flow:
    """Sends one sample after the other, each with a value of its own, and keeps what was answered."""

    def __init__(self, s: Service, router_id: str) -> None:
        self._s = s
        self._router_id = router_id
        self._next = 0
        self.answers: dict[float, str] = {}

    async def run(self) -> None:
        while True:
            await self.send()

    async def send(self) -> AppendResult:
        """High and low by turns of half a second, so that the breaker trips and recovers all the time."""
        self._next += 1
        now_ms = self._s.clock.now_ms()
        value = float(self._next + (500 if now_ms // 500 % 2 else -1_000_000))
        payload = encode_samples(["latency"], [1], np.array([now_ms]), np.array([value]), np.ones(1, bool))
        (outcome,) = await self._s.gateway.ingest(
            self._s.project.id, [Part(self._router_id, (os.urandom(16),), payload, 1)]
        )
        self.answers[value] = outcome.status
        return outcome

    def accepted(self) -> set[float]:
        return {value for value, word in self.answers.items() if word == "ok"}

    async def goes_on(self) -> None:
        """Returns when some more samples have been taken."""
        wanted = len(self.accepted()) + 20

        async def enough() -> bool:
            return len(self.accepted()) >= wanted

        await until(enough, PATIENCE_S)


@asynccontextmanager
async def flowing(s: Service, router_id: str) -> AsyncIterator[Flow]:
    flow = Flow(s, router_id)
    task = asyncio.create_task(flow.run())
    try:
        yield flow
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def logged(s: Service, router_id: str) -> Counter[float]:
    """How often each value lies in the router's log."""
    slot, found, after = await s.slot(router_id), Counter[float](), 0
    while records := await s.cluster.log.read(slot, router_id, after, 1 << 60):
        after = records[-1].offset
        for record in records:
            if record.kind == SAMPLES:
                found.update(decode_samples(record.payload).batch.value.tolist())
    return found


async def ready(s: Service) -> bool:
    try:
        await s.gateway.ready()
    except Unavailable:
        return False
    return True


async def more_events(s: Service, breaker_id: str, than: int) -> bool:
    return len(await s.events(breaker_id)) > than


async def assert_nothing_lost_or_doubled(s: Service, flow: Flow, router_id: str, breaker_id: str) -> None:
    found = await logged(s, router_id)
    assert set(found.values()) == {1}
    assert flow.accepted() <= set(found)
    row = await s.store.get_breaker(s.project.id, breaker_id)
    assert row is not None
    await s.assert_events_equal_replay(row)


@pytest.mark.alone
@pytest.mark.parametrize("outage", ["kill", "stop", "pause"])
async def test_an_outage_under_load(server: Postgres, tmp_path: Path, outage: str) -> None:
    """Samples are refused with "failed" while it lasts, states are answered by their owners, and /readyz says no."""
    with server.database() as url:
        async with service(tmp_path, database_url=url) as s:
            row = await s.breaker(window_ms=200, cooldown_ms=100)
            router_id = row.router_ids[0]
            async with flowing(s, router_id) as flow:
                await until(lambda: s.events(row.id), PATIENCE_S)
                getattr(server, outage)()
                try:
                    assert (await flow.send()).status == "failed"
                    assert not (await s.state(row.id)).stale
                    with pytest.raises(Unavailable):
                        await s.gateway.ready()
                    with pytest.raises(Unavailable):
                        await s.breaker("b")
                finally:
                    server.resume() if outage == "pause" else server.start()
                await until(lambda: ready(s), PATIENCE_S)
                seen = len(await s.events(row.id))
                await flow.goes_on()
                await until(lambda: more_events(s, row.id, seen), PATIENCE_S)
                other = await s.breaker("b")
                assert (await s.send(other.router_ids[0], [1.0])).status == "ok"
            await assert_nothing_lost_or_doubled(s, flow, router_id, row.id)


@pytest.mark.slow
async def test_many_outages(server: Postgres, tmp_path: Path) -> None:
    """Killed and started again at random moments of its work, with three breakers under load."""
    chance = random.Random(1)
    with server.database() as url:
        async with service(tmp_path, database_url=url) as s:
            rows = [await s.breaker(window_ms=200, cooldown_ms=100) for _ in range(3)]
            async with AsyncExitStack() as stack:
                flows = [await stack.enter_async_context(flowing(s, row.router_ids[0])) for row in rows]
                for _ in range(12):
                    await asyncio.sleep(chance.random())
                    server.kill()
                    await asyncio.sleep(chance.random() / 2)
                    server.start()
                    await until(lambda: ready(s), PATIENCE_S)
                    await asyncio.gather(*(flow.goes_on() for flow in flows))
            for row, flow in zip(rows, flows, strict=True):
                await assert_nothing_lost_or_doubled(s, flow, row.router_ids[0], row.id)
