"""Export of the history store, and what it is good for: backfill and backtest read it again."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from breaker_actors.errors import Invalid
from pipelines.backfill.manifest import begin
from pipelines.backfill.steps import InProcess, carry_out, survey
from pipelines.backtest import backtest
from pipelines.export import Span, export_breakers, export_history, new_folder
from pipelines.sources import history_store as history
from pipelines.sources.files import LATEST_MS
from pipelines.sources.history_store import History
from pipelines.sources.object_store import Folder
from tests.support import recorded
from tests.support.recorded import PROJECT, START_MS, Kept, router_id

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "backfill-and-export.md"
ROUTERS = [recorded.router(0, 0), recorded.router(1, 1)]
BREAKERS = [recorded.breaker(0, 0), recorded.breaker(1, 1, kind="p95", threshold=200)]
ALL = Span(PROJECT, 0, LATEST_MS)


def loaded(place: Folder, *files: Path, run_id: str = "run-1") -> Kept:
    """A backfill of these files."""
    plan = recorded.manifest(files, ROUTERS, BREAKERS, run_id=run_id)
    asked, _ = survey(plan.request, plan.norms())
    plan = msgspec.structs.replace(plan, request=asked)
    begin(place, plan)
    service = Kept()
    carry_out(place, plan, InProcess(), service)
    return service


def stored(place: Folder) -> pl.DataFrame:
    batches = History(place, history.files(place, PROJECT)).batches()
    return pl.concat(batches).sort("received_ms", "router_id", "value")


@pytest.fixture
def samples() -> pl.DataFrame:
    return recorded.samples(6_000, 2, seed=11, spacing_ms=60)


@pytest.fixture
def place(tmp_path: Path, samples: pl.DataFrame) -> Folder:
    samples.write_parquet(tmp_path / "samples.parquet")
    place = Folder(tmp_path / "history")
    loaded(place, tmp_path / "samples.parquet")
    return place


def test_what_was_exported_is_loaded_again(place: Folder, tmp_path: Path) -> None:
    """Into another store: the same samples and the same events."""
    out = Folder(tmp_path / "out")
    assert sum(export_history(place, ALL, out)) == 6_000
    first, second = Folder(tmp_path / "one"), Folder(tmp_path / "two")
    again = loaded(first, *sorted((tmp_path / "out").rglob("*.parquet")))
    assert_frame_equal(stored(first), stored(place))
    assert again.events == loaded(second, tmp_path / "samples.parquet").events
    assert len(again.events) > 3


def test_records_are_not_loaded(place: Folder, tmp_path: Path, samples: pl.DataFrame) -> None:
    """An export of a log says which samples came together; history has only their times."""
    path = tmp_path / "logged.parquet"
    samples.with_columns(record=pl.int_range(len(samples), dtype=pl.Int64)).write_parquet(path)
    first, second = Folder(tmp_path / "one"), Folder(tmp_path / "two")
    assert loaded(first, path).events == loaded(second, tmp_path / "samples.parquet").events
    assert_frame_equal(stored(first), stored(place))
    path.write_text("ts_ms,value,metric,router_id,record\n1,2,latency," + router_id(0) + ",x\n")
    again = loaded(first, path.rename(path.with_suffix(".csv")), run_id="run-2")
    assert (again.events, len(stored(first))) == ({}, 6_001)


def test_what_was_exported_is_tried_by_a_backtest(place: Folder, tmp_path: Path, samples: pl.DataFrame) -> None:
    """Files of routers side by side, put in order: as over the samples themselves."""
    list(export_history(place, ALL, Folder(tmp_path / "out")))
    for row in BREAKERS:
        mine = samples.filter(pl.col("router_id") == row.router_ids[0])
        pattern = str(tmp_path / f"out/samples/**/router={row.router_ids[0]}/**/*.parquet")
        found = backtest(row.rule, pattern, sort=True).transitions
        assert_frame_equal(found, backtest(row.rule, mine).transitions)
        assert len(found)


def test_a_span_is_cut_to_the_millisecond(place: Folder, tmp_path: Path, samples: pl.DataFrame) -> None:
    since, until = START_MS + 10_000, START_MS + 20_000
    rows = sum(export_history(place, Span(PROJECT, since, until), Folder(tmp_path / "out")))
    assert 0 < rows == len(samples.filter(pl.col("ts_ms").is_between(since, until - 1)))
    found = stored(Folder(tmp_path / "out"))
    assert since <= found["received_ms"].min() < found["received_ms"].max() < until
    assert list(export_history(place, Span(router_id(9), 0, LATEST_MS), Folder(tmp_path / "none"))) == []


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    """What fails on the way leaves nothing; what is there already is left alone."""
    out = tmp_path / "deep" / "out"

    def fail() -> None:
        with new_folder(out) as folder:
            (folder / "half").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "deep").iterdir()) == []
    with new_folder(out) as folder:
        (folder / "whole").write_text("x")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["whole"]
    with pytest.raises(Invalid, match="is there already"), new_folder(out):
        pass
    assert (out / "whole").read_text() == "x"
    (tmp_path / "file").write_text("x")
    with pytest.raises(Invalid, match="is there already"), new_folder(tmp_path / "file"):
        pass


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o022, 0o755)])
def test_a_folder_is_for_those_whom_the_umask_lets_in(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "out"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as folder:
        (folder / "x").write_text("x")
    assert (tmp_path / "out" / "x").read_text() == "x"


def test_the_guides_join_gives_each_sample_the_state_that_it_met(
    place: Folder,
    tmp_path: Path,
    samples: pl.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As many rows as breakers took samples; states as the backtest of one breaker tells them."""
    out, row = tmp_path / "exported", BREAKERS[0]
    list(export_history(place, ALL, Folder(out)))
    export_breakers(BREAKERS, Folder(out))
    mine = samples.filter(pl.col("router_id") == row.router_ids[0])
    moved = backtest(row.rule, mine).transitions
    events = moved.with_columns(breaker_id=pl.lit(row.id)).rename({"breaker": "name"})
    (out / "events").mkdir()
    events.write_parquet(out / "events" / "live.parquet")
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    known: dict[str, Any] = {}
    exec(compile(script, str(GUIDE), "exec"), known)
    assert "closed" in capsys.readouterr().out
    met = known["met"]
    assert len(met) == len(samples)
    found = met.filter(pl.col("breaker_id") == row.id).select("received_ms", pl.col("state").fill_null("closed")).rows()
    moves = moved.select("ts_ms", "curr").rows()
    assert found == [
        (at, next((curr for ms, curr in reversed(moves) if ms < at), "closed")) for at in mine["ts_ms"].sort()
    ]
    assert {state for _, state in found} == {"closed", "open", "half_open"}
