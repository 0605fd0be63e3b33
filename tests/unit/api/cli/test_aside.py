"""`breakers aside`: what could not be read is listed, escaped, and dropped, whether or not the service runs."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli.main import app
from breaker_actors.messages import PAYLOAD_MAX
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.operational import set_aside as rows
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.telemetry.set_aside import WAITING_MAX, Asides

HOSTILE = "\x1b]0;owned\x07\nrow\tforged\u202e"


def breakers(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--no-headers", *arguments, "--data-dir", str(folder)])


def fill(folder: Path, *things: str) -> None:
    async def work() -> None:
        store = make_store(Settings(data_dir=folder))
        await store.open()
        for thing in things:
            store.asides.note("log", thing, ValueError(HOSTILE), b"\x00\xff" * PAYLOAD_MAX, 7, "p")
        await store.ping()
        await store.close()

    asyncio.run(work())


def test_what_was_set_aside_is_listed_and_dropped(tmp_path: Path) -> None:
    fill(tmp_path, "router-a", HOSTILE)
    listed = breakers(tmp_path, "aside", "list")
    assert listed.exit_code == 0, listed.output
    lines = listed.stdout.splitlines()
    assert len(lines) == 2, "a line end in a name makes no row"
    assert all(line.isprintable() for line in (text.replace("\t", " ") for text in lines))
    assert [line.split("\t")[0] for line in lines] == ["2", "1"]
    assert lines[1].split("\t")[3:8] == ["log", "router-a", "7", "p", str(2 * PAYLOAD_MAX)]
    found = json.loads(breakers(tmp_path, "aside", "list", "--json", "--limit", "1").stdout)
    assert [row["thing"] for row in found["set_aside"]] == [HOSTILE]
    assert base64.b64decode(found["set_aside"][0]["payload_base64"]) == (b"\x00\xff" * PAYLOAD_MAX)[:PAYLOAD_MAX]
    assert breakers(tmp_path, "aside", "drop").exit_code == 2
    assert breakers(tmp_path, "aside", "drop", "1", "--all").exit_code == 2
    assert breakers(tmp_path, "aside", "drop", "1").stdout == "dropped 1\n"
    assert breakers(tmp_path, "aside", "drop", "--all").stdout == "dropped 1\n"
    assert breakers(tmp_path, "aside", "list").stdout == ""


def test_the_same_thing_met_again_is_one_row(tmp_path: Path) -> None:
    fill(tmp_path, "router-a", "router-a")
    fill(tmp_path, "router-a")
    (row,) = json.loads(breakers(tmp_path, "aside", "list", "--json").stdout)["set_aside"]
    assert row["times"] == 2, "once by each process"


def test_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS_MAX", 2)
    fill(tmp_path, "a", "b", "c", "d")
    listed = breakers(tmp_path, "aside", "list")
    assert len(listed.stdout.splitlines()) == 2
    assert "2 more found no room" in listed.stderr


def test_what_waits_is_bounded() -> None:
    """The oldest go, counted; what is known is not noted twice."""
    asides = Asides()
    for n in range(WAITING_MAX + 5):
        assert asides.attempt(lambda: int("x"), "log", "r", b"", n) is None
    asides.note("log", "r", ValueError("again"), b"", WAITING_MAX)
    assert (asides.waiting, asides.untold, asides.counts["log"]) == (WAITING_MAX, 5, WAITING_MAX + 5)
    entries = asides.drain()
    assert [entries[0].place, entries[-1].place, asides.waiting] == [5, WAITING_MAX + 4, 0]
    asides.put_back(entries)
    assert asides.waiting == WAITING_MAX


async def test_what_can_not_be_told_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from breaker_actors.errors import Unavailable
    from breaker_actors.store import sql_store as sql

    monkeypatch.setattr(sql, "TELL_AGAIN_S", 0.0)
    store = make_store(Settings(data_dir=tmp_path))
    await store.open()
    real, failures = SqlStore.set_aside, []

    async def failing(self: SqlStore, entries: object) -> None:
        failures.append(entries)
        raise Unavailable("away")

    monkeypatch.setattr(SqlStore, "set_aside", failing)
    store.asides.note("state", "b", ValueError("no"))
    await store.ping()
    await asyncio.gather(*(task for task in (store._telling,) if task))
    assert len(failures) == 1
    monkeypatch.setattr(SqlStore, "set_aside", real)
    await store.ping()
    await asyncio.gather(*(task for task in (store._telling,) if task))
    assert await store.count_aside() == (1, 0)
    await store.close()
