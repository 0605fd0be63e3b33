"""The operator's part of the interface: who may, how the service is doing, one step of evening out."""

from __future__ import annotations

import pytest

from tests.support.web_world import World, error_of

STATUS, REBALANCE = "/v1/admin/status", "/v1/admin/rebalance"


@pytest.mark.parametrize("path", [("GET", STATUS), ("POST", REBALANCE)])
async def test_only_the_first_organisations_admin_keys_may(world: World, path: tuple[str, str]) -> None:
    await error_of(await world.call(*path, None), 401, "unauthorized")
    for key in ("user", "project", "stranger"):
        await error_of(await world.call(*path, key), 403, "forbidden")
    org_id = await world.store.create_org("tenant", world.clock.now_ms() + 1)
    _, tenant = await world.store.create_key(org_id, "admin", "tenant's", world.clock.now_ms())
    body = await error_of(await world.call(*path, tenant), 403, "forbidden")
    assert "first start" in body["message"]
    assert (await world.call(*path, "admin")).status_code == 200


async def test_the_status_says_what_everybody_said(world: World) -> None:
    world.gateway.uneven = 3
    body = await (await world.call("GET", STATUS, "admin")).get_json()
    assert body["budgets"] == {"router": None, "breaker": 8}
    assert body["journal"] == {"epoch": 7, "sequence": 3, "position": 0}
    shares = [(share["limit"], share["used"], share["max"]) for share in body["limits"]]
    assert shares == [("log_bytes", 7, 6), ("projects", 5, 5)]
    (actor,) = body["actors"]
    assert (actor["name"], actor["state"], actor["holds"]) == ("breaker-0", "starting", 3)
    assert (actor["pid"], actor["lag"], actor["log_bytes"]) == (None, None, None)


async def test_a_step_moves_as_many_as_asked(world: World) -> None:
    world.gateway.uneven = 7
    assert await (await world.call("POST", REBALANCE, "admin", json={"max": 5})).get_json() == {"moved": 5, "left": 2}
    assert await (await world.call("POST", REBALANCE, "admin")).get_json() == {"moved": 2, "left": 0}
    for wrong in (0, "many", None, 1.5):
        answer = await world.call("POST", REBALANCE, "admin", json={"max": wrong})
        assert "max" in (await error_of(answer, 422, "validation_failed"))["details"]
