"""Every answer as the strictest client reads it; all rows of the suite pass through the same eyes (House.judge)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.client_compatibility import SHAPES, TYPES, problems_of
from tests.conformance.service_harness import DESCRIBED, RULE, SHAPE_OF, Scope

in_session = pytest.mark.asyncio(loop_scope="session")

MS_MAX = 2_147_483_647
EXTREMES: tuple[dict[str, Any], ...] = (
    {"kind": "consecutive_failures"},
    {"kind": "percentile", "kind_params": {"percentile": 99}},
    {"threshold": 5, "cooldown_ms": MS_MAX, "min_state_duration_ms": MS_MAX, "half_open_backoff_cap_ms": MS_MAX},
    {"eval_interval_ms": MS_MAX // 11, "recovery_allow_rate_ramp_steps": 10},
    {"actions": {}, "kind_params": None, "metadata": None, "name": None},
    {"actions": {"a": [1, None]}, "metadata": {"": ""}, "name": "ünïcode ✓"},
)


@in_session
@pytest.mark.parametrize("more", EXTREMES, ids=lambda more: next(iter(more)))
async def test_extreme_breakers_can_be_read_everywhere(scope: Scope, more: dict[str, Any]) -> None:
    """The calls judge their answers; what is asked here is only that extremes pass through all of them."""
    made = await scope.made("POST P/breakers", {**RULE, **more})
    scope.names["breaker_id"] = made["id"]
    for line in ("GET P/breakers/{breaker_id}", "GET P/breakers", "GET P/routers/{own_router_id}", "GET P/routers"):
        await scope.made(line)
    for line in ("GET P/breakers/{breaker_id}/state", "GET P/breakers/metadata", "GET P/status"):
        await scope.made(line)
    await scope.made("POST P/breakers/state:batch", {"breaker_ids": ["{breaker_id}"]})
    assert made["actions"] == (more.get("actions") or None)


def test_every_json_answer_has_a_shape() -> None:
    described = {
        key
        for key, one in DESCRIBED.items()
        if key[0] != "HEAD" and any(a.body not in (None, str) for a in one.answers.values())
    }
    assert described - set(SHAPE_OF) == {("GET", "/openapi.json")}


def test_shapes_are_made_of_known_words() -> None:
    for text in SHAPES.values():
        for field in text.split():
            word = field.split(":")[1].removesuffix("?").strip("[]")
            assert word in TYPES or word in SHAPES


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_ms", 60000.0),
        ("window_ms", None),
        ("window_ms", 2**31),
        ("metadata", {"a": None}),
        ("metadata", None),
        ("name", None),
        ("router_id", None),
        ("kind_params", []),
        ("kind", "mean"),
        ("half_open_backoff_enabled", 1),
    ],
)
def test_the_strict_eye_sees(field: str, value: Any) -> None:
    from api.openapi.examples import BREAKER

    assert problems_of(BREAKER, "Breaker") == []
    assert problems_of({**BREAKER, field: value}, "Breaker") != []


def test_naive_times_are_seen() -> None:
    from api.openapi.examples import EVENT

    assert problems_of(EVENT, "Event") == []
    assert problems_of(EVENT | {"timestamp": "2026-11-21T06:29:55"}, "Event") != []
