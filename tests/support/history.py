"""Recorded samples and rules made up from a seed, for the fast path to be held against the core."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Control, Counts, Effect, Int64, Override, OverrideKind, Record, Rule
from breaker_actors.core.rule_fields import DELTA_OF, KINDS, OPS, POLICIES
from breaker_actors.core.rules import parse_rule
from pipelines.columns import Samples, counted
from pipelines.frames import read_series
from pipelines.replay.reference import arrivals, replay_samples
from pipelines.replay.scoring import Tally
from pipelines.replay.vectorized.engine import FastReplay, Walk

START_MS = 1_700_000_000_000
SHAPES = ("latency", "latency", "latency", "whole", "normal", "constant", "steps", "spikes", "all_magnitudes")


def made_up(seed: int, count: int, *, spans: tuple[float, ...] = (0.05, 0.5, 2, 10, 100, 1000)) -> tuple[Rule, Samples]:
    """A rule and samples under which something happens, mostly. `spans`: mean milliseconds between samples."""
    chance = random.Random(seed)
    spacing_ms = chance.choice(spans)
    samples = made_up_samples(chance, count, spacing_ms)
    fields = made_up_fields(chance, spacing_ms)
    fields["threshold"] = threshold_for(chance, fields, samples)
    return parse_rule(fields), samples


def made_up_samples(chance: random.Random, count: int, spacing_ms: float) -> Samples:
    """Bursts and pauses, equal times, late samples and times ahead of the clock, failures that come and go; in a
    quarter of the cases samples that stand for several observations."""
    draw = np.random.default_rng(chance.randrange(1 << 30))
    gaps = draw.exponential(spacing_ms, count)
    if chance.random() < 0.5:
        gaps[draw.random(count) < 0.002] *= 300
    at = np.cumsum(gaps).astype(np.int64) + START_MS
    wave = np.sin(np.arange(count) * 2 * np.pi / chance.choice([300, 3000, 30000]))
    value = values(draw, chance.choice(SHAPES), count)
    if chance.random() < 0.5:
        value = value * (1.25 + wave)
    ok = draw.random(count) > np.clip(0.3 + 0.4 * wave, 0, 1) ** 2
    ts_ms = at
    if chance.random() < 0.4:
        lag = draw.exponential(spacing_ms * chance.choice([1, 20, 300]), count).astype(np.int64)
        ts_ms = at - lag * (draw.random(count) < chance.choice([0.05, 0.5, 1]))
        ts_ms += draw.integers(1, 1000, count) * (draw.random(count) < 0.02)
    trace = None
    if chance.random() < 0.3:
        named = draw.random(count) < 0.1
        trace = pl.Series([f"t{i}" if one else None for i, one in enumerate(named.tolist())], dtype=pl.String)
    record = None
    if chance.getrandbits(64) % 3 == 0:
        record = np.cumsum((np.diff(at, prepend=0) > 0) | (draw.random(count) < 0.3))
    return Samples(at, ts_ms, value, ok, trace, record, counts(draw, count) if draw.random() < 0.25 else None)


def counts(draw: np.random.Generator, count: int) -> Counts:
    """How many observations samples stand for: few of them, some or all for several, a few for thousands."""
    several = draw.random(count) < draw.choice([0.002, 0.1, 1])
    found = np.where(several, draw.choice([1, 1, 2, 3, 5, 20], count), 1)
    many = draw.random(count) < draw.choice([0, 0, 0.005])
    return counted(np.where(many, draw.integers(1_000, 20_000, count), found))


def values(draw: np.random.Generator, shape: str, count: int) -> np.ndarray:
    match shape:
        case "latency":
            return np.round(draw.lognormal(4.5, 0.5, count), 3)
        case "whole":
            return draw.integers(0, 10, count).astype(float)
        case "normal":
            return draw.normal(0, 1, count)
        case "constant":
            return np.full(count, draw.choice([0.0, 0.1, 1.0]))
        case "steps":
            return np.repeat(np.round(draw.normal(5, 3, count // 50 + 1), 1), 50)[:count]
        case "spikes":
            return draw.normal(0, 1e-9, count) + np.where(draw.random(count) < 0.01, 1e12, 0)
        case _:
            return draw.normal(0, 1, count) * 10.0 ** draw.integers(-40, 40, count)


def made_up_fields(chance: random.Random, spacing_ms: float) -> dict[str, Any]:
    """All of a rule but its threshold, with windows and timers from much shorter to much longer than the spacing."""
    kind, unit = chance.choice(KINDS), max(1, round(spacing_ms * chance.choice([1, 10, 100])))
    fields: dict[str, Any] = {
        "metric": "m",
        "kind": kind,
        "op": chance.choice(OPS),
        "window_ms": max(1, chance.choice([1, 7, 20, 50, 300]) * unit // chance.choice([1, 3])),
        "eval_interval_ms": chance.choice([1, 5, 20, 100]) * unit,
        "min_count": chance.choice([0, 1, 1, 2, 5, 30]),
        "min_state_duration_ms": chance.choice([0, 0, 3, 15, 100]) * unit,
        "cooldown_ms": chance.choice([0, 0, 5, 50]) * unit,
        "half_open_backoff_enabled": chance.random() < 0.5,
        "half_open_backoff_cap_ms": chance.choice([0, 50, 500]) * unit,
        "half_open_indeterminate_policy": chance.choice(POLICIES),
        "recovery_allow_rate_ramp_steps": chance.choice([1, 2, 3, 5]),
    }
    if kind == "percentile":
        fields["kind_params"] = {"percentile": chance.choice([1, 10, 33.3, 50, 66.7, 95, 99.9, 100])}
    if kind == "delta":
        fields["kind_params"] = {"delta_of": chance.choice(DELTA_OF), "alpha": chance.choice([0.05, 0.3, 0.5, 1.0])}
    return fields


def threshold_for(chance: random.Random, fields: dict[str, Any], samples: Samples) -> float:
    """One that the windows' values come by, now and then exactly."""
    kind, value = fields["kind"], samples.value
    if kind == "delta":
        inner = threshold_for(chance, fields | {"kind": fields["kind_params"]["delta_of"]}, samples)
        return chance.choice([0.0, 0.02, 0.1, -0.1, 0.5]) * abs(inner)
    spacing_ms = max(1e-3, (int(samples.at[-1]) - int(samples.at[0])) / len(samples))
    held = fields["window_ms"] / spacing_ms * (1 if samples.count is None else float(samples.count.mean()))
    if kind == "error_rate":
        return chance.choice([0, 0.1, 0.3, 1 / 3, 0.5, 0.8, 1])
    if kind == "consecutive_failures":
        return chance.choice([0, 1, 2, 3, 5, 8])
    if kind == "count":
        return round(held * chance.choice([0.3, 0.9, 1, 1.1, 2]))
    if kind == "sum":
        return float(value.mean() * held * chance.choice([0.5, 0.9, 1, 1.2]))
    if kind == "stddev":
        return float(value.std() * chance.choice([0, 0.5, 0.9, 1, 1.1]))
    spread = [0.3, 0.45, 0.5, 0.55, 0.7] if kind == "avg" else [0.02, 0.05, 0.5, 0.9, 0.95, 0.99]
    return float(np.quantile(value, chance.choice(spread)))


def walked(
    rule: Rule, samples: Samples, *, chunk_rows: int, window_samples_max: int = 1_000_000, seed: int = 0
) -> tuple[list[Effect], Record]:
    """What the fast path makes of it, fed in uneven portions."""
    effects: list[Effect] = []
    walk = Walk(rule, effects.extend)
    engine = FastReplay([walk], chunk_rows=chunk_rows, window_samples_max=window_samples_max)
    chance, at = random.Random(seed), 0
    while at < len(samples):
        until = min(len(samples), at + chance.randrange(1, 2 * chunk_rows + 2))
        engine.feed(samples.part(at, until))
        at = until
    engine.finish()
    assert walk.walker is not None
    return effects, walk.walker.breaker.record()


@dataclass(frozen=True)
class MadeUpLog:
    """What a log says beside samples: when the breaker was created, behind which transition of one before it, under
    which control, and what lies before each row: gaps, mode and override from a time on."""

    created_ms: int
    after_seq: int
    control: Control | None
    others: list[tuple[int, Gap | tuple[int, Control]]]
    until_ms: int


def made_up_control(chance: random.Random, at_ms: int, unit_ms: int) -> Control:
    """Any mode and override, of any length; now and then one that is over."""
    kind: OverrideKind | None = chance.choice(["force_open", "force_closed", "throttle", None])
    override = None
    if kind is not None:
        override = Override(
            kind=kind,
            reason="why",
            by="sam",
            since_ms=at_ms,
            until_ms=at_ms + chance.choice([0, 1, 3, 20, 100, 1000]) * unit_ms + chance.randrange(unit_ms),
            version=at_ms,
            allow_rate=chance.choice([0.0, 0.3, 1.0]) if kind == "throttle" else None,
            then=chance.choice([None, "half_open"]),
        )
    return Control(mode=chance.choice(["enforce", "enforce", "observe"]), override=override, by="robin")


def made_up_log(seed: int, samples: Samples, *, controls: int = 0) -> MadeUpLog:
    """Gaps in pauses between samples, one of them behind the last, now and then one before the first; up to so many
    controls, at times of samples, too."""
    chance = random.Random(seed)
    created_ms = int(samples.at[0]) - chance.choice([0, 1, 10_000])
    pauses = [int(row) for row in 1 + np.flatnonzero(np.diff(samples.at) > 1)]
    others: list[tuple[int, Gap | tuple[int, Control]]] = []
    if samples.at[0] - created_ms == 10_000:
        others.append((0, Gap(created_ms + 1000, created_ms + 6000)))
    for row in chance.sample(pauses, min(len(pauses), chance.randrange(8))):
        low, high = int(samples.at[row - 1]), int(samples.at[row])
        from_ms = chance.randint(low, high - 1)
        others.append((row, Gap(from_ms, chance.randint(from_ms + 1, high))))
    unit_ms = max(1, (int(samples.at[-1]) - created_ms) // len(samples))
    starts = [0, *np.flatnonzero(np.diff(arrival_numbers(samples))) + 1]
    taken = {row for row, _ in others}
    for row in chance.sample(starts, min(len(starts), chance.randrange(controls + 1))):
        if row not in taken:
            before_ms, at_ms = int(samples.at[row - 1]) if row else created_ms, int(samples.at[row])
            set_ms = chance.choice([before_ms, at_ms, chance.randint(before_ms, at_ms)])
            others += [
                (row, (set_ms, made_up_control(chance, set_ms, unit_ms))) for _ in range(chance.choice([1, 1, 2]))
            ]
    last_ms = int(samples.at[-1])
    end = Gap(last_ms + 5, last_ms + 5 + chance.randrange(1, 5000))
    others = [*sorted(others, key=lambda other: other[0]), (len(samples), end)]
    control = made_up_control(chance, created_ms, unit_ms) if controls and chance.random() < 0.3 else None
    return MadeUpLog(created_ms, seed % 3, control, others, end.to_ms)


def arrival_numbers(samples: Samples) -> Int64:
    """What differs from one arrival to the next."""
    return samples.at if samples.record is None else samples.record


def log_replayed(rule: Rule, samples: Samples, log: MadeUpLog, most: int = 1_000_000) -> tuple[list[Effect], Record]:
    """What the core makes of samples, gaps and controls."""
    breaker, first = Breaker.create(
        rule, log.created_ms, after_seq=log.after_seq, control=log.control, window_samples_max=most
    )
    effects, row = list(first), 0
    for until, other in log.others:
        for received_ms, batch in arrivals(samples.part(row, until)):
            effects += breaker.ingest(batch, received_ms)
        if isinstance(other, Gap):
            effects += breaker.gap(other.from_ms, other.to_ms)
        else:
            effects += breaker.advance(other[0] - 1)
            effects += breaker.control(other[1], other[0])
        row = until
    effects += breaker.advance(log.until_ms)
    return effects, breaker.record()


def log_walked(
    rule: Rule,
    samples: Samples,
    log: MadeUpLog,
    *,
    chunk_rows: int,
    most: int = 1_000_000,
    tally: Tally | None = None,
) -> tuple[list[Effect], Record]:
    """What the fast path makes of them; `tally` follows it."""
    effects: list[Effect] = []
    walk = Walk(rule, effects.extend) if tally is None else Walk(rule, tally.tell, steered=tally.steer)
    engine, row = FastReplay([walk], chunk_rows=chunk_rows, window_samples_max=most), 0
    engine.create(log.created_ms, log.after_seq, log.control)
    for until, other in log.others:
        engine.feed(samples.part(row, until))
        if isinstance(other, Gap):
            engine.gap(other.from_ms, other.to_ms)
        else:
            engine.control(other[1], other[0])
        row = until
    engine.finish()
    assert walk.walker is not None
    return effects, walk.walker.breaker.record()


def is_log_alike(seed: int, count: int) -> bool:
    """Whether the fast path makes the same of a made-up log with gaps, modes and overrides as the core."""
    rule, samples = made_up(seed, count)
    chance = random.Random(seed)
    chunk_rows, most = chance.choice([1, 30, 200, 1 << 20]), chance.choice([1_000_000, 1_000_000, 20])
    log = made_up_log(seed, samples, controls=chance.choice([3, 12, 40]))
    return log_walked(rule, samples, log, chunk_rows=chunk_rows, most=most) == log_replayed(rule, samples, log, most)


def is_alike(seed: int, count: int) -> bool:
    """Whether the fast path makes the same of a made-up rule and samples as the core, in chunks of any size."""
    rule, samples = made_up(seed, count)
    chance = random.Random(seed)
    chunk_rows, most = chance.choice([2000, 20_000, 1 << 20]), chance.choice([1_000_000, 1_000_000, 500])
    expected = replay_samples(rule, samples, window_samples_max=most)
    return walked(rule, samples, chunk_rows=chunk_rows, window_samples_max=most, seed=seed) == expected


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


def differing_rules(series: Path, timing: tuple[int, int, int]) -> list[Rule]:
    """Of the rules over a real series, in a share of the cases with counts, with this (window, interval, minimum
    duration): those of which the fast path makes something else than the core."""
    batch = read_series(series)
    ok = batch.value <= np.quantile(batch.value, 0.97)
    draw = np.random.default_rng([len(series.name), *timing])
    count = counts(draw, len(batch)) if draw.random() < 0.25 else None
    samples = Samples(batch.ts_ms, batch.ts_ms, batch.value, ok, count=count)
    window_ms, interval_ms, least_ms = timing
    fields = {"metric": "m", "window_ms": window_ms, "eval_interval_ms": interval_ms, "min_state_duration_ms": least_ms}
    rules = [parse_rule(fields | one) for one in real_rules(batch.value)]
    return [rule for rule in rules if walked(rule, samples, chunk_rows=1500) != replay_samples(rule, samples)]
