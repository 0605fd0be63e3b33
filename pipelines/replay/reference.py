"""Replay: one rule over arrivals in order, by driving `core.machine`; the same log gives the same transitions.

Pure, and the reference: `pipelines.replay.vectorized` comes to the same transitions over columns, many samples at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from breaker_actors.core.log_entries import Gap
from breaker_actors.core.machine import SAMPLES_MAX, Breaker
from breaker_actors.core.model import Batch, Control, Effect, Flags, Float64, Int64, Record, Rule
from pipelines.columns import Chunk, Samples

Entry = tuple[int, Batch | Control | Gap]
"""When it was received, and what: samples, mode and override from then on, or an outage."""


def replay(rule: Rule, created_ms: int, entries: Iterable[Entry], until_ms: int, *, after_seq: int = 0) -> list[Effect]:
    """All effects of a breaker born at `created_ms` that takes these entries, as a log has them, and timers to
    `until_ms`."""
    breaker, first = Breaker.create(rule, created_ms, after_seq=after_seq)
    effects = list(first)
    for at_ms, entry in entries:
        if isinstance(entry, Batch):
            effects += breaker.ingest(entry, at_ms)
        elif isinstance(entry, Control):
            effects += breaker.advance(at_ms - 1)
            effects += breaker.control(entry, at_ms)
        else:
            effects += breaker.gap(entry.from_ms, entry.to_ms)
    effects += breaker.advance(until_ms)
    return effects


def replay_samples(
    rule: Rule, samples: Samples, *, window_samples_max: int = SAMPLES_MAX
) -> tuple[list[Effect], Record]:
    """All effects of a breaker born with the first sample, timers up to the last one's time, and its record then."""
    breaker, first = Breaker.create(rule, int(samples.at[0]), window_samples_max=window_samples_max)
    effects = list(first)
    for received_ms, batch in arrivals(samples):
        effects += breaker.ingest(batch, received_ms)
    effects += breaker.advance(int(samples.at[-1]))
    return effects, breaker.record()


def arrivals(samples: Samples) -> Iterator[tuple[int, Batch]]:
    """Each distinct time of arrival, with what arrived then."""
    if len(samples):
        chunk = Chunk(samples, 0)
        for arrival, received_ms in enumerate(chunk.times.tolist()):
            yield received_ms, chunk.batch(arrival)


def by_timestamp(ts_ms: Int64, value: Float64, ok: Flags) -> Iterator[tuple[int, Batch]]:
    """Arrivals for columns in any order that carry no arrival time: each distinct timestamp is one."""
    order = np.argsort(ts_ms, kind="stable")
    at = ts_ms[order]
    return arrivals(Samples(at, at, value[order], ok[order]))
