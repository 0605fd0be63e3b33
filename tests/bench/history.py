"""What backtests cost: samples per second over a Parquet file, a sweep against a single rule, peak memory.

Each case runs in a process of its own, so that its peak memory is its own; rates are also given per second of processor
time and as a ratio to the calibration loop of tests/bench/core.py, for machines that are not left alone. Outcomes are
part of it: on stretches of the file the transitions are those of the core, and so is what one setting of a sweep comes
to.

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

from breaker_actors.core.model import Rule, Transition
from pipelines.backtest import Backtest, backtest
from pipelines.candidates import candidates
from pipelines.columns import Samples
from pipelines.replay.reference import replay_samples
from tests.bench.core import Figure, calibrate

START_MS = 1_700_000_000_000
PART_ROWS = 2_000_000
WINDOW_MS = 60_000
LEAST_MB = 250
"""So little memory that a stretch is walked over in several chunks."""
RuleFields = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """`rule`: fields of both rules. `stretches`: how many, of `core_rows` each, are held against the core."""

    rows: int
    settings: int
    core_rows: int
    stretches: int
    polars_rows: int
    memory_mb: int
    thresholds: dict[str, float]
    rule: RuleFields


FULL = Sizes(50_000_000, 100, 300_000, 4, 1_000_000, 512, {"avg": 140, "p95": 260}, {})
QUICK = {"min_state_duration_ms": 0, "eval_interval_ms": 1_000}
SMOKE = Sizes(200_000, 20, 90_000, 1, 20_000, LEAST_MB, {"avg": 105, "p95": 195}, QUICK)


def rule_of(kind: str, sizes: Sizes) -> RuleFields:
    fields = {"name": kind, "metric": "latency", "kind": kind, "op": "gt", "threshold": sizes.thresholds[kind]}
    return fields | {"window_ms": WINDOW_MS} | sizes.rule


def sweep_of(rule: RuleFields, settings: int) -> dict[str, list[float]]:
    """Thresholds from the middle of a calm hour to beyond the worst one."""
    middle = rule["threshold"]
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


def case(rule: RuleFields, settings: int, path: str, memory_mb: int, rows: int) -> dict[str, Any]:
    """One backtest of the first rows; with settings, a sweep of so many thresholds."""
    sweep = sweep_of(rule, settings) if settings else None
    unit = calibrate()
    wall, cpu = time.perf_counter(), time.process_time()
    samples = pl.scan_parquet(path).head(rows) if rows else path
    run = backtest(rule, samples, sweep=sweep, memory_mb=memory_mb)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    trips = [] if run.sweep is None else sorted(run.sweep.select("threshold", "trips").rows())
    return {
        "rows": run.summary["samples"][0],
        "wall_s": wall,
        "cpu_s": cpu,
        "unit_s": min(unit, calibrate()),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "moves": moves_of(run),
        "trips": trips,
    }


def in_a_process(rule: RuleFields, settings: int, path: Path, memory_mb: int, rows: int = 0) -> dict[str, Any]:
    arguments = (json.dumps(rule), *map(str, (settings, path, memory_mb, rows)))
    command = [sys.executable, "-m", "tests.bench", "history", "--case", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


# -- outcomes and comparisons -----------------------------------------------------------------------------------------


def moves_of(run: Backtest) -> list[tuple[Any, ...]]:
    return run.transitions.select("ts_ms", "curr", "value", "avg", "count", "p95").rows()


def check_against_core(path: Path, rule: RuleFields, moves: list[Any], sizes: Sizes) -> int:
    """The core over the file's beginning, and over stretches around transitions; how many transitions were compared."""
    core = candidates(rule)[0].rule
    beginning = columns(path, 0, sizes.core_rows)
    compared = _compare(core, beginning, [move for move in moves if move[0] <= beginning.at[-1]])
    for ts_ms in _drawn([move[0] for move in moves], sizes.stretches):
        samples = stretch(path, ts_ms, sizes)
        compared += _compare(core, samples, moves_of(backtest(rule, frame_of(samples), memory_mb=LEAST_MB)))
    return compared


def columns(path: Path, first: int, count: int) -> Samples:
    frame = pl.scan_parquet(path).slice(first, count).collect()
    at = frame["ts_ms"].to_numpy()
    return Samples(at, at, frame["value"].to_numpy(), np.ones(len(at), np.bool_))


def stretch(path: Path, ts_ms: int, sizes: Sizes) -> Samples:
    """Samples with a time in their middle, or as near to it as the ends of the file allow."""
    row = int(pl.scan_parquet(path).select((pl.col("ts_ms") <= ts_ms).sum()).collect().item())
    return columns(path, max(0, min(row - sizes.core_rows // 2, sizes.rows - sizes.core_rows)), sizes.core_rows)


def frame_of(samples: Samples) -> pl.DataFrame:
    return pl.DataFrame({"ts_ms": samples.at, "value": samples.value})


def _drawn(items: list[Any], count: int) -> list[Any]:
    """So many of them, evenly; the first is one."""
    return items[:: max(1, len(items) // count)][:count]


def _compare(core: Rule, samples: Samples, told: list[Any]) -> int:
    """How many transitions the core makes; they are those told."""
    expected = [(e.ts_ms, e.curr, e.value, e.agg.avg, e.agg.count, e.agg.p95) for e in core_moves(core, samples)]
    found = [tuple(move) for move in told]
    assert found == expected, (found[:3], expected[:3])
    return len(expected)


def core_moves(core: Rule, samples: Samples) -> list[Transition]:
    effects, _ = replay_samples(core, samples)
    return [effect for effect in effects if isinstance(effect, Transition)]


def check_sweep(path: Path, rule: RuleFields, trips: list[Any], moves: list[Any], sizes: Sizes) -> None:
    """Single runs of three settings find as many trips as the sweep did. Of the other settings that trip on a stretch
    around a transition, the one nearest to the rule comes to what the core does."""
    for threshold, count in _drawn(trips, 3):
        single = backtest(rule | {"threshold": threshold}, path, memory_mb=sizes.memory_mb)
        assert single.summary["trips"][0] == count, (threshold, count)
    samples = stretch(path, moves[0][0], sizes)
    swept = backtest(rule, frame_of(samples), sweep=sweep_of(rule, sizes.settings), memory_mb=LEAST_MB).sweep
    assert swept is not None
    tripped = [row for row in swept.iter_rows(named=True) if row["trips"] and row["threshold"] != rule["threshold"]]
    assert tripped, "no other setting of the sweep trips"
    row = min(tripped, key=lambda row: abs(row["threshold"] - rule["threshold"]))
    told = {name: row[name] for name in ("transitions", "trips", "recoveries", "closed_ms", "half_open_ms", "open_ms")}
    expected = outcome(core_moves(candidates(rule | {"threshold": row["threshold"]})[0].rule, samples), samples)
    assert told == expected, (row["threshold"], told, expected)


def outcome(moves: list[Transition], samples: Samples) -> dict[str, int]:
    """What a row of a sweep says of these transitions."""
    words = [move.curr for move in moves]
    found = {"transitions": len(words), "trips": words.count("open"), "recoveries": words.count("closed")}
    ends = [int(samples.at[0]), *(move.ts_ms for move in moves), int(samples.at[-1])]
    stays = [*zip(["closed", *words], ends, ends[1:], strict=False)]
    return found | {
        f"{word}_ms": sum(end - begin for at, begin, end in stays if at == word)
        for word in ("closed", "half_open", "open")
    }


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
        told = singles[kind] = in_a_process(rule_of(kind, sizes), 0, path, sizes.memory_mb)
        compared = check_against_core(path, rule_of(kind, sizes), told["moves"], sizes)
        assert compared > 0, f"{kind}: there is no transition to compare"
        name = f"{kind} over {told['rows']:,} samples in Parquet, end to end ({compared} transitions checked)"
        figures += _rates(name, told, target)
        figures.append(Figure(f"{kind}: peak memory, {sizes.memory_mb} MB allowed", told["rss_mb"], "MB",
                              sizes.memory_mb, False))  # fmt: skip
    fifth = in_a_process(rule_of("avg", sizes), 0, path, sizes.memory_mb, sizes.rows // 5)
    ratio = singles["avg"]["rss_mb"] / fifth["rss_mb"]
    figures.append(Figure("avg: peak memory against that of a fifth of the samples", ratio, "x", 1.25, False))
    wall, cpu = polars_p95(path, sizes.polars_rows)
    p95 = singles["p95"]
    figures += [
        Figure("p95 against polars' rolling p95", p95["rows"] / p95["wall_s"] / wall, "x", 3, True),
        Figure("the same, by processor time", p95["rows"] / p95["cpu_s"] / cpu, "x", 3, True),
    ]
    for kind, single in singles.items():
        told = in_a_process(rule_of(kind, sizes), sizes.settings, path, sizes.memory_mb)
        check_sweep(path, rule_of(kind, sizes), told["trips"], single["moves"], sizes)
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
        rule, settings, file, memory_mb, rows = options.case
        print(json.dumps(case(json.loads(rule), int(settings), file, int(memory_mb), int(rows))))
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
