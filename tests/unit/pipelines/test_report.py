"""The page of a backtest: one file that asks nothing of any network, with what was found in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.definitions import P95, exact_value
from breaker_actors.errors import Invalid
from pipelines.backtest import BacktestWarning, backtest, source_of
from pipelines.columns import Samples
from pipelines.replay.downsample import Sketch
from pipelines.report import document
from pipelines.report.incidents import fine_spans, incidents_of
from pipelines.report.page import write_report
from pipelines.sources.atomic_files import replacing
from tests.support.browser import Browser
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
    assert "://" not in text.replace("https://github.com/leeoniya/uPlot", "")
    assert "<script>alert" not in text
    assert len(text) < 200_000
    (rule,) = content["rules"]
    run = backtest(RULE, frame)
    assert [move[:3] for move in rule["moves"]] == [
        list(row) for row in run.transitions.select("ts_ms", "prev", "curr").rows()
    ]
    ends, low, high = rule["series"]
    assert 600 < len(ends) <= 1600
    assert sum(ends) == rule["to"]
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
    steps, values = content["rules"][0]["value"]
    at = list(accumulate(steps))
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


def test_incidents_tell_trips_from_re_trips() -> None:
    """From a trip out of closed to the return to closed; together they hold all trips and all time in open."""
    run = backtest(RULE, recorded(30_000)).given[0]
    found = incidents_of(run)
    assert sum(len(one.trips) for one in found) == run.tally.trips > len(found) > 1
    assert sum(one.open_ms for one in found) == run.tally.time_in["open"]
    assert all(before.end_ms <= after.start_ms for before, after in pairwise(found))
    assert all(one.over for one in found[:-1])
    away = sum(one.end_ms - one.start_ms for one in found)
    assert away == run.tally.time_in["open"] + run.tally.time_in["half_open"]


def test_incidents_are_drawn_finely() -> None:
    """A short incident in a long time has many points, with the window before its trip."""
    ts_ms = START_MS + np.arange(0, 100_000_000, 1000)
    frame = pl.DataFrame({"ts_ms": ts_ms, "value": np.where(abs(ts_ms - START_MS - 50_000_000) < 30_000, 20.0, 9.0)})
    run = backtest(RULE | {"window_ms": 60_000}, frame).given[0]
    ((start_ms, end_ms),) = fine_spans(run, [])
    (incident,) = incidents_of(run)
    assert start_ms <= incident.start_ms - 60_000 < incident.end_ms < end_ms
    ends = Sketch(run.first_ms, run.last_ms, fine=[(start_ms, end_ms)]).ends
    assert np.count_nonzero((ends >= start_ms) & (ends <= end_ms)) >= 200
    assert len(ends) <= 801


@pytest.mark.parametrize("name", ["LICENSE", "uPlot.iife.min.js", "uPlot.min.css"])
def test_uplot_is_what_was_released(name: str) -> None:
    """Files of uplot 1.6.32, to the byte; the page carries their licence."""
    folder = Path(document.__file__).parent / "uplot"
    sums = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name]
    assert set(sums) | {"SHA256SUMS"} == {path.name for path in folder.iterdir()}


GRID = {"threshold": [9, 10, 11], "window_ms": [300, 500]}
WINDOWS = [[START_MS, START_MS + 10_000], [START_MS + 20_000, START_MS + 20_010]]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page of two rules, labelled failures and a sweep."""
    path = tmp_path_factory.mktemp("page") / "r.html"
    rules = [RULE, RULE | {"name": "delta", "kind": "delta", "threshold": 0.2}]
    with pytest.warns(BacktestWarning, match="same thresholds for avg of latency and delta of latency"):
        return path, page_of(path, rules, recorded(30_000), windows=WINDOWS, sweep=GRID)[1]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def seen(chromium: Browser, page: tuple[Path, dict[str, Any]]) -> Iterator[Browser]:
    """The page, freshly loaded. Whatever a test does, nothing but its file is asked for, and nothing complains."""
    chromium.requests.clear()
    chromium.open(page[0])
    yield chromium
    assert chromium.ask("1") == 1
    assert chromium.requests == [page[0].as_uri()]
    assert chromium.complaints == []


def shown(browser: Browser, chart: int = 0) -> tuple[float, float]:
    """The range of time that a chart shows."""
    found = browser.ask(f"(({{from, to}}) => [+from, +to])(document.querySelectorAll('.chart')[{chart}].dataset)")
    return found[0], found[1]


def test_the_page_in_a_browser(seen: Browser, page: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Drawn as a whole: charts, shaded states, tables and heat map are there, and can be seen on a screenshot."""
    rules = page[1]["rules"]
    counts = seen.ask("['canvas', 'h2', '.map'].map(which => document.querySelectorAll(which).length)")
    assert counts == [3, 3, 2], "delta has a panel for samples and one for values"
    text = seen.ask("document.getElementById('page').textContent")
    assert seen.ask("document.querySelectorAll('details')[0].querySelectorAll('td').length") == 6 * len(
        rules[0]["moves"]
    )
    assert f"{rules[0]['incidents_in_all']} incidents, {rules[0]['trips']} trips" in text
    assert not re.search("NaN|Infinity|undefined", text)
    seen.screenshot(tmp_path / "r.png", whole=True)
    drawn = pixels(tmp_path / "r.png").reshape(-1, 3).astype(int)
    for (red, green, blue), least in COLOURS.items():
        off = np.abs(drawn - [red, green, blue]).max(axis=1)
        assert np.count_nonzero(off < 12) > least, (red, green, blue)


COLOURS = {(255, 255, 255): 50_000, (127, 156, 192): 500, (214, 69, 61): 100, (224, 161, 0): 100, (122, 79, 191): 100}
"""On the screenshot, and how many pixels of them at least: paper, samples, open, half_open, a labelled failure."""


def test_a_drag_zooms_and_a_double_click_shows_all(seen: Browser, page: tuple[Path, dict[str, Any]]) -> None:
    """The panels of a rule go together, other rules stay."""
    whole = shown(seen)
    assert whole == (page[1]["rules"][0]["from"], page[1]["rules"][0]["to"])
    seen.drag(".u-over", 0.25, 0.5)
    start, end = shown(seen)
    wide = whole[1] - whole[0]
    assert (start - whole[0]) / wide == pytest.approx(0.25, abs=0.01)
    assert (end - whole[0]) / wide == pytest.approx(0.5, abs=0.01)
    assert shown(seen, 1) == whole
    seen.drag(".u-over", 0.5, 0.25, modifiers=8)
    moved = shown(seen)
    assert moved[0] - start == pytest.approx((end - start) / 4, rel=0.05), "with Shift it is moved"
    assert moved[1] - moved[0] == pytest.approx(end - start)
    seen.click(".u-over", times=2)
    assert shown(seen) == whole


def test_keys(seen: Browser) -> None:
    """All that the mouse does."""
    whole = shown(seen)
    wide = whole[1] - whole[0]
    seen.ask("document.querySelector('.chart').focus()")
    seen.press("+")
    start, end = shown(seen)
    assert end - start == pytest.approx(wide / 2)
    seen.press("ArrowRight")
    assert shown(seen)[0] == pytest.approx(start + (end - start) / 4)
    for _ in range(9):
        seen.press("ArrowRight")
    assert shown(seen)[1] == whole[1]
    seen.press("-")
    assert shown(seen) == whole
    seen.ask("document.querySelectorAll('.spans button')[3].focus()")
    seen.press("Enter")
    assert shown(seen) != whole
    seen.ask("document.querySelector('.chart').focus()")
    seen.press("0")
    assert shown(seen) == whole


def test_incidents_and_failures_are_zoomed_to(seen: Browser, page: tuple[Path, dict[str, Any]]) -> None:
    """The chart shows the span around what is clicked, whose row is marked, until all is shown again."""
    rule = page[1]["rules"][0]
    for number, (*_, view_from, view_to) in enumerate(rule["incidents"][:3]):
        seen.click(".spans button", len(WINDOWS) + number)
        assert shown(seen) == pytest.approx((view_from, view_to), abs=1)
        assert seen.ask("document.querySelectorAll('.chosen').length") == 1
    seen.click(".spans button", 0)
    assert shown(seen) == pytest.approx(tuple(rule["windows"][0][3:5]), abs=1)
    seen.click(".bar button", 4)
    assert shown(seen) == (rule["from"], rule["to"])
    assert seen.ask("document.querySelectorAll('.chosen').length") == 0


def test_a_cell_shows_its_setting(seen: Browser, page: tuple[Path, dict[str, Any]]) -> None:
    """All numbers of it; among cells that catch the same, the time until then is the colour."""
    sweep = page[1]["sweep"]
    rows = [dict(zip(sweep["names"], row, strict=True)) for row in sweep["rows"]]
    seen.click(".map button", 3)
    told = dict(
        seen.ask(
            "[...document.querySelectorAll('.detail tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    )
    row = next(row for row in rows if (row["threshold"], row["window_ms"]) == (10, 500) and row["breaker"] != "delta")
    assert (told["threshold"], told["window_ms"]) == ("10", "500 ms")
    assert (told["caught"], told["false_trips"], told["trips"]) == tuple(
        str(row[name]) for name in ("caught", "false_trips", "trips")
    )
    paint = "(rows => { const {of} = colours({judged: true}, rows); return rows.map(of); })"
    tied = [{"caught": 1, "windows": 1, "false_trips": 0, "latency_ms": ms} for ms in (10, 100, 1000)]
    assert len(set(seen.ask(f"{paint}({json.dumps(tied)})"))) == 3
    assert seen.ask(f"{paint}({json.dumps([*tied, tied[0] | {'caught': 0}])})")[3] == "var(--miss)"
    many = [tied[0] | {"false_trips": count} for count in (46, 47)]
    share = [re.search(r"var\(--bad\) (\d+)%", colour)[1] for colour in seen.ask(f"{paint}({json.dumps(many)})")]  # type: ignore[index]
    assert share == ["0", "100"], "as the legend says: fewest and most"


def test_without_labels_a_setting_that_never_trips_is_grey(chromium: Browser, tmp_path: Path) -> None:
    """It is no better than one that trips, and the legend says what colours mean."""
    path = tmp_path / "r.html"
    page_of(path, RULE, recorded(30_000), sweep={"threshold": [10, 1_000_000_000]})
    chromium.open(path)
    told = chromium.ask("[...[...document.querySelectorAll('.key')].at(-1).children].map(one => one.textContent)")
    assert told[0] == "never trips"
    assert told[1].startswith("fewest trips (")
    paint = "(rows => { const {of} = colours({judged: false}, rows); return rows.map(of); })"
    few, many, none = chromium.ask(f"{paint}({json.dumps([{'trips': count} for count in (1, 9, 0)])})")
    assert none == "var(--miss)"
    assert (few.count("--late) 0%"), many.count("--late) 100%")) == (1, 1)
    cells = chromium.ask("[...document.querySelectorAll('.map button')].map(one => one.style.background)")
    assert [cell == "var(--miss)" for cell in cells] == [False, True]


def test_without_scripts(chromium: Browser, page: tuple[Path, dict[str, Any]]) -> None:
    """Numbers, a picture and tables remain."""
    chromium.open(page[0], scripts=False)
    html = chromium.send("DOM.getOuterHTML", nodeId=chromium.send("DOM.getDocument", depth=-1)["root"]["nodeId"])[
        "outerHTML"
    ]
    still = html.partition("<noscript>")[2].partition("</noscript>")[0]
    assert [len(re.findall(tag, still)) for tag in ("<svg", "<h2", "<table")] == [2, 3, 3]
    assert "<script" not in still
    chromium.send("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("count", [1, 2])
def test_hardly_any_samples(chromium: Browser, tmp_path: Path, count: int) -> None:
    """A chart without a line, of a rule that has no value, with labelled failures that no sample reaches."""
    frame = pl.DataFrame({"ts_ms": [START_MS, START_MS][:count], "value": [1.0, 1.0][:count]})
    with pytest.warns(BacktestWarning):
        page_of(tmp_path / "r.html", RULE | {"min_count": 9}, frame, windows=[[0, 9], [4 * START_MS] * 2], sweep=GRID)
    chromium.open(tmp_path / "r.html")
    chromium.click(".bar button", 2)
    chromium.click(".map button")
    assert chromium.ask("document.querySelectorAll('canvas').length") == 1
    assert chromium.ask("document.querySelectorAll('.detail td').length") > 20
    assert chromium.complaints == []


def test_many_stays_are_drawn_as_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Still without a gap, from the first sample to the last."""
    monkeypatch.setattr("pipelines.report.page.STAYS_MAX", 100)
    _, content = page_of(tmp_path / "r.html", RULE | {"kind": "max"}, recorded(40_000))
    rule = content["rules"][0]
    stays = rule["stays"]
    assert len(rule["moves"]) > 100
    assert 20 < len(stays) <= 100
    assert (stays[0][1], stays[-1][2]) == (rule["from"], rule["to"])
    assert all(before[2] == after[1] for before, after in pairwise(stays))


def test_much_is_left_out_and_said_so(tmp_path: Path) -> None:
    """More rules or transitions than a page can show."""
    fields = RULE | {"min_state_duration_ms": 0, "eval_interval_ms": 10, "kind": "max"}
    _, content = page_of(tmp_path / "r.html", [fields] * 10, recorded(40_000))
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


@pytest.mark.parametrize("kind", ["avg", "p95", "stddev", "count", "sum"])
def test_a_counted_sample_is_drawn_as_so_many(tmp_path: Path, kind: str) -> None:
    """Moves, figures and charts are those of a row per observation, but for how many rows there are, and for whether a
    value is drawn at the last sample of a stretch or at a tick behind it."""
    frame = recorded(3_000)
    several = frame.with_columns(count=pl.when(pl.int_range(3_000) % 5 == 0).then(pl.int_range(3_000) % 7 + 1))
    each = frame[np.repeat(np.arange(3_000), several["count"].fill_null(1).to_numpy())]
    level = {"avg": 10, "p95": 12, "stddev": 1.1, "count": 70, "sum": 700}[kind]
    rule = RULE | {"kind": kind, "threshold": level}
    assert backtest(rule, several).transitions.equals(backtest(rule, each).transitions)
    (one,), (other,) = (page_of(tmp_path / "r.html", rule, these)[1]["rules"] for these in (several, each))
    assert len(one["moves"]) > 5
    assert (one.pop("samples"), other.pop("samples")) == (3_000, len(each))
    charts = [one.pop("value"), other.pop("value")]
    drawn, expected = (dict(zip(np.cumsum(steps).tolist(), values, strict=True)) for steps, values in charts)
    both = drawn.keys() & expected.keys()
    assert len(both) > 0.9 * max(len(drawn), len(expected))
    assert {at: drawn[at] for at in both} == {at: expected[at] for at in both}
    assert one == other


@pytest.mark.parametrize("kind", ["max", "avg", "p95"])
def test_a_value_that_left_before_the_next_sample_is_shown(tmp_path: Path, kind: str) -> None:
    """Of samples that come more seldom than the window is long each was a value, and one of them a trip."""
    found = [5.0, 500.0, 6.0, 7.0]
    frame = pl.DataFrame({"ts_ms": [START_MS + 10_000 * n for n in range(4)], "value": found})
    fields = RULE | {"kind": kind, "threshold": 100, "window_ms": 3000, "eval_interval_ms": 1000}
    _, content = page_of(tmp_path / "r.html", fields, frame)
    (rule,) = content["rules"]
    assert rule["moves"][0][1:3] == ["closed", "open"]
    assert rule["value"][1] == found
    assert list(accumulate(rule["value"][0])) == frame["ts_ms"].to_list()
