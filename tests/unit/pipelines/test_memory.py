"""`memory_mb` bounds the process: backtests that would take far more, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tests.support.recorded import START_MS, router_id

MEMORY_MB = 245
AHEAD_MB = 100
"""What polars reads ahead of a Parquet file with text in it."""
RULE: dict[str, Any] = {"metric": "latency", "kind": "p95", "op": "gt", "threshold": 260, "window_ms": 60_000}
PROGRAM = """
import json, sys
from pathlib import Path
from pipelines.backtest import backtest
run = backtest(**json.loads(sys.argv[1]))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([int(status["VmHWM"].split()[0]) // 1024, run.summary["samples"][0]]))
"""


def recorded(path: Path, count: int) -> str:
    draw = np.random.default_rng(7)
    ts_ms = np.cumsum(draw.integers(0, 20, count)) + START_MS
    bad = (ts_ms - START_MS) // 100_000 % 7 == 0
    pl.DataFrame({"ts_ms": ts_ms, "value": draw.lognormal(4.5 + 0.6 * bad, 0.45)}).write_parquet(path)
    return str(path)


def peak_mb(**arguments: Any) -> tuple[int, int]:
    """Of a process with this backtest, as the kernel counts it; and how many samples it read. (getrusage also counts
    what the process was before it became Python.)"""
    given = json.dumps({"rule": RULE, "memory_mb": MEMORY_MB, **arguments})
    environ = os.environ | {"POLARS_MAX_THREADS": "2"}  # each thread has buffers of its own
    program = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0, done.stderr
    peak, samples = json.loads(done.stdout)
    return peak, samples


def test_a_sweep_over_many_windows(tmp_path: Path) -> None:
    """What is worked out for windows of one length is gone when the next ones come."""
    grid = {"threshold": [220, 240, 260, 280], "window_ms": list(range(1_000, 161_000, 1_000))}
    peak, samples = peak_mb(samples=recorded(tmp_path / "s.parquet", 80_000), sweep=grid)
    assert samples == 80_000
    assert peak < MEMORY_MB


def test_sorting(tmp_path: Path) -> None:
    """Stretches are as long as the memory allows."""
    frame = pl.read_parquet(recorded(tmp_path / "s.parquet", 1_500_000)).with_columns(
        received_ms=pl.col("ts_ms"), router_id=pl.lit(router_id(1)), metric=pl.lit("latency")
    )
    frame.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(tmp_path / "s.parquet")
    peak, samples = peak_mb(samples=str(tmp_path / "s.parquet"), sort=True)
    assert samples == 1_500_000
    assert peak < MEMORY_MB + AHEAD_MB
