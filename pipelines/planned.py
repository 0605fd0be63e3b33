"""What changed rules would have done on the samples that a service has, beside what the breakers did."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from breaker_actors.clock import rfc3339
from breaker_actors.core.model import Rule
from breaker_actors.errors import Invalid, LogDamaged, NotFound, Unavailable
from breaker_actors.settings import Settings
from breaker_actors.telemetry import logs
from breaker_actors.text.counting import counted
from pipelines.backtest import Backtest, BacktestWarning, backtest
from pipelines.candidates import Candidate
from pipelines.recorded import Asked, Recorded, gathered, of_breaker, of_router
from pipelines.replay.run import NoSample, Run
from pipelines.replay.scoring import Labelled
from pipelines.report.page import pages_of
from pipelines.sources.atomic_files import replacing
from pipelines.sources.together import Alike, Together

Consequence = tuple[dict[str, Any], str]
Found = tuple[int, Consequence]
"""With the number of what was changed."""
NOTHING = "no samples to try it on, in its log or the history store"
REACHED = 0.9
"""Of the span that is asked for; where samples reach back less far, it is told."""
APART_SAMPLES = 5_000_000
"""Some seconds of work; a process takes one until it begins."""


class Changed(NamedTuple):
    """A breaker of the service, and its rule as files want it; or one that is to be made, on a router that is there."""

    name: str
    breaker_id: str | None
    rule: Rule
    router_id: str = ""


class Work(NamedTuple):
    """What one process looks at in one go: changed rules by their numbers, whose samples are `alike`; or just one."""

    alike: Alike | None
    rules: tuple[tuple[int, Changed], ...]


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
    What breakers got alike is read once for all of them. A process of ours holds a chunk of one reading; where there is
    much to read there is one for each processor. `report`: writes a page of each there, beside one another where there
    are several; what they show is read a second time. `progress` hears how many are done. Raises Invalid."""
    look = partial(_looked, project_id, settings, span_ms, report is not None)
    found = dict[int, Consequence]()
    for those in _each(look, _works(changed, project_id, settings, span_ms)):
        for number, one in those:
            found[number] = one
            progress(len(found))
    rows, pages = [found[n][0] for n in sorted(found)], [found[n][1] for n in sorted(found) if found[n][1]]
    if report is not None:
        for n, page in enumerate(pages, 1):
            path = report if len(pages) == 1 else report.with_stem(f"{report.stem}-{n}")
            with replacing(path) as beside:
                beside.write_text(page, encoding="utf-8")
    return rows


def without_page(report: Path | None, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What to say where a page was asked for and none was written."""
    shown = report is None or any("samples" in row for row in rows)
    return None if shown else f"{report} is not written: there is nothing to show"


def _works(changed: Sequence[Changed], project_id: str, settings: Settings, span_ms: int) -> list[Work]:
    """Those that got the same samples together, the others one by one."""
    asked = [Asked(one.breaker_id, one.router_id, one.rule.metric) for one in changed]
    shared = [] if len(changed) < 2 else gathered(project_id, asked, settings, span_ms)
    works = [Work(alike, tuple((n, changed[n]) for n in alike.numbers)) for alike in shared]
    apart = set(range(len(changed))) - {n for alike in shared for n in alike.numbers}
    return works + [Work(None, ((n, changed[n]),)) for n in sorted(apart)]


def _each(look: Callable[[Work], list[Found]], works: Sequence[Work]) -> Iterator[list[Found]]:
    """What comes of each. Once there was one of so many samples that the others are worth the start of processes, those
    are looked at beside one another."""
    for n, one in enumerate(works, 1):
        yield (found := look(one))
        left = works[n:]
        if found[0][1][0].get("samples", 0) * len(left) > APART_SAMPLES:
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


def _looked(project_id: str, settings: Settings, span_ms: int, drawn: bool, work: Work) -> list[Found]:
    """What comes of its rules: in one reading, or one by one where that can't tell of each."""
    if work.alike is not None:
        try:
            return _together(work.alike, work.rules, settings, drawn, span_ms)
        except (Invalid, LogDamaged):
            pass  # too few samples, too much memory: each tells its own
    return [(n, _consequence(project_id, settings, span_ms, drawn, one)) for n, one in work.rules]


@dataclass(slots=True)
class Pair:
    """What came of one changed rule, and of the breaker itself where there is one: what a page shows."""

    given: list[Run]
    runs: list[Run]
    windows: list[Labelled] | None = None
    sweep: pl.DataFrame | None = None


def _together(
    alike: Alike, rules: Sequence[tuple[int, Changed]], settings: Settings, drawn: bool, span_ms: int
) -> list[Found]:
    """Each breaker itself, where there is one, and as it is planned, in one reading; and one more where pages of them
    are `drawn`."""
    rows, tried = {row.id: row for row in alike.rows}, list[Candidate]()
    for _, one in rules:
        hears = one.breaker_id if one.breaker_id in alike.hears else None
        itself = Candidate(
            one.name, one.rule, follows_log=hears is not None, hears=hears or "", apart=hears in alike.apart
        )
        if one.breaker_id is not None:
            tried.append(replace(itself, rule=rows[one.breaker_id].rule))
        tried.append(replace(itself, name=f"{one.name} (planned)", follows_log=False))
    source = Together(alike, settings)
    runs = iter(_backtest(tried, source).given)
    pairs = [[next(runs) for _ in range(1 if one.breaker_id is None else 2)] for _, one in rules]
    pages = [""] * len(rules)
    if drawn:
        shown = [(one.name, Pair(pair, pair)) for (_, one), pair in zip(rules, pairs, strict=True)]
        pages = pages_of(shown, source, window_samples_max=source.window_samples_max)
    told = zip(rules, pairs, pages, strict=True)
    return [(number, (_row(one.name, pair, span_ms), page)) for (number, one), pair, page in told]


def _consequence(project_id: str, settings: Settings, span_ms: int, drawn: bool, one: Changed) -> Consequence:
    """Its row, and its page where it is `drawn`."""
    try:
        run, source = _replayed(one, project_id, settings, span_ms)
    except NoSample as error:
        why = f"; {error.unread}" if error.unread else ""
        return {"breaker": one.name, "told": NOTHING + why}, ""
    except (Invalid, LogDamaged, NotFound) as error:
        return {"breaker": one.name, "told": f"{NOTHING}: {error}"}, ""
    pages = pages_of([(one.name, run)], source, window_samples_max=source.window_samples_max) if drawn else [""]
    return _row(one.name, run.given, span_ms), pages[0]


def _replayed(one: Changed, project_id: str, settings: Settings, span_ms: int) -> tuple[Backtest, Recorded]:
    """The breaker itself, where there is one, and as it is planned."""
    if one.breaker_id is None:
        source, tried = of_router(project_id, one.router_id, one.rule, settings, span_ms, with_history=True), []
    else:
        source = of_breaker(project_id, one.breaker_id, settings, span_ms, with_history=True)
        if source.row.rule.metric != one.rule.metric:
            raise Invalid(f"it got those of {source.row.rule.metric}, not of {one.rule.metric}")
        tried = [source.breaker]
    tried.append(Candidate(f"{one.name} (planned)", one.rule, source.breaker.router_ids))
    return _backtest(tried, source), source


def _backtest(tried: list[Candidate], source: Recorded | Together) -> Backtest:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BacktestWarning)
        return backtest(tried, source, window_samples_max=source.window_samples_max)


def _row(name: str, runs: Sequence[Run], span_ms: int) -> dict[str, Any]:
    """`span_ms`: that was asked for; where samples reach back much less far, it says how far."""
    after = runs[-1]
    trips = [one.tally.trips for one in runs]
    opened = [one.tally.time_in.get("open", 0) for one in runs]
    first = next((ms for ms, state in after.tally.course if state == "open"), None)
    times = " -> ".join([*map(str, trips[:-1]), counted(trips[-1], "time")])
    told = f"{'tripped' if trips[1:] else 'would have tripped'} {times}"
    told += "" if first is None else f", first {rfc3339(first)}"
    told += f", open {' -> '.join(map(lasting, opened))}, {counted(after.samples, 'sample')}"
    told += f" since {rfc3339(after.first_ms)}" if after.last_ms - after.first_ms < REACHED * span_ms else ""
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


def lasting(ms: int) -> str:
    """In minutes; what is shorter than one in seconds."""
    return f"{ms / 1000:.3g} s" if 0 < ms < 60_000 else f"{ms / 60_000:.3g} min"
