"""Routers, links, metadata and the bulk replace through the app."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.app import create_app
from tests.support.web_world import RULE, TIMING, World, error_of, ignored

NIL = "00000000-0000-0000-0000-000000000000"


async def body_of(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, await response.get_data()
    return await response.get_json() if status != 204 else await response.get_data()


# routers


async def test_a_router_is_changed(world: World) -> None:
    row = await world.breaker("a")
    router = await world.router(row.id)
    path = f"routers/{router.id}"
    patch = {"name": "z", "mode": "canary", "enabled": False, "metadata": {"canary:a": "10"}}
    changed = await body_of(await world.call("PATCH", path, json=patch | {"description": "?"}))
    inner = changed.pop("router")
    assert changed == inner | {"warnings": [ignored("description")]}
    assert {name: inner[name] for name in patch} == patch
    assert [item["id"] for item in inner["breakers"]] == [row.id]
    assert len(world.gateway.changes) == 1, "the new split waits for the router's log"
    same = await body_of(await world.call("PATCH", path, json={"name": "", "mode": ""}))
    assert (same["name"], same["mode"]) == ("z", "canary")
    back = await body_of(await world.call("PATCH", path, json={"mode": None, "enabled": None, "metadata": None}))
    assert (back["mode"], back["enabled"], back["metadata"]) == ("static", True, {})


@pytest.mark.parametrize(
    "patch",
    [
        {"mode": "random"},
        {"mode": 1},
        {"enabled": "no"},
        {"name": "n" * 256},
        {"metadata": []},
        {"metadata": {"a": None}},
        {"metadata": {"weight:a": "many"}},
        {"metadata": {str(i): "" for i in range(21)}},
    ],
)
async def test_a_bad_change_of_a_router(world: World, patch: Any) -> None:
    router = await world.router()
    await error_of(await world.call("PATCH", f"routers/{router.id}", json=patch), 422, "validation_failed")


async def test_a_router_is_deleted_when_nothing_hangs_on_it(world: World) -> None:
    row = await world.breaker("a")
    router = await world.router(row.id)
    error = await error_of(await world.call("DELETE", f"routers/{router.id}"), 409, "router_has_breakers")
    assert error["details"] == {"breaker_ids": [row.id]}
    assert await body_of(await world.call("DELETE", f"routers/{router.id}/breakers/{row.id}"), 204) == b""
    await error_of(await world.call("DELETE", f"routers/{router.id}/breakers/{row.id}"), 404, "not_found")
    assert await body_of(await world.call("DELETE", f"routers/{router.id}"), 204) == b""
    assert len(world.gateway.changes) == 2
    for method in ("GET", "PATCH", "DELETE"):
        await error_of(await world.call(method, f"routers/{router.id}", json={}), 404, "not_found")


async def test_links_are_made_all_or_none(world: World) -> None:
    a, b = await world.breaker("a"), await world.breaker("b")
    path = f"routers/{(await world.router()).id}/breakers"
    one = await body_of(await world.call("POST", path, json={"breaker_id": a.id.upper()}))
    assert [item["id"] for item in one["router"]["breakers"]] == [a.id]
    await error_of(await world.call("POST", path, json={"breaker_ids": [b.id, NIL]}), 404, "not_found")
    both = await body_of(await world.call("POST", path, json={"breaker_ids": [b.id, a.id, b.id], "breaker_id": a.id}))
    assert [item["id"] for item in both["breakers"]] == [a.id, b.id]
    assert both["breakers"][1]["router_ids"] == [*b.router_ids, both["id"]]
    for bad in ({}, {"breaker_ids": None}, {"breaker_ids": ["x"]}, {"breaker_id": 5}, {"breaker_ids": [NIL] * 10_001}):
        await error_of(await world.call("POST", path, json=bad), 422, "validation_failed")


# metadata


@pytest.mark.parametrize("kind", ["breakers", "routers"])
@pytest.mark.parametrize("wrapped", [True, False])
async def test_metadata_is_merged(world: World, kind: str, wrapped: bool) -> None:
    row = await world.breaker("a")
    path = f"{kind}/{row.id if kind == 'breakers' else row.router_ids[0]}/metadata"

    async def patch(change: Any, status: int = 200) -> Any:
        body = {"metadata": change} if wrapped else change
        return await body_of(await world.call("PATCH", path, "admin", json=body), status)

    assert (await patch({"a": "1", "b": "2"}))["metadata"] == {"a": "1", "b": "2"}
    merged = await patch({"a": None, "c": "", "gone": None})
    assert (merged["metadata"], merged["name"]) == ({"b": "2", "c": ""}, "a")
    assert merged["id"] in path
    full = {str(i): "v" for i in range(18)}
    assert len((await patch(full))["metadata"]) == 20
    await patch({"more": "x"}, 422)
    assert len((await patch({"more": "x", "b": None}))["metadata"]) == 20
    await patch({"k" * 65: "v", "c": None}, 422)
    await patch({"k" * 65: None}, 422)
    await patch({"c": "v" * 256}, 422)
    await patch({"c": 5}, 422)
    listed = await body_of(await world.call("GET", f"{kind}/metadata", "project"))
    assert len(listed[kind][0]["metadata"]) == 20
    await error_of(await world.call("PATCH", path, "user", json={"a": "b"}), 403, "forbidden")
    await error_of(await world.call("PATCH", f"{kind}/{NIL}/metadata", "admin", json={}), 404, "not_found")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"null", 422),
        (b"", 422),
        (b"{}", 422),
        (b"[]", 422),
        (b'{"metadata": {}}', 200),
        (b'{"metadata": "text"}', 200),
    ],
)
async def test_forms_of_a_metadata_body(world: World, body: bytes, status: int) -> None:
    """An object under `metadata` is the change; text there is a key of that name."""
    row = await world.breaker("a")
    response = await world.call("PATCH", f"breakers/{row.id}/metadata", "admin", data=body)
    found = await body_of(response, status)
    if b"text" in body:
        assert found["metadata"] == {"metadata": "text"}


# bulk replace


def items(*names: str, **fields: Any) -> dict[str, Any]:
    return {"breakers": [RULE | {"name": name} | fields for name in names]}


async def put(world: World, body: Any, status: int = 200, query: str = "", **headers: str) -> Any:
    response = await world.call("PUT", f"breakers{query}", json=body, headers=headers)
    return await body_of(response, status)


async def test_the_whole_set_is_replaced(world: World) -> None:
    done = await put(world, items("a", "b", metadata={"x": "y"}))
    assert set(done) == {"changed", "count", "hash", "duration_ms", "breakers"}
    assert (done["changed"], done["count"], done["duration_ms"]) == (True, 2, 0)
    listed = await body_of(await world.call("GET", "breakers"))
    assert (listed["hash"], listed["breakers"]) == (done["hash"], done["breakers"])
    assert len(world.gateway.changes) == 2
    world.clock.ms += 1_000
    again = await put(world, {"breakers": listed["breakers"]})
    assert (again["changed"], again["hash"]) == (False, done["hash"])
    assert (await body_of(await world.call("GET", "breakers")))["updated_at"] == listed["updated_at"]
    other = await put(world, items("b", "a", threshold=7))
    assert [row["metadata"] for row in other["breakers"]] == [{"x": "y"}] * 2
    assert other["hash"] != done["hash"]


async def test_if_match_in_all_its_forms(world: World) -> None:
    tag = (await world.call("GET", "breakers")).headers["ETag"]
    bare = (await put(world, items("a"), **{"If-Match": tag}))["hash"]
    assert tag != f'W/"{bare}"'
    for held in (f'W/"{bare}"', f'"{bare}"', bare, f'"x", "{bare}"', "*"):
        assert not (await put(world, items("a"), **{"If-Match": held}))["changed"]
    for held in ("", '"x"', "W/", tag):
        response = await world.call("PUT", "breakers", json=items("b"), headers={"If-Match": held})
        await error_of(response, 412, "precondition_failed")


async def test_a_breaker_is_changed_only_as_it_is_known(world: World) -> None:
    """Its tag is of all that is shown: an override is not, and does not change it."""
    row = await world.breaker("a")
    path = f"breakers/{row.id}"
    tag = (await world.call("GET", path)).headers["ETag"]
    await world.call("PUT", f"{path}/override", json={"kind": "force_open", "reason": "r"})
    changed = await world.call("PATCH", path, json={"threshold": 7}, headers={"If-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] == (await world.call("GET", path)).headers["ETag"] != tag
    refused = await world.call("PATCH", path, json={"threshold": 8}, headers={"If-Match": tag})
    error = await error_of(refused, 412, "precondition_failed")
    assert f'W/"{error["details"]["breaker"]}"' == changed.headers["ETag"]
    await error_of(
        await world.call("PATCH", path, json={"op": "?"}, headers={"If-Match": "x"}), 422, "validation_failed"
    )
    for known in (changed.headers["ETag"], "*"):
        assert (await world.call("PATCH", path, json={}, headers={"If-Match": known})).status_code == 200
    assert (await body_of(await world.call("GET", path)))["threshold"] == 7


async def test_the_guardrail(world: World) -> None:
    """All of them, or more than half of at least ten, do not go unasked; 412 comes before 409, 422 before both."""
    await put(world, items("a", "b"))
    error = await error_of(await world.call("PUT", "breakers", json={"breakers": None}), 409, "guardrail_blocked")
    assert error["details"] == {"breakers": 2, "removed": 2}
    assert (await put(world, items("a")))["count"] == 1
    await put(world, {"breakers": []}, 412, **{"If-Match": "x"})
    await put(world, {"breakers": [{}]}, 422, **{"If-Match": "x"})
    assert (await put(world, {"breakers": []}, query="?allow_destructive=true"))["count"] == 0
    assert not (await put(world, {"breakers": []}))["changed"], "an empty set may stay empty"
    ten = [str(i) for i in range(10)]
    await put(world, items(*ten))
    await put(world, items(*ten[:4]), 409)
    await put(world, items(*ten[:4]), 400, query="?allow_destructive=1")
    assert (await put(world, items(*ten[:5])))["count"] == 5


async def test_the_limit_of_the_guardrail_is_a_setting(world: World) -> None:
    settings = world.settings.model_copy(update={"bulk_removal_percent_max": 90})
    world.app = create_app(world.gateway, settings, world.clock, TIMING, owns_gateway=False)
    ten = [str(i) for i in range(10)]
    await put(world, items(*ten))
    assert (await put(world, items("0")))["count"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "breakers"),
        ({"breakers": {}}, "breakers"),
        ({"breakers": [5]}, "breakers[0]"),
        ({"breakers": [RULE]}, "breakers[0].name"),
        ({"breakers": [RULE | {"name": "a"}, RULE | {"name": "b", "kind": "ratio"}]}, "breakers[1].kind"),
        ({"breakers": [RULE | {"name": "a", "id": "x"}]}, "breakers[0].id"),
        ({"breakers": [RULE | {"name": "a", "id": ""}]}, "breakers[0].id"),
        ({"breakers": [RULE | {"name": 5}]}, "breakers[0].name"),
        ({"breakers": [RULE | {"name": "a"}] * 2}, "breakers[0].name"),
        ({"breakers": [RULE | {"name": "a", "metadata": {"k": 1}}]}, "breakers[0].metadata[...]"),
    ],
)
async def test_a_bad_set_names_the_item(world: World, body: Any, field: str) -> None:
    row = await world.breaker("stored")
    response = await world.call("PUT", "breakers", data=json.dumps(body))
    assert field in (await error_of(response, 422, "validation_failed"))["details"]
    assert (await world.store.list_breakers(world.project.id))[0] == [row]


async def test_an_id_of_another_project_is_refused(world: World) -> None:
    from breaker_actors.core.rules import parse_rule
    from breaker_actors.store.rows import BreakerDraft

    foreign, _ = await world.store.create_breaker(world.other.id, BreakerDraft(rule=parse_rule(RULE)), 1)
    response = await world.call("PUT", "breakers", json=items("a", id=foreign.id.upper()))
    assert "breakers[0].id" in (await error_of(response, 422, "validation_failed"))["details"]


async def test_actions_are_kept_and_shown(world: World) -> None:
    actions = {"on_trip": [{"call": "x", "n": 1}]}
    made = await body_of(await world.call("POST", "breakers", json=RULE | {"actions": actions}), 201)
    assert made["actions"] == made["breaker"]["actions"] == actions
    path = f"breakers/{made['id']}"
    assert (await body_of(await world.call("PATCH", path, json={"threshold": 1})))["actions"] == actions
    assert (await body_of(await world.call("PATCH", path, json={"actions": None})))["actions"] is None
