"""The app of one replica over a fake gateway and a real store with two organisations."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api.app import create_app
from breaker_actors.settings import Settings
from breaker_actors.stores.secrets import SecretBox
from breaker_actors.stores.sql import SqlStore, upgrade
from tests.support.fake_gateway import FakeClock, FakeGateway
from tests.support.web_world import TIMING, World


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of the newest schema to copy: making one costs more than most tests."""
    path = tmp_path_factory.mktemp("template") / "store.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
async def world(tmp_path: Path, settings: Settings, empty_store: Path) -> AsyncIterator[World]:
    clock = FakeClock()
    shutil.copy(empty_store, tmp_path / "store.sqlite")
    store = SqlStore(f"sqlite:///{tmp_path / 'store.sqlite'}", SecretBox(b"k" * 32))
    await store.open()
    org, foreign = await store.create_org("ours", 1), await store.create_org("theirs", 1)
    workspace = await store.create_workspace(org, "w", "w", 1)
    abroad = await store.create_workspace(foreign, "w", "w", 1)
    project = await store.create_project(org, workspace.id, "shop", 1)
    other = await store.create_project(foreign, abroad.id, "shop", 1)
    gateway = FakeGateway(store)
    app = create_app(gateway, settings, clock, TIMING, owns_gateway=False)
    made = World(app, gateway, store, clock, settings, project, other, workspace.id)
    for kind in ("user", "admin"):
        made.keys[kind] = (await store.create_key(org, kind, kind, 1))[1]  # type: ignore[arg-type]
    made.keys["project"] = (await store.create_key(org, "project", "p", 1, project.id))[1]
    made.keys["stranger"] = (await store.create_key(foreign, "user", "s", 1))[1]
    async with app.test_app():
        yield made
    await store.close()
