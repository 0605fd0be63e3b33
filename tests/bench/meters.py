"""What counting costs: how often each hot call counts, and what that is of its time.

The difference between calls with and without meters drowns in the noise of a shared machine, so the price of one count
is measured by itself, at its best, and set against the calls at their best.

python -m tests.bench meters [--smoke]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from api.app import create_app
from api.stream.sse import StreamTiming
from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import SAMPLES, encode_samples
from breaker_actors.messages import DeliveredEntry, Delivery, Part, Target
from breaker_actors.telemetry.meters import Meters, Timed
from tests.support.cluster import Service, service

SHARE_MAX = 0.02


@dataclass(frozen=True)
class Sizes:
    rounds: int
    calls: int
    breakers: int


FULL = Sizes(30, 50, 100)
SMOKE = Sizes(2, 3, 3)


class Watched(Meters):
    """Meters that say how often they are called. (What counts into plain integers costs less than can be measured.)"""

    calls: Counter[str]

    def count(self, name: str, n: float = 1, /, **labels: str) -> None:
        self.calls["count"] += 1
        super().count(name, n, **labels)

    def observe(self, name: str, value: float, n: int = 1, /, **labels: str) -> None:
        self.calls["observe"] += 1
        super().observe(name, value, n, **labels)

    def timed(self, name: str, /, **labels: str) -> Timed:
        self.calls["timed"] += 1
        return super().timed(name, **labels)


@dataclass
class Case:
    """A hot call and the meters behind it. `lags`: how often it adds to the histogram of evaluation lags."""

    name: str
    call: Callable[[], Awaitable[Any]]
    meters: Meters
    lags: int = 0


def prices(sizes: Sizes) -> dict[str, float]:
    """Microseconds of one count of each sort; `lag` with the look at the clock that goes before it."""
    meters, clock = Meters("api", "api"), SystemClock()
    buckets = meters.histogram("breakers_loop_delay_seconds")
    loops = 200 * sizes.calls

    def count() -> None:
        meters.count("breakers_samples_rejected_total", 3, reason="invalid_value")

    def lag() -> None:
        buckets.add(max(0, clock.now_ms() - 1) / 1e15)

    def observe() -> None:
        meters.observe("breakers_http_request_seconds", 0.02, route="ingest", status="2xx")

    def timed() -> None:
        with meters.timed("breakers_http_request_seconds", route="ingest", status="2xx"):
            pass

    def best(work: Callable[[], None]) -> float:
        found = []
        for _ in range(sizes.rounds):
            begun = time.perf_counter()
            for _ in range(loops):
                work()
            found.append((time.perf_counter() - begun) / loops * 1e6)
        return min(found)

    return {"count": best(count), "lag": best(lag), "observe": best(observe), "timed": best(timed)}


def payload_of(rows: int) -> bytes:
    now = SystemClock().now_ms()
    values = np.random.default_rng(5).normal(20, 1, rows)
    return encode_samples(["latency"], [rows], np.full(rows, now), values, np.ones(rows, bool))


async def deliver(s: Service, breakers: int, rows: int) -> Case:
    """One record to many breakers of one router, as a router's lane delivers it."""
    made = [await s.breaker(window_ms=60_000, eval_interval_ms=10_000, threshold=1e9) for _ in range(breakers)]
    host = s.net.actors["breaker-0"]
    held = [host._hosted[row.id] for row in made]
    payload, offset = payload_of(rows), 1 << 40

    async def call() -> None:
        nonlocal offset
        now, offset = SystemClock().now_ms(), offset + 1
        targets = []
        for each in held:
            (router_id,) = each.routers
            each.applied_offsets[router_id] = offset - 1
            targets.append(Target(each.id, each.epoch, router_id, offset - 1, offset, ((0, 0, rows),)))
        assert await host.deliver(Delivery([DeliveredEntry(offset, now, SAMPLES, payload)], targets)) == []

    return Case(f"deliver {rows} samples to {breakers} breakers", call, host.meters, lags=1)


async def append(s: Service, rows: int) -> Case:
    row = await s.breaker()
    host, payload = s.net.actors["router-0"], payload_of(rows)

    async def call() -> None:
        (outcome,) = await host.append([Part(row.router_ids[0], (os.urandom(16),), payload, rows)])
        assert outcome.status == "ok"

    return Case(f"append {rows} samples to the log", call, host.meters)


async def ingest(s: Service, rows: int) -> Case:
    """A request through the whole app, in process: the meters of its replica, not those behind it."""
    row, now, meters = await s.breaker(), SystemClock().now_ms(), Meters("api", "api")
    app = create_app(s.gateway, s.cluster.settings, SystemClock(), StreamTiming(), owns_gateway=False, meters=meters)
    client = app.test_client()
    body = [{"router_id": row.router_ids[0], "metric": "latency", "ts_ms": now, "value": 1.0}] * rows

    async def call() -> None:
        assert (await client.post(f"/v1/projects/{s.project.id}/ingest", json=body)).status_code == 202

    return Case(f"POST ingest of {rows} samples", call, meters)


async def measure(case: Case, sizes: Sizes) -> tuple[float, Counter[str]]:
    """Microseconds of a call at its best, and how often it counts."""
    best = float("inf")
    for _ in range(sizes.rounds * sizes.calls):
        begun = time.perf_counter()
        await case.call()
        best = min(best, (time.perf_counter() - begun) * 1e6)
    plain, case.meters.__class__ = case.meters.__class__, Watched
    assert isinstance(case.meters, Watched)
    calls = case.meters.calls = Counter(lag=case.lags)
    await case.call()
    case.meters.__class__ = plain
    return best, calls


async def run(sizes: Sizes) -> list[tuple[str, float, float]]:
    price, found = prices(sizes), []
    with tempfile.TemporaryDirectory() as folder:
        async with service(Path(folder), breaker_actors=1, checkpoint_interval_ms=3_600_000) as s:
            makers = [deliver(s, 1, 500), deliver(s, sizes.breakers, 1), append(s, 500), ingest(s, 100)]
            for case in [await making for making in makers]:
                micros, calls = await measure(case, sizes)
                found.append((case.name, micros, sum(price[kind] * n for kind, n in calls.items())))
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench meters", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only checks that the cases run")
    options = parser.parse_args(argv)
    found = asyncio.run(run(SMOKE if options.smoke else FULL))
    for name, micros, meters in found:
        print(f"{name:40} {micros:10.1f} us, counting {meters:5.2f} us = {meters / micros:.2%}")
    return 0 if options.smoke or all(meters <= SHARE_MAX * micros for _, micros, meters in found) else 1
