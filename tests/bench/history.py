"""What backtests cost: samples per second over a Parquet file, a sweep against a single rule, peak memory.

Each case runs in a process of its own, so that its peak memory is its own; rates are also given per second of processor
time and as a ratio to the calibration loop of tests/bench/core.py, for machines that are not left alone. Outcomes are
part of it: on stretches of the file the transitions are those of the core.

python -m tests.bench history [--rows N] [--file FILE] [--json FILE] [--smoke]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from breaker_actors.core.model import Transition
from pipelines.backtest import backtest
from pipelines.columns import Samples
from pipelines.replay import replay_samples
from pipelines.rules import candidates
from tests.bench.core import Figure, calibrate

START_MS = 1_700_000_000_000
PART_ROWS = 2_000_000
WINDOW_MS = 60_000


@dataclass(frozen=True)
class Sizes:
    rows: int
    settings: int
    core_rows: int
    polars_rows: int
    memory_mb: int


FULL = Sizes(50_000_000, 100, 300_000, 1_000_000, 512)
SMOKE = Sizes(200_000, 20, 20_000, 20_000, 512)
RULES: dict[str, dict[str, Any]] = {
    "avg": {"kind": "avg", "threshold": 140},
    "p95": {"kind": "p95", "threshold": 260},
}


def rule_of(kind: str) -> dict[str, Any]:
    return {"name": kind, "metric": "latency", "op": "gt", "window_ms": WINDOW_MS} | RULES[kind]


def sweep_of(kind: str, settings: int) -> dict[str, list[float]]:
    """Thresholds from the middle of a calm hour to beyond the worst one."""
    middle = RULES[kind]["threshold"]
    return {"threshold": [round(middle * (0.75 + 1.25 * i / settings), 3) for i in range(settings)]}


def write_samples(path: Path, rows: int) -> None:
    """About one sample a millisecond: latencies with a daily wave, and every two hours a bad quarter of an hour."""
    draw, at, period_s = np.random.default_rng(7), START_MS, min(7200, rows // 3000)
    with tempfile.TemporaryDirectory() as folder:
        for number, first in enumerate(range(0, rows, PART_ROWS)):
            count = min(PART_ROWS, rows - first)
            ts_ms = at + np.cumsum(draw.integers(0, 3, count))
            at = int(ts_ms[-1])
            seconds = (ts_ms - START_MS) / 1000
            level = 4.5 + 0.1 * np.sin(seconds * 2 * np.pi / 86_400) + 0.6 * (seconds % period_s > 0.875 * period_s)
            value = np.round(draw.lognormal(level, 0.45), 3)
            pl.DataFrame({"ts_ms": ts_ms, "value": value}).write_parquet(f"{folder}/{number:05}.parquet")
        pl.scan_parquet(f"{folder}/*.parquet").sink_parquet(path)


# -- one case, in a process of its own --------------------------------------------------------------------------------


def case(kind: str, settings: int, path: str, memory_mb: int, rows: int) -> dict[str, Any]:
    """One backtest of the first rows; with settings, a sweep of so many thresholds."""
    sweep = sweep_of(kind, settings) if settings else None
    unit = calibrate()
    wall, cpu = time.perf_counter(), time.process_time()
    samples = pl.scan_parquet(path).head(rows) if rows else path
    run = backtest(rule_of(kind), samples, sweep=sweep, memory_mb=memory_mb)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    trips = [] if run.sweep is None else sorted(run.sweep.select("threshold", "trips").rows())
    return {
        "rows": run.summary["samples"][0],
        "wall_s": wall,
        "cpu_s": cpu,
        "unit_s": min(unit, calibrate()),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "moves": run.transitions.select("ts_ms", "curr", "value", "avg", "count", "p95").rows(),
        "trips": trips,
    }


def in_a_process(kind: str, settings: int, path: Path, memory_mb: int, rows: int = 0) -> dict[str, Any]:
    arguments = map(str, (kind, settings, path, memory_mb, rows))
    command = [sys.executable, "-m", "tests.bench", "history", "--case", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


# -- outcomes and comparisons -----------------------------------------------------------------------------------------


def check_against_core(path: Path, kind: str, moves: list[Any], rows: int, core_rows: int) -> int:
    """The core over the file's beginning, and over stretches around transitions; how many transitions were compared."""
    rule = candidates(rule_of(kind))[0].rule
    compared = len(_core_moves(rule, _columns(path, 0, core_rows), moves, None))
    frame = pl.scan_parquet(path)
    for ts_ms, *_ in moves[:: max(1, len(moves) // 4)][:4]:
        row = int(frame.select((pl.col("ts_ms") <= ts_ms).sum()).collect().item())
        first = max(0, min(row - core_rows // 2, rows - core_rows))
        stretch = _columns(path, first, core_rows)
        fast = backtest(rule_of(kind), pl.DataFrame({"ts_ms": stretch.at, "value": stretch.value}))
        told = fast.transitions.select("ts_ms", "curr", "value", "avg", "count", "p95").rows()
        compared += len(_core_moves(rule, stretch, told, int(stretch.at[-1])))
    return compared


def _columns(path: Path, first: int, count: int) -> Samples:
    frame = pl.scan_parquet(path).slice(first, count).collect()
    at = frame["ts_ms"].to_numpy()
    return Samples(at, at, frame["value"].to_numpy(), np.ones(len(at), np.bool_))


def _core_moves(rule: Any, samples: Samples, told: list[Any], until_ms: int | None) -> list[Any]:
    effects, _ = replay_samples(rule, samples)
    expected = [
        (e.ts_ms, e.curr, e.value, e.agg.avg, e.agg.count, e.agg.p95) for e in effects if isinstance(e, Transition)
    ]
    last = until_ms or int(samples.at[-1])
    found = [tuple(move) for move in told if move[0] <= last]
    assert found == expected, (found[:3], expected[:3])
    return expected


def check_sweep(path: Path, kind: str, trips: list[Any], memory_mb: int) -> None:
    """Single runs of three settings find as many trips as the sweep did."""
    for threshold, count in trips[:: max(1, len(trips) // 2)]:
        single = backtest(rule_of(kind) | {"threshold": threshold}, path, memory_mb=memory_mb)
        assert single.summary["trips"][0] == count, (threshold, count)


def polars_p95(path: Path, rows: int) -> tuple[float, float]:
    """Samples per second (wall, processor) of polars' rolling p95 over the same windows."""
    frame = pl.scan_parquet(path).head(rows).collect().with_columns(at=pl.from_epoch("ts_ms", time_unit="ms"))
    rolling = pl.col("value").rolling_quantile_by(
        "at", window_size=f"{WINDOW_MS}ms", quantile=0.95, interpolation="nearest"
    )
    wall, cpu = time.perf_counter(), time.process_time()
    frame.select(rolling)
    return rows / (time.perf_counter() - wall), rows / (time.process_time() - cpu)


# -- all of it --------------------------------------------------------------------------------------------------------


def run(path: Path, sizes: Sizes) -> list[Figure]:
    figures, singles = [], {}
    for kind, target in (("avg", 10_000_000.0), ("p95", 5_000_000.0)):
        told = singles[kind] = in_a_process(kind, 0, path, sizes.memory_mb)
        compared = check_against_core(path, kind, told["moves"], sizes.rows, sizes.core_rows)
        name = f"{kind} over {told['rows']:,} samples in Parquet, end to end ({compared} transitions checked)"
        figures += _rates(name, told, target)
        figures.append(Figure(f"{kind}: peak memory, {sizes.memory_mb} MB allowed", told["rss_mb"], "MB",
                              sizes.memory_mb, False))  # fmt: skip
    fifth = in_a_process("avg", 0, path, sizes.memory_mb, sizes.rows // 5)
    ratio = singles["avg"]["rss_mb"] / fifth["rss_mb"]
    figures.append(Figure("avg: peak memory against that of a fifth of the samples", ratio, "x", 1.25, False))
    wall, cpu = polars_p95(path, sizes.polars_rows)
    p95 = singles["p95"]
    figures += [
        Figure("p95 against polars' rolling p95", p95["rows"] / p95["wall_s"] / wall, "x", 3, True),
        Figure("the same, by processor time", p95["rows"] / p95["cpu_s"] / cpu, "x", 3, True),
    ]
    for kind, single in singles.items():
        told = in_a_process(kind, sizes.settings, path, sizes.memory_mb)
        check_sweep(path, kind, told["trips"], sizes.memory_mb)
        name = f"sweep of {sizes.settings} thresholds against one rule, {kind}"
        figures += [
            Figure(name, told["wall_s"] / single["wall_s"], "x", 3, False),
            Figure(f"{name}, by processor time", told["cpu_s"] / single["cpu_s"], "x", 3, False),
            Figure(f"sweep, {kind}: peak memory, {sizes.memory_mb} MB allowed", told["rss_mb"], "MB",
                   sizes.memory_mb, False),
        ]  # fmt: skip
    return figures


def _rates(name: str, told: dict[str, Any], target: float) -> list[Figure]:
    by_wall, by_cpu = told["rows"] / told["wall_s"], told["rows"] / told["cpu_s"]
    unit = told["unit_s"]
    return [
        Figure(name, by_wall, "samples/s", target, True, by_wall * unit),
        Figure("the same, by processor time", by_cpu, "samples/s", target, True, by_cpu * unit),
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench history", description=__doc__)
    parser.add_argument("--rows", type=int, help="how many samples")
    parser.add_argument("--file", type=Path, help="where the samples are kept for the next time; made when missing")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only checks that the cases run and are right")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.case:
        kind, settings, file, memory_mb, rows = options.case
        print(json.dumps(case(kind, int(settings), file, int(memory_mb), int(rows))))
        return 0
    sizes = SMOKE if options.smoke else FULL
    if options.rows:
        sizes = Sizes(**(asdict(sizes) | {"rows": options.rows}))
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "samples.parquet"
        if not path.exists():
            write_samples(path, sizes.rows)
        figures = run(path, sizes)
    for figure in figures:
        bound = f"{'>=' if figure.at_least else '<='} {figure.target:,.10g}{', met' if figure.met else ''}"
        ratio = f"  {figure.ratio:,.0f} per calibration loop" if figure.ratio else ""
        print(f"{figure.name:88} {figure.value:14,.1f} {figure.unit:10} ({bound}){ratio}")
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) | {"met": figure.met} for figure in figures], indent=1))
    return 0 if options.smoke or all(figure.met for figure in figures) else 1
