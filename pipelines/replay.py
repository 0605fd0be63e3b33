"""Replay: one rule over arrivals in order, by driving `core.machine`; the same log gives the same transitions.

Pure: the drivers (backtest, backfill) read the samples and take the effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Effect, Flags, Float64, Int64, Rule


def replay(
    rule: Rule, created_ms: int, batches: Iterable[tuple[int, Batch]], until_ms: int, *, after_seq: int = 0
) -> list[Effect]:
    """All effects of a breaker born at `created_ms` that takes these (received_ms, batch) and timers to `until_ms`."""
    breaker, first = Breaker.create(rule, created_ms, after_seq=after_seq)
    effects = list(first)
    for received_ms, batch in batches:
        effects += breaker.ingest(batch, received_ms)
    effects += breaker.advance(until_ms)
    return effects


def by_timestamp(ts_ms: Int64, value: Float64, ok: Flags) -> Iterator[tuple[int, Batch]]:
    """Arrivals for columns that carry no arrival time: each distinct timestamp is one, stamped with itself."""
    order = np.argsort(ts_ms, kind="stable")
    columns = Batch(ts_ms[order], value[order], ok[order])
    cuts = np.flatnonzero(np.diff(columns.ts_ms)) + 1
    edges = [0, *cuts.tolist(), len(columns)]
    for start, stop in pairwise(edges):
        if start < stop:
            yield int(columns.ts_ms[start]), columns.slice(start, stop)
