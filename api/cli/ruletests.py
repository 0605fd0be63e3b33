"""`breakers test` and `breakers record`: tests of rules, and an incident made into one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.errors import FAILED, one_line_errors
from api.cli.output import note, put, put_json
from api.cli.sample_options import check_folder
from api.cli.store_access import AsJson, DataDir, log_to_stderr, settings_of
from breaker_actors.text.counting import counted
from breaker_actors.text.escaping import for_rich

if TYPE_CHECKING:
    from rich.console import Console

    from pipelines.ruletests.mutation import Mutant
    from pipelines.ruletests.outcome import Outcome
    from pipelines.ruletests.run import TestRun

WIDTH = 200
"""Of tables that go into a file or a pipe."""
FAILURES_SHOWN, SURVIVORS_SHOWN = 100, 100

Tests = Annotated[list[Path], typer.Argument(help="Files of tests, or folders with *.test.yaml below them.")]
Junit = Annotated[Path | None, typer.Option(help="Write the outcome here as JUnit XML.")]
WithCoverage = Annotated[
    bool, typer.Option("--coverage", help="Show which moves of each rule's state machine the tests made.")
]
Mutate = Annotated[
    bool,
    typer.Option("--mutate", help="Move each number of the rules by 10 % both ways: a test must fail, else it fails."),
]
Match = Annotated[str, typer.Option("--match", help="Only tests with this text in their name.")]
Every = Annotated[bool, typer.Option("--verbose", "-v", help="Name the tests that passed, too.")]


def run_tests(
    files: Tests,
    junit: Junit = None,
    coverage: WithCoverage = False,
    mutate: Mutate = False,
    match: Match = "",
    verbose: Every = False,
    json: AsJson = False,
) -> None:
    """Run tests of rules: what breakers are to do over given samples. Needs no service. Exit code 1 when a test fails,
    or a mutant survives; 2 when a file can't be read."""
    with one_line_errors():
        from pipelines.ruletests.junit import junit_xml
        from pipelines.ruletests.run import test as run
        from pipelines.sources.atomic_files import replacing

        if junit is not None:
            check_folder(junit)
        done = run(files, mutate=mutate, matching=match)
        if junit is not None:
            with replacing(junit) as beside:
                beside.write_text(junit_xml(done.outcomes), encoding="utf-8")
        if json:
            put_json(done.to_dict(with_coverage=coverage))
        else:
            _show(done, coverage, verbose)
    if not done.passed:
        raise typer.Exit(FAILED)


Breakers = Annotated[
    list[str] | None, typer.Option("--breaker", help="Its name or id; may be given again. Default: the only one.")
]
From = Annotated[str, typer.Option("--from", help="When it begins: 2026-11-18T03:00:00Z.")]
To = Annotated[str | None, typer.Option("--to", help="When it ends; default: now.")]
Out = Annotated[Path, typer.Option(help="The file of tests; samples may lie beside it, in Parquet.")]


def record(
    begin: From,
    out: Out,
    end: To = None,
    breaker: Breakers = None,
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Make a test of what breakers of a service did: it stands alone, with the rule as it was in force, the samples,
    and the moves that happened. The service may go on meanwhile."""
    with one_line_errors():
        from pipelines.ruletests.recording import record as recording

        check_folder(out)
        log_to_stderr()
        made = recording(breaker or None, begin, end, settings=settings_of(data_dir, whole=True))
        files = made.write(out)
        for remark in made.remarks:
            note(f"breakers: {remark}")
        if json:
            moves = made.moves.drop("ts").to_dicts()
            put_json({"files": list(map(str, files)), "moves": moves, "warnings": made.remarks})
            return
        put(f"{len(made.parts)} test{'s' * (len(made.parts) != 1)}, {len(made.moves)} moves; it passes")
        for path in files:
            put(f"wrote {path}")


# -- what is shown ----------------------------------------------------------------------------------------------------


def _show(run: TestRun, coverage: bool, verbose: bool) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    for one in run.outcomes if verbose else ():
        if one.passed:
            console.print(f"[green]pass[/] {for_rich(_titled(one))}", soft_wrap=True)
    for one in run.failures[:FAILURES_SHOWN]:
        _show_failure(console, one)
    if len(run.failures) > FAILURES_SHOWN:
        console.print(f"... and {len(run.failures) - FAILURES_SHOWN} more; --json tells all")
    if coverage:
        _show_coverage(console, run)
    if run.mutants_tried is not None:
        _show_mutants(console, run)
    failed = len(run.failures)
    colour = "red" if failed else "green"
    tests, passed = counted(len(run.outcomes), "test"), len(run.outcomes) - failed
    console.print(f"[{colour}]{tests}: {passed} passed, {failed} failed[/]")


def _titled(one: Outcome) -> str:
    return f"{one.case.place} {one.case.name} ({one.breaker.name})"


def _show_failure(console: Console, one: Outcome) -> None:
    from rich.table import Table

    from pipelines.ruletests.words import TITLES, cells_of

    console.print(f"[red]FAIL[/] {for_rich(_titled(one))}", soft_wrap=True)
    console.print(for_rich(f"  rule at {one.breaker.place}"), soft_wrap=True)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in TITLES:
        right = title in ("value", "samples", "threshold")
        table.add_column(title, justify="right" if right else "left", overflow="fold")
    for row in one.rows:
        cells = [for_rich(cell) for cell in cells_of(one, row)]
        style = "red" if row.problem else "green"
        table.add_row(f"[{style}]{cells[0]}[/]", f"[{style}]{cells[1]}[/]", *cells[2:5], f"[red]{cells[5]}[/]")
    console.print(table)
    console.print()


def _show_coverage(console: Console, run: TestRun) -> None:
    from rich.table import Table

    edges = run.coverage
    table = Table(box=None, pad_edge=False)
    for title in ("breaker", "move", "reason", "tests", "times"):
        table.add_column(title, justify="right" if title in ("tests", "times") else "left", overflow="fold")
    for row in edges.iter_rows(named=True):
        style = "green" if row["times"] else "red"
        cells = (for_rich(str(row[name])) for name in ("breaker", "edge", "reason", "tests", "times"))
        table.add_row(*(f"[{style}]{cell}[/]" for cell in cells))
    console.print(table)
    taken, tested = int((edges["times"] > 0).sum()), {id(one.breaker) for one in run.outcomes}
    share = f"{taken / max(1, len(edges)):.0%}"
    console.print(f"coverage: {taken} of {len(edges)} moves ({share}), {len(tested)} of {len(run.breakers)} rules")
    untested = [one.name for one in run.breakers if id(one) not in tested]
    if untested:
        console.print(for_rich(f"without a test: {', '.join(untested)}"), soft_wrap=True)
    console.print()


def _show_mutants(console: Console, run: TestRun) -> None:
    survivors = [one for one in run.survivors if one.tested]
    for one in survivors[:SURVIVORS_SHOWN]:
        console.print(f"[red]survived[/] {for_rich(_mutant(one))}", soft_wrap=True)
    if len(survivors) > SURVIVORS_SHOWN:
        console.print(f"... and {len(survivors) - SURVIVORS_SHOWN} more; --json tells all")
    untried = list(dict.fromkeys(f"{one.breaker.place} {one.breaker.name}" for one in run.survivors if not one.tested))
    for place in untried[:SURVIVORS_SHOWN]:
        console.print(f"[red]no test that passes[/] {for_rich(place)}", soft_wrap=True)
    killed = len(run.mutants_tried or ()) - len(run.survivors)
    console.print(f"mutants: {killed} noticed by a test, {len(run.survivors)} survived")


def _mutant(one: Mutant) -> str:
    return f"{one.breaker.place} {one.breaker.name}: {one.field} {one.value:g} -> {one.moved:g}"
