"""The fast path against the core at length: every effect and the record at the end are the same, to the last bit.

`pytest -m slow tests/parity`; a small version of it is tests/unit/pipelines/test_parity.py.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from breaker_actors.core.rules import DELTA_OF, KINDS, parse_rule
from pipelines.columns import Samples
from pipelines.frames import read_series
from pipelines.replay import replay_samples
from tests.support.history import is_alike, walked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NAB = Path(__file__).parents[1] / "data" / "nab"
RULES, SAMPLES = 200, 100_000


@pytest.fixture(scope="module")
def compared(request: pytest.FixtureRequest) -> Iterator[dict[int, Future[bool]]]:
    """What came of the seeds that are asked for, worked on by a process per core."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    seeds = [item.callspec.params["seed"] for item in items if item.originalname == test_made_up.__name__]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {seed: pool.submit(is_alike, seed, SAMPLES) for seed in seeds}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("seed", range(1000, 1000 + RULES))
def test_made_up(seed: int, compared: dict[int, Future[bool]]) -> None:
    """Any rule over 100,000 samples: late ones, equal times, pauses, in chunks of any size."""
    assert compared[seed].result()


def real_rules(values: np.ndarray) -> list[dict[str, object]]:
    """All kinds and both directions, with thresholds from the series itself."""
    inner: list[dict[str, object]] = [{"kind": kind} for kind in KINDS if kind not in ("delta", "percentile")]
    inner += [{"kind": "delta", "kind_params": {"delta_of": of}} for of in DELTA_OF]
    inner += [{"kind": "percentile", "kind_params": {"percentile": p}} for p in (10, 99.9)]
    spread = float(values.std())
    thresholds = {
        "count": [12, 24], "error_rate": [0.0, 0.2], "consecutive_failures": [1, 3], "sum": [float(values.mean() * 20)],
        "stddev": [spread, 2 * spread], "delta": [spread / 2, -spread / 2],
    }  # fmt: skip
    levels = [float(np.quantile(values, part)) for part in (0.05, 0.5, 0.95, 0.99)]
    return [
        fields | {"op": op, "threshold": threshold}
        for fields, op in product(inner, ("gt", "lte"))
        for threshold in thresholds.get(str(fields["kind"]), levels)
    ]


@pytest.mark.parametrize("series", sorted(path.name for path in NAB.glob("*.csv")))
@pytest.mark.parametrize("timing", [(7_200_000, 300_000, 3_600_000), (3_600_000, 10_000, 60_000), (900_000, 60_000, 0)])
def test_real_series(series: str, timing: tuple[int, int, int]) -> None:
    """All kinds over real metrics, five minutes between samples, with timers slower and much faster than that."""
    batch = read_series(NAB / series)
    ok = batch.value <= np.quantile(batch.value, 0.97)
    samples = Samples(batch.ts_ms, batch.ts_ms, batch.value, ok)
    window_ms, interval_ms, least_ms = timing
    fields = {"metric": "m", "window_ms": window_ms, "eval_interval_ms": interval_ms, "min_state_duration_ms": least_ms}
    for one in real_rules(batch.value):
        rule = parse_rule(fields | one)
        assert walked(rule, samples, chunk_rows=1500) == replay_samples(rule, samples), rule
