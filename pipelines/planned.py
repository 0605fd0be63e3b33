"""What changed rules would have done on the samples that a service has, beside what the breakers did."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from breaker_actors.clock import rfc3339
from breaker_actors.core.model import Rule
from breaker_actors.errors import Invalid, LogDamaged, NotFound, Unavailable
from breaker_actors.settings import Settings
from breaker_actors.telemetry import logs
from pipelines.backtest import Backtest, BacktestWarning, backtest
from pipelines.candidates import Candidate
from pipelines.recorded import Recorded, of_breaker, of_router
from pipelines.report.page import page_of
from pipelines.sources.atomic_files import replacing

Consequence = tuple[dict[str, Any], str]
APART_SAMPLES = 5_000_000
"""Some seconds of work; a process takes one until it begins."""


class Changed(NamedTuple):
    """A breaker of the service, and its rule as files want it; or one that is to be made, on a router that is there."""

    name: str
    breaker_id: str | None
    rule: Rule
    router_id: str = ""


def consequences(
    changed: Sequence[Changed],
    project_id: str,
    settings: Settings,
    span_ms: int,
    report: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """For each breaker a row: breaker, trips_before and trips_after, first_ms (of the first trip under the new rule),
    open_before_ms and open_after_ms, samples, and `told`, the same as a sentence; of one without samples `told` alone.
    One that is to be made has nothing before: None.
    A process of ours reads one breaker's samples at a time, and of them a chunk; where there are many there is one for
    each processor. `report`: writes a page of each there, beside one another where there are several. `progress` hears
    how many are done. Raises Invalid."""
    look = partial(_consequence, project_id, settings, span_ms, report is not None)
    rows, pages = list[dict[str, Any]](), list[str]()
    for done, (row, page) in enumerate(_each(look, changed), 1):
        rows.append(row)
        pages += [page] if page else []
        progress(done)
    if report is not None:
        for n, page in enumerate(pages, 1):
            path = report if len(pages) == 1 else report.with_stem(f"{report.stem}-{n}")
            with replacing(path) as beside:
                beside.write_text(page, encoding="utf-8")
    return rows


def _each(look: Callable[[Changed], Consequence], changed: Sequence[Changed]) -> Iterator[Consequence]:
    """Of each in their order. Once there was one of so many samples that the others are worth the start of processes,
    those are looked at beside one another."""
    for n, one in enumerate(changed, 1):
        yield (found := look(one))
        left = changed[n:]
        if found[0].get("samples", 0) * len(left) > APART_SAMPLES:
            workers = min(len(left), _processors())
            log_to_stderr = partial(logs.configure, "command", level=logging.WARNING)  # as this process does
            try:
                with ProcessPoolExecutor(workers, get_context("spawn"), log_to_stderr) as pool:
                    yield from pool.map(look, left)
            except BrokenProcessPool:
                raise Unavailable("a process that tried rules has died: it needs more memory, or fewer rules") from None
            return


def _processors() -> int:
    """Those that this process may use, where the system tells."""
    mine = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if mine is None else len(mine(0))


def _consequence(project_id: str, settings: Settings, span_ms: int, drawn: bool, one: Changed) -> Consequence:
    """Its row, and its page where it is `drawn`."""
    try:
        run, source = _replayed(one, project_id, settings, span_ms)
    except (Invalid, LogDamaged, NotFound) as error:
        return {"breaker": one.name, "told": f"no samples to try it on: {error}"}, ""
    return _row(one.name, run), page_of(run, source) if drawn else ""


def _replayed(one: Changed, project_id: str, settings: Settings, span_ms: int) -> tuple[Backtest, Recorded]:
    """The breaker itself, where there is one, and as it is planned."""
    if one.breaker_id is None:
        source, tried = of_router(project_id, one.router_id, one.rule, settings, span_ms), []
    else:
        source = of_breaker(project_id, one.breaker_id, settings, span_ms)
        if source.row.rule.metric != one.rule.metric:
            raise Invalid(f"it got those of {source.row.rule.metric}, not of {one.rule.metric}")
        tried = [source.breaker]
    tried.append(Candidate(f"{one.name} (planned)", one.rule, source.breaker.router_ids))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BacktestWarning)
        return backtest(tried, source, window_samples_max=source.window_samples_max), source


def _row(name: str, run: Backtest) -> dict[str, Any]:
    after = run.given[-1]
    trips = [one.tally.trips for one in run.given]
    opened = [one.tally.time_in.get("open", 0) for one in run.given]
    first = next((ms for ms, state in after.tally.course if state == "open"), None)
    told = f"{'tripped' if trips[1:] else 'would have tripped'} {' -> '.join(map(str, trips))} times"
    told += "" if first is None else f", first {rfc3339(first)}"
    told += f", open {' -> '.join(map(_minutes, opened))}, {after.samples:,} samples"
    return {
        "breaker": name,
        "trips_before": trips[0] if trips[1:] else None,
        "trips_after": trips[-1],
        "first_ms": first,
        "open_before_ms": opened[0] if opened[1:] else None,
        "open_after_ms": opened[-1],
        "samples": after.samples,
        "told": told,
    }


def _minutes(ms: int) -> str:
    return f"{ms / 60_000:.3g} min"
