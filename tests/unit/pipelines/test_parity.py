"""The fast path comes to the core's effects and record, to the last bit; tests/parity does the same at length."""

from __future__ import annotations

import random

import numpy as np
import pytest

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.model import Control, Effect, Override
from breaker_actors.core.rule_fields import KINDS
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples
from pipelines.frames import read_series
from pipelines.replay.reference import replay_samples
from pipelines.replay.vectorized.engine import FastReplay, Walk
from tests.support.history import (
    MadeUpLog,
    is_log_alike,
    log_replayed,
    log_walked,
    made_up,
    made_up_log,
    made_up_samples,
    walked,
)
from tests.support.series import LATENCY


@pytest.mark.parametrize("seed", range(120))
def test_made_up_rules_and_samples(seed: int) -> None:
    """All kinds, late and equal times, chunks of any size, windows that overflow."""
    rule, samples = made_up(seed, 400)
    chance = random.Random(seed)
    chunk_rows, most = chance.choice([1, 30, 200, 1 << 20]), chance.choice([1_000_000, 1_000_000, 20])
    expected = replay_samples(rule, samples, window_samples_max=most)
    assert walked(rule, samples, chunk_rows=chunk_rows, window_samples_max=most, seed=seed) == expected


@pytest.mark.parametrize("seed", range(60))
def test_a_log_with_gaps(seed: int) -> None:
    """A breaker that was there before its first sample, and spans in which none could come."""
    rule, samples = made_up(seed, 400)
    log = made_up_log(seed, samples)
    assert log_walked(rule, samples, log, chunk_rows=100) == log_replayed(rule, samples, log)


@pytest.mark.parametrize("seed", range(5000, 5150))
def test_a_log_with_modes_and_overrides(seed: int) -> None:
    """Overrides end at their own time, in pauses, gaps and with a batch; where they end evidence may begin anew."""
    assert is_log_alike(seed, 300)


def test_evidence_begins_anew_twice_in_one_millisecond() -> None:
    """A batch ends the wait in open, another one follows, then an override ends with `then`: the run of failures that
    these two began does not go on."""
    rule = parse_rule(
        {"metric": "m", "kind": "consecutive_failures", "op": "gte", "threshold": 5, "eval_interval_ms": 1000,
         "min_state_duration_ms": 0, "cooldown_ms": 2000}
    )  # fmt: skip
    at = np.array([*[100] * 5, 2100, 2100, 2100, 2300, 2400], np.int64)
    record = np.array([0, 0, 0, 0, 0, 1, 2, 2, 3, 4])
    failed = np.zeros(len(at), np.bool_)
    samples = Samples(at, at, np.ones(len(at)), failed, None, record)
    override = Override(
        kind="force_closed", reason="why", by="sam", since_ms=500, until_ms=2100, version=2, then="half_open"
    )
    log = MadeUpLog(0, 0, None, [(5, (500, Control(override=override))), (len(at), Gap(2400, 2450))], 2450)
    expected = log_replayed(rule, samples, log)
    assert log_walked(rule, samples, log, chunk_rows=100) == expected
    assert (expected[1].state, expected[1].streak) == ("half_open", 2)


def test_made_up_rules_do_something() -> None:
    """The seeds above are worth running: most rules move, all kinds are there."""
    rules = [made_up(seed, 400) for seed in range(120)]
    moved = sum(bool(replay_samples(rule, samples)[0]) for rule, samples in rules)
    assert {rule.kind for rule, _ in rules} == set(KINDS)
    assert moved > 60
    counted = [samples.count for _, samples in rules if samples.count is not None]
    assert 15 < len(counted) < 45
    assert max(int(count.max()) for count in counted) > 1_000


@pytest.mark.parametrize("kind", ["avg", "p95", "max", "stddev", "delta"])
def test_real_latencies(kind: str) -> None:
    """The series of a failing server, five minutes between samples."""
    batch = read_series(LATENCY)
    samples = Samples(batch.ts_ms, batch.ts_ms, batch.value, batch.ok)
    fields = {"metric": "m", "kind": kind, "op": "gt", "window_ms": 7_200_000, "eval_interval_ms": 300_000}
    for threshold in (2, 4, 46, 55):
        rule = parse_rule(fields | {"threshold": threshold})
        assert walked(rule, samples, chunk_rows=1000) == replay_samples(rule, samples)


def test_many_rules_in_one_pass() -> None:
    """Rules that share windows and cuts are not in each other's way."""
    samples = made_up_samples(random.Random(5), 1500, 10)
    fields = {"metric": "m", "eval_interval_ms": 200, "min_state_duration_ms": 300}
    rules = [
        parse_rule(fields | {"kind": kind, "op": op, "threshold": threshold, "window_ms": window_ms})
        for kind in ("p95", "avg", "max")
        for op in ("gt", "lte")
        for threshold in (float(np.quantile(samples.value, part)) for part in (0.3, 0.5, 0.52, 0.9, 0.95, 0.97, 0.99))
        for window_ms in (300, 1000)
    ]
    told: list[list[Effect]] = [[] for _ in rules]
    engine = FastReplay([Walk(rule, out.extend) for rule, out in zip(rules, told, strict=True)], chunk_rows=400)
    engine.feed(samples)
    engine.finish()
    expected = [replay_samples(rule, samples)[0] for rule in rules]
    assert told == expected
    assert sum(map(bool, expected)) > len(rules) / 2


def test_long_runs_between_edges() -> None:
    """Calm stretches are skipped, and what ends them is found: a breach, a tick in a silence, the end of a wait."""
    rule = parse_rule(
        {"metric": "m", "kind": "count", "op": "lt", "threshold": 3, "min_count": 0, "window_ms": 10_000,
         "eval_interval_ms": 1000, "min_state_duration_ms": 0, "cooldown_ms": 5000}
    )  # fmt: skip
    at = np.cumsum(np.where(np.arange(60_000) % 20_000 == 19_999, 120_000, 100)).astype(np.int64)
    samples = Samples(at, at, np.ones(len(at)), np.ones(len(at), np.bool_))
    effects, record = walked(rule, samples, chunk_rows=50_000)
    assert (effects, record) == replay_samples(rule, samples)
    assert record.transition_seq > 6
