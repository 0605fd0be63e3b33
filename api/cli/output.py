"""Everything the commands print but tables of rich. Nothing in a name moves the cursor or makes a row of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import typer

from api.cli.narrow import narrowed, widths
from breaker_actors.clock import Clock, SystemClock
from breaker_actors.text.escaping import for_terminal


def put(line: str) -> None:
    """Prints one line of results."""
    typer.echo(for_terminal(line))


def note(line: str) -> None:
    """Prints one line beside the results, on stderr."""
    typer.echo(for_terminal(line), err=True)


SAY_EACH_S = 5.0
"""How often a long piece of work says how far it is."""


def said_now_and_then(clock: Clock | None = None) -> Callable[[str], None]:
    """Who hears often how far a piece of work is, and notes it every SAY_EACH_S with the seconds so far."""
    time = clock or SystemClock()
    begun_s = last_s = time.monotonic()

    def tell(words: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s >= SAY_EACH_S:
            last_s = now_s
            note(f"breakers: {words}, {now_s - begun_s:.0f} s")

    return tell


def put_json(value: Any) -> None:
    """Prints a value as one line of JSON, which is ASCII."""
    typer.echo(json.dumps(value))


def put_script(text: str) -> None:
    """Prints lines of ours that a shell is to read: nothing from outside may be in them unquoted."""
    typer.echo(text)


def put_rows(rows: Iterable[tuple[Any, ...]]) -> None:
    """Prints one line each, columns separated by tabs: for eyes and for `cut`. No cell can hold a tab or a line end."""
    for row in rows:
        typer.echo("\t".join(for_terminal(_text(cell)) for cell in row))


def _text(cell: Any) -> str:
    """As JSON spells it, but text as it is and nothing as a dash."""
    if cell is None:
        return "-"
    return json.dumps(cell) if isinstance(cell, bool | list | dict) else str(cell)


_headed: ContextVar[bool] = ContextVar("headed", default=True)


def leave_titles_out() -> Callable[[], None]:
    """Tables go without titles from now on, until what is returned is called."""
    before = _headed.set(False)
    return lambda: _headed.reset(before)


def put_table(
    titles: Sequence[str], rows: Iterable[tuple[Any, ...]], short: Collection[str] = (), least: Sequence[str] = ()
) -> None:
    """Prints rows under their titles: as a table on a terminal, elsewhere as `put_rows` does. `breakers --no-headers`
    leaves the titles out. `short` and `least`: what is shortened and left out on a narrow terminal, see `narrowed`."""
    headed = _headed.get()
    if not sys.stdout.isatty():
        put_rows([tuple(titles), *rows] if headed else rows)
        return
    from rich.console import Console
    from rich.table import Table

    from breaker_actors.text.escaping import for_rich

    console = Console()
    texts = [[_text(cell) for cell in row] for row in rows]
    shown, cells = narrowed(titles, texts, console.width, SystemClock().now_ms(), short, least)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_header=headed)
    for title, least_width in zip(shown, widths(shown, cells), strict=True):
        table.add_column(for_rich(title), overflow="fold", min_width=least_width)
    for row in cells:
        table.add_row(*map(for_rich, row))
    console.print(table)


def put_records(
    key: str,
    titles: Sequence[str],
    rows: Iterable[tuple[Any, ...]],
    as_json: bool,
    short: Collection[str] = (),
    least: Sequence[str] = (),
) -> None:
    """Prints rows as a table, or as a JSON object whose `key` lists them by their titles. Of a title in `_at` the
    value is a time; None is null in JSON and "never" in the table. `short` and `least` as `put_table` has them."""
    if as_json:
        put_json({key: [dict(zip(titles, row, strict=True)) for row in rows]})
        return
    times = [title.endswith("_at") for title in titles]
    put_table(
        [title.replace("_", " ") for title in titles],
        [tuple("never" if at and cell is None else cell for at, cell in zip(times, row, strict=True)) for row in rows],
        short,
        least,
    )
