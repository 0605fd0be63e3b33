"""A backfill against a running service that is killed twice and goes on: exact counts, every event once, rejects right;
live samples reach the windows once; and what is exported is all of it.

BACKFILL_ROWS, BACKFILL_ROUTERS and BACKFILL_CHUNK_ROWS set its size (default 200,000 rows for 20 routers, in chunks of
4,000); it prints how long the three starts took and what they needed of memory.
"""

from __future__ import annotations

import json
import math
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from pipelines.backfill.manifest import Manifest, begin
from pipelines.backfill.steps import InProcess, carry_out
from pipelines.sources.object_store import Folder
from tests.support.live import LiveService, serving, tree_of, wait_for
from tests.support.recorded import START_MS, Kept
from tests.support.usage import memory_kb

ROWS = int(os.environ.get("BACKFILL_ROWS", "200000"))
ROUTERS = int(os.environ.get("BACKFILL_ROUTERS", "20"))
CHUNK_ROWS = int(os.environ.get("BACKFILL_CHUNK_ROWS", "4000"))
LIVE, BAD = 60, 37
CHUNKS = -(-(ROWS + LIVE) // CHUNK_ROWS)
PATIENCE_S = 240 + ROWS / 20_000
TASK = "ray::_carry"
PROGRAM = str(Path(sys.executable).with_name("breakers"))
RULE = {"metric": "latency", "op": "gt", "window_ms": 60_000, "eval_interval_ms": 5_000}
KINDS = ({"kind": "avg", "threshold": 90}, {"kind": "p95", "threshold": 200}, {"kind": "error_rate", "threshold": 0.15})
WINDOW_MS = 3_600_000

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(3 * PATIENCE_S)]


class Backfill:
    """`breakers backfill` as a process of its own, with a terminal to draw on."""

    def __init__(self, service: LiveService, *arguments: str, folder: Path) -> None:
        self.shown, self.took_s, self._begun = b"", 0.0, time.monotonic()
        reader, terminal = pty.openpty()
        place = ["--project", service.project_id, "--data-dir", str(service.data_dir)]
        self.process = subprocess.Popen(
            [PROGRAM, "backfill", *arguments, *place],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=terminal,
            text=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(terminal)
        self._listener = threading.Thread(target=self._listen, args=(reader,), daemon=True)
        self._listener.start()

    def _listen(self, reader: int) -> None:
        try:
            while found := os.read(reader, 4096):
                self.shown += found
        except OSError:
            pass  # the terminal of a process that has ended
        os.close(reader)

    def kill_when(self, check: Callable[[], bool]) -> None:
        """SIGKILL as soon as so much is done."""
        wait_for(lambda: check() or self.process.poll() is not None, PATIENCE_S, 0.005)
        assert self.process.poll() is None, self.shown.decode()
        self.process.send_signal(signal.SIGKILL)
        self.end(-signal.SIGKILL)

    def end(self, code: int = 0) -> str:
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        self.took_s = time.monotonic() - self._begun
        self._listener.join(10)
        assert self.process.returncode == code, self.shown.decode()
        return str(output)


class Meter:
    """The most memory that a command and its Ray tasks had at a time, what is shared counted in parts."""

    def __init__(self, service: LiveService) -> None:
        self.command: Backfill | None = None
        self.peak_mb = 0.0
        self._service, self._ended = service, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(0.2):
            tasks = [pid for pid, line in tree_of(self._service.process.pid).items() if line.startswith(TASK)]
            pids = tasks if self.command is None else [self.command.process.pid, *tasks]
            self.peak_mb = max(self.peak_mb, sum(memory_kb(pid).get("Pss", 0) for pid in pids) / 1024)


def recorded(routers: list[str]) -> pl.DataFrame:
    """History with failures that come and go, shuffled, and some rows that are no samples."""
    draw = np.random.default_rng(1)
    at = np.cumsum(draw.exponential(30.0, ROWS)).astype(np.int64) + START_MS
    value = draw.lognormal(4.0, 0.5, ROWS) * np.where((at // 600_000) % 4 == 0, 4.0, 1.0)
    value[draw.choice(ROWS, BAD, replace=False)] = math.nan
    ids = np.array(routers, dtype=object)[draw.integers(0, len(routers), ROWS)]
    frame = pl.DataFrame(
        {
            "router_id": pl.Series(ids, dtype=pl.String),
            "metric": pl.repeat("latency", ROWS, dtype=pl.String, eager=True),
            "ts_ms": at,
            "value": value,
            "ok": draw.random(ROWS) > np.where((at // 500_000) % 3 == 0, 0.3, 0.05),
        }
    )
    return frame.sample(fraction=1.0, shuffle=True, seed=2)


def made(service: LiveService, breakers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = service.user.put(f"{service.project_path}/breakers", json={"breakers": breakers}, timeout=60)
    assert answer.status_code == 200, answer.text
    listed: list[dict[str, Any]] = service.user.get(f"{service.project_path}/breakers").json()["breakers"]
    return listed


def events(service: LiveService, **query: Any) -> list[dict[str, Any]]:
    """All pages; the list is rate limited, and says for how long."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = service.user.get(f"{service.project_path}/events", params={"limit": 200, "cursor": cursor, **query})
        if answer.status_code == 429:
            time.sleep(int(answer.headers["Retry-After"]))
            continue
        assert answer.status_code == 200, answer.text
        found += answer.json()["events"]
        cursor = answer.json()["next_cursor"]
    return found


def test_a_backfill_that_is_killed_twice(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as service:
        rules = [{**RULE, **KINDS[i % 3], "name": f"b{i}"} for i in range(ROUTERS)]
        window = {"metric": "latency", "kind": "count", "op": "gt", "threshold": 10**6, "window_ms": WINDOW_MS}
        listed = made(service, [*rules, {**window, "name": "live", "eval_interval_ms": 1_000}])
        routers = {breaker["name"]: breaker["router_id"] for breaker in listed}
        history = recorded([routers[f"b{i}"] for i in range(ROUTERS)])
        now_ms = time.time_ns() // 1_000_000
        newest = pl.DataFrame({"ts_ms": [now_ms - 1_000 - i for i in range(LIVE)]}).with_columns(
            router_id=pl.lit(routers["live"]), metric=pl.lit("latency"), value=pl.lit(1.0), ok=pl.lit(True)
        )
        given = pl.concat([history, newest.select(history.columns)])
        given.write_parquet(tmp_path / "samples.parquet", row_group_size=20_000)
        with service.stream() as stream:
            summary, shown = killed_and_resumed(service, tmp_path)
            check_events(service, tmp_path, summary)
            assert {message["breaker"] for message in stream.messages} == {breaker["name"] for breaker in listed}
            assert {message["state"] for message in stream.messages} == {"closed"}
        check_counts(summary, given, tmp_path)
        for words in ("writing history", "evaluating routers", "storing events"):
            assert words in shown
        check_live(service, listed, tmp_path)
        check_export(service, summary, tmp_path)


def killed_and_resumed(service: LiveService, folder: Path) -> tuple[dict[str, Any], str]:
    """Killed while history is written and while it is evaluated; what the third start says, and what it draws."""
    options = ("samples.parquet", "--chunk-rows", str(CHUNK_ROWS), "--run", "run-1", "--parallel", "2")
    runs = service.data_dir / f"history/runs/project={service.project_id}/run-1"

    def done(step: str) -> int:
        return len(list((runs / step).glob("*.json")))

    def start() -> Backfill:
        meter.command = Backfill(service, *options, folder=folder)
        return meter.command

    chance = random.Random(3)
    first, second = chance.randrange(3, CHUNKS * 3 // 5), chance.randrange(2, ROUTERS * 3 // 5)
    with Meter(service) as meter:
        (one := start()).kill_when(lambda: done("staged") >= first)
        (two := start()).kill_when(lambda: done("events") >= second)
        last = start()
        assert f"{ROWS + LIVE:,} rows read" in last.end()
    took = " + ".join(f"{started.took_s:.1f}" for started in (one, two, last))
    again = Backfill(service, *options, "--json", folder=folder)
    summary: dict[str, Any] = json.loads(again.end())
    told = f"{summary['rows']:,} rows for {summary['routers']} routers, {summary['events']:,} events"
    print(f"{told}: {took} s, {meter.peak_mb:.0f} MB")
    return summary, last.shown.decode()


def check_counts(summary: dict[str, Any], given: pl.DataFrame, folder: Path) -> None:
    """Nothing is lost, nothing is there twice, and what was rejected is told row by row."""
    assert (summary["rows"], summary["rejected"], summary["live"]) == (ROWS + LIVE, BAD, LIVE)
    assert summary["history"] == ROWS - BAD
    stored = pl.read_parquet(folder / "data/history/samples/**/*.parquet", hive_partitioning=False)
    columns = ["router_id", "metric", "ts_ms", "value", "ok"]
    good = given.filter(pl.col("value").is_finite()).head(ROWS - BAD)
    assert stored.select(columns).sort(columns).equals(good.select(columns).sort(columns))
    rejects = pl.read_csv(folder / summary["rejects"], schema_overrides={"value": pl.String})
    bad = given.with_row_index("row", offset=1).filter(~pl.col("value").is_finite())
    assert rejects["row"].to_list() == bad["row"].to_list()
    assert set(rejects.select("column", "reason", "value").rows()) == {("value", "invalid_value", "NaN")}
    assert rejects["ts_ms"].to_list() == bad["ts_ms"].to_list()
    assert not [path for path in (folder / "data/history").rglob(".*")]


def check_events(service: LiveService, folder: Path, summary: dict[str, Any]) -> None:
    """Each once, and those of the same run carried out in one go in this process; among what happened there is none."""
    listed = events(service, source="backfill")
    keys = Counter((event["run_id"], event["breaker_id"], event["transition_seq"]) for event in listed)
    assert len(keys) == len(listed) == summary["events"] > ROUTERS
    assert events(service) == []
    assert events(service, source="all") == listed
    runs = service.data_dir / f"history/runs/project={service.project_id}/run-1"
    plan, place, kept = (
        msgspec.json.decode((runs / "manifest.json").read_bytes(), type=Manifest),
        folder / "again",
        Kept(),
    )
    begin(Folder(place), plan)
    carry_out(Folder(place), plan, InProcess(), kept)
    expected = {key: (draft.ts_ms, draft.prev, draft.curr, draft.agg) for key, draft in kept.events.items()}
    assert {
        (event["run_id"], event["breaker_id"], event["transition_seq"]): (
            event["ts_ms"], event["prev"], event["curr"], event["agg"],
        )
        for event in listed
    } == expected  # fmt: skip


def check_live(service: LiveService, listed: list[dict[str, Any]], folder: Path) -> None:
    """The newest samples are in the window, once, also when the run's live step is repeated."""
    (live,) = (breaker["id"] for breaker in listed if breaker["name"] == "live")
    wait_for(lambda: service.state(live)["sample_count"] == LIVE)
    runs = service.data_dir / f"history/runs/project={service.project_id}/run-1"
    (runs / "done.json").unlink()
    for mark in (runs / "marks").glob("live.*"):
        mark.unlink()
    Backfill(service, "samples.parquet", "--run", "run-1", folder=folder).end()
    body = {"breaker_ids": [live]}
    state = service.user.post(f"{service.project_path}/breakers/state:batch", json=body).json()["states"][0]
    assert state["sample_count"] == LIVE


def check_export(service: LiveService, summary: dict[str, Any], folder: Path) -> None:
    """Samples of the log and of the store, and the events; other files under the run's id are refused."""
    command = [PROGRAM, "export", "--project", service.project_id, "--data-dir", str(service.data_dir)]
    command += ["--out", "out", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["log"], found["history"], found["events"]) == (LIVE, summary["history"], summary["events"])
    exported = pl.read_parquet(folder / "out/samples/**/*.parquet", hive_partitioning=False)
    assert len(exported) == LIVE + summary["history"]
    assert len(pl.read_parquet(folder / "out/events/**/*.parquet", hive_partitioning=False)) == summary["events"]
    exported.head(10).write_parquet(folder / "samples.parquet")
    Backfill(service, "samples.parquet", "--run", "run-1", folder=folder).end(2)
