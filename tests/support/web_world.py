"""What tests of the web layer reach: the app of one replica over a fake gateway and a real store."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quart import Quart, Response

from api.app import create_app
from api.context.replica import EXTENSION
from api.stream.sse import StreamTiming
from breaker_actors.settings import Settings
from breaker_actors.store.rows import BreakerDraft, BreakerRow, ProjectRow, RouterDraft, RouterRow
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from tests.support.fake_gateway import FakeClock, FakeGateway

RULE = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 500}
TIMING = StreamTiming(snapshot_s=0.01, heartbeat_s=0.2, refusal_s=0.02)


@dataclass
class World:
    """What a test reaches. `keys`: user, admin, project, stranger (a user of another organisation)."""

    app: Quart
    gateway: FakeGateway
    store: SqlStore
    clock: FakeClock
    settings: Settings
    project: ProjectRow
    other: ProjectRow
    workspace_id: str
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v1/projects/{self.project.id}"

    async def call(self, method: str, path: str, key: str | None = "user", **more: Any) -> Response:
        """One request; `path` may be relative to the project."""
        headers = dict(more.pop("headers", {}))
        if key is not None:
            headers.setdefault("Authorization", f"Bearer {self.keys.get(key, key)}")
        full = path if path.startswith("/") else f"{self.path}/{path}"
        response = await self.app.test_client().open(full, method=method, headers=headers, **more)
        assert isinstance(response, Response)
        return response

    async def breaker(self, name: str | None = None, **rule: Any) -> BreakerRow:
        from breaker_actors.core.rules import parse_rule

        draft = BreakerDraft(rule=parse_rule({**RULE, **rule}), name=name)
        return (await self.store.create_breaker(self.project.id, draft, self.clock.now_ms()))[0]

    async def router(self, *breaker_ids: str) -> RouterRow:
        draft = RouterDraft(name="r", breaker_ids=breaker_ids)
        return (await self.store.create_router(self.project.id, draft, self.clock.now_ms()))[0]


def store_at(path: Path) -> SqlStore:
    return SqlStore(f"sqlite:///{path}", SecretBox(b"k" * 32))


@asynccontextmanager
async def open_world(path: Path, settings: Settings, content: dict[str, Any]) -> AsyncIterator[World]:
    """The app over the store at `path`. `content`: what is in it, as fields of a World."""
    clock, store = FakeClock(), store_at(path)
    await store.open()
    gateway = FakeGateway(store)
    app = create_app(gateway, settings, clock, TIMING, owns_gateway=False)
    async with app.test_app():
        await soon(app.extensions[EXTENSION].feed.fresh)
        yield World(app=app, gateway=gateway, store=store, clock=clock, settings=settings, **content)
    await store.close()


async def error_of(response: Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error answer, checked to be one."""
    body = await response.get_json()
    assert response.status_code == status, body
    assert response.content_type == "application/json"
    assert body["error"] == body["code"] == code
    assert isinstance(body["message"], str)
    assert body["request_id"] == response.headers["X-Request-ID"]
    return dict(body)


def ignored(field: str, meant: str | None = None) -> dict[str, str]:
    """The warning of an answer about a field that the request does not have."""
    guess = f"; did you mean {meant}?" if meant else ""
    return {"code": "unknown_field", "field": field, "message": f"is no field of this request{guess}"}


def told(data: bytes) -> list[tuple[str, str, float | None]]:
    """The messages in a piece of a stream, each checked to be in the strict form."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n") if data else []:
        first, second = block.split("\n")
        assert first == "event: state"
        assert second.startswith("data: {")
        body = json.loads(second.removeprefix("data: "))
        assert list(body) == ["breaker", "state", "allow_rate"]
        found.append((body["breaker"], body["state"], body["allow_rate"]))
    return found


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The signature header of a request."""
    mac = hmac.new(bytes.fromhex(secret), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={mac.hexdigest()}"


async def soon(check: Callable[[], Any], timeout_s: float = 5.0) -> None:
    """Waits until something is true."""
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.002)
