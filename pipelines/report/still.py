"""What a page shows where no script runs: of each rule its numbers, a still picture and its incidents, and the best
settings of a sweep."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from breaker_actors.clock import moment
from breaker_actors.text.counting import counted
from breaker_actors.text.escaping import for_html

WIDTH, HEIGHT, ROWS_MAX = 1000, 160, 20
COLUMNS = 250
"""Samples and stays are drawn in so many columns."""


def still_of(content: dict[str, Any]) -> str:
    """Markup without a script; names in it are text."""
    parts = ["<p>Charts can be zoomed where scripts run.</p>"]
    for rule in content["rules"]:
        false = "" if rule["false_trips"] is None else f" ({rule['false_trips']} of them false)"
        trips = f"{counted(rule['incidents_in_all'], 'incident')}{false}, {counted(rule['trips'], 'trip')}"
        parts.append(f"<h2>{for_html(rule['name'])}</h2><p>{for_html(rule['rule'])}</p>")
        parts.append(f"<p>{_time(rule['from'])} to {_time(rule['to'])}: {trips}</p>{_picture(rule)}")
        rows = [[_time(one[0]), _time(one[1]) if one[2] else "-", one[3], one[4]] for one in rule["incidents"]]
        parts.append(_table(["incident from", "to", "trips", "open_ms"], rows) if rows else "")
    if content["sweep"]:
        parts.append("<h2>Sweep</h2>" + _table(content["sweep"]["names"], content["sweep"]["rows"]))
    return "".join(parts)


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    shown = ["".join(f"<td>{for_html('-' if cell is None else str(cell))}" for cell in row) for row in rows[:ROWS_MAX]]
    more = f"<p>{len(rows) - ROWS_MAX} more not shown.</p>" if len(rows) > ROWS_MAX else ""
    head = "".join(f"<th>{for_html(name)}" for name in heads)
    return f'<div class="scroll"><table><tr>{head}{"".join(f"<tr>{row}" for row in shown)}</table></div>{more}'


def _picture(rule: dict[str, Any]) -> str:
    """Samples from lowest to highest, and open and half_open behind them."""
    steps, low, high = rule["series"]
    if not steps:
        return ""
    first, span = rule["from"], max(1, rule["to"] - rule["from"])
    bottom, top = float(min(low)), float(max(high))
    columns: dict[int, tuple[float, float]] = {}
    for at, least, most in zip(accumulate(steps), low, high, strict=True):
        column = (at - first) * COLUMNS // span
        before = columns.get(column, (least, most))
        columns[column] = min(before[0], least), max(before[1], most)

    def y(value: float) -> int:
        return round(HEIGHT - HEIGHT * (value - bottom) / ((top - bottom) or 1))

    wide = WIDTH // COLUMNS
    bars = "".join(f"M{column * wide} {y(least)}V{y(most) - 1}" for column, (least, most) in columns.items())
    path = f'<path d="{bars}" fill="none" stroke="var(--series)" stroke-width="{wide - 1}"/>'
    states = "".join(f'<path d="{_shade(rule, word)}" fill="var(--{word})" opacity=".4"/>' for word in ("half", "open"))
    words = f"samples from {bottom:g} to {top:g}"
    box = f'viewBox="0 -2 {WIDTH} {HEIGHT + 4}" role="img" aria-label="{words}"'
    return f'<svg {box}>{states}{path}</svg><p class="dim">{words}; shaded: open, half_open</p>'


def _shade(rule: dict[str, Any], word: str) -> str:
    """The columns in which the breaker was in a state, at least for a moment."""
    first, span = rule["from"], max(1, rule["to"] - rule["from"])
    drawn: set[int] = set()
    for state, from_ms, to_ms, _ in rule["stays"]:
        if state.startswith(word):
            drawn.update(range((from_ms - first) * COLUMNS // span, (to_ms - first) * COLUMNS // span + 1))
    wide = WIDTH // COLUMNS
    return "".join(f"M{column * wide} 0h{wide}v{HEIGHT}h-{wide}z" for column in sorted(drawn))


def _time(ms: int) -> str:
    return moment(ms).strftime("%Y-%m-%d %H:%M:%S")
