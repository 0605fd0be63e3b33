"""The app over a whole service in this process, and what a row of the suite needs: fresh things by name, and calls.

Every JSON answer that passes through here is read with the described type of the interface and with the strictest
client's eyes, whatever the row itself asks about.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
from quart import Quart, Response

from api.openapi.operation import Operation
from api.openapi.table import OPERATIONS
from breaker_actors.store.rows import ChannelDraft, ChannelRow, DeliveryQuery, DeliveryResult, DeliveryRow
from tests.conformance.client_compatibility import ANSWERS, problems_of
from tests.conformance.interface import full
from tests.support.cluster import FAST_RULE, Service

NIL = "00000000-0000-0000-0000-000000000000"
RULE = {"metric": "latency", "kind": "avg", "op": "gt", "threshold": 500}
SHAPE_OF = {(line.split()[0], full(line.split()[1])): shape for line, shape in ANSWERS.items()}
DESCRIBED: dict[tuple[str, str], Operation] = {(one.method, one.path): one for one in OPERATIONS}


@dataclass
class House:
    """`apps`: main, and ones that are down or ask for a health token. `keys`: user, admin, project, stranger, eager."""

    service: Service
    apps: dict[str, Quart]
    keys: dict[str, str]
    fixed: dict[str, str]
    hook: str = ""
    soon_ms: int = 0
    answered: set[tuple[str, str, int]] = field(default_factory=set)

    async def call(
        self, method: str, template: str, path: str, key: str | None, body: Any, headers: dict[str, str], app: str
    ) -> tuple[Response, Any]:
        """One request; its answer and the JSON in it."""
        sent = dict(headers)
        if key is not None:
            sent.setdefault("Authorization", f"Bearer {self.keys.get(key, key)}")
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        response = await self.apps[app].test_client().open(path, method=method, headers=sent, data=data)
        assert isinstance(response, Response)
        content = await response.get_data(as_text=False)
        found = json.loads(content) if response.mimetype == "application/json" and content else None
        self.answered.add((method, template, response.status_code))
        self.judge(method, template, response, content)
        return response, found

    def judge(self, method: str, template: str, response: Response, content: bytes) -> None:
        """What holds for every answer."""
        status = response.status_code
        assert response.headers["X-Request-ID"]
        described = DESCRIBED.get((method, template))
        if described is not None and status != 405:
            assert status in described.statuses, f"{method} {template} answers {status}, which is not described"
        if method == "HEAD" or status in (204, 304):
            assert content == b""
        elif described is not None and described.is_foreign and status >= 400:
            assert response.content_type.partition(";")[0] in (*described.takes, *described.complains)
        elif status >= 400:
            body = json.loads(content)
            assert response.content_type == "application/json"
            assert problems_of(body, "Error") == []
            assert body["error"] == body["code"]
            assert body["request_id"] == response.headers["X-Request-ID"]
            assert ("Retry-After" in response.headers) == (status == 429)
        elif shape := SHAPE_OF.get((method, template)):
            assert problems_of(json.loads(content), shape) == []
            assert described is not None
            msgspec.json.decode(content, type=described.answers[status].body, strict=True)


@dataclass
class Scope:
    """The names of one row: `{breaker_id}` and the like stand for things made when first asked for."""

    house: House
    names: dict[str, str] = field(default_factory=dict)

    async def fill(self, value: Any) -> Any:
        """A value with all names replaced; a time stays a number."""
        if value == "{soon}":
            return self.house.soon_ms
        if isinstance(value, str):
            for name in re.findall(r"{(\w+)}", value):
                value = value.replace(f"{{{name}}}", await self.get(name))
            return value
        if isinstance(value, dict):
            return {key: await self.fill(item) for key, item in value.items()}
        return [await self.fill(item) for item in value] if isinstance(value, list) else value

    async def get(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self.house.fixed.get(name) or await self._make(name)
        return self.names[name]

    async def call(self, line: str, body: Any = None, **more: Any) -> tuple[Response, Any]:
        """One request of this row: `METHOD path`, with names in path, query, headers and body."""
        method, _, rest = line.partition(" ")
        template, _, query = full(rest.strip()).partition("?")
        path = await self.fill(template + (f"?{query}" if query else ""))
        key, app = more.get("key", "user"), more.get("app", "main")
        headers = await self.fill(more.get("headers", {}))
        return await self.house.call(method, template, path, key, await self.fill(body), headers, app)

    async def made(self, line: str, body: Any = None, **more: Any) -> Any:
        """The body of a request that has to succeed."""
        response, found = await self.call(line, body, **more)
        assert response.status_code < 300, (line, response.status_code, found)
        return found

    async def _make(self, name: str) -> str:
        """A fresh thing of that name."""
        if name == "own_router_id":
            return str((await self.made("GET P/breakers/{breaker_id}"))["router_id"])
        if name == "etag":
            return (await self.call("GET P/breakers"))[0].headers["ETag"]
        line, body, key = _MAKERS[name]
        found = await self.made(line, body)
        for part in key.split("."):
            found = found[part]
        return str(found)


OBSERVING = RULE | {
    "mode": "observe",
    "kind": "sum",
    "op": "gt",
    "threshold": -1,
    "min_count": 0,
    "min_state_duration_ms": 0,
    "cooldown_ms": 3_600_000,
}
"""Its machine is open from the first evaluation on, and nobody sees it."""
_MAKERS: dict[str, tuple[str, Any, str]] = {
    "breaker_id": ("POST P/breakers", RULE, "breaker.id"),
    "second_breaker_id": ("POST P/breakers", RULE, "breaker.id"),
    "shadow_id": ("POST P/breakers", RULE | {"shadow_of": "{breaker_id}"}, "breaker.id"),
    "observing_id": ("POST P/breakers", OBSERVING, "breaker.id"),
    "router_id": ("POST P/routers", {"name": "r"}, "router.id"),
    "channel_id": ("POST P/notification-channels", {"channel": "webhook", "config": {"url": "{hook}"}}, "channel.id"),
    "mute_id": ("POST P/mutes", {"all": True, "ends_ms": "{soon}", "comment": "c"}, "mute.id"),
    "mapping_id": (
        "POST P/mappings",
        {"matchers": [{"field": "name", "op": "=", "value": "requests"}], "to": {"router": "label.router"}},
        "mapping.id",
    ),
    "key_id": ("POST P/keys", {}, "id"),
    "new_workspace_id": ("POST /v1/workspaces", {"name": "w", "slug": "w"}, "id"),
    "new_project_id": ("POST /v1/projects", {"workspace_id": "{workspace_id}"}, "project_id"),
}


async def trip(house: House) -> dict[str, str]:
    """A breaker that went through open, half_open and closed; its id. Two channels that are told, with the id of the
    delivery of each: one could not be sent, the other waits."""
    channels = [await _told_channel(house.service) for _ in range(2)]
    row = await house.service.breaker("tripping", **FAST_RULE | {"half_open_backoff_enabled": False})
    await house.service.send(row.router_ids[0], [900.0] * 3)
    await house.service.in_state(row.id, "half_open")
    dead, waiting = [await _delivery(house.service, channel.id) for channel in channels]
    store, now = house.service.store, house.service.clock.now_ms()
    epoch = await store.open_notifier()
    await store.lease_deliveries(epoch, {dead.channel_id: 1}, (), now, now + 1)
    failed = DeliveryResult(delivery_id=dead.id, result="dead", at_ms=now, status=404, error="answered 404 Not Found")
    await store.settle_deliveries(epoch, [failed])
    names = {"dead_channel_id": dead.channel_id, "dead_id": dead.id, "delivery_id": waiting.id}
    return {"tripped_id": row.id, **names, "waiting_channel_id": waiting.channel_id, "waiting_id": waiting.id}


async def _told_channel(s: Service) -> ChannelRow:
    draft = ChannelDraft(channel="webhook", config={"url": "http://127.0.0.1:1/"}, events=("trip",))
    return await s.store.create_channel(s.project.id, draft, s.clock.now_ms())


async def _delivery(s: Service, channel_id: str) -> DeliveryRow:
    (row,) = await s.store.deliveries(DeliveryQuery(project_id=s.project.id, channel_id=channel_id))
    return row
