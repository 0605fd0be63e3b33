"""Backtest: what breakers would have done on recorded samples.

    from pipelines.backtest import backtest

    rule = {"metric": "latency", "kind": "p95", "op": "gt", "threshold": 250, "window_ms": 60_000}
    run = backtest(rule, "samples/*.parquet", windows="windows.json")
    run.transitions     # a polars frame: one row per transition
    run.states          # one row per stay in a state
    run.summary         # one row per rule: time in each state, trips, labelled windows caught
    run.to_pandas()     # the same frames for pandas
    run.report("r.html")  # a page with charts, which works offline

The breaker is created at the time of the first sample, timers run up to that of the last one. With a sweep there are
many settings of each rule; `run.sweep` has one row for each, the best of a rule first.
"""

from __future__ import annotations

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.errors import Invalid
from pipelines.candidates import RuleLike, Value, candidates, checked_sweep, named_routers, variants
from pipelines.frames import to_pandas
from pipelines.replay import results
from pipelines.replay.memory import BASE_MB, BYTES_PER_ROW, MEMORY_MB, beyond_base, rows_within
from pipelines.replay.run import Progress, Run, replayed
from pipelines.replay.scoring import EffectBudget, Labelled, Tally, labelled_files
from pipelines.replay.vectorized.engine import WindowsTooLarge
from pipelines.report.notebook import html_of
from pipelines.report.page import write_report
from pipelines.report.remarks import remarks_on_labels, remarks_on_samples, remarks_over
from pipelines.sources.external_sort import Sorted
from pipelines.sources.files import PYTHON, WITH_RECORD, Layout, Source, Words
from pipelines.sources.given import source_over

__all__ = ["Backtest", "BacktestWarning", "Invalid", "backtest", "source_of"]

BYTES_PER_EFFECT = 2048
"""Measured: what a transition takes until it is told, as JSON at most, when there is no chunk any more."""
SORTED_PARTS = 4
"""What is sorted at a time is such a part of the memory for rows: it lies there twice, in the buffers of its files, and
half as much beside a chunk while it is merged."""


class BacktestWarning(UserWarning):
    """Something about the input that is probably not meant; the result is right for what was given."""


@dataclass(slots=True, repr=False)
class Backtest:
    """What came of it, as polars frames. Times are given twice: as Unix milliseconds (`ts_ms`, `from_ms`, `to_ms`) and
    as Datetime, UTC (`ts`, `from`, `to`).

    - `transitions`: breaker, ts_ms, ts, prev, curr, transition_seq, allow_rate, reason, value; avg, count,
      error_count (of observations) and p95 of the evaluation window; trace_id; hidden_by, by, comment (semantics.md
      section 12).
    - `states`: breaker, state, from_ms, to_ms, duration_ms, from, to; of the machine, hidden or not.
    - `summary`: per breaker trips, of the machine, hidden or not; with labelled windows caught and false_trips
      (incidents that belong to none); samples, late, truncated, transitions, incidents (trips out of closed; the others
      are re-trips of theirs), recoveries, closed_ms, half_open_ms, open_ms; where there were modes or overrides also
      shown_trips, shown_closed_ms, shown_half_open_ms and shown_open_ms, what callers saw; with labelled windows also
      windows (those that samples reach) and latency_ms (mean of those caught); last from_ms, to_ms, from, to.
    - `sweep`: the same per setting, the best of each rule first: most windows caught, then fewest false trips, then
      lowest latency; without windows fewest trips, and behind them the settings that never trip.
    - `remarks`: what is probably not meant, a sentence each; `backtest` warns of them (`BacktestWarning`).
    """

    transitions: pl.DataFrame
    states: pl.DataFrame
    summary: pl.DataFrame
    sweep: pl.DataFrame | None
    runs: list[Run]
    windows: list[Labelled] | None
    source: Source | None = None
    limits: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        runs: Sequence[Run],
        windows: list[Labelled] | None,
        source: Source | None = None,
        limits: dict[str, int] | None = None,
    ) -> Backtest:
        """The frames of finished runs over a source, read within `limits` (memory_mb, window_samples_max)."""
        given = [run for run in runs if run.setting is None]
        swept = [run for run in runs if run.setting is not None]
        return cls(
            results.transitions(given),
            results.states(given),
            results.summary(given, windows),
            results.sweep(swept, windows) if swept else None,
            list(runs),
            windows,
            source,
            limits or {},
            remarks_over(given, windows, source, (swept[0].setting or {}) if swept else ()),
        )

    def __repr__(self) -> str:
        counted = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in self._counts())
        return f"Backtest({', '.join(counted)})\n{self.summary}"

    def _counts(self) -> list[tuple[int, str]]:
        return [(len(self.summary), "rule"), (len(self.transitions), "transition")]

    def _repr_html_(self) -> str:
        """The tables, for a notebook."""
        return html_of(self, self.source, self.remarks, self.summary, self.transitions)

    @property
    def given(self) -> list[Run]:
        """The runs of the rules as they were given."""
        return [run for run in self.runs if run.setting is None]

    def best(self) -> pl.DataFrame | None:
        """Of each rule the settings of the sweep that no other one beats: most labelled windows caught, of these fewest
        false trips; without windows those that trip, and fewest times. None without a sweep, never empty. Whether all
        windows are caught: its columns `caught` and `windows`."""
        return None if self.sweep is None else results.best(self.sweep, self.windows)

    def remarks_on_samples(self) -> list[str]:
        """Those of the remarks that are not about rules."""
        return remarks_on_samples(self.given, self.windows, self.source)

    def report(self, path: str | Path, *, progress: Progress | None = None) -> Path:
        """Writes a page with charts, which works offline; the samples are read once more. Raises Invalid."""
        if self.source is None:
            raise Invalid("this result doesn't know its samples, so there is nothing to draw")
        write_report(Path(path), self, self.source, progress=progress, **self.limits)
        return Path(path)

    def to_pandas(self) -> dict[str, Any]:
        """The frames by name, for pandas."""
        frames = {"transitions": self.transitions, "states": self.states, "summary": self.summary, "sweep": self.sweep}
        return {name: to_pandas(frame) for name, frame in frames.items() if frame is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `transitions`, `summary`, `warnings` (the remarks) and, after a sweep, `sweep`."""
        return results.plain(self.transitions, self.given, self.windows, self.sweep) | {"warnings": self.remarks}


def backtest(
    rule: RuleLike | Sequence[RuleLike],
    samples: Any,
    *,
    columns: Mapping[str, str] | None = None,
    routers: Sequence[str] | str = (),
    windows: Any = None,
    grace_ms: int = 0,
    sweep: Mapping[str, Sequence[Value]] | str | None = None,
    sort: bool = False,
    time_unit: str = "ms",
    memory_mb: int = MEMORY_MB,
    window_samples_max: int = SAMPLES_MAX,
    progress: Progress | None = None,
) -> Backtest:
    """Moves the breakers of `rule` over `samples`. Raises Invalid, with file, row and column where there is one.

    - rule: a Breaker object (interface.md) as a dict, a `Rule`, a JSON or YAML file of one or several, or a list.
    - samples: a polars or pandas frame (an index of times is `ts_ms`, whatever its name), a pyarrow Table (or whatever
      else hands out Arrow streams), or a list of such frames; a path, pattern, folder or URL (s3://, gs://, az://,
      https://) of Parquet, CSV or NDJSON files, or a list of such places; or a `Source`. Of a list one is read after
      the other. `columns` says how they name ours, for example {"ts_ms": "timestamp"}.
    - routers: of which routers alone, as the samples name them; without, of those that the rule names, or of all.
    - windows: labelled failures, [start, end] (or a dict of both) each as milliseconds, ISO 8601, datetime or
      Timestamp, a frame with columns start and end, or a JSON file of them; see `pipelines.replay.scoring`. An incident
      that begins up to `grace_ms` behind a window still belongs to it. Windows that no sample reaches are told, not
      judged.
    - sweep: values per field of the rule, or text as of the command's --sweep ("threshold=100:500:25"); every
      combination is tried.
    - sort: the samples are not in order of time.
    - time_unit: s, ms, us or ns: of times in the samples that are numbers.
    - memory_mb: what the process may take.
    - progress: called with the number of samples read so far.
    """
    source = source_of(samples, columns, sort=sort, time_unit=time_unit, memory_mb=memory_mb)
    labels, files = (None, []) if windows is None else labelled_files(windows, source.names)
    grid = checked_sweep(sweep or {})
    runs, budget = [], EffectBudget(beyond_base(memory_mb) // BYTES_PER_EFFECT)
    names = named_routers(routers)
    for one in candidates(rule):
        if names:
            one = replace(one, router_ids=names, all_routers=True)
        runs.append(Run(one, Tally(labels or (), grace_ms, budget=budget)))
        for setting, variant in variants(one, grid) if grid else ():
            runs.append(Run(variant, Tally(labels or (), grace_ms, kept=False), setting, one.name))
    try:
        replayed(runs, source, rows_within(memory_mb), window_samples_max, progress)
    except WindowsTooLarge as error:
        needed = BASE_MB + window_samples_max * 5 // 4 * BYTES_PER_ROW // (1 << 20) + 1
        raise Invalid(f"the windows hold {error} samples or more; {needed} MB of memory are enough for any") from None
    if names and not any("router_id" in run.columns for run in runs):
        raise Invalid(getattr(source, "words", PYTHON).without_routers)
    limits = {"memory_mb": memory_mb, "window_samples_max": window_samples_max}
    done = Backtest.of(runs, labels, source, limits)
    done.remarks += remarks_on_labels(files, source)
    for remark in done.remarks:
        python_warnings.warn(remark, BacktestWarning, stacklevel=2)
    return done


def source_of(
    samples: Any,
    columns: Mapping[str, str] | None = None,
    *,
    sort: bool = False,
    time_unit: str = "ms",
    memory_mb: int = MEMORY_MB,
    words: Words = PYTHON,
) -> Source:
    """Whatever samples were given as, as a source; sorted within the memory. `words`: how errors name arguments."""
    layout = Layout(dict(columns or {}), WITH_RECORD, words, time_unit)
    source = source_over(samples, layout, ordered=not sort)
    return Sorted(source, run_bytes=rows_within(memory_mb) * BYTES_PER_ROW // SORTED_PARTS) if sort else source
