"""Export out of a log and a store of either kind: every sample once and as it was received, both kinds of events."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.records import GAP, SAMPLES, Gap, encode_entry, encode_samples
from breaker_actors.messages import RouterAssignment
from breaker_actors.stores.samplelog import Append, SampleLog
from pipelines import export
from pipelines.export import EVENTS, Span, export_events, export_log
from pipelines.history import DAY_MS, SCHEMA
from pipelines.places import Folder
from tests.contract.store_world import World, event

SLOT = "r-0"
ALL = Span("p", 0, 10**15)


def record(offset: int, received_ms: int, values: list[float], traces: tuple[str, ...] = ()) -> Append:
    """Two metrics: the last value is of another one."""
    n = len(values)
    counts = [n - 1, 1] if n > 1 else [1]
    ts_ms = np.arange(n, dtype=np.int64) + received_ms - 5
    ok = np.arange(n) % 2 == 0
    payload = encode_samples(["latency", "load"][: len(counts)], counts, ts_ms, np.array(values), ok, None, traces)
    return Append("a", 1, offset, received_ms, SAMPLES, 0, payload)


def read(folder: Path, what: str) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / what).rglob("*.parquet"))])


async def exported(log: SampleLog, folder: Path, span: Span = ALL) -> list[int]:
    assigned = [RouterAssignment(router_id=id_, project_id="p", epoch=1, log_slot=SLOT) for id_ in ("a", "b")]
    return [rows async for rows in export_log(log, assigned, span, Folder(folder))]


async def test_samples_of_the_log(log: SampleLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the log, with the time each was received; what is no sample is left out; so is what lies outside
    the span. Files are bounded, and so is what is read at a time."""
    monkeypatch.setattr(export, "ROWS_OF_FILE", 3)
    monkeypatch.setattr("breaker_actors.logreader.CHUNK", 2)
    await log.take(SLOT, "o", [("a", 1), ("b", 1)], 0, 0)
    gap = Append("a", 1, 3, 1_200, GAP, 0, encode_entry(Gap(1_100, 1_200)))
    records = [
        record(1, 1_000, [1.0, 2.0, 3.0], ("t1", "", "t3")),
        record(2, 1_100, [4.0]),
        gap,
        record(4, 1_300, [5.0, 6.0]),
        record(5, DAY_MS + 5, [7.0]),
    ]
    assert await log.append(SLOT, records) == [True] * 5
    assert await exported(log, tmp_path / "whole") == [7, 0]
    found = read(tmp_path / "whole", "samples")
    assert found.schema == SCHEMA
    assert found["value"].to_list() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert found["metric"].to_list() == ["latency"] * 2 + ["load"] + ["latency"] * 2 + ["load", "latency"]
    assert found["received_ms"].to_list() == [1_000] * 3 + [1_100] + [1_300] * 2 + [DAY_MS + 5]
    assert found["ts_ms"].to_list() == [995, 996, 997, 1_095, 1_295, 1_296, DAY_MS]
    assert found["ok"].to_list() == [True, False, True, True, True, False, True]
    assert found["trace_id"].to_list() == ["t1", None, "t3", None, None, None, None]
    assert await exported(log, tmp_path / "part", Span("p", 1_100, 1_300)) == [1, 0]
    assert read(tmp_path / "part", "samples")["value"].to_list() == [4.0]


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
