"""What the soak bench calls a problem, on looks that are made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.bench.soak import EVENT_BYTES_MAX, FILE_SLACK, problems

FLAT = {"breakers serve 1": 100_000, "BreakerActor 2": 50_000}


def look(memory: Mapping[str, int] = FLAT, **more: int) -> dict[str, Any]:
    sizes = {"log_bytes": 1 << 30, "store_bytes": 1 << 20, "events": 100}
    return {"memory_kb": {name: {"Rss": kb, "Pss": kb // 2} for name, kb in memory.items()}, **sizes, **more}


def test_what_stays_as_it_is_is_no_problem() -> None:
    """Nor is what grows while everything starts, what shrinks, and a tenth more."""
    starting = [look({"breakers serve 1": 10_000, "python 9": 10_000}, log_bytes=0), look()]
    assert problems([*starting, *[look()] * 8]) == []
    assert problems([*starting, look(), look({"breakers serve 1": 110_000, "BreakerActor 2": 5_000})]) == []


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ({"breakers serve 1": 110_001}, "breakers serve 1 grew from 100000 to 110001 kB"),
        ({"BreakerActor 2": 55_001}, "BreakerActor 2 grew from 50000 to 55001 kB"),
        ({"BreakerActor 3": 1}, "BreakerActor 3 has come"),
    ],
)
def test_a_process_that_grew_or_came_is_named(last: dict[str, int], told: str) -> None:
    assert problems([look(), look(), look(), look(), look(FLAT | last)]) == [told]


def test_a_process_that_was_replaced_is_named_twice() -> None:
    last = look({"breakers serve 1": 100_000, "BreakerActor 3": 50_000})
    assert problems([look(), look(), look(), last]) == ["BreakerActor 2 has ended", "BreakerActor 3 has come"]


def test_the_third_look_is_what_counts() -> None:
    """Of a run so short that there is none, the last one: then nothing is known to grow."""
    small = look({"breakers serve 1": 10, "BreakerActor 2": 10})
    assert problems([small, small, look(), look()]) == []
    assert problems([look(), look(), small, look()]) == [f"{name} grew from 10 to {kb} kB" for name, kb in FLAT.items()]
    assert problems([small, look()]) == []


def test_files_may_grow_by_what_is_kept_in_them() -> None:
    """The database by its events; the logs, which are trimmed, by nothing but slack."""
    begun = [look()] * 3
    log, store = (1 << 30) + FILE_SLACK, (1 << 20) + FILE_SLACK + 50 * EVENT_BYTES_MAX
    assert problems([*begun, look(log_bytes=log, store_bytes=store, events=150)]) == []
    grown = look(log_bytes=log + 1, store_bytes=store + 1, events=150)
    assert problems([*begun, grown]) == [f"log_bytes grew to {log + 1}", f"store_bytes grew to {store + 1}"]
