"""Backends of the contract tests. A new backend is one more entry in `BACKENDS`; the tests stay as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from breaker_actors.store.quotas import Shares
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.wal.base import SampleLog
from tests.contract.backends import STORE, Backend
from tests.contract.store_world import World
from tests.support.fresh import migrated

BACKENDS = ["sqlite", "postgresql"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """With the current schema."""
    if request.param == "postgresql":
        return Backend(tmp_path, request.getfixturevalue("postgres_url"))
    migrated(tmp_path / STORE)
    return Backend(tmp_path)


@pytest.fixture
async def make_store(backend: Backend) -> AsyncIterator[Callable[[], Awaitable[SqlStore]]]:
    """Opens any number of stores on one database."""
    stores: list[SqlStore] = []

    async def make() -> SqlStore:
        store = backend.store()
        stores.append(store)
        await store.open()
        return store

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def store(make_store: Callable[[], Awaitable[SqlStore]]) -> SqlStore:
    return await make_store()


@pytest.fixture
async def small(backend: Backend) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Makes a project on a store with small bounds."""
    stores: list[SqlStore] = []

    async def make(**bounds: int) -> World:
        stores.append(SqlStore(backend.url, SecretBox(b"k" * 32), shares=Shares(**bounds)))
        await stores[-1].open()
        return await World.make(stores[-1])

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def make_log(backend: Backend) -> AsyncIterator[Callable[[], SampleLog]]:
    """Opens any number of logs on one place."""
    logs: list[SampleLog] = []

    def make() -> SampleLog:
        log = backend.log()
        logs.append(log)
        return log

    yield make
    for log in logs:
        await log.close()


@pytest.fixture
def log(make_log: Callable[[], SampleLog]) -> SampleLog:
    return make_log()


@pytest.fixture
async def world(store: SqlStore) -> World:
    """A project to work in, with an opened Directory and Journal."""
    return await World.make(store)
