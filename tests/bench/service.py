"""Creating breakers on a running service: how long POST takes while actors start, and what two hundred of them cost.

python -m tests.bench service [--json FILE] [--smoke]

Every one of them is sent a sample that trips it. Afterwards all these samples are in the log, and the history of each
breaker is what the core comes to with its log.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.figures import options_of, show
from tests.support.fleet import check_counts, check_replays
from tests.support.invariants import Evidence
from tests.support.live import LiveService, serving, tree_of


def memory_mb(pids: list[int]) -> float:
    """Proportional set size: shared pages count once over all."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def create(live: LiveService, count: int) -> tuple[list[dict[str, Any]], list[float]]:
    made, times = [], []
    for i in range(count):
        start = time.perf_counter()
        made.append(live.breaker(name=f"bench-{i}", cooldown_ms=3_600_000))
        times.append((time.perf_counter() - start) * 1000)
    return made, times


def no_op_ms(live: LiveService, count: int) -> float:
    """The calibration: a request that does nothing, over the same way."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        live.user.get("/api/healthz")
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def main(argv: list[str]) -> None:
    options = options_of("service").parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data") as live:
        figures = measure(live, 12 if options.smoke else 200)
    show(figures, options.json)


def measure(live: LiveService, count: int) -> dict[str, float]:
    live.breaker(name="warm-up")
    calibration = no_op_ms(live, 50)
    before = memory_mb([live.process.pid, *tree_of(live.process.pid)])
    made, times = create(live, count)
    accepted = {}
    for one in made:
        answer = live.send(one["router_id"], [500.0])
        assert answer.status_code == 202, answer.text
        accepted[one["router_id"]] = answer.json()["accepted"]
    for one in made:  # every one of them works
        live.in_state(one["breaker"]["id"], "open", 60)
    after = memory_mb([live.process.pid, *tree_of(live.process.pid)])
    evidence = Evidence(live.data_dir)
    check_counts(evidence, accepted)
    check_replays(evidence, {one["breaker"]["id"]: one["router_id"] for one in made})
    median = statistics.median(times)
    return {
        "breakers": float(count),
        "create_ms_median": median,
        "create_ms_p99": sorted(times)[int(0.99 * (count - 1))],
        "create_over_no_op": median / calibration,
        "actors": float(len(live.pids("BreakerActor"))),
        "memory_mb_before": before,
        "memory_mb_after": after,
    }
