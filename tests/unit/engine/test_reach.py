"""A router that nobody can reach makes no evidence of silence: its gaps last until a replica gets through to it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.log_entries import BREAKER, GAP, SAMPLES, VIEW, Gap, decode_gap
from breaker_actors.messages import UNAVAILABLE
from breaker_actors.router.host import RouterHost
from breaker_actors.store.rows import BreakerRow
from breaker_actors.wal.base import Append
from tests.support.cluster import Service, service, until

PESSIMIST = {
    "half_open_indeterminate_policy": "pessimistic",
    "cooldown_ms": 100,
    "eval_interval_ms": 100,
    "window_ms": 200,
    "recovery_allow_rate_ramp_steps": 10,
}


async def deaf(s: Service) -> RouterHost:
    """From here on no replica pings; the RouterActor is a new process."""
    await s.gateway._heartbeat.stop()
    return await restarted(s)


async def restarted(s: Service) -> RouterHost:
    await s.net.kill("router-0")
    s.net.revive("router", "router-0")
    router = s.net.actors["router-0"]
    assert isinstance(router, RouterHost)
    await until(lambda: owns(router))
    return router


async def owns(router: RouterHost) -> bool:
    return bool((await router.report()).epochs)


async def recovering(s: Service) -> BreakerRow:
    row = await s.breaker(**PESSIMIST)
    await s.send(row.router_ids[0], [500.0])
    await s.in_state(row.id, "half_open")
    return row


async def kinds(s: Service, row: BreakerRow) -> list[int]:
    router_id = row.router_ids[0]
    return [r.kind for r in await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60)]


async def gaps(s: Service, row: BreakerRow) -> list[Gap]:
    router_id = row.router_ids[0]
    records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60)
    return [decode_gap(r.payload) for r in records if r.kind == GAP]


def assert_one_span(found: list[Gap], least_ms: int) -> None:
    assert all(a.to_ms == b.from_ms for a, b in pairwise(found))
    assert found[-1].to_ms - found[0].from_ms >= least_ms


async def test_ticks_wait_until_a_replica_gets_through(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await recovering(s)
        router = await deaf(s)
        heard = len(await s.events(row.id))
        await asyncio.sleep(1.5)  # fifteen ticks with nothing in the window
        assert await router.advance_watermark(s.clock.now_ms(), [(row.router_ids[0], row.id)]) == [UNAVAILABLE]
        assert len(await s.events(row.id)) == heard
        await router.ping()
        assert_one_span(await gaps(s, row), 1_400)
        await s.in_state(row.id, "open")  # silence that somebody could have broken
        await s.assert_events_equal_replay(row)


async def test_a_gap_goes_on_over_owners_that_nobody_reached(tmp_path: Path) -> None:
    """Each of them lived for less than the shortest gap."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await recovering(s)
        await deaf(s)
        for _ in range(3):
            await asyncio.sleep(0.4)
            await restarted(s)
        assert (await s.send(row.router_ids[0], [10.0])).status == "ok"
        assert_one_span(await gaps(s, row), 1_200)
        await s.assert_events_equal_replay(row)


async def test_a_change_of_settings_does_not_hide_the_outage_around_it(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await recovering(s)
        await deaf(s)
        await asyncio.sleep(1.2)
        await s.edit(row.id, threshold=77)
        await asyncio.sleep(0.3)
        assert (await s.send(row.router_ids[0], [10.0])).status == "ok"
        assert_one_span(await gaps(s, row), 1_400)
        found = await kinds(s, row)
        assert found[-4:] == [GAP, BREAKER, GAP, SAMPLES] or found[-5:] == [GAP, BREAKER, VIEW, GAP, SAMPLES]


async def test_replicas_find_a_new_process_by_themselves(tmp_path: Path) -> None:
    """No sample is needed for silence to be heard."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await recovering(s)
        router = await restarted(s)
        await until(lambda: promises(s, row, router))
        await s.in_state(row.id, "open")
        await s.assert_events_equal_replay(row)


async def promises(s: Service, row: BreakerRow, router: RouterHost) -> bool:
    return not await unreached(s, row, router)


async def test_nobody_left_to_ping_is_an_outage(tmp_path: Path) -> None:
    """The API is away, the router is not."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker(**PESSIMIST)
        router: Any = s.net.actors["router-0"]
        assert (await s.send(row.router_ids[0], [10.0])).status == "ok"
        await s.gateway._heartbeat.stop()
        await until(lambda: unreached(s, row, router))
        await asyncio.sleep(1.1)
        await router.ping()
        assert_one_span(await gaps(s, row), 1_000)


async def unreached(s: Service, row: BreakerRow, router: RouterHost) -> bool:
    return await router.advance_watermark(s.clock.now_ms(), [(row.router_ids[0], row.id)]) == [UNAVAILABLE]


async def test_the_outage_of_many_routers_is_a_gap_each_and_samples_go_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long writing them takes: what waits meanwhile got through, so that is no next outage."""
    monkeypatch.setattr("breaker_actors.router.outage.SLICE", 2)
    async with service(tmp_path, breaker_actors=1) as s:
        rows = [await s.breaker(cooldown_ms=60_000) for _ in range(9)]
        router = await deaf(s)
        await router.ping()
        await until(lambda: nothing_owed(router))
        before = [len(await gaps(s, row)) for row in rows]
        real, written = s.cluster.log.append, list[int]()

        async def slow(slot: str, appends: list[Append]) -> list[bool]:
            written.append(sum(a.kind == GAP for a in appends))
            await asyncio.sleep(0.12)
            return await real(slot, appends)

        s.cluster.log.append = slow  # type: ignore[method-assign, assignment]
        router._outages._unreached_ms = 100
        await asyncio.sleep(1.2)
        replicas_there = asyncio.create_task(replicas(router))
        await until(lambda: some_owed(router))
        assert (await s.send(rows[-1].router_ids[0], [1.0])).status == "ok"
        assert sum(written) < len(rows), "its own gap and a slice or two, not those of all"
        await until(lambda: nothing_owed(router))
        await asyncio.sleep(0.3)
        replicas_there.cancel()
        assert [len(await gaps(s, row)) - n for row, n in zip(rows, before, strict=True)] == [1] * len(rows)
        assert max(written) <= 3


async def replicas(router: RouterHost) -> None:
    """Many that ping, and wait for no answer."""
    async with asyncio.TaskGroup() as pings:
        while True:
            pings.create_task(router.ping())
            await asyncio.sleep(0.02)


async def some_owed(router: RouterHost) -> bool:
    return bool(router._outages.owed)


async def nothing_owed(router: RouterHost) -> bool:
    return not router._outages.owed


async def test_a_gap_that_is_still_owed_outlives_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is promised before it is written, and its slot is not noted as alive."""
    async with service(tmp_path, breaker_actors=1, heartbeat_interval_ms=50) as s:
        row = await s.breaker(cooldown_ms=60_000)
        router_id = row.router_ids[0]
        router = await deaf(s)
        await router.ping()
        await until(lambda: nothing_owed(router))
        before = len(await gaps(s, row))
        monkeypatch.setattr(router, "_settle_soon", lambda: None)
        monkeypatch.setattr(router._outages.owed, "slice", lambda _: [])
        router._outages._unreached_ms = 100
        await asyncio.sleep(1.3)
        await router.ping()
        assert router._outages.owed.of(router_id)
        assert await router.advance_watermark(s.clock.now_ms(), [(router_id, row.id)]) == [UNAVAILABLE]
        for _ in range(4):
            await router._beat_once()
        router = await restarted(s)
        await router.ping()
        await until(lambda: nothing_owed(router))
        found = (await gaps(s, row))[before:]
        assert found
        assert_one_span(found, 1_000)
