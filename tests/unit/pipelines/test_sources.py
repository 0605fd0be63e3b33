"""Samples come in one shape out of any input, or one line says what is wrong: file, row and column."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from breaker_actors.errors import Invalid
from pipelines.backtest import source_of
from pipelines.sources.files import WITH_RECORD, Files, Frames, Layout

GOOD = {"ts_ms": [1000, 1000, 3000], "value": [1.5, 2.0, -300.0]}


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    else:
        pl.DataFrame(content, strict=False).write_parquet(path)
    return path


def read(source: Files | Frames) -> pl.DataFrame:
    return pl.concat(list(source.batches()))


def complaint(*paths: str | Path, **options: Any) -> str:
    with pytest.raises(Invalid) as raised:
        read(Files(paths, Layout(**options)))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", GOOD),
        ("a.csv", "ts_ms,value\n1000,1.5\n1000, 2\n3000,-3e2\n"),
        ("a.ndjson", '{"ts_ms":1000,"value":1.5}\n{"ts_ms":1000,"value":2,"tags":{}}\n{"ts_ms":3000,"value":-3e2}\n'),
        ("a.jsonl", '{"value":1.5,"ts_ms":1000}\n{"ts_ms":1000,"value":2}\n\n{"ts_ms":3000,"value":-300}\n'),
    ],
)
def test_formats(tmp_path: Path, name: str, content: Any) -> None:
    """Parquet, CSV and NDJSON give the same batches; those of NDJSON say ok, as it may come in any row."""
    frame = read(Files([written(tmp_path, name, content)], Layout()))
    assert frame.select("ts_ms", "value").to_dict(as_series=False) == GOOD
    assert frame.schema["ts_ms"] == pl.Int64
    assert "ok" not in frame.columns or frame["ok"].all()


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson", "jsonl"])
def test_a_file_whose_name_is_a_pattern_is_that_file_alone(tmp_path: Path, suffix: str) -> None:
    """And none that the pattern would find beside it."""
    contents = {
        "csv": "ts_ms,value\n1,{}\n",
        "ndjson": '{{"ts_ms":1,"value":{}}}\n',
    }
    for name, value in (("a[1]", 7), ("a1", 8)):
        if suffix == "parquet":
            written(tmp_path, f"{name}.parquet", {"ts_ms": [1], "value": [value]})
        else:
            written(tmp_path, f"{name}.{suffix}", contents.get(suffix, contents["ndjson"]).format(value))
    assert read(Files([tmp_path / f"a[1].{suffix}"], Layout()))["value"].to_list() == [7]


@pytest.mark.parametrize(
    "times",
    [
        pl.Series(["1970-01-01T00:00:01Z", "1970-01-01T02:00:01+02:00"]),
        pl.Series(["1970-01-01 00:00:01", "1970-01-01 00:00:01"]),
        pl.Series([dt.datetime(1970, 1, 1, 0, 0, 1)] * 2, dtype=pl.Datetime("us")),  # noqa: DTZ001
        pl.Series([1000, 1000], dtype=pl.UInt16),
        pl.Series(["1000", "1000"]),
    ],
)
def test_times(times: pl.Series) -> None:
    """ISO 8601, datetimes without a zone (UTC) and whole numbers of any width."""
    assert read(Frames(pl.DataFrame({"ts_ms": times, "value": [1, 2]}), Layout()))["ts_ms"].to_list() == [1000, 1000]


FORMS = [
    "1970-01-02T00:00:01Z",
    "1970-01-02T00:00:01",
    "86401000",
    "1970-01-02 00:00:01",
    " 1970-01-02T00:00:01.000 ",
    "1970-01-02T02:00:01+02:00",
    "1970-01-02 02:00:01+02",
    "1970-01-02T02:00:01+0200",
]


@pytest.mark.parametrize("first", FORMS)
def test_times_in_several_forms(first: str) -> None:
    """Each row alone: how the rows before it are written does not matter."""
    frame = pl.DataFrame({"ts_ms": [first, *FORMS], "value": 1})
    assert read(Frames(frame, Layout()))["ts_ms"].to_list() == [86_401_000] * 9
    short = pl.DataFrame({"ts_ms": ["1970-01-02", "1970-01-02T00:00", "1970-01-02T00:00Z", first], "value": 1})
    assert read(Frames(short, Layout()))["ts_ms"].to_list() == [86_400_000] * 3 + [86_401_000]


@pytest.mark.parametrize("time", ["01/02/2024", "2024/01/02", "01-02-2024", "2024-13-01", "2024-01-02T25:00"])
def test_times_that_are_not_iso(tmp_path: Path, time: str) -> None:
    """Which of its numbers is the day is not guessed."""
    path = written(tmp_path, "a.csv", f"ts_ms,value\n2024-01-02,1\n{time},2\n")
    assert f"row 2: ts_ms {time!r} is not a time" in complaint(path)
    path = written(tmp_path, "b.csv", f"ts_ms,value\n{time},2\n")
    assert f"row 1: ts_ms {time!r} is not a time" in complaint(path)


def test_all_columns_under_other_names(tmp_path: Path) -> None:
    """Flags may be numbers or words, blank ones are true; what was not asked for is left out."""
    text = "when,ms,good,in,what,who,trace,more\n1,5,false,10,m,r,t1,x\n2,6,,10,m,r,,x\n3,7,1,12,n,r,,x\n"
    names = {"ts_ms": "when", "value": "ms", "ok": "good", "received_ms": "in", "metric": "what"}
    layout = Layout(names | {"router_id": "who", "trace_id": "trace"})
    frame = read(Files([written(tmp_path, "a.csv", text)], layout))
    assert frame.to_dict(as_series=False) == {
        "ts_ms": [1, 2, 3],
        "value": [5.0, 6.0, 7.0],
        "ok": [False, True, True],
        "received_ms": [10, 10, 12],
        "metric": ["m", "m", "n"],
        "router_id": ["r", "r", "r"],
        "trace_id": ["t1", None, None],
    }


def arrivals(frame: pl.DataFrame) -> list[int]:
    """How many rows came together, one arrival after the other."""
    return frame["record"].rle().struct.field("len").to_list()


RECORDS = Layout(wanted=WITH_RECORD)


@pytest.mark.parametrize("kind", [pl.Int64, pl.UInt32, pl.String])
def test_records(kind: pl.DataType) -> None:
    """A record of a router is an arrival of its own, and so is each time; rows that name none come with their time."""
    rows = [
        *((1, "a", 7), (1, "a", 7), (1, "a", 8), (1, "b", 8)),
        *((2, "b", 8), (3, "b", None), (3, "a", None), (3, "a", 9), (4, "a", 9)),
    ]
    frame = pl.DataFrame(rows, ("received_ms", "router_id", "record"), orient="row")
    given = frame.with_columns(pl.col("record").cast(kind), ts_ms=0, value=1)
    whole = read(Frames(given, RECORDS))
    assert arrivals(whole) == [2, 1, 1, 1, 2, 1, 1]
    assert whole["record"].to_list()[3:] == read(Frames(given[3:], RECORDS))["record"].to_list()
    assert arrivals(read(Frames(given.drop("router_id", "received_ms"), RECORDS))) == [2, 3, 2, 2]
    assert "record" not in read(Frames(given, Layout())).columns


def test_files_with_and_without_records(tmp_path: Path) -> None:
    """Exports of before have none: their samples come with their time."""
    written(tmp_path, "a.parquet", {"ts_ms": [1, 1], "value": [1, 2]})
    written(tmp_path, "b.parquet", {"ts_ms": [3, 3], "value": [1, 2], "record": [1, 2]})
    written(tmp_path, "c.parquet", {"ts_ms": [4, 4], "value": [1, 2], "record": [None, None]})
    assert arrivals(read(Files([tmp_path / "*.parquet"], RECORDS))) == [2, 1, 1, 2]
    assert "record" not in read(Files([tmp_path / "a.parquet"], RECORDS)).columns
    for content, words in (([1, 1.5], "is Float64, not whole numbers"), ([1, "x"], "row 2: record 'x' is not a whole")):
        path = written(tmp_path, "d.parquet", {"ts_ms": [5, 5], "value": [1, 2], "record": content})
        assert words in complaint(path, wanted=WITH_RECORD)


COUNTS = [
    pl.Series([1, None, 10_000_000]),
    pl.Series([1, None, 10_000_000], dtype=pl.UInt32),
    pl.Series([1.0, float("nan"), 1e7]),
    pl.Series(["1", " ", " 10000000"]),
    pl.Series(["1.0", None, "1e7"]),
]


@pytest.mark.parametrize("count", COUNTS, ids=str)
def test_counts(count: pl.Series) -> None:
    """Whole numbers in whatever they are written; blank is one."""
    frame = read(Frames(pl.DataFrame({"ts_ms": [1, 2, 3], "value": 1, "times": count}), Layout({"count": "times"})))
    assert frame.schema["count"] == pl.Int64
    assert frame["count"].to_list() == [1, 1, 10_000_000]
    assert "count" not in read(Frames(pl.DataFrame(GOOD), Layout())).columns


@pytest.mark.parametrize("suffix", ["csv", "ndjson", "parquet"])
def test_counts_of_files(tmp_path: Path, suffix: str) -> None:
    """Those of before counts stand for one each; a column that is named as another of ours is no count."""
    frame = pl.DataFrame({"ts_ms": [1, 2], "value": [5, 6], "count": [None, 7]})
    content: Any = frame
    if suffix == "csv":
        content = frame.write_csv()
    elif suffix == "ndjson":
        content = '{"ts_ms":1,"value":5}\n{"ts_ms":2,"value":6,"count":7}\n'
    path = written(tmp_path, f"a.{suffix}", content)
    before = written(tmp_path, "b.parquet", {"ts_ms": [3], "value": [7], "record": [8]})
    if suffix == "ndjson":
        before = written(tmp_path, "b.ndjson", '{"ts_ms":3,"value":7,"record":8}\n')
    found = read(Files([path, before], RECORDS))
    assert found["count"].to_list() == [1, 7, 1]
    assert found.columns[-2:] == ["count", "record"]
    swapped = read(Files([before, path], RECORDS, ordered=False))
    assert swapped["count"].to_list() == [1, 1, 7]
    other = Layout({"value": "count"})
    assert "count" not in read(Frames(pl.DataFrame({"ts_ms": [1, 2], "count": [0.5, 7]}), other)).columns


def test_patterns_in_order_of_names(tmp_path: Path) -> None:
    """Files follow each other; an empty one among them is nothing. Parquet tells how many rows there are."""
    for name, first in (("b", 30), ("a", 10)):
        written(tmp_path, f"{name}.parquet", {"ts_ms": [first, first + 1], "value": [1.0, 2.0]})
    written(tmp_path, "aa.parquet", {"ts_ms": pl.Series([], dtype=pl.Int64), "value": pl.Series([], dtype=pl.Float64)})
    files = Files([str(tmp_path / "*.parquet")], Layout())
    assert read(files)["ts_ms"].to_list() == [10, 11, 30, 31]
    assert (files.rows(), files.names) == (4, ["a.parquet", "aa.parquet", "b.parquet"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"ts_ms": [1]}, "there is no column 'value', there are ts_ms; rename one with --column value=THEIRS"),
        ({"ts_ms": [1.5], "value": [1]}, "row 1: ts_ms 1.5 is not a time"),
        ({"ts_ms": [1, None], "value": [1, 1]}, "row 2: ts_ms blank is not a time"),
        ({"ts_ms": [1, -5], "value": [1, 1]}, "row 2: ts_ms -5 is not Unix milliseconds between 1970 and 9999"),
        ({"ts_ms": [1_700_000_000_000_000_000], "value": [1]}, "row 1: ts_ms 1700000000000000000 is not Unix"),
        ({"ts_ms": pl.Series([1 << 63], dtype=pl.UInt64), "value": [1]}, "row 1: ts_ms 9223372036854775808 is not a"),
        ({"ts_ms": ["soon"], "value": [1]}, "row 1: ts_ms 'soon' is not a time"),
        ({"ts_ms": [1, 2], "value": [1.0, float("nan")]}, "row 2: value nan is not a finite number"),
        ({"ts_ms": [1, 2], "value": [float("-inf"), 1.0]}, "row 1: value -inf is not a finite number"),
        ({"ts_ms": [1, 2], "value": [1.0, None]}, "row 2: value blank is not a finite number"),
        ({"ts_ms": [1, 2], "value": ["1", "many"]}, "row 2: value 'many' is not a finite number"),
        ({"ts_ms": [1, 2], "value": [True, False]}, "its column 'value' is Boolean, not numbers"),
        ({"ts_ms": [1, 2], "value": ["1", "1" * 400]}, "row 2: value '1111"),
        ({"ts_ms": [1], "value": [1], "ok": ["maybe"]}, "row 1: ok 'maybe' is neither true nor false"),
        ({"ts_ms": [1], "value": [1], "ok": [2]}, "row 1: ok 2 is neither true nor false"),
        ({"ts_ms": [1], "value": [1], "ok": [0.5]}, "ok 0.5 is neither true nor false"),
        ({"ts_ms": [1, 2], "value": [1, 1], "count": [1, 0]}, "row 2: count 0 is no whole number from 1 to 10,000,000"),
        ({"ts_ms": [1, 2], "value": [1, 1], "count": [3, 10_000_001]}, "row 2: count 10000001 is no whole number"),
        ({"ts_ms": [1, 2], "value": [1, 1], "count": [3, 2.5]}, "row 2: count 2.5 is no whole number from 1"),
        ({"ts_ms": [1], "value": [1], "count": ["many"]}, "row 1: count 'many' is no whole number from 1"),
        ({"ts_ms": [1], "value": [1], "count": [float("inf")]}, "row 1: count inf is no whole number from 1"),
        ({"ts_ms": [1], "value": [1], "count": [True]}, "its column 'count' is Boolean, not whole numbers"),
        ({"ts_ms": [1], "value": [1], "metric": [7]}, "its column 'metric' is Int64, not text"),
        ({"ts_ms": [1, 2], "value": [1, 1], "metric": ["m", None]}, "row 2: metric blank is blank, in other rows"),
        ({"ts_ms": [1, 5, 4], "value": [1, 1, 1]}, "row 3: ts_ms 4 comes after 5; samples are read in order of time"),
        ({"ts_ms": [9, 1], "value": [1, 1], "received_ms": [9, 8]}, "row 2: received_ms 8 comes after 9"),
        (b"", "can't be read: parquet:"),
        (b"PAR1 and no more PAR1", "can't be read: parquet:"),
    ],
)
def test_wrong_parquet_is_refused(tmp_path: Path, content: Any, words: str) -> None:
    path = written(tmp_path, "a.parquet", content)
    told = complaint(path)
    assert told.startswith(str(path))
    assert words in told


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "ts_ms,value\n1,2\n1,2,3\n", "a.csv, row 2 can't be read"),
        ("a.csv", "ts_ms,value\n1,2\n1.5,2\n", "row 2: ts_ms '1.5' is not a time"),
        ("a.csv", "ts_ms,value\n1,2\n1,\n", "row 2: value blank is not a finite number"),
        ("a.csv", "ts_ms,value\n1,1e999\n", "row 1: value '1e999' is not a finite number"),
        ("a.ndjson", '{"ts_ms":1,"value":2}\n{"ts_ms":1,"va\n', "a.ndjson, row 2 can't be read"),
        ("a.ndjson", '{"ts_ms":1,"value":2}\n{"ts_ms":1,"value":true}\n', "row 2: value 'true' is not a finite number"),
        ("a.ndjson", '{"ts_ms":1,"value":2}\n{"value":3}\n', "row 2: ts_ms blank is not a time"),
        ("a.ndjson", '{"ts_ms":1,"value":2}\n{"ts_ms":"x","value":3}\n', "row 2: ts_ms 'x' is not a time"),
        ("a.txt", "1 2", "samples are read from .parquet, .csv, .ndjson and .jsonl files"),
    ],
)
def test_wrong_text_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    assert words in complaint(written(tmp_path, name, text))


def test_a_column_that_appears_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first rows name no metric, later ones may not either."""
    rows = ['{"ts_ms":1,"value":2}'] * 300_000 + ['{"ts_ms":1,"value":2,"metric":"m"}']
    told = complaint(written(tmp_path, "a.ndjson", "\n".join(rows)))
    assert "row 300001: metric 'm' is given here but not in the rows before" in told


def test_a_row_that_is_deeper_than_anybody_reads(tmp_path: Path) -> None:
    deep = '{"ts_ms":1,"value":1,"x":' + "[" * 100_000 + "]" * 100_000 + "}"
    assert "deep.ndjson, row 1 can't be read" in complaint(written(tmp_path, "deep.ndjson", deep))


def test_truncated_parquet(tmp_path: Path) -> None:
    """Cut off, or damaged in the middle: the file is named."""
    whole = written(tmp_path, "a.parquet", {"ts_ms": range(100_000), "value": range(100_000)}).read_bytes()
    assert "cut.parquet can't be read" in complaint(written(tmp_path, "cut.parquet", whole[: len(whole) // 2]))
    middle = len(whole) // 2
    damaged = whole[: middle - 500] + b"\x00" * 1000 + whole[middle + 500 :]
    assert "bad.parquet can't be read" in complaint(written(tmp_path, "bad.parquet", damaged))


def test_files_that_differ(tmp_path: Path) -> None:
    """Samples of one run have one shape, and go on in time."""
    written(tmp_path, "a.parquet", GOOD)
    written(tmp_path, "b.parquet", {"ts_ms": [4000], "value": ["5"]})
    assert "b.parquet: its column 'value' is text, in " in complaint(tmp_path / "*.parquet")
    written(tmp_path, "b.parquet", {"ts_ms": [4000], "value": [5.0], "ok": [True]})
    assert "b.parquet: its column 'ok' is flags, in " in complaint(tmp_path / "*.parquet")
    written(tmp_path, "b.parquet", {"ts_ms": [2000], "value": [5.0]})
    assert "b.parquet, row 1: ts_ms 2000 comes after 3000; all that is given is one series" in complaint(
        tmp_path / "*.parquet"
    )


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert "none.parquet can't be read: No such file" in complaint(tmp_path / "none.parquet")
    assert "*.parquet: there is no such file" in complaint(tmp_path / "*.parquet")
    assert "no .parquet, .csv, .ndjson or .jsonl file is in this folder" in complaint(tmp_path)
    assert "no file of samples is given" in complaint()


def test_renaming(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", GOOD)
    assert "'time' is none of our columns; there are ts_ms" in complaint(path, renamed={"time": "when"})
    assert complaint(path, renamed={"time": "ts_ms"}) == (
        "'time' is none of our columns; did you mean --column ts_ms=time?"
    )
    assert "there is no column 'good', there are ts_ms, value" in complaint(path, renamed={"ok": "good"})


def test_whole_numbers_written_as_floats(tmp_path: Path) -> None:
    """They are times and flags, in files and frames; a fraction is refused with its row, and seconds are guessed."""
    path = tmp_path / "s.csv"
    path.write_text("ts_ms,value,ok\n1700000000000.0,1,1.0\n1700000000001,2,0.0\n")
    frame = pl.DataFrame({"ts_ms": [1.7e12, 1.7e12 + 1], "value": [1.0, 2.0], "ok": [1.0, 0.0]})
    expected = [(1_700_000_000_000, 1.0, True), (1_700_000_000_001, 2.0, False)]
    for given in (str(path), frame):
        (batch,) = source_of(given).batches()
        assert batch.select("ts_ms", "value", "ok").rows() == expected
    path.write_text("ts_ms,value\n1700000000000,1\n1700000000.5,1\n")
    assert "row 2: ts_ms '1700000000.5' is not a time" in complaint(path)
    assert "if it is in seconds, say --time-unit s" in complaint(path)


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.ndjson"
    for text in ("", "\n \n"):
        path.write_text(text)
        assert complaint(path) == f"{path} is empty"
    path = tmp_path / "s.csv"
    path.write_text("ts_ms;value\n1700000000000;1\n")
    assert "it is separated by semicolons" in complaint(path)
    twice = pd.DataFrame([[1_700_000_000_000, 1.0, 2.0]], columns=["ts_ms", "value", "value"])
    with pytest.raises(Invalid, match="several columns 'value'"):
        source_of(twice)
