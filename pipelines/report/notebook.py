"""A backtest as a notebook shows it: a line of what was tried, and its tables, cut where they are long."""

from __future__ import annotations

import polars as pl

from breaker_actors.text.escaping import for_html, for_line
from pipelines.replay.results import titled
from pipelines.report.page import Outcome
from pipelines.sources.files import Source

ROWS_MAX = 12


def html_of(run: Outcome, source: Source | None, remarks: list[str], summary: pl.DataFrame, moved: pl.DataFrame) -> str:
    """Markup with no script and no foreign request; names in it are text."""
    what = f"{len(run.given)} rule{'s' * (len(run.given) != 1)} on {'samples' if source is None else titled(source)}"
    parts = [f"<p><b>Backtest</b>: {_text(what)}; <code>run.report(path)</code> writes the page with charts</p>"]
    parts += [f"<p>{_text(remark)}</p>" for remark in remarks]
    frames = [("summary", summary), ("transitions", moved), ("sweep, the best first", run.sweep)]
    for name, frame in frames:
        if frame is not None:
            parts.append(f"<p>{name}</p>{_table(frame)}")
    return "".join(parts)


def _table(frame: pl.DataFrame) -> str:
    shown = frame.drop([name for name in ("ts_ms", "from_ms", "to_ms") if name in frame.columns])
    heads = "".join(f"<th>{_text(name)}</th>" for name in shown.columns)
    rows = ("".join(f"<td>{_text(_cell(value))}</td>" for value in row) for row in shown.head(ROWS_MAX).iter_rows())
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    more = f"<p>... and {len(frame) - ROWS_MAX} more rows</p>" if len(frame) > ROWS_MAX else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _text(text: str) -> str:
    return for_html(for_line(text))
