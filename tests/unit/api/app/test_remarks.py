"""What is taken though it is hardly meant is told beside the answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.web_world import World

RULE = {"name": "a", "metric": "m", "kind": "avg", "op": "gt", "threshold": 5}
STAMP = {"X-EB-Timestamp": "1793000000000"}
MAIL = {"channel": "email", "config": {"to": ["a@b.example"]}}


async def told(world: World, path: str, body: Any, method: str = "POST", **more: Any) -> list[tuple[str, str]]:
    answer = await (await world.call(method, path, json=body, **more)).get_json()
    return [(warning["code"], warning["field"]) for warning in answer.get("warnings", ())]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"kind": "count", "op": "lt"}, [("never_moves", "min_count")]),
        ({"kind": "count", "op": "lt", "min_count": 0}, []),
        ({"kind": "count", "op": "gt"}, []),
        ({"kind": "error_rate", "threshold": 5}, [("never_moves", "threshold")]),
        ({"window_ms": 10}, [("short_window", "window_ms")]),
        ({"window_ms": 0, "kind": "consecutive_failures"}, []),
    ],
)
async def test_rules(world: World, fields: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert await told(world, "breakers", RULE | fields) == expected


async def test_a_repeat_that_nobody_named_is_told(world: World) -> None:
    row = await world.breaker()
    body = [{"router_id": row.router_ids[0], "metric": "m", "value": 1, "ts_ms": world.clock.now_ms()}]
    assert await told(world, "ingest", body, headers=STAMP) == []
    world.gateway.word = "duplicate"
    assert await told(world, "ingest", body, headers=STAMP) == [("repeated", "")]
    assert await told(world, "ingest", body, headers=STAMP | {"Idempotency-Key": "k"}) == []


async def test_a_mail_without_a_server_is_told(world: World) -> None:
    assert await told(world, "notification-channels", MAIL) == [("no_mail_server", "channel")]
    assert await told(world, "notification-channels", MAIL | {"enabled": False}) == []
    webhook = {"channel": "webhook", "config": {"url": "https://x.example/"}}
    assert await told(world, "notification-channels", webhook) == []
