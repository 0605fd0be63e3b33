"""SQLite files that several processes share: made with mode 600, in WAL mode."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

BUSY_TIMEOUT_S = 5.0
_TRIES = 50
WAL_MAX = 64 << 20
"""Bytes of a write-ahead log beyond which it is emptied after a commit."""
EMPTY_WAIT_S, EMPTY_AGAIN_S = 0.5, 1.0
"""So long at most a log that is to be emptied waits for readers, and no write for longer; so long after it is tried
again, where they did not end."""


def synchronous(synced: bool) -> str:
    """SQLite's word: FULL syncs the write-ahead log at each commit, NORMAL before it is reset only (pragma docs)."""
    return "FULL" if synced else "NORMAL"


def make_file(path: Path) -> None:
    """Makes the file (and its folder) ready to be opened by anyone; harmless when it is there already. What it makes is
    there after a loss of power, too."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent.parent)
    # SQLite gives its side files the mode of the main one. One that is there is not opened: with any descriptor of a
    # file that a process closes it loses the locks of all its connections to it ("How To Corrupt An SQLite Database
    # File", section 2.2), and another process that closes its own then takes the write-ahead log away from them.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        sync_folder(path.parent)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        _use_wal(connection)
    finally:
        connection.close()


class LogKeeper:
    """Empties the write-ahead log of a SQLite file that has passed WAL_MAX. SQLite itself begins it anew at moments
    only when nobody reads, and writers who never pause leave none: then it grows without a bound."""

    def __init__(self, path: Path, most: int = WAL_MAX) -> None:
        self._log = path.with_name(f"{path.name}-wal")
        self._most = most
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        """Whether the log is too long, and was not tried to be emptied a moment ago. `now_s`: of any steady clock."""
        if now_s < self._next_s:
            return False
        try:
            return self._log.stat().st_size > self._most
        except OSError:
            return False

    def empty(self, connection: sqlite3.Connection, now_s: float) -> None:
        """Writes the log into the file and cuts it, on a connection without a transaction; waits for readers that began
        before, EMPTY_WAIT_S at most. Where they go on, or another does it, it is left for the next time."""
        self._next_s = now_s + EMPTY_AGAIN_S
        connection.execute(f"PRAGMA busy_timeout={round(EMPTY_WAIT_S * 1000)}")
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError:  # another one does it
            pass
        finally:
            connection.execute(f"PRAGMA busy_timeout={round(BUSY_TIMEOUT_S * 1000)}")


def sync_folder(path: Path) -> None:
    """What was made, renamed and removed in it so far survives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _use_wal(connection: sqlite3.Connection) -> None:
    """The mode is kept in the file. The switch does not wait for other openers as SQLite's other locks do, so of
    several processes that start together some see "locked" for a moment."""
    for attempt in range(_TRIES):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.02)
