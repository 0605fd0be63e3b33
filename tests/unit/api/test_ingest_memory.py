"""What a replica remembers of samples, and what it forgets."""

from __future__ import annotations

import pytest

from api.lookup import ingest_memory
from api.lookup.ingest_memory import Example, Flow, IngestMemory
from breaker_actors.messages import AppendResult, Part

OK = AppendResult("ok", 1)


def part(router_id: str, n: int = 10) -> Part:
    return Part(router_id, (), b"", n)


class Now:
    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def test_a_rate_is_that_of_the_last_minute() -> None:
    flow = Flow(0)
    for second in range(300):
        flow.add(7, second * 1_000)
    assert flow.rate(299_000) == pytest.approx(7, rel=0.05)
    assert flow.rate(330_000) == pytest.approx(3.5, rel=0.2)
    assert flow.rate(400_000) == 0
    assert flow.last_ms == 299_000


def test_a_rate_of_a_moment_and_of_a_clock_that_goes_back() -> None:
    flow = Flow(100_000)
    flow.add(10, 100_000)
    assert flow.rate(100_000) == 10
    flow.add(10, 50_000)
    assert flow.last_ms == 100_000
    assert flow.rate(102_000) == 10


def test_only_what_a_log_took_counts() -> None:
    memory = IngestMemory(Now(), lambda: 0.0)
    memory.took("o", "p", [part("a"), part("b"), part("c")], [OK, AppendResult("full"), AppendResult("duplicate", 1)])
    seen = memory.of("p")
    assert seen is not None
    assert list(seen.routers) == ["a"]


def test_projects_routers_and_metrics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_memory, "PROJECTS_MAX", 3)
    monkeypatch.setattr(ingest_memory, "ROUTERS_MAX", 3)
    monkeypatch.setattr(ingest_memory, "UNHEARD_MAX", 3)
    memory = IngestMemory(Now(), lambda: 0.0)
    for n in (*range(3), 0, *range(3, 5)):
        memory.took("o", "p", [part(f"r{n}")], [AppendResult("ok", 1, unheard=(f"m{n}",))])
    seen = memory.of("p")
    assert seen is not None
    assert list(seen.routers) == ["r0", "r3", "r4"]  # the one noted longest ago goes
    assert [metric for _, metric in seen.unheard] == ["m0", "m3", "m4"]
    for name in ("q", "r", "s"):
        memory.turned_away(name, name, "x", "y")
    assert memory.of("p") is None


def test_an_organisation_of_many_projects_forgets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one noted longest ago; a neighbour's stay for a day, however seldom samples of it come."""
    monkeypatch.setattr(ingest_memory, "PROJECTS_MAX", 3)
    now_s = 0.0
    memory = IngestMemory(Now(), lambda: now_s)
    memory.took("quiet", "q", [part("r")], [OK])
    for n in (*range(4), 2, *range(4, 9)):
        now_s += 3_600
        memory.turned_away("flood", f"p{n}", "code", "words")
        if n == 4:
            assert memory.of("p2") is not None
    assert [name for name in ("q", *(f"p{n}" for n in range(9))) if memory.of(name)] == ["q", "p7", "p8"]
    now_s += ingest_memory.LATELY_MS / 1_000
    memory.turned_away("flood", "p9", "code", "words")
    assert len(memory._of) <= 3


def test_reasons_count_and_keep_the_newest_example() -> None:
    now = Now()
    memory = IngestMemory(now, lambda: 0.0)
    memory.refused("o", "p", {"invalid_value": 3}, {"invalid_value": Example("r", "m", "1")})
    now.ms += 5
    memory.refused("o", "p", {"invalid_value": 4}, {"invalid_value": Example("r", "m", "2")})
    memory.refused("o", "p", {"invalid_value": 1}, {})
    seen = memory.of("p")
    assert seen is not None
    noted = seen.samples["invalid_value"]
    assert (noted.count, noted.example.value, noted.first_ms, noted.last_ms) == (8, "2", 1_000_000, 1_000_005)
    assert seen.lately(seen.samples, now.ms + ingest_memory.LATELY_MS) == {}
    memory.turned_away("o", "p", "code", "w" * 1_000)
    assert len(seen.requests["code"].words) == 300
