"""A project with routers and breakers, and recorded samples for it, for tests of backfill and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from breaker_actors.core.model import Rule
from breaker_actors.core.rules import parse_rule
from breaker_actors.store.rows import BreakerRow, RouterRow
from pipelines.backfill.evaluate import BreakerEvent
from pipelines.backfill.manifest import Manifest, Request, fingerprint
from pipelines.sources.routing import plans

PROJECT = "00000000-0000-4000-8000-00000000000a"
START_MS = 1_700_000_000_000
NOW_MS = START_MS + 400 * 86_400_000
RULE = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 110, "min_state_duration_ms": 5_000}


def router_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def breaker_id(number: int) -> str:
    return f"00000000-0000-4000-9000-{number:012}"


def rule(**fields: Any) -> Rule:
    return parse_rule(RULE | {"window_ms": 30_000, "eval_interval_ms": 2_000} | fields)


def router(number: int, *breakers: int, **fields: Any) -> RouterRow:
    values: dict[str, Any] = {
        "id": router_id(number),
        "project_id": PROJECT,
        "name": f"r{number}",
        "mode": "static",
        "enabled": True,
        "created_by": "user",
        "metadata": {},
        "version": 1,
        "inserted_ms": 0,
        "breaker_ids": tuple(map(breaker_id, breakers)),
    }
    return RouterRow(**values | fields)


def breaker(number: int, *routers: int, **fields: Any) -> BreakerRow:
    return BreakerRow(
        id=breaker_id(number),
        project_id=PROJECT,
        name=f"b{number}",
        rule=rule(**fields),
        actions=None,
        metadata={},
        version=1,
        created_ms=0,
        updated_ms=0,
        router_ids=tuple(map(router_id, routers)),
    )


def samples(count: int, routers: int, *, seed: int = 0, spacing_ms: float = 20.0) -> pl.DataFrame:
    """Samples of metric latency in order of time, with failures that come and go."""
    draw = np.random.default_rng(seed)
    at = np.cumsum(draw.exponential(spacing_ms, count)).astype(np.int64) + START_MS
    slow = (at // 100_000) % 3 == 0
    ids = np.array([router_id(i) for i in range(routers)], dtype=object)
    return pl.DataFrame(
        {
            "router_id": pl.Series(ids[draw.integers(0, routers, count)], dtype=pl.String),
            "metric": pl.repeat("latency", count, dtype=pl.String, eager=True),
            "ts_ms": at,
            "value": np.round(draw.lognormal(4.0, 0.5, count) * np.where(slow, 3.0, 1.0), 3),
            "ok": draw.random(count) > 0.1,
        }
    )


def manifest(
    files: Sequence[Path], routers: Sequence[RouterRow], breakers: Sequence[BreakerRow], **fields: Any
) -> Manifest:
    """A run that is planned, not begun; the files have to be readable."""
    asked = Request(project_id=PROJECT, inputs=tuple(map(fingerprint, files)))
    asked = msgspec.structs.replace(asked, **{k: fields.pop(k) for k in list(fields) if k in Request.__struct_fields__})
    planned_routers, planned_breakers = plans(routers, breakers)
    values: dict[str, Any] = {
        "run_id": "run-1",
        "request": asked,
        "chunk_rows": 1_000,
        "now_ms": NOW_MS,
        "newest_ms": NOW_MS + 300_000,
        "window_samples_max": 1_000_000,
        "with_traces": False,
        "routers": planned_routers,
        "breakers": planned_breakers,
    }
    return Manifest(**values | fields)


class Kept:
    """A service that keeps what it is told: each event of a run once, each key of live samples once."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.events: dict[tuple[str, str, int], Any] = {}
        self.live: dict[str, pl.DataFrame] = {}
        self.calls = 0
        self._before = before

    def store(self, run_id: str, events: Sequence[BreakerEvent]) -> None:
        self._before()
        self.calls += 1
        for id_, draft in events:
            self.events.setdefault((run_id, id_, draft.transition_seq), draft)

    def forget(self, run_id: str) -> None:
        self.events = {key: draft for key, draft in self.events.items() if key[0] != run_id}

    def ingest(self, key: str, samples: pl.DataFrame) -> None:
        self._before()
        self.calls += 1
        self.live.setdefault(key, samples)
