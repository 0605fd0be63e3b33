"""Where samples may lie: packed files, folders, URLs; and in which unit their times may be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from api.cli.main import app
from breaker_actors.errors import Invalid
from pipelines.backtest import BacktestWarning, backtest, source_of
from pipelines.sources.files import located, shown_url
from tests.support.fileserver import serving

START_MS = 1_700_000_000_000
RULE: dict[str, Any] = {
    "metric": "latency", "kind": "max", "op": "gt", "threshold": 5, "window_ms": 1000, "eval_interval_ms": 1000,
    "min_state_duration_ms": 0,
}  # fmt: skip
FRAME = pl.DataFrame({"ts_ms": range(START_MS, START_MS + 60_000, 1000), "value": [1.0, 9.0, 2.0] * 20})


def read(*where: Any, **options: Any) -> pl.DataFrame:
    found = pl.concat(list(source_of(list(where), **options).batches()))
    return found.select(name for name in found.columns if name in ("ts_ms", "value", "metric"))


def packed(path: Path) -> Path:
    """The frame as text under this name, packed."""
    text = FRAME.write_csv() if ".csv" in path.name else FRAME.write_ndjson()
    path.write_bytes(gzip.compress(text.encode()))
    return path


@pytest.mark.parametrize("name", ["a.csv.gz", "a.ndjson.gz", "a.jsonl.gz", "A.CSV.GZ"])
def test_packed_text(tmp_path: Path, name: str) -> None:
    assert read(packed(tmp_path / name.lower()).rename(tmp_path / name)).equals(FRAME)


def test_what_is_packed_and_damaged(tmp_path: Path) -> None:
    whole = packed(tmp_path / "a.csv.gz").read_bytes()
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Invalid, match=r"a\.csv\.gz can't be read: "):
        read(tmp_path / "a.csv.gz")
    (tmp_path / "a.parquet.gz").write_bytes(b"x")
    with pytest.raises(Invalid, match="samples are read from"):
        read(tmp_path / "a.parquet.gz")


def test_folders(tmp_path: Path) -> None:
    """All that is in one, in order of names; folders named name=value are columns, hidden files are none."""
    for number, metric in enumerate(["latency", "a%20b"]):
        folder = tmp_path / "in" / f"metric={metric}"
        folder.mkdir(parents=True)
        FRAME.with_columns(pl.col("ts_ms") + number).write_parquet(folder / "a.parquet")
    (tmp_path / "in" / "_SUCCESS").touch()
    (tmp_path / "in" / ".hidden.csv").write_text("x")
    found = read(tmp_path / "in", sort=True)
    assert found["metric"].unique().sort().to_list() == ["a b", "latency"]
    run = backtest(RULE, tmp_path / "in", sort=True)
    assert run.summary["samples"].to_list() == [60]
    assert run.transitions.equals(backtest(RULE, FRAME).transitions)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.ndjson", "a.parquet"])
def test_urls(tmp_path: Path, name: str) -> None:
    """Read by polars' own client; a report reads them again. A query is sent and never shown."""
    if name.endswith(".gz"):
        packed(tmp_path / name)
    else:
        getattr(FRAME, f"write_{name.split('.')[1]}")(tmp_path / name)
    with serving(tmp_path) as base:
        url = f"{base}/{name}"
        assert read(url).equals(FRAME)
        run = backtest(RULE, url)
        assert run.transitions.equals(backtest(RULE, FRAME).transitions)
        assert name in run.report(tmp_path / "r.html").read_text(encoding="utf-8")


def test_urls_that_lead_nowhere(tmp_path: Path) -> None:
    """One line that names the URL, without what may be secret in it."""
    with serving(tmp_path) as base:
        url = f"{base}/none.parquet".replace("http://", "http://me:secret@")
        with pytest.raises(Invalid, match=r"/none\.parquet can't be read: ") as raised:
            read(f"{url}?signature=secret")
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(Invalid, match=r"ftp://b/a\.csv: samples are read from s3, "):
        read("ftp://u:p@b/a.csv?x=1")
    with pytest.raises(Invalid, match=r"s3://b/a\.txt: samples are read from \.parquet"):
        read("s3://b/a.txt")


def test_urls_of_object_stores() -> None:
    (place,) = located("s3://bucket/day=1/a.parquet")
    assert (place.is_url, place.name, place.label) == (True, "a.parquet", "s3://bucket/day=1/a.parquet")
    assert shown_url("at https://u:p@h/a?sig=1 (x)") == "at https://h/a (x)"


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", [1_700_000_000, 1_700_000_001]),
        ("s", [1_700_000_000.25, 1_700_000_001.5]),
        ("s", ["1700000000.25", "1700000001"]),
        ("us", [START_MS * 1000 + 999, START_MS * 1000 + 1_000_000]),
        ("ns", [START_MS * 1_000_000 + 999, (START_MS + 1000) * 1_000_000]),
        ("ns", ["2023-11-14T22:13:20Z", "2023-11-14 22:13:21"]),
    ],
)
def test_units_of_time(unit: str, times: list[Any]) -> None:
    """Numbers are in that unit, seconds with a fraction if they like; text that is a time stays what it says."""
    frame = pl.DataFrame({"ts_ms": times, "value": [1, 2]})
    found = next(source_of(frame, time_unit=unit).batches())["ts_ms"]
    of = {"s": 1000, "us": 1 / 1000, "ns": 1e-6}[unit]
    given = [START_MS, START_MS + 1000] if "T" in str(times[0]) else [int(float(time) * of) for time in times]
    assert found.to_list() == given


def test_units_that_are_none() -> None:
    with pytest.raises(Invalid, match="'min' is no unit of time here; there are s, ms, us, ns"):
        backtest(RULE, FRAME, time_unit="min")
    with pytest.raises(Invalid, match="is not Unix seconds between 1970 and 9999"):
        backtest(RULE, FRAME, time_unit="s")


def test_files_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    """By the way to them, which is not part of the name that windows are found by."""
    for day in ("day=1", "day=2"):
        (tmp_path / day).mkdir()
        FRAME.write_parquet(tmp_path / day / "part.parquet")
    run = backtest(RULE, tmp_path, sort=True)
    assert run.source is not None
    assert run.source.names == ["part.parquet"] * 2
    assert "1 rule on day=1/part.parquet, day=2/part.parquet" in run._repr_html_()


def test_the_root_of_an_export_is_told_where_its_samples_are(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "samples").mkdir()
    FRAME.write_parquet(tmp_path / "samples" / "a.parquet")
    with pytest.raises(Invalid, match=f"as `breakers export` writes them; give {tmp_path}/samples"):
        backtest(RULE, tmp_path)
    assert backtest(RULE, tmp_path / "samples").summary["samples"][0] == len(FRAME)


def test_times_before_1990_are_told(tmp_path: Path) -> None:
    """In the words of the API that was called; with the right unit there is nothing to tell."""
    seconds = FRAME.with_columns(pl.col("ts_ms") // 1000)
    words = r"the samples begin in 1970, at 1970-01-20 .*; if their times are in another unit, give time_unit='s'"
    with pytest.warns(BacktestWarning, match=words):
        backtest(RULE, seconds)
    assert backtest(RULE, seconds, time_unit="s").transitions.equals(backtest(RULE, FRAME).transitions)
    seconds.write_csv(tmp_path / "s.csv")
    (tmp_path / "rule.json").write_text(json.dumps(RULE))
    given = ["backtest", "--rule", str(tmp_path / "rule.json"), str(tmp_path / "s.csv")]
    shown = CliRunner().invoke(app, given)
    assert (shown.exit_code, shown.stderr.count("\n")) == (0, 1)
    assert "say --time-unit s, us or ns" in shown.stderr
    shown = CliRunner().invoke(app, [*given, "--time-unit", "s"])
    assert (shown.exit_code, shown.stderr) == (0, "")
