"""What `breakers plan --backtest 7d` costs for 20 changed rules: seconds and peak memory, over a log of seven days.

python -m tests.bench plan [--json FILE] [--smoke] [--samples 50000000] [--rules 20]

Twice as many samples as that lie in the log: each rule's own router has its part of one half, the other half is one
router's that all rules listen to. Each case runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from breaker_actors.clock import SystemClock
from breaker_actors.core.log_entries import SAMPLES, encode_samples
from breaker_actors.core.model import Rule
from breaker_actors.core.rules import parse_rule
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerRow, RouterDraft
from breaker_actors.wal.base import Append, SampleLog
from breaker_actors.wal.sqlite import SqliteLog
from pipelines.planned import Changed, consequences
from tests.bench.core import calibrate
from tests.support.cluster import Service, service
from tests.support.figures import options_of, show

DAY_MS = 86_400_000
SPAN_MS = 7 * DAY_MS
RECORD = 500
"""Samples of one record: as many as a request has at most."""
GROUP = 200
WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "avg", "op": "gt", "threshold": 300},
    {"kind": "p95", "op": "gt", "threshold": 500},
    {"kind": "error_rate", "op": "gt", "threshold": 0.3},
    {"kind": "count", "op": "gt", "threshold": 10_000},
)


def main(argv: list[str]) -> None:
    parser = options_of("plan")
    parser.add_argument("--samples", type=int, default=50_000_000)
    parser.add_argument("--rules", type=int, default=20)
    options = parser.parse_args(argv)
    if options.smoke:
        options.samples, options.rules = 40_000, 4
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = asyncio.run(_made(Path(folder), options.rules, options.samples))
        for case, ids in made["cases"].items():
            told = _apart({"folder": folder, "project_id": made["project_id"], "ids": ids})
            figures |= {f"{case}: {name}": value for name, value in told.items()}
    show(figures, options.json)


async def _made(folder: Path, rules: int, samples: int) -> dict[str, Any]:
    """The breakers of both cases, made eight days ago, and what they got since."""
    began_ms = SystemClock().now_ms() - SPAN_MS - DAY_MS
    with patch.object(SystemClock, "now_ms", lambda _: began_ms):
        async with service(folder, log_retention_ms=30 * DAY_MS) as town:
            own = [await town.breaker(f"own {n}", **_rule(n)) for n in range(rules)]
            shared = [await town.breaker(f"shared {n}", **_rule(n)) for n in range(rules)]
            router_id = await _shared_router(town, shared)
            slot = {row.router_ids[0]: await town.slot(row.router_ids[0]) for row in own}
            slot[router_id] = await town.slot(router_id)
    log = SqliteLog(folder / "log", False)
    for router in (row.router_ids[0] for row in own):
        await _filled(log, slot[router], router, samples // rules, began_ms)
    await _filled(log, slot[router_id], router_id, samples, began_ms)
    await log.close()
    cases = {"own routers": [row.id for row in own], "a shared router": [row.id for row in shared]}
    return {"project_id": town.project.id, "cases": cases}


def _rule(number: int) -> dict[str, Any]:
    return KINDS[number % len(KINDS)] | {"window_ms": 60_000, "eval_interval_ms": 5_000, "min_count": 10}


def _higher(number: int) -> Rule:
    fields = _rule(number)
    return parse_rule({"metric": "latency", **fields, "threshold": fields["threshold"] * 1.1})


async def _shared_router(town: Service, breakers: list[BreakerRow]) -> str:
    ids = [row.id for row in breakers]
    draft = RouterDraft(name="shared", mode="static", breaker_ids=tuple(ids))
    router, changes = await town.store.create_router(town.project.id, draft, town.clock.now_ms())
    await town.gateway.configured(town.project.id, changes)
    return router.id


async def _filled(log: SampleLog, slot: str, router_id: str, samples: int, began_ms: int) -> None:
    """Records of seven days, with failures that come and go, behind what the log of the router has."""
    draw = np.random.default_rng(len(router_id) + samples)
    (head,) = await log.acquire(slot, "bench", [(router_id, 1_000)], began_ms, 0)
    records = samples // RECORD
    for first in range(0, records, GROUP):
        rows = []
        for n in range(first, min(first + GROUP, records)):
            received_ms = began_ms + DAY_MS // 2 + SPAN_MS * n // records
            bad = 3.0 if (received_ms // 3_600_000) % 24 == 0 else 1.0
            value = draw.lognormal(4.6, 0.5, RECORD) * bad
            ok = draw.random(RECORD) > 0.05 * bad**3
            ts_ms = np.full(RECORD, received_ms)
            payload = encode_samples(["latency"], [RECORD], ts_ms, value, ok)
            offset = head.offset + 1 + n
            rows.append(
                Append(
                    router_id,
                    1_000,
                    offset,
                    received_ms,
                    SAMPLES,
                    head.view_offset,
                    payload,
                    generation=head.generation,
                )
            )
        assert all(await log.append(slot, rows))


def _apart(asked: dict[str, Any]) -> dict[str, float]:
    code = "import sys; from tests.bench.plan import tried; tried(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, json.dumps(asked)], capture_output=True, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return told


def tried(text: str) -> None:
    """Plans with thresholds a tenth higher, and prints what it took as JSON."""
    asked = json.loads(text)
    settings = Settings(data_dir=Path(asked["folder"]), log_retention_ms=30 * DAY_MS)
    changed = [Changed(f"rule {n}", id_, _higher(n)) for n, id_ in enumerate(asked["ids"])]
    loop_s = calibrate()
    began_s, began_cpu_s = time.perf_counter(), _cpu_s()
    rows = consequences(changed, asked["project_id"], settings, SPAN_MS)
    took = {"s": time.perf_counter() - began_s, "CPU s": _cpu_s() - began_cpu_s}
    took["samples"] = sum(row["samples"] for row in rows)
    took["trips before"] = sum(row["trips_before"] for row in rows)
    took["trips after"] = sum(row["trips_after"] for row in rows)
    took["peak MB of a process"] = max(resource.getrusage(who).ru_maxrss for who in WHO) / 1024
    took["calibration loops"] = took["CPU s"] / loop_s
    print(json.dumps(took))


def _cpu_s() -> float:
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, WHO))
