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
