"""Every endpoint with every wrong key and with ids of others: nobody reaches what is not theirs."""

from __future__ import annotations

from typing import Any

import pytest

from api.app import create_app
from api.routes import BLUEPRINTS
from breaker_actors.core.rules import parse_rule
from breaker_actors.stores.base import BreakerDraft, ChannelDraft, DeliveryQuery, ProjectRow
from tests.contract.outbox_world import Told
from tests.contract.store_world import World as StoreWorld
from tests.support.fake_gateway import FakeClock
from tests.support.web_world import RULE, World, error_of

OPEN = {"health", "spec", "ingest"}
RUNTIME = {
    "stream.stream_states",
    "states.get_state",
    "states.get_states",
    "status.get_status",
    "metadata.list_breaker_metadata",
    "metadata.list_router_metadata",
}
ADMIN = {"metadata.update_breaker_metadata", "metadata.update_router_metadata"}
BODIES: dict[str, Any] = {
    "routers.link_breakers": {"breaker_id": "{breaker_id}"},
    "states.get_states": {"breaker_ids": ["{breaker_id}"]},
}


def endpoints() -> list[tuple[str, str, str]]:
    """(endpoint, method, path with {names}) of all that ask for a key."""
    from breaker_actors.settings import Settings

    app = create_app(_Nothing(), Settings(), FakeClock())  # type: ignore[arg-type]
    found = []
    for rule in app.url_map.iter_rules():
        if rule.endpoint.partition(".")[0] in OPEN:
            continue
        path = rule.rule.replace("<", "{").replace(">", "}")
        found += [(rule.endpoint, method, path) for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})]
    return sorted(found)


class _Nothing:
    store = None


ENDPOINTS = endpoints()
ENTRIES = [pytest.param(*entry, id=f"{entry[1]} {entry[2]}") for entry in ENDPOINTS]


async def things(world: World, project_id: str, org_id: str) -> dict[str, str]:
    """One of everything in a project."""
    store, now = world.store, world.clock.now_ms()
    breaker, _ = await store.create_breaker(project_id, BreakerDraft(rule=parse_rule(RULE)), now)
    channel = await store.create_channel(project_id, ChannelDraft(channel="webhook", config={}), now)
    key, _ = await store.create_key(org_id, "project", "k", now, project_id)
    project = await store.get_project(project_id)
    assert project is not None
    return {
        "project_id": project_id,
        "workspace_id": project.workspace_id,
        "breaker_id": breaker.id,
        "router_id": breaker.router_ids[0],
        "channel_id": channel.id,
        "delivery_id": await dead_delivery(world, project, breaker.id, channel.id),
        "key_id": key.id,
    }


async def dead_delivery(world: World, project: ProjectRow, breaker_id: str, channel_id: str) -> str:
    """The breaker trips, and the channel can't be told."""
    store = world.store
    directory, journal = await store.open_directory(), await store.open_journal(project.shard)
    told = Told(StoreWorld(store, project.org_id, project.workspace_id, project.id, directory, journal))
    await told.open()
    await told.adopt(breaker_id)
    await told.moves(breaker_id, "open")
    (row,) = await told.send_all(channel_id, "dead")
    return row.id


async def call(world: World, endpoint: str, method: str, path: str, ids: dict[str, str], key: str | None) -> Any:
    body = BODIES.get(endpoint, {})
    filled = {n: v.format(**ids) if isinstance(v, str) else [i.format(**ids) for i in v] for n, v in body.items()}
    return await world.call(method, path.format(**ids), key, **({} if method == "GET" else {"json": filled}))


def test_every_blueprint_is_here() -> None:
    """A new resource can't be left out."""
    assert {name.partition(".")[0] for name, _, _ in ENDPOINTS} | OPEN == {b.name for b in BLUEPRINTS}
    assert {name for name, _, _ in ENDPOINTS} >= RUNTIME | ADMIN | BODIES.keys()


@pytest.mark.parametrize(("endpoint", "method", "path"), ENTRIES)
async def test_wrong_keys(world: World, endpoint: str, method: str, path: str) -> None:
    """401 without one that is known, 403 without the right, 404 from another organisation or project."""
    mine = await things(world, world.project.id, world.project.org_id)
    before = await snapshot(world)
    for key in (None, "", "eb_user_nobody", "Bearer"):
        await error_of(await call(world, endpoint, method, path, mine, key), 401, "unauthorized")
    if endpoint not in RUNTIME:
        await error_of(await call(world, endpoint, method, path, mine, "project"), 403, "forbidden")
    if endpoint in ADMIN:
        await error_of(await call(world, endpoint, method, path, mine, "user"), 403, "forbidden")
        await error_of(await call(world, endpoint, method, path, mine, "stranger"), 403, "forbidden")
    elif "{" in path:
        await error_of(await call(world, endpoint, method, path, mine, "stranger"), 404, "not_found")
    if endpoint in RUNTIME:
        second = await world.store.create_project(world.project.org_id, world.workspace_id, "second", 1)
        _, sibling = await world.store.create_key(second.org_id, "project", "k", 1, second.id)
        await error_of(await call(world, endpoint, method, path, mine, sibling), 404, "not_found")
    assert await snapshot(world) == before


@pytest.mark.parametrize(
    ("endpoint", "method", "path"), [entry for entry in ENTRIES if any("_id}" in str(v) for v in entry.values)]
)
async def test_ids_of_others(world: World, endpoint: str, method: str, path: str) -> None:
    """Each id of a path in turn is a stranger's, with a key that may do everything in ours."""
    mine = await things(world, world.project.id, world.project.org_id)
    theirs = await things(world, world.other.id, world.other.org_id)
    before = await snapshot(world)
    for name in mine:
        if "{" + name + "}" in path:
            ids = mine | {name: theirs[name]}
            await error_of(await call(world, endpoint, method, path, ids, "admin"), 404, "not_found")
    assert await snapshot(world) == before


async def test_lists_show_nothing_of_others(world: World) -> None:
    theirs = await things(world, world.other.id, world.other.org_id)
    paths = [path for _, method, path in ENDPOINTS if method == "GET" and path.count("{") <= path.count("{project_id}")]
    assert len(paths) > 10
    ids = {"project_id": world.project.id}
    for path in paths:
        if "stream" in path:
            continue
        text = await (await world.call("GET", path.format(**ids), "admin")).get_data(as_text=True)
        assert not [name for name, id_ in theirs.items() if id_ in text], path
    batch = await world.call("POST", "breakers/state:batch", json={"breaker_ids": [theirs["breaker_id"]]})
    assert (await batch.get_json())["states"] == []


async def snapshot(world: World) -> Any:
    """What must not have changed."""
    store, found = world.store, []
    for project in (world.project, world.other):
        found.append(
            [
                await store.get_project(project.id),
                await store.get_workspace(project.workspace_id),
                await store.list_breakers(project.id),
                await store.list_routers(project.id),
                channels := await store.list_channels(project.id),
                [await store.deliveries(DeliveryQuery(project_id=project.id, channel_id=c.id)) for c in channels],
                [key.id for key in await store.list_keys(project.org_id, project.id)],
            ]
        )
    return found
