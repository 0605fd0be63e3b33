"""SQLite files that several processes share: made with mode 600, in WAL mode."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

BUSY_TIMEOUT_S = 5.0
_TRIES = 50


def synchronous(synced: bool) -> str:
    """SQLite's word: FULL syncs the write-ahead log at each commit, NORMAL before it is reset only (pragma docs)."""
    return "FULL" if synced else "NORMAL"


def make_file(path: Path) -> None:
    """Makes the file (and its folder) ready to be opened by anyone; harmless when it is there already. What it makes is
    there after a loss of power, too."""
    if not path.parent.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        sync_folder(path.parent.parent)
    made = not path.exists()
    # SQLite gives its side files the mode of the main one.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if made:
        sync_folder(path.parent)
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        _use_wal(connection)
    finally:
        connection.close()


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
