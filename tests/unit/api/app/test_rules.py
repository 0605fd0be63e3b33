"""Rules as code: plan, apply, export, adopt and drift of one replica."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.web_world import World

RULE: dict[str, Any] = {"metric": "m", "kind": "avg", "op": "gt", "threshold": 1.5}
URL = {"url": "https://hook.example/secret"}
HOOK: dict[str, Any] = {"channel": "webhook", "config": URL, "references": {"url": {"env": "HOOK"}}}
MAPPING: dict[str, Any] = {
    "matchers": [{"field": "name", "op": "=", "value": "requests"}],
    "to": {"router": "gateway", "ok": [{"label": "good"}]},
}
ALL = {
    "owner": "payments",
    "labels": {"team": "payments"},
    "breakers": {"a": RULE, "b": {**RULE, "mode": "observe"}, "c": {**RULE, "shadow_of": "a", "threshold": 2.0}},
    "routers": {"gateway": {"breakers": ["a", "b"], "metadata": {"k": "v"}}},
    "mappings": {"requests": MAPPING},
    "channels": {"hook": HOOK},
    "mutes": {"nights": {"all": True, "starts_ms": 4_000_000_000_000, "ends_ms": 4_000_000_060_000, "comment": "c"}},
}


async def ask(world: World, method: str, path: str, document: Any = None, status: int = 200, **more: Any) -> Any:
    more |= {} if document is None else {"json": document}
    answer = await world.call(method, f"{world.path}/{path}", "user", **more)
    found = await answer.get_json()
    assert answer.status_code == status, found
    return found


async def plan(world: World, document: Any) -> Any:
    return await ask(world, "POST", "rules:plan", document)


async def apply(world: World, document: Any, status: int = 200, if_match: str | None = None, query: str = "") -> Any:
    headers = {} if if_match is None else {"If-Match": if_match}
    return await ask(world, "POST", f"rules:apply{query}", document, status, headers=headers)


def acts(answer: Any) -> list[tuple[str, str, str]]:
    return [(one["act"], one["kind"], one["name"]) for one in answer["changes"]]


def fields(answer: Any) -> list[tuple[str, Any, Any]]:
    return [(one["field"], one["before"], one["after"]) for change in answer["changes"] for one in change["fields"]]


async def find(world: World, kind: str, name: str) -> Any:
    key = "channels" if kind == "notification-channels" else kind
    return next(one for one in (await ask(world, "GET", kind))[key] if one["name"] == name)


async def test_what_is_applied_is_there_and_then_there_is_nothing_to_do(world: World) -> None:
    planned = await plan(world, ALL)
    assert acts(planned) == [
        ("create", "channels", "hook"),
        ("create", "breakers", "a"),
        ("create", "breakers", "b"),
        ("create", "breakers", "c"),
        ("create", "routers", "gateway"),
        ("create", "mappings", "requests"),
        ("create", "mutes", "nights"),
    ]
    assert "secret" not in repr(planned).replace("'secret'", "")
    done = await apply(world, ALL, if_match=planned["version"])
    assert done["changed"]
    assert (await plan(world, ALL))["changes"] == []
    assert not (await apply(world, ALL, if_match=planned["version"]))["changed"], "sent again"
    found = await ask(world, "GET", "rules?owner=payments")
    expected: dict[str, Any] = {**ALL, "channels": {"hook": {**HOOK, "config": {"url": {"env": "HOOK"}}}}}
    expected["channels"]["hook"].pop("references")
    assert found == expected
    assert (await ask(world, "GET", "rules:drift?owner=payments"))["changes"] == []
    made = await find(world, "breakers", "a")
    assert (made["threshold"], len(made["router_ids"])) == (1.5, 2)


async def test_edits_by_hand_are_told_and_undone(world: World) -> None:
    await apply(world, ALL)
    a, hook = await find(world, "breakers", "a"), await find(world, "notification-channels", "hook")
    world.clock.ms += 1
    await ask(world, "PATCH", f"breakers/{a['id']}", {"threshold": 9})
    await ask(world, "PATCH", f"notification-channels/{hook['id']}", {"config": {"url": "https://other.example/x"}})
    for found in (await plan(world, ALL), await ask(world, "GET", "rules:drift?owner=payments")):
        assert acts(found) == [("update", "channels", "hook"), ("update", "breakers", "a")]
        by_hand = found["changes"][1]["by_hand"]
        assert (by_hand["fields"], by_hand["name"], by_hand["action"]) == (["threshold"], "u", "breaker.update")
        assert fields(found)[1:] == [("threshold", 9.0, 1.5)]
        assert found["changes"][0]["fields"][0]["secret"]
        assert "other.example" not in repr(found)
    undone = await apply(world, ALL)
    assert [change["by_hand"] for change in undone["changes"]] == [change["by_hand"] for change in found["changes"]]
    assert (await find(world, "breakers", "a"))["threshold"] == 1.5
    assert (await plan(world, ALL))["changes"] == []
    world.clock.ms += 1
    await ask(world, "DELETE", f"notification-channels/{hook['id']}", status=204)
    (change,) = (await plan(world, ALL))["changes"]
    assert (change["act"], change["by_hand"]["action"]) == ("create", "channel.delete")
    (made,) = (await apply(world, ALL))["changes"]
    assert made["by_hand"] == change["by_hand"]


async def test_files_delete_what_they_own_and_nothing_else(world: World) -> None:
    await ask(world, "POST", "breakers", {**RULE, "name": "console"}, 201)
    await apply(world, ALL)
    await apply(world, {"owner": "search", "breakers": {"x": RULE}})
    rest = {"owner": "payments", "breakers": {"a": RULE}}
    assert {act for act, _, _ in acts(await plan(world, rest))} == {"delete"}
    await apply(world, rest)
    names = {one["name"] for one in (await ask(world, "GET", "breakers"))["breakers"]}
    assert names == {"console", "a", "x"}
    assert [one["name"] for one in (await ask(world, "GET", "routers"))["routers"] if one["created_by"] == "user"] == []


async def test_what_is_another_owners_or_nobodys_is_left_alone(world: World) -> None:
    await ask(world, "POST", "breakers", {**RULE, "name": "console"}, 201)
    await apply(world, {"owner": "one", "breakers": {"mine": RULE}})
    wanted = {"owner": "two", "breakers": {"mine": {**RULE, "threshold": 7}, "console": {**RULE, "threshold": 8}}}
    planned = await plan(world, wanted)
    assert acts(planned) == [("adopt", "breakers", "console"), ("conflict", "breakers", "mine")]
    refused = await apply(world, wanted, 409)
    assert refused["error"] == "not_owned"
    assert set(refused["details"]["fields"] if "fields" in refused["details"] else refused["details"]) == {
        "breakers.console",
        "breakers.mine",
    }
    await ask(world, "POST", "rules:adopt", wanted, 409)
    only = {"owner": "two", "breakers": {"console": {**RULE, "threshold": 8}}}
    assert (await ask(world, "POST", "rules:adopt", only))["adopted"] == ["breakers.console"]
    assert (await find(world, "breakers", "console"))["threshold"] == 1.5, "as it is"
    assert fields(await plan(world, only)) == [("threshold", 1.5, 8.0)]
    await ask(world, "POST", "rules:adopt?from=one", wanted)
    assert acts(await plan(world, wanted)) == [("update", "breakers", "console"), ("update", "breakers", "mine")]
    assert acts(await plan(world, {"owner": "one"})) == []


async def test_an_apply_of_another_plan_is_a_conflict(world: World) -> None:
    mine, theirs = ({"breakers": {"a": {**RULE, "threshold": n}}} for n in (1, 2))
    first, second = [await plan(world, one) for one in (mine, theirs)]
    await apply(world, mine, if_match=first["version"])
    refused = await apply(world, theirs, 412, if_match=second["version"])
    assert "plan again" in refused["message"]
    await apply(world, theirs, if_match=(await plan(world, theirs))["version"])


async def test_the_guardrail_holds_for_files_too(world: World) -> None:
    many = {"breakers": {f"b{n}": RULE for n in range(12)}}
    await apply(world, many)
    few = {"breakers": {"b0": RULE}}
    assert (await apply(world, few, 409))["error"] == "guardrail_blocked"
    assert (await apply(world, {}, 409))["error"] == "guardrail_blocked"
    assert (await apply(world, few, query="?allow_destructive=true"))["count"] == 11


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"breakers": {"a": {**RULE, "op": "above"}}}, "breakers.a.op"),
        ({"breakers": {"a": {**RULE, "windw": 1}}}, "breakers.a.windw"),
        ({"breakers": {"a": {**RULE, "id": "x"}}}, "breakers.a.id"),
        ({"routers": {"r": {"breakers": ["none"]}}}, "routers.r.breakers[0]"),
        ({"mappings": {"m": {**MAPPING, "to": {"router": "none"}}}}, "mappings.m.to.router"),
        ({"channels": {"c": {"channel": "slack", "config": {}}}}, "channels.c.config.webhook_url"),
        ({"mutes": {"m": {"all": True, "comment": "c"}}}, "mutes.m.ends_ms"),
        ({"breakers": {"a": RULE, "b": {**RULE, "shadow_of": "none"}}}, "breakers.b.shadow_of"),
        ({"owner": "a b"}, "owner"),
    ],
)
async def test_what_is_wrong_is_told_by_its_place(world: World, document: Any, place: str) -> None:
    refused = await ask(world, "POST", "rules:plan", document, 422)
    assert place in refused["message"]


async def test_mappings_keep_the_order_of_the_files_among_those_of_others(world: World) -> None:
    by_label = {**MAPPING, "to": {"router": "label.x"}}
    await ask(world, "POST", "mappings", {**by_label, "name": "console"}, 201)
    await apply(world, {"mappings": {name: by_label for name in "ab"}})
    await ask(world, "POST", "mappings", {**by_label, "name": "last"}, 201)
    wanted = {"mappings": {name: by_label for name in "bxay"}}
    planned = await plan(world, wanted)
    assert acts(planned) == [
        ("update", "mappings", "a"),
        ("update", "mappings", "b"),
        ("create", "mappings", "x"),
        ("create", "mappings", "y"),
    ]
    await apply(world, wanted)
    assert [one["name"] for one in (await ask(world, "GET", "mappings"))["mappings"]] == [
        "console", "b", "x", "a", "y", "last",
    ]  # fmt: skip
    assert (await plan(world, wanted))["changes"] == []


async def test_what_was_renamed_by_hand_is_still_the_same(world: World) -> None:
    await apply(world, ALL)
    a = await find(world, "breakers", "a")
    await ask(world, "PATCH", f"breakers/{a['id']}", {"name": "renamed"})
    assert fields(await plan(world, ALL)) == [("name", "renamed", "a")]
    exported = await ask(world, "GET", "rules?owner=payments")
    assert "renamed" in exported["breakers"]
    await apply(world, ALL)
    assert (await find(world, "breakers", "a"))["id"] == a["id"]
