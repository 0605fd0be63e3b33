"""Workspaces, the end of a project, keys, secrets, notification channels and the audit log through the app."""

from __future__ import annotations

from typing import Any

import pytest

from api.context.replica import EXTENSION, Replica
from breaker_actors.store.quotas import Shares, add, used
from tests.support.web_world import RULE, World, error_of, ignored, sign, soon

NIL = "00000000-0000-0000-0000-000000000000"
HOOK = "https://hooks.slack.example/services/T0/B0/abcdefghij"
CHANNELS = "notification-channels"


async def body_of(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, await response.get_data()
    return await response.get_json() if status != 204 else await response.get_data()


CREATES: dict[str, tuple[str, dict[str, Any]]] = {
    "projects": ("/v1/projects", {"name": "p"}),
    "workspaces": ("/v1/workspaces", {"name": "w", "slug": "w-9"}),
    "keys": ("keys", {"name": "k"}),
}


@pytest.mark.parametrize("what", CREATES)
async def test_an_organisation_has_so_many_and_is_told_which_limit_it_met(world: World, what: Any) -> None:
    """Others are not concerned."""
    path, asked = CREATES[what]
    if what == "projects":
        asked = asked | {"workspace_id": world.workspace_id}
    org_id, most = world.project.org_id, getattr(Shares(), what)
    await world.store._db.write(lambda c: add(c, org_id, what, most - 1 - used(c, org_id, what)))
    await body_of(await world.call("POST", path, json=asked), 201)
    error = await error_of(await world.call("POST", path, json=asked), 422, "validation_failed")
    assert error["details"] == {"limit": f"BREAKERS_{what.upper()}_PER_ORG_MAX"}
    assert f"at most {most} {what}" in error["message"]
    await body_of(await world.call("POST", "/v1/workspaces", "stranger", json=CREATES["workspaces"][1]), 201)


# workspaces


async def test_a_workspace_lives(world: World) -> None:
    made = await body_of(await world.call("POST", "/v1/workspaces", json={"name": "W", "slug": "w-2", "x": 1}), 201)
    assert made.pop("warnings") == [ignored("x")]
    assert set(made) == {"id", "name", "slug", "org_id", "inserted_at"}
    path = f"/v1/workspaces/{made['id']}"
    assert await body_of(await world.call("GET", path)) == made
    listed = await body_of(await world.call("GET", "/v1/workspaces"))
    assert [row["id"] for row in listed["workspaces"]] == [world.workspace_id, made["id"]]
    assert listed["items"] == listed["workspaces"]
    changed = await body_of(await world.call("PATCH", path, json={"slug": "z", "name": ""}))
    assert changed == made | {"slug": "z"}
    assert await body_of(await world.call("DELETE", path), 204) == b""
    await error_of(await world.call("GET", path), 404, "not_found")
    mine = f"/v1/workspaces/{world.workspace_id}"
    await error_of(await world.call("DELETE", mine), 409, "workspace_has_projects")


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "name"),
        ({"name": "n"}, "slug"),
        ({"name": "", "slug": "s"}, "name"),
        ({"name": "n" * 256, "slug": "s"}, "name"),
        ({"name": "n", "slug": ""}, "slug"),
        ({"name": "n", "slug": "a b"}, "slug"),
        ({"name": "n", "slug": "s" * 256}, "slug"),
    ],
)
async def test_a_workspace_needs_a_name_and_a_slug(world: World, asked: Any, field: str) -> None:
    error = await error_of(await world.call("POST", "/v1/workspaces", json=asked), 422, "validation_failed")
    assert field in error["details"]
    if asked.get(field):
        patched = await world.call("PATCH", f"/v1/workspaces/{world.workspace_id}", json={field: asked[field]})
        await error_of(patched, 422, "validation_failed")


# the end of a project


@pytest.mark.parametrize("body", [b"", b"{}", b"{", b"[1]", b'{"cascade": true}', b'{"confirm_name": "shop"}', b"null"])
async def test_a_project_is_deleted(world: World, body: bytes) -> None:
    row = await world.breaker("a")
    assert await body_of(await world.call("DELETE", world.path, data=body), 204) == b""
    assert world.gateway.changes, "its breakers end through the logs"
    assert world.gateway.announced == ["keys", "config"]
    for path in ("", f"/breakers/{row.id}", "/keys"):
        await error_of(await world.call("GET", world.path + path), 404, "not_found")
    await error_of(await world.call("GET", "breakers/metadata", "project"), 401, "unauthorized")
    assert (await body_of(await world.call("GET", "/v1/projects")))["projects"] == []


@pytest.mark.parametrize("name", ["other", "", 5])
async def test_a_project_is_not_deleted_under_another_name(world: World, name: Any) -> None:
    response = await world.call("DELETE", world.path, json={"confirm_name": name})
    assert "confirm_name" in (await error_of(response, 422, "validation_failed"))["details"]
    assert (await world.call("GET", world.path)).status_code == 200


# keys and secrets


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(world: World) -> None:
    made = await body_of(await world.call("POST", "keys", json={"name": "ci"}), 201)
    assert set(made) == {"id", "kind", "name", "key", "key_prefix", "message", "inserted_at", "last_used_at"}
    assert made["kind"] == "project"
    assert made["key"].startswith("eb_pk_")
    assert made["key"].startswith(made["key_prefix"])
    assert (await world.call("GET", "status", made["key"])).status_code == 200
    listed = await body_of(await world.call("GET", "keys"))
    assert listed["count"] == 2
    assert listed["items"] == listed["keys"]
    shown = next(row for row in listed["keys"] if row["id"] == made["id"])
    assert shown | {"last_used_at": None} == {k: v for k, v in made.items() if k not in ("key", "message")}
    assert await body_of(await world.call("DELETE", f"keys/{made['id']}"), 204) == b""
    assert world.gateway.announced == ["keys"]
    await error_of(await world.call("GET", "status", made["key"]), 401, "unauthorized")
    await error_of(await world.call("DELETE", f"keys/{made['id']}"), 404, "not_found")


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'{"name": ""}', b'{"name": null}'])
async def test_a_key_gets_a_name(world: World, body: bytes) -> None:
    assert (await body_of(await world.call("POST", "keys", data=body), 201))["name"]


@pytest.mark.parametrize("name", [5, [], "n" * 256])
async def test_a_bad_name_of_a_key(world: World, name: Any) -> None:
    await error_of(await world.call("POST", "keys", json={"name": name}), 422, "validation_failed")


async def test_only_project_keys_are_in_reach_of_a_project(world: World) -> None:
    """An organisation's own keys are not the project's to revoke."""
    parts: Replica = world.app.extensions[EXTENSION]
    user = await parts.accounts.find_key(world.keys["user"])
    assert user is not None
    for key_id in (user.id, NIL, "x"):
        await error_of(await world.call("DELETE", f"keys/{key_id}"), 404, "not_found")


async def test_the_last_use_of_a_key_is_noted_behind_the_request(world: World) -> None:
    """Written once, however often the key is used in a minute."""
    parts: Replica = world.app.extensions[EXTENSION]
    writes: list[dict[str, int]] = []
    touch = world.store.touch_keys

    async def counted(uses: Any) -> None:
        noted = dict(uses)
        await touch(uses)
        writes.append(noted)

    world.store.touch_keys = counted  # type: ignore[method-assign]
    for _ in range(5):
        assert (await world.call("GET", "status", "project")).status_code == 200
    await soon(lambda: writes)
    assert [list(uses.values()) for uses in writes] == [[world.clock.ms]]
    listed = (await body_of(await world.call("GET", "keys")))["keys"]
    assert listed[0]["last_used_at"] == "2026-11-21T06:30:00.000Z"
    await soon(lambda: not parts.uses._due)
    world.clock.ms += 59_000
    await world.call("GET", "status", "project")
    assert not parts.uses._due
    world.clock.ms += 1_000
    await world.call("GET", "status", "project")
    await soon(lambda: world.clock.ms in writes[-1].values())


@pytest.mark.parametrize("overlap_ms", [0, 1_000])
async def test_a_rotated_secret_counts_at_once_and_the_old_for_the_overlap(world: World, overlap_ms: int) -> None:
    object.__setattr__(world.app.extensions[EXTENSION], "settings", _with(world, secret_overlap_ms=overlap_ms))
    await body_of(await world.call("PATCH", world.path, json={"enable_signed_ingest": True}))
    assert world.gateway.announced == ["keys"]
    old = world.project.ingest_secret
    new = (await body_of(await world.call("POST", "ingest_secret/rotate")))["ingest_secret"]
    assert (await _sent(world, new), await _sent(world, old)) == (202, 202 if overlap_ms else 401)
    world.clock.ms += 1_000
    assert (await _sent(world, new), await _sent(world, old)) == (202, 401)


async def test_clients_that_run_may_use_the_old_secret_for_ten_minutes_unless_it_leaked(world: World) -> None:
    await body_of(await world.call("PATCH", world.path, json={"enable_signed_ingest": True}))
    old, now = world.project.ingest_secret, world.clock.ms
    rotated = await body_of(await world.call("POST", "ingest_secret/rotate"))
    assert rotated["previous_valid_until_ms"] == now + 600_000
    for at_ms, status in ((now, 202), (now + 599_999, 202), (now + 600_000, 401)):
        world.clock.ms = at_ms
        assert await _sent(world, old) == status
    world.clock.ms = now + 1_000
    assert await _sent(world, old) == 202
    leaked = await body_of(await world.call("POST", "ingest_secret/rotate?overlap_ms=0"))
    assert leaked["previous_valid_until_ms"] is None
    assert [await _sent(world, secret) for secret in (old, rotated["ingest_secret"])] == [401, 401]
    assert await _sent(world, leaked["ingest_secret"]) == 202
    for wrong in ("-1", "600001", "x"):
        await error_of(await world.call("POST", f"ingest_secret/rotate?overlap_ms={wrong}"), 400, "bad_request")


async def _sent(world: World, secret: str) -> int:
    stamp, body = str(world.clock.ms), b"[]"
    headers = {"X-EB-Timestamp": stamp, "X-EB-Signature": sign(secret, stamp, body)}
    return (await world.call("POST", "ingest", None, data=body, headers=headers)).status_code


def _with(world: World, **fields: Any) -> Any:
    return world.settings.model_copy(update=fields)


async def test_the_masked_slack_address_sent_back_is_kept(world: World) -> None:
    shown = (await body_of(await world.call("PATCH", world.path, json={"slack_webhook_url": HOOK})))[
        "slack_webhook_url"
    ]
    assert shown == "https://hooks.slack.example/****ghij"
    await body_of(await world.call("PATCH", world.path, json={"slack_webhook_url": shown, "name": "n"}))
    stored = await world.store.get_project(world.project.id)
    assert stored is not None
    assert stored.slack_webhook_url == HOOK
    await error_of(
        await world.call("PATCH", world.path, json={"slack_webhook_url": "https://x/****"}), 422, "validation_failed"
    )


# notification channels


async def test_a_channel_lives_and_hides_its_secrets(world: World) -> None:
    asked = {"channel": "slack", "config": {"webhook_url": HOOK}, "events": None, "x": 1}
    made = (await body_of(await world.call("POST", CHANNELS, json=asked), 201))["channel"]
    assert (made["channel"], made["enabled"], made["events"]) == ("slack", True, ["trip", "recover"])
    assert (made["project_id"], made["created_at"]) == (world.project.id, made["inserted_at"])
    assert made["name"]
    assert made["config"] == {"webhook_url": "https://hooks.slack.example/****ghij"}
    path = f"{CHANNELS}/{made['id']}"
    assert await body_of(await world.call("GET", path)) == made
    listed = await body_of(await world.call("GET", CHANNELS))
    assert listed["channels"] == listed["items"] == [made | {"silence": None}]
    world.clock.ms += 1_000
    patch = {"config": made["config"], "enabled": False, "events": ["recover", "recover"], "name": "n"}
    changed = (await body_of(await world.call("PATCH", path, json=patch)))["channel"]
    assert changed == made | patch | {"events": ["recover"], "updated_at": "2026-11-21T06:30:01.000Z"}
    stored = await world.store.get_channel(world.project.id, made["id"])
    assert stored is not None
    assert stored.config == {"webhook_url": HOOK}
    back = (await body_of(await world.call("PATCH", path, json={"enabled": None, "events": None})))["channel"]
    assert (back["enabled"], back["events"]) == (True, ["trip", "recover"])
    assert await body_of(await world.call("DELETE", path), 204) == b""
    for method, rest in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/test")):
        await error_of(await world.call(method, path + rest, json={}), 404, "not_found")
    assert HOOK not in str(await body_of(await world.call("GET", "audit")))


async def test_apprise_reads_its_addresses_when_they_are_given(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it comes by; a change of something else asks nothing of it."""
    unreadable = {"url": "gotify://push.example/"}
    error = await error_of(
        await world.call("POST", CHANNELS, json={"channel": "apprise", "config": unreadable}), 422, "validation_failed"
    )
    assert "config.url is no address for apprise" in error["message"]
    good = {"channel": "apprise", "config": {"url": "gotifys://push.example/t0ken1234567"}}
    made = (await body_of(await world.call("POST", CHANNELS, json=good), 201))["channel"]
    assert made["config"] == {"url": "gotifys://****4567"}
    path = f"{CHANNELS}/{made['id']}"
    await error_of(await world.call("PATCH", path, json={"config": unreadable}), 422, "validation_failed")
    monkeypatch.setattr("breaker_actors.notify.channels.apprise.installed", lambda: False)
    error = await error_of(await world.call("POST", CHANNELS, json=good), 422, "validation_failed")
    assert "breaker-actors[apprise]" in error["message"]
    back = await body_of(await world.call("PATCH", path, json={"name": "other"}))
    assert back["channel"]["name"] == "other"


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("pagerduty", {"routing_key": "r"}),
        ("alertmanager", {"url": "http://x/", "labels": {"a": "b"}, "bearer_token": "t"}),
        ("email", {"to": ["a@b.example"]}),
        ("webhook", {"url": "http://x/", "headers": {"A": "b"}, "secret": "s"}),
        ("webhook", None),
        ("apprise", {}),
        ("email", {"anything": 1}),
    ],
)
async def test_other_kinds_take_any_config(world: World, kind: str, config: Any) -> None:
    made = await body_of(await world.call("POST", CHANNELS, json={"channel": kind, "config": config}), 201)
    stored = await world.store.get_channel(world.project.id, made["channel"]["id"])
    assert stored is not None
    assert stored.config == (config or {})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"channel": ...}, "channel"),
        ({"channel": "pigeon"}, "channel"),
        ({"channel": None}, "channel"),
        ({"config": ...}, "config"),
        ({"config": None}, "config.webhook_url"),
        ({"config": {}}, "config.webhook_url"),
        ({"config": {"webhook_url": "x"}}, "config.webhook_url"),
        ({"config": {"webhook_url": 5}}, "config.webhook_url"),
        ({"config": {"webhook_url": "https://x/****"}}, "config"),
        ({"config": []}, "config"),
        ({"config": {"webhook_url": "https://x/", "more": "x" * 65_536}}, "config"),
        ({"enabled": 1}, "enabled"),
        ({"events": ["storm"]}, "events"),
        ({"events": "trip"}, "events"),
        ({"name": "n" * 256}, "name"),
    ],
)
async def test_a_bad_channel(world: World, change: dict[str, Any], field: str) -> None:
    asked = {"channel": "slack", "config": {"webhook_url": HOOK}} | change
    given = {name: value for name, value in asked.items() if value is not ...}
    error = await error_of(await world.call("POST", CHANNELS, json=given), 422, "validation_failed")
    assert any(key.startswith(field) for key in error["details"]), error
    if "channel" not in change and ... not in change.values() and change != {"config": {}}:  # that changes nothing
        made = (await body_of(await world.call("POST", CHANNELS, json=asked | _good(change)), 201))["channel"]
        response = await world.call("PATCH", f"{CHANNELS}/{made['id']}", json=change)
        await error_of(response, 422, "validation_failed")


def _good(change: dict[str, Any]) -> dict[str, Any]:
    good = {"config": {"webhook_url": HOOK}, "enabled": True, "events": [], "name": "n"}
    return {name: good[name] for name in change}


# audit


async def test_the_audit_log_says_who_did_what_page_by_page(world: World) -> None:
    parts: Replica = world.app.extensions[EXTENSION]
    made = await body_of(await world.call("POST", "breakers", "admin", json=RULE | {"name": "a"}), 201)
    await world.call("PATCH", f"breakers/{made['id']}", json={"threshold": 7})
    await world.call("DELETE", f"breakers/{made['id']}")
    first = await body_of(await world.call("GET", "audit?limit=2"))
    assert (first["returned"], first["has_more"], first["cursor"]) == (2, True, first["next_cursor"])
    assert first["items"] == first["entries"]
    rest = await body_of(await world.call("GET", f"audit?cursor={first['next_cursor']}"))
    assert rest["next_cursor"] is None
    entries = first["entries"] + rest["entries"]
    assert [e["action"] for e in entries[:3]] == ["breaker.delete", "breaker.update", "breaker.create"]
    admin = await parts.accounts.find_key(world.keys["admin"])
    assert admin is not None
    assert entries[2]["key_id"] == admin.id
    assert (entries[2]["before"], entries[2]["target_id"]) == (None, made["id"])
    assert (entries[1]["before"]["rule"]["threshold"], entries[1]["after"]["rule"]["threshold"]) == (500.0, 7.0)
    assert entries[1]["timestamp"] == "2026-11-21T06:30:00.000Z"


async def test_entries_of_the_audit_log_are_chosen(world: World) -> None:
    """By the begin of the action and by the target; a page goes on among those."""
    made = [await body_of(await world.call("POST", "breakers", json=RULE | {"name": name}), 201) for name in "ab"]
    await world.call("PATCH", f"breakers/{made[0]['id']}", json={"threshold": 7})
    first = await body_of(await world.call("GET", "audit?action=breaker.&limit=2"))
    rest = await body_of(await world.call("GET", f"audit?action=breaker.&cursor={first['next_cursor']}"))
    told = [(e["action"], e["target_id"]) for e in first["entries"] + rest["entries"]]
    a, b = (one["id"] for one in made)
    assert told == [("breaker.update", a), ("breaker.create", b), ("breaker.create", a)]
    assert rest["next_cursor"] is None
    one = await body_of(await world.call("GET", f"audit?target_id={a.upper()}&action=breaker.c"))
    assert [(e["action"], e["target_id"]) for e in one["entries"]] == [("breaker.create", a)]
    for query in ("action=breaker_", "action=b%25"):  # no wildcards
        response = await world.call("GET", f"audit?{query}")
        assert response.status_code == 400 or (await response.get_json())["entries"] == []


async def test_the_organisation_has_an_audit_log_of_its_own(world: World) -> None:
    """Names of keys are told, those of revoked ones too; another organisation sees nothing of it."""
    parts: Replica = world.app.extensions[EXTENSION]
    org_id = world.project.org_id
    key, text = await parts.accounts.create_key(org_id, "admin", "leaver", 1)
    world.keys["leaver"] = text
    made = await body_of(await world.call("POST", "/v1/workspaces", "leaver", json={"name": "w", "slug": "w"}), 201)
    await parts.accounts.revoke_key(org_id, key.id, 2, by=key.id)
    entries = (await body_of(await world.call("GET", "/v1/audit")))["entries"]
    assert [(e["action"], e["who"], e["target_id"]) for e in entries[:3]] == [
        ("key.revoke", "leaver", key.id),
        ("workspace.create", "leaver", made["id"]),
        ("key.create", "system", key.id),
    ]
    assert all(e["project_id"] is None for e in entries)
    theirs = (await body_of(await world.call("GET", "/v1/audit", "stranger")))["entries"]
    assert not {e["id"] for e in theirs} & {e["id"] for e in entries}
    await error_of(await world.call("GET", "/v1/audit", "project"), 403, "forbidden")
    await error_of(await world.call("GET", "/v1/audit?limit=0"), 400, "bad_request")


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "cursor=x", "cursor=ZC4xLjE", "action=A", "action=a.b.c", "target_id=x"],
)
async def test_a_bad_page_of_the_audit_log(world: World, query: str) -> None:
    await error_of(await world.call("GET", f"audit?{query}"), 400, "bad_request")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"url": HOOK}, "; config.url is not read of a slack channel; did you mean webhook_url?"),
        ({"hook": HOOK}, "; config.hook is not read of a slack channel; did you mean webhook_url?"),
        ({"colour": "red"}, ""),
        ({"url": HOOK, "webhook_url": "x"}, ""),
    ],
)
async def test_an_address_under_another_name_is_guessed(world: World, config: dict[str, Any], said: str) -> None:
    asked = {"channel": "slack", "config": config}
    error = await error_of(await world.call("POST", CHANNELS, json=asked), 422, "validation_failed")
    assert error["details"]["config.webhook_url"] == f"Expected an http(s) address{said}"
