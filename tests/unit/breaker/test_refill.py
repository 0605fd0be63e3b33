"""What a window is filled with again from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.breaker.recovery import Recovery
from breaker_actors.breaker.slices import Slices
from breaker_actors.core.log_entries import (
    BREAKER,
    SAMPLES,
    VIEW,
    BreakerSet,
    Link,
    RouterView,
    encode_entry,
    encode_samples,
)
from breaker_actors.core.machine import Breaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import BreakerAssignment, RouterRef
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import Append
from breaker_actors.wal.sqlite import SqliteLog

SLOT, AT_MS = "slot-0", 5_000
OLD, NEW = (
    parse_rule(
        {"metric": metric, "kind": "avg", "op": "gt", "threshold": 100, "window_ms": 4_000, "eval_interval_ms": 500}
    )
    for metric in ("load", "latency")
)


def settings(version: int) -> BreakerSet:
    return BreakerSet(breaker_id="b", version=version, name="b", rule=(OLD, NEW)[version - 1], created=version == 1)


def samples(metric: str, *values: float) -> bytes:
    """From a sender whose clock is ahead: they count from when they came."""
    n = len(values)
    return encode_samples([metric], [n], np.full(n, AT_MS + 60_000), np.array(values, float), np.full(n, True))


async def test_samples_of_the_metric_before_do_not_come_back(tmp_path: Path) -> None:
    """Received in the very millisecond in which the metric was changed: no time tells them from those after it."""
    log = SqliteLog(tmp_path)
    await log.acquire(SLOT, "o", [("r", 1)], 0, 0)
    views = [encode_entry(RouterView(version=n, links=(Link("b", ("load", "latency")[n - 1]),))) for n in (1, 2)]
    records = [
        (BREAKER, encode_entry(settings(1)), 0),
        (VIEW, views[0], 0),
        (SAMPLES, samples("load", 500.0, 500.0), 2),
        (BREAKER, encode_entry(settings(2)), 2),
        (VIEW, views[1], 2),
        (SAMPLES, samples("latency", 7.0), 5),
    ]
    rows = [Append("r", 1, n, AT_MS, kind, view, body) for n, (kind, body, view) in enumerate(records, start=1)]
    assert all(await log.append(SLOT, rows))

    breaker, _ = Breaker.create(OLD, AT_MS)
    assert breaker.configure(NEW, AT_MS)
    refs = (RouterRef("r", "o", SLOT, 0),)
    held = HostedBreaker(
        BreakerAssignment(
            breaker_id="b", project_id="p", shard=0, epoch=1, name="b", routers=refs, applied_offsets={"r": 6}
        )
    )
    held.breaker = breaker

    await Recovery(log, cast(Any, None), Asides(), Slices()).refill([held])
    breaker.advance(AT_MS + 3_000)
    view = breaker.view(AT_MS + 3_000)
    assert (view.sample_count, view.value) == (1, 7.0)
    await log.close()
