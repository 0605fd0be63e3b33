"""Administration over all parts in one process, with two replicas: what is revoked or deleted is gone everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.app import create_app
from api.context.replica import EXTENSION
from breaker_actors.clock import SystemClock
from breaker_actors.messages import EVERY_PROJECT
from breaker_actors.persistence import make_store
from tests.support.cluster import FAST_RULE, Service, service, until
from tests.support.web_world import TIMING

WITHIN_S = 1.0


@dataclass
class Town:
    """A service with two replicas; `key` may do everything."""

    service: Service
    replicas: list[Any]
    key: str

    async def call(self, method: str, path: str, replica: int = 0, key: str | None = None, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {key or self.key}"} | more.pop("headers", {})
        full = path if path.startswith("/") else f"/v1/projects/{self.service.project.id}/{path}"
        return await self.replicas[replica].open(full, method=method, headers=headers, **more)

    async def status(self, *call: Any, **more: Any) -> int:
        return int((await self.call(*call, **more)).status_code)


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    async with AsyncExitStack() as stack:
        s = await stack.enter_async_context(service(tmp_path))
        apps = [create_app(s.gateway, s.cluster.settings, SystemClock(), TIMING, owns_gateway=False) for _ in range(2)]
        running = [await stack.enter_async_context(app.test_app()) for app in apps]
        _, key = await s.store.create_key(s.project.org_id, "admin", "a", s.clock.now_ms())
        yield Town(s, [app.test_client() for app in running], key)


async def becomes(town: Town, wanted: int, *call: Any, **more: Any) -> None:
    """The second replica answers so within a second."""

    async def answered() -> bool:
        return await town.status(*call, replica=1, **more) == wanted

    await until(answered, WITHIN_S)


async def test_a_revoked_key_is_refused_by_every_replica(town: Town) -> None:
    made = await (await town.call("POST", "keys", json={})).get_json()
    for replica in (0, 1, 1):
        assert await town.status("GET", "status", replica, made["key"]) == 200
    assert await town.status("DELETE", f"keys/{made['id']}") == 204
    assert await town.status("GET", "status", 0, made["key"]) == 401
    await becomes(town, 401, "GET", "status", key=made["key"])


async def test_streams_of_a_revoked_key_are_cut_and_others_go_on(town: Town) -> None:
    made = await (await town.call("POST", "keys", json={})).get_json()
    path = f"/v1/projects/{town.service.project.id}/breakers/state:stream"
    async with AsyncExitStack() as stack:
        streams = {}
        for key in (made["key"], town.key):
            opened = town.replicas[1].request(path, headers={"Authorization": f"Bearer {key}"})
            streams[key] = await stack.enter_async_context(opened)
            await streams[key].send_complete()
        feed = town.replicas[1].app.extensions[EXTENSION].feed
        await until(lambda: _live(feed, 2))
        assert await town.status("DELETE", f"keys/{made['id']}") == 204
        await until(lambda: _live(feed, 1), WITHIN_S)
        (left,) = [s for watch in feed._watches.values() for s in watch.subscribers]
        assert left.key[1] != made["id"]
        await streams[town.key].disconnect()


async def test_a_stream_that_was_let_in_before_its_key_was_revoked_is_cut_too(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It registers when its answer begins, which may be behind the look at those that are open."""
    project = town.service.project
    feed = town.replicas[1].app.extensions[EXTENSION].feed
    made = await (await town.call("POST", "keys", json={})).get_json()

    async def stays() -> None:
        feed.subscribe(project.id, (project.org_id, made["id"]), None)
        await asyncio.Event().wait()

    told: list[str] = []
    monkeypatch.setattr(feed.caches, "forget_access", told.append)
    assert await town.status("DELETE", f"keys/{made['id']}") == 204
    await until(lambda: _in(EVERY_PROJECT, told))  # the Journal looks, too
    late = asyncio.create_task(stays())
    await asyncio.wait([late], timeout=WITHIN_S)
    assert late.cancelled()


async def test_only_the_keys_of_the_projects_open_streams_are_asked_for(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all that an organisation has; a change without streams asks for none."""
    s, asked = town.service, []
    real = s.store.live_keys

    async def counted(key_ids: Any) -> set[str]:
        asked.append(key_ids)
        return await real(key_ids)

    monkeypatch.setattr(s.store, "live_keys", counted)
    monkeypatch.setattr(s.store, "list_keys", None)
    path = f"/v1/projects/{s.project.id}"
    feed = town.replicas[1].app.extensions[EXTENSION].feed
    row, key = await s.store.create_key(s.project.org_id, "user", "u", 1)
    forgotten = feed.caches.forget_access
    told: list[str] = []
    monkeypatch.setattr(
        feed.caches, "forget_access", lambda project_id: (told.append(project_id), forgotten(project_id))
    )
    assert await town.status("PATCH", path, json={"name": "one"}) == 200
    await until(lambda: _is(told, [s.project.id]))
    assert asked == []
    async with town.replicas[1].request(
        f"{path}/breakers/state:stream", headers={"Authorization": f"Bearer {key}"}
    ) as it:
        await it.send_complete()
        await until(lambda: _is(asked, [[row.id]]))  # what was changed may have been its key
        assert await town.status("PATCH", path, json={"name": "two"}) == 200
        await until(lambda: _is(asked, [[row.id]] * 2))
        await it.disconnect()


async def _in(wanted: Any, found: Any) -> bool:
    return wanted in found


async def _is(found: Any, wanted: Any) -> bool:
    return bool(found == wanted)


async def _live(feed: Any, count: int) -> bool:
    return bool(feed.stream_count() == count)


async def test_a_key_revoked_in_the_store_alone_is_refused_too(town: Town) -> None:
    """As the command line does it, beside the service: nobody is told, the Journal notices."""
    s = town.service
    row, key = await s.store.create_key(s.project.org_id, "user", "u", 1)
    assert await town.status("GET", "breakers", 1, key) == 200
    beside = make_store(s.cluster.settings)
    await beside.open()
    await beside.revoke_key(row.org_id, row.id, 2)
    await beside.close()
    await becomes(town, 401, "GET", "breakers", key=key)


async def test_signing_and_rotation_reach_every_replica(town: Town) -> None:
    assert await town.status("POST", "ingest", 1, json=[]) == 202
    path = f"/v1/projects/{town.service.project.id}"
    assert await town.status("PATCH", path, json={"enable_signed_ingest": True}) == 200
    await becomes(town, 401, "POST", "ingest", json=[])
    assert await town.status("PATCH", path, json={"enable_signed_ingest": False}) == 200
    await becomes(town, 202, "POST", "ingest", json=[])


async def held(town: Town) -> set[str]:
    """Breakers that actors hold."""
    actors = [actor for name, actor in town.service.net.actors.items() if name.startswith("breaker-")]
    return {breaker_id for actor in actors for breaker_id in (await actor.report()).epochs}


async def test_a_replaced_set_is_what_actors_hold(town: Town) -> None:
    """Breakers that stay go on with their state; those that go are dropped."""
    s = town.service
    kept, gone = await s.breaker("kept"), await s.breaker("gone")
    await s.send(kept.router_ids[0], [900.0] * 3)
    await until(lambda: _transitions(s, kept.id))
    items = [FAST_RULE | {"name": "kept", "cooldown_ms": 60_000}, FAST_RULE | {"name": "new"}]
    done = await (await town.call("PUT", "breakers", json={"breakers": items})).get_json()
    ids = {row["name"]: row["id"] for row in done["breakers"]}
    assert ids["kept"] == kept.id
    await s.fresh(ids["new"])

    async def settled() -> bool:
        return await held(town) == set(ids.values())

    await until(settled)
    assert (await s.fresh(kept.id)).view.transition_seq >= 1
    assert await town.status("GET", f"breakers/{gone.id}/state") == 404


async def _transitions(s: Service, breaker_id: str) -> int:
    return (await s.fresh(breaker_id)).view.transition_seq


async def test_a_deleted_project_leaves_nothing_behind(town: Town) -> None:
    """Actors drop its breakers, streams are cut, the last settled change takes rows of routers and project."""
    s = town.service
    row, other = await s.breaker("a"), await s.breaker("b")
    made = await town.call("POST", "routers", json={"breaker_ids": [row.id, other.id]})
    assert made.status_code == 201
    path = f"/v1/projects/{s.project.id}"
    assert await town.status("GET", path, 1) == 200
    async with town.replicas[1].request(
        f"{path}/breakers/state:stream", headers={"Authorization": f"Bearer {town.key}"}
    ) as stream:
        await stream.send_complete()
        assert b'"a"' in await asyncio.wait_for(stream.receive(), 5)
        assert await town.status("DELETE", path, json={"confirm_name": "project"}) == 204
        await becomes(town, 404, "GET", path)

    async def empty() -> bool:
        return not await held(town) and not await s.store.placements("router")

    await until(empty)
    assert await town.status("DELETE", f"/v1/workspaces/{s.project.workspace_id}") == 204


async def test_a_router_that_is_off_takes_nothing(town: Town) -> None:
    """PATCH enabled reaches the split: samples are taken (202) and reach no breaker."""
    s = town.service
    row = await s.breaker("a")
    router_id = row.router_ids[0]
    for enabled, count in ((False, 0), (True, 2)):
        assert await town.status("PATCH", f"routers/{router_id}", json={"enabled": enabled}) == 200
        sample = {"router_id": router_id, "metric": "latency", "ts_ms": s.clock.now_ms(), "value": 1}
        assert await town.status("POST", "ingest", json=[sample] * 2) == 202
        await asyncio.sleep(0)

        async def counted(count: int = count) -> bool:
            return (await s.fresh(row.id)).view.sample_count == count

        await until(counted)
