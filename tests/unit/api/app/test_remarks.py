"""What is taken though it is hardly meant is told beside the answer."""

from __future__ import annotations

from typing import Any

import pytest

from breaker_actors.messages import AppendResult
from tests.support.web_world import World, error_of

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
        ({"kind": "stddev", "op": "lt", "threshold": 0}, [("never_moves", "threshold")]),
        ({"kind": "stddev", "op": "lte", "threshold": 0}, []),
        ({"kind": "stddev", "op": "gte", "threshold": 0}, [("never_moves", "threshold")]),
        ({"kind": "consecutive_failures", "op": "lte", "threshold": -1}, [("never_moves", "threshold")]),
        ({"op": "lt", "threshold": 0}, []),
        (
            {"kind": "percentile", "kind_params": {"percentile": 0.99}},
            [("percentile_below_1", "kind_params.percentile")],
        ),
        ({"kind": "percentile", "kind_params": {"percentile": 99.9}}, []),
        ({"kind_params": {"percentile": 0.99}}, []),
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


async def test_samples_that_nobody_hears(world: World) -> None:
    """As the router says of the record, which may hold other requests' samples."""
    row = await world.breaker()
    body = [{"router_id": row.router_ids[0], "metric": "latencyy", "value": 1, "ts_ms": world.clock.now_ms()}]
    world.gateway.outcome = AppendResult("ok", 1, unheard=("latencyy", "another"), heard=("latency",))
    answer = await (await world.call("POST", "ingest", json=body)).get_json()
    (warning,) = answer["warnings"]
    assert (answer["accepted"], warning["code"], warning["field"]) == (1, "no_breaker_hears", "metric")
    assert 'has the metric "latencyy"; its breakers have "latency".' in warning["message"]
    world.gateway.outcome = AppendResult("ok", 1, disabled=True)
    assert await told(world, "ingest", body) == [("router_disabled", "router_id")]


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        (
            "pagerduty",
            {"integration_key": "abc"},
            [("channel_cannot_work", "config.routing_key"), ("unknown_config_key", "config.integration_key")],
        ),
        ("pagerduty", {"routing_key": "r", "severity": "info"}, []),
        (
            "alertmanager",
            {"address": "x"},
            [("channel_cannot_work", "config.url"), ("unknown_config_key", "config.address")],
        ),
        ("webhook", {}, [("channel_cannot_work", "config.url")]),
        ("apprise", {"urls": "x"}, [("channel_cannot_work", "config.url"), ("unknown_config_key", "config.urls")]),
        ("webhook", {"url": "https://x.example/", "headers": "x"}, [("channel_cannot_work", "config.headers")]),
        ("webhook", {"url": "https://x.example/", "hmac_secret": "s"}, [("unknown_config_key", "config.hmac_secret")]),
        ("slack", {"webhook_url": "https://x.example/", "channel": "#a"}, [("unknown_config_key", "config.channel")]),
    ],
)
async def test_a_channel_that_cannot_work(
    world: World, kind: str, config: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """Told whenever it is made or changed, refused where the caller is strict."""
    body = {"channel": kind, "config": config}
    assert await told(world, "notification-channels", body) == expected
    (row,) = await world.store.list_channels(world.project.id)
    path = f"notification-channels/{row.id}"
    assert await told(world, path, {"enabled": False}, "PATCH") == expected
    assert await told(world, f"{path}?strict=true", {"enabled": True}, "PATCH") == expected
    response = await world.call("POST", "notification-channels?strict=true", json=body)
    if not expected:
        assert response.status_code == 201
        return
    error = await error_of(response, 422, "validation_failed")
    assert list(error["details"]) == [field for _, field in expected]
    assert len(await world.store.list_channels(world.project.id)) == 1
    response = await world.call("PATCH", f"{path}?strict=true", json={"config": {"note": "n"}})
    error = await error_of(response, 422, "validation_failed")
    assert set(error["details"]) == {*(field for _, field in expected), "config.note"}
    assert [each.config for each in await world.store.list_channels(world.project.id)] == [config]


async def test_keys_of_a_channel_that_may_be_meant(world: World) -> None:
    body = {"channel": "webhook", "config": {"hmac_secret": "s", "webhook_url": "https://x.example/", "zebra": 1}}
    answer = await (await world.call("POST", "notification-channels", json=body)).get_json()
    messages = {warning["field"]: warning["message"] for warning in answer["warnings"]}
    assert messages["config.hmac_secret"].endswith("did you mean secret?")
    assert messages["config.webhook_url"].endswith("did you mean url?")
    assert "did you mean" not in messages["config.zebra"]


async def test_a_mail_without_a_server_is_told(world: World) -> None:
    assert await told(world, "notification-channels", MAIL) == [("no_mail_server", "channel")]
    assert await told(world, "notification-channels", MAIL | {"enabled": False}) == []
    webhook = {"channel": "webhook", "config": {"url": "https://x.example/"}}
    assert await told(world, "notification-channels", webhook) == []
