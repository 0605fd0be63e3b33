"""Fields that a request does not have: told beside the usual answer, refused where the caller is strict."""

from __future__ import annotations

from typing import Any

import pytest

from api.context.replica import EXTENSION
from api.openapi.table import OPERATIONS
from api.wire.unknown import NAME_SHOWN_MAX, WARNINGS_MAX
from tests.support.fake_gateway import NOW_MS
from tests.support.web_world import RULE, World, error_of

OVERRIDE = {"kind": "force_open", "reason": "r"}
MAPPING = {"matchers": [{"field": "name", "op": "=", "value": "m"}], "to": {"router": "label.router"}}
MUTE = {"all": True, "ends_ms": NOW_MS + 3_600_000, "comment": "c"}
HOOK = {"channel": "webhook", "config": {"url": "https://hooks.example/"}}
CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "create_workspace": ("POST", "/v1/workspaces", {"name": "n", "slug": "s"}, "nam"),
    "update_workspace": ("PATCH", "/v1/workspaces/{workspace}", {"name": "n"}, "slugg"),
    "create_project": ("POST", "/v1/projects", {"workspace_id": "{workspace}"}, "nme"),
    "update_project": ("PATCH", "", {"name": "n"}, "enable_signed_ingests"),
    "create_breaker": ("POST", "breakers", RULE, "window"),
    "replace_breakers": ("PUT", "breakers", {"breakers": [{"name": "n", **RULE}]}, "window"),
    "update_breaker": ("PATCH", "breakers/{breaker}", {"threshold": 7}, "treshold"),
    "get_states": ("POST", "breakers/state:batch", {"breaker_ids": ["{breaker}"]}, "breakers"),
    "update_breaker_metadata": ("PATCH", "breakers/{breaker}/metadata", {"metadata": {"a": "b"}}, "metdata"),
    "create_router": ("POST", "routers", {}, "modes"),
    "update_router": ("PATCH", "routers/{router}", {}, "enable"),
    "link_breakers": ("POST", "routers/{router}/breakers", {"breaker_ids": ["{breaker}"]}, "breakers_ids"),
    "update_router_metadata": ("PATCH", "routers/{router}/metadata", {"metadata": {"a": "b"}}, "metdata"),
    "create_channel": ("POST", "notification-channels", HOOK, "event"),
    "update_channel": ("PATCH", "notification-channels/{channel}", {}, "event"),
    "create_key": ("POST", "keys", {"name": "n"}, "nme"),
    "set_override": ("PUT", "breakers/{breaker}/override", OVERRIDE, "reasons"),
    "set_overrides": ("POST", "overrides", {**OVERRIDE, "all": True}, "matcher"),
    "preview_overrides": ("POST", "overrides:preview", {"all": True}, "matcher"),
    "end_overrides": ("POST", "overrides:end", {"all": True}, "matcher"),
    "create_mute": ("POST", "mutes", MUTE, "start_ms"),
    "preview_mute": ("POST", "mutes:preview", {"all": True}, "matcher"),
    "update_mute": ("PATCH", "mutes/{mute}", {"comment": "d"}, "end_ms"),
    "create_mapping": ("POST", "mappings", MAPPING, "matcher"),
    "replace_mappings": ("PUT", "mappings", {"mappings": []}, "mapping"),
    "preview_mappings": ("POST", "mappings:preview", {"series": []}, "serie"),
    "update_mapping": ("PATCH", "mappings/{mapping}", {"enabled": True}, "positon"),
    "plan_rules": ("POST", "rules:plan", {"breakers": {}}, "breaker"),
    "apply_rules": ("POST", "rules:apply", {"breakers": {}}, "breaker"),
    "adopt_rules": ("POST", "rules:adopt", {"breakers": {}}, "breaker"),
    "rebalance": ("POST", "/v1/admin/rebalance", {}, "maxi"),
}


def test_every_operation_with_fields_is_tried() -> None:
    assert set(CASES) == {operation.id for operation in OPERATIONS if operation.checks_fields}


async def ids(world: World) -> dict[str, str]:
    row = await world.breaker("a")
    made = await (await world.call("POST", "notification-channels", json=HOOK)).get_json()
    router = await world.router()
    mute = await (await world.call("POST", "mutes", json=MUTE)).get_json()
    mapping = await (await world.call("POST", "mappings", json=MAPPING)).get_json()
    return {
        "workspace": world.workspace_id,
        "breaker": row.id,
        "router": router.id,
        "channel": made["channel"]["id"],
        "mute": mute["mute"]["id"],
        "mapping": mapping["mapping"]["id"],
    }


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return value.format(**names)
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    return {key: filled(item, names) for key, item in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("operation", CASES)
async def test_a_field_that_is_none_is_told_or_refused(world: World, operation: str) -> None:
    method, path, body, wrong = CASES[operation]
    names = await ids(world)
    path, body = filled(path, names) or world.path, filled(body, names)
    holder, place = (body["breakers"][0], "breakers[0].") if operation == "replace_breakers" else (body, "")
    holder[wrong] = {} if "metadata" in operation else 1
    key = "admin" if "metadata" in operation or operation == "rebalance" else "user"
    error = await error_of(await world.call(method, f"{path}?strict=true", key, json=body), 422, "validation_failed")
    assert list(error["details"]) == [f"{place}{wrong}"]
    response = await world.call(method, path, key, json=body)
    assert response.status_code in (200, 201), await response.get_data()
    (warning,) = (await response.get_json())["warnings"]
    assert (warning["code"], warning["field"]) == ("unknown_field", f"{place}{wrong}")
    assert "did you mean" in warning["message"]
    del holder[wrong]
    again = await world.call(method, f"{path}?strict=true", key, json=body)
    assert again.status_code != 422 or operation == "create_workspace"
    assert "warnings" not in (await again.get_json())


async def test_warnings_are_few_and_short(world: World) -> None:
    body = RULE | {f"{n}{'x' * 200}": 1 for n in range(100)}
    made = await (await world.call("POST", "breakers", json=body)).get_json()
    assert len(made["warnings"]) == WARNINGS_MAX
    assert all(len(warning["field"]) <= NAME_SHOWN_MAX for warning in made["warnings"])


async def test_what_belongs_elsewhere_is_told_so(world: World) -> None:
    body = RULE | {"kind": "delta", "delta_of": "max", "router_id": "r"}
    made = await (await world.call("POST", "breakers", json=body)).get_json()
    told = {warning["field"]: warning["message"] for warning in made["warnings"]}
    assert told["delta_of"].endswith("did you mean kind_params.delta_of?")
    assert "POST .../routers/{router_id}/breakers" in told["router_id"]


async def test_what_was_read_can_be_sent_back(world: World) -> None:
    row = await world.breaker("a")
    read = (await (await world.call("GET", f"breakers/{row.id}")).get_json())["breaker"]
    for method, path, body in [("PATCH", f"breakers/{row.id}", read), ("PUT", "breakers", {"breakers": [read]})]:
        response = await world.call(method, f"{path}?strict=true", json=body)
        assert response.status_code == 200, await response.get_data()


async def test_a_refusal_tells_of_the_slip_that_caused_it(world: World) -> None:
    body = {"metrics" if name == "metric" else name: value for name, value in RULE.items()}
    error = await error_of(await world.call("POST", "breakers", json=body), 422, "validation_failed")
    assert error["details"] == {"metric": "is required"}
    assert error["warnings"][0]["message"].endswith("did you mean metric?")


async def test_a_repeated_request_is_answered_with_its_warnings(world: World) -> None:
    headers = {"Idempotency-Key": "k"}
    answers = [await world.call("POST", "breakers", json=RULE | {"window": 1}, headers=headers) for _ in range(2)]
    first, second = [await answer.get_json() for answer in answers]
    assert first == second
    assert first["warnings"]


async def test_of_samples_the_first_ones_are_looked_at(world: World) -> None:
    """All of a small body, the first of a large one; a misspelled `ok` says what counts without it."""
    row = await world.breaker("a")
    good = {"router_id": row.router_ids[0], "metric": "m", "value": 1, "ts_ms": world.clock.now_ms()}
    bad = good | {"success": False}
    for body in ([good, bad, bad], {"samples": [good, bad]}):
        answer = await (await world.call("POST", "ingest", None, json=body)).get_json()
        (warning,) = answer["warnings"]
        assert (warning["code"], warning["field"]) == ("unknown_field", "samples[1].success")
        assert warning["message"].endswith("did you mean ok? Without ok a sample counts as a success.")
    for body, told in ([bad, *[good] * 50], 1), ([*[good] * 50, bad], 0), ([good], 0):
        answer = await (await world.call("POST", "ingest", None, json=body)).get_json()
        assert (answer["accepted"], len(answer.get("warnings", ()))) == (len(body), told)


async def test_the_strict_have_samples_with_unknown_fields_refused(world: World) -> None:
    row = await world.breaker("a")
    good = {"router_id": row.router_ids[0], "metric": "m", "value": 1, "ts_ms": world.clock.now_ms()}
    bad = good | {"succes": False}
    taken = await (await world.call("POST", "ingest?strict=true", None, json=[*[good] * 50, bad])).get_json()
    assert (taken["accepted"], taken["rejected"], taken.get("warnings")) == (50, 1, None)
    assert [(each["index"], each["field"], each["code"]) for each in taken["errors"]] == [
        (50, "succes", "unknown_field")
    ]
    none = await error_of(await world.call("POST", "ingest?strict=true", None, json=[bad]), 422, "validation_failed")
    assert none["details"]["errors"][0]["field"] == "succes"
    assert "warnings" not in await (await world.call("POST", "ingest?strict=true", None, json=[good])).get_json()


async def test_deletions_are_not_looked_through(world: World) -> None:
    gone = await world.call("DELETE", world.path, json={"cascade": True})
    assert gone.status_code == 204


async def test_strict_is_a_word_of_two(world: World) -> None:
    await error_of(await world.call("POST", "breakers?strict=maybe", json=RULE), 400, "bad_request")


async def test_a_change_that_is_not_in_all_logs_yet_says_so(world: World) -> None:
    """It is stored, and its caller need not guess why samples don't count yet."""
    world.gateway.is_late = True
    response = await world.call("POST", "breakers", json=RULE)
    assert response.status_code == 201
    made = await response.get_json()
    assert [warning["code"] for warning in made["warnings"]] == ["pending"]
    path = f"breakers/{made['breaker']['id']}"
    changed = await (await world.call("PATCH", path, json={"threshold": 7})).get_json()
    assert [warning["code"] for warning in changed["warnings"]] == ["pending"]
    assert world.app.extensions[EXTENSION].meters.value("breakers_changes_late_total") == 2
    world.gateway.is_late = False
    assert "warnings" not in await (await world.call("PATCH", path, json={"threshold": 8})).get_json()
    world.gateway.is_late = True
    assert (await world.call("DELETE", path)).status_code == 204
