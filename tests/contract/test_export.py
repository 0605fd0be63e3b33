"""Export out of a log and a store of either kind: every sample once and as it was received, both kinds of events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.log_entries import GAP, SAMPLES, Gap, decode_samples, encode_entry, encode_samples
from breaker_actors.core.model import Batch, Transition
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import RouterAssignment
from breaker_actors.telemetry.set_aside import Asides
from breaker_actors.wal.base import Append, SampleLog
from pipelines import export
from pipelines.backtest import BacktestWarning, backtest
from pipelines.export import EVENTS, SAMPLES_SCHEMA, Span, export_events, export_history, export_log
from pipelines.replay.reference import replay
from pipelines.sources import history_store as history
from pipelines.sources.files import LATEST_MS
from pipelines.sources.history_store import DAY_MS, SCHEMA
from pipelines.sources.object_store import Folder
from tests.contract.store_world import World, event

SLOT = "r-0"
ALL = Span("p", 0, LATEST_MS)


def record(
    offset: int,
    received_ms: int,
    values: list[float],
    traces: tuple[str, ...] = (),
    router_id: str = "a",
    counts_of: list[int] | None = None,
) -> Append:
    """Two metrics: the last value is of another one."""
    n = len(values)
    counts = [n - 1, 1] if n > 1 else [1]
    ts_ms = np.arange(n, dtype=np.int64) + received_ms - 5
    ok = np.arange(n) % 2 == 0
    count = None if counts_of is None else np.array(counts_of, np.int64)
    payload = encode_samples(
        ["latency", "load"][: len(counts)], counts, ts_ms, np.array(values), ok, None, traces, count
    )
    return Append(router_id, 1, offset, received_ms, SAMPLES, 0, payload)


def read(folder: Path, what: str) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / what).rglob("*.parquet"))])


async def exported(log: SampleLog, folder: Path, span: Span = ALL) -> list[int]:
    assigned = [RouterAssignment(router_id=id_, project_id="p", epoch=1, log_slot=SLOT) for id_ in ("a", "b")]
    return [rows async for rows in export_log(log, assigned, span, Folder(folder), Asides())]


async def test_samples_of_the_log(log: SampleLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the log, with the time each was received; what is no sample is left out; so is what lies outside
    the span. Files are bounded, and so is what is read at a time."""
    monkeypatch.setattr(export, "ROWS_OF_FILE", 3)
    monkeypatch.setattr("breaker_actors.wal.reader.CHUNK", 2)
    await log.acquire(SLOT, "o", [("a", 1), ("b", 1)], 0, 0)
    gap = Append("a", 1, 3, 1_200, GAP, 0, encode_entry(Gap(1_100, 1_200)))
    records = [
        record(1, 1_000, [1.0, 2.0, 3.0], ("t1", "", "t3")),
        record(2, 1_100, [4.0]),
        gap,
        record(4, 1_300, [5.0, 6.0], counts_of=[3, 1]),
        record(5, DAY_MS + 5, [7.0]),
    ]
    assert await log.append(SLOT, records) == [True] * 5
    assert await exported(log, tmp_path / "whole") == [7, 0]
    found = read(tmp_path / "whole", "samples")
    assert found.schema == SAMPLES_SCHEMA
    assert found["value"].to_list() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert found["metric"].to_list() == ["latency"] * 2 + ["load"] + ["latency"] * 2 + ["load", "latency"]
    assert found["received_ms"].to_list() == [1_000] * 3 + [1_100] + [1_300] * 2 + [DAY_MS + 5]
    assert found["ts_ms"].to_list() == [995, 996, 997, 1_095, 1_295, 1_296, DAY_MS]
    assert found["ok"].to_list() == [True, False, True, True, True, False, True]
    assert found["trace_id"].to_list() == ["t1", None, "t3", None, None, None, None]
    assert found["record"].to_list() == [1] * 3 + [2] + [4] * 2 + [5]
    assert found["count"].to_list() == [1] * 4 + [3, 1] + [1]
    assert await exported(log, tmp_path / "part", Span("p", 1_100, 1_300)) == [1, 0]
    assert read(tmp_path / "part", "samples")["value"].to_list() == [4.0]


RULE = {
    "metric": "latency", "kind": "avg", "op": "gt", "threshold": 100, "window_ms": 1_000, "min_state_duration_ms": 0,
    "cooldown_ms": 300, "eval_interval_ms": 200,
}  # fmt: skip


async def test_records_of_one_millisecond(log: SampleLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backtest of an exported folder takes record by record, as the core does with the log: of one router, and of two
    whose records have the same offsets. History beside it, or a folder from before records and counts were named,
    changes nothing of that."""
    monkeypatch.setattr(export, "ROWS_OF_FILE", 3)
    draw, place = np.random.default_rng(1), Folder(tmp_path / "store")
    await log.acquire(SLOT, "o", [("a", 1), ("b", 1)], 0, 0)
    at = np.sort(draw.integers(10, 50, 150) * 100).tolist()
    values = [[1_000.0 if draw.random() < 0.2 else 1.0] * 3 for _ in at]
    logs = {
        id_: [
            record(n, ms, v, router_id=id_, counts_of=[1, n % 5 + 1, 1] if n % 4 == 0 else None)
            for n, (ms, v) in enumerate(those, 1)
        ]
        for id_, those in (("a", list(zip(at, values, strict=True))), ("b", list(zip(at, values[::-1], strict=True))))
    }
    for those in logs.values():
        assert await log.append(SLOT, those) == [True] * len(those)
    assert await exported(log, tmp_path / "out") == [450, 450]
    before = {"router_id": "a", "metric": "latency", "ts_ms": [1, 2], "received_ms": [1, 2], "value": 1.0, "ok": True}
    loaded = (
        pl.DataFrame(before).with_columns(trace_id=pl.lit(None, pl.String), count=pl.lit(1, pl.Int64)).select(*SCHEMA)
    )
    history.add(place, "p", loaded, "run-1.0")
    assert list(export_history(place, ALL, Folder(tmp_path / "out"))) == [2]
    assert read(tmp_path / "out", "samples").schema == SAMPLES_SCHEMA
    loaded.drop("count").write_parquet(tmp_path / "out/samples/0-old.parquet")
    for routers in (["a"], ["a", "b"]):
        with pytest.warns(BacktestWarning, match="begin in 1970"):
            found = backtest(RULE | {"router_ids": routers}, str(tmp_path / "out/samples/**/*.parquet"), sort=True)
        merged = sorted((one for id_ in routers for one in logs[id_]), key=lambda one: one.received_ms)
        old = [(ms, Batch(np.array([ms] * 2), np.array([1.0] * 2), np.array([True] * 2))) for ms in (1, 2)]
        batches = [(one.received_ms, decode_samples(one.payload).of("latency")) for one in merged]
        effects = replay(parse_rule(RULE), 1, [*old, *batches], merged[-1].received_ms)
        moves = [(e.ts_ms, e.prev, e.curr, e.value) for e in effects if isinstance(e, Transition)]
        assert len(moves) > 6
        assert found.transitions.select("ts_ms", "prev", "curr", "value").rows() == moves


async def test_events_of_both_sources(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, whatever the pages, by their time in [from, to)."""
    monkeypatch.setattr(export, "EVENTS_READ", 2)
    row = await world.breaker("a")
    await world.own(row.id)
    for seq in range(1, 6):
        assert await world.write(world.commit(row.id, 1, event(seq, ts_ms=1_000 * seq))) == ["ok"]
    loaded = [(row.id, event(seq, ts_ms=DAY_MS * seq)) for seq in range(1, 4)]
    await world.store.add_backfill_events(world.project_id, "run-1", loaded, 9)
    span = Span(world.project_id, 2_000, 3 * DAY_MS)
    pages = [rows async for rows in export_events(world.store, span, Folder(tmp_path / "out"))]
    assert pages == [2, 2, 2]
    found = read(tmp_path / "out", "events").sort("source", "sequence")
    assert found.schema == EVENTS
    assert found.select("source", "run_id", "transition_seq").rows() == [
        *(("backfill", "run-1", seq) for seq in (1, 2)),
        *(("live", None, seq) for seq in (2, 3, 4, 5)),
    ]
    assert set(found.select("avg", "count", "error_count", "p95", "rule").rows()) == {
        (512.5, 3, None, None, '{"kind":"avg","tags":{}}')
    }
    folders = sorted(path.name for path in (tmp_path / f"out/events/project={world.project_id}").iterdir())
    assert folders == ["day=1970-01-01", "day=1970-01-02", "day=1970-01-03"]
