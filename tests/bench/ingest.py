"""Samples a second into a running service, and how long requests wait at 70 % of that.

python -m tests.bench ingest [--json FILE] [--smoke] [--samples 500] [--seconds 20] [--replicas 1] [--router-actors 1]
    [--breaker-actors 4] [--routers 50] [--metrics 20] [--rows 100000]

50 routers with 20 breakers each, signed and gzipped requests over 8 keep-alive connections, each for one or two of the
routers. Afterwards every accepted sample is in the log, and each breaker is where the core comes to with its log. Rates
are also given per calibration loop, and CPU seconds per stage. Then the same with Arrow streams of 100,000 rows for all
routers, with texts and with categorical columns (zstd), over 2 connections: CPU per sample, and its ratio to JSON's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.core import calibrate
from tests.support import load
from tests.support.arrow_streams import STREAM
from tests.support.figures import options_of, show
from tests.support.fleet import CONNECTIONS, Fleet, check_fleet
from tests.support.invariants import Evidence
from tests.support.live import serving
from tests.support.usage import cpu_s, cpu_used

SHARE, WARM_PER_S = 0.7, 200.0
COLUMNS = {"arrow": False, "arrow, categorical": True}


def main(argv: list[str]) -> None:
    parser = options_of("ingest")
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--router-actors", type=int, default=1)
    parser.add_argument("--breaker-actors", type=int, default=4)
    parser.add_argument("--routers", type=int, default=50)
    parser.add_argument("--metrics", type=int, default=20)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(argv)
    if options.smoke:
        options.seconds = 2.0
    environ = {
        "BREAKERS_REPLICAS": str(options.replicas),
        "BREAKERS_ROUTER_ACTORS": str(options.router_actors),
        "BREAKERS_BREAKER_ACTORS": str(options.breaker_actors),
    }
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "data", **environ) as live:
        fleet = Fleet(live, *((2, 4) if options.smoke else (options.routers, options.metrics)))
        figures = measure(fleet, options.samples, options.seconds, options.rows)
    show(figures, options.json)


def measure(fleet: Fleet, samples: int, seconds: float, rows: int) -> dict[str, float]:
    target = fleet.target()
    warm_s = min(5.0, seconds)
    warm = load.run(target, fleet.bodies(samples, 1, WARM_PER_S, warm_s), CONNECTIONS, warm_s, None)
    bodies = fleet.bodies(samples, 2, warm.accepted / samples / warm.seconds, seconds)
    before, loop_s = cpu_used(fleet.live), calibrate()
    full = load.run(target, bodies, CONNECTIONS, seconds, None)
    used = cpu_s(before, cpu_used(fleet.live))
    rate = full.accepted / full.seconds
    per_s = SHARE * rate / samples
    eased = load.run(target, fleet.bodies(samples, 3, per_s, seconds), CONNECTIONS, seconds, per_s)
    columns = {name: by_columns(fleet, rows, seconds, coded) for name, coded in COLUMNS.items()}
    reports = (warm, full, eased, *(report for report, _ in columns.values()))
    check(fleet, reports, sum(report.accepted for report in reports))
    figures = {
        "samples_per_request": float(samples),
        "samples_per_s": rate,
        "samples_per_loop": rate * loop_s,
        "request_ms_p50": full.percentile(50),
        "refused_429": float(full.statuses[429]),
        "eased_samples_per_s": eased.accepted / eased.seconds,
        "eased_request_ms_p50": eased.percentile(50),
        "eased_request_ms_p99": eased.percentile(99),
    }
    for stage, spent_s in sorted(used.items()):
        figures[f"cpu_us_per_sample {stage}"] = spent_s / full.accepted * 1e6
    figures["cpu_us_per_sample generator"] = full.cpu_s / full.accepted * 1e6
    json_us = figures["cpu_us_per_sample"] = sum(used.values()) / full.accepted * 1e6
    for name, (report, spent) in columns.items():
        figures[f"{name}: samples_per_s"] = report.accepted / report.seconds
        figures[f"{name}: request_ms_p50"] = report.percentile(50)
        figures[f"{name}: refused_429"] = float(report.statuses[429])
        for stage, spent_s in sorted(spent.items()):
            figures[f"{name}: cpu_us_per_sample {stage}"] = spent_s / report.accepted * 1e6
        figures[f"{name}: cpu_us_per_sample"] = sum(spent.values()) / report.accepted * 1e6
        figures[f"{name}: times JSON"] = figures[f"{name}: cpu_us_per_sample"] / json_us
    return figures


def by_columns(fleet: Fleet, rows: int, seconds: float, coded: bool) -> tuple[load.Report, dict[str, float]]:
    """Arrow streams as fast as they are answered, and the CPU seconds of each stage."""
    target = replace(fleet.target(), content=f"Content-Type: {STREAM}\r\n")
    bodies = fleet.streams(rows, 4, 5, coded)
    before = cpu_used(fleet.live)
    report = load.run(target, bodies, 2, seconds, None)
    return report, cpu_s(before, cpu_used(fleet.live))


def check(fleet: Fleet, reports: Sequence[load.Report], accepted: int) -> None:
    """A wrong run fails: other answers, a sample more or less in the log, a breaker elsewhere than its log says."""
    answers = {status for report in reports for status in report.statuses}
    assert answers <= {202, 429}, [dict(report.statuses) for report in reports]
    check_fleet(fleet, Evidence(fleet.live.data_dir), accepted)
