"""Several processes on one SQLite file: none that writes without a pause keeps the others away."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from breaker_actors.errors import Unavailable
from breaker_actors.sql import turnstile
from breaker_actors.sql.database import Database
from breaker_actors.sql.sqlite import BUSY_TIMEOUT_S, make_file

HELD_S = 0.01


def database(tmp_path: Path) -> Database:
    """One as each process has it: with connections of its own."""
    path = tmp_path / "shared.sqlite"
    make_file(path)
    found = Database(f"sqlite:///{path}")
    found.open()
    return found


async def test_who_waits_is_not_passed_again_and_again(tmp_path: Path) -> None:
    """Beside somebody who writes without a pause each write waits for a few of his, not for all that he has."""
    greedy, modest = database(tmp_path), database(tmp_path)
    written = 0
    enough = threading.Event()

    def long(_: object) -> None:
        nonlocal written
        time.sleep(HELD_S)
        written += 1

    async def again_and_again() -> None:
        while not enough.is_set():
            await asyncio.gather(*(greedy.write(long) for _ in range(100)))

    passed: list[int] = []
    writing = asyncio.create_task(again_and_again())
    for _ in range(5):
        while written < 3 + sum(passed):
            await asyncio.sleep(HELD_S)
        begun = written
        await modest.write(lambda c: c.execute(text("CREATE TABLE IF NOT EXISTS x (y)")))
        passed.append(written - begun)
    enough.set()
    await writing
    await asyncio.gather(greedy.close(), modest.close())
    assert sorted(passed)[2] <= 3, passed
    assert max(passed) <= 10, passed


async def test_who_waits_in_vain_stands_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes in time; the turnstile is free, and the connection as patient as before."""
    monkeypatch.setattr(turnstile, "BUSY_TIMEOUT_S", 0.05)
    one, other = database(tmp_path), database(tmp_path)
    goes_on, holds = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        holds.set()
        goes_on.wait(30)

    holding = asyncio.create_task(one.write(hold))
    await asyncio.to_thread(holds.wait)
    for _ in range(2):
        with pytest.raises(Unavailable, match="database is locked"):
            await other.write(lambda c: c.execute(text("CREATE TABLE x (y)")))
    goes_on.set()
    await holding
    await other.write(lambda c: c.execute(text("CREATE TABLE x (y)")))
    await asyncio.gather(one.close(), other.close())


def test_a_connection_waits_for_readers_locks_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnstile, "BUSY_TIMEOUT_S", 0.25)
    make_file(tmp_path / "file")
    connection = sqlite3.connect(tmp_path / "file", timeout=BUSY_TIMEOUT_S, isolation_level=None)
    turnstile.begin_write(connection, tmp_path)
    assert connection.in_transaction
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (250,)
    connection.close()


async def test_a_file_system_without_such_locks_has_no_turnstile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(turnstile.fcntl, "flock", refuse)
    one = database(tmp_path)
    await one.write(lambda c: c.execute(text("CREATE TABLE x (y)")))
    await one.close()
