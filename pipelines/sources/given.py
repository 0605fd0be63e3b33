"""Samples as callers of `pipelines.backtest` give them, made into a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from breaker_actors.errors import Invalid
from pipelines.frames import from_pandas
from pipelines.sources.files import NAMES, Files, Frame, Frames, Layout, Source

TEXT_READER = "samples: a pandas TextFileReader is read but once; give pandas.concat(reader)"
RAY_DATASET = "samples: a Ray Dataset is not read; give dataset.to_pandas()"


def source_over(samples: Any, layout: Layout, *, ordered: bool) -> Source:
    """Paths, frames, or a list of either, as a source. Raises Invalid for anything else."""
    if isinstance(samples, str | Path):
        samples = [samples]
    if isinstance(samples, list | tuple) and samples:
        return _over_list(samples, layout, ordered)
    if (frame := _frame(samples, layout)) is not None:
        return Frames(frame, layout, ordered=ordered)
    if isinstance(samples, Sequence) and all(isinstance(part, str | Path) for part in samples):
        return Files(samples, layout, ordered=ordered)
    if hasattr(samples, "batches") and hasattr(samples, "names"):
        source: Source = samples
        return source
    raise _refused(type(samples).__name__)


def _over_list(samples: Sequence[Any], layout: Layout, ordered: bool) -> Source:
    if all(isinstance(part, str | Path) for part in samples):
        return Files(samples, layout, ordered=ordered)
    frames = [frame for part in samples if (frame := _frame(part, layout)) is not None]
    if len(frames) == len(samples):
        return Frames(frames, layout, ordered=ordered)
    kinds = list(dict.fromkeys(type(part).__name__ for part in samples))
    raise _refused(f"a list of {' and '.join(kinds[:3])}")


def _refused(what: str) -> Invalid:
    return Invalid(f"samples: {what} is not a frame, an Arrow table, a path, a list of frames or of paths, or a Source")


def _frame(given: Any, layout: Layout) -> Frame | None:
    """What is a frame, for polars; None for anything else. Raises Invalid for what nearly is one."""
    if isinstance(given, pl.Series):
        raise Invalid("samples: a polars Series has no times; give a frame with ts_ms and value")
    if isinstance(given, pl.DataFrame | pl.LazyFrame):
        return given
    kind, package = type(given).__name__, type(given).__module__.partition(".")[0]
    if package == "ray" and hasattr(given, "to_pandas"):
        raise Invalid(RAY_DATASET)
    if package == "pandas":
        if kind == "TextFileReader":
            raise Invalid(TEXT_READER)
        if not hasattr(given, "columns"):
            raise Invalid(f'samples: a pandas {kind} has no columns; give series.to_frame("value")')
        return _of_pandas(given, layout)
    return pl.DataFrame(given) if hasattr(given, "__arrow_c_stream__") else None


def _of_pandas(given: Any, layout: Layout) -> pl.DataFrame:
    """The frame, without its index under the index's own name where that is not read."""
    frame, index = from_pandas(given, layout.theirs("ts_ms")), str(given.index.name)
    wanted = {layout.theirs(name) for name in NAMES} | set(map(str, given.columns))
    return frame.drop(index, strict=False) if index not in wanted else frame
