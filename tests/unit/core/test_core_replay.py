"""Replay drives the core: columns become arrivals, one per distinct time."""

from __future__ import annotations

import numpy as np

from breaker_actors.core.machine import Breaker
from breaker_actors.core.rules import parse_rule
from pipelines.replay.reference import by_timestamp, replay

RULE = parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 10, "min_state_duration_ms": 0})


def test_by_timestamp_groups_equal_times() -> None:
    """Sorted by time, equal times together in their order; nothing for no samples."""
    ts_ms = np.array([20, 10, 20, 30], np.int64)
    value = np.array([1.0, 2.0, 3.0, 4.0])
    ok = np.array([True, False, True, True])
    told = [(at, b.ts_ms.tolist(), b.value.tolist(), b.ok.tolist()) for at, b in by_timestamp(ts_ms, value, ok)]
    assert told == [(10, [10], [2.0], [False]), (20, [20, 20], [1.0, 3.0], [True, True]), (30, [30], [4.0], [True])]
    assert list(by_timestamp(ts_ms[:0], value[:0], ok[:0])) == []


def test_replay_equals_the_live_breaker() -> None:
    """Same arrivals, same effects, numbered after what is stored."""
    draw = np.random.default_rng(2)
    ts_ms = np.sort(draw.integers(0, 600_000, 3000))
    value = 9 + 3 * np.sin(ts_ms / 60_000) + draw.normal(0, 1, 3000)
    ok = np.ones(3000, np.bool_)
    breaker, effects = Breaker.create(RULE, 0, after_seq=8)
    for received, batch in by_timestamp(ts_ms, value, ok):
        effects += breaker.ingest(batch, received)
    effects += breaker.advance(700_000)
    assert replay(RULE, 0, by_timestamp(ts_ms, value, ok), 700_000, after_seq=8) == list(effects)
    assert len(effects) > 5
