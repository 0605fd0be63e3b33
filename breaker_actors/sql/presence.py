"""Signs of life of the services on one PostgreSQL database, and who else is alive there.

Each service keeps one session that does nothing but say so, under a name that tells host, process and service. What
counts is that it goes on: `others` looks for as long as a few of its beats take. A session of a process that ended is
closed by its system; of a machine that is gone the server closes it after GONE_MS, and until then it does not beat.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import psycopg

from breaker_actors.sql import postgres

BEAT_S, LOOK_EACH_S = 2.0, 0.5
LOOK_S = 3 * BEAT_S
GONE_MS = 15_000
SERVICE = "BRK_SERVICE"
"""The environment variable that tells the processes below `serve` the token of their service."""
NAME = "breakers service"
NAME_MAX = 63
"""Bytes of an application_name."""
TABLE = "journals"
"""A table that every service writes."""
LOOK = (
    "SELECT pid, application_name, usename::text, client_addr::text,"  # nosec B608 # constants
    " (extract(epoch FROM backend_start) * 1000)::bigint, state_change::text"
    " FROM pg_stat_activity WHERE datname = current_database()"
    f" AND starts_with(application_name, '{NAME} ') AND (usename = current_user"
    " OR pg_has_role(usesysid, (SELECT nspowner FROM pg_namespace WHERE nspname = current_schema()), 'MEMBER')"
    f" OR has_table_privilege(usesysid, to_regclass('{TABLE}'), 'UPDATE')) ORDER BY backend_start"
)
"""Of roles that may do what a service does: our own, members of the one that owns the schema, and those that may write
its tables. Anybody else who may connect can call a session so."""


class Alive(NamedTuple):
    """A service that has a session, as `role`. `since_ms`, `address` and `beat` None: of another role, whose sessions
    are not shown to ours."""

    session: int
    token: str
    pid: str
    host: str
    role: str
    address: str | None
    since_ms: int | None
    beat: str | None


def token_of(service: str) -> str:
    """A short word for a service: of the same text the same."""
    return hashlib.sha256(service.encode()).hexdigest()[:8]


def host_name() -> str:
    """This machine, as others read it in a session's name."""
    return "".join(char if char.isascii() and char.isprintable() and char != " " else "?" for char in _host()) or "?"


def _host() -> str:
    return socket.gethostname()


class Presence:
    """Keeps the session of this service, from a thread of its own until the process ends; it comes back by itself."""

    def __init__(self, url: str, token: str, beat_s: float = BEAT_S) -> None:
        name = f"{NAME} {token} {os.getpid()} {host_name()}"[:NAME_MAX]
        self._wanted = postgres.parameters(url) | {"application_name": name}
        self._wanted["options"] += f" -c idle_session_timeout={GONE_MS}"
        self._beat_s = beat_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(postgres.ANSWER_S)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with postgres.connect(self._wanted, autocommit=True) as session:
                    while not self._over.wait(self._beat_s):
                        session.execute("SELECT 1")
            except psycopg.Error:
                self._over.wait(self._beat_s)


def look(url: str) -> list[Alive]:
    """All services that have a session now, the one that came first first. Raises psycopg.Error."""
    with postgres.connect(postgres.parameters(url), autocommit=True) as connection:
        return sessions(connection.execute(LOOK).fetchall())


def sessions(rows: Iterable[Sequence[Any]]) -> list[Alive]:
    """What the rows of LOOK say."""
    found = []
    for session, name, role, address, since_ms, beat in rows:
        token, pid, host = [*name.removeprefix(f"{NAME} ").split(" ", 2), "?", "?"][:3]
        found.append(Alive(session, token, pid, host, role, address, since_ms, beat))
    return found


def others(url: str, mine: str, pause: Callable[[float], None], look_s: float = LOOK_S) -> list[Alive]:
    """Services of other tokens that show a sign of life within `look_s`; nothing is waited for where there is none.
    Raises psycopg.Error."""
    first = {one.session: one for one in look(url) if one.token != mine}
    now, waited = list(first.values()), 0.0
    while now and waited < look_s:
        pause(LOOK_EACH_S)
        waited += LOOK_EACH_S
        now = [one for one in look(url) if one.token != mine]
        if alive := [one for one in now if one.session not in first or one.beat != first[one.session].beat]:
            return alive
    return [one for one in now if one.beat is None]
