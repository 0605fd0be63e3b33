"""What the page of a backtest shows: the series and each rule's value over it, by a second pass over the samples.

However long the samples are, a chart has `POINTS` of them: the lowest and the highest value in each stretch of time,
and the value that the breaker found at the end of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from breaker_actors.core.model import Int64, RateChange, Transition
from pipelines.backtest import Backtest
from pipelines.columns import Samples
from pipelines.files import replacing
from pipelines.page import page
from pipelines.results import moves
from pipelines.sources import Source
from pipelines.streams import Progress, Run, replayed
from pipelines.tally import Tally

POINTS, RULES_MAX, ROWS_MAX, CELLS_MAX = 800, 8, 500, 4000


def write_report(
    path: Path, run: Backtest, source: Source, rows_max: int, samples_max: int, progress: Progress | None = None
) -> None:
    """Writes the page; the file is there as a whole or not at all."""
    shown = run.given[:RULES_MAX]
    charts = [Chart(one) for one in shown]
    again = [Run(chart.run.candidate, Tally(kept=False)) for chart in charts]
    replayed(again, source, rows_max, samples_max, progress, dict(zip(map(id, again), charts, strict=True)))
    content = {
        "title": ", ".join(source.names[:3]) + (" and more" if len(source.names) > 3 else ""),
        "rules": [chart.content(run) for chart in charts],
        "left_out": len(run.given) - len(shown),
        "sweep": _sweep(run),
    }
    with replacing(path) as beside:
        beside.write_text(page(content), encoding="utf-8")
