"""Mutilated streams: each is read, or refused in words; nothing else is raised, and little is held meanwhile.

`python -m tests.unit.api.arrow.test_hostile SEED CASES` tries more of them.
"""

from __future__ import annotations

import random
import sys
import tracemalloc
from typing import Any

import polars as pl
import pytest

from api.arrow.frames import Frame, read_frame
from api.wire.sample_columns import Pieces, judge_frame
from api.wire.samples import ValidationContext
from breaker_actors.errors import BadRequest, Invalid, PayloadTooLarge
from tests.support.arrow_streams import WRITERS, mutilated, of_polars, of_pyarrow, table

CASES, ROWS = 1_500, 50
BYTES_MAX = 1 << 20
MEMORY_MAX = 24 << 20
"""Of 100,000 rows that take a byte each in the body (a column of nothing, of booleans) all columns hold some 10 MB."""
BOUNDS = ValidationContext({"r0": False, "r1": True, "r2": False}, 0, 1 << 50, 5)


def bodies() -> list[bytes]:
    rows = [
        {
            "router_id": f"r{n % 3}",
            "metric": "latency" if n % 5 else "a metric that is not inline",
            "ts_ms": n,
            "value": float(n),
            "ok": n % 2 == 0,
            "trace_id": None if n % 4 else "t" * 20,
            "count": n % 3 + 1,
            "extra": n,
        }
        for n in range(ROWS)
    ]
    found = table(rows, list(rows[0]))
    enum = pl.from_arrow(found).with_columns(pl.col("router_id").cast(pl.Enum(["r0", "r1", "r2"])))
    return [*(write(found) for write in WRITERS.values()), of_polars(enum)]


def holds_together(frame: Frame) -> None:
    columns: list[Any] = [frame.router_id.codes, frame.metric.codes, frame.value, frame.ok, frame.ts_ms, frame.has_ts]
    columns += [frame.count, None if frame.trace_id is None else frame.trace_id.rows]
    assert {len(column) for column in columns if column is not None} == {frame.rows}
    judged = judge_frame(frame, BOUNDS)
    parts = Pieces(judged, BOUNDS, {"r1"}, with_traces=True).parts((b"k",))
    assert sum(part.count for group in parts for part in group) == judged.accepted
    assert judged.accepted + judged.rejected == frame.rows


def fuzz(seed: int, cases: int) -> dict[str, int]:
    """Tries so many streams; gives how many could be read, and how many were refused as what."""
    rnd, known, found = random.Random(seed), bodies(), dict[str, int]()
    for case in range(cases):
        body = mutilated(rnd.choice(known), rnd)
        try:
            holds_together(read_frame(body, BYTES_MAX))
            outcome = "read"
        except (BadRequest, Invalid, PayloadTooLarge) as error:
            outcome = type(error).__name__
        except BaseException:
            print(f"seed {seed}, case {case}: {body.hex()[:200]}...", file=sys.stderr)
            raise
        found[outcome] = found.get(outcome, 0) + 1
    return found


def test_mutilated_streams() -> None:
    found = fuzz(random.randrange(1 << 32), CASES)
    assert found.keys() == {"read", "BadRequest", "Invalid", "PayloadTooLarge"}
    assert min(found["read"], found["BadRequest"]) > CASES // 10


@pytest.mark.slow
def test_memory() -> None:
    tracemalloc.start()
    try:
        fuzz(random.randrange(1 << 32), CASES)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
    finally:
        tracemalloc.stop()


def test_every_beginning_of_a_stream_is_cut_off() -> None:
    for body in bodies():
        for end in range(0, len(body), 97):
            with pytest.raises(BadRequest):
                read_frame(body[:end], BYTES_MAX)


def test_a_body_of_one_byte_over_and_over() -> None:
    for byte in (0, 1, 4, 127, 128, 255):
        with pytest.raises((BadRequest, PayloadTooLarge)):
            read_frame(bytes([byte]) * 100_000, BYTES_MAX)
    assert read_frame(of_pyarrow(table([], ["router_id", "metric", "value"])), BYTES_MAX).rows == 0


if __name__ == "__main__":
    print(fuzz(int(sys.argv[1]), int(sys.argv[2])))
