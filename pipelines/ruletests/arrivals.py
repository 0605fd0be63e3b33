"""The samples of a test, of all its series and files, as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from breaker_actors.core.log_entries import counted
from breaker_actors.core.model import Flags, Float64, Int64
from breaker_actors.errors import Invalid
from pipelines.columns import Samples
from pipelines.ruletests.notation import Expanded
from pipelines.sources.files import WITH_RECORD, Files, Layout, Words

ROWS_MAX = 20_000_000
"""Samples of all tests of a run; they lie in memory together, about 50 bytes each."""
PART_BITS = 32
"""Numbers of records of one part are below 2 to the power of this."""
ANY = ""
"""Stands for the metric of samples that say none: every breaker takes them."""
IN_TESTS = Words("columns: {{{}: THEIRS}}", "give samples in order of time", "give time_unit: s, us or ns", "time_unit")


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Columns of one length, in order of arrival. `record`: numbers that change from one arrival to the next, of a
    file counted from 0. `metric`: a number into `metrics`; None: no sample says one."""

    at: Int64
    ts_ms: Int64
    value: Float64
    ok: Flags
    count: Int64
    record: Int64
    metric: Int64 | None = None
    metrics: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.at)

    def of(self, metric: str) -> Samples:
        """What a breaker of this metric takes."""
        if self.metric is None:
            return self._samples(slice(None))
        taken = [i for i, name in enumerate(self.metrics) if name in (ANY, metric)]
        return self._samples(np.flatnonzero(np.isin(self.metric, taken)))

    def _samples(self, rows: slice | np.typing.NDArray[np.intp]) -> Samples:
        columns = (self.at[rows], self.ts_ms[rows], self.value[rows], self.ok[rows])
        return Samples(*columns, None, self.record[rows], counted(self.count[rows]))


_NONE = np.empty(0, np.int64)
NOTHING = Arrivals(_NONE, _NONE, np.empty(0), np.empty(0, np.bool_), _NONE, _NONE)


def of_series(series: Expanded, from_ms: int, late_ms: int, metric: str | None) -> Arrivals:
    """A series that begins at `from_ms`; samples are `late_ms` old when they arrive."""
    at = from_ms + series.offset_ms
    ts_ms = at if not late_ms else at - late_ms
    return _of(at, ts_ms, series.value, series.ok, series.count, series.batch, metric)


def of_file(path: Path, columns: dict[str, str], time_unit: str, metric: str | None) -> Arrivals:
    """The samples of a file, in order of arrival. Raises Invalid with file, row and column."""
    source = Files([path], Layout(columns, WITH_RECORD, IN_TESTS, time_unit))
    frames, rows = list[pl.DataFrame](), 0
    for batch in source.batches():
        frames.append(batch)
        rows += len(batch)
        check_rows(rows)
    if not rows:
        raise Invalid(f"{path}: there is no sample in it")
    frame = pl.concat(frames)
    has = frame.columns
    ts_ms, value = frame["ts_ms"].to_numpy(), frame["value"].to_numpy()
    at = frame["received_ms"].to_numpy() if "received_ms" in has else ts_ms
    ok = frame["ok"].to_numpy() if "ok" in has else np.ones(rows, np.bool_)
    count = frame["count"].to_numpy() if "count" in has else np.ones(rows, np.int64)
    record = _numbers(frame["record"].to_numpy() if "record" in has else at)
    if metric is not None or "metric" not in has:
        return _of(at, ts_ms, value, ok, count, record, metric)
    names = frame["metric"].unique(maintain_order=True).to_list()
    numbers = frame["metric"].replace_strict(names, range(len(names)), return_dtype=pl.Int64).to_numpy()
    return Arrivals(at, ts_ms, value, ok, count, record, numbers, tuple(names))


def _numbers(record: Int64) -> Int64:
    """Records by numbers from 0 on, whatever told them apart."""
    return np.concatenate([[0], np.cumsum(record[1:] != record[:-1])])


def check_rows(rows: int) -> None:
    """Raises Invalid for more samples than a run of tests may have."""
    if rows > ROWS_MAX:
        raise Invalid(f"the tests have more than {ROWS_MAX} samples")


def _of(
    at: Int64, ts_ms: Int64, value: Float64, ok: Flags, count: Int64, record: Int64, metric: str | None
) -> Arrivals:
    number = None if metric is None else np.zeros(len(at), np.int64)
    return Arrivals(at, ts_ms, value, ok, count, record, number, () if metric is None else (metric,))


def merged(parts: Sequence[Arrivals]) -> Arrivals:
    """Several parts by their times of arrival; of one instant the first part comes first, each with records of its
    own."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return NOTHING
    at = np.concatenate([part.at for part in parts])
    rows = np.argsort(at, kind="stable")
    record = np.concatenate([part.record + (i << PART_BITS) for i, part in enumerate(parts)])
    names = list(dict.fromkeys(name for part in parts for name in part.metrics or (ANY,)))
    metric = np.concatenate([_numbered(part, names) for part in parts]) if names != [ANY] else None
    joined = (
        np.concatenate([getattr(part, name) for part in parts])[rows] for name in ("ts_ms", "value", "ok", "count")
    )
    ts_ms, value, ok, count = joined
    tail = (None, ()) if metric is None else (metric[rows], tuple(names))
    return Arrivals(at[rows], ts_ms, value, ok, count, record[rows], *tail)


def _numbered(part: Arrivals, names: list[str]) -> Int64:
    if part.metric is None:
        return np.full(len(part), names.index(ANY))
    return np.array([names.index(name) for name in part.metrics])[part.metric]
