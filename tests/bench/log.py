"""What durability costs in the log itself: checksums, and syncs. SQLite and PostgreSQL, CPU of both sides.

python -m tests.bench log [--json FILE] [--smoke] [--rounds 7] [--groups 150] [--records 8] [--samples 500]

Each round appends the same groups of records to fresh logs: with checksums, and with constants in their place; to
SQLite synced and not. Medians of microseconds of CPU a sample, and ratios of the medians. PostgreSQL syncs by its own
settings, whatever we do, so that costs here what it did before.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np

from breaker_actors.core.log_entries import SAMPLES, encode_samples
from breaker_actors.wal.base import Append, SampleLog
from breaker_actors.wal.postgres import PgLog
from breaker_actors.wal.sqlite import SqliteLog
from tests.support import postgres
from tests.support.figures import options_of, show
from tests.support.live import tree_of
from tests.support.usage import TICKS

SLOT, OWNER, AT_MS = "router-0", "o", 1_700_000_000_000


def main(argv: list[str]) -> None:
    parser = options_of("log")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--groups", type=int, default=150)
    parser.add_argument("--records", type=int, default=8)
    parser.add_argument("--samples", type=int, default=500)
    options = parser.parse_args(argv)
    if options.smoke:
        options.rounds, options.groups = 1, 3
    payload = body(options.samples)
    samples = options.groups * options.records * options.samples
    used: dict[str, list[float]] = defaultdict(list)
    with postgres.server() as server:
        for _ in range(options.rounds):
            for name, open_log, chained in variants(server):
                with open_log() as log, nullcontext() if chained else bare():
                    used[name].append(1e6 * cost_s(log, options.groups, options.records, payload) / samples)
    figures = {f"{name}, us a sample": median(values) for name, values in used.items()}
    for store in ("sqlite", "postgresql"):
        figures[f"{store}: checksums, ratio"] = median(used[store]) / median(used[f"{store} bare"])
    figures["sqlite: synced, ratio"] = median(used["sqlite synced"]) / median(used["sqlite"])
    show(figures, options.json)


Opener = Callable[[], AbstractContextManager[SampleLog]]


def variants(server: postgres.Server) -> Iterator[tuple[str, Opener, bool]]:
    """Name, how to open a fresh log, and whether it has checksums."""

    @contextmanager
    def sqlite(synced: bool = False) -> Iterator[SampleLog]:
        with tempfile.TemporaryDirectory() as folder:
            yield SqliteLog(Path(folder), synced)

    @contextmanager
    def on_server() -> Iterator[SampleLog]:
        with server.database() as url:
            yield PgLog(url)

    yield "sqlite", sqlite, True
    yield "sqlite bare", sqlite, False
    yield "sqlite synced", lambda: sqlite(True), True
    yield "postgresql", on_server, True
    yield "postgresql bare", on_server, False


@contextmanager
def bare() -> Iterator[None]:
    """Nothing is computed: a constant stands in each place."""
    with (
        patch("breaker_actors.wal.chain.checksum", lambda *_: 1),
        patch("breaker_actors.wal.chain.seal", lambda _: 1),
    ):
        yield


def body(samples: int) -> bytes:
    draw = np.random.default_rng(1)
    times = AT_MS + np.arange(samples)
    return encode_samples(["latency"], [samples], times, draw.random(samples), np.full(samples, True))


def cost_s(log: SampleLog, groups: int, records: int, payload: bytes) -> float:
    """CPU seconds of the appends, a database's included. Raises AssertionError when one was not taken."""
    routers = [f"r{n}" for n in range(records)]

    async def run() -> float:
        await log.acquire(SLOT, OWNER, [(name, 1) for name in routers], 0, 0)
        before = _cpu_s()
        for group in range(1, groups + 1):
            rows = [Append(name, 1, group, AT_MS + group, SAMPLES, 0, payload) for name in routers]
            assert all(await log.append(SLOT, rows))
        used = _cpu_s() - before
        await log.close()
        return used

    return asyncio.run(run())


def _cpu_s() -> float:
    """Of this process, and of those that it has started."""
    others = 0
    for pid in tree_of(os.getpid()):
        if pid != os.getpid():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            others += int(fields[11]) + int(fields[12])
    return time.process_time() + others / TICKS
