"""What breakers did, as polars frames and as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from breaker_actors.core.model import Transition
from pipelines.replay.run import Run
from pipelines.replay.scoring import Labelled
from pipelines.sources.files import Source

INSTANT = pl.Datetime("ms", "UTC")
TRANSITIONS: dict[str, pl.DataType | type[pl.DataType]] = {
    "breaker": pl.String,
    "ts_ms": pl.Int64,
    "ts": INSTANT,
    "prev": pl.String,
    "curr": pl.String,
    "transition_seq": pl.Int64,
    "allow_rate": pl.Float64,
    "reason": pl.String,
    "value": pl.Float64,
    "avg": pl.Float64,
    "count": pl.Int64,
    "error_count": pl.Int64,
    "p95": pl.Float64,
    "trace_id": pl.String,
    "hidden_by": pl.String,
    "by": pl.String,
    "comment": pl.String,
}
STATES: dict[str, pl.DataType | type[pl.DataType]] = {
    "breaker": pl.String,
    "state": pl.String,
    "from_ms": pl.Int64,
    "to_ms": pl.Int64,
    "duration_ms": pl.Int64,
    "from": INSTANT,
    "to": INSTANT,
}


def titled(source: Source) -> str:
    """What a source's samples are called: the first names of many."""
    names: Sequence[str] = getattr(source, "titles", source.names)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def moves(run: Run) -> list[Transition]:
    """The transitions of a run whose effects were kept."""
    return [effect for effect in run.tally.effects if isinstance(effect, Transition)]


def cause(move: Transition) -> str:
    """Its reason, with who made it, or why callers did not see it."""
    if move.hidden_by is not None:
        return f"{move.reason}, hidden by {move.hidden_by}"
    told = ": ".join(part for part in (move.by, move.comment) if part)
    return f"{move.reason}, {told}" if told else move.reason


def transitions(runs: Sequence[Run]) -> pl.DataFrame:
    """One row per transition, rule by rule."""
    rows = [
        (
            run.candidate.name, move.ts_ms, move.ts_ms, move.prev, move.curr, move.transition_seq, move.allow_rate,
            move.reason, move.value, move.agg.avg, move.agg.count, move.agg.error_count, move.agg.p95, move.trace_id,
            move.hidden_by, move.by, move.comment,
        )
        for run in runs
        for move in moves(run)
    ]  # fmt: skip
    return pl.DataFrame(rows, TRANSITIONS, orient="row")


def states(runs: Sequence[Run]) -> pl.DataFrame:
    """One row per stay of the machine in a state, rule by rule."""
    rows = []
    for run in runs:
        since_ms, state = run.first_ms, "closed"
        for at_ms, curr in run.tally.course:
            rows.append(_stay(run, state, since_ms, at_ms))
            since_ms, state = at_ms, curr
        rows.append(_stay(run, state, since_ms, run.last_ms))
    return pl.DataFrame(rows, STATES, orient="row")


def _stay(run: Run, state: str, from_ms: int, to_ms: int) -> tuple[str, str, int, int, int, int, int]:
    return run.candidate.name, state, from_ms, to_ms, to_ms - from_ms, from_ms, to_ms


def _outcome(run: Run, windows: list[Labelled] | None) -> dict[str, Any]:
    tally = run.tally
    latencies = tally.latencies()
    judged = {} if windows is None else {"caught": len(latencies), "false_trips": tally.false_trips}
    row: dict[str, Any] = {
        "trips": tally.trips,
        **judged,
        "samples": run.samples,
        "late": run.late,
        "truncated": run.truncated,
        "transitions": tally.transitions,
        "incidents": tally.incidents,
        "recoveries": tally.recoveries,
        **{f"{state}_ms": spent for state, spent in tally.time_in.items()},
    }
    if tally.controlled:
        row["shown_trips"] = tally.shown_trips
        row |= {f"shown_{state}_ms": spent for state, spent in tally.shown_in.items()}
    if windows is None:
        return row
    mean = round(sum(latencies) / len(latencies)) if latencies else None
    return row | {"windows": len(run.judged()), "latency_ms": mean}


def summary(runs: Sequence[Run], windows: list[Labelled] | None) -> pl.DataFrame:
    """One row per rule."""
    rows = [
        {"breaker": run.candidate.name} | _outcome(run, windows) | {"from_ms": run.first_ms, "to_ms": run.last_ms}
        for run in runs
    ]
    return _frame(rows).with_columns(
        pl.col("from_ms").cast(INSTANT).alias("from"), pl.col("to_ms").cast(INSTANT).alias("to")
    )


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame.cast({"latency_ms": pl.Int64}) if "latency_ms" in frame.columns else frame


def sweep(runs: Sequence[Run], windows: list[Labelled] | None) -> pl.DataFrame:
    """One row per setting, the best of each rule first, rules as they were given."""
    names = list(dict.fromkeys(run.swept for run in runs))
    several = len(names) > 1
    rows = []
    for run in runs:
        name = {"breaker": run.swept} if several else {}
        rows.append(name | (run.setting or {}) | _outcome(run, windows))
    frame = _frame(rows)
    by, descending = [pl.col("trips") == 0, pl.col("trips"), pl.col("open_ms")], [False, False, False]
    if windows is not None:
        by = [pl.col("caught"), pl.col("false_trips"), pl.col("latency_ms"), pl.col("open_ms")]
        descending = [True, False, False, False]
    ranked = frame.sort(by, descending=descending, nulls_last=True, maintain_order=True)
    return pl.concat(ranked.filter(pl.col("breaker") == name) for name in names) if several else ranked


def of_each(swept: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """The settings of each rule, under its name; "" where there is one rule."""
    if "breaker" not in swept.columns:
        return [("", swept)]
    return [(str(name), frame) for (name,), frame in swept.group_by("breaker", maintain_order=True)]


def best(swept: pl.DataFrame, windows: list[Labelled] | None) -> pl.DataFrame:
    """Of each rule the settings that catch most labelled windows, of these those with fewest false trips; without
    windows those that trip, and fewest times. Never empty."""
    return pl.concat(_best(frame, windows) for _, frame in of_each(swept))


def _best(swept: pl.DataFrame, windows: list[Labelled] | None) -> pl.DataFrame:
    if windows is None:
        return swept.filter(pl.col("trips") == swept["trips"][0])
    most = swept.filter(pl.col("caught") == pl.col("caught").max())
    return most.filter(pl.col("false_trips") == pl.col("false_trips").min())


def plain(
    moved: pl.DataFrame, runs: Sequence[Run], windows: list[Labelled] | None, swept: pl.DataFrame | None
) -> dict[str, Any]:
    """Plain values for JSON."""
    agg = ("avg", "count", "error_count", "p95")
    out: dict[str, Any] = {
        "transitions": [
            {name: value for name, value in row.items() if name not in agg} | {"agg": {name: row[name] for name in agg}}
            for row in moved.drop("ts").iter_rows(named=True)
        ],
        "summary": {
            "from_ms": min(run.first_ms for run in runs),
            "to_ms": max(run.last_ms for run in runs),
            "rules": [_plain_run(run, windows) for run in runs],
        },
    }
    if swept is not None:
        out["sweep"] = list(swept.iter_rows(named=True))
    return out


def _plain_run(run: Run, windows: list[Labelled] | None) -> dict[str, Any]:
    row = {"breaker": run.candidate.name, "from_ms": run.first_ms, "to_ms": run.last_ms} | _outcome(run, windows)
    if windows is None:
        return row
    shown, judged = [], run.judged()
    for i, window in enumerate(windows):
        first = run.tally.first_trips.get(i)
        latency_ms = None if first is None else run.tally.latency_of(i)
        told = {"start_ms": window.start_ms, "end_ms": window.end_ms, "first_trip_ms": first, "latency_ms": latency_ms}
        already_open = first is not None and first < window.start_ms
        shown.append(told | {"already_open": already_open, "has_samples": i in judged})
    return row | {"windows": shown, "caught_all": row["caught"] == len(judged) if judged else None}
