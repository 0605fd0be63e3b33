"""What a chart of the console draws, in a browser, without a service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api.console import replays
from pipelines.report import document
from tests.support.browser import Browser

STATIC = Path(replays.__file__).parent / "static"
UPLOT = Path(document.__file__).parent / "uplot" / "uPlot.iife.min.js"
PAGE = """<!doctype html><style>:root { --chart-1: rgb(255, 0, 0); --dim: black; --line: #eee; --card: white;
  --text: black; }</style><div id="box" style="width: 800px"></div><p id="readout"></p>
<script>window.console_page = { utc: () => true, absolute: (ms) => new Date(ms).toISOString().slice(0, 19).replace("T",
  " "), span: (ms) => `${ms} ms` };</script>
<script src="UPLOT"></script><script src="CHART"></script>
<script>window.console_chart.drawing(document.getElementById("box"), document.getElementById("readout"), () => 0)
  .show(DATA);</script>"""
LEFT_MOST = """(() => { const canvas = document.querySelector("canvas"), { width, height } = canvas;
  const ink = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const found = []; for (let i = 0; i < ink.length; i += 4) {
    const x = (i / 4) % width;
    if (INK) found.push(x); }
  return [Math.min(...found), Math.max(...found), width]; })()"""
RED = "ink[i] > 200 && ink[i + 1] < 60 && ink[i + 3] > 200"
DARK = "ink[i] < 90 && ink[i + 1] < 90 && ink[i + 3] > 200"


def drawn(folder: Path, at: list[int], value: list[float | None], ink: str) -> Any:
    """The columns of the canvas between which there is such ink, and how wide it is."""
    series = {"name": "value", "at": at, "value": value, "times": 1, "unit": ""}
    data = {"from": 0, "to": 100_000, "hole_ms": 5_000, "times": 1, "unit": "", "series": [series], "lines": []}
    text = PAGE.replace("DATA", json.dumps(data | {"strips": [], "away": []}))
    page = folder / "chart.html"
    page.write_text(text.replace("UPLOT", UPLOT.as_uri()).replace("CHART", (STATIC / "chart.js").as_uri()))
    with Browser(folder) as seen:
        seen.open(page)
        assert seen.complaints == []
        return seen.ask(LEFT_MOST.replace("INK", ink))


@pytest.mark.parametrize("lone", [20_000, 50_000])
def test_a_value_between_holes_is_drawn(tmp_path: Path, lone: int) -> None:
    at = [lone, lone + 1, 70_000, 71_000, 72_000]
    left, right, width = drawn(tmp_path, at, [500.0, None, 5.0, 6.0, 5.0], RED)
    share = (left - 74) / (width - 86)
    assert share == pytest.approx(lone / 100_000, abs=0.03)
    assert right > left + 50


def test_long_figures_have_room_at_the_axis(tmp_path: Path) -> None:
    """Cut at the edge, 1,500,000 would be read as 500,000."""
    at = [10_000, 20_000, 30_000, 40_000]
    left, _, _ = drawn(tmp_path, at, [1_234_567_000.0, 1_234_568_000.0, 1_234_569_000.0, 1_234_570_000.0], DARK)
    assert left > 0
