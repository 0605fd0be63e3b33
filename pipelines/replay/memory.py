"""How much of the samples may lie in memory at a time."""

from __future__ import annotations

from breaker_actors.errors import Invalid

MEMORY_MB = 1024
BASE_MB, BYTES_PER_ROW = 200, 640
"""Measured: what a run needs beside its chunk, and what a row of a chunk takes at most while it is walked over."""
ROWS_MIN = 1 << 16


def rows_within(memory_mb: int) -> int:
    """How many rows may be walked over at a time, so that the process stays within the memory. Raises Invalid."""
    rows = beyond_base(memory_mb) // BYTES_PER_ROW
    if rows < ROWS_MIN:
        raise Invalid(f"{memory_mb} MB are too few; {BASE_MB + ROWS_MIN * BYTES_PER_ROW // (1 << 20) + 1} are needed")
    return rows


def beyond_base(memory_mb: int) -> int:
    """Bytes for what grows with samples and transitions."""
    return (memory_mb - BASE_MB) << 20
