"""The page of a backtest: what it shows, gathered in a second pass over the samples, as one file that works offline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.core.model import Float64, Transition
from breaker_actors.text.escaping import for_line, for_script
from pipelines.candidates import described
from pipelines.replay.downsample import Sketch
from pipelines.replay.memory import MEMORY_MB, rows_within
from pipelines.replay.results import cause, moves, of_each, titled
from pipelines.replay.run import Progress, Run, replayed
from pipelines.replay.scoring import Labelled, Tally
from pipelines.report.document import document_of
from pipelines.report.incidents import caught_by, fine_spans, incidents_of, view_of
from pipelines.sources.atomic_files import replacing
from pipelines.sources.files import Source

RULES_MAX, ROWS_MAX, CELLS_MAX, SPANS_MAX = 8, 500, 4000, 200
"""How much of it is shown (rules; transitions; settings; incidents, and labelled failures, of a rule); the page says
what is left out."""
STAYS_MAX = 4000
"""Beyond it neighbouring stays of a chart are drawn as one."""
Stay = tuple[str, int, int, float]
"""State, from, to, allow_rate."""
Change = tuple[int, str, float]
"""When, state and allow_rate from then on."""
SHARES = {"closed": 1.0, "half_open": 0.5, "open": 0.0}


class Outcome(Protocol):
    """A finished backtest."""

    @property
    def given(self) -> list[Run]:
        """The runs of the rules as they were given."""

    runs: list[Run]
    windows: list[Labelled] | None
    sweep: pl.DataFrame | None


def write_report(path: Path, run: Outcome, source: Source, **limits: Any) -> None:
    """`page_of` as a file; nothing is half-written. Raises Invalid."""
    page = page_of(run, source, **limits)
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")


def page_of(
    run: Outcome,
    source: Source,
    *,
    memory_mb: int = MEMORY_MB,
    window_samples_max: int = SAMPLES_MAX,
    progress: Progress | None = None,
) -> str:
    """The page of a backtest, whose source is read once more. Raises Invalid."""
    limits: dict[str, Any] = {"memory_mb": memory_mb, "window_samples_max": window_samples_max, "progress": progress}
    return pages_of([(titled(source), run)], source, **limits)[0]


def pages_of(
    outcomes: Sequence[tuple[str, Outcome]],
    source: Source,
    *,
    memory_mb: int = MEMORY_MB,
    window_samples_max: int = SAMPLES_MAX,
    progress: Progress | None = None,
) -> list[str]:
    """A page of each, with its title, of rules that were tried on the same source, which is read once more for all of
    them. Raises Invalid."""
    again = [
        [Run(one.candidate, Tally(kept=False), sketch=_sketch(one, run.windows)) for one in run.given[:RULES_MAX]]
        for _, run in outcomes
    ]
    replayed([one for runs in again for one in runs], source, rows_within(memory_mb), window_samples_max, progress)
    return [_page(title, run, runs) for (title, run), runs in zip(outcomes, again, strict=True)]


def _page(title: str, run: Outcome, again: Sequence[Run]) -> str:
    """`again`: the runs of the rules that are shown, with what is drawn of them."""
    content = {
        "title": for_line(title),
        "left_out": len(run.given) - len(again),
        "rules": [_chart(one, drawn.sketch, run.windows) for one, drawn in zip(run.given, again, strict=False)],
        "sweep": _sweep(run),
    }
    return document_of(content, for_script(json.dumps(content, separators=(",", ":"), allow_nan=False)))


def _sketch(run: Run, windows: list[Labelled] | None) -> Sketch:
    return Sketch(run.first_ms, run.last_ms, fine=fine_spans(run, windows or ()))


def _chart(run: Run, sketch: Sketch | None, windows: list[Labelled] | None) -> dict[str, Any]:
    assert sketch is not None
    tally, rule = run.tally, run.candidate.rule
    seen = sketch.low <= sketch.high
    made = moves(run)
    return {
        "name": for_line(run.candidate.name),
        "rule": for_line(described(rule) + (" (its present rule)" if run.candidate.follows_log else "")),
        "threshold": rule.threshold,
        "window_ms": 0 if rule.kind == "consecutive_failures" else rule.window_ms,
        "from": run.first_ms,
        "to": run.last_ms,
        "samples": run.samples,
        "series": [_steps(sketch.ends[seen].tolist()), _short(sketch.low[seen]), _short(sketch.high[seen])],
        "value": [_steps([at for at, _ in sketch.values]), _short(np.array([value for _, value in sketch.values]))],
        "value_is_series": rule.kind in ("avg", "p95", "percentile", "max", "min"),
        "stays": _stays(_of_the_machine(tally), run.first_ms, run.last_ms),
        **_spans(run, windows),
        "time_in": tally.time_in,
        "trips": tally.trips,
        "shown": [tally.shown_trips, tally.shown_in["open"]] if tally.controlled else None,
        "false_trips": None if windows is None else tally.false_trips,
        "moves": [
            [move.ts_ms, move.prev, move.curr, move.transition_seq, for_line(cause(move)), move.allow_rate, move.value]
            for move in made[:ROWS_MAX]
        ],
        "moves_left_out": max(0, len(made) - ROWS_MAX),
    }


def _spans(run: Run, windows: list[Labelled] | None) -> dict[str, Any]:
    """What a chart can zoom to. An incident: from, to, whether it is over, number of trips, time in open, whether it
    caught a labelled failure, from and to of its view. A labelled failure: from, to, its first trip, from and to of
    its view, whether samples reach it."""
    found, judged, tally = incidents_of(run), set(run.judged()), run.tally
    return {
        "incidents": [
            [
                one.start_ms, one.end_ms, one.over, len(one.trips), one.open_ms,
                bool(caught_by(one, windows or (), tally.grace_ms)), *view_of(run, one.start_ms, one.end_ms),
            ]
            for one in found[:SPANS_MAX]
        ],
        "incidents_in_all": len(found),
        "windows": [
            [one.start_ms, one.end_ms, tally.first_trips.get(i), *view_of(run, one.start_ms, one.end_ms), i in judged]
            for i, one in enumerate((windows or ())[:SPANS_MAX])
        ],
        "windows_judged": len(judged),
        "windows_caught": len(tally.first_trips),
        "windows_in_all": len(windows or ()),
    }  # fmt: skip


def _steps(times: Sequence[int]) -> list[int]:
    """The first of ascending times, then by how much each is later than the one before: shorter than the times."""
    return [*times[:1], *(after - before for before, after in pairwise(times))]


def _short(values: Float64) -> list[float]:
    """Enough digits for a picture."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _of_the_machine(tally: Tally) -> list[Change]:
    """When it was in another state or let through another share. Of a ramp that may have been hidden: half."""
    if tally.controlled:
        return [(at_ms, state, SHARES[state]) for at_ms, state in tally.course]
    moves, state = list[Change](), "closed"
    for effect in tally.effects:
        state = effect.curr if isinstance(effect, Transition) else state
        moves.append((effect.ts_ms, state, effect.allow_rate))
    return moves


def _stays(changes: list[Change], first_ms: int, last_ms: int) -> list[Stay]:
    """A new one with every transition and every step of the ramp, as long as there are not too many."""
    stays: list[Stay] = []
    state, since_ms, rate = "closed", first_ms, 1.0
    for at_ms, curr, share in changes:
        stays.append((state, since_ms, at_ms, rate))
        state, since_ms, rate = curr, at_ms, share
    stays.append((state, since_ms, last_ms, rate))
    stays = [stay for stay in stays if stay[2] > stay[1]]
    return stays if len(stays) <= STAYS_MAX else _coarse(stays, (last_ms - first_ms) // (STAYS_MAX // 2))


def _coarse(stays: list[Stay], least_ms: int) -> list[Stay]:
    """Neighbours as one, of the lowest allow_rate among them, until it is `least_ms` long."""
    coarse: list[Stay] = []
    for stay in stays:
        if coarse and coarse[-1][2] - coarse[-1][1] < least_ms:
            worst, before = min(coarse[-1], stay, key=lambda one: one[3]), coarse[-1]
            coarse[-1] = worst[0], before[1], stay[2], worst[3]
        else:
            coarse.append(stay)
    return coarse


def _sweep(run: Outcome) -> dict[str, Any] | None:
    if run.sweep is None:
        return None
    fields = list(next(one.setting for one in run.runs if one.setting is not None) or ())
    rules = of_each(run.sweep)
    shown = pl.concat(frame.head(CELLS_MAX // len(rules)) for _, frame in rules)
    return {
        "fields": fields,
        "judged": run.windows is not None,
        "windows": len(run.windows or ()),
        "names": run.sweep.columns,
        "rows": [list(row) for row in shown.iter_rows()],
        "left_out": len(run.sweep) - len(shown),
    }
