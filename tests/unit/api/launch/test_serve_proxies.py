"""A proxy that does not start at once is Serve's to start again; what will not get better is told at once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from api.launch.serve_proxies import REASON_MAX, controller_runs, reason, start_proxies

CRASHED = "HAProxy crashed during startup: exit code -9"
TAKEN = "HAProxy crashed: cannot bind socket (Address already in use) for [127.0.0.1:7405]"


class OfAnotherProcess(RuntimeError):
    """As Ray raises what an actor raised: a traceback, and the cause beside it."""

    def __init__(self, said: str) -> None:
        super().__init__(f"\x1b[36mray::HAProxyManager.ready()\x1b[39m (pid=7)\n  File 'haproxy.py'\nError: {said}")
        self.cause = RuntimeError(said)


def start(monkeypatch: pytest.MonkeyPatch, error: Exception | None, controller: bool) -> list[str]:
    """What is warned of."""

    def started(**options: Any) -> None:
        assert options == {"http_options": 1}
        if error is not None:
            raise error

    def found(name: str, namespace: str) -> None:
        if not controller:
            raise ValueError(name, namespace)

    warned: list[str] = []
    with warnings.catch_warnings(action="ignore"):
        monkeypatch.setattr("ray.serve.start", started)
    monkeypatch.setattr("ray.get_actor", found)
    start_proxies(warned.append, http_options=1)
    return warned


def test_one_that_starts_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(monkeypatch, None, controller=True) == []


def test_one_that_ended_is_left_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = start(monkeypatch, OfAnotherProcess(CRASHED), controller=True)
    assert warned == [f"a proxy of Ray Serve did not start at once, and is started again: {CRASHED}"]
    assert controller_runs()


@pytest.mark.parametrize(("said", "controller"), [(CRASHED, False), (TAKEN, True)])
def test_nobody_starts_it_again(said: str, controller: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OfAnotherProcess):
        start(monkeypatch, OfAnotherProcess(said), controller)


def test_a_reason_is_one_short_line() -> None:
    assert reason(Exception(" a\n\n  b\n")) == "a b"
    assert reason(TimeoutError()) == "TimeoutError"
    assert reason(OfAnotherProcess("a\nb")) == "a b"
    assert len(reason(Exception("because " * 1_000))) == REASON_MAX
