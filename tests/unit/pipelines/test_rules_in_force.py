"""A breaker whose rule changes on the way: the fast path comes to what the core does, and the changes are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Effect, RateChange, Rule
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples
from pipelines.replay.reference import arrivals
from pipelines.replay.vectorized.engine import FastReplay, Walk
from pipelines.sources.files import InForce
from pipelines.sources.rules_in_force import course_of

T0 = 1_700_000_000_000
FIRST = {
    "metric": "m", "kind": "avg", "op": "gt", "threshold": 10, "window_ms": 500, "eval_interval_ms": 100,
    "min_state_duration_ms": 200, "cooldown_ms": 400, "recovery_allow_rate_ramp_steps": 3, "min_count": 1,
}  # fmt: skip
EDITS: list[dict[str, Any]] = [
    {"threshold": 9.5},
    {"window_ms": 4000},
    {"kind": "p95", "threshold": 12},
    {"recovery_allow_rate_ramp_steps": 1, "eval_interval_ms": 70},
    {"kind": "consecutive_failures", "threshold": 4, "op": "gte"},
    {"kind": "max", "threshold": 13, "op": "gt", "window_ms": 300},
    {"kind": "delta", "threshold": 0.2, "kind_params": {"delta_of": "avg"}, "window_ms": 1000},
    {"kind": "count", "op": "lt", "threshold": 20, "min_count": 0},
]


def drawn(seed: int, count: int = 6000) -> Samples:
    draw = np.random.default_rng(seed)
    at = np.cumsum(draw.integers(0, 20, count)) + T0
    ts_ms = at - draw.integers(0, 700, count) * (draw.random(count) < 0.1)
    value = 9 + 3 * np.sin(at / 3000) + draw.normal(0, 1, count)
    return Samples(at, ts_ms, value, draw.random(count) < 0.7)


def by_core(rules: list[tuple[int, Rule]], samples: Samples) -> list[Effect]:
    """Each rule from its time on."""
    (_, first), *rest = rules
    breaker, effects = Breaker.create(first, int(samples.at[0]))
    told, seen = list(effects), list[tuple[int, Batch]]()
    for received_ms, batch in arrivals(samples):
        while rest and rest[0][0] < received_ms:
            at_ms, rule = rest.pop(0)
            told += breaker.advance(at_ms - 1)
            if breaker.configure(rule, at_ms):
                breaker.unload()
                for before_ms, before in seen:
                    breaker.load(before, before_ms)
        told += breaker.ingest(batch, received_ms)
        seen.append((received_ms, batch))
    return told + list(breaker.advance(int(samples.at[-1])))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("chunk_rows", [50, 1 << 20])
def test_the_fast_path_follows_the_rules(seed: int, chunk_rows: int) -> None:
    """Changes of every kind, in another order each time, some right behind another."""
    samples, draw = drawn(seed), np.random.default_rng(100 + seed)
    rows = np.sort(draw.integers(100, len(samples) - 100, len(EDITS)))
    rows = rows[np.flatnonzero(np.diff(samples.at[rows], prepend=0))]
    rules = [(0, parse_rule(FIRST))]
    for row, number in zip(rows.tolist(), draw.permutation(len(EDITS)).tolist(), strict=False):
        rules.append((int(samples.at[row]), parse_rule(EDITS[number], rules[-1][1])))
    told: list[Effect] = []
    other: list[Effect] = []
    fixed = Walk(rules[0][1], other.extend)
    engine = FastReplay([Walk(rules[0][1], told.extend, follows_log=True), fixed], chunk_rows=chunk_rows)
    longest_ms, start = max(rule.window_ms for _, rule in rules), 0
    engine.configure(rules[0][1], 0, longest_ms)
    for at_ms, rule in rules[1:]:
        stop = int(np.searchsorted(samples.at, at_ms, "right"))
        engine.feed(samples.part(start, stop))
        engine.configure(rule, at_ms, longest_ms)
        start = stop
    engine.feed(samples.part(start, len(samples)))
    engine.finish()
    moves = [one for one in told if not (isinstance(one, RateChange) and one.ts_ms in dict(rules))]
    assert moves == by_core(rules, samples)
    assert len(moves) > 20
    assert other == by_core(rules[:1], samples), "who follows no log keeps its rule"


def test_what_was_changed_is_told() -> None:
    """The fields that differ, until when they were so."""
    rule = parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 250})
    times = [T0 + k * 60_000 for k in range(8)]
    rules = [InForce(at_ms, parse_rule({"threshold": 250 + k * 10}, rule)) for k, at_ms in enumerate(times)]
    assert course_of(rules[:2]) == (
        "the breaker's rule was changed 1 time; its own is replayed as it was in force: threshold 250 until "
        "2023-11-14 22:14:20.000; threshold 260 since"
    )
    assert course_of(rules).count("until") == 5
    assert "7 times" in course_of(rules)
    assert course_of(rules).endswith("; threshold 320 since")
