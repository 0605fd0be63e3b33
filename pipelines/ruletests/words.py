"""A failure in words: expected and got side by side, with the figures at each instant."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.ruletests.expectations import Expected, Got, shown
from pipelines.ruletests.outcome import Outcome, Row

TITLES = ("expected", "got", "value", "samples", "threshold", "")


def cells_of(one: Outcome, row: Row) -> tuple[str, ...]:
    """What is told of a row, under TITLES; the last says what is wrong."""
    sides = (_side(one, row.expected), _side(one, row.got))
    return (*sides, shown(row.value), shown(row.count), one.threshold, row.problem)


def _side(one: Outcome, side: Expected | Got | None) -> str:
    if side is None:
        return "-"
    told = side.words.endswith("half_open") or side.words.startswith("ramp")
    rate = f" {side.rate:g}" if told and side.rate is not None and " " in side.words else ""
    return f"{one.case.time(side.at_ms)}  {side.words}{rate}"


def lines_of(one: Outcome) -> list[str]:
    """The rows of a failure as plain text, in columns."""
    rows = [TITLES, *(cells_of(one, row) for row in one.rows)]
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
