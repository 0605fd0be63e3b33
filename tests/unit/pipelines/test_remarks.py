"""What a data engineer is told of samples that probably are not what was meant."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from breaker_actors.errors import Invalid
from pipelines.backtest import Backtest, backtest

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
