"""What each actor's process is set to before its part begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from breaker_actors.clock import SWITCH_S
from breaker_actors.ray_runtime import actors
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters


@pytest.fixture(autouse=True)
def _interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


async def test_an_actors_loop_does_not_wait_for_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Python's 5 ms it would after each system call, while a thread of the store or the log computes."""
    monkeypatch.setattr(actors.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node"))
    monkeypatch.setattr(actors.metrics, "start", lambda _meters, _settings: None)
    monkeypatch.setattr(actors.logs, "configure", lambda _name, **_options: None)
    monkeypatch.setattr(actors, "_own_address", lambda: "192.0.2.1")
    monkeypatch.setattr(actors, "may_carry", lambda _address, **_options: False)
    actor = actors._Wrapped()
    actor._part = SimpleNamespace(meters=Meters("breaker", "breaker-0"))
    await actor._open(Settings())
    assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
