"""A CSV of samples becomes columns, or one line says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from breaker_actors.errors import Invalid
from pipelines.frames import read_series


def test_columns_of_a_good_file(tmp_path: Path) -> None:
    """Times without a zone are UTC, others are converted; every sample is ok."""
    path = tmp_path / "series.csv"
    path.write_text("timestamp,value\n1970-01-01 00:00:01,1.5\n1970-01-01 00:00:01,2\n1970-01-01 00:00:03,-3e2\n")
    batch = read_series(path)
    assert batch.ts_ms.tolist() == [1000, 1000, 3000]
    assert batch.value.tolist() == [1.5, 2.0, -300.0]
    assert batch.ok.tolist() == [True, True, True]


def test_other_column_names_and_zones(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("x,when,ms\na,1970-01-01T02:00:00+02:00,7\n")
    batch = read_series(path, "when", "ms")
    assert (batch.ts_ms.tolist(), batch.value.tolist()) == ([0], [7.0])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("timestamp,value\n", "no rows"),
        ("time,value\n1970-01-01 00:00:00,1\n", "no column 'timestamp'; there are time, value"),
        ("timestamp,value\n1970-01-01 00:00:00,1\nyesterday,2\n", "line 3: timestamp 'yesterday' is not a time"),
        ("timestamp,value\n1970-01-01 00:00:00,many\n", "line 2: value 'many' is not a number"),
        ("timestamp,value\n1970-01-01 00:00:00,nan\n", "line 2: value 'nan' is not a number"),
        ("timestamp,value\n1970-01-01 00:00:00,inf\n", "line 2: value 'inf' is not a number"),
        ("timestamp,value\n1970-01-01 00:00:00,\n", "line 2: value None is not a number"),
        ("timestamp,value\n1970-01-02 00:00:00,1\n1970-01-01 00:00:00,1\n", "line 3: its time is before"),
        ("timestamp,value\n1970-01-01 00:00:00,1,2\n", "is not a CSV file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "series.csv"
    path.write_text(text)
    with pytest.raises(Invalid) as raised:
        read_series(path)
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="can't be read"):
        read_series(tmp_path / "none.csv")
