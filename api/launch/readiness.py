"""Waiting for a service that was just started to answer."""

from __future__ import annotations

import os
import ssl
import threading

import httpx

from api.launch.listening import check_listener
from api.launch.ray_environment import NotStarted
from breaker_actors.clock import Clock
from breaker_actors.errors import Unavailable


def wait_ready(
    base_url: str, token: str | None, clock: Clock, within_s: float, verify: ssl.SSLContext | bool = True
) -> None:
    """Returns when the service is ready to take samples; `token` is what its health endpoints ask for, `verify` how
    its certificate is checked. Raises Invalid when another user's program listens in its place on this machine: it gets
    no token."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    deadline = clock.monotonic() + within_s
    last = "no answer"
    # No proxy of the environment: these are machines of ours.
    with httpx.Client(base_url=base_url, headers=headers, timeout=2.0, trust_env=False, verify=verify) as client:
        while clock.monotonic() < deadline:
            try:
                if token:
                    check_listener(base_url, {os.geteuid()})
                answer = client.get("/api/readyz")
                if answer.status_code == 200:
                    return
                last = f"{answer.status_code} {answer.text[:200]}"
            except (httpx.HTTPError, Unavailable) as error:
                last = str(error)
            threading.Event().wait(0.05)
    raise NotStarted(f"{base_url} is not ready within {within_s:.0f} s: {last}")
