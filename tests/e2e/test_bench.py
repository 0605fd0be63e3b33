"""The benches of a running service in their smoke sizes: the outcome is checked, not the figures."""

from __future__ import annotations

import pytest

from tests.bench import soak
from tests.bench.service import measure
from tests.support.live import LiveService

pytestmark = pytest.mark.e2e


def test_the_service_bench_makes_breakers_that_work(live: LiveService) -> None:
    figures = measure(live, 12)
    assert figures["breakers"] == 12
    assert figures["actors"] >= 1


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
