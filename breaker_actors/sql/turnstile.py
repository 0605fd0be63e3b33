"""Who writes next to a SQLite file that several processes share.

SQLite gives its lock to whoever asks first after it was given back, and those who wait sleep up to 0.1 s between two
looks: a process that writes without a pause keeps all others away for as long as it goes on. Here whoever has passed
the turnstile is the only one who asks, and who has written has to pass it anew.

The turnstile is a lock of the file's folder (flock), which ends with the process that holds it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from pathlib import Path

from breaker_actors.sql.sqlite import BUSY_TIMEOUT_S

LOOK_S = 0.001
"""Between two looks, of those who wait at the turnstile, and of the one behind it."""


def begin_write(connection: sqlite3.Connection, folder: Path) -> None:
    """Begins a transaction that holds the file's write lock. Raises sqlite3.OperationalError ("database is locked")
    after BUSY_TIMEOUT_S."""
    until = time.perf_counter() + BUSY_TIMEOUT_S
    turnstile = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while not _passes(turnstile) and time.perf_counter() < until:
            time.sleep(LOOK_S)
        _begin(connection, until)
    finally:
        os.close(turnstile)


def _passes(turnstile: int) -> bool:
    try:
        fcntl.flock(turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks has no turnstile
        return True
    return True


def _begin(connection: sqlite3.Connection, until: float) -> None:
    connection.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.perf_counter() >= until:
                    raise
                time.sleep(LOOK_S)
    finally:
        connection.execute(f"PRAGMA busy_timeout={round(BUSY_TIMEOUT_S * 1000)}")
