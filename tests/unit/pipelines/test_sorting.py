"""Sorting on disk gives what sorting in memory gives, equal times in their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.sorting import Sorted
from pipelines.sources import Files, Frames, Layout


@pytest.mark.parametrize("latest", [1_000_000, 60, 1])
def test_equals_a_stable_sort(latest: int) -> None:
    """Few and many equal times, over many stretches."""
    draw = np.random.default_rng(3)
    frame = pl.DataFrame({"ts_ms": draw.integers(1, latest + 1, 20_000), "value": draw.random(20_000)})
    source = Sorted(Frames(frame, Layout(), ordered=False), run_rows=3000, read_rows=500)
    batches = list(source.batches())
    assert len(batches) > 1 or latest == 1
    assert pl.concat(batches).equals(frame.sort("ts_ms", maintain_order=True))


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
