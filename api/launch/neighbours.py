"""Whether another service works with the PostgreSQL database that one is to be started on. Two of them fence each other
for ever: nothing is lost, and little gets done.

A service is known by a token: that of `serve` by its machine and data directory, which one service has at a time, that
of a deployment by its Ray cluster. The Directory's process shows the sign of life (ray_runtime/presence.py).
"""

from __future__ import annotations

import time
from pathlib import Path

import psycopg

from breaker_actors.clock import rfc3339
from breaker_actors.errors import Invalid
from breaker_actors.persistence import place_of_store, store_url
from breaker_actors.settings import Settings
from breaker_actors.sql.presence import Alive, host_name, others, token_of


def token_of_data_dir(data_dir: Path) -> str:
    return token_of(f"{host_name()} {data_dir}")


def found(settings: Settings, mine: str) -> str | None:
    """A line that names who else is alive there; None: nobody, or the database does not answer, which the next step
    of a start says."""
    if settings.database_url is None:
        return None
    try:
        there = others(store_url(settings), mine, time.sleep)
    except psycopg.Error:
        return None
    if not there:
        return None
    named = ", and ".join(map(described, there[:2]))
    return f"another service works with {place_of_store(settings)}: {named}"


def refuse(settings: Settings, mine: str, take_over: bool) -> None:
    """Raises Invalid where another service is alive, unless it is to be taken over from."""
    if not take_over and (line := found(settings, mine)):
        raise Invalid(
            f"{line}; two on one database end each other's actors: stop that one first, or say --take-over and stop it"
            " then"
        )


def described(one: Alive) -> str:
    """Host, process, role and since when."""
    address = f" at {one.address}" if one.address else ""
    since = f", since {rfc3339(one.since_ms)}" if one.since_ms is not None else ""
    return f"pid {one.pid} on {one.host}{address}, as {one.role}{since}"
