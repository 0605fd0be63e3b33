"""`breakers suggest`: which threshold, and which window, history speaks for; as YAML, JSON or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.backtest import Grace, Memory, Report, Routers, Sort, Windows, time, told_later
from api.cli.errors import one_line_errors
from api.cli.output import note, put, put_json, said_now_and_then
from api.cli.sample_options import AsJson, Columns, TimeUnit, check_folder, renamed

if TYPE_CHECKING:
    from pipelines.suggest.suggestion import Suggestion

TRIPS_SHOWN = 20

Samples = Annotated[
    list[str],
    typer.Argument(help="Parquet, CSV or NDJSON, in order of time: files, patterns, folders, URLs.", metavar="SAMPLES"),
]
Rule = Annotated[
    Path | None,
    typer.Option("--rule", help="A breaker as JSON or YAML of which only the threshold is wanted."),
]
Metric = Annotated[str | None, typer.Option(help="Of which metric, where there is no rule and samples name several.")]
Budget = Annotated[float, typer.Option(min=0, help="Without --windows: how many incidents a week are borne.")]
Settings = Annotated[int, typer.Option(min=1, max=100_000, help="With --windows: how many settings are looked at.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        min=1, help="With --windows: how many seconds settings are looked for; then the best so far is taken."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the breakers here, as a file of rules: in JSON where it ends in .json, else in YAML."),
]


def suggest(
    samples: Samples,
    rule: Rule = None,
    metric: Metric = None,
    router: Routers = None,
    windows: Windows = None,
    grace_ms: Grace = 0,
    trips_a_week: Budget = 1.0,
    settings: Settings = 10_000,
    time_limit: TimeLimit = 600,
    column: Columns = None,
    sort: Sort = False,
    time_unit: TimeUnit = "ms",
    memory_mb: Memory = 1024,
    json: AsJson = False,
    out: Out = None,
    report: Report = None,
) -> None:
    """Suggest thresholds and windows from history, and print them as rules.

    With --windows: most labelled failures caught, fewest false trips, earliest, least time open, widest plateau.
    Without: no more trips than a budget allows. Ends with 1 where nothing can be suggested.
    """
    with one_line_errors():
        from pipelines.sources.atomic_files import replacing
        from pipelines.sources.files import COMMAND
        from pipelines.suggest.suggestion import suggest as run_suggest

        for path in filter(None, (out, report)):
            check_folder(path)
        taken: dict[str, Any] = {"rule": rule, "metric": metric, "routers": router or (), "windows": windows}
        taken |= {"columns": renamed(column), "sort": sort, "time_unit": time_unit, "memory_mb": memory_mb}
        with told_later():
            found = run_suggest(
                samples,
                grace_ms=grace_ms,
                trips_a_week=trips_a_week,
                settings=settings,
                time_limit_s=time_limit,
                progress=said_now_and_then(),
                words=COMMAND,
                **taken,
            )
        for remark in found.remarks:
            note(f"breakers: {remark}")
        if report is not None and found.rules:
            found.report(report)
        if out is not None and found.rules:
            with replacing(out) as path:
                path.write_text(found.json if out.suffix.lower() == ".json" else found.yaml, encoding="utf-8")
        if json:
            put_json(found.to_dict())
        else:
            _show(found, [path for path in (out, report) if path is not None and found.rules])
        if not found.rules:
            raise typer.Exit(1)


def _show(found: Suggestion, written: list[Path]) -> None:
    """The rules on stdout, so that they can go into a file; what speaks for them, and their trips, on stderr."""
    for line in found.why:
        note(line)
    for move in _trips(found)[:TRIPS_SHOWN]:
        note(move)
    if len(_trips(found)) > TRIPS_SHOWN:
        note(f"  ... and {len(_trips(found)) - TRIPS_SHOWN} more trips; --json tells all")
    for path in written:
        note(f"wrote {path}")
    if found.rules:
        for line in found.yaml.splitlines():
            put(line)


def _trips(found: Suggestion) -> list[str]:
    if found.run is None:
        return []
    moves = found.run.transitions.filter(curr="open", prev="closed").sort("ts_ms")
    rows = moves.select("breaker", "ts_ms", "value").iter_rows()
    return [f"  trip {time(at)} UTC, {breaker}, value {value:.6g}" for breaker, at, value in rows]
