"""`python -m tests.sim --seeds 2000 --jobs 2`, or `--seed 7 --trace` for one run (see `--help`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tests.sim.campaign import HIT_SHARE, Campaign, read, results, write
from tests.sim.faults import KINDS, excluded, share_of
from tests.sim.run import Result, run_safely, shrink

KEPT_EVERY = 200
"""Seeds between two writings of what a campaign came to."""

console = Console(soft_wrap=True, highlight=False)


def main(
    seed: Annotated[int | None, typer.Option(help="run just this seed")] = None,
    seeds: Annotated[int, typer.Option(help="how many seeds to run")] = 100,
    base: Annotated[int | None, typer.Option(help="the first seed; drawn when not given")] = None,
    jobs: Annotated[int, typer.Option(help="processes that run seeds")] = 1,
    without: Annotated[str, typer.Option(help="faults to leave out: crash, store_late, ...; separated by commas")] = "",
    trace: Annotated[bool, typer.Option(help="show the whole trace of --seed")] = False,
    calls: Annotated[bool, typer.Option(help="calls between processes in the trace, too")] = False,
    smaller: Annotated[bool, typer.Option("--shrink", help="leave out faults as long as --seed fails")] = False,
    stop: Annotated[bool, typer.Option(help="end with the first failure")] = False,
    kept: Annotated[
        Path | None, typer.Option(help="a file of what earlier parts came to: goes on where they ended")
    ] = None,
) -> None:
    """Runs the seeded simulation of the whole service."""
    words = tuple(word for word in without.split(",") if word)
    try:
        excluded(words)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if seed is not None:
        result = run_safely(seed, without=words, lines=1_000_000 if trace or calls else None, calls=calls)
        if smaller and result.failure is not None:
            result = shrink(result)
        _show(result)
        raise typer.Exit(result.failure is not None)
    first = int.from_bytes(os.urandom(4)) if base is None else base
    campaign = Campaign() if kept is None else read(kept)
    if kept is not None and campaign.seeds and base is None:
        raise typer.BadParameter("what is kept began with a seed of its own: give it as --base")
    _run(campaign, range(first + campaign.seeds, first + seeds), jobs, words, stop, kept)
    _summary(campaign, words)
    raise typer.Exit(bool(campaign.failed or campaign.never()))


def _show(result: Result) -> None:
    if result.failure is not None:
        console.print(result.message(len(result.lines)), markup=False)
        return
    for line in result.lines:
        console.print(line, markup=False)
    console.print(f"seed {result.seed} is fine: {result.events} events, {result.samples} samples, {result.digest}")


def _run(campaign: Campaign, seeds: range, jobs: int, words: tuple[str, ...], stop: bool, kept: Path | None) -> None:
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[failed]} failed"), console=console) as progress:
        task = progress.add_task(f"seeds from {seeds.start}", total=len(seeds), failed=0)
        for result in results(seeds, jobs, without=words):
            campaign.add(result)
            if kept is not None and campaign.seeds % KEPT_EVERY == 0:
                write(kept, campaign)
            progress.update(task, advance=1, failed=len(campaign.failed))
            if result.failure is not None:
                console.print(result.message(), markup=False)
                if stop:
                    break
    if kept is not None:
        write(kept, campaign)


def _summary(campaign: Campaign, words: tuple[str, ...]) -> None:
    n = max(1, campaign.seeds)
    console.print(
        f"{campaign.seeds} seeds, {len(campaign.failed)} failed; {campaign.cpu_s / n:.2f} s CPU and"
        f" {campaign.virtual_s / n:.0f} s of virtual time a seed, {campaign.events} events, {campaign.samples} samples"
    )
    if campaign.failed:
        console.print("failed:", *campaign.failed)
    if never := campaign.never():
        console.print("never met:", ", ".join(never))
    table = Table("fault", "seeds it had an effect in")
    for kind in KINDS:
        if kind not in excluded(words):
            share = campaign.share(kind)
            table.add_row(kind, f"{100 * share:.0f} %", style="red" if share < HIT_SHARE * share_of(kind) else None)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
