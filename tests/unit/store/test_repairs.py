"""The repairs of schema 0008: one row that nobody can read stops no upgrade, and slugs do not collide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from breaker_actors.core.log_entries import VIEW
from breaker_actors.store.migrations.versions import r0008_set_aside as r0008

TABLES = """
CREATE TABLE workspaces (id TEXT, org_id TEXT, slug TEXT);
CREATE TABLE changes (id INTEGER PRIMARY KEY, router_id TEXT, project_id TEXT, entries BLOB, links TEXT);
CREATE TABLE links (number INTEGER, router_id TEXT, breaker_id TEXT);
CREATE TABLE breakers (id TEXT, name TEXT, rule TEXT);
CREATE TABLE routers (number INTEGER, id TEXT, project_id TEXT, mode, enabled, metadata, version, deleted_ms)
"""


@pytest.fixture
def c() -> Iterator[sa.Connection]:
    with sa.create_engine("sqlite://").connect() as connection:
        for table in TABLES.split(";"):
            connection.execute(sa.text(table))
        yield connection


def put(c: sa.Connection, table: str, **values: Any) -> None:
    names = ", ".join(f":{name}" for name in values)
    c.execute(sa.text(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({names})"), values)


def test_a_slug_that_is_taken_gets_a_number(c: sa.Connection) -> None:
    for id_, org, slug in (("1", "o", "a"), ("2", "o", "a\n"), ("3", "o", "a\n\n"), ("4", "p", "a\n"), ("5", "p", "b")):
        put(c, "workspaces", id=id_, org_id=org, slug=slug)
    assert len(r0008._repair_slugs(c)) == 3
    found = c.execute(sa.text("SELECT slug FROM workspaces ORDER BY id")).scalars().all()
    assert found == ["a", "a-2", "a-3", "a", "b"]


@pytest.mark.parametrize(
    "bad",
    [
        {"mode": 5},
        {"mode": b"\xff"},
        {"metadata": "{"},
        {"metadata": None},
        {"metadata": "[" * 99_999},
        {"version": (1 << 63) - 1},
        {"version": "x"},
    ],
)
def test_a_router_that_nobody_can_read_stops_no_other(c: sa.Connection, bad: dict[str, Any]) -> None:
    fine = {"project_id": "p", "mode": "static\n", "enabled": 1, "metadata": "{}", "version": 1, "deleted_ms": None}
    put(c, "routers", number=1, id="bad", **fine | bad)
    put(c, "routers", number=2, id="good", **fine)
    told = r0008._repair_routers(c)
    assert told[0].startswith("nothing of router bad: it can't be read")
    assert told[1] == "router good: mode 'static\\n' is 'static' now"
    assert c.execute(sa.text("SELECT mode, version FROM routers WHERE id = 'good'")).one() == ("static", 2)
    assert c.execute(sa.text("SELECT router_id FROM changes")).scalars().all() == ["good"]


@pytest.mark.parametrize("mode", [5, b"x", ["static"], None])
def test_a_change_that_nobody_can_read_stops_no_other(c: sa.Connection, mode: object) -> None:
    for id_, found in ((1, mode), (2, "canary\n")):
        entries = msgspec.msgpack.encode([(VIEW, msgspec.msgpack.encode({"mode": found}))])
        put(c, "changes", id=id_, router_id="r", entries=entries)
    told = r0008._repair_changes(c)
    assert told[0].startswith("nothing of change 1: it can't be read")
    assert told[1].startswith("change 2 of router r")
