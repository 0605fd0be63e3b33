"""What samples may be given as: frames and lists of them; what nearly is one is refused with the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from breaker_actors.errors import Invalid
from pipelines.backtest import backtest

T0 = 1_700_000_000_000
RULE = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 30, "window_ms": 10_000, "min_state_duration_ms": 0}


def frame(first: int = 0, count: int = 60) -> pl.DataFrame:
    rows = range(first, first + count)
    return pl.DataFrame({"ts_ms": [T0 + row * 1000 for row in rows], "value": [float(row) for row in rows]})


def in_pandas(given: pl.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({name: given[name].to_list() for name in given.columns})


def in_arrow(given: pl.DataFrame) -> pa.Table:
    return pa.table({name: given[name].to_list() for name in given.columns})


@pytest.mark.parametrize("kind", [lambda one: one, pl.DataFrame.lazy, in_pandas, in_arrow])
@pytest.mark.parametrize("listed", [list, tuple])
def test_frames_are_read_one_after_the_other(kind: Callable[[pl.DataFrame], Any], listed: type) -> None:
    found = backtest(RULE, listed([kind(frame(0, 20)), kind(frame(20, 40))]))
    assert len(found.transitions)
    assert found.transitions.equals(backtest(RULE, frame()).transitions)


def test_frames_of_several_kinds_and_one_alone() -> None:
    whole = backtest(RULE, frame())
    assert backtest(RULE, [frame(0, 20), in_pandas(frame(20, 20)), in_arrow(frame(40, 20))]).summary.equals(
        whole.summary
    )
    assert backtest(RULE, [frame()]).summary.equals(whole.summary)


def test_frames_in_disorder_are_sorted_and_an_error_says_which_frame() -> None:
    parts = [frame(20, 40), frame(0, 20)]
    assert backtest(RULE, parts, sort=True).transitions.equals(backtest(RULE, frame()).transitions)
    with pytest.raises(Invalid, match=r"frame 2, row 1: ts_ms \d+ comes after"):
        backtest(RULE, parts)
    with pytest.raises(Invalid, match=r"frame 2: its column 'value' is text"):
        backtest(RULE, [frame(), pl.DataFrame({"ts_ms": [T0 + 10**6], "value": ["x"]})])


class Dataset:
    """As Ray has one."""

    __module__ = "ray.data.dataset"

    def to_pandas(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([frame(), "a.parquet"], "a list of DataFrame and str is not a frame"),
        ([1, 2], "a list of int is not a frame"),
        (Dataset(), r"a Ray Dataset is not read; give dataset\.to_pandas\(\)"),
        ([pl.Series([1.0])], "a polars Series has no times"),
        (pd.Series([1.0]), r"a pandas Series has no columns; give series\.to_frame"),
    ],
)
def test_what_is_no_samples_is_refused_with_the_way_out(given: Any, words: str) -> None:
    with pytest.raises(Invalid, match=f"samples: {words}"):
        backtest(RULE, given)


def test_a_reader_of_pandas_is_put_together_first(tmp_path: Any) -> None:
    frame().write_csv(tmp_path / "s.csv")
    with (
        pd.read_csv(tmp_path / "s.csv", chunksize=10) as reader,
        pytest.raises(Invalid, match=r"give pandas\.concat\(reader\)"),
    ):
        backtest(RULE, reader)
    with pd.read_csv(tmp_path / "s.csv", chunksize=10) as reader:
        assert backtest(RULE, list(reader)).transitions.equals(backtest(RULE, frame()).transitions)


def test_a_frame_of_rules_is_refused() -> None:
    with pytest.raises(Invalid, match="a rule is a dict, a Rule, a file, or a list of these"):
        backtest(pl.DataFrame([RULE]), frame())  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="a rule is a dict, a Rule, a file, or a list of these"):
        backtest([7], frame())  # type: ignore[list-item]
