"""The app of one replica over a fake gateway and a real store with two organisations."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from breaker_actors.settings import Settings
from tests.support.estate import Estate, build, open_estate
from tests.support.web_world import World, open_world, store_at


async def populate(path: Path) -> dict[str, Any]:
    """A store with two organisations, ours and a stranger's; what a World has of it."""
    store = store_at(path)
    await store.open()
    org, foreign = await store.create_org("ours", 1), await store.create_org("theirs", 2)
    workspace = await store.create_workspace(org, "w", "w", 1)
    abroad = await store.create_workspace(foreign, "w", "w", 1)
    project = await store.create_project(org, workspace.id, "shop", 1)
    other = await store.create_project(foreign, abroad.id, "shop", 1)
    keys = {
        "user": (await store.create_key(org, "user", "u", 1))[1],
        "admin": (await store.create_key(org, "admin", "a", 1))[1],
        "project": (await store.create_key(org, "project", "p", 1, project.id))[1],
        "stranger": (await store.create_key(foreign, "user", "s", 1))[1],
    }
    await store.close()
    return {"project": project, "other": other, "workspace_id": workspace.id, "keys": keys}


@pytest.fixture(scope="session")
def populated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Made once and copied for each test: making it costs more than most tests."""
    path = tmp_path_factory.mktemp("populated") / "store.sqlite"
    with asyncio.Runner() as runner:
        return path, runner.run(populate(path))


@pytest.fixture(scope="session")
def defaults() -> Settings:
    """Read once: looking for each of sixty settings in the environment takes longer than most tests."""
    return Settings()


@pytest.fixture
def settings(tmp_path: Path, defaults: Settings) -> Settings:
    return defaults.model_copy(update={"data_dir": tmp_path})


@pytest.fixture
async def world(tmp_path: Path, settings: Settings, populated: tuple[Path, dict[str, Any]]) -> AsyncIterator[World]:
    template, content = populated
    shutil.copy(template, tmp_path / "store.sqlite")
    async with open_world(tmp_path / "store.sqlite", settings, content) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def estate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Estate]:
    """One for all tests of a module: each leaves it as it was."""
    folder = tmp_path_factory.mktemp("estate")
    content = await build(folder / "template.sqlite")
    async with open_estate(folder / "template.sqlite", folder, content) as found:
        yield found
