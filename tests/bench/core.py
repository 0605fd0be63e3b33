"""What the core costs on one processor core: samples per second, the price of deciding, memory.

Each rate is the median of several rounds, also given as a ratio to a fixed numpy loop timed in the same round, so that
figures from different machines and moments can be compared. Every case checks its outcome against a naive figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Rule
from breaker_actors.core.rules import parse_rule

WINDOW_MS = 60_000


@dataclass(frozen=True)
class Sizes:
    rounds: int
    deep_held: int
    deep_batches: int
    wide_breakers: int
    wide_passes: int
    rank_held: tuple[int, int]
    rank_batches: int
    idle_breakers: int


FULL = Sizes(7, 100_000, 200, 500, 20, (1_000, 1_000_000), 400, 10_000)
SMOKE = Sizes(2, 2_000, 5, 20, 3, (1_000, 5_000), 20, 200)


@dataclass(frozen=True)
class Figure:
    """One measured figure and what it has to be; `ratio` is against the calibration loop of the same rounds."""

    name: str
    value: float
    unit: str
    target: float
    at_least: bool
    ratio: float | None = None

    @property
    def met(self) -> bool:
        return self.value >= self.target if self.at_least else self.value <= self.target


def rule_of(kind: str, **fields: Any) -> Rule:
    return parse_rule(
        {"metric": "latency", "kind": kind, "op": "gt", "threshold": 400, "window_ms": WINDOW_MS} | fields
    )


def calibrate() -> float:
    """Seconds for a fixed piece of numpy work."""
    numbers = np.random.default_rng(1).random(200_000)
    start = time.perf_counter()
    for _ in range(10):
        float(np.sort(numbers).sum())
    return time.perf_counter() - start


def stream(count: int, per_batch: int, step_ms: float, start_ms: float, seed: int) -> list[tuple[int, Batch]]:
    """Batches at a steady pace, times a little out of order as from several clients."""
    draw = np.random.default_rng(seed)
    batches = []
    for i in range(count):
        received = int(start_ms + (i + 1) * step_ms)
        jitter = draw.integers(0, max(1, min(40, int(step_ms))), per_batch)
        ts_ms = received - np.sort(jitter)[::-1].astype(np.int64)
        batches.append((received, Batch(ts_ms, draw.lognormal(4.5, 0.5, per_batch), draw.random(per_batch) > 0.01)))
    return batches


def filled(rule: Rule, held: int, per_batch: int) -> tuple[Breaker, list[tuple[int, Batch]], float]:
    """A breaker whose window holds about `held` samples, what it got, and the pace that keeps it so."""
    step_ms = WINDOW_MS * per_batch / held
    batches = stream(held // per_batch, per_batch, step_ms, 0, 7)
    breaker, _ = Breaker.create(rule, 0)
    for received, batch in batches:
        breaker.ingest(batch, received)
    return breaker, batches, step_ms


def check(breaker: Breaker, batches: list[tuple[int, Batch]]) -> None:
    """Value and count equal a naive computation over all that was sent."""
    now = batches[-1][0]
    time_ms = np.concatenate([np.minimum(batch.ts_ms, received) for received, batch in batches])
    inside = time_ms > now - WINDOW_MS
    values = np.concatenate([batch.value for _, batch in batches])[inside]
    errors = int((~np.concatenate([batch.ok for _, batch in batches])[inside]).sum())
    n = len(values)
    naive = {
        "avg": lambda: math.fsum(values.tolist()) / n,
        "p95": lambda: sorted(values.tolist())[math.ceil(Fraction(95 * n, 100)) - 1],
        "error_rate": lambda: errors / n,
    }[breaker.rule.kind]()
    view = breaker.view(now)
    assert (view.sample_count, view.value) == (n, naive), (view, n, naive)


def deep(kind: str, sizes: Sizes) -> Figure:
    """500 samples at a time into one breaker whose window holds many."""
    rates, ratios = [], []
    for _ in range(sizes.rounds):
        threshold = 0.5 if kind == "error_rate" else 400
        breaker, before, step_ms = filled(rule_of(kind, threshold=threshold), sizes.deep_held, 500)
        batches = stream(sizes.deep_batches, 500, step_ms, before[-1][0], 11)
        unit = calibrate()
        start = time.perf_counter()
        for received, batch in batches:
            breaker.ingest(batch, received)
        spent = time.perf_counter() - start
        check(breaker, before + batches)
        rates.append(500 * len(batches) / spent)
        ratios.append(rates[-1] * unit)
    name = f"deep {kind}: 500 samples a batch, {sizes.deep_held} held"
    return Figure(name, statistics.median(rates), "samples/s", 2_000_000, True, statistics.median(ratios))


def wide(sizes: Sizes) -> Figure:
    """One sample each to many breakers."""
    rates, ratios = [], []
    kinds = ("error_rate", "avg", "p95")
    for _ in range(sizes.rounds):
        breakers = [
            Breaker.create(rule_of(kinds[i % 3], threshold=0.5 if i % 3 == 0 else 4000), 0)[0]
            for i in range(sizes.wide_breakers)
        ]
        passes = stream(sizes.wide_passes, 1, 50, 0, 3)
        unit = calibrate()
        start = time.perf_counter()
        for received, batch in passes:
            for breaker in breakers:
                breaker.ingest(batch, received)
        spent = time.perf_counter() - start
        for breaker in breakers[:3]:
            check(breaker, passes)
        rates.append(len(breakers) * len(passes) / spent)
        ratios.append(rates[-1] * unit)
    name = f"wide: one sample each to {sizes.wide_breakers} breakers"
    return Figure(name, statistics.median(rates), "samples/s", 100_000, True, statistics.median(ratios))


def rank_decision(sizes: Sizes) -> Figure:
    """Deciding p95 over a large window against deciding it over a small one, batches of 10."""
    spent: dict[int, list[float]] = {held: [] for held in sizes.rank_held}
    for held in sizes.rank_held:
        breaker, before, step_ms = filled(rule_of("p95"), held, 10)
        start_ms: float = before[-1][0]
        for round_no in range(sizes.rounds):
            batches = stream(sizes.rank_batches, 10, step_ms, start_ms, round_no)
            start_ms, before = start_ms + step_ms * len(batches), before + batches
            start = time.perf_counter()
            for received, batch in batches:
                breaker.ingest(batch, received)
            spent[held].append((time.perf_counter() - start) / len(batches))
        check(breaker, before)
    small, large = (statistics.median(spent[held]) for held in sizes.rank_held)
    name = f"p95 decision: {sizes.rank_held[1]} held against {sizes.rank_held[0]} ({large * 1e6:.1f} us a batch)"
    return Figure(name, large / small, "x", 2.0, False)


def bytes_per_sample(sizes: Sizes) -> Figure:
    """Memory of a breaker with a full, moving window, by sample held; the most over a while of moving."""
    held = sizes.rank_held[1]
    step_ms = WINDOW_MS * 1000 / held
    gc.collect()
    tracemalloc.start()
    breaker, _ = Breaker.create(rule_of("p95"), 0)
    most = 0.0
    for i in range(2 * held // 1000):
        [(received, batch)] = stream(1, 1000, step_ms, i * step_ms, i)
        breaker.ingest(batch, received)
        del batch
        if i >= held // 1000:
            most = max(most, tracemalloc.get_traced_memory()[0] / breaker.samples_held)
    tracemalloc.stop()
    return Figure(f"memory per sample, {held} held", most, "bytes", 32, False)


def bytes_per_breaker(sizes: Sizes) -> list[Figure]:
    """Memory of a breaker without samples, its rule included: by the allocator, and by the process's resident set."""
    count = sizes.idle_breakers
    gc.collect()
    before_rss = _rss_bytes()
    resident = [Breaker.create(rule_of("p95", threshold=i), 0)[0] for i in range(count)]
    rss = (_rss_bytes() - before_rss) / count
    del resident
    gc.collect()
    tracemalloc.start()
    breakers = [Breaker.create(rule_of("p95", threshold=i), 0)[0] for i in range(count)]
    traced = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(breakers) == count
    return [
        Figure(f"memory per idle breaker, {count} of them, traced", traced, "bytes", 4096, False),
        Figure(f"memory per idle breaker, {count} of them, resident set", rss, "bytes", 4096, False),
    ]


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def run(sizes: Sizes) -> list[Figure]:
    """All cases; the memory of idle breakers first, while the process has little freed memory to reuse."""
    cases: list[Callable[[], list[Figure]]] = [
        lambda: bytes_per_breaker(sizes),
        *(lambda kind=kind: [deep(kind, sizes)] for kind in ("avg", "p95", "error_rate")),
        lambda: [wide(sizes)],
        lambda: [rank_decision(sizes)],
        lambda: [bytes_per_sample(sizes)],
    ]
    return [figure for case in cases for figure in case()]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench core", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: only checks that the cases run and are right")
    options = parser.parse_args(argv)
    figures = run(SMOKE if options.smoke else FULL)
    for figure in figures:
        bound = f"{'>=' if figure.at_least else '<='} {figure.target:,.0f}"
        ratio = f"  {figure.ratio:,.0f} per calibration loop" if figure.ratio else ""
        print(
            f"{figure.name:70} {figure.value:14,.1f} {figure.unit:10} ({bound}{', met' if figure.met else ''}){ratio}"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(figure) | {"met": figure.met} for figure in figures], indent=1))
    return 0 if options.smoke or all(figure.met for figure in figures) else 1
