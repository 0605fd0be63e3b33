"""One service and its apps for the whole suite: rows make what they need in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from api.app import create_app
from breaker_actors.clock import SystemClock
from tests.conformance.service_harness import NIL, House, Scope, trip
from tests.support.cluster import Service, service
from tests.support.fake_gateway import FakeGateway
from tests.support.web_world import TIMING

EVENTS_PER_S = 5


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A web hook that takes everything."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def _keys(s: Service) -> tuple[dict[str, str], dict[str, str]]:
    """Keys of every kind, and the ids of what a stranger has."""
    now, org = s.clock.now_ms(), s.project.org_id
    foreign = await s.store.create_org("foreign", now)
    abroad = await s.store.create_workspace(foreign, "abroad", "abroad", now)
    other = await s.store.create_project(foreign, abroad.id, "other", now)
    keys = {kind: (await s.store.create_key(org, kind, kind, now))[1] for kind in ("user", "admin")}
    keys["eager"] = (await s.store.create_key(org, "user", "eager", now))[1]
    keys["project"] = (await s.store.create_key(org, "project", "p", now, s.project.id))[1]
    keys["ingest"] = (await s.store.create_key(org, "ingest", "i", now, s.project.id))[1]
    keys["stranger"] = (await s.store.create_key(foreign, "user", "s", now))[1]
    return keys, {"other_project_id": other.id, "other_workspace_id": abroad.id}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        directory = tmp_path_factory.mktemp("conformance")
        s = await stack.enter_async_context(
            service(
                directory,
                rate_events_per_s=EVENTS_PER_S,
                max_body_bytes=1 << 20,
                streams_per_project_max=3,
                allow_private_destinations=True,
            )
        )
        settings = s.cluster.settings
        down = FakeGateway(s.store)
        down.down = True
        token = settings.model_copy(update={"health_token": "health-token", "metrics_token": "metrics-token-of-16"})
        apps = {
            "main": create_app(s.gateway, settings, SystemClock(), TIMING, owns_gateway=False),
            "token": create_app(s.gateway, token, SystemClock(), TIMING, owns_gateway=False),
            "down": create_app(down, settings, SystemClock(), TIMING, owns_gateway=False),
        }
        for app in ("main", "token"):
            await stack.enter_async_context(apps[app].test_app())
        hook = await asyncio.start_server(_receive, "127.0.0.1", 0)
        stack.callback(hook.close)
        keys, foreign = await _keys(s)
        fixed = {
            "project_id": s.project.id,
            "workspace_id": s.project.workspace_id,
            "nil": NIL,
            "malformed": "not-a-uuid",
            "value": "{value}",
            "hook": f"http://127.0.0.1:{hook.sockets[0].getsockname()[1]}/hook",
            "now": str(s.clock.now_ms()),
            **foreign,
        }
        made = House(s, apps, keys, fixed)
        made.soon_ms = s.clock.now_ms() + 3_600_000
        made.fixed |= await trip(made)
        yield made


@pytest.fixture
def scope(house: House) -> Scope:
    """The names of one row."""
    return Scope(house)
