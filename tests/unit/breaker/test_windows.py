"""Cutting windows to a common size, and giving memory back."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breaker_actors.breaker.window_memory import level
from breaker_actors.core.definitions import nearest
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch, Counts, Float64
from breaker_actors.core.rules import parse_rule


@given(st.lists(st.integers(1, 1_000), min_size=1, max_size=30), st.integers(30, 5_000))
def test_all_together_fit_and_no_room_is_wasted(sizes: list[int], room: int) -> None:
    cut = level(sizes, room)
    assert sum(min(size, cut) for size in sizes) <= room
    if sum(sizes) > room:
        assert sum(min(size, cut + 1) for size in sizes) > room


def test_a_window_that_was_cut_decides_by_what_is_left() -> None:
    rule = parse_rule({"metric": "m", "kind": "max", "op": "gte", "threshold": 9, "window_ms": 60_000})
    breaker, _ = Breaker.create(rule, 0)
    breaker.ingest(Batch.of([(ms, 9.0 if ms < 50 else 1.0, True) for ms in range(1, 101)]), 100)
    assert (breaker.view(100).verdict, breaker.samples_held) == ("breach", 100)
    assert breaker.bound(40) == 60
    breaker.advance(10_000)
    view = breaker.view(10_000)
    assert (view.verdict, view.sample_count, view.truncated_count) == ("healthy", 40, 60)


def test_a_window_that_has_room_is_not_ranked_for_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cut is, once: the value stays that of the last evaluation."""
    ranked: list[int] = []

    def noted(values: Float64, place: int, counts: Counts = None) -> float:
        ranked.append(len(values))
        return nearest(values, place, counts)

    monkeypatch.setattr("breaker_actors.core.accumulators.nearest", noted)
    rule = parse_rule({"metric": "m", "kind": "max", "op": "gte", "threshold": 9, "window_ms": 60_000})
    breaker, _ = Breaker.create(rule, 0)
    breaker.ingest(Batch.of([(ms, 200.0 - ms, True) for ms in range(1, 101)]), 100)
    assert (breaker.bound(100), ranked) == (0, [])
    breaker.ingest(Batch.of([(101, 1.0, True)]), 101)
    assert (breaker.samples_held, breaker.bound(100), ranked) == (100, 0, [])
    assert (breaker.bound(40), ranked) == (60, [100])
    assert (breaker.record().value, ranked) == (198.0, [100])


MEASURE = """
import os
from breaker_actors.core.machine import Breaker
from breaker_actors.core.model import Batch
from breaker_actors.core.rules import parse_rule
from breaker_actors.breaker.window_memory import give_back

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

rule = parse_rule({"metric": "m", "kind": "avg", "op": "gt", "threshold": 9, "window_ms": 86_400_000})
batch = Batch.of([(ms, 1.0, True) for ms in range(1, 1001)])
before = resident()
breakers = [Breaker.create(rule, 0)[0] for _ in range(400)]
for _ in range(10):
    for breaker in breakers:
        breaker.ingest(batch, 1_000)
full = resident()
keep = breakers[::50]
del breakers, breaker
give_back()
print(full - before, resident() - before)
"""


def test_memory_is_given_back() -> None:
    """4 million samples in 400 windows, of which 8 stay."""
    told = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True).stdout
    full, left = map(int, told.split())
    assert full > 60e6
    assert left < full / 4
