"""The page of a backtest: what it shows, gathered in a second pass over the samples, as one file that works offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.core.machine import SAMPLES_MAX
from breaker_actors.core.model import Effect, Float64, Rule, Transition
from pipelines.backtest import MEMORY_MB, Backtest, rows_within
from pipelines.charting import Sketch
from pipelines.files import replacing
from pipelines.results import moves
from pipelines.sources import Source
from pipelines.streams import Progress, Run, replayed
from pipelines.tally import Labelled, Tally

PAGE = Path(__file__).parent / "page.html"
RULES_MAX, ROWS_MAX, CELLS_MAX = 8, 500, 4000
"""How much of it is shown; the page says what is left out."""


def write_report(path: Path, run: Backtest, source: Source, **limits: Any) -> None:
    """`page_of` as a file; nothing is half-written. Raises Invalid."""
    page = page_of(run, source, **limits)
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")


def page_of(
    run: Backtest,
    source: Source,
    *,
    memory_mb: int = MEMORY_MB,
    window_samples_max: int = SAMPLES_MAX,
    progress: Progress | None = None,
) -> str:
    """The page of a backtest, whose source is read once more. Raises Invalid."""
    shown = run.given[:RULES_MAX]
    again = [Run(one.candidate, Tally(kept=False), sketch=Sketch(one.first_ms, one.last_ms)) for one in shown]
    replayed(again, source, rows_within(memory_mb), window_samples_max, progress)
    content = {
        "title": ", ".join(source.names[:3]) + (f" and {len(source.names) - 3} more" if len(source.names) > 3 else ""),
        "left_out": len(run.given) - len(shown),
        "rules": [_chart(one, drawn.sketch, run.windows) for one, drawn in zip(shown, again, strict=True)],
        "sweep": _sweep(run),
    }
    return PAGE.read_text(encoding="utf-8").replace("{{content}}", _script_safe(content))


def _script_safe(content: Any) -> str:
    """JSON that can't end the script it stands in."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _chart(run: Run, sketch: Sketch | None, windows: list[Labelled] | None) -> dict[str, Any]:
    assert sketch is not None
    tally, rule = run.tally, run.candidate.rule
    seen = sketch.low <= sketch.high
    made = moves(run)
    return {
        "name": run.candidate.name,
        "rule": _described(rule),
        "threshold": rule.threshold,
        "from": run.first_ms,
        "to": run.last_ms,
        "samples": run.samples,
        "series": [sketch.ends[seen].tolist(), _short(sketch.low[seen]), _short(sketch.high[seen])],
        "value": [[at for at, _ in sketch.values], _short(np.array([value for _, value in sketch.values]))],
        "value_is_series": rule.kind in ("avg", "p95", "percentile", "max", "min"),
        "stays": _stays(tally.effects, run.first_ms, run.last_ms),
        "windows": [
            [window.start_ms, window.end_ms, tally.first_trips.get(i)] for i, window in enumerate(windows or ())
        ],
        "time_in": tally.time_in,
        "trips": tally.trips,
        "false_trips": None if windows is None else tally.false_trips,
        "moves": [
            [move.ts_ms, move.prev, move.curr, move.transition_seq, move.reason, move.allow_rate, move.value]
            for move in made[:ROWS_MAX]
        ],
        "moves_left_out": max(0, len(made) - ROWS_MAX),
    }


SIGNS = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤"}


def _described(rule: Rule) -> str:
    params = "" if not rule.kind_params else f" {json.dumps(rule.kind_params)}"
    over = "" if rule.kind == "consecutive_failures" else f" over {rule.window_ms / 1000:g} s"
    return f"{rule.metric}: {rule.kind}{params} {SIGNS[rule.op]} {rule.threshold:g}{over}"


def _short(values: Float64) -> list[float]:
    """Enough digits for a picture."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _stays(effects: list[Effect], first_ms: int, last_ms: int) -> list[tuple[str, int, int, float]]:
    """(state, from, to, allow_rate): a new one with every transition and every step of the ramp."""
    stays, state, since_ms, rate = [], "closed", first_ms, 1.0
    for effect in effects:
        stays.append((state, since_ms, effect.ts_ms, rate))
        since_ms, rate = effect.ts_ms, effect.allow_rate
        state = effect.curr if isinstance(effect, Transition) else state
    stays.append((state, since_ms, last_ms, rate))
    return [stay for stay in stays if stay[2] > stay[1]]


def _sweep(run: Backtest) -> dict[str, Any] | None:
    if run.sweep is None:
        return None
    fields = list(next(one.setting for one in run.runs if one.setting is not None) or ())
    return {
        "fields": fields,
        "judged": run.windows is not None,
        "windows": len(run.windows or ()),
        "rows": list(run.sweep.head(CELLS_MAX).iter_rows(named=True)),
        "left_out": max(0, len(run.sweep) - CELLS_MAX),
    }
