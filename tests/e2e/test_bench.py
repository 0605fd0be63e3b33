"""The benches of a running service in their smoke sizes: the outcome is checked, not the figures."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench import (
    decoding,
    density,
    fairness,
    ingest,
    journal,
    overload,
    override,
    peers,
    push,
    recovery,
    soak,
    start,
    storm,
    streams,
)
from tests.bench.service import measure
from tests.support.live import LiveService
from tests.support.usage import TICKS, Used, cpu_s

pytestmark = pytest.mark.e2e


def test_the_service_bench_makes_breakers_that_work(live: LiveService) -> None:
    figures = measure(live, 12)
    assert figures["breakers"] == 12
    assert figures["actors"] >= 1


@pytest.mark.alone
async def test_the_soak_bench_sees_everything_there_is(live: LiveService) -> None:
    """Its load is taken, its clients are told, and every kind of process is in its table."""
    looks = await soak.measure(live, soak.SMOKE_S, soak.SMOKE_EVERY_S)
    first, last = looks[0], looks[-1]
    assert last["samples"] > first["samples"] > 0
    assert last["reads"] > first["reads"] > 0
    assert all(received >= soak.BREAKERS for received in last["messages"])
    assert last["events"] > first["events"]
    assert {"RouterActor", "BreakerActor", "raylet", "haproxy"} <= {name.split()[0] for name in last["memory_kb"]}
    told = soak.table(looks)
    assert all(name in told for name in last["memory_kb"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench",
    [
        ingest,
        push,
        override,
        density,
        recovery,
        streams,
        fairness,
        decoding,
        start,
        storm,
        overload,
        peers,
        journal,
    ],
)
def test_a_bench_with_a_service_of_its_own(bench: ModuleType, tmp_path: Path) -> None:
    """Each checks what came of its load before it shows a figure."""
    bench.main(["--smoke", "--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_text())
    figures.pop("idle_beyond_bare_cores", None)  # a difference of two, each measured for a moment
    assert all(value >= 0 for value in figures.values())


def test_cpu_of_processes_that_come_and_go() -> None:
    """One that has ended takes nothing back, a new one counts whole, also under an id that was another's."""
    before = {(1, 10): Used("Ray", 500), (2, 20): Used("Ray", 100)}
    after = {(2, 20): Used("RouterActors", 150), (3, 30): Used("Ray", 25), (1, 40): Used("Ray", 5)}
    assert cpu_s(before, after) == {"RouterActors": 50 / TICKS, "Ray": 30 / TICKS}
