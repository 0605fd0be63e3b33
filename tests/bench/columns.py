"""What a sample costs a replica from its body to the parts for routers, as JSON and in columns; and for how long a
piece of columns holds up the loop of whoever applies it.

python -m tests.bench columns [--json FILE] [--smoke]

In microseconds of CPU time a sample, medians; JSON has 1,000 samples of two routers a request, Arrow streams 100,000
rows of 50; 20 metrics each. Pieces: milliseconds of a breaker for one delivery, 100,000 samples being in its window.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from api.arrow.bounds import ROWS_MAX
from api.arrow.frames import read_frame
from api.wire import samples
from api.wire.decoding import SAMPLES_MAX
from api.wire.sample_columns import PIECE_ROWS, Pieces, judge_frame
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch
from breaker_actors.core.rules import parse_rule
from tests.support.arrow_streams import of_polars
from tests.support.figures import options_of, show

NOW_MS = 1_795_242_600_000
ROUTERS = [f"0000000a-0000-4000-8000-{n:012x}" for n in range(50)]
METRICS = [f"m{n}" for n in range(20)]
BOUNDS = samples.ValidationContext.at(NOW_MS, 3_600_000, 300_000, dict.fromkeys(ROUTERS, False), None)
BYTES_MAX = 1 << 24
KEYS = (b"k" * 16,)
OLDEST = pl.CompatLevel.oldest()


def main(argv: list[str]) -> None:
    options = options_of("columns").parse_args(argv)
    show(measure(1, 5_000) if options.smoke else measure(21, ROWS_MAX), options.json)


def measure(turns: int, rows: int) -> dict[str, float]:
    """Figures by name. Ways take turns, so that all see the machine in the same moods."""
    frame = columns(rows)
    coded = frame.with_columns(pl.col("router_id", "metric").cast(pl.Categorical))
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "JSON": (by_json(), SAMPLES_MAX),
        "Arrow, text": (by_columns(of_polars(frame, compat_level=OLDEST)), rows),
        "Arrow, views": (by_columns(of_polars(frame)), rows),
        "Arrow, views, zstd": (by_columns(of_polars(frame, compression="zstd")), rows),
        "Arrow, categorical": (by_columns(of_polars(coded)), rows),
        "Arrow, categorical, zstd": (by_columns(of_polars(coded, compression="zstd")), rows),
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, (way, n) in ways.items():
            spent[name].append(took_s(way) / n * 1e6)
    figures = {f"us {name}": statistics.median(found) for name, found in spent.items()}
    figures |= {f"times JSON, {name}": figures[f"us {name}"] / figures["us JSON"] for name in ways}
    for kind in ("avg", "p95", "consecutive_failures"):
        for size in (min(rows, PIECE_ROWS), rows):
            found = [applied_s(kind, size, rows) for _ in range(turns)]
            figures[f"piece ms {kind} of {size}"] = statistics.median(found) * 1000
    return figures


def took_s(way: Callable[[], object]) -> float:
    before = time.process_time()
    way()
    return time.process_time() - before


def columns(rows: int) -> pl.DataFrame:
    chance = np.random.default_rng(1)
    return pl.DataFrame(
        {
            "router_id": pl.Series(ROUTERS)[chance.integers(0, len(ROUTERS), rows)],
            "metric": pl.Series(METRICS)[chance.integers(0, len(METRICS), rows)],
            "ts_ms": np.sort(NOW_MS - chance.integers(0, 1000, rows)),
            "value": chance.uniform(100, 300, rows).round(3),
            "ok": chance.random(rows) < 0.9,
        }
    )


def by_json() -> Callable[[], object]:
    frame = columns(SAMPLES_MAX).with_columns(pl.Series("router_id", ROUTERS[:2] * (SAMPLES_MAX // 2)))
    body = json.dumps({"samples": frame.to_dicts()}).encode()
    return lambda: samples.to_parts(samples.Request(body).validate(BOUNDS).good, KEYS)


def by_columns(body: bytes) -> Callable[[], object]:
    def read() -> Any:
        judged = judge_frame(read_frame(body, BYTES_MAX), BOUNDS)
        parts = Pieces(judged, BOUNDS).parts(KEYS)
        assert judged.rejected == 0
        return parts

    return read


def applied_s(kind: str, size: int, held: int) -> float:
    """How long a breaker takes for so many samples at once."""
    rule = parse_rule({"metric": "m", "kind": kind, "op": "gt", "threshold": 1e9, "window_ms": 60_000})
    breaker, _ = Breaker.create(rule, NOW_MS - 60_000)
    breaker.ingest(batch(held, NOW_MS - 5_000), NOW_MS - 5_000)
    more = batch(size, NOW_MS)
    return took_s(lambda: breaker.ingest(more, NOW_MS))


def batch(size: int, now_ms: int) -> Batch:
    chance = np.random.default_rng(2)
    return Batch(now_ms - chance.integers(0, 1000, size), chance.uniform(100, 300, size), chance.random(size) < 0.9)
