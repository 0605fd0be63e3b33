"""Two organisations whose projects have one of everything each: what tests of access walk with every kind of key."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.context.replica import EXTENSION
from breaker_actors.core.rules import parse_rule
from breaker_actors.settings import Settings
from breaker_actors.store.mappings.model import MappingTo, SeriesMatcher
from breaker_actors.store.rows import (
    BreakerDraft,
    ChannelDraft,
    DeliveryQuery,
    MappingDraft,
    MuteDraft,
    ProjectRow,
)
from breaker_actors.store.sql_store import SqlStore
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World as StoreWorld
from tests.support.asgi import Headers, Reply, ask
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import RULE, World, open_world, store_at

Ids = dict[str, str]
PROJECTS = ("ours", "second", "theirs")
"""Two of one organisation, in workspaces of their own, and one of another."""
HEALTH_TOKEN = "probes-only"
METRICS_TOKEN = "metrics-token-of-16"
TABLES = """
SELECT tables.name, group_concat('"' || columns.name || '"')
FROM sqlite_master AS tables JOIN pragma_table_info(tables.name) AS columns
WHERE tables.type = 'table' AND columns.name != 'last_used_ms'
GROUP BY tables.name
"""
"""Each table with its columns. When a key was used is told of refused requests, too."""
MAPPING = MappingDraft(
    matchers=(SeriesMatcher(field="name", op="=", value="requests"),), to=MappingTo(router="label.router")
)


@dataclass
class Content:
    """What is in the template: fields of a World, and the ids of everything by project."""

    world: dict[str, Any]
    ids: dict[str, Ids]


class Estate:
    """A World with those projects. `restore` undoes whatever a request has done."""

    def __init__(self, world: World, template: Path, path: Path, ids: dict[str, Ids]) -> None:
        self.world = world
        self.ids = ids
        self._template, self._path = template, path

    async def ask(self, method: str, path: str, headers: Headers, body: Any = None) -> Reply:
        return await ask(self.world.app, method, path, headers, body)

    async def restore(self) -> None:
        with closing(sqlite3.connect(self._template)) as source, closing(sqlite3.connect(self._path)) as target:
            source.backup(target)
        self.world.app.extensions[EXTENSION].feed.caches.forget_all()

    async def snapshot(self) -> dict[str, list[Any]]:
        """What a refused request must not have changed: all rows of all tables, read beside the store."""
        with closing(sqlite3.connect(self._path)) as file:
            tables = file.execute(TABLES).fetchall()
            return {name: file.execute(f'SELECT {columns} FROM "{name}"').fetchall() for name, columns in tables}

    async def told(self) -> Any:
        """What the store says: the same for the same requests, whatever ids and sealed secrets it makes."""
        return [await _contents(self.world.store, ids) for ids in self.ids.values()]


async def _contents(store: SqlStore, ids: Ids) -> Any:
    project_id = ids["project_id"]
    project = await store.get_project(project_id)
    assert project is not None
    channels = await store.list_channels(project_id)
    return [
        project,
        await store.list_projects(project.org_id),
        await store.list_workspaces(project.org_id),
        await store.list_breakers(project_id),
        await store.list_routers(project_id),
        channels,
        [await store.deliveries(DeliveryQuery(project_id=project_id, channel_id=c.id)) for c in channels],
        [key.id for key in await store.list_keys(project.org_id)],
        await store.list_mutes(project_id),
        await store.list_mappings(project_id),
        await store.audit(project_id, 10),
    ]


@asynccontextmanager
async def open_estate(template: Path, folder: Path, content: Content) -> AsyncIterator[Estate]:
    path = folder / "estate.sqlite"
    shutil.copy(template, path)
    settings = Settings(
        data_dir=folder,
        health_token=HEALTH_TOKEN,
        metrics_token=METRICS_TOKEN,
        rate_requests_per_s=0,
        rate_events_per_s=0,
        rate_tests_per_minute=0,
        rate_unknown_per_s=0,
        rate_waste_bytes_per_s=0,
    )
    async with open_world(path, settings, content.world) as world:
        yield Estate(world, template, path, content.ids)


async def build(path: Path) -> Content:
    """A new store with all of it."""
    store = store_at(path)
    await store.open()
    org, foreign = await store.create_org("ours", 1), await store.create_org("theirs", 2)
    projects: dict[str, ProjectRow] = {}
    for name, owner in zip(PROJECTS, (org, org, foreign), strict=True):
        workspace = await store.create_workspace(owner, name, name, 1)
        projects[name] = await store.create_project(owner, workspace.id, name, 1)
    keys = {}
    for name, owner, kind, project_id in [
        ("user", org, "user", None),
        ("admin", org, "admin", None),
        ("project", org, "project", projects["ours"].id),
        ("second", org, "project", projects["second"].id),
        ("stranger", foreign, "user", None),
        ("foreign_admin", foreign, "admin", None),
        ("foreign_project", foreign, "project", projects["theirs"].id),
        ("revoked", org, "admin", None),
        ("reader", org, "reader", projects["ours"].id),
        ("second_reader", org, "reader", projects["second"].id),
        ("foreign_reader", foreign, "reader", projects["theirs"].id),
        ("ingest", org, "ingest", projects["ours"].id),
        ("second_ingest", org, "ingest", projects["second"].id),
        ("foreign_ingest", foreign, "ingest", projects["theirs"].id),
        ("revoked_ingest", org, "ingest", projects["ours"].id),
    ]:
        row, keys[name] = await store.create_key(owner, kind, name, 1, project_id)  # type: ignore[arg-type]
        if name.startswith("revoked"):
            await store.revoke_key(org, row.id, 2)
    ids = {name: await _things(store, project) for name, project in projects.items()}
    await store.close()
    ours = projects["ours"]
    world = {"project": ours, "other": projects["theirs"], "workspace_id": ours.workspace_id, "keys": keys}
    return Content(world, ids)


async def _things(store: SqlStore, project: ProjectRow) -> Ids:
    """One of everything in a project."""
    breaker, _ = await store.create_breaker(project.id, BreakerDraft(rule=parse_rule(RULE)), NOW_MS)
    channel = await store.create_channel(
        project.id, ChannelDraft(channel="webhook", config={"url": "https://hook.example/"}), NOW_MS
    )
    key, _ = await store.create_key(project.org_id, "project", "k", NOW_MS, project.id)
    draft = MuteDraft(starts_ms=2 * NOW_MS, ends_ms=2 * NOW_MS + 1, comment="later", all=True)
    mute = await store.create_mute(project.id, draft, NOW_MS)
    return {
        "project_id": project.id,
        "workspace_id": project.workspace_id,
        "breaker_id": breaker.id,
        "router_id": breaker.router_ids[0],
        "channel_id": channel.id,
        "delivery_id": await _dead_delivery(store, project, breaker.id, channel.id),
        "key_id": key.id,
        "mute_id": mute.id,
        "mapping_id": (await store.create_mapping(project.id, MAPPING, NOW_MS)).id,
    }


async def _dead_delivery(store: SqlStore, project: ProjectRow, breaker_id: str, channel_id: str) -> str:
    """The breaker trips, and the channel can't be told."""
    directory, journal = await store.open_directory(), await store.open_journal(project.shard)
    told = OutboxWorld(StoreWorld(store, project.org_id, project.workspace_id, project.id, directory, journal))
    await told.open()
    await told.adopt(breaker_id)
    await told.moves(breaker_id, "open")
    (row,) = await told.send_all(channel_id, "dead")
    return row.id
