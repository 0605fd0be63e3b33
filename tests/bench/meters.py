"""What counting costs: the hot calls with their meters and with meters that do nothing, in turns, in one process.

python -m tests.bench meters [--smoke]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from api.app import create_app
from api.context import EXTENSION
from api.sse import StreamTiming
from breaker_actors.clock import SystemClock
from breaker_actors.core.records import SAMPLES, encode_samples
from breaker_actors.messages import Delivery, Part, Target
from breaker_actors.meters import Meters
from tests.support.cluster import Service, service

SHARE_MAX = 0.02


@dataclass(frozen=True)
class Sizes:
    turns: int
    calls: int
    breakers: int


FULL = Sizes(41, 200, 100)
SMOKE = Sizes(2, 3, 3)


class Silent(Meters):
    """Meters that count nothing."""

    def count(self, name: str, n: float = 1, **labels: str) -> None: ...
    def observe(self, name: str, value: float, n: int = 1, **labels: str) -> None: ...


@dataclass
class Case:
    """A hot call, and how to take its meters away (True) and give them back."""

    name: str
    call: Callable[[], Awaitable[Any]]
    mute: Callable[[bool], None]


def payload_of(rows: int) -> bytes:
    now = SystemClock().now_ms()
    values = np.random.default_rng(5).normal(20, 1, rows)
    return encode_samples(["latency"], [rows], np.full(rows, now), values, np.ones(rows, bool))


def muting(part: Any, silent: Meters) -> Callable[[bool], None]:
    """Swaps `part.meters`; of a BreakerActor's inside also the look at the clock that only its meters need."""
    loud, count_lag = part.meters, getattr(part, "_count_lag", None)

    def mute(off: bool) -> None:
        part.meters = silent if off else loud
        if count_lag is not None:
            part._count_lag = (lambda since_ms: None) if off else count_lag

    return mute


async def deliver(s: Service, breakers: int, rows: int) -> Case:
    """One record to many breakers of one router, as a router's lane delivers it."""
    rows_of = [await s.breaker(window_ms=60_000, eval_interval_ms=10_000, threshold=1e9) for _ in range(breakers)]
    host = s.net.actors["breaker-0"]
    held = [host._held[row.id] for row in rows_of]
    payload, offset = payload_of(rows), 1 << 40

    async def call() -> None:
        nonlocal offset
        now, offset = SystemClock().now_ms(), offset + 1
        targets = []
        for each in held:
            (router_id,) = each.routers
            each.cut[router_id] = offset - 1
            targets.append(Target(each.id, each.epoch, router_id, offset - 1, offset, ((0, 0, rows),)))
        assert await host.deliver(Delivery([(offset, now, SAMPLES, payload)], targets)) == []

    return Case(f"deliver {rows} samples to {breakers} breakers", call, muting(host, Silent("breaker", "b")))


async def append(s: Service, rows: int) -> Case:
    row = await s.breaker()
    host, payload = s.net.actors["router-0"], payload_of(rows)

    async def call() -> None:
        (outcome,) = await host.append([Part(row.router_ids[0], (os.urandom(16),), payload, rows)])
        assert outcome.word == "ok"

    return Case(f"append {rows} samples to the log", call, muting(host, Silent("router", "r")))


async def ingest(s: Service, rows: int) -> Case:
    """A request through the whole app, in process: the meters of its replica, not those behind it."""
    row, now = await s.breaker(), SystemClock().now_ms()
    meters, silent = Meters("api", "api"), Silent("api", "api")
    app = create_app(s.gateway, s.cluster.settings, SystemClock(), StreamTiming(), owns_gateway=False, meters=meters)
    client, parts = app.test_client(), app.extensions[EXTENSION]
    body = [{"router_id": row.router_ids[0], "metric": "latency", "ts_ms": now, "value": 1.0}] * rows

    async def call() -> None:
        assert (await client.post(f"/v1/projects/{s.project.id}/ingest", json=body)).status_code == 202

    def mute(off: bool) -> None:
        for name in ("count", "observe"):
            setattr(meters, name, getattr(silent if off else Meters, name).__get__(silent if off else meters))

    assert parts.meters is meters
    return Case(f"POST ingest of {rows} samples", call, mute)


async def share(case: Case, sizes: Sizes) -> tuple[float, float]:
    """Microseconds of a call with meters, and which part of it they are: medians over turns with and without."""
    spent: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * sizes.turns):
        off = turn % 2 == 0
        case.mute(off)
        begun = time.process_time()
        for _ in range(sizes.calls):
            await case.call()
        spent[off].append((time.process_time() - begun) / sizes.calls * 1e6)
    case.mute(False)
    without, with_meters = statistics.median(spent[True]), statistics.median(spent[False])
    return with_meters, 1 - without / with_meters


async def run(sizes: Sizes) -> list[tuple[str, float, float]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        async with service(Path(folder), breaker_actors=1, checkpoint_interval_ms=3_600_000) as s:
            cases = [
                await deliver(s, 1, 500),
                await deliver(s, sizes.breakers, 1),
                await append(s, 500),
                await ingest(s, 100),
            ]
            for case in cases:
                found.append((case.name, *await share(case, sizes)))
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench meters", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only checks that the cases run")
    options = parser.parse_args(argv)
    found = asyncio.run(run(SMOKE if options.smoke else FULL))
    for name, micros, part in found:
        print(f"{name:40} {micros:10.1f} us  of which meters {part:7.2%}")
    return 0 if options.smoke or all(part <= SHARE_MAX for _, _, part in found) else 1
