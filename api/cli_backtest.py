"""`breakers backtest`: what a rule would have done on recorded samples, as tables, JSON, a file of events or a page."""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli_errors import one_line_errors
from api.cli_samples import AsJson, Columns, check_folder, renamed
from api.cli_store import DataDir
from breaker_actors.errors import Invalid

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.backtest import Backtest
    from pipelines.rules import Candidate
    from pipelines.sources import Source
    from pipelines.streams import Progress, Run

MOVES_SHOWN, SETTINGS_SHOWN, RULES_SHOWN = 40, 12, 20
WIDTH = 200
"""Of tables that go into a file or a pipe."""
COLOUR = {"closed": "green", "open": "red", "half_open": "yellow"}

Rules = Annotated[
    list[Path] | None,
    typer.Option("--rule", help="A breaker, or a list of them, as JSON or YAML; may be given again."),
]
Samples = Annotated[
    list[str] | None,
    typer.Argument(
        help="Parquet, CSV or NDJSON files, or patterns, in order of time; with --from-service, a breaker.",
        metavar="SAMPLES",
    ),
]
FromService = Annotated[
    bool,
    typer.Option("--from-service", help="Take the samples that a breaker of the service got, by its name or id."),
]
Windows = Annotated[
    Path | None,
    typer.Option(help="Labelled failures: a JSON list of (start, end) pairs, or such a list per file name."),
]
Grace = Annotated[int, typer.Option(min=0, help="How long behind a labelled failure a trip still belongs to it.")]
Sweep = Annotated[
    str | None,
    typer.Option(help="Settings to try, every combination: threshold=100:500:25,window_ms=60000,300000."),
]
Sort = Annotated[bool, typer.Option("--sort", help="The samples are not in order of time: sort them first, on disk.")]
Memory = Annotated[int, typer.Option(help="What the process may take.")]
Out = Annotated[Path | None, typer.Option(help="Write the transitions here: .parquet, .csv or .ndjson.")]
Report = Annotated[Path | None, typer.Option(help="Write a page that shows it all here; it works offline.")]


def backtest(
    samples: Samples = None,
    rule: Rules = None,
    from_service: FromService = False,
    data_dir: DataDir = None,
    column: Columns = None,
    windows: Windows = None,
    grace_ms: Grace = 0,
    sweep: Sweep = None,
    sort: Sort = False,
    memory_mb: Memory = 1024,
    json: AsJson = False,
    out: Out = None,
    report: Report = None,
) -> None:
    """Move breakers over recorded samples and show their transitions, time in each state and trips.

    With --from-service, the breaker's own rule is taken when no other is given.
    """
    with one_line_errors():
        from pipelines.backtest import backtest as run_backtest
        from pipelines.files import replacing
        from pipelines.rules import parse_sweep

        for path in filter(None, (out, report)):
            check_folder(path)
        write = None if out is None else writer_for(out)
        grid = None if sweep is None else parse_sweep(sweep)
        if from_service:
            source, tried, most = _from_service(samples or [], rule, data_dir, column, sort)
        else:
            source, tried, most = _from_files(samples, rule, column, sort, memory_mb)
        for one in tried:
            if one.ignored:
                _say(f"{one.name}: ignored {', '.join(one.ignored)}")
        limits: dict[str, Any] = {"memory_mb": memory_mb, "window_samples_max": most}
        with progress(source, "reading") as tell:
            run = run_backtest(tried, source, windows=windows, grace_ms=grace_ms, sweep=grid, progress=tell, **limits)
        for remark in getattr(source, "remarks", ()):
            _say(remark)
        page = None if report is None else _page(run, source, limits)
        with ExitStack() as files:  # what fails leaves none of them behind
            if out is not None and write is not None:
                write(run, files.enter_context(replacing(out)))
            if report is not None and page is not None:
                files.enter_context(replacing(report)).write_text(page, encoding="utf-8")
        if json:
            typer.echo(jsons.dumps(run.to_dict()))
        else:
            _show(run, source, [path for path in (out, report) if path is not None])


Taken = tuple["Source", list["Candidate"], int]
"""Samples, breakers, and how many samples a window holds at most."""


def _from_files(
    samples: list[str] | None, rule: list[Path] | None, column: list[str] | None, sort: bool, memory_mb: int
) -> Taken:
    from breaker_actors.core.machine import SAMPLES_MAX
    from pipelines.backtest import source_of
    from pipelines.rules import candidates

    if not samples or not rule:
        raise Invalid("give a --rule and files of samples, or --from-service and a breaker")
    tried = candidates(list(rule))
    return source_of(samples, renamed(column), sort=sort, memory_mb=memory_mb), tried, SAMPLES_MAX


def _from_service(
    named: list[str], rule: list[Path] | None, data_dir: Path | None, column: list[str] | None, sort: bool
) -> Taken:
    from breaker_actors.settings import load_settings
    from pipelines.recorded import recorded
    from pipelines.rules import candidates

    if column or sort:
        raise Invalid("--column and --sort are for files; a service's samples are in order")
    if len(named) > 1:
        raise Invalid("--from-service takes the samples of one breaker")
    log = recorded(named[0] if named else None, load_settings(data_dir=data_dir))
    return log, candidates(list(rule) if rule else log.breaker), log.window_samples_max


def _say(line: str) -> None:
    typer.echo(f"breakers: {line}", err=True)


def writer_for(path: Path) -> Any:
    """What writes the transitions in the format of the path's suffix."""
    methods = {".parquet": "write_parquet", ".csv": "write_csv", ".ndjson": "write_ndjson"}
    method = methods.get(path.suffix.lower())
    if method is None:
        raise Invalid(f"{path}: transitions are written as {', '.join(methods)}")

    def write(run: Backtest, path: Path) -> None:
        getattr(run.transitions, method)(path)

    return write


def _page(run: Backtest, source: Source, limits: dict[str, Any]) -> str:
    from pipelines.report import page_of

    with progress(source, "drawing") as tell:
        return page_of(run, source, progress=tell, **limits)


@contextmanager
def progress(source: Source, words: str) -> Iterator[Progress | None]:
    """A bar on stderr while work goes on, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(words, total=source.rows())
        yield lambda done: bar.update(task, completed=done)


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(run: Backtest, source: Source, written: list[Path]) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    first, last = min(one.first_ms for one in run.given), max(one.last_ms for one in run.given)
    names = ", ".join(source.names[:3]) + (f" and {len(source.names) - 3} more" if len(source.names) > 3 else "")
    console.print(f"{names}: {time(first)} to {time(last)} UTC, {span(last - first)}", highlight=False, soft_wrap=True)
    for one in run.given[:RULES_SHOWN]:
        _show_moves(console, one)
        _show_outcome(console, one, None if run.windows is None else len(run.windows))
    if len(run.given) > RULES_SHOWN:
        console.print(f"... and {len(run.given) - RULES_SHOWN} more rules; --json tells all", highlight=False)
    if run.windows is not None:
        _show_windows(console, run)
    if run.sweep is not None:
        _show_sweep(console, run)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def time(ms: int) -> str:
    """An instant, UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03}" if ms % 1000 else "")


def span(ms: int) -> str:
    """A duration in its two largest units."""
    if ms < 1000:
        return f"{ms} ms"
    parts = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)]
    at = next(i for i, (_, size) in enumerate(parts) if ms >= size)
    shown = []
    for unit, size in parts[at : at + 2]:
        count, ms = divmod(ms, size)
        shown += [f"{count} {unit}"] if count else []
    return " ".join(shown)


def figure(value: float | None) -> str:
    """Six digits of a number."""
    return "-" if value is None else f"{value:.6g}"


def _show_moves(console: Console, run: Run) -> None:
    from rich.table import Table

    from pipelines.results import moves

    made = moves(run)
    console.print(f"\n{run.candidate.name}" + ("" if made else ": no transition"), highlight=False, markup=False)
    if not made:
        return
    table = Table(box=None, pad_edge=False)
    for head in ("#", "time (UTC)", "move", "reason", "value"):
        table.add_column(head, justify="right" if head in ("#", "value") else "left", no_wrap=True)
    for move in made[:MOVES_SHOWN]:
        table.add_row(
            str(move.transition_seq),
            time(move.ts_ms),
            f"{move.prev} → [{COLOUR[move.curr]}]{move.curr}[/]",
            move.reason,
            figure(move.value),
        )
    console.print(table)
    if len(made) > MOVES_SHOWN:
        console.print(f"... and {len(made) - MOVES_SHOWN} more; --out writes them all", highlight=False)


def _show_outcome(console: Console, run: Run, windows: int | None) -> None:
    tally, whole = run.tally, max(1, run.last_ms - run.first_ms)
    stays = (f"{state} {span(spent)} ({spent / whole:.2%})" for state, spent in tally.time_in.items())
    console.print(", ".join(stays), highlight=False, soft_wrap=True)
    words = [f"{run.samples:,} samples", f"trips: {tally.trips}", f"recoveries: {tally.recoveries}"]
    if windows is not None:
        words += [f"labelled failures caught: {len(tally.latencies())} of {windows}", f"false: {tally.false_trips}"]
    if run.late:
        words.append(f"too late for the window: {run.late:,}")
    if run.truncated:
        words.append(f"left the window early: {run.truncated:,}")
    console.print(", ".join(words), highlight=False, soft_wrap=True)


def _show_windows(console: Console, run: Backtest) -> None:
    from rich.table import Table

    windows = run.windows or []
    table = Table(box=None, pad_edge=False)
    for head in ("labelled failure", "lasts", *(one.candidate.name for one in run.given[:RULES_SHOWN])):
        table.add_column(head)
    for i, window in enumerate(windows):
        found = (one.tally.first_trips.get(i) for one in run.given[:RULES_SHOWN])
        shown = ("[red]missed[/]" if at is None else f"trip after {span(at - window.start_ms)}" for at in found)
        table.add_row(time(window.start_ms), span(window.end_ms - window.start_ms), *shown)
    console.print()
    console.print(table)


def _show_sweep(console: Console, run: Backtest) -> None:
    from rich.table import Table

    swept, best = run.sweep, run.best()
    assert swept is not None
    assert best is not None
    left_out = ("samples", "late", "truncated", "transitions", "recoveries", "closed_ms", "half_open_ms", "windows")
    heads = [name for name in swept.columns if name not in left_out]
    table = Table(box=None, pad_edge=False)
    shown = {"open_ms": "open", "latency_ms": "latency", "false_trips": "false"}
    for head in heads:
        table.add_column(shown.get(head, head), justify="right", no_wrap=True)
    for row in swept.head(SETTINGS_SHOWN).iter_rows(named=True):
        table.add_row(*(_cell(name, row[name]) for name in heads))
    console.print()
    console.print(table)
    if len(swept) > SETTINGS_SHOWN:
        console.print(f"... and {len(swept) - SETTINGS_SHOWN} more settings; --json tells all", highlight=False)
    console.print(verdict(run, best.to_dicts(), heads[: heads.index("trips")]), highlight=False, soft_wrap=True)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("open_ms", "latency_ms"):
        return span(int(value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def verdict(run: Backtest, best: list[dict[str, Any]], fields: list[str]) -> str:
    """Which settings are best, in a sentence."""
    settings = [", ".join(f"{name}={_cell(name, row[name])}" for name in fields) for row in best[:SETTINGS_SHOWN]]
    more = f" and {len(best) - SETTINGS_SHOWN} more" if len(best) > SETTINGS_SHOWN else ""
    if run.windows is None:
        return f"fewest trips ({best[0]['trips']}): {'; '.join(settings)}{more}"
    if not best:
        return f"no setting catches all {len(run.windows)} labelled failures"
    false = best[0]["false_trips"]
    return f"all {len(run.windows)} labelled failures with fewest false trips ({false}): {'; '.join(settings)}{more}"
