"""A threshold for a rule of which all else stands, by a budget of trips, in bounded time: for who waits at a screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import polars as pl

from breaker_actors.core.model import Rule
from breaker_actors.errors import Invalid
from pipelines.columns import Samples
from pipelines.replay.run import NO_SAMPLE, samples_of
from pipelines.replay.vectorized.judge import Judge
from pipelines.suggest.budget import within_budget
from pipelines.suggest.measures import Measure, at_first_step, reachable
from pipelines.suggest.reasons import why_budget, why_none, why_waits

COUNTED = "samples that stand for several observations each are not looked at for a threshold"


class Threshold(NamedTuple):
    """`value`: None where none is found. `why`: what speaks for it, or against any. `samples`: how many were looked at,
    from `first_ms` to `last_ms`."""

    value: float | None
    why: list[str]
    samples: int
    first_ms: int
    last_ms: int


def threshold_of(
    batches: Iterable[pl.DataFrame],
    rule: Rule,
    trips_a_week: float,
    samples_most: int,
    window_samples_max: int,
    watch: Callable[[], None],
) -> Threshold:
    """Looks at the newest samples, in order of arrival, at most `samples_most` of them. `watch`: see `Judge`. Raises
    Invalid where there is none."""
    history = _newest(batches, samples_most)
    value, why = _found(history, rule, trips_a_week, window_samples_max, watch)
    return Threshold(value, why, len(history), int(history.at[0]), int(history.at[-1]))


def _newest(batches: Iterable[pl.DataFrame], most: int) -> Samples:
    frames = [frame.drop("trace_id", strict=False) for frame in batches if len(frame)]
    if not frames:
        raise Invalid(NO_SAMPLE)
    frame = pl.concat(frames, how="diagonal").tail(most)
    if "count" in frame.columns:  # frames whose samples stand for themselves may come without
        frame = frame.with_columns(pl.col("count").fill_null(1))
    return samples_of(frame.rechunk())


def _found(
    history: Samples, rule: Rule, trips_a_week: float, window_samples_max: int, watch: Callable[[], None]
) -> tuple[float | None, list[str]]:
    if history.count is not None:
        return None, [COUNTED]
    measure = Measure(rule)
    found = within_budget(Judge(history, window_samples_max, watch), measure, trips_a_week)
    if found is None or not reachable(found.rule, history):
        return None, [why_none([] if found is None else [found], [measure])]
    waits = why_waits(found.rule, at_first_step(found.rule, history))
    return found.rule.threshold, [why_budget(found, trips_a_week), *waits]
