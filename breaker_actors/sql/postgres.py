"""PostgreSQL as this program uses it: which URLs are one, connections that wait for nothing for ever, error texts."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import errors
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict

from breaker_actors.errors import Invalid

SCHEMES = ("postgresql://", "postgres://", "postgresql+psycopg://")
ANSWER_S = 12.0
"""How long one answer of the server is waited for. Its own limits come first; this one is for a server that hangs."""

# What the server itself watches. A process that stopped inside a transaction must let go of its locks before those who
# wait for them give up; a connection that nobody uses does not stay for ever.
_SERVER_MS = {
    "statement_timeout": 10_000,
    "lock_timeout": 8_000,
    "idle_in_transaction_session_timeout": 5_000,
    "idle_session_timeout": 300_000,
}
TRANSACTION_MS, KNOWS_TRANSACTIONS = 30_000, 170_000
"""How long a whole transaction may take where the server can watch that (`server_version`). The longest has a second
of work, after 8 s of waiting for its turn at most."""
_BOUND = (
    f"SELECT set_config(name, '{TRANSACTION_MS}', false) FROM pg_settings"  # nosec B608 # constants
    " WHERE name = 'transaction_timeout' AND source = 'default'"
)
_CONNECTION: dict[str, Any] = {
    "application_name": "breakers",
    "connect_timeout": 3,
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "client_encoding": "UTF8",
}


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come within `answer_s` (None: it is waited for)."""

    answer_s: float | None = ANSWER_S

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except errors._WaitTimeout:  # psycopg has no public name for it
            self.close()
            raise psycopg.OperationalError(f"no answer within {self.answer_s} s") from None


def is_postgres(url: str) -> bool:
    return url.startswith(SCHEMES)


def parameters(url: str, patient: bool = False) -> dict[str, Any]:
    """What libpq needs to connect; the URL's own words win. `patient`: without limits on statements and locks. Raises
    Invalid, and repeats nothing of the URL: a password may be anywhere in one that is wrong."""
    if not is_postgres(url):
        raise Invalid(f"BREAKERS_DATABASE_URL has to begin with {SCHEMES[0]}; unset, SQLite is used")
    try:
        given = {name: str(value) for name, value in conninfo_to_dict(SCHEMES[0] + url.partition("://")[2]).items()}
    except psycopg.Error:
        given = {"port": "?"}
    # An @ or / of a password that was not percent-encoded ends up in these, and from there in errors.
    ports = given.get("port", "5432").split(",")
    if "@" in given.get("host", "") + given.get("dbname", "") or not all(map(str.isdigit, ports)):
        raise Invalid(
            "BREAKERS_DATABASE_URL is not like postgresql://user:password@host:port/name; "
            "special characters in it have to be percent-encoded"
        )
    limits = {name: 0 if patient else ms for name, ms in _SERVER_MS.items()}
    options = [f"-c {name}={ms}" for name, ms in limits.items()]
    return {**_CONNECTION, **given, "options": " ".join([*options, given.get("options", "")]).strip()}


def connect(wanted: Mapping[str, Any], autocommit: bool = False, patient: bool = False) -> BoundedConnection:
    """Connects within `connect_timeout` or raises psycopg.Error. A limit of whole transactions that the URL, the role
    or the server sets stays; with `patient` there is none of ours."""
    connection = BoundedConnection.connect(**wanted, autocommit=True)
    try:
        if patient:
            connection.answer_s = None
        elif connection.info.server_version >= KNOWS_TRANSACTIONS:
            connection.execute(_BOUND)
        connection.autocommit = autocommit
    except BaseException:
        connection.close()
        raise
    return connection


def is_quiet(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection that is not in use may be used: what a server says unasked is that it is going away. Costs
    no round trip."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def error_text(error: psycopg.Error) -> str:
    """The driver's own short text, never the statement, its parameters or details of rows."""
    return error.diag.message_primary or (str(error).splitlines() or [type(error).__name__])[0]
