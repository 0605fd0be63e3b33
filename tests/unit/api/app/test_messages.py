"""Messages of refusals say what would be right: allowed words, the place in a text, a sentence for each code."""

from __future__ import annotations

from typing import Any

import pytest

from api.wire import samples
from tests.support.web_world import World, error_of

ENUMS: list[tuple[str, str, Any, str, str]] = [
    (
        "POST",
        "notification-channels",
        {"channel": "teams", "config": {}},
        "channel",
        "slack, pagerduty, alertmanager, email, webhook, apprise",
    ),
    ("POST", "routers", {"mode": "random"}, "mode", "static, canary, weighted"),
    ("POST", "breakers", {"kind": "ratio"}, "kind", "error_rate, avg, p95"),
    ("POST", "breakers", {"op": "=="}, "op", "gt, lt, gte, lte"),
    ("POST", "breakers", {"half_open_indeterminate_policy": "x"}, "half_open_indeterminate_policy", "optimistic"),
]


@pytest.mark.parametrize(("method", "path", "body", "field", "words"), ENUMS)
async def test_a_word_that_is_none_is_answered_with_those_that_are(
    world: World, method: str, path: str, body: Any, field: str, words: str
) -> None:
    error = await error_of(await world.call(method, path, json=body), 422, "validation_failed")
    assert words in error["details"][field]
    assert "must be one of" in error["details"][field]


async def test_alerts_of_a_channel_are_told_as_well(world: World) -> None:
    body = {"channel": "webhook", "config": {"url": "https://hooks.example/"}, "events": ["trip", "fall"]}
    error = await error_of(await world.call("POST", "notification-channels", json=body), 422, "validation_failed")
    assert error["details"] == {"events[1]": "must be one of trip, recover, observed"}


PLACES = [
    (b'{"name": "a",\n "metric": ?}', {"line": 2, "column": 12, "offset": 25}),
    (b" ", {"line": 1, "column": 2, "offset": 1}),
    (b"\x0b", {"line": 1, "column": 1, "offset": 0}),
    (b'{"name": "a"', {"line": 1, "column": 13, "offset": 12}),
    (b'{"name": "\xff"}', {"line": 1, "column": 11, "offset": 10}),
    (b'{"samples": [{"value": 1},\n\n}', {"line": 3, "column": 1, "offset": 28}),
]


@pytest.mark.parametrize(("body", "place"), PLACES)
@pytest.mark.parametrize(("method", "path"), [("POST", "breakers"), ("PUT", "breakers"), ("POST", "ingest")])
async def test_a_body_that_is_no_json_is_told_where(
    world: World, method: str, path: str, body: bytes, place: dict[str, int]
) -> None:
    error = await error_of(await world.call(method, path, data=body), 400, "bad_request")
    assert error["details"] == place
    assert f"line {place['line']}, column {place['column']} (offset {place['offset']})" in error["message"]


async def test_a_place_in_a_body_with_nan_is_not_made_up(world: World) -> None:
    error = await error_of(await world.call("POST", "ingest", data=b'[{"value": NaN}, {]'), 400, "bad_request")
    assert "details" not in error


async def test_every_error_of_a_sample_is_a_sentence(world: World) -> None:
    assert all(text.endswith((".", "?")) for text in samples.SENTENCES.values())
    error = await error_of(await world.call("POST", "ingest", json=[{"metric": "m"}]), 422, "validation_failed")
    (found,) = error["details"]["errors"]
    assert found["message"] == samples.SENTENCES[found["code"]]


async def test_a_wrong_method_has_a_word_of_its_own(world: World) -> None:
    error = await error_of(await world.call("DELETE", "/v1/projects"), 405, "method_not_allowed")
    assert "allowed: GET, HEAD, POST" in error["message"]
