"""Names that nobody knows, without asking a name server: one that is out of reach would keep a test waiting."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from breaker_actors.notify.egress import guarded_backend


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on the system's resolver knows no name under .invalid; those it was asked for."""
    real, asked = socket.getaddrinfo, list[str]()

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if not str(host).endswith(".invalid"):
            return real(host, *args, **more)
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


@pytest.fixture
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are refused after a moment, not after a second: for tests of what is refused, not of when."""
    monkeypatch.setattr(guarded_backend, "REFUSAL_S", 0.01)
