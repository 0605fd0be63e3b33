"""The project that a screen is about, and those that its reader may choose from."""

from __future__ import annotations

from typing import Any

from quart import g

from api.auth import RIGHTS
from api.console.asking import ask
from api.console.looks import is_part
from api.context.current import acting_key, authorized_project
from api.context.replica import replica
from breaker_actors.errors import NotFound
from breaker_actors.store.rows import ProjectRow


async def open_project(project_id: str) -> ProjectRow:
    """The project of a screen's path, where its reader may see states; NotFound otherwise. Templates know it and
    whether its reader may change things."""
    project = await authorized_project(project_id, "read_runtime")
    if not is_part():
        g.projects = await projects_of()
    return project


async def managed_project(project_id: str) -> ProjectRow:
    """The same of a screen that is for who may change things; Forbidden for others."""
    await open_project(project_id)
    return await authorized_project(project_id, "manage")


def may_act() -> bool:
    """Whether whoever is signed in may change things, or only look at states."""
    key = acting_key()
    return key is not None and "manage" in RIGHTS[key.kind]


async def projects_of() -> list[dict[str, Any]]:
    """All projects within the reader's reach, each with `project_id` and `name`."""
    key = acting_key()
    assert key is not None, "the guard lets nobody else in"
    if key.project_id is None:
        found: list[dict[str, Any]] = (await ask("GET", "/projects")).body["projects"]
        return found
    project = await replica().caches.project(key.project_id)
    if project is None:
        raise NotFound("There is no such project.")
    return [{"project_id": project.id, "name": project.shown_name()}]
