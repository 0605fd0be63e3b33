"""Suggestions: as good as the best of a dense sweep, the same whatever the order, and sober about poor samples."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from api.cli import output
from api.cli.main import app
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Rule, Transition
from pipelines.backtest import BacktestWarning, backtest
from pipelines.columns import Samples
from pipelines.frames import read_series
from pipelines.replay.scoring import Labelled, Tally, labelled
from pipelines.replay.vectorized.judge import Judge
from pipelines.suggest.bounds import Limits, course
from pipelines.suggest.measures import Measure, measures, thresholds
from pipelines.suggest.reasons import why_found
from pipelines.suggest.search import Search
from pipelines.suggest.suggestion import Invalid, suggest
from tests.support.series import LATENCY, SERIES, WINDOWS

ROOT = Path(__file__).parents[3]
MINUTE_MS = 60_000
START_MS = 1_700_000_000_000


def samples_of(values: Any, apart_ms: int = MINUTE_MS) -> Samples:
    at = START_MS + apart_ms * np.arange(len(values))
    return Samples(at, at, np.asarray(values, np.float64), np.ones(len(values), np.bool_))


def labels_of(path: Path) -> list[Labelled]:
    return labelled(path.parent / "anomaly_windows_ms.json" if path == LATENCY else WINDOWS, [path.name])


def series(path: Path) -> Samples:
    batch = read_series(path)
    return Samples(batch.ts_ms, batch.ts_ms, batch.value, batch.ok)


@pytest.mark.parametrize("path", SERIES, ids=lambda path: path.stem)
def test_all_failures_of_a_real_series_are_caught_without_a_false_trip(path: Path) -> None:
    """A single rule can do it on each of the three, so the suggestion does."""
    search = Search(Judge(series(path)), labels_of(path))
    found = search.best(measures(series(path), "value"))
    assert found is not None
    assert (found.outcome.caught, found.outcome.false_trips) == (len(search.windows), 0)
    assert min(found.from_threshold, found.to_threshold) <= max(found.from_threshold, found.outcome.rule.threshold)


walks = st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 5.0, 5.5, 8.0, 20.0]), min_size=30, max_size=160)
spans = st.lists(st.tuples(st.integers(0, 150), st.integers(1, 30)), min_size=1, max_size=3)


@settings(max_examples=20, deadline=None)
@given(values=walks, labels=spans, apart=st.sampled_from([MINUTE_MS, 7_000]), grace_ms=st.sampled_from([0, 90_000]))
@example(values=[0.0] * 44 + [1.0, 0.0], labels=[(14, 30), (15, 1), (45, 1)], apart=MINUTE_MS, grace_ms=0)
def test_no_setting_of_the_grid_is_better(values: list[float], labels: Any, apart: int, grace_ms: int) -> None:
    """Judging every setting by a replay finds none that catches more, or as much with fewer false trips; and no bound
    promises less than a setting does."""
    history = samples_of(values, apart)
    windows = sorted(Labelled(START_MS + apart * at, START_MS + apart * (at + long)) for at, long in labels)
    judge = Judge(history)
    search = Search(judge, windows, grace_ms, 120)
    tried = measures(history, "m")
    found = search.best(tried)
    best = (0, 0)
    for measure in tried:
        told = course(judge, measure)
        assert told is not None
        limits = Limits(told, measure.rule, search.windows, grace_ms, judge.first_ms)
        for step in thresholds(told.high, max(1, 120 // len(tried))):
            done = search.outcome(measure.at(measure.sign * step))
            assert limits.caught(step) >= done.caught
            assert limits.false_trips(step) <= done.false_trips
            if done.caught == limits.caught(step) and done.latency_ms is not None:
                assert limits.latency(step) <= done.latency_ms
            best = max(best, (done.caught, -done.false_trips))
    if found is None:
        assert best[0] == 0
    else:
        assert (found.outcome.caught, -found.outcome.false_trips) == best


def test_judging_is_replaying() -> None:
    """The judge, with and without what rules share, tells what a backtest of the same settings tells."""
    history, windows = series(LATENCY), labels_of(LATENCY)
    judge = Judge(history)
    frame = pl.DataFrame({"ts_ms": history.ts_ms, "value": history.value})
    for measure in measures(history, "value")[3:16:6]:
        rules = [measure.at(threshold) for threshold in (44.0, 46.0, 52.0, 1.5)]
        cuts = judge.cuts(rules)
        for rule in rules:
            tally = Tally(windows, kept=False)
            assert judge.follow(rule, tally, cuts)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                done = backtest(rule, frame, windows=windows).summary.to_dicts()[0]
            assert (tally.trips, tally.false_trips) == (done["trips"], done["false_trips"])
            assert (len(tally.latencies()), tally.time_in["open"]) == (done["caught"], done["open_ms"])


@settings(max_examples=6, deadline=None)
@given(values=walks, seed=st.integers(0, 99))
def test_the_order_of_rows_and_labels_changes_nothing(values: list[float], seed: int) -> None:
    rows = samples_of(values)
    frame = pl.DataFrame({"ts_ms": rows.ts_ms, "value": rows.value})
    windows = [[START_MS, START_MS + 5 * MINUTE_MS], [START_MS + 20 * MINUTE_MS, START_MS + 25 * MINUTE_MS]]
    one = suggest(frame, windows=windows, settings=60)
    other = suggest(frame.sample(fraction=1, shuffle=True, seed=seed), windows=windows[::-1], settings=60, sort=True)
    assert one.rules == other.rules
    assert suggest(frame).rules == suggest(frame.sample(fraction=1, shuffle=True, seed=seed), sort=True).rules


@pytest.mark.parametrize(
    "values", [[1.0], [5.0] * 200, [0.0] * 199 + [1e300], [-1e300, 1e300] * 50, [float(i) for i in range(9)]]
)
@pytest.mark.parametrize("windows", [None, [[START_MS, START_MS + MINUTE_MS]]])
def test_poor_samples_are_taken_soberly(values: list[float], windows: Any) -> None:
    """One sample, constants, extremes: an answer, never a crash; and what is suggested keeps the budget."""
    rows = samples_of(values)
    found = suggest(pl.DataFrame({"ts_ms": rows.ts_ms, "value": rows.value}), windows=windows, settings=200)
    assert found.why
    assert len(found.frame) == len(found.rules)
    if windows is None:
        assert found.frame["incidents"].sum() == 0


def test_what_is_no_number_or_nothing_is_refused() -> None:
    with pytest.raises(Invalid, match="no sample"):
        suggest(pl.DataFrame({"ts_ms": [], "value": []}, {"ts_ms": pl.Int64, "value": pl.Float64}))
    with pytest.raises(Invalid):
        suggest(pl.DataFrame({"ts_ms": [START_MS], "value": [float("nan")]}))
    with pytest.raises(Invalid, match="several metrics"):
        suggest(pl.DataFrame({"ts_ms": [START_MS] * 2, "value": [1.0, 2.0], "metric": ["a", "b"]}))


def test_a_budget_is_kept_and_an_incident_does_not_hide_the_next() -> None:
    """Four weeks of a daily course with two incidents: with one trip a week the breaker trips in them alone."""
    hours = np.arange(4 * 7 * 24 * 12) / 12
    noise = np.random.default_rng(7).gamma(2.0, 2.0, len(hours))
    values = 100 + 50 * np.sin(hours / 24 * 2 * np.pi) + noise
    values[4000:4024] += 400
    values[7000:7012] += 300
    rows = samples_of(values, 300_000)
    frame = pl.DataFrame({"ts_ms": rows.ts_ms, "value": rows.value})
    found = suggest(frame, trips_a_week=1)
    assert found.run is not None
    high = found.frame.row(by_predicate=pl.col("op") == "gt", named=True)
    assert 160 < high["threshold"] < 400
    moves = [one for run in found.run.runs for one in run.tally.effects if isinstance(one, Transition)]
    trips = {int(np.searchsorted(rows.at, move.ts_ms)) // 1000 for move in moves if move.curr == "open"}
    assert trips == {4, 7}
    assert suggest(frame, trips_a_week=0).frame["incidents"].sum() == 0


def test_only_the_threshold_of_a_given_rule_is_chosen() -> None:
    rule = {"name": "slow", "metric": "latency", "kind": "avg", "op": "gt", "window_ms": 600_000, "min_count": 2}
    rule |= {"eval_interval_ms": 60_000, "cooldown_ms": 1_800_000}
    found = suggest(LATENCY, rule=rule, columns={"ts_ms": "timestamp"}, windows=labels_of(LATENCY), settings=30)
    ((name, fields),) = found.rules.items()
    assert name == "slow"
    assert {key: fields[key] for key in rule if key != "name"} == {k: v for k, v in rule.items() if k != "name"}
    assert found.frame["caught"][0] == 3


def test_what_tells_apart_lies_between_the_values() -> None:
    assert thresholds(np.array([1.0, 3.0, 3.0, 7.0, -np.inf]), 10) == [5.0, 2.0]
    assert thresholds(np.array([2.0, 2.0]), 10) == []
    many = thresholds(np.arange(5000.0), 100)
    assert len(many) <= 100
    assert many[:50] == [4998.5 - i for i in range(50)]
    assert isinstance(measures(samples_of([1.0, 2.0]), "m")[0], Measure)


def test_the_guides_commands_print_what_it_shows(tmp_path: Path) -> None:
    """The blocks of docs/guides/suggest.md, run as they stand there; what they print is a file of rules."""
    (tmp_path / "api").symlink_to(ROOT / "api")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    page = (ROOT / "docs" / "guides" / "suggest.md").read_text()
    for script in re.findall(r"```bash\n(.*?)```", page, re.DOTALL):
        done = subprocess.run(
            ["bash", "-ec", script.replace("uv run breakers", "breakers")],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        assert yaml.safe_load(done.stdout)["breakers"]
        if "--out" in script:
            assert (tmp_path / "latency.yaml").read_text() == done.stdout
            assert "latency-stddev-high" in (tmp_path / "report.html").read_text()
            for trip in re.findall(r"trip 2014.*", page):
                assert trip in done.stderr


def test_the_example_goes_from_parquet_to_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = runpy.run_path(str(ROOT / "examples" / "suggest.py"))
    assert done["run"].summary["caught"].to_list() == [1]
    assert done["run"].summary["false_trips"].to_list() <= [1], "of two weeks that were not seen"
    assert (tmp_path / "report.html").exists()


def gated(rule: Rule, usual: float) -> str:
    """The state at the end, when calls make samples as far as the breaker lets them: bad ones first, then good ones."""
    breaker, _ = Breaker.create(rule, START_MS)
    apart_ms, now, owed = rule.window_ms / usual, START_MS, 0.0
    for number in range(int(usual * 40)):
        now = START_MS + int(number * apart_ms)
        breaker.advance(now - 1)
        owed += breaker.allow_rate
        if owed >= 1:
            owed -= 1
            bad = number < 3 * usual
            value = np.array([500.0 if bad else 1.0])
            breaker.ingest(Batch(np.array([now]), value, np.array([not bad])), now)
    return breaker.record().state


@pytest.mark.parametrize("apart_ms", [1_000, 20_000])
def test_a_breaker_that_gates_its_own_samples_recovers(apart_ms: int) -> None:
    """What is suggested asks for no more samples than the first step of half_open lets through."""
    history = samples_of(np.arange(4_000.0) % 7, apart_ms)
    tried = [one for one in measures(history, "m") if one.rule.op == "gt" and one.rule.kind != "stddev"]
    assert {one.rule.kind for one in tried} >= {"max", "avg", "p95"}
    for one in tried:
        usual = one.rule.window_ms / apart_ms
        if usual >= 10:
            assert gated(one.at(100.0), usual) == "closed", one.rule


def test_a_rule_whose_recovery_would_wait_without_end_is_told(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ts_ms": [START_MS + 6_000 * n for n in range(2_000)], "value": [1.0, 2.0] * 1_000})
    given = {"metric": "m", "kind": "avg", "op": "gt", "window_ms": 60_000}
    starved = suggest(frame, rule=given | {"min_count": 8})
    assert "half_open waits without end: its first step lets 1 of 5 of them, some 2 samples in 1 min" in starved.why[1]
    assert len(suggest(frame, rule=given | {"min_count": 2}).why) == 1


@pytest.mark.parametrize("name", ["found.json", "found.yaml", "found"])
def test_the_file_is_what_its_name_says(tmp_path: Path, name: str) -> None:
    """JSON or YAML; a backtest reads both."""
    given = ["suggest", str(LATENCY), "--column", "ts_ms=timestamp", "--out", str(tmp_path / name)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    text = (tmp_path / name).read_text()
    if name.endswith(".json"):
        assert json.loads(text) == yaml.safe_load(done.stdout)
        assert backtest(tmp_path / name, LATENCY, columns={"ts_ms": "timestamp"}).runs
    else:
        assert text == done.stdout


def test_the_command_names_its_own_options() -> None:
    done = CliRunner().invoke(app, ["suggest", str(LATENCY), "--column", "timestamp=ts_ms"])
    assert done.exit_code == 2
    assert "did you mean --column ts_ms=timestamp?" in done.stderr


def of_services(tmp_path: Path) -> Path:
    """Three services that take turns; the values of one are far above those of the others."""
    ts_ms = [START_MS + 1_000 * n for n in range(9_000)]
    value = np.random.default_rng(7).exponential(2.0, 9_000) + 1_000.0 * (np.arange(9_000) % 3 == 0)
    frame = pl.DataFrame({"ts_ms": ts_ms, "value": value, "service": ["checkout", "search", "mail"] * 3_000})
    frame.write_parquet(tmp_path / "s.parquet")
    return tmp_path / "s.parquet"


def test_a_suggestion_for_one_service_of_several(tmp_path: Path) -> None:
    """What counts as one series is told, as a backtest does; --router takes one."""
    path = str(of_services(tmp_path))

    def asked(*given: str) -> Any:
        return CliRunner().invoke(app, ["suggest", path, "--metric", "latency", *given])

    assert "--column router_id=service tells them apart" in asked().stderr
    pooled = asked("--column", "router_id=service").stderr
    assert "samples of 3 routers (checkout, mail, search) count as one series; name router_ids" in pooled
    assert "or say --router\n" in pooled
    one = asked("--column", "router_id=service", "--router", "Search", "--json")
    assert (one.exit_code, "one series" in one.stderr) == (0, False)
    assert json.loads(one.stdout)["suggested"][0]["threshold"] < 100
    wrong = asked("--column", "router_id=service", "--router", "shop")
    assert (wrong.exit_code, "there are router_id: 'checkout', 'search', 'mail'" in wrong.stderr) == (2, True)
    both = asked("--column", "router_id=service", "--router", "mail", "--router", "shop")
    assert (both.exit_code, "no sample has router_id 'shop'; there are router_id: " in both.stderr) == (2, True)
    unnamed = asked("--router", "mail")
    assert (unnamed.exit_code, "--router: the samples have no column router_id" in unnamed.stderr) == (2, True)


def test_of_one_router_only_its_own_metrics_are_told(tmp_path: Path) -> None:
    """What other routers have needs no --metric, and is not offered for one that there is not."""
    path, ts_ms = tmp_path / "s.parquet", [START_MS + 1_000 * n for n in range(400)]
    named = {"router_id": ["ec2", "rds"] * 200, "metric": ["cpu", "cpu", "latency", "cpu"] * 100}
    pl.DataFrame({"ts_ms": ts_ms, "value": 5.0} | named).write_parquet(path)

    def asked(*given: str) -> str:
        return CliRunner().invoke(app, ["suggest", str(path), *given]).stderr

    assert "say which: cpu, latency" in asked("--router", "ec2")
    assert "say which" not in asked("--router", "rds")
    told = asked("--router", "rds", "--metric", "latency")
    assert (
        "no sample has metric 'latency' and router_id 'rds'; there are metric: 'cpu'; router_id: 'ec2', 'rds'" in told
    )


def test_what_is_left_out_may_be_in_any_order(tmp_path: Path) -> None:
    """A folder of series, each of which begins anew: only the one that is asked for has to be in order."""
    found = suggest(str(folder_of_series(tmp_path)), metric="cpu", routers=["rds"])
    assert found.frame["metric"].unique().to_list() in ([], ["cpu"])
    with pytest.raises(Invalid, match=r"comes after \d+; all that is given is one series"):
        suggest(str(folder_of_series(tmp_path)), metric="cpu")


def folder_of_series(tmp_path: Path) -> Path:
    """Two routers with two metrics each, by folders, all of the same span of time."""
    frame = pl.DataFrame({"ts_ms": [START_MS + 1_000 * n for n in range(200)], "value": 5.0})
    for router, metric in ((r, m) for r in ("ec2", "rds") for m in ("cpu", "latency")):
        folder = tmp_path / "hive" / f"router_id={router}" / f"metric={metric}"
        folder.mkdir(parents=True, exist_ok=True)
        frame.write_parquet(folder / "part.parquet")
    return tmp_path / "hive"


def test_the_function_warns_of_what_is_pooled(tmp_path: Path) -> None:
    frame, columns = pl.read_parquet(of_services(tmp_path)), {"router_id": "service"}
    with pytest.warns(BacktestWarning, match=r"count as one series; give routers=\[\.\.\.\]"):
        found = suggest(frame, metric="latency", columns=columns)
    assert any("count as one series" in remark for remark in found.remarks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = suggest(frame, metric="latency", columns=columns, routers="mail")
    assert one.remarks == ()
    assert one.frame["threshold"].max() < 100  # type: ignore[operator]


@pytest.mark.parametrize("windows", [None, [[START_MS, START_MS + MINUTE_MS]]])
def test_of_nothing_suggested_the_samples_are_remarked_on(windows: Any) -> None:
    """It may be why: samples of several things count as one series, or none of them says that it failed."""
    ts_ms = [START_MS + 1_000 * n for n in range(200)]
    frame = pl.DataFrame({"ts_ms": ts_ms, "value": 5.0, "service": ["a", "b"] * 100, "zone": 1})
    with pytest.warns(BacktestWarning):
        found = suggest(frame, windows=windows, settings=50, columns={"router_id": "service"})
    assert (found.rules, found.run) == ({}, None)
    assert found.remarks[0].startswith("samples of 2 routers (a, b) count as one series")
    assert found.remarks[1:] == ("not read: zone",)
    rule = {"metric": "m", "kind": "error_rate", "op": "gt", "window_ms": 60_000}
    with pytest.warns(BacktestWarning):
        blind = suggest(frame, rule=rule, windows=windows, settings=50)
    assert blind.rules == {}
    assert blind.remarks[0].startswith("the samples have no column ok, so none of them failed, and the rule can't open")


class Ticking:
    """A clock that is a second later each time it is asked."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_ms(self) -> int:
        return START_MS

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


def test_a_limit_in_time_ends_the_search_with_the_best_so_far() -> None:
    """And what speaks for it says so, instead of that nothing is better."""
    history, told = series(LATENCY), list[str]()
    tried = measures(history, "value")
    clock = Ticking()
    whole = Search(Judge(history), labels_of(LATENCY), clock=clock).best(tried)
    search = Search(Judge(history), labels_of(LATENCY), limit_s=clock.seconds - 3, tell=told.append, clock=Ticking())
    found = search.best(tried)
    assert whole is not None
    assert found is not None
    assert (whole.cut_short, found.cut_short) == (False, True)
    assert found.judged < whole.judged
    assert told[-1] == f"{found.judged} settings judged"
    words = why_found(found, len(tried))
    assert "time limit was met" in words
    assert "none catches more" not in words
    assert "narrow ridge" not in words


def test_a_limit_that_comes_too_early_is_said() -> None:
    found = suggest(LATENCY, windows=labels_of(LATENCY), columns={"ts_ms": "timestamp"}, settings=30, time_limit_s=0)
    assert (found.rules, found.cut_short) == ({}, True)
    assert found.why == ["the time limit of 0 s was met before a setting was found that catches a failure"]


def test_a_long_suggestion_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off a terminal, too: lines on stderr, and the rules alone on stdout."""
    monkeypatch.setattr(output, "SAY_EACH_S", 0.0)
    done = CliRunner().invoke(app, ["suggest", str(LATENCY), "--column", "ts_ms=timestamp"])
    assert done.exit_code == 0, done.output
    assert re.search(r"^breakers: 1 of \d+ measures tried, \d+ s$", done.stderr, re.MULTILINE)
    assert "measures tried" not in done.stdout
