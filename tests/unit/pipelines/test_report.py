"""The page of a backtest: one file that asks nothing of any network, with what was found in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.exact import P95, exact_value
from breaker_actors.errors import Invalid
from pipelines.backtest import backtest, source_of
from pipelines.charting import Sketch
from pipelines.columns import Samples
from pipelines.files import replacing
from pipelines.report import write_report
from tests.support.png import pixels

START_MS = 1_700_000_000_000
RULE: dict[str, Any] = {
    "name": "</script><script>alert(1)", "metric": "latency", "kind": "avg", "op": "gt", "threshold": 10,
    "window_ms": 500, "eval_interval_ms": 100, "min_state_duration_ms": 200,
}  # fmt: skip


def recorded(count: int) -> pl.DataFrame:
    draw = np.random.default_rng(0)
    ts_ms = np.cumsum(draw.integers(0, 20, count)) + START_MS
    return pl.DataFrame({"ts_ms": ts_ms, "value": 9 + 3 * np.sin(ts_ms / 3000) + draw.normal(0, 1, count)})


def page_of(path: Path, rules: Any, frame: pl.DataFrame, **options: Any) -> tuple[str, dict[str, Any]]:
    run = backtest(rules, frame, **options)
    write_report(path, run, source_of(frame))
    text = path.read_text(encoding="utf-8")
    found = re.findall(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert len(found) == 1
    content: dict[str, Any] = json.loads(found[0])
    return text, content


def test_the_page(tmp_path: Path) -> None:
    """Series, values, states with the ramp, transitions, labelled failures and the sweep; small, and offline."""
    frame = recorded(30_000)
    windows = [[START_MS, START_MS + 10_000]]
    grid = {"threshold": [9, 10, 11], "window_ms": [300, 500]}
    text, content = page_of(tmp_path / "r.html", RULE, frame, windows=windows, sweep=grid)
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script>alert" not in text
    assert len(text) < 200_000
    (rule,) = content["rules"]
    run = backtest(RULE, frame)
    assert [move[:3] for move in rule["moves"]] == [
        list(row) for row in run.transitions.select("ts_ms", "prev", "curr").rows()
    ]
    ends, low, high = rule["series"]
    assert len(ends) == 800
    assert (min(low), max(high)) == pytest.approx((frame["value"].min(), frame["value"].max()), rel=1e-4)
    stays = rule["stays"]
    assert (stays[0][1], stays[-1][2]) == (rule["from"], rule["to"])
    assert all(before[2] == after[1] for before, after in pairwise(stays))
    assert {stay[3] for stay in stays if stay[0] == "half_open"} >= {0.2, 0.4, 0.6}
    assert rule["windows"][0][:2] == windows[0]
    assert len(content["sweep"]["rows"]) == 6


def test_values_are_what_the_breaker_found(tmp_path: Path) -> None:
    """Where no recovery has cut the window short, the value is that of the whole window."""
    frame = recorded(3000)
    _, content = page_of(tmp_path / "r.html", RULE | {"threshold": 1000}, frame)
    at, values = content["rules"][0]["value"]
    ts_ms, value = frame["ts_ms"].to_numpy(), frame["value"].to_numpy()
    assert len(at) > 500
    for now, shown in zip(at, values, strict=True):
        window = value[(ts_ms > now - 500) & (ts_ms <= now)]
        assert shown == pytest.approx(exact_value("avg", P95, window, window > 0), rel=1e-4)


@pytest.mark.parametrize("kind", ["p95", "stddev", "count", "consecutive_failures", "delta"])
def test_other_kinds(tmp_path: Path, kind: str) -> None:
    """Every kind has values to show."""
    fields = RULE | {"kind": kind, "threshold": 3}
    _, content = page_of(tmp_path / "r.html", fields, recorded(2000).with_columns(ok=pl.col("value") < 10))
    rule = content["rules"][0]
    assert len(rule["value"][0]) > 50
    assert rule["threshold"] == 3


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def browser() -> str:
    """A Chromium; where there is none the test is skipped, unless REQUIRE_BROWSER is set."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        assert not os.environ.get("REQUIRE_BROWSER"), "there is no Chromium"
        pytest.skip("there is no Chromium")
    return found


def in_browser(page: Path, *what: str) -> str:
    """What a headless Chromium without any network makes of a page."""
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--proxy-server=127.0.0.1:9", f"--user-data-dir={page.parent / 'profile'}", "--window-size=1200,2000",
        "--force-device-scale-factor=0.5", "--virtual-time-budget=2000", *what, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Drawn as a whole: charts, shaded states, tables and heat map are there, and can be seen on a screenshot."""
    frame = recorded(30_000)
    rules = [RULE, RULE | {"name": "delta", "kind": "delta", "threshold": 0.2}]
    grid = {"threshold": [9, 10, 11], "window_ms": [300, 500]}
    windows = [[START_MS, START_MS + 10_000]]
    page = tmp_path / "r.html"
    _, content = page_of(page, rules, frame, windows=windows, sweep=grid)
    dom = in_browser(page, "--dump-dom").partition("<script")[0]
    assert [len(re.findall(tag, dom)) for tag in ("<svg", "<h2", 'class="map"')] == [2, 3, 2]
    stays = [stay for rule in content["rules"] for stay in rule["stays"]]
    shaded = sum(1 + (state == "half_open") for state, *_ in stays if state != "closed")
    labels = sum(len(rule["windows"]) for rule in content["rules"])
    assert len(re.findall("<rect", dom)) == shaded + labels
    assert len(re.findall("→", dom)) == sum(len(rule["moves"]) for rule in content["rules"])
    assert "NaN" not in dom
    assert "Infinity" not in dom
    in_browser(page, f"--screenshot={tmp_path / 'r.png'}")
    seen = pixels(tmp_path / "r.png").reshape(-1, 3).astype(int)
    for (red, green, blue), least in COLOURS.items():
        off = np.abs(seen - [red, green, blue]).max(axis=1)
        assert np.count_nonzero(off < 20) > least, (red, green, blue)


COLOURS = {(255, 255, 255): 50_000, (157, 180, 207): 2000, (244, 203, 201): 5000, (172, 83, 66): 300}
"""On the screenshot, and how many pixels of them at least: paper, samples, open states, a bad cell of the heat map."""


def test_much_is_left_out_and_said_so(tmp_path: Path) -> None:
    """More rules or transitions than a page can show."""
    fields = RULE | {"min_state_duration_ms": 0, "eval_interval_ms": 10, "kind": "max"}
    _, content = page_of(tmp_path / "r.html", [fields] * 10, recorded(20_000))
    assert (len(content["rules"]), content["left_out"]) == (8, 2)
    assert len(content["rules"][0]["moves"]) == 500
    assert content["rules"][0]["moves_left_out"] > 0


def test_sketch() -> None:
    """Lowest and highest in each stretch, over the edges of what is fed."""
    sketch = Sketch(0, 100, points=4)
    for at, value in (([0, 10], [1.0, 9.0]), ([25, 26, 60], [5.0, 2.0, 4.0]), ([100], [7.0])):
        column = np.array(at, np.int64)
        sketch.add(Samples(column, column, np.array(value), np.ones(len(at), np.bool_)))
    assert sketch.ends.tolist() == [25, 50, 75, 100]
    assert sketch.low.tolist() == [1.0, 2.0, 4.0, 7.0]
    assert sketch.high.tolist() == [9.0, 2.0, 4.0, 7.0]


def test_nothing_is_half_written(tmp_path: Path) -> None:
    """What was there stays until the new file is whole; a directory that is not there is named."""
    path = tmp_path / "r.html"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as beside:
            beside.write_text("ne")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [one.name for one in tmp_path.iterdir()] == ["r.html"]
    assert path.read_text() == "old"
    with pytest.raises(Invalid, match="can't be written: No such file or directory"), replacing(tmp_path / "no" / "r"):
        pass
