"""Backtest: what breakers would have done on recorded samples.

    from pipelines.backtest import backtest

    rule = {"metric": "latency", "kind": "p95", "op": "gt", "threshold": 250, "window_ms": 60_000}
    run = backtest(rule, "samples/*.parquet", windows="windows.json")
    run.transitions     # a polars frame: one row per transition
    run.states          # one row per stay in a state
    run.summary         # one row per rule: time in each state, trips, labelled windows caught
    run.to_pandas()     # the same frames for pandas

The breaker is created at the time of the first sample, timers run up to that of the last one. With a sweep there are
many settings of each rule; `run.sweep` has one row for each, the best first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.errors import Invalid
from pipelines import results
from pipelines.fast.engine import WindowsTooLarge
from pipelines.frames import from_pandas, to_pandas
from pipelines.rules import RuleLike, Value, candidates, checked_sweep, variants
from pipelines.sorting import Sorted
from pipelines.sources import WITH_RECORD, Files, Frames, Layout, Source
from pipelines.streams import Progress, Run, replayed
from pipelines.tally import Labelled, Room, Tally, labelled

MEMORY_MB = 1024
BASE_MB, BYTES_PER_ROW, BYTES_PER_EFFECT = 200, 640, 2048
"""Measured: what a run needs beside its chunk, what a row of a chunk takes at most while it is walked over, and what a
transition takes until it is told, as JSON at most, when there is no chunk any more."""
ROWS_MIN = 1 << 16
SORTED_PARTS = 4
"""What is sorted at a time is such a part of the memory for rows: it lies there twice, in the buffers of its files, and
half as much beside a chunk while it is merged."""


@dataclass(slots=True)
class Backtest:
    """What came of it, as polars frames; times are Unix milliseconds.

    - `transitions`: breaker, ts_ms, prev, curr, transition_seq, allow_rate, reason, value; avg, count, error_count and
      p95 of the evaluation window; trace_id.
    - `states`: breaker, state, from_ms, to_ms, duration_ms.
    - `summary`: per breaker from_ms, to_ms, samples, late, truncated, transitions, trips, recoveries, closed_ms,
      half_open_ms, open_ms; with labelled windows also windows, caught, false_trips, latency_ms (mean of those caught).
    - `sweep`: the same per setting, the best first: most windows caught, then fewest false trips, then lowest latency;
      without windows fewest trips.
    """

    transitions: pl.DataFrame
    states: pl.DataFrame
    summary: pl.DataFrame
    sweep: pl.DataFrame | None
    runs: list[Run]
    windows: list[Labelled] | None

    @classmethod
    def of(cls, runs: Sequence[Run], windows: list[Labelled] | None) -> Backtest:
        """The frames of finished runs."""
        given = [run for run in runs if run.setting is None]
        swept = [run for run in runs if run.setting is not None]
        return cls(
            results.transitions(given),
            results.states(given),
            results.summary(given, windows),
            results.sweep(swept, windows) if swept else None,
            list(runs),
            windows,
        )

    @property
    def given(self) -> list[Run]:
        """The runs of the rules as they were given."""
        return [run for run in self.runs if run.setting is None]

    def best(self) -> pl.DataFrame | None:
        """The settings of the sweep that no other one beats: all labelled windows caught, fewest false trips."""
        return None if self.sweep is None else results.best(self.sweep, self.windows)

    def to_pandas(self) -> dict[str, Any]:
        """The frames by name, for pandas."""
        frames = {"transitions": self.transitions, "states": self.states, "summary": self.summary, "sweep": self.sweep}
        return {name: to_pandas(frame) for name, frame in frames.items() if frame is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `transitions`, `summary` and, after a sweep, `sweep`."""
        return results.plain(self.transitions, self.given, self.windows, self.sweep)


def backtest(
    rule: RuleLike | Sequence[RuleLike],
    samples: Any,
    *,
    columns: Mapping[str, str] | None = None,
    windows: Any = None,
    grace_ms: int = 0,
    sweep: Mapping[str, Sequence[Value]] | None = None,
    sort: bool = False,
    memory_mb: int = MEMORY_MB,
    window_samples_max: int = SAMPLES_MAX,
    progress: Progress | None = None,
) -> Backtest:
    """Moves the breakers of `rule` over `samples`. Raises Invalid, with file, row and column where there is one.

    - rule: a Breaker object (interface.md) as a dict, a `Rule`, a JSON or YAML file of one or several, or a list.
    - samples: a polars or pandas frame, a path or pattern of Parquet, CSV or NDJSON files, a list of these, or a
      `Source`. `columns` says how they name ours, for example {"ts_ms": "timestamp"}.
    - windows: labelled failures, see `pipelines.tally`; a trip up to `grace_ms` behind a window still belongs to it.
    - sweep: values per field of the rule; every combination is tried.
    - sort: the samples are not in order of time.
    - memory_mb: what the process may take.
    - progress: called with the number of samples read so far.
    """
    source = source_of(samples, columns, sort=sort, memory_mb=memory_mb)
    labels = None if windows is None else labelled(windows, source.names)
    grid = checked_sweep(sweep or {})
    runs, room = [], Room(_beyond_base(memory_mb) // BYTES_PER_EFFECT)
    for one in candidates(rule):
        runs.append(Run(one, Tally(labels or (), grace_ms, room=room)))
        for setting, variant in variants(one, grid) if grid else ():
            runs.append(Run(variant, Tally(labels or (), grace_ms, kept=False), setting, one.name))
    try:
        replayed(runs, source, rows_within(memory_mb), window_samples_max, progress)
    except WindowsTooLarge as error:
        needed = BASE_MB + window_samples_max * 5 // 4 * BYTES_PER_ROW // (1 << 20) + 1
        raise Invalid(f"the windows hold {error} samples or more; {needed} MB of memory are enough for any") from None
    return Backtest.of(runs, labels)


def source_of(
    samples: Any, columns: Mapping[str, str] | None = None, *, sort: bool = False, memory_mb: int = MEMORY_MB
) -> Source:
    """Whatever samples were given as, as a source; sorted within the memory."""
    layout = Layout(dict(columns or {}), WITH_RECORD)
    if isinstance(samples, str | Path):
        samples = [samples]
    source: Source
    if isinstance(samples, pl.DataFrame | pl.LazyFrame):
        source = Frames(samples, layout, ordered=not sort)
    elif type(samples).__module__.partition(".")[0] == "pandas":
        source = Frames(from_pandas(samples), layout, ordered=not sort)
    elif isinstance(samples, Sequence):
        source = Files(samples, layout, ordered=not sort)
    else:
        source = samples
    return Sorted(source, run_bytes=rows_within(memory_mb) * BYTES_PER_ROW // SORTED_PARTS) if sort else source


def rows_within(memory_mb: int) -> int:
    """How many rows may be walked over at a time, so that the process stays within the memory."""
    rows = _beyond_base(memory_mb) // BYTES_PER_ROW
    if rows < ROWS_MIN:
        raise Invalid(f"{memory_mb} MB are too few; {BASE_MB + ROWS_MIN * BYTES_PER_ROW // (1 << 20) + 1} are needed")
    return rows


def _beyond_base(memory_mb: int) -> int:
    """Bytes for what grows with samples and transitions."""
    return (memory_mb - BASE_MB) << 20
