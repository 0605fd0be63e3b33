"""Exports and backtests of a service pass over what can't be read, go on with all others, and say what it was."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from api.cli.main import app
from breaker_actors.core.log_entries import BREAKER, SAMPLES, VIEW
from breaker_actors.persistence import DATABASE
from breaker_actors.store.rows import BreakerRow
from breaker_actors.telemetry.set_aside import Asides
from pipelines.sources.passed_over import NAMED_MAX, passed_over, told
from tests.support.cluster import Service, service

BAD = b"\xc1 nobody reads this"


async def fed(s: Service, name: str) -> tuple[BreakerRow, int]:
    """A breaker with five records of two samples, and the offset of the first."""
    row = await s.breaker(name)
    for i in range(5):
        await s.send(row.router_ids[0], [float(i), float(i)])
    records = await s.cluster.log.read(await s.slot(row.router_ids[0]), row.router_ids[0], 0, 1 << 60, 100)
    return row, next(record.offset for record in records if record.kind == SAMPLES)


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    """A data directory with two breakers, whose logs a test may damage."""

    async def make() -> dict[str, Any]:
        async with service(tmp_path / "data") as s:
            (a, first), (b, _) = await fed(s, "a"), await fed(s, "b")
            return {"project": s.project.id, "a": a, "b": b, "router": a.router_ids[0], "first": first}

    return asyncio.run(make()) | {"path": tmp_path / "data"}


def damage(data: dict[str, Any], where: str, *values: Any) -> int:
    changed = 0
    for path in (data["path"] / "log").glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as c:
            changed += c.execute(f"UPDATE records SET payload = ? WHERE {where}", (BAD, *values)).rowcount
            # as it was written: by a version that had no checksums
            c.execute("UPDATE records SET before = NULL, checksum = NULL")
            c.execute("UPDATE heads SET unchained = offset")
            c.commit()
    return changed


def run(data: dict[str, Any], *arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--data-dir", str(data["path"])])


def samples(done: Any) -> int:
    """How many a backtest took."""
    (rule,) = json.loads(done.stdout)["summary"]["rules"]
    return int(rule["samples"])


def export(data: dict[str, Any], out: Path) -> Any:
    return run(data, "export", "--project", data["project"], "--out", str(out), "--json")


def test_a_backtest_goes_on_with_all_other_records(data: dict[str, Any]) -> None:
    """Samples and a breaker's settings; stdout is one JSON object, whatever is logged."""
    router, first = data["router"], data["first"]
    assert damage(data, "router_id = ? AND offset IN (?, ?)", router, first + 1, first + 3) == 2
    done = run(data, "backtest", "--from-service", "a", "--json")
    assert done.exit_code == 0, done.output
    told_of = json.loads(done.stdout)
    assert samples(done) == 6
    assert told_of["passed_over"] == {
        "count": 2,
        "things": [{"kind": "log", "thing": router, "place": place} for place in (first + 1, first + 3)],
    }
    line = f"2 stored things could not be read and were passed over: log {router} {first + 1}, log {router} {first + 3}"
    assert f"breakers: {line}" in done.stderr
    whole = run(data, "backtest", "--from-service", "b", "--json")
    assert (samples(whole), json.loads(whole.stdout)["passed_over"]) == (10, {"count": 0, "things": []})


def test_a_settings_record_is_passed_over(data: dict[str, Any]) -> None:
    """The breaker then begins with its first sample."""
    assert damage(data, "router_id = ? AND kind = ?", data["router"], BREAKER) >= 1
    done = run(data, "backtest", "--from-service", "a", "--json")
    assert done.exit_code == 0, done.output
    assert samples(done) == 10
    assert json.loads(done.stdout)["passed_over"]["count"] >= 1
    assert "the log does not go back to the breaker's creation" in done.stderr


def test_without_any_view_there_is_no_sample_and_that_is_said(data: dict[str, Any]) -> None:
    """Nobody knows who took them; the export has them all the same."""
    assert damage(data, "router_id = ? AND kind = ?", data["router"], VIEW) >= 1
    done = run(data, "backtest", "--from-service", "a")
    assert done.exit_code == 2
    assert "breakers: a: there is no sample in it; " in done.stderr
    assert f"could not be read and were passed over: log {data['router']} " in done.stderr


def test_an_export_goes_on_with_all_other_records(data: dict[str, Any], tmp_path: Path) -> None:
    router, first = data["router"], data["first"]
    assert damage(data, "router_id = ? AND offset = ?", router, first + 2) == 1
    done = export(data, tmp_path / "out")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["log"], found["passed_over"]["count"]) == (18, 1)
    assert found["passed_over"]["things"] == [{"kind": "log", "thing": router, "place": first + 2}]
    exported = pl.read_parquet(tmp_path / "out/samples/**/*.parquet").filter(pl.col("router_id") == router)
    assert sorted(set(exported["record"])) == [first, first + 1, first + 3, first + 4]
    words = run(data, "export", "--project", data["project"], "--out", str(tmp_path / "words"))
    assert "breakers: 1 stored things could not be read and were passed over: log" in words.stderr


def test_rows_that_cant_be_read(data: dict[str, Any], tmp_path: Path) -> None:
    """A breaker without a rule is named; all others, and the export, go on."""
    with closing(sqlite3.connect(data["path"] / DATABASE)) as c:
        c.execute("UPDATE breakers SET rule = 'x' WHERE id = ?", (data["a"].id,))
        c.commit()
    done = run(data, "backtest", "--from-service", "a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"breakers: the rule of breaker 'a' ({data['a'].id}) can't be read" in done.stderr
    assert samples(run(data, "backtest", "--from-service", "b", "--json")) == 10
    assert json.loads(export(data, tmp_path / "out").stdout)["log"] == 20


def test_things_are_named_up_to_a_bound() -> None:
    asides = Asides()
    for place in range(NAMED_MAX + 50):
        asides.note("log", "r", ValueError("x"), b"", place)
    passed = passed_over(asides)
    assert (passed["count"], len(passed["things"])) == (NAMED_MAX + 50, NAMED_MAX)
    assert told(passed) == (
        "150 stored things could not be read and were passed over: log r 0, log r 1, log r 2 and 147 more"
    )
    assert told(passed_over(Asides())) is None


@pytest.mark.parametrize("command", ["export", "backtest"])
def test_a_record_that_is_not_what_was_written_is_named(data: dict[str, Any], tmp_path: Path, command: str) -> None:
    """Nobody knows what it was: `breakers recover` puts a gap in its place."""
    for path in (data["path"] / "log").glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as c, c:
            place = (data["router"], data["first"])
            c.execute("UPDATE records SET payload = ? WHERE router_id = ? AND offset = ?", (BAD, *place))
    done = export(data, tmp_path / "out") if command == "export" else run(data, "backtest", "--from-service", "a")
    assert done.exit_code == 1
    assert f"the log of router {data['router']} is damaged: record {data['first']} is not what" in done.stderr
    recovered = run(data, "recover", data["router"], "--yes", "--json")
    assert recovered.exit_code == 0, recovered.output
    (loss,) = json.loads(recovered.stdout)["losses"]
    assert (loss["first"], loss["last"]) == (data["first"], data["first"])
    again = export(data, tmp_path / "again") if command == "export" else run(data, "backtest", "--from-service", "a")
    assert again.exit_code == 0, again.output
