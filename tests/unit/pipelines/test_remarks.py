"""What a data engineer is told of samples that probably are not what was meant."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from api.wire.responses import BreakerSingle
from breaker_actors.errors import Invalid
from pipelines.backtest import Backtest, BacktestWarning, backtest
from pipelines.candidates import OTHER_FIELDS, RULE_FIELDS, candidates

T0 = 1_700_000_000_000
FAILING = {"metric": "errors", "kind": "error_rate", "op": "gt", "threshold": 0.5, "name": "failing"}
SLOW = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 500, "name": "slow"}


def frame(**more: Any) -> pl.DataFrame:
    times = list(range(T0, T0 + 60_000, 1_000))
    return pl.DataFrame({"ts_ms": times, "value": [1.0] * len(times), **more})


def tried(rules: Any, samples: Any, **how: Any) -> Backtest:
    with warnings.catch_warnings(action="ignore"):
        return backtest(rules, samples, **how)


def test_rules_over_failures_need_to_know_which_samples_failed() -> None:
    (remark,) = tried([FAILING, SLOW], frame(metric=["errors", "latency"] * 30)).remarks
    assert remark.startswith("the samples have no column ok, so none of them failed, and failing can't open")
    assert 'columns={"ok": THEIRS}' in remark
    assert tried([FAILING, SLOW], frame(metric=["errors", "latency"] * 30, ok=[True] * 60)).remarks == []
    assert tried(SLOW, frame()).remarks == []


def test_rules_of_several_metrics_need_to_know_whose_samples_they_are() -> None:
    (remark,) = tried([SLOW, SLOW | {"metric": "depth"}, SLOW], frame()).remarks
    assert remark.startswith("the samples name no metric, so the rules of latency and depth all take all of them")
    assert tried([SLOW, SLOW | {"threshold": 7}], frame()).remarks == []


def test_a_pattern_has_the_columns_that_its_folder_has(tmp_path: Path) -> None:
    """Those that folders on the way are named for."""
    for metric, value in (("latency", 900.0), ("depth", 1.0)):
        folder = tmp_path / f"metric={metric}"
        folder.mkdir()
        frame().with_columns(pl.lit(value).alias("value")).write_parquet(folder / "part.parquet")
    ways = [tmp_path, tmp_path / "metric=*" / "*.parquet", sorted(tmp_path.rglob("*.parquet"))]
    told = [tried([SLOW, SLOW | {"metric": "depth", "name": "deep"}], way, sort=True).summary for way in ways]
    assert told[0]["samples"].to_list() == [60, 60]
    assert all(one.equals(told[0]) for one in told)


@pytest.mark.parametrize(
    "values",
    [np.array([0.5, 2.0]), pd.Series([0.5, 2.0]), pl.Series([0.5, 2.0]), (0.5, 2.0), [np.float64(0.5), np.float32(2)]],
    ids=["numpy", "pandas", "polars", "tuple", "scalars"],
)
def test_a_sweep_takes_whatever_has_values(values: Any) -> None:
    settings = tried(SLOW, frame(), sweep={"threshold": values}).sweep
    assert sorted(settings["threshold"].to_list()) == [0.5, 2.0]


def test_whole_numbers_stay_whole() -> None:
    settings = tried(SLOW, frame(), sweep={"window_ms": np.arange(30_000, 90_000, 30_000), "min_count": range(1, 3)})
    assert sorted(settings.sweep["window_ms"].unique().to_list()) == [30_000, 60_000]


@pytest.mark.parametrize("values", ["1,2", 7, np.float64(7)])
def test_a_sweep_of_something_else_is_refused(values: Any) -> None:
    with pytest.raises(Invalid, match="a list of values"):
        backtest(SLOW, frame(), sweep={"threshold": values})


@pytest.mark.parametrize(
    ("field", "guessed"),
    [
        ("window", "did you mean window_ms?"),
        ("min_counts", "did you mean min_count?"),
        ("percentile", "did you mean kind_params.percentile?"),
        ("colour", "it means nothing here"),
    ],
)
def test_a_field_that_is_none_is_told(tmp_path: Path, field: str, guessed: str) -> None:
    """Of a dict and of a file alike."""
    path = tmp_path / "rule.json"
    path.write_text(json.dumps(SLOW | {field: 7}))
    for given in (SLOW | {field: 7}, path, [str(path)]):
        with pytest.warns(BacktestWarning, match=f"slow: ignored {field}, which is no field of a breaker; {guessed}"):
            backtest(given, frame())


def test_a_slip_is_guessed_where_the_field_is_required() -> None:
    rule = {name: value for name, value in SLOW.items() if name != "threshold"} | {"treshold": 5}
    with pytest.raises(Invalid, match=r"threshold is required; treshold is no field: did you mean threshold\?"):
        backtest(rule, frame())


def test_what_the_service_shows_of_a_breaker_is_no_slip() -> None:
    """Neither of the API nor of `breakers get --json`."""
    shown = {*BreakerSingle.__struct_fields__, "status"}
    assert shown <= {*RULE_FIELDS, *OTHER_FIELDS}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "error_rate", "threshold": 5}, "slow: An error rate lies between 0 and 1: .* never opens"),
        ({"window_ms": 10}, "slow: The window .* is shorter than the time between ticks"),
        ({"kind": "count", "op": "lt"}, "slow: Below .* no traffic at all never opens this breaker"),
    ],
)
def test_rules_that_can_hardly_do_what_was_meant(fields: dict[str, Any], words: str) -> None:
    """As `breakers create` says."""
    with pytest.warns(BacktestWarning, match=words):
        backtest(SLOW | fields, frame(ok=[True] * 60))


def test_numbers_of_numpy_in_a_rule() -> None:
    given = {"window_ms": np.int64(5000), "threshold": np.float32(0.5), "half_open_backoff_enabled": np.bool_(True)}
    percentile = {"kind": "percentile", "kind_params": {"percentile": np.int64(90)}}
    (one,) = candidates(SLOW | given | percentile)
    assert (one.rule.window_ms, one.rule.threshold, one.rule.kind_params) == (5000, 0.5, {"percentile": 90})
    assert one.rule.half_open_backoff_enabled is True


def test_a_variation_of_a_breaker() -> None:
    """With what it is not told kept; fields that are none are refused."""
    (one,) = candidates(SLOW | {"router_ids": ["r1"], "min_count": 3})
    other = one.with_(threshold=np.int64(390), name="higher")
    assert (other.name, other.rule.threshold, other.rule.min_count, other.router_ids) == ("higher", 390, 3, ("r1",))
    with pytest.raises(Invalid, match=r"'treshold' is no field of a rule; did you mean threshold\?"):
        one.with_(treshold=1)
    with pytest.raises(Invalid, match="slow: threshold must be a finite number"):
        one.with_(threshold="high")


def test_one_grid_for_rules_of_different_kinds() -> None:
    """Their thresholds hardly mean the same; other fields do."""
    rules, samples = [SLOW, SLOW | {"kind": "p95"}, SLOW | {"name": "n", "kind": "count"}], frame()
    (remark,) = tried(rules, samples, sweep={"threshold": [1, 2]}).remarks
    assert remark.startswith("the sweep tries the same thresholds for avg of latency, p95 of latency and count of lat")
    assert tried(rules, samples, sweep={"min_count": [1, 2]}).remarks == []
    assert tried([SLOW, SLOW | {"threshold": 1}], samples, sweep={"threshold": [1, 2]}).remarks == []


def test_a_sweep_as_text() -> None:
    settings = tried(SLOW, frame(), sweep="threshold=1:3:1").sweep
    assert sorted(settings["threshold"].to_list()) == [1, 2, 3]
    with pytest.raises(Invalid, match="a sweep is an object of values per field, or text"):
        backtest(SLOW, frame(), sweep=[1, 2])  # type: ignore[arg-type]


def test_samples_of_several_routers_are_told_where_the_rule_names_none() -> None:
    """Once for all rules; a rule that names routers, or takes samples of one, is none of these."""
    two = frame(router_id=["a", "b"] * 30)
    assert tried([SLOW, SLOW | {"threshold": 7}], two, sweep={"threshold": [1, 2]}).remarks == [
        "samples of 2 routers (a, b) count as one series; name router_ids in the rule, or give routers=[...]"
    ]
    assert tried(SLOW | {"router_ids": ["a", "b"]}, two).remarks == []
    assert tried(SLOW, frame(router_id=["a"] * 60)).remarks == []
    parts = [two.with_columns(pl.col("ts_ms") + n * 60_000, router_id=pl.lit(f"r{n}")) for n in range(30)]
    (remark,) = tried(SLOW, parts).remarks
    assert remark.startswith("samples of 10 or more routers (")
    assert ", ...) count as one series" in remark
    (remark,) = tried(SLOW, parts[:3]).remarks
    assert remark.startswith("samples of 3 routers")


def test_routers_that_take_turns_are_all_told() -> None:
    """However many rows a batch has: every third of them is of the same one."""
    turns = pl.DataFrame({"ts_ms": range(T0, T0 + 9_000), "value": 1.0, "router_id": ["a", "b", "c"] * 3_000})
    (remark,) = tried(SLOW, turns).remarks
    assert remark.startswith("samples of 3 routers (a, b, c)")


def test_routers_count_within_the_metric_of_the_rule() -> None:
    split = frame(router_id=["a", "b"] * 30, metric=["latency", "depth"] * 30)
    assert tried([SLOW, SLOW | {"metric": "depth"}], split).remarks == []


def test_columns_that_are_not_read_are_told() -> None:
    """What only says again what is read is not."""
    assert tried(SLOW, frame(place=["h"] * 60, zone=[1] * 60)).remarks == ["not read: place, zone"]
    many = frame(**{f"c{n}": [1] * 60 for n in range(20)})
    assert tried(SLOW, many).remarks == ["not read: c0, c1, c2, c3, c4, c5, c6, c7 and 12 more"]
    assert tried(SLOW, frame(ts=["t"] * 60, router_id=["a"] * 60, router=["a"] * 60, day=["d"] * 60)).remarks == []
    apart = '; all is one series: if router says what a sample is of, columns={"router_id": "router"} tells them apart'
    assert tried(SLOW, frame(router=["a"] * 60)).remarks == [f"not read: router{apart}"]
    indexed = pd.DataFrame({"value": [1.0]}, index=pd.DatetimeIndex([T0 * 10**6], name="at"))
    assert tried(SLOW, indexed).remarks == []


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """Two files of one time, and labels for both."""
    for name in ("a", "b"):
        frame().write_parquet(tmp_path / f"{name}.parquet")
    windows = {f"{name}.parquet": [[T0, T0 + 1_000]] for name in ("a", "b", "c")}
    (tmp_path / "windows.json").write_text(json.dumps(windows))
    return tmp_path


def test_files_that_overlap_belong_into_runs_of_their_own(hosts: Path) -> None:
    words = (
        r"b.parquet, row 1: .*; all that is given is one series; files of different things belong into runs of their "
        r"own; those of one are read in order of time \(sort them first, or give sort=True\)"
    )
    with pytest.raises(Invalid, match=words):
        backtest(SLOW, sorted(hosts.glob("*.parquet")), windows=hosts / "windows.json")


def test_labels_of_several_files_that_are_sorted_together(hosts: Path) -> None:
    (remark,) = tried(SLOW, hosts / "*.parquet", windows=hosts / "windows.json", sort=True).remarks
    told = "there are labels for 2 files, whose samples count as one series"
    assert remark == f"{told}; files of different things belong into runs of their own"
    assert tried(SLOW, hosts / "a.parquet", windows=hosts / "windows.json", sort=True).remarks == []


def test_windows_in_another_unit() -> None:
    seconds = [[T0 // 1000, T0 // 1000 + 60]]
    run = tried(SLOW, frame(), windows=seconds)
    (remark,) = run.remarks
    assert remark.endswith("; windows are Unix milliseconds or ISO 8601; time_unit is for samples alone")
    told = run.to_dict()
    assert told["warnings"] == run.remarks
    assert told["summary"]["rules"][0]["caught_all"] is None
    (remark,) = tried(SLOW, frame(), windows=[[T0 * 2, T0 * 2 + 1]]).remarks
    assert "ISO 8601" not in remark


@pytest.mark.parametrize(
    "given",
    [
        [{"start": T0, "end": T0 + 1_000}],
        {"start": T0, "end": T0 + 1_000},
        {"frame": [{"start": T0, "end": T0 + 1_000, "what": "deploy"}]},
        pl.DataFrame({"start": [T0], "end": [T0 + 1_000], "what": ["deploy"]}),
        pd.DataFrame({"start": [T0], "end": [T0 + 1_000]}),
        pl.DataFrame({"start": [T0], "end": [T0 + 1_000]}).cast(pl.Datetime("ms")),
    ],
    ids=["dicts", "dict", "by name", "polars", "pandas", "times"],
)
def test_windows_with_names_for_their_ends(given: Any) -> None:
    windows = tried(SLOW, frame(), windows=given).windows
    assert [(one.start_ms, one.end_ms) for one in windows] == [(T0, T0 + 1_000)]


def test_a_frame_of_windows_without_ends_is_refused() -> None:
    with pytest.raises(Invalid, match="a frame of them has columns start and end, this one begin, end"):
        backtest(SLOW, frame(), windows=pl.DataFrame({"begin": [T0], "end": [T0]}))


def test_what_is_asked_first_comes_first() -> None:
    run = tried(SLOW, frame(), windows=[[T0, T0 + 1_000]], sweep={"threshold": [0.5, 2]})
    assert run.summary.columns[:4] == ["breaker", "trips", "caught", "false_trips"]
    assert run.sweep is not None
    assert run.sweep.columns[:4] == ["threshold", "trips", "caught", "false_trips"]


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(Invalid, match=r"there are no columns 'ts_ms', 'value', there are at, v; rename some with col"):
        backtest(SLOW, pl.DataFrame({"at": [T0], "v": [1.0]}))


def test_a_column_that_is_not_there_is_none_that_is_not_read(tmp_path: Path) -> None:
    """Rows of NDJSON have all our columns where they are read, also those for which another one was named."""
    given = frame(service=["a"] * 60).rename({"ts_ms": "timestamp"})
    given.write_ndjson(tmp_path / "s.ndjson")
    columns = {"ts_ms": "timestamp", "router_id": "service"}
    assert tried(SLOW, tmp_path / "s.ndjson", columns=columns).remarks == []
