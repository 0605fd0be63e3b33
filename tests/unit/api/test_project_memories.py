"""What replicas remember of projects' series: bounded in all, and nobody pays for another's flood."""

from __future__ import annotations

import random
import tracemalloc

from api.lookup.project_memories import IDLE_S, DecoderMemories, ProjectMemories
from api.protocols import otlp_protobuf, remote_write2
from api.protocols.memory import Memory
from api.protocols.snappy import inflate
from tests.support.open_protocols import otlp_request
from tests.support.remote_write import Sent, body2


class Now:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def new_series(first: int, n: int) -> bytes:
    body = body2(*(Sent(labels={"__name__": "m", "id": str(first + k)}, value=1.0) for k in range(n)))
    return inflate(body, 1 << 24)


def test_a_flood_of_series_pushes_out_its_own() -> None:
    """Of one project, then of many of one organisation: what another one's series are known by stays."""
    memories = DecoderMemories(Now(), bytes_max=2_000_000)

    def receive(org: str, project: str, body: bytes) -> Memory:
        memory = memories.lend(org, project)
        remote_write2.decode(body, memory)
        memories.weigh(org, project, memory)
        return memory

    mine = new_series(0, 100)
    quiet = receive("quiet", "q", mine)
    known, weight = len(quiet.strings().series), quiet.weight
    assert known == 100
    for n in range(30):
        receive("flood", f"p{n % 9}", new_series(1_000 * n, 400))
        assert memories.of.weight <= 2_000_000
    assert memories.of.cut > 0
    assert receive("quiet", "q", mine) is quiet
    assert (len(quiet.strings().series), quiet.weight) == (known, weight)


def test_who_holds_most_goes_first_and_idle_ones_before() -> None:
    now = Now()
    memories: ProjectMemories[str] = ProjectMemories(100, now)
    memories.put("a", "idle", "", 5)
    now.s = IDLE_S + 1
    for org, project, weight in (("a", "a1", 30), ("a", "a2", 20), ("b", "b1", 45)):
        memories.put(org, project, project, weight)
    assert (len(memories), memories.weight) == (4, 100)
    memories.put("c", "c1", "c1", 5)
    assert (memories.get("idle"), memories.cut) == (None, 0)
    memories.put("c", "c1", "c1", 6)
    assert (memories.get("a1"), memories.get("b1"), memories.cut) == (None, "b1", 1)
    memories.put("b", "c1", "moved", 40)
    assert (memories.get("b1"), memories.get("c1"), memories.get("a2")) == (None, "moved", "a2")
    assert (memories.weight, memories.cut) == (60, 2)
    memories.put("d", "vast", "vast", 101)
    assert (memories.get("vast"), memories.weight) == (None, 60)


def test_of_equals_the_one_used_longest_ago_goes() -> None:
    memories: ProjectMemories[str] = ProjectMemories(4, Now())
    for org, project in (("a", "a1"), ("b", "b1"), ("c", "c1"), ("d", "d1")):
        memories.put(org, project, project, 1)
    assert memories.get("a1") == "a1"
    memories.put("e", "e1", "e1", 1)
    assert (memories.get("b1"), memories.get("a1")) == (None, "a1")
    memories.put("e", "e2", "e2", 1)
    assert [memories.get(name) for name in ("a1", "c1", "d1", "e1", "e2")] == ["a1", "c1", "d1", None, "e2"]


def test_a_memory_knows_what_it_weighs() -> None:
    """Within a half of what is measured, for series of both kinds of protocols, and also once generations have gone."""
    for decode, bodies in (
        (remote_write2.decode, [new_series(1_000 * n, 1_000) for n in range(6)]),
        (
            otlp_protobuf.decode,
            [otlp_request(random.Random(n), 8).SerializeToString() for n in range(6)],
        ),
    ):
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            memory = Memory(2_000)
            for body in bodies:
                decode(body, memory)
            size = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert 0.5 * size < memory.weight < 2 * size, (decode, size, memory.weight)
