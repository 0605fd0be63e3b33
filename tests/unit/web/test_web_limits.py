"""Budgets of callers: what they count together, what a refusal looks like, and who is exempt."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from api.limits import RecentCallers, budget
from breaker_actors.settings import Settings
from tests.support.web_world import World, error_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, rate_requests_per_s=3, rate_events_per_s=2, rate_ingest_per_s=1)


async def refused(world: World, method: str, path: str, key: str | None = "user") -> None:
    """Soon: a budget fills up again while a slow machine spends it."""
    for _ in range(50):
        response = await world.call(method, path, key)
        if response.status_code == 429:
            break
    await error_of(response, 429, "rate_limited")
    assert response.headers["Retry-After"].isdigit()
    assert int(response.headers["Retry-After"]) >= 1


async def test_all_routes_of_a_key_share_its_budget_and_keys_do_not(world: World) -> None:
    for path in ("breakers", "routers", "/v1/projects"):
        assert (await world.call("GET", path)).status_code == 200
    await refused(world, "GET", "breakers")
    assert (await world.call("GET", "breakers", "admin")).status_code == 200


async def test_events_have_a_budget_of_their_own(world: World) -> None:
    for _ in range(2):
        assert (await world.call("GET", "events")).status_code == 200
    await refused(world, "GET", "events")
    assert (await world.call("GET", "breakers")).status_code == 200


async def test_ingest_is_counted_per_project(world: World) -> None:
    assert (await world.call("POST", "ingest", None, data=b"x")).status_code == 400
    await refused(world, "POST", "ingest", "user")


async def test_probes_are_free(world: World) -> None:
    for _ in range(8):
        assert (await world.call("GET", "/api/healthz", None)).status_code == 200


def test_replicas_share_a_rate() -> None:
    assert budget(0, 1, None) == []
    (limit,) = budget(20, 4, None)
    assert (limit.count, limit.inverse) == (20, 0.2)


async def test_callers_unheard_of_are_forgotten() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    later = now.replace(hour=1)
    callers = RecentCallers(2)
    for name in ("a", "b", "a", "c"):
        await callers.set(name, later)
    assert [await callers.get(name, now) for name in "abc"] == [later, now, later]
    assert callers.forgotten == 1
