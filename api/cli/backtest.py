"""`breakers backtest`: what a rule would have done on recorded samples, as tables, JSON, a file of events or a page."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.errors import one_line_errors
from api.cli.output import note, put_json
from api.cli.sample_options import AsJson, Columns, TimeUnit, check_folder, renamed
from api.cli.store_access import DataDir, log_to_stderr, settings_of
from breaker_actors.clock import moment
from breaker_actors.errors import Invalid
from breaker_actors.text.escaping import for_rich

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console

    from pipelines.backtest import Backtest
    from pipelines.candidates import Candidate
    from pipelines.replay.run import Progress, Run
    from pipelines.replay.scoring import Labelled
    from pipelines.sources.files import Source

MOVES_SHOWN, SETTINGS_SHOWN, RULES_SHOWN = 40, 12, 20
UNLABELLED_SHOWN = 3
"""Settings that the last line names where nothing says which are right."""
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
        help="Parquet, CSV or NDJSON, in order of time: files, patterns, folders, URLs; --from-service: a breaker.",
        metavar="SAMPLES",
    ),
]
FromService = Annotated[
    bool,
    typer.Option("--from-service", help="Take the samples that a breaker of the service got, by its name or id."),
]
Routers = Annotated[
    list[str] | None,
    typer.Option("--router", help="Take the samples of this router alone, as they name it; may be given again."),
]
Windows = Annotated[
    Path | None,
    typer.Option(help="Labelled failures: a JSON list of (start, end) pairs, or such a list per file name."),
]
Grace = Annotated[
    int, typer.Option(min=0, help="How long behind a labelled failure an incident may begin that belongs to it.")
]
Sweep = Annotated[
    str | None,
    typer.Option(help="Settings to try, every combination: threshold=100:500:25,window=1m,5m."),
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
    router: Routers = None,
    windows: Windows = None,
    grace_ms: Grace = 0,
    sweep: Sweep = None,
    sort: Sort = False,
    time_unit: TimeUnit = "ms",
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
        from pipelines.candidates import parse_sweep
        from pipelines.sources.atomic_files import replacing

        for path in filter(None, (out, report)):
            check_folder(path)
        write = None if out is None else writer_for(out)
        grid = None if sweep is None else parse_sweep(sweep)
        if from_service:
            source, tried, most = _from_service(samples or [], rule, data_dir, column or router, sort)
        else:
            options = {"sort": sort, "time_unit": time_unit, "memory_mb": memory_mb}
            source, tried, most = _from_files(samples, rule, renamed(column), **options)
        limits: dict[str, Any] = {"memory_mb": memory_mb, "window_samples_max": most}
        taken: dict[str, Any] = {"routers": router or (), "windows": windows, "grace_ms": grace_ms, "sweep": grid}
        with progress(source, "reading") as tell, told_later():
            run = run_backtest(tried, source, progress=tell, **taken, **limits)
        for remark in (*getattr(source, "remarks", ()), *run.remarks):
            _say(remark)
        page = None if report is None else _page(run, source, limits)
        with ExitStack() as files:  # what fails leaves none of them behind
            if out is not None and write is not None:
                write(run, files.enter_context(replacing(out)))
            if report is not None and page is not None:
                files.enter_context(replacing(report)).write_text(page, encoding="utf-8")
        if json:
            remarks = {"warnings": [*getattr(source, "remarks", ()), *run.remarks]}
            put_json(run.to_dict() | remarks | _passed_over(source))
        else:
            _show(run, source, [path for path in (out, report) if path is not None])


Taken = tuple["Source", list["Candidate"], int]
"""Samples, breakers, and how many samples a window holds at most."""


def _from_files(samples: list[str] | None, rule: list[Path] | None, columns: dict[str, str], **options: Any) -> Taken:
    from breaker_actors.core.machine import SAMPLES_MAX
    from pipelines.backtest import source_of
    from pipelines.candidates import candidates
    from pipelines.sources.files import COMMAND

    if not samples and not rule:
        raise Invalid("give a --rule and files of samples, or --from-service and a breaker")
    if not samples:
        raise Invalid("give files of samples")
    if not rule:
        raise Invalid("give a --rule; --from-service takes a breaker's own")
    tried = candidates(list(rule))
    return source_of(samples, columns, words=COMMAND, **options), tried, SAMPLES_MAX


def _from_service(
    named: list[str], rule: list[Path] | None, data_dir: Path | None, column: list[str] | None, sort: bool
) -> Taken:
    from pipelines.candidates import candidates
    from pipelines.recorded import recorded

    if column or sort:
        raise Invalid("--column, --router and --sort are for files; a service's samples are in order")
    if len(named) > 1:
        raise Invalid("--from-service takes the samples of one breaker")
    log_to_stderr()
    log = recorded(named[0] if named else None, settings_of(data_dir, whole=True))
    return log, candidates(list(rule) if rule else log.breaker), log.window_samples_max


def _passed_over(source: Source) -> dict[str, Any]:
    """Of a service's samples: which records could not be read."""
    passed = getattr(source, "passed_over", None)
    return {} if passed is None else {"passed_over": passed}


def _say(line: str) -> None:
    note(f"breakers: {line}")


def writer_for(path: Path) -> Any:
    """What writes the transitions in the format of the path's suffix."""
    from pipelines.sources.atomic_files import WRITERS

    method = WRITERS.get(path.suffix.lower())
    if method is None:
        raise Invalid(f"{path}: transitions are written as {', '.join(WRITERS)}")

    def write(run: Backtest, path: Path) -> None:
        method(run.transitions, path)

    return write


@contextmanager
def told_later() -> Iterator[None]:
    """Remarks are not Python's warnings: the command prints them itself."""
    from pipelines.backtest import BacktestWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BacktestWarning)
        yield


def _page(run: Backtest, source: Source, limits: dict[str, Any]) -> str:
    from pipelines.report.page import page_of

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

    from pipelines.replay.results import titled

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    first, last = min(one.first_ms for one in run.given), max(one.last_ms for one in run.given)
    head = f"{titled(source)}: {time(first)} to {time(last)} UTC, {span(last - first)}"
    console.print(for_rich(head), soft_wrap=True)
    for one in run.given[:RULES_SHOWN]:
        _show_moves(console, one)
        _show_outcome(console, one, None if run.windows is None else len(one.judged()))
    if len(run.given) > RULES_SHOWN:
        console.print(f"... and {len(run.given) - RULES_SHOWN} more rules; --json tells all", highlight=False)
    if run.windows is not None:
        _show_windows(console, run)
    if run.sweep is not None:
        _show_sweep(console, run)
    for path in written:
        console.print(for_rich(f"wrote {path}"), soft_wrap=True)


def time(ms: int) -> str:
    """An instant, UTC."""
    return moment(ms).strftime("%Y-%m-%d %H:%M:%S") + (f".{ms % 1000:03}" if ms % 1000 else "")


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

    from pipelines.replay.results import cause, moves

    made = moves(run)
    console.print()
    console.print(for_rich(run.candidate.name + ("" if made else ": no transition")))
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
            for_rich(cause(move)),
            figure(move.value),
        )
    console.print(table)
    if len(made) > MOVES_SHOWN:
        console.print(f"... and {len(made) - MOVES_SHOWN} more; --out writes them all", highlight=False)


def _show_outcome(console: Console, run: Run, windows: int | None) -> None:
    tally, whole = run.tally, max(1, run.last_ms - run.first_ms)
    stays = (f"{state} {span(spent)} ({spent / whole:.2%})" for state, spent in tally.time_in.items())
    console.print(", ".join(stays), highlight=False, soft_wrap=True)
    words = [f"{run.samples:,} samples", f"trips: {tally.trips}", f"incidents: {tally.incidents}"]
    words.append(f"recoveries: {tally.recoveries}")
    if tally.controlled:
        words.append(f"callers saw trips: {tally.shown_trips}, open {span(tally.shown_in['open'])}")
    if windows is not None:
        words += [f"labelled failures caught: {len(tally.latencies())} of {windows}", f"false: {tally.false_trips}"]
    if run.late:
        words.append(f"too late to count (older than the window, or from before its state began): {run.late:,}")
    if run.truncated:
        words.append(f"left the window early: {run.truncated:,}")
    console.print(", ".join(words), highlight=False, soft_wrap=True)


def _show_windows(console: Console, run: Backtest) -> None:
    from rich.table import Table

    windows = run.windows or []
    table = Table(box=None, pad_edge=False)
    for head in ("labelled failure", "lasts", *(one.candidate.name for one in run.given[:RULES_SHOWN])):
        table.add_column(for_rich(head))
    for i, window in enumerate(windows):
        shown = (_found(one, i, window) for one in run.given[:RULES_SHOWN])
        table.add_row(time(window.start_ms), span(window.end_ms - window.start_ms), *shown)
    console.print()
    console.print(table)


def _found(run: Run, number: int, window: Labelled) -> str:
    at = run.tally.first_trips.get(number)
    if at is not None:
        return "open already" if at < window.start_ms else f"trip after {span(at - window.start_ms)}"
    return "[red]missed[/]" if number in run.judged() else "[dim]no samples[/]"


def _show_sweep(console: Console, run: Backtest) -> None:
    """A ranking for each rule: what one rule misses is nothing to the others."""
    from pipelines.replay.results import of_each

    best = run.best()
    assert run.sweep is not None
    assert best is not None
    for (name, swept), (_, winners) in zip(of_each(run.sweep), of_each(best), strict=True):
        console.print()
        if name:
            console.print(for_rich(name), style="bold", soft_wrap=True)
        _show_ranking(console, run, swept, winners)


def _show_ranking(console: Console, run: Backtest, swept: pl.DataFrame, best: pl.DataFrame) -> None:
    from rich.table import Table

    left_out = {"samples", "late", "truncated", "transitions", "incidents", "recoveries", "closed_ms", "half_open_ms"}
    left_out |= {"windows", "breaker", "shown_trips", "shown_closed_ms", "shown_half_open_ms", "shown_open_ms"}
    heads = [name for name in swept.columns if name not in left_out]
    table = Table(box=None, pad_edge=False)
    shown = {"open_ms": "open", "latency_ms": "caught after", "false_trips": "false"}
    for head in heads:
        table.add_column(for_rich(shown.get(head, head)), justify="right", no_wrap=True)
    for row in swept.head(SETTINGS_SHOWN).iter_rows(named=True):
        table.add_row(*(for_rich(_cell(name, row[name])) for name in heads))
    console.print(table)
    if len(swept) > SETTINGS_SHOWN:
        console.print(f"... and {len(swept) - SETTINGS_SHOWN} more settings; --json tells all", highlight=False)
    console.print(for_rich(verdict(run, best.to_dicts(), heads[: heads.index("trips")])), soft_wrap=True)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name in ("open_ms", "latency_ms"):
        return span(int(value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def verdict(run: Backtest, best: list[dict[str, Any]], fields: list[str]) -> str:
    """Which settings are best, in a sentence."""
    most = SETTINGS_SHOWN if run.windows is not None else UNLABELLED_SHOWN
    settings = [", ".join(f"{name}={_cell(name, row[name])}" for name in fields) for row in best[:most]]
    more = f" and {len(best) - most} more" if len(best) > most else ""
    if run.windows is None:
        return _without_labels(best[0]["trips"], f"{'; '.join(settings)}{more}")
    false, caught, windows = (best[0][name] for name in ("false_trips", "caught", "windows"))
    if not windows:
        return "no labelled failure has samples, so nothing says which setting is best"
    if not caught:
        return f"no setting catches any of the {windows} labelled failures"
    if caught < windows:
        told = f"no setting catches all {windows} labelled failures; most ({caught}) with fewest false trips ({false})"
        return f"{told}: {'; '.join(settings)}{more}"
    return f"all {windows} labelled failures with fewest false trips ({false}): {'; '.join(settings)}{more}"


def _without_labels(trips: int, settings: str) -> str:
    """Fewer trips are no better where nothing says which are right."""
    if not trips:
        return "no setting ever trips; --windows, labelled failures, says which setting is best"
    return f"of those that trip, fewest times ({trips}): {settings}; --windows, labelled failures, says which is best"
