"""The logs of a breaker on many routers are merged by time, and hold little of themselves in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from breaker_actors.core.log_entries import SAMPLES, Link, RouterView, Splitter, encode_samples
from breaker_actors.messages import RouterRef
from breaker_actors.wal.base import Append
from breaker_actors.wal.sqlite import SqliteLog
from pipelines.sources import service_log
from pipelines.sources.service_log import Reading

SLOT = "r-0"
TAKING = Splitter(RouterView(version=1, links=(Link("b", "m"),)))
MB = 1_000_000


def payload(value: float, rows: int = 1, others: int = 0, trace: str = "") -> bytes:
    """So many rows of the breaker's metric, and of another one."""
    n = rows + others
    traces = [trace] * n if trace else ()
    columns = np.zeros(n, np.int64), np.full(n, value), np.ones(n, np.bool_)
    return encode_samples(["m", "other"], [rows, others], *columns, traces=traces)


async def logs(folder: Path, records: Sequence[Sequence[tuple[int, bytes]]]) -> tuple[SqliteLog, list[RouterRef]]:
    """A log per router, of (received_ms, payload)."""
    log, names = SqliteLog(folder), [f"r{i:03}" for i in range(len(records))]
    await log.acquire(SLOT, "o", [(name, 1) for name in names], 0, 0)
    for name, those in zip(names, records, strict=True):
        appends = [Append(name, 1, n, at_ms, SAMPLES, 0, body) for n, (at_ms, body) in enumerate(those, 1)]
        assert all(await log.append(SLOT, appends))
    return log, [RouterRef(name, "", SLOT, 0, len(those)) for name, those in zip(names, records, strict=True)]


async def rows_and_peak(log: SqliteLog, refs: Sequence[RouterRef]) -> tuple[pl.DataFrame, int]:
    """What a reading gives, and how many bytes it took at most."""
    frames = []
    tracemalloc.start()
    try:
        async for item in Reading("b", "m", TAKING).entries(log, refs):
            assert isinstance(item, pl.DataFrame)
            frames.append(item)
        return pl.concat(frames), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        await log.close()


@pytest.mark.parametrize("held", [1, 3_000, 1 << 20, 1 << 26])
async def test_records_come_by_time_whatever_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """Of equal times those of the first log first; small and large records, short, long and empty logs."""
    monkeypatch.setattr(service_log, "HELD_BYTES", held, raising=False)
    chance = np.random.default_rng(7)
    records: list[list[tuple[int, bytes]]] = []
    wanted = []
    for i in range(12):
        times = sorted(chance.integers(1, 60, size=int(chance.integers(0, 90))).tolist())
        found = [(at_ms, float(i * 1_000 + n), int(chance.integers(1, 30))) for n, at_ms in enumerate(times)]
        records.append([(at_ms, payload(value, rows)) for at_ms, value, rows in found])
        wanted += [(at_ms, i, n, value, rows) for n, (at_ms, value, rows) in enumerate(found)]
    log, refs = await logs(tmp_path, records)
    rows, _ = await rows_and_peak(log, refs)
    expected = [(at_ms, value) for at_ms, _, _, value, count in sorted(wanted) for _ in range(count)]
    assert rows.select("received_ms", "value").rows() == expected
    assert rows["record"].n_unique() == len(wanted)


async def test_little_of_many_logs_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 MB of records, of which the breaker has one row each."""
    monkeypatch.setattr(service_log, "HELD_BYTES", MB, raising=False)
    body = payload(1.0, others=1_200)
    log, refs = await logs(tmp_path, [[(n, body) for n in range(1, 21)] for _ in range(30)])
    rows, peak = await rows_and_peak(log, refs)
    assert len(rows) == 600
    assert len(body) * 600 > 12 * MB
    assert peak < 3 * MB


async def test_of_a_record_its_rows_are_held(tmp_path: Path) -> None:
    """Also where a breaker has few rows of each, and a frame takes long to fill."""
    body = payload(1.0, others=1_200)
    log, refs = await logs(tmp_path, [[(n, body) for n in range(1, 1_001)]])
    rows, peak = await rows_and_peak(log, refs)
    assert len(rows) == 1_000
    assert peak < 8 * MB  # a page of the log, decoded


async def test_one_read_of_a_log_is_bounded(tmp_path: Path) -> None:
    body = payload(1.0, others=60_000)
    log, refs = await logs(tmp_path, [[(n, body) for n in range(1, 33)]])
    rows, peak = await rows_and_peak(log, refs)
    assert len(rows) == 32
    assert len(body) * 32 > 32 * MB
    assert peak < 14 * MB


async def test_frames_are_cut_by_what_their_traces_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_log, "TRACED", 10_000, raising=False)
    log, refs = await logs(tmp_path, [[(n, payload(1.0, rows=9, trace="t" * 1_000)) for n in range(1, 9)]])
    frames = [item async for item in Reading("b", "m", TAKING).entries(log, refs)]
    await log.close()
    assert [len(frame) for frame in frames if isinstance(frame, pl.DataFrame)] == [18, 18, 18, 18]
