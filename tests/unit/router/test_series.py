"""Cumulative series through the service: neither a killed owner nor a repeated request loses or doubles a rise."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from breaker_actors.core.counters import CounterPoint, encode_points
from breaker_actors.core.log_entries import encode_samples
from breaker_actors.messages import AppendResult, Part
from tests.support.cluster import Service, service, until

NOTHING = encode_samples([], [], np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_))
SERIES = b"s" * 16


async def send(
    s: Service, router_id: str, value: int, ts_ms: int, series: bytes = SERIES, keys: tuple[bytes, ...] | None = None
) -> AppendResult:
    points = [CounterPoint(series, "requests", ts_ms, 0, ok=True, value=float(value))]
    return (
        await s.gateway.ingest(
            s.project.id, [Part(router_id, keys or (os.urandom(16),), NOTHING, 1, encode_points(points))]
        )
    )[0]


async def counted(s: Service, breaker_id: str, count: int) -> None:
    """The breaker comes to hold so many observations."""

    async def held() -> bool:
        reading = await s.fresh(breaker_id)
        return reading.view.sample_count == count

    await until(held)


async def test_a_rise_counts_once_over_a_kill_and_a_repeat(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(metric="requests", kind="count", op="gt", threshold=1_000, window_ms=600_000)
        router_id, now = row.router_ids[0], s.clock.now_ms()
        assert (await send(s, router_id, 100, now)).status == "ok"
        assert (await send(s, router_id, 103, now + 1)).status == "ok"
        await counted(s, row.id, 3)
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        key = (os.urandom(16),)
        first = await send(s, router_id, 110, now + 2, keys=key)
        assert first.status == "ok"
        assert (await send(s, router_id, 110, now + 2, keys=key)).status == "duplicate"
        assert (await send(s, router_id, 110, now + 2)).status == "ok"  # known by its time
        await counted(s, row.id, 10)
        assert (await send(s, router_id, 4, now + 3)).status == "ok"  # the sender began anew
        await counted(s, row.id, 14)


async def test_there_is_room_for_so_many_series(tmp_path: Path) -> None:
    async with service(tmp_path, counter_series_max=3) as s:
        row = await s.breaker(metric="requests", kind="count", op="gt", threshold=1_000, window_ms=600_000)
        router_id, now = row.router_ids[0], s.clock.now_ms()
        results = [await send(s, router_id, 1, now, bytes([n]) * 16) for n in range(5)]
        assert [result.beyond for result in results] == [0, 0, 0, 1, 1]
        assert (await send(s, router_id, 6, now + 1, bytes([2]) * 16)).beyond == 0
        await counted(s, row.id, 5)
