"""Sorting on disk gives what sorting in memory gives, equal times in their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.sources import external_sort as sorting
from pipelines.sources.external_sort import Sorted, in_pieces
from pipelines.sources.files import Files, Frames, Layout


@pytest.mark.parametrize("latest", [1_000_000, 60, 1])
@pytest.mark.parametrize("run_bytes", [16_000, 2_000, 1 << 20])
def test_equals_a_stable_sort(latest: int, run_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and many equal times, over several stretches, over so many that they are merged more than once, over one.
    Batches stay small, whatever the times."""
    monkeypatch.setattr(sorting, "FANIN", 4)
    monkeypatch.setattr(sorting, "PIECES", 8)
    draw = np.random.default_rng(3)
    frame = pl.DataFrame({"ts_ms": draw.integers(1, latest + 1, 4_000), "value": draw.random(4_000)})
    batches = list(Sorted(Frames(frame, Layout(), ordered=False), run_bytes=run_bytes).batches())
    assert pl.concat(batches).equals(frame.sort("ts_ms", maintain_order=True))
    assert max(batch.estimated_size() for batch in batches) <= run_bytes


def test_as_much_as_allowed_is_sorted_at_a_time() -> None:
    """In bytes: the wider the rows, the fewer."""
    narrow = pl.DataFrame({"ts_ms": range(10_000), "value": 1.0})
    wide = narrow.with_columns(trace_id=pl.lit("t" * 100))
    for frame in (narrow, wide):
        sizes = [piece.estimated_size() for piece in in_pieces([frame[:4_000], frame[4_000:]], 20_000)]
        assert 10_000 < sum(sizes) / len(sizes) < 30_000
    assert pl.concat(in_pieces([narrow[:3], narrow[3:3], narrow[3:]], 1)).equals(narrow)


def test_by_arrival(tmp_path: Path) -> None:
    """Where samples say when they were received, that is the order."""
    pl.DataFrame({"ts_ms": [1, 2, 3], "value": [1, 2, 3], "received_ms": [9, 5, 7]}).write_parquet(
        tmp_path / "a.parquet"
    )
    source = Sorted(Files([tmp_path / "a.parquet"], Layout(), ordered=False))
    assert [batch["received_ms"].to_list() for batch in source.batches()] == [[5, 7, 9]]
    assert (source.rows(), source.names) == (3, ["a.parquet"])


def test_nothing() -> None:
    assert list(Sorted(Frames(pl.DataFrame({"ts_ms": [], "value": []}), Layout(), ordered=False)).batches()) == []
