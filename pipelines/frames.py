"""Samples between files and core values: column names, checks, and what is wrong with a file said in one line."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from breaker_actors.core.model import Batch
from breaker_actors.errors import Invalid


def read_series(path: Path, time_column: str = "timestamp", value_column: str = "value") -> Batch:
    """A CSV with a header, one sample a row: times (ISO 8601 or `YYYY-MM-DD hh:mm:ss`, UTC unless they say otherwise)
    and finite numbers, in time order. Every sample counts as ok."""
    frame = _read(path)
    for column in (time_column, value_column):
        if column not in frame.columns:
            raise Invalid(f"{path}: no column {column!r}; there are {', '.join(frame.columns)}")
    if frame.is_empty():
        raise Invalid(f"{path}: no rows")
    ts_ms = _times(path, frame[time_column])
    value = _numbers(path, frame[value_column])
    back = np.flatnonzero(np.diff(ts_ms) < 0)
    if len(back):
        raise Invalid(f"{path}, line {_line(int(back[0]) + 1)}: its time is before that of the line above")
    return Batch(ts_ms, value, np.ones(len(value), np.bool_))


def _read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(path, infer_schema=False)
    except OSError as error:
        raise Invalid(f"{path} can't be read: {error.strerror or error}") from None
    except pl.exceptions.NoDataError:
        raise Invalid(f"{path} is empty") from None
    except pl.exceptions.PolarsError as error:
        raise Invalid(f"{path} is not a CSV file: {str(error).splitlines()[0]}") from None


def _times(path: Path, column: pl.Series) -> np.typing.NDArray[np.int64]:
    parsed = column.str.to_datetime(time_unit="ms", time_zone="UTC", strict=False)
    _refuse_nulls(path, column, parsed, "is not a time")
    return np.asarray(parsed.dt.epoch("ms").to_numpy(), np.int64)


def _numbers(path: Path, column: pl.Series) -> np.typing.NDArray[np.float64]:
    parsed = column.str.strip_chars().cast(pl.Float64, strict=False)
    _refuse_nulls(path, column, pl.select(pl.when(parsed.is_finite()).then(parsed)).to_series(), "is not a number")
    return np.asarray(parsed.to_numpy(), np.float64)


def _refuse_nulls(path: Path, column: pl.Series, parsed: pl.Series, complaint: str) -> None:
    bad = parsed.is_null().arg_true()
    if len(bad):
        row = int(bad[0])
        raise Invalid(f"{path}, line {_line(row)}: {column.name} {column[row]!r} {complaint}")


def _line(row: int) -> int:
    return row + 2  # lines count from 1 and the first is the header


def from_pandas(frame: Any, time: str = "ts_ms") -> pl.DataFrame:
    """A pandas frame's columns, and its index where that holds times: by its name, and as the column `time` where there
    is none. Times with a zone are taken to UTC, text and objects one by one."""
    if twice := sorted({str(name) for name in frame.columns[frame.columns.duplicated()]}):
        raise Invalid(f"frame: it has several columns {', '.join(map(repr, twice))}")
    columns = {str(name): _from_pandas(frame[name]) for name in frame.columns}
    if frame.index.dtype.kind == "M":
        index = _from_pandas(frame.index.to_series())
        columns.setdefault(str(frame.index.name or time), index)
        columns.setdefault(time, index)
    return pl.DataFrame(columns, strict=False)


def _from_pandas(column: Any) -> pl.Series | list[Any]:
    if column.dtype.kind == "M":
        column = (
            column if getattr(column.dtype, "tz", None) is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        )
        return pl.Series(column.to_numpy())
    if column.dtype.kind in "iufb" and isinstance(column.dtype, np.dtype):
        return pl.Series(column.to_numpy())
    return [None if missing else value for value, missing in zip(column.tolist(), column.isna().tolist(), strict=True)]


def to_pandas(frame: pl.DataFrame) -> Any:
    """The same frame for pandas. Whole numbers stay whole: where some are missing the column is Int64.
    Times have a zone."""
    pandas = importlib.import_module("pandas")
    columns = {}
    for column in frame:
        kind = "Int64" if column.dtype.is_integer() and column.null_count() > 0 else None
        if isinstance(column.dtype, pl.Datetime):
            kind = f"datetime64[{column.dtype.time_unit}, {column.dtype.time_zone}]"
        columns[column.name] = pandas.Series(column.to_list(), dtype=kind)
    return pandas.DataFrame(columns)
