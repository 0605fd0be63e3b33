"""`breakers backfill` and `breakers export` on a data directory, as far as they need no service: input that can't be
used, dry runs, and export."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from typer.testing import CliRunner

from api.cli import history as commands
from api.cli.main import app
from breaker_actors.clock import rfc3339
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import EventQuery
from pipelines.backfill.manifest import Counts, Request, begin, fingerprint
from pipelines.backfill.steps import finish
from pipelines.export import BREAKERS, ROUTERS
from pipelines.sources import history_store as history
from pipelines.sources.object_store import Folder, open_place
from tests.contract.store_world import World, event
from tests.support import recorded
from tests.support.recorded import START_MS
from tests.unit.api.cli.test_admin import breakers, refused


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, Any]:
    """A data directory with a project that has a breaker and its router."""

    async def make() -> dict[str, Any]:
        store = make_store(Settings(data_dir=tmp_path / "data"))
        await store.open()
        world = await World.make(store)
        row = await world.breaker("a")
        await store.add_backfill_events(world.project_id, "run-1", [(row.id, event(1, ts_ms=START_MS))], 5)
        await store.close()
        return {"project": world.project_id, "router": row.router_ids[0], "data": tmp_path / "data"}

    return asyncio.run(make())


@pytest.fixture
def samples(shop: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "router_id": [shop["router"]] * 4,
            "metric": "latency",
            "ts_ms": [START_MS, START_MS + 1, START_MS + 2, START_MS + 3],
            "value": [1.0, float("nan"), 3.0, 4.0],
        }
    )


def run(shop: dict[str, Any], command: str, *arguments: str) -> Any:
    return breakers(shop["data"], command, *arguments, "--project", shop["project"])


def test_a_dry_run_without_a_usable_row_fails(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    samples.with_columns(router_id=pl.lit("main")).write_parquet(tmp_path / "s.parquet")
    result = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run", "--json")
    assert (result.exit_code, result.stderr) == (
        1,
        "breakers: no router of the project is called main: such rows are rejected\nbreakers: no row could be used\n",
    )
    assert json.loads(result.stdout)["rejected"] == 4


WATCHED = """
import os, sys
from importlib.abc import MetaPathFinder

from api.cli.main import main

class Watch(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            print("uv starts workers:", os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Watch())
main()
"""


def test_workers_are_not_started_by_uv(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """Ray reads that when it is imported; by uv's hook `uv run --project` from another folder ended the run."""
    samples.write_parquet(tmp_path / "s.parquet")
    given = ("backfill", "s.parquet", "--project", shop["project"], "--data-dir", str(shop["data"]))
    environ = os.environ | {"RAY_ADDRESS": "127.0.0.1:1"}
    environ.pop("RAY_ENABLE_UV_RUN_RUNTIME_ENV", None)
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *given], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "uv starts workers: 0\n", done.stderr


def test_a_folder(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """As backtest takes one, with the columns that folders in it are named for; the root of an export is told."""
    for metric in ("latency", "size"):
        (tmp_path / "in" / f"metric={metric}").mkdir(parents=True)
        samples.drop("metric").write_parquet(tmp_path / "in" / f"metric={metric}" / "part.parquet")
    result = run(shop, "backfill", str(tmp_path / "in"), "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rows"] == 8
    assert result.stderr == (
        "breakers: no breaker listens to size: such samples have no events; they listen to latency\n"
    )
    (tmp_path / "in" / "metric=latency").rename(tmp_path / "in" / "samples")
    (tmp_path / "in" / "metric=size").rename(tmp_path / "in" / "events")
    refused(run(shop, "backfill", str(tmp_path / "in")), f"`breakers export` writes them; give {tmp_path}/in/samples")


def test_names_of_routers(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """In the column router_id, where one router alone has the name."""
    name = asyncio.run(router_name(shop))
    samples.with_columns(router_id=pl.lit(name)).write_parquet(tmp_path / "s.parquet")
    found = json.loads(run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run", "--json").stdout)
    assert (found["history"], found["reasons"]) == (3, {"invalid_value": 1})


def test_routers_that_there_are_none_of_are_named(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """And where most rows are rejected the command fails, unless its caller knows."""
    name = asyncio.run(router_name(shop))
    parts = [samples.with_columns(router_id=pl.lit(router)) for router in (name, "search", "mail")]
    pl.concat(parts).write_parquet(tmp_path / "s.parquet")
    result = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run")
    named = "breakers: no router of the project is called mail, search: such rows are rejected"
    assert result.exit_code == 1, result.output
    assert result.stderr.splitlines() == [
        named,
        "breakers: 9 of 12 rows are rejected, more than 50 %: --max-rejected says how many may be",
    ]
    known = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run", "--max-rejected", "75")
    assert (known.exit_code, known.stderr.splitlines()) == (0, [named])


def test_columns_that_nothing_reads_are_named(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """As backtest does: samples of three services in one router's history are not silent."""
    path = tmp_path / "s.parquet"
    given = samples.drop("router_id").with_columns(service=pl.Series(["a", "b", "c", "a"]), zone=pl.lit(1))
    given.write_parquet(path)
    result = run(shop, "backfill", str(path), "--dry-run", "--json", "--router", shop["router"])
    told = (
        "not read: service, zone; all is one series: if service says what a sample is of, --column router_id=service "
        "tells them apart"
    )
    assert (result.exit_code, result.stderr) == (0, f"breakers: {told}\n")
    assert json.loads(result.stdout)["warnings"] == [told]
    given.write_ndjson(tmp_path / "s.ndjson")
    lines = run(shop, "backfill", str(tmp_path / "s.ndjson"), "--dry-run", "--router", shop["router"])
    assert lines.stderr == f"breakers: {told}\n"
    mapped = run(shop, "backfill", str(path), "--dry-run", "--column", "router_id=service")
    assert "breakers: not read: zone\n" in mapped.stderr
    samples.write_parquet(path)
    silent = run(shop, "backfill", str(path), "--dry-run", "--json")
    assert (silent.stderr, json.loads(silent.stdout)["warnings"]) == ("", [])


def test_a_dry_run_shows_a_row_for_each_reason(shop: dict[str, Any], tmp_path: Path) -> None:
    """With what is allowed in its place. A value is shortened, and moves no cursor."""
    path = tmp_path / "s.csv"
    rows = ["latency,1,yes", "latency,\x1b[2J,true", "latency,2,no", f"{'m' * 200},3,1", ",4,0", "latency,5,true"]
    text = [f"{shop['router']},{START_MS + number},{row}" for number, row in enumerate(rows)]
    path.write_text("\n".join(["router_id,ts_ms,metric,value,worked", *text]) + "\n")
    given = ("backfill", str(path), "--dry-run", "--column", "ok=worked", "--max-rejected", "90")
    found = json.loads(run(shop, *given, "--json").stdout)
    assert found["reasons"] == {"invalid_metric": 2, "invalid_ok": 2, "invalid_value": 1}
    assert found["examples"]["invalid_ok"] == {
        "file": str(path),
        "row": 1,
        "column": "worked",
        "value": "yes",
        "allowed": "true or false, 1 or 0, or blank (true)",
    }
    assert (found["examples"]["invalid_metric"]["row"], len(found["examples"]["invalid_metric"]["value"])) == (4, 63)
    words = [line.strip() for line in run(shop, *given).stdout.splitlines()]
    at = words.index("2   invalid_ok")
    assert words[at + 1] == f"{path}, row 1: worked 'yes'; true or false, 1 or 0, or blank (true)"
    assert f"{path}, row 2: value '\\x1b[2J'; a finite number" in words


def test_what_is_allowed_of_times(shop: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(
        f"router_id,metric,ts_ms,value\n{shop['router']},latency,soon,1\n{shop['router']},latency,9000000000000,1\n"
        f"{shop['router']},latency,{START_MS},1\n"
    )
    result = run(shop, "backfill", str(path), "--dry-run", "--json", "--max-rejected", "90")
    examples = json.loads(result.stdout)["examples"]
    assert examples["invalid_ts_ms"]["allowed"].startswith("times are Unix milliseconds or ISO 8601")
    assert examples["ts_ms_in_future"]["value"] == "9000000000000"
    assert examples["ts_ms_in_future"]["allowed"].startswith("no later than 2")


async def router_name(shop: dict[str, Any]) -> str:
    store = make_store(Settings(data_dir=shop["data"]))
    await store.open()
    (router,) = await store.list_routers(shop["project"])
    await store.close()
    return router.name


def test_times_beyond_the_calendar_are_hinted_at(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """Microseconds taken for milliseconds are no times."""
    samples.with_columns(ts_ms=pl.col("ts_ms") * 1000).write_parquet(tmp_path / "s.parquet")
    result = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run")
    hint, last = result.stderr.splitlines()
    assert hint.startswith("breakers: no row has a time: times are Unix milliseconds or ISO 8601")
    assert hint.endswith("if they are numbers in another unit, say --time-unit s, us or ns")
    assert (result.exit_code, last) == (1, "breakers: no row could be used")


def test_a_run_without_a_usable_row_fails(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """Also when it is not a dry one."""
    path = tmp_path / "s.parquet"
    samples.write_parquet(path)
    asked = Request(project_id=shop["project"], inputs=(fingerprint(path),))
    plan = recorded.manifest([path], [], [], request=asked, run_id=asked.run_id())
    place = open_place(str(shop["data"] / "history"))
    begin(place, plan)
    finish(place, plan, Counts(rows=4, reasons={"invalid_router_id": 4}), 0)
    result = run(shop, "backfill", str(path), "--rejects", str(tmp_path / "r.csv"))
    assert (result.exit_code, result.stderr) == (1, "breakers: no row could be used\n")


def test_what_was_told_of_a_run_is_told_when_it_goes_on(shop: dict[str, Any], tmp_path: Path) -> None:
    """Its rows are not looked at once more; their hints are kept with it."""
    path = tmp_path / "s.parquet"
    pl.DataFrame({"ts_ms": [START_MS], "value": [1.0], "metric": ["m"], "router_id": ["r"]}).write_parquet(path)
    asked = Request(project_id=shop["project"], inputs=(fingerprint(path),))
    plan = recorded.manifest([path], [], [], request=asked, run_id=asked.run_id())
    place = open_place(str(shop["data"] / "history"))
    begin(place, msgspec.structs.replace(plan, hints=("not read: zone",)))
    finish(place, plan, Counts(rows=1), 0)
    result = run(shop, "backfill", str(path), "--rejects", str(tmp_path / "r.csv"), "--json")
    assert result.stderr.splitlines()[0] == "breakers: not read: zone"
    assert json.loads(result.stdout)["warnings"] == ["not read: zone"]


def test_other_clusters_are_not_the_service(
    shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several of them run here, none that serves the data directory: that is said."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("api.launch.processes.options_of", lambda *_: ["127.0.0.1:1", "127.0.0.1:2"])
    samples.write_parquet(tmp_path / "s.parquet")
    result = CliRunner().invoke(
        app, ["backfill", str(tmp_path / "s.parquet"), "--data-dir", str(shop["data"]), "--project", shop["project"]]
    )
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith(f"breakers: the service of {shop['data']} is not running: start it with `breakers")


def test_a_dry_run_counts_and_writes_nothing(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """No service is needed for it."""
    samples.write_parquet(tmp_path / "s.parquet")
    before = sorted(tmp_path.rglob("*"))
    result = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["dry_run"]
    assert (found["rows"], found["history"], found["live"], found["rejected"]) == (4, 3, 0, 1)
    assert found["reasons"] == {"invalid_value": 1}
    words = run(shop, "backfill", str(tmp_path / "s.parquet"), "--dry-run").stdout
    assert f"run {found['run_id']}: nothing is written" in words
    assert "1   invalid_value" in words
    assert sorted(path for path in tmp_path.rglob("*") if "sqlite" not in path.name) == [
        path for path in before if "sqlite" not in path.name
    ]


def test_times_in_another_unit(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """Seconds taken for milliseconds lie in January 1970: nothing is written before the caller has said that he means
    it, and the right unit comes to the right time."""
    path = tmp_path / "s.parquet"
    samples.with_columns(ts_ms=pl.col("ts_ms") // 1000).write_parquet(path)
    refused(run(shop, "backfill", str(path)), "the samples begin in 1970, at 1970-01-")
    refused(run(shop, "backfill", str(path), "--dry-run"), "say --time-unit s, us or ns; --time-unit ms says that")
    assert not (shop["data"] / "history").exists()
    told = json.loads(run(shop, "backfill", str(path), "--dry-run", "--json", "--time-unit", "ms").stdout)
    assert (told["history"], told["first_ms"]) == (3, START_MS // 1000)
    told = json.loads(run(shop, "backfill", str(path), "--dry-run", "--json", "--time-unit", "s").stdout)
    first_ms = START_MS // 1000 * 1000
    assert (told["history"], told["first_ms"], told["last_ms"]) == (3, first_ms, first_ms)
    words = run(shop, "backfill", str(path), "--dry-run", "--time-unit", "s").stdout
    assert f"samples from {rfc3339(first_ms)} to {rfc3339(first_ms)}" in words


def test_a_run_that_is_done_says_so(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """The second time the same command adds nothing, and says that."""
    path = tmp_path / "s.parquet"
    samples.write_parquet(path)
    found = json.loads(run(shop, "backfill", str(path), "--dry-run", "--json").stdout)
    place = open_place(str(shop["data"] / "history"))
    asked = Request(project_id=shop["project"], inputs=(fingerprint(path),))
    assert asked.run_id() == found["run_id"]
    plan = recorded.manifest([path], [], [], request=asked, run_id=found["run_id"])
    begin(place, plan)
    finish(place, plan, Counts(rows=4, history=3, reasons={"invalid_value": 1}, first_ms=START_MS, last_ms=START_MS), 7)
    again = run(shop, "backfill", str(path), "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["done_before"]
    words = run(shop, "backfill", str(path)).stdout
    assert f"run {found['run_id']}: done before, nothing was added" in words
    assert "7 events" in words


def test_a_run_is_taken_back(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """With its samples and events; another run, and what is live, stay."""
    place, data = open_place(str(shop["data"] / "history")), shop["data"]
    for run_id in ("run-1", "run-2"):
        begin(
            place, recorded.manifest([], [], [], request=Request(project_id=shop["project"], inputs=()), run_id=run_id)
        )
        history.add(place, shop["project"], stored(samples), f"{run_id}.000000")

    async def events(run_id: str, *, add: bool = False) -> int:
        store = make_store(Settings(data_dir=data))
        await store.open()
        query = EventQuery(project_id=shop["project"], source="backfill", limit=100)
        if add:
            row = (await store.list_breakers(shop["project"]))[0][0]
            await store.add_backfill_events(shop["project"], run_id, [(row.id, event(2, ts_ms=START_MS))], 5)
        found = [one for one in await store.events(query) if one.run_id == run_id]
        await store.close()
        return len(found)

    assert asyncio.run(events("run-2", add=True)) == 1
    listed = json.loads(breakers(data, "backfills", "list", "--project", shop["project"], "--json").stdout)["runs"]
    assert [(one["run_id"], one["ended"]) for one in listed] == [("run-1", False), ("run-2", False)]
    asked = ("backfills", "remove", "run-1", "--project", shop["project"])
    refused(breakers(data, *asked), "say --yes")
    told = json.loads(breakers(data, *asked, "--yes", "--json").stdout)
    assert (told["events"], told["files"]) == (1, 1)
    refused(breakers(data, *asked, "--yes"), f"there is no run run-1 in project {shop['project']}")
    assert asyncio.run(events("run-1")) == 0
    assert asyncio.run(events("run-2")) == 1
    assert [name.rpartition("/")[2] for name in history.files(place, shop["project"])] == ["run-2.000000.parquet"]
    assert place.names(f"runs/project={shop['project']}/run-1") == []
    words = breakers(data, "backfills", "list", "--project", shop["project"]).stdout
    (run_id, began, samples_or_state, _), *none = [line.split("\t") for line in words.splitlines()]
    assert (run_id, began[-1:], samples_or_state, none) == ("run-2", "Z", "not ended", [])


def stored(samples: pl.DataFrame) -> pl.DataFrame:
    """In the shape of the history store."""
    blank = {name: pl.lit(None, kind) for name, kind in history.SCHEMA.items() if name not in samples.columns}
    return samples.with_columns(**blank).with_columns(received_ms="ts_ms", ok=pl.lit(True)).select(list(history.SCHEMA))


def test_input_that_cant_be_used(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """One line that names file, row and column as far as there are any, exit code 2, nothing written."""
    whole = tmp_path / "a-whole.parquet"
    samples.write_parquet(whole)
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:-20])
    samples.drop("value").write_parquet(tmp_path / "missing.parquet")
    samples.with_columns(value=pl.lit(True)).write_parquet(tmp_path / "wrong.parquet")
    samples.with_columns(value=pl.col("value").cast(pl.String)).write_parquet(tmp_path / "b-mixed.parquet")
    samples.clear().write_parquet(tmp_path / "empty.parquet")
    (tmp_path / "broken.ndjson").write_text('{"ts_ms": 1, "value": 2}\n{"ts_ms": 1, \n')
    for name, words in {
        "cut.parquet": "cut.parquet can't be read: ",
        "missing.parquet": "missing.parquet: there is no column 'value', there are router_id, metric, ts_ms",
        "wrong.parquet": "wrong.parquet: its column 'value' is Boolean, not numbers",
        "[ab]-*.parquet": "b-mixed.parquet: its column 'value' is text, in",
        "empty.parquet": "empty.parquet: there is no sample in it",
        "broken.ndjson": "broken.ndjson, row 2 can't be read: ",
        "none.parquet": "none.parquet can't be read: No such file",
        "none*.parquet": "there is no such file",
    }.items():
        refused(run(shop, "backfill", str(tmp_path / name)), words)
    refused(run(shop, "backfill", str(whole), "--column", "when=ts_ms"), "did you mean --column ts_ms=when?")
    refused(run(shop, "backfill", str(whole), "--run", "../x"), "--run '../x'")
    refused(run(shop, "backfill", str(whole), "--rejects", str(tmp_path / "no/x.csv")), "there is no directory")
    refused(breakers(shop["data"], "backfill", str(whole), "--project", "nobody"), "there is no project nobody")
    os.mkfifo(tmp_path / "pipe.csv")
    refused(run(shop, "backfill", str(tmp_path / "pipe.csv")), "pipe.csv is no regular file")
    refused(breakers(tmp_path / "other", "backfill", str(whole), "--project", "x"), "there is no data in")
    assert not (shop["data"] / "history").exists()


def test_without_a_service_nothing_is_begun(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """The cluster is looked for first."""
    samples.write_parquet(tmp_path / "s.parquet")
    program = str(Path(sys.executable).with_name("breakers"))
    place = ["--project", shop["project"], "--data-dir", str(shop["data"]), "--address", "127.0.0.1:1"]
    result = subprocess.run(
        [program, "backfill", str(tmp_path / "s.parquet"), *place], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    assert "there is no Ray cluster at 127.0.0.1:1" in result.stderr
    assert not (shop["data"] / "history").exists()


def test_export(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """History and events into a new folder; again into the same one is refused and leaves it alone."""
    full = samples.select(
        "router_id", "metric", "ts_ms", pl.col("ts_ms").alias("received_ms"), "value", ok=True, trace_id=None, count=1
    )
    history.add(Folder(shop["data"] / "history"), shop["project"], full.cast(history.SCHEMA), "run-1.000000")
    out = tmp_path / "out"
    result = run(shop, "export", "--out", str(out), "--from", "2023-11-14T22:13:20.001Z", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {
        "project_id": shop["project"], "out": str(out), "log": 0, "history": 3, "events": 0,
        "breakers": 1, "routers": 1,
        "passed_over": {"count": 0, "things": []},
    }  # fmt: skip
    assert len(pl.read_parquet(out / "samples/**/*.parquet")) == 3
    refused(run(shop, "export", "--out", str(out)), "is there already")
    for options in (("--to", str(START_MS + 1)), ("--from", str(START_MS), "--to", "2023-11-14T22:13:20.001")):
        folder = tmp_path / f"out-{len(options)}"
        words = run(shop, "export", "--out", str(folder), *options).stdout
        assert "1 samples of history" in words
        assert "1 events" in words
    refused(run(shop, "export", "--out", str(tmp_path / "x"), "--from", "now"), "--from 'now' is not a time")
    refused(
        run(shop, "export", "--out", str(tmp_path / "x"), "--from", "2024-01-02", "--to", "2024-01-01"),
        "is not before --to",
    )
    refused(
        breakers(shop["data"], "export", "--project", "nobody", "--out", str(tmp_path / "x")), "there is no project"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("part", ["_asked", "_planned", "_surveyed"])
def test_a_backfill_that_is_stopped_early_says_that_nothing_was_written(
    shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples.write_parquet(tmp_path / "s.parquet")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, part, stop)
    result = run(shop, "backfill", str(tmp_path / "s.parquet"))
    assert (result.exit_code, result.stderr) == (130, "breakers: stopped; nothing was written\n")


def test_what_is_exported_joins(shop: dict[str, Any], samples: pl.DataFrame, tmp_path: Path) -> None:
    """Samples with events by the tables of routers and breakers; times can be read."""
    loaded = recorded_of(samples)
    history.add(Folder(shop["data"] / "history"), shop["project"], loaded, "run-1.000000")
    out = tmp_path / "out"
    assert run(shop, "export", "--out", str(out)).exit_code == 0
    kept, moved = (pl.read_parquet(out / what / "**/*.parquet") for what in ("samples", "events"))
    breakers_table, routers = pl.read_parquet(out / "breakers.parquet"), pl.read_parquet(out / "routers.parquet")
    assert (dict(breakers_table.schema), dict(routers.schema)) == (BREAKERS, ROUTERS)
    (row,) = breakers_table.iter_rows(named=True)
    assert (row["router_ids"], row["metric"], row["op"]) == ([shop["router"]], "latency", "gt")
    assert json.loads(row["rule"])["threshold"] == row["threshold"]
    assert routers["id"].to_list() == [shop["router"]]
    by_router = breakers_table.explode("router_ids").select("metric", breaker_id="id", router_id="router_ids")
    joined = kept.join(by_router, on=["router_id", "metric"]).join(moved, on="breaker_id")
    assert len(joined) == len(kept) > 0
    for frame, name, ms in ((kept, "ts", "ts_ms"), (kept, "received", "received_ms"), (moved, "ts", "ts_ms")):
        assert frame.schema[name] == pl.Datetime("ms", "UTC")
        assert frame[name].dt.epoch("ms").to_list() == frame[ms].to_list()


def recorded_of(samples: pl.DataFrame) -> pl.DataFrame:
    full = samples.with_columns(received_ms="ts_ms", ok=pl.lit(True), trace_id=None, count=1)
    return full.select(list(history.SCHEMA)).cast(history.SCHEMA)
