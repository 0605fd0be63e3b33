"""The database's door: driver errors, and callers that go away in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from breaker_actors.core.model import Rule
from breaker_actors.errors import Unavailable
from breaker_actors.sql.database import READER_THREADS
from breaker_actors.store import alerts
from breaker_actors.store.outbox import claims, standing
from breaker_actors.store.rows import BreakerDraft
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore

RULE = Rule(metric="latency", kind="avg", op="gt", threshold=500.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqlStore]:
    store = SqlStore(f"sqlite:///{tmp_path / 'store'}", SecretBox(bytes(32)))
    await store.open()
    yield store
    await store.close()


async def test_driver_errors_are_unavailable_and_tell_no_values(store: SqlStore, tmp_path: Path) -> None:
    """The text is SQLite's own: neither the statement nor what was to be written shows."""
    org_id = await store.create_org("acme", 1)
    connection = sqlite3.connect(tmp_path / "store")
    connection.execute("DROP TABLE api_keys")
    connection.close()
    with pytest.raises(Unavailable) as caught:
        await store.create_key(org_id, "user", "very private name", 1)
    assert str(caught.value) == "the database does not answer: no such table: api_keys"
    assert caught.value.__cause__ is None
    await store.ping()


async def test_a_full_disk_is_called_so(store: SqlStore) -> None:
    """In the message, which answers tell as well."""
    await store.create_org("acme", 1)
    await store._db.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count=1") and None)
    with pytest.raises(Unavailable) as caught:
        await store.create_org("x" * 1_000_000, 2)
    assert caught.value.message == "the database takes no writes, its disk is full"


async def test_look_ups_do_not_stand_behind_long_reads(store: SqlStore) -> None:
    """Every reader is busy, and more wait for one: keys and projects are found nevertheless."""
    org_id = await store.create_org("acme", 1)
    workspace = await store.create_workspace(org_id, "w", "w", 1)
    project = await store.create_project(org_id, workspace.id, None, 1)
    row, key = await store.create_key(org_id, "user", "u", 1)
    go_on = threading.Event()
    busy = [asyncio.create_task(store._db.read(lambda _: go_on.wait(30))) for _ in range(2 * READER_THREADS)]
    try:
        async with asyncio.timeout(10):
            assert await store.find_key(key) == row
            assert await store.get_project(project.id) == project
            assert await store.live_keys([row.id]) == {row.id}
            assert (await store.project_rules(project.id)).breakers == [], "its caller has a turn that others wait for"
    finally:
        go_on.set()
        await asyncio.gather(*busy)


async def plans(store: SqlStore, ask: Callable[[], Awaitable[Any]]) -> list[str]:
    """How SQLite looks for what is asked: of each query its steps."""
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "UPDATE")):
            seen.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await ask()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    found = []
    for statement, parameters in seen:
        explain = [f"EXPLAIN QUERY PLAN {statement}", parameters]
        steps = await store._db.read(lambda c, e=explain: c.exec_driver_sql(*e).all())  # type: ignore[misc]
        found.append(" ".join(step.detail for step in steps))
    return found


async def test_many_ids_are_looked_up_by_their_index(store: SqlStore) -> None:
    """Not by walking all of the project, which is what the planner takes for cheaper."""
    ids = [str(n) for n in range(400)]
    for asked in (store.router_modes, store.router_links, store.breaker_briefs):
        (words,) = await plans(store, partial(asked, "p", ids))  # type: ignore[arg-type]
        assert "(id=?)" in words, words
        assert "SCAN" not in words, words


async def test_where_an_outage_began_is_looked_up_by_its_index(store: SqlStore) -> None:
    """Not by walking back all events of a breaker that has not been well for days, at each alert."""
    values = {alerts._OUTAGE_STARTS: {"ids": ["a"]}, standing._BREAKERS: {"project": "p", "after": 0}}
    for query, given in values.items():
        (words,) = await plans(store, lambda q=query, v=given: store._db.read(lambda c: c.execute(q, v).all()))  # type: ignore[misc]
        assert "INDEX ix_events_outage (breaker_id=? AND project_id=?)" in words, words


async def test_what_an_alert_says_is_looked_up_by_its_index(store: SqlStore) -> None:
    """In RETURNING, too: else a lease reads what all alerts say for each of its rows, and whoever writes waits."""
    values = {"ids": [1, 2], "epoch": 1, "until": 2, "now": 1}
    (words,) = await plans(store, lambda: store._db.write(lambda c: c.execute(claims._CLAIM, values).all()))
    assert "SEARCH alert_payloads" in words, words
    assert "SCAN" not in words, words


async def test_a_cancelled_write_is_whole(store: SqlStore) -> None:
    """Wherever the caller leaves, a breaker is there with all that belongs to it, or not at all."""
    org_id = await store.create_org("acme", 1)
    workspace = await store.create_workspace(org_id, "w", "w", 1)
    project = await store.create_project(org_id, workspace.id, None, 1)
    for delay in range(40):
        task = asyncio.create_task(store.create_breaker(project.id, BreakerDraft(rule=RULE), delay))
        await asyncio.sleep(delay / 10_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await store.create_org("last", 1)  # after those that go on without their caller
    rows, _ = await store.list_breakers(project.id)
    routers = await store.list_routers(project.id)
    changes = await store.pending_changes(100)
    assert sorted(row.router_ids for row in rows) == sorted((router.id,) for router in routers)
    assert sorted(change.router_id for change in changes) == sorted(router.id for router in routers)
