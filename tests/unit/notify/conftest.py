"""Names that nobody knows, without asking a name server: one that is out of reach would keep a test waiting."""

from __future__ import annotations

import socket
from typing import Any

import pytest


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
