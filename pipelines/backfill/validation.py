"""Each row of a batch judged alone: good samples in the shape of the history store, and for the others what is wrong.

The reasons are the words of ingest (semantics.md section 6): invalid_router_id, invalid_metric, invalid_ts_ms,
ts_ms_in_future, invalid_value, invalid_ok, invalid_count, and the same for received_ms. What spoils a whole file, such
as a column of the wrong type, raises Invalid as in `pipelines.sources.files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from breaker_actors.clock import rfc3339
from breaker_actors.core.model import COUNT_MAX
from pipelines.sources.files import Layout, Rows, Shape, time_forms
from pipelines.sources.history_store import SCHEMA

METRIC_LENGTH_MAX = 128
ORDER = ("router_id", "metric", "ts_ms", "value", "ok", "received_ms", "trace_id", "count")
"""A row is rejected for the first of its columns that isn't right."""
REJECTS = ("file", "row", "column", "reason", *SCHEMA)
"""Columns of the file of rejected rows: where the row is, what is wrong, and the row as it was."""


class Norms(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about a sample besides itself. `live_from_ms`: per known router, from when on its samples fall into
    a window that is live; `newest_ms`: later samples are in the future. `router_id` and `metric` fill blanks;
    `router_names`: ids of routers by the names that one of them has alone."""

    live_from_ms: dict[str, int]
    newest_ms: int
    router_id: str | None = None
    metric: str | None = None
    router_names: dict[str, str] = {}


def allowed(reason: str, norms: Norms, time_unit: str) -> str:
    """What the column of a rejected row may have, as words."""
    return {
        "invalid_router_id": "a router of the project, by its id or by a name that it has alone",
        "invalid_metric": f"1 to {METRIC_LENGTH_MAX} characters",
        "invalid_value": "a finite number",
        "invalid_ok": "true or false, 1 or 0, or blank (true)",
        "invalid_count": f"a whole number from 1 to {COUNT_MAX:,}, or blank (1)",
        **dict.fromkeys(("ts_ms_in_future", "received_ms_in_future"), f"no later than {rfc3339(norms.newest_ms)}"),
    }.get(reason, time_forms(time_unit))


class Judged(NamedTuple):
    """`history` and `live` in the shape of SCHEMA, `rejects` in that of REJECTS, all text but for row."""

    history: pl.DataFrame
    live: pl.DataFrame
    rejects: pl.DataFrame


class Wrong(NamedTuple):
    """What is wrong with some rows."""

    column: str
    reason: str
    rows: pl.Series


class Judge(Rows):
    """Notes what is wrong with rows instead of refusing all of them. `blank`: columns that need not be filled in."""

    __slots__ = ("_blank", "wrong")

    def __init__(self, label: str, row: int, columns: Layout, blank: Sequence[str]) -> None:
        super().__init__(label, row, columns)
        self._blank = blank
        self.wrong: list[Wrong] = []

    def _refuse(self, column: pl.Series, bad: pl.Series, complaint: str) -> None:
        if column.name in self._blank:
            bad = bad & column.is_not_null()
        self.wrong.append(Wrong(column.name, f"invalid_{column.name}", bad.fill_null(True)))


def judged(batch: pl.DataFrame, label: str, row: int, columns: Layout, shape: Shape, norms: Norms) -> Judged:
    """The rows of a batch, which begins behind `row` rows of its file."""
    blank = ["received_ms", *(name for name in ("router_id", "metric") if getattr(norms, name) is not None)]
    judge = Judge(label, row, columns, blank)
    frame = _completed(judge.checked(batch, shape), norms)
    reasons = [*judge.wrong, *_wrong_values(frame, norms)]
    reasons.sort(key=lambda wrong: ORDER.index(wrong.column))
    which = np.zeros(len(frame), np.int16)
    for number in range(len(reasons), 0, -1):
        which[reasons[number - 1].rows.to_numpy()] = number
    good = frame.filter(pl.Series(which == 0))
    since = good["router_id"].replace_strict(norms.live_from_ms, return_dtype=pl.Int64, default=None)
    live = (good["ts_ms"] > since).fill_null(False)
    return Judged(good.filter(~live), good.filter(live), _rejects(batch, label, row, reasons, which))


def _completed(parsed: pl.DataFrame, norms: Norms) -> pl.DataFrame:
    """All columns of SCHEMA. A sample that says no time of arrival arrived at its own."""
    frame = parsed.with_columns(
        pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in parsed.columns
    )
    return frame.select(
        _routers(norms),
        pl.col("metric").fill_null(pl.lit(norms.metric, pl.String)),
        pl.col("ts_ms"),
        pl.col("received_ms").fill_null(pl.col("ts_ms")),
        pl.col("value"),
        pl.col("ok").fill_null(True),
        pl.col("trace_id"),
        pl.col("count").fill_null(1),
    )


def _routers(norms: Norms) -> pl.Expr:
    """Ids of routers, in small letters, for those and for names."""
    given = pl.col("router_id").fill_null(pl.lit(norms.router_id, pl.String))
    ids = given.str.to_lowercase()
    named = given.replace_strict(norms.router_names, default=None, return_dtype=pl.String)
    return pl.when(ids.is_in(list(norms.live_from_ms))).then(ids).otherwise(pl.coalesce(named, ids)).alias("router_id")


def _wrong_values(frame: pl.DataFrame, norms: Norms) -> list[Wrong]:
    """What a value that can be read may be nevertheless."""
    known = frame["router_id"].is_in(list(norms.live_from_ms)).fill_null(False)
    length = frame["metric"].str.len_chars().fill_null(0)
    wrong = [
        Wrong("router_id", "invalid_router_id", ~known),
        Wrong("metric", "invalid_metric", (length == 0) | (length > METRIC_LENGTH_MAX)),
    ]
    for name in ("ts_ms", "received_ms"):
        wrong.append(Wrong(name, f"{name}_in_future", (frame[name] > norms.newest_ms).fill_null(False)))
    return wrong


def _rejects(
    batch: pl.DataFrame, label: str, row: int, reasons: Sequence[Wrong], which: np.typing.NDArray[np.int16]
) -> pl.DataFrame:
    rows = np.flatnonzero(which)
    chosen = [reasons[number - 1] for number in which[rows].tolist()]
    was = batch[rows]
    told = [
        pl.Series("file", [label] * len(rows), pl.String),
        pl.Series("row", rows + row + 1, pl.Int64),
        pl.Series("column", [wrong.column for wrong in chosen], pl.String),
        pl.Series("reason", [wrong.reason for wrong in chosen], pl.String),
    ]
    return pl.DataFrame([*told, *(_as_text(was, name) for name in SCHEMA)])


def _as_text(frame: pl.DataFrame, name: str) -> pl.Series:
    if name not in frame.columns:
        return pl.Series(name, [None] * len(frame), pl.String)
    return frame[name].cast(pl.String, strict=False)
