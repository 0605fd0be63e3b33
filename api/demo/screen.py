"""What the demo shows: the series as it goes by, coloured by the breaker's state, the breakers, and their transitions.

`Screen` draws with rich in a terminal; where the output is no terminal it prints the transitions line by line.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from api.demo.series import BREAKERS, STEP_MS, Series

COLOUR = {"closed": "green", "open": "red", "half_open": "yellow"}
EIGHTHS = " ▁▂▃▄▅▆▇█"
ROWS, LOW_MS, HIGH_MS = 8, 20.0, 100.0
LOG_LINES = 10


@dataclass(slots=True)
class Board:
    """What is known so far of each breaker, and the state of the shown one at each point sent."""

    words: dict[str, str] = field(default_factory=dict)
    rates: dict[str, float | None] = field(default_factory=dict)
    values: dict[str, float | None] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)

    def word(self, name: str) -> str:
        return self.words.get(name, "closed")

    def rate(self, name: str) -> float:
        """The stream tells the rate in half_open only; the other states imply it."""
        rate = self.rates.get(name)
        return rate if rate is not None else float(self.word(name) == "closed")


class Screen:
    """Use as a context manager; `console` None shows nothing."""

    def __init__(self, series: Series, board: Board, console: Console | None) -> None:
        self._series = series
        self._board = board
        self._console = console
        self._log: deque[Text] = deque(maxlen=LOG_LINES)
        self._live: Live | None = None

    def __enter__(self) -> Screen:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._draw, console=self._console, refresh_per_second=8, redirect_stderr=False
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, name: str, before: str, now: str, point: int) -> None:
        """A transition as the stream told it."""
        line = Text.assemble(
            (self._series.time(point), "dim"),
            f"  {name:<17}",
            (before, COLOUR[before]),
            " -> ",
            (now, f"bold {COLOUR[now]}"),
        )
        self._log.append(line)
        if self._console is not None and self._live is None:
            self._console.print(line)

    def _draw(self) -> RenderableType:
        width = max(40, (self._console.width if self._console else 80) - 4)
        title = f"request latency, {self._series.time(0)[:10]} to {self._series.time(len(self._series) - 1)[:10]}"
        log = Group(*self._log) if self._log else Text("no transition yet", "dim")
        return Group(
            Panel(plot(self._series, self._board.passed, width), title=title, subtitle=left(self._series, self._board)),
            table(self._board),
            Panel(log, title="transitions, in the series' time"),
        )


def left(series: Series, board: Board) -> str:
    """How far the series has come, and how long the rest takes."""
    passed = len(board.passed)
    now = series.time(min(passed, len(series) - 1))
    return f"{now}, {(len(series) - passed) * STEP_MS / 1000:.0f} s left"


def plot(series: Series, passed: list[str], width: int) -> Text:
    """Bars of the highest value per column in the colour of the state then; below, the labelled failures."""
    edges = [column * len(series) // width for column in range(width + 1)]
    heights = [_height(float(series.batch.value[a:b].max())) if a < b <= len(passed) else 0 for a, b in pairwise(edges)]
    threshold_row = _height(float(BREAKERS[0]["threshold"])) // 8
    text = Text()
    for row in reversed(range(ROWS)):
        for column, height in enumerate(heights):
            filled = max(0, min(8, height - 8 * row))
            if filled:
                text.append(EIGHTHS[filled], COLOUR[_worst(passed[edges[column] : edges[column + 1]])])
            else:
                text.append("╌" if row == threshold_row else " ", "dim")
        text.append("\n")
    for a, b in pairwise(edges):
        labelled = any(a <= last and first < b for first, last in series.failures)
        text.append("▀" if labelled else " ", "magenta")
    text.append("\n")
    text.append("▀▀ labelled failure", "magenta")
    text.append(f"   ╌╌ threshold {BREAKERS[0]['threshold']} ms", "dim")
    for word, colour in COLOUR.items():
        text.append(f"   ██ {word}", colour)
    return text


def _height(value: float) -> int:
    share = (min(max(value, LOW_MS), HIGH_MS) - LOW_MS) / (HIGH_MS - LOW_MS)
    return max(1, round(share * ROWS * 8))


def _worst(words: list[str]) -> str:
    return next((word for word in ("open", "half_open") if word in words), "closed")


def table(board: Board) -> Table:
    """The breakers now."""
    shown = Table(expand=True)
    for heading in ("breaker", "rule", "value", "state", "allow rate"):
        shown.add_column(heading)
    for body in BREAKERS:
        name = body["name"]
        value = board.values.get(name)
        word = board.word(name)
        shown.add_row(
            name,
            f"{body['kind']} {body['op']} {body['threshold']}",
            "-" if value is None else f"{value:.1f}",
            Text(word, COLOUR[word]),
            f"{board.rate(name):.0%}",
        )
    return shown


def report(outcome: dict[str, Any]) -> RenderableType:
    """The summary at the end."""
    shown = Table(title="trips and recoveries, in the series' time", expand=True)
    for heading in ("breaker", "tripped", "where", "recovered"):
        shown.add_column(heading)
    for name, trips in outcome["trips"].items():
        for trip in trips:
            where = "outside any labelled failure"
            if trip["failure"] is not None:
                where = f"{'in' if trip['place'] == 'failure' else 'in the tail of'} failure {trip['failure']}"
            shown.add_row(name, trip["time"], where, trip["recovered"] or "not closed when the series ends")
    seen, failures = len(outcome["failures_seen"]), len(outcome["failures"])
    line = f"{outcome['shown']} saw {seen} of {failures} labelled failures, {outcome['false_trips']} false trips."
    others = [_seen(name, trips, failures) for name, trips in outcome["trips"].items() if name != outcome["shown"]]
    return Group(shown, Text(line, "bold green" if outcome["ok"] else "bold red"), Text("\n".join(others)))


def _seen(name: str, trips: list[dict[str, Any]], failures: int) -> str:
    seen = {trip["failure"] for trip in trips} - {None}
    return f"{name} saw {len(seen)} of {failures}."
