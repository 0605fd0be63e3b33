"""The database's door: driver errors, and callers that go away in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from breaker_actors.core.model import Rule
from breaker_actors.errors import Unavailable
from breaker_actors.stores.base import BreakerDraft
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore

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
