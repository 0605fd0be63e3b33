"""Idempotency-Key on creates: two equal requests make one thing and get one answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.openapi.table import OPERATIONS
from api.routes import routers
from breaker_actors.store.rows import BreakerDraft
from tests.contract.store_world import RULE as STORED_RULE
from tests.support.web_world import RULE, World, error_of

KEY = {"Idempotency-Key": "retry-1"}
HOOK = {"channel": "webhook", "config": {"url": "https://x.example/h", "secret": "hush-hush"}}


def creates(world: World) -> dict[str, Any]:
    """Path and body of each create."""
    return {
        "create_workspace": ("/v1/workspaces", {"name": "w", "slug": "w2"}),
        "create_project": ("/v1/projects", {"workspace_id": world.workspace_id, "name": "p"}),
        "create_breaker": ("breakers", {"name": "b", **RULE}),
        "create_router": ("routers", {"name": "r"}),
        "create_channel": ("notification-channels", HOOK),
        "create_key": ("keys", {"name": "k"}),
        "create_mute": ("mutes", {"all": True, "ends_ms": world.clock.now_ms() + 3_600_000, "comment": "c"}),
        "create_mapping": (
            "mappings",
            {"matchers": [{"field": "name", "op": "=", "value": "m"}], "to": {"router": "label.router"}},
        ),
        "rotate_secret": ("ingest_secret/rotate", None),
    }


def keyed() -> list[str]:
    """The operations that the interface describes with an Idempotency-Key, ingest aside."""
    names = [one.id for one in OPERATIONS if any(p.name == "Idempotency-Key" for p in one.parameters)]
    return [name for name in names if name != "ingest"]


@pytest.mark.parametrize("name", keyed())
async def test_equal_requests_make_one_thing_and_get_one_answer(world: World, name: str) -> None:
    path, body = creates(world)[name]
    answers = await asyncio.gather(*(world.call("POST", path, json=body, headers=KEY) for _ in range(10)))
    bodies = [await answer.get_data() for answer in answers]
    assert {answer.status_code for answer in answers} == {200 if name == "rotate_secret" else 201}
    assert len(set(bodies)) == 1
    replayed = [answer.headers.get("Idempotency-Replayed") for answer in answers]
    assert sorted(map(str, replayed)) == ["None", *["true"] * 9]
    other = await world.call("POST", path, json=body, headers={"Idempotency-Key": "retry-2"})
    assert await other.get_data() != bodies[0]


@pytest.mark.parametrize("name", keyed())
async def test_another_request_under_the_key_is_refused(world: World, name: str) -> None:
    path, body = creates(world)[name]
    assert (await world.call("POST", path, json=body, headers=KEY)).status_code < 300
    if body is None:
        path += "?overlap_ms=0"
    else:
        body = body | {"description": "another"}
    await error_of(await world.call("POST", path, json=body, headers=KEY), 422, "idempotency_key_reused")


async def test_a_mute_that_has_ended_is_answered_again(world: World) -> None:
    """The request comes again after the time it names: what it asked for was done."""
    path, body = creates(world)["create_mute"]
    first = await world.call("POST", path, json=body, headers=KEY)
    world.clock.ms += 3_600_001
    again = await world.call("POST", path, json=body, headers=KEY)
    assert (again.status_code, await again.get_data()) == (201, await first.get_data())
    await error_of(await world.call("POST", path, json=body), 422, "validation_failed")


async def test_every_create_has_one(world: World) -> None:
    """What answers 201 is a create."""
    made = {one.id for one in OPERATIONS if 201 in one.answers}
    assert made | {"rotate_secret"} == set(keyed()) == set(creates(world))


async def test_keys_are_those_of_an_organisation_and_ask_for_the_same_rights(world: World) -> None:
    path, body = creates(world)["create_workspace"]
    mine = await (await world.call("POST", path, json=body, headers=KEY)).get_json()
    theirs = await world.call("POST", path, "stranger", json=body, headers=KEY)
    assert theirs.status_code == 201
    assert (await theirs.get_json())["id"] != mine["id"]
    await error_of(await world.call("POST", path, "project", json=body, headers=KEY), 403, "forbidden")
    await error_of(await world.call("POST", path, None, json=body, headers=KEY), 401, "unauthorized")


async def test_an_empty_key_is_none_and_a_long_one_is_refused(world: World) -> None:
    path, body = creates(world)["create_router"]
    first, second = [await world.call("POST", path, json=body, headers={"Idempotency-Key": ""}) for _ in range(2)]
    assert await first.get_data() != await second.get_data()
    long = {"Idempotency-Key": "k" * 256}
    await error_of(await world.call("POST", path, json=body, headers=long), 422, "validation_failed")


async def test_a_repetition_waits_like_the_first_until_the_routers_know(world: World) -> None:
    path, body = creates(world)["create_breaker"]
    for _ in range(2):
        await world.call("POST", path, json=body, headers=KEY)
    first, second = world.gateway.changes
    assert first == second


async def test_a_large_answer_is_not_kept_but_told_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is encoded in the transaction, and the key counts like any other, whatever the answer's size."""
    made = BreakerDraft(rule=STORED_RULE, name="b", actions={"a": "x" * 60_000})
    ids = [(await world.store.create_breaker(world.project.id, made, 1))[0].id for _ in range(4)]
    path, body = "routers", {"name": "r", "breaker_ids": ids}
    monkeypatch.setattr(routers, "router_body", _no_encoding(routers.router_body))
    first, second = [await world.call("POST", path, json=body, headers=KEY) for _ in range(2)]
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["Idempotency-Replayed"] == "true"
    assert await first.get_data() == await second.get_data()
    assert world.gateway.changes[0] == world.gateway.changes[1]
    made_id = (await first.get_json())["id"]
    assert [row.name for row in await world.store.list_routers(world.project.id)].count("r") == 1
    await error_of(
        await world.call("POST", path, json=body | {"name": "s"}, headers=KEY), 422, "idempotency_key_reused"
    )
    await world.router(*ids)
    for breaker_id in ids:
        await world.store.unlink_breaker(world.project.id, made_id, breaker_id, 2)
    await world.store.delete_router(world.project.id, made_id, 3)
    gone = await error_of(await world.call("POST", path, json=body, headers=KEY), 404, "not_found")
    assert gone["details"] == {"router_id": made_id}


def _no_encoding(told: Any) -> Any:
    def checked(*shown: Any) -> Any:
        asyncio.get_running_loop()  # raises in the thread of a transaction
        return told(*shown)

    return checked
