"""Who counts against whom: floods of slow requests without a key, with a project key or unsigned, and all others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.admission.intake import REQUESTS_MAX, Intake
from api.admission.shares import Shares
from api.context.replica import EXTENSION
from breaker_actors.messages import Part
from breaker_actors.settings import Settings
from tests.support.web_world import World, sign, soon
from tests.unit.api.app.test_intake import MIB, Call

HERE = "<local>"
"""Where the tests' own requests come from."""
ELSEWHERE = "10.0.0.1"
FLOODS = [(1_000, 100, 1), (16, MIB, MIB - 4)]
"""So many requests, of so many bytes, of which so many come."""
FALSE = "v1=" + "0" * 64
"""What looks like a signature."""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A body that stays away is not late: on a busy machine it takes long until a whole flood is there."""
    return Settings(data_dir=tmp_path, bodies_in_flight_bytes=16 * MIB, max_body_bytes=MIB, body_timeout_ms=600_000)


@pytest.fixture(autouse=True)
def impatient(world: World) -> None:
    """What is refused is refused at once: these tests are about shares, not about who makes room in them."""
    intake_of(world).patience_s = 0.0


def intake_of(world: World) -> Intake:
    found: Intake = world.app.extensions[EXTENSION].intake
    return found


@asynccontextmanager
async def flood(
    world: World, address: str, kind: tuple[int, int, int], path: str = "ingest", **headers: str
) -> AsyncIterator[None]:
    """Slow requests, all of which are either refused or wait for the rest of their bodies."""
    n, length, sent = kind
    held = intake_of(world)
    before = held.bytes.total, held.requests.total
    calls = [Call(world, address, length, path, **headers) for _ in range(n)]
    for call in calls:
        call.pipe.put(bytes(sent))
    try:
        await soon(lambda: all(call.statuses or call.pipe.asked > 1 for call in calls), 30)
        assert held.requests.total >= REQUESTS_MAX // 8 or held.bytes.total > MIB
        yield
    finally:
        for call in calls:
            call.pipe.leave()
        await asyncio.wait([call.task for call in calls])
    assert held.bytes.total <= before[0]
    assert held.requests.total <= before[1]


async def status(world: World, method: str, path: str, key: str | None = "user", **more: Any) -> int:
    return (await world.call(method, path, key, **more)).status_code


async def managed(world: World) -> dict[str, int]:
    """What an admin and a project key get from the project."""
    return {
        "read": await status(world, "GET", "breakers", "admin"),
        "status": await status(world, "GET", "status", "project"),
        "list": await status(world, "GET", "/v1/projects", "admin"),
        "change": await status(world, "PATCH", world.path, "admin", json={"name": "shop"}),
        "rotate": await status(world, "POST", "ingest_secret/rotate", "admin"),
    }


SERVED = {"read": 200, "status": 200, "list": 200, "change": 200, "rotate": 200}


@pytest.mark.parametrize("address", [HERE, ELSEWHERE])
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_slow_flood_without_a_key_shuts_no_key_out(
    world: World, kind: tuple[int, int, int], address: str
) -> None:
    """Not those of the project, nor of its organisation, nor of its address, though each is as if seen for the first
    time; not another project of that address either."""
    async with flood(world, address, kind):
        world.app.extensions[EXTENSION].caches.forget_access()
        assert await managed(world) == SERVED
        assert await status(world, "POST", f"/v1/projects/{world.other.id}/ingest", None, data=b"[]") == 202


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_slow_flood_with_a_project_key_leaves_the_organisation_room(
    world: World, kind: tuple[int, int, int]
) -> None:
    bearer = {"authorization": f"Bearer {world.keys['project']}"}
    assert await status(world, "GET", "status", "project") == 200
    async with flood(world, HERE, kind, "breakers/state:batch", **bearer):
        served = await managed(world)
        assert served == SERVED | {"status": served["status"]}
        assert await status(world, "POST", "ingest", None, data=b"[]") == 202


@pytest.mark.parametrize("kind", FLOODS)
async def test_slow_floods_with_user_keys_leave_admin_keys_room(world: World, kind: tuple[int, int, int]) -> None:
    """Beside one with a project key, too: whoever can revoke them gets through."""
    org_id = (await world.store.list_orgs())[0].id
    second = (await world.store.create_key(org_id, "user", "v", 1))[1]
    callers = [("project", "breakers/state:batch", "POST"), ("user", "breakers", "PUT"), (second, "breakers", "PUT")]
    assert {await status(world, "GET", "status", name) for name, _, _ in callers} == {200}
    async with AsyncExitStack() as floods:
        for name, path, method in callers:
            bearer = {"authorization": f"Bearer {world.keys.get(name, name)}", "method": method}
            await floods.enter_async_context(flood(world, HERE, kind, path, **bearer))
        assert await managed(world) == SERVED | {"status": 429 if kind == FLOODS[0] else 200}
        assert await status(world, "PATCH", world.path, json={"name": "s" * 100_000}) == 429


async def turn_on_signing(world: World) -> str:
    """Has the project ask for signatures; returns its secret."""
    assert await status(world, "PATCH", world.path, json={"enable_signed_ingest": True}) == 200
    project = await world.store.get_project(world.project.id)
    assert project is not None
    return project.secrets(world.clock.now_ms())[0]


def signing(world: World, secret: str, body: bytes) -> dict[str, str]:
    now = str(world.clock.now_ms())
    return {"X-EB-Timestamp": now, "X-EB-Signature": sign(secret, now, body)}


@pytest.mark.parametrize("kind", FLOODS)
async def test_signed_clients_are_served_beside_a_flood_with_false_signatures(
    world: World, kind: tuple[int, int, int]
) -> None:
    """From another address; and everyone with a key from that very address."""
    secret = await turn_on_signing(world)
    false = {"x_eb_timestamp": str(world.clock.now_ms()), "x_eb_signature": FALSE}
    async with flood(world, ELSEWHERE, kind, **false):
        assert await status(world, "POST", "ingest", None, data=b"[]", headers=signing(world, secret, b"[]")) == 202
    async with flood(world, HERE, kind, **false):
        assert await managed(world) == SERVED
        assert await status(world, "POST", f"/v1/projects/{world.other.id}/ingest", None, data=b"[]") == 202


@pytest.mark.parametrize(
    ("timestamp", "signature"),
    [(None, None), ("now", None), ("now", "v1=00"), ("now", "0" * 64), ("0", FALSE), ("x", FALSE)],
)
async def test_what_cannot_be_signed_is_refused_before_its_body_is_read(
    world: World, timestamp: str | None, signature: str | None
) -> None:
    await turn_on_signing(world)
    timestamp = str(world.clock.now_ms()) if timestamp == "now" else timestamp
    given = {"x_eb_timestamp": timestamp, "x_eb_signature": signature}
    call = Call(world, ELSEWHERE, 100, **{name: value for name, value in given.items() if value is not None})
    await asyncio.wait_for(call.task, 5)
    assert call.statuses == [401]
    assert call.pipe.asked == 0


async def test_a_signature_that_holds_takes_a_request_from_those_without(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sixteen requests in flight one address and project may have two: those that were proven don't count for it."""
    secret, router = await turn_on_signing(world), await world.router()
    held, go, waiting = intake_of(world), asyncio.Event(), list[int]()
    held.requests = Shares("requests", 16)
    ingest = world.gateway.ingest

    async def slow(project_id: str, parts: list[Part], org_id: str) -> Any:
        waiting.append(1)
        await go.wait()
        return await ingest(project_id, parts, org_id)

    monkeypatch.setattr(world.gateway, "ingest", slow)
    sample = {"router_id": router.id, "metric": "m", "ts_ms": world.clock.now_ms(), "value": 1}
    body = json.dumps([sample]).encode()
    first = [
        asyncio.create_task(status(world, "POST", "ingest", None, data=body, headers=signing(world, secret, body)))
        for _ in range(2)
    ]
    await soon(lambda: len(waiting) == 2)
    assert await status(world, "POST", "ingest", None, data=b"[]", headers=signing(world, "00", b"[]")) == 401
    assert await status(world, "POST", "ingest", None, data=b"[]", headers=signing(world, secret, b"[]")) == 429
    go.set()
    assert await asyncio.gather(*first) == [202, 202]
    assert await status(world, "POST", "ingest", None, data=b"[]", headers=signing(world, secret, b"[]")) == 202
    assert held.requests.total == held.bytes.total == 0


async def test_a_project_spelled_in_capitals_is_the_same_project(world: World) -> None:
    held = intake_of(world)
    held.requests = Shares("requests", 16)
    spelled = [world.project.id, world.project.id.upper(), world.project.id[:4].upper() + world.project.id[4:]]
    calls = [Call(world, ELSEWHERE, 100, f"/v1/projects/{one}/ingest") for one in spelled]
    await soon(lambda: any(call.statuses for call in calls))
    assert [call.statuses for call in calls] == [[], [], [429]]
    for call in calls:
        await call.end()
    assert held.requests.total == 0
