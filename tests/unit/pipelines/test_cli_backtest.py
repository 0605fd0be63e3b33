"""`breakers backtest`: tables, JSON, files, and one line for what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner, Result

from api.cli.backtest import span, time
from api.cli.main import app
from pipelines.backtest import backtest
from pipelines.replay.run import replayed
from pipelines.report import page as report
from tests.support import series

LATENCY = str(series.LATENCY)
RULE: dict[str, Any] = {
    "name": "jitter", "metric": "latency", "kind": "stddev", "op": "gt", "threshold": 4, "window_ms": 7_200_000,
    "min_count": 4, "eval_interval_ms": 300_000, "min_state_duration_ms": 3_600_000, "cooldown_ms": 7_200_000,
}  # fmt: skip


@pytest.fixture
def rule(tmp_path: Path) -> str:
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(RULE))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["backtest", *arguments], env={"COLUMNS": "120"})


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2
    assert words in result.stderr
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_tables(rule: str) -> None:
    """Transitions, time in each state, labelled failures, and which settings of a sweep are best."""
    windows = str(series.WINDOWS)
    sweep = "threshold=3:5:1,window_ms=3600000,7200000"
    result = run("--rule", rule, LATENCY, "--column", "ts_ms=timestamp", "--windows", windows, "--sweep", sweep)
    assert result.exit_code == 0, result.output
    assert "2014-03-07 03:41:00 to 2014-03-21 03:41:00 UTC, 14 d" in result.stdout
    assert "1  2014-03-18 22:36:00  closed → open       threshold_exceeded  4.65941" in result.stdout
    assert "closed 13 d 20 h (98.91%), half_open 1 h (0.30%), open 2 h 40 min (0.79%)" in result.stdout
    assert "labelled failures caught: 2 of 3, false: 0" in result.stdout
    assert "trip after 5 h 30 min" in result.stdout
    last = result.stdout.splitlines()[-1]
    assert last.startswith("all 3 labelled failures with fewest false trips (0): ")
    assert set(last.partition("(0): ")[2].split("; ")) == {
        "threshold=3, window_ms=7200000", "threshold=4, window_ms=3600000",
    }  # fmt: skip


def test_json_and_files(rule: str, tmp_path: Path) -> None:
    """--json prints one object; the transitions and the page are written beside it."""
    out, report = tmp_path / "events.parquet", tmp_path / "report.html"
    result = run(
        "--rule", rule, LATENCY, "--column", "ts_ms=timestamp", "--json", "--out", str(out), "--report", str(report)
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    known = backtest(RULE, LATENCY, columns={"ts_ms": "timestamp"})
    assert told == json.loads(json.dumps(known.to_dict()))
    assert pl.read_parquet(out).equals(known.transitions)
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["events.parquet", "report.html", "rule.json"]


@pytest.mark.parametrize(("suffix", "lines"), [("csv", 5), ("ndjson", 4)])
def test_text_files(rule: str, tmp_path: Path, suffix: str, lines: int) -> None:
    out = tmp_path / f"events.{suffix}"
    result = run("--rule", rule, LATENCY, "--column", "ts_ms=timestamp", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert f"wrote {out}" in result.stdout.replace("\n", "")
    assert len(out.read_text().splitlines()) == lines


def test_many_moves_and_no_move(tmp_path: Path) -> None:
    """A long table is cut, a rule that never moves is said to; ignored fields are told on stderr."""
    ts_ms = 1_700_000_000_000 + np.arange(0, 600_000, 10)
    pl.DataFrame({"ts_ms": ts_ms, "value": np.sin(ts_ms / 1000)}).write_parquet(tmp_path / "s.parquet")
    busy = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 0.5, "window_ms": 100, "min_state_duration_ms": 0,
            "eval_interval_ms": 100, "recovery_allow_rate_ramp_steps": 1, "name": "[busy]"}  # fmt: skip
    (tmp_path / "rules.json").write_text(json.dumps([busy | {"tresholds": 1}, busy | {"threshold": 5, "name": "calm"}]))
    result = run("--rule", str(tmp_path / "rules.json"), str(tmp_path / "*.parquet"))
    assert result.exit_code == 0, result.output
    assert "more; --out writes them all" in result.stdout
    assert "\n[busy]\n" in result.stdout
    assert "calm: no transition" in result.stdout
    ignored = "[busy]: ignored tresholds, which is no field of a breaker; did you mean threshold?"
    assert result.stderr == f"breakers: {ignored}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.csv"], "none.csv can't be read: No such file"),
        ([LATENCY], "there is no column 'ts_ms', there are timestamp, value; rename one with --column ts_ms=THEIRS"),
        ([LATENCY, "--column", "ts_ms"], "--column 'ts_ms': expected OURS=THEIRS"),
        ([LATENCY, "--column", "when=timestamp"], "'when' is none of our columns; there are ts_ms"),
        ([LATENCY, "--out", "events.txt"], "events.txt: transitions are written as .parquet, .csv, .ndjson"),
        ([LATENCY, "--report", "no/where.html"], "no/where.html can't be written: there is no directory no"),
        ([LATENCY, "--sweep", "threshold"], "expected field=first:last:step"),
        ([LATENCY, "--windows", "none.json"], "none.json can't be read"),
        ([LATENCY, "--memory-mb", "10"], "10 MB are too few"),
        ([LATENCY, "--rule", "none.json"], "none.json can't be read"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(rule: str, arguments: list[str], words: str) -> None:
    refused(run("--rule", rule, *arguments), words)


def test_a_bad_row_leaves_nothing_behind(rule: str, tmp_path: Path) -> None:
    """Found out in the middle: no output, no file."""
    text = "ts_ms,value\n" + "".join(f"{i},1\n" for i in range(5000)) + "5000,x\n"
    (tmp_path / "s.csv").write_text(text)
    arguments = ["--out", str(tmp_path / "e.csv"), "--report", str(tmp_path / "r.html"), "--json"]
    refused(
        run("--rule", rule, str(tmp_path / "s.csv"), *arguments), "s.csv, row 5001: value 'x' is not a finite number"
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["rule.json", "s.csv"]


def test_a_text_of_any_length_is_refused_in_words(rule: str, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("ts_ms,value\n1,2\n3,4," + "x" * 200_000 + "\n")
    refused(run("--rule", rule, str(tmp_path / "s.csv")), "s.csv can't be read")


def test_no_file_without_the_other(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transitions and page appear together: neither when the samples can't be read a second time, or when the
    page can't be put in its place. What was there stays."""
    samples, out, page = tmp_path / "s.csv", tmp_path / "e.csv", tmp_path / "r.html"
    samples.write_bytes(Path(LATENCY).read_bytes())
    out.write_text("old")
    arguments = ["--rule", rule, str(samples), "--column", "ts_ms=timestamp", "--out", str(out), "--report", str(page)]
    page.mkdir()
    refused(run(*arguments), "r.html can't be written: Is a directory")
    page.rmdir()

    def again(*given: Any) -> None:
        samples.unlink()
        replayed(*given)

    monkeypatch.setattr(report, "replayed", again)
    refused(run(*arguments), "s.csv can't be read: No such file")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["e.csv", "rule.json"]
    assert out.read_text() == "old"


HUGE = 10**30


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.parquet": {"ts_ms": [1]}}, "a.parquet: there is no column 'value', there are ts_ms"),
        ({"a.csv": "ts_ms,value\n1,2\n2,x\n"}, "a.csv, row 2: value 'x' is not a finite number"),
        ({"a.parquet": {"ts_ms": [1], "value": [True]}}, "a.parquet: its column 'value' is Boolean, not numbers"),
        ({"a.parquet": {"ts_ms": [1, 3, 2], "value": [1, 1, 1]}}, "a.parquet, row 3: ts_ms 2 comes after 3"),
        ({"a.csv": ""}, "a.csv is empty"),
        ({"a.csv": "ts_ms,value\n"}, "a.csv: there is no sample in it"),
        ({"a.parquet": {"ts_ms": [1, 2], "value": [1.0, float("nan")]}}, "a.parquet, row 2: value nan is not"),
        ({"a.ndjson": f'{{"ts_ms":{HUGE},"value":1}}\n'}, f"a.ndjson, row 1: ts_ms '{HUGE}' is not a time"),
        ({"a.parquet": {"ts_ms": [1 << 62], "value": [1]}}, f"a.parquet, row 1: ts_ms {1 << 62} is not Unix"),
        ({"a.csv": f"ts_ms,value\n1,{HUGE}{HUGE * 10**300}\n"}, "a.csv, row 1: value '1000"),
        ({"a.parquet": b"PAR1 and then no more"}, "a.parquet can't be read: "),
        (
            {"a.parquet": {"ts_ms": [1], "value": [1]}, "b.parquet": {"ts_ms": [2], "value": ["1"]}},
            "b.parquet: its column 'value' is text, in ",
        ),
    ],
)
def test_bad_input(rule: str, tmp_path: Path, files: dict[str, Any], words: str) -> None:
    """One line with file, row and column; nothing is printed or written."""
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        path = tmp_path / "in" / name
        if isinstance(content, dict):
            pl.DataFrame(content).write_parquet(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    out = [f"--{kind}={tmp_path / name}" for kind, name in (("out", "e.parquet"), ("report", "r.html"))]
    result = run("--rule", rule, str(tmp_path / "in" / "*"), *out)
    refused(result, words)
    assert len(result.stderr.splitlines()) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "rule.json"]


def test_received_ms_is_the_order(tmp_path: Path) -> None:
    """With received_ms ts_ms may be late; without it the same rows are not in order."""
    rule = {"metric": "m", "kind": "max", "op": "gt", "threshold": 5, "window_ms": 1000, "min_state_duration_ms": 0}
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    (tmp_path / "s.csv").write_text("ts_ms,received_ms,value\n1000,1000,1\n900,1500,9\n2000,2000,1\n400,2100,9\n")
    arguments = ["--rule", str(tmp_path / "rule.json"), str(tmp_path / "s.csv"), "--json"]
    told = json.loads(run(*arguments).stdout)
    assert [(move["ts_ms"], move["curr"]) for move in told["transitions"]][:1] == [(1500, "open")]
    assert (told["summary"]["rules"][0]["samples"], told["summary"]["rules"][0]["late"]) == (4, 1)
    shown = run(*arguments[:-1]).stdout
    assert "too late to count (older than the window, or from before its state began): 1" in shown
    (tmp_path / "s.csv").write_text("ts_ms,value\n1000,1\n900,9\n")
    refused(run(*arguments), "s.csv, row 2: ts_ms 900 comes after 1000")
    assert json.loads(run(*arguments, "--sort").stdout)["summary"]["from_ms"] == 900


def test_rows_that_no_rule_takes_may_be_in_any_order(rule: str, tmp_path: Path) -> None:
    """Folders of series begin anew; what is taken has to be in order, its first row in a file included."""
    rows = {"ts_ms": [1_000, 2_000, 3_000], "value": [1.0, 2.0, 3.0]}
    for router, metric in ((r, m) for r in ("ec2", "rds") for m in ("latency", "size")):
        folder = tmp_path / "hive" / f"router_id={router}" / f"metric={metric}"
        folder.mkdir(parents=True)
        pl.DataFrame(rows).write_parquet(folder / "a.parquet")
    arguments = ["--rule", rule, str(tmp_path / "hive"), "--json"]
    told = json.loads(run(*arguments, "--router", "rds").stdout)
    assert (told["summary"]["rules"][0]["samples"], told["summary"]["from_ms"]) == (3, 1_000)
    refused(run(*arguments), "row 1: ts_ms 1000 comes after 3000; all that is given is one series")
    frame = pl.DataFrame({"ts_ms": [5, 1, 9, 6], "value": 1.0, "router_id": ["rds", "ec2", "rds", "rds"]})
    frame.write_parquet(tmp_path / "mixed.parquet")
    mixed = ["--rule", rule, str(tmp_path / "mixed.parquet"), "--router", "rds"]
    refused(run(*mixed), "mixed.parquet, row 4: ts_ms 6 comes after 9; samples are read in order of time")


def test_sort(rule: str, tmp_path: Path) -> None:
    lines = series.LATENCY.read_text().splitlines()
    (tmp_path / "s.csv").write_text("\n".join([lines[0], *reversed(lines[1:])]))
    arguments = ["--rule", rule, str(tmp_path / "s.csv"), "--column", "ts_ms=timestamp", "--json"]
    refused(run(*arguments), "s.csv, row 2: timestamp")
    told = json.loads(run(*arguments, "--sort").stdout)
    assert told["transitions"] == backtest(RULE, LATENCY, columns={"ts_ms": "timestamp"}).to_dict()["transitions"]


def test_words() -> None:
    assert [span(ms) for ms in (0, 999, 1000, 61_000, 3_600_000, 90_061_000)] == [
        "0 ms", "999 ms", "1 s", "1 min 1 s", "1 h", "1 d 1 h",
    ]  # fmt: skip
    assert [time(0), time(1_700_000_000_123)] == ["1970-01-01 00:00:00", "2023-11-14 22:13:20.123"]


def test_windows_outside_of_the_samples_are_told(rule: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("[[0, 1]]")
    windows = ["--windows", str(tmp_path / "w.json"), "--sweep", "threshold=3,4"]
    result = run("--rule", rule, LATENCY, "--column", "ts_ms=timestamp", *windows)
    assert result.stderr.startswith("breakers: 1 of 1 labelled windows lie outside of the samples (2014-03-07 03:41:00")
    assert "no samples" in result.stdout
    assert "labelled failures caught: 0 of 0" in result.stdout
    assert result.stderr.endswith("; windows are Unix milliseconds or ISO 8601; --time-unit is for samples alone\n")
    told = json.loads(run("--rule", rule, LATENCY, "--column", "ts_ms=timestamp", *windows, "--json").stdout)
    assert [f"breakers: {remark}\n" for remark in told["warnings"]] == [result.stderr]
    assert told["summary"]["rules"][0]["caught_all"] is None


@pytest.mark.parametrize("content", ["[" * 100_000, "[[" + "1" * 5_000 + ", 1]]"])
def test_windows_that_nobody_can_read_are_told(rule: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(content)
    refused(run("--rule", rule, LATENCY, "--windows", str(tmp_path / "w.json")), "w.json")


def test_no_setting_catches_all(rule: str, tmp_path: Path) -> None:
    """Then those that catch most are named."""
    windows = [[1394163660000, 1394163660001], [1395182160000, 1395182160000]]
    (tmp_path / "w.json").write_text(json.dumps(windows))
    options = ["--column", "ts_ms=timestamp", "--windows", str(tmp_path / "w.json"), "--sweep", "threshold=4,400"]
    last = run("--rule", rule, LATENCY, *options).stdout.splitlines()[-1]
    assert last.startswith("no setting catches all 2 labelled failures; most (1) with fewest false trips (")
    assert last.endswith("): threshold=4")
    last = run("--rule", rule, LATENCY, *options[:-1], "threshold=400,500").stdout.splitlines()[-1]
    assert last == "no setting catches any of the 2 labelled failures"


def test_units_of_rules_and_sweeps(rule: str, tmp_path: Path) -> None:
    """A rule and a sweep in units come to what milliseconds come to."""
    timed = RULE | {"window": "2h", "cooldown_ms": "2h", "eval_interval": "5m", "min_state_duration": "1h"}
    (tmp_path / "timed.json").write_text(json.dumps({k: v for k, v in timed.items() if k not in MS}))
    options = [LATENCY, "--column", "ts_ms=timestamp", "--json", "--sweep"]
    plain = run("--rule", rule, *options, "window_ms=3600000,7200000")
    units = run("--rule", str(tmp_path / "timed.json"), *options, "window=1h:2h:1h")
    assert (units.exit_code, units.stderr, units.stdout) == (0, plain.stderr, plain.stdout)


MS = ("window_ms", "eval_interval_ms", "min_state_duration_ms")


def test_a_sweep_without_labels_recommends_no_rule_that_never_trips(rule: str) -> None:
    options = ["--rule", rule, LATENCY, "--column", "ts_ms=timestamp", "--sweep"]
    last = run(*options, "threshold=400,4,500").stdout.splitlines()[-1]
    assert last == "of those that trip, fewest times (2): threshold=4; --windows, labelled failures, says which is best"
    last = run(*options, "threshold=400,500").stdout.splitlines()[-1]
    assert last == "no setting ever trips; --windows, labelled failures, says which setting is best"
    last = run(*options, "min_count=1:12:1").stdout.splitlines()[-1]
    assert re.search(r"\(\d+\): min_count=\d+; min_count=\d+; min_count=\d+ and \d+ more; --windows", last)


def test_the_breaker_that_the_service_shows_takes_samples_of_its_routers(tmp_path: Path) -> None:
    """`breakers get --json` names them; a rule without routers takes samples of all of them, which is told."""
    ts_ms = range(1_700_000_000_000, 1_700_000_060_000, 1000)
    routers = [str(uuid4()), str(uuid4())]
    pl.DataFrame({"ts_ms": ts_ms, "value": 1.0, "router_id": routers * 30}).write_parquet(tmp_path / "s.parquet")
    (tmp_path / "mine.json").write_text(json.dumps(RULE | {"router_ids": routers[:1], "status": {"state": "closed"}}))
    (tmp_path / "all.json").write_text(json.dumps(RULE))
    mine, whole = (
        run("--rule", str(tmp_path / f"{name}.json"), str(tmp_path / "s.parquet")) for name in ("mine", "all")
    )
    assert (mine.stderr, "30 samples" in mine.stdout) == ("", True)
    named = ", ".join(sorted(routers))
    words = f"samples of 2 routers ({named}) count as one series; name router_ids in the rule, or say --router"
    assert whole.stderr == f"breakers: {words}\n"
    one = run("--rule", str(tmp_path / "all.json"), str(tmp_path / "s.parquet"), "--router", routers[0].upper())
    assert (one.stderr, "30 samples" in one.stdout) == ("", True)


def test_one_service_of_a_file_of_several_is_chosen(tmp_path: Path) -> None:
    """First it is told how; a name that there is none of is refused with those that there are."""
    ts_ms = range(1_700_000_000_000, 1_700_000_060_000, 1000)
    frame = pl.DataFrame({"ts_ms": ts_ms, "value": 1.0, "service": ["checkout", "search"] * 30})
    frame.write_parquet(tmp_path / "s.parquet")
    (tmp_path / "rule.json").write_text(json.dumps(RULE))
    given = ("--rule", str(tmp_path / "rule.json"), str(tmp_path / "s.parquet"))
    assert "--column router_id=service tells them apart" in run(*given).stderr
    one = run(*given, "--column", "router_id=service", "--router", "checkout")
    assert (one.stderr, "30 samples" in one.stdout) == ("", True)
    wrong = run(*given, "--column", "router_id=service", "--router", "mail")
    assert wrong.exit_code == 2
    assert "there are router_id: 'checkout', 'search'" in wrong.stderr
    both = run(*given, "--column", "router_id=service", "--router", "Checkout", "--router", "chekout")
    assert (both.exit_code, both.stdout) == (2, "")
    assert "no sample has router_id 'chekout'; there are router_id: 'checkout', 'search'" in both.stderr
    all_of = run(*given, "--column", "router_id=service", "--router", "checkout", "--router", "search")
    assert "60 samples" in all_of.stdout
    unnamed = run(*given, "--router", "checkout")
    assert unnamed.exit_code == 2
    assert "no column router_id" in unnamed.stderr
