"""Resources through the app: shapes that public clients read, status of every kind of bad input."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from api.app import create_app
from api.wire.samples import SENTENCES
from breaker_actors.core.log_entries import decode_samples
from breaker_actors.errors import BreakersError, Fenced
from breaker_actors.messages import Commit, EventDraft
from tests.support.fake_gateway import NOW_MS, view
from tests.support.web_world import RULE, TIMING, World, error_of, ignored, sign

NIL = "00000000-0000-0000-0000-000000000000"
INT32 = 2_147_483_647


async def body_of(response: Any, status: int = 200) -> Any:
    assert response.status_code == status, await response.get_data()
    return await response.get_json()


# envelope


async def test_every_answer_carries_a_request_id(world: World) -> None:
    echoed = await world.call("GET", "/v1/projects", headers={"X-Request-ID": "abc-1"})
    assert echoed.headers["X-Request-ID"] == "abc-1"
    for odd in ("", "a b", "x" * 129, "é", "<script>"):
        response = await world.call("GET", "/nowhere", None, headers={"X-Request-ID": odd})
        assert response.headers["X-Request-ID"] not in ("", odd)
    assert (await world.call("DELETE", f"breakers/{(await world.breaker()).id}")).headers["X-Request-ID"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/projects/", 404, "not_found"),
        ("PUT", "/v1/projects", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/projects", 405, "method_not_allowed"),
        ("POST", "/api/health", 405, "method_not_allowed"),
    ],
)
async def test_framework_errors_are_the_error_object(
    world: World, method: str, path: str, status: int, code: str
) -> None:
    response = await world.call(method, path)
    await error_of(response, status, code)
    assert ("Allow" in response.headers) == (status == 405)


async def test_a_double_slash_is_a_single_one(world: World) -> None:
    assert (await world.call("GET", "//v1/projects")).status_code == 200
    assert (await world.call("GET", f"//v1//projects/{world.project.id}")).status_code == 200


async def test_a_body_beyond_the_bound_is_413(world: World) -> None:
    big = b" " * (world.settings.max_body_bytes + 1)
    for path in ("ingest", "breakers"):
        await error_of(await world.call("POST", path, data=big), 413, "payload_too_large")


@pytest.mark.parametrize("error", [RuntimeError("the secret is 42"), BreakersError("the secret is 42"), Fenced()])
async def test_a_bug_is_500_without_details(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(world.store, "list_projects", fail)
    response = await world.call("GET", "/v1/projects")
    assert "secret" not in str(await error_of(response, 500, "internal_error"))


async def test_a_store_that_is_away_is_503(world: World) -> None:
    await world.store.close()
    world.gateway.down = True
    world.clock.seconds += 10
    response = await world.call("GET", "/v1/projects")
    await error_of(response, 503, "not_ready")
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize("name", ["health", "healthz", "readyz"])
async def test_a_health_token_is_asked_for_when_set(world: World, name: str) -> None:
    settings = world.settings.model_copy(update={"health_token": "t0ken"})
    world.app = create_app(world.gateway, settings, world.clock, TIMING, owns_gateway=False)
    await error_of(await world.call("GET", f"/api/{name}", None), 401, "unauthorized")
    await error_of(await world.call("GET", f"/api/{name}", "user"), 401, "unauthorized")
    assert (await world.call("HEAD", f"/api/{name}", "wrong")).status_code == 401
    assert (await world.call("GET", f"/api/{name}", "t0ken")).status_code == 200


# bad input

BODIES: list[tuple[bytes, int, str]] = [
    (b"{", 400, "bad_request"),
    (b"\xff", 400, "bad_request"),
    (b'{"name": NaN}', 400, "bad_request"),
    (b'{"name": "\\ud800"}', 400, "bad_request"),
    (b"[" * 9_000, 400, "bad_request"),
    (b"[" * 100_000, 413, "payload_too_large"),
    (b"null", 422, "validation_failed"),
    (b"[]", 422, "validation_failed"),
    (b"5", 422, "validation_failed"),
    (b'{"name": 5}', 422, "validation_failed"),
    (b'{"name": "a\\u0000b"}', 422, "validation_failed"),
    (b'{"name": "' + b"x" * 256 + b'"}', 422, "validation_failed"),
    (b'{"metadata": {"a": 1}}', 422, "validation_failed"),
]


@pytest.mark.parametrize(("data", "status", "code"), BODIES)
async def test_bodies_that_cannot_be_read(world: World, data: bytes, status: int, code: str) -> None:
    row = await world.breaker()
    for method, path in [("POST", "breakers"), ("PATCH", f"breakers/{row.id}"), ("POST", "routers")]:
        await error_of(await world.call(method, path, data=data), status, code)
    if b"metadata" not in data:
        await error_of(await world.call("PATCH", world.path, data=data), status, code)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "ratio"}, "kind"),
        ({"op": "=="}, "op"),
        ({"threshold": "5"}, "threshold"),
        ({"threshold": 10**400}, None),
        ({"threshold": None}, "threshold"),
        ({"metric": ""}, "metric"),
        ({"window_ms": 1.5}, "window_ms"),
        ({"window_ms": INT32 + 1}, "window_ms"),
        ({"recovery_allow_rate_ramp_steps": 11}, "recovery_allow_rate_ramp_steps"),
        ({"kind": "percentile"}, "kind_params.percentile"),
        ({"id": "x"}, "id"),
        ({"id": ""}, "id"),
        ({"id": 5}, "id"),
        ({"actions": []}, "actions"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 256}}, "metadata[...]"),
        ({"metadata": {str(n): "v" for n in range(21)}}, "metadata"),
        ({"name": []}, "name"),
    ],
)
async def test_a_breaker_with_a_bad_field_names_it(world: World, change: dict[str, Any], field: str | None) -> None:
    response = await world.call("POST", "breakers", data=json.dumps(RULE | change))
    if field is None:
        assert response.status_code in (400, 422)
    else:
        assert field in (await error_of(response, 422, "validation_failed"))["details"]


@pytest.mark.parametrize("path", ["breakers/x", f"breakers/{NIL}", f"breakers/{NIL}/state", "breakers/x/state"])
async def test_a_breaker_that_is_not_there_is_404(world: World, path: str) -> None:
    await error_of(await world.call("GET", path), 404, "not_found")
    if not path.endswith("state"):
        await error_of(await world.call("PATCH", path, json={"name": "a"}), 404, "not_found")
        await error_of(await world.call("DELETE", path), 404, "not_found")
        await error_of(await world.call("GET", path.replace("breakers", "routers")), 404, "not_found")


# projects


async def test_a_project_is_made_read_changed_and_rotated(world: World) -> None:
    made = await body_of(
        await world.call("POST", "/v1/projects", json={"workspace_id": world.workspace_id, "name": "n", "x": 1}), 201
    )
    assert made.pop("warnings") == [ignored("x")]
    assert made["id"] == made["project_id"]
    assert made["name"] == "n"
    assert made["enable_signed_ingest"] is False
    assert len(bytes.fromhex(made["ingest_secret"])) == 32
    path = f"/v1/projects/{made['id']}"
    read = await body_of(await world.call("GET", path))
    assert read == {name: value for name, value in made.items() if name != "ingest_secret"}
    patch = {
        "enable_signed_ingest": True,
        "name": "",
        "slack_webhook_url": "https://x/y",
        "trace_id_url_template": "https://t/{{value}}",
    }
    changed = await body_of(await world.call("PATCH", path, json=patch))
    assert changed == read | patch | {"name": "n", "slack_webhook_url": "https://x/****"}
    cleared = await body_of(
        await world.call("PATCH", path, json={"slack_webhook_url": None, "trace_id_url_template": ""})
    )
    assert (cleared["slack_webhook_url"], cleared["trace_id_url_template"]) == (None, None)
    rotated = await body_of(await world.call("POST", f"{path}/ingest_secret/rotate", data=b""))
    assert set(rotated) == {"ingest_secret", "previous_valid_until_ms"}
    assert rotated["ingest_secret"] != made["ingest_secret"]


async def test_a_project_without_a_name_gets_one(world: World) -> None:
    for name in (None, ""):
        asked = {"workspace_id": world.workspace_id, "name": name}
        assert (await body_of(await world.call("POST", "/v1/projects", json=asked), 201))["name"]


@pytest.mark.parametrize("workspace", [None, "", "x", NIL, 5, "foreign"])
async def test_a_project_needs_a_workspace_of_its_own(world: World, workspace: Any) -> None:
    asked = world.other.workspace_id if workspace == "foreign" else workspace
    response = await world.call("POST", "/v1/projects", json={"workspace_id": asked})
    assert "workspace_id" in (await error_of(response, 422, "validation_failed"))["details"]
    await error_of(await world.call("POST", "/v1/projects", data=b"[]"), 400, "bad_request")
    await error_of(await world.call("POST", "/v1/projects", data=b""), 422, "validation_failed")


async def test_the_list_holds_the_organisations_projects_only(world: World) -> None:
    body = await body_of(await world.call("GET", "/v1/projects"))
    assert [item["id"] for item in body["projects"]] == [world.project.id]
    assert body["items"] == body["projects"]
    assert (body["count"], body["next_cursor"], body["cursor"], body["has_more"]) == (1, None, None, False)
    for wanted, count in [(world.workspace_id, 1), (NIL, 0), ("x", 0), ("", 1)]:
        assert (await body_of(await world.call("GET", f"/v1/projects?workspace_id={wanted}")))["count"] == count


# breakers and routers


async def test_a_breaker_answers_in_an_envelope_and_flat(world: World) -> None:
    made = await body_of(await world.call("POST", "breakers", json=RULE | {"name": "a", "description": "?"}), 201)
    flat = made.pop("breaker")
    assert made == flat | {"warnings": [ignored("description")]}
    assert flat["router_ids"] == [flat["router_id"]]
    assert flat == RULE | {
        "id": flat["id"],
        "name": "a",
        "threshold": 500.0,
        "window_ms": 60000,
        "eval_interval_ms": 10000,
        "min_count": 1,
        "min_state_duration_ms": 60000,
        "cooldown_ms": 0,
        "half_open_backoff_enabled": True,
        "half_open_backoff_cap_ms": 300000,
        "half_open_indeterminate_policy": "conservative",
        "recovery_allow_rate_ramp_steps": 5,
        "half_open_confirmation_ms": 60000,
        "recovery_window_ms": 50000,
        "kind_params": None,
        "actions": None,
        "metadata": {},
        "mode": "enforce",
        "shadow_of": None,
        "router_id": flat["router_id"],
        "router_ids": flat["router_ids"],
    }
    assert world.gateway.changes, "the answer waits for the routers' logs"
    path = f"breakers/{flat['id']}"
    assert (await body_of(await world.call("GET", path.upper().replace("BREAKERS", "breakers"))))["breaker"] == flat
    patch = {"threshold": 7, "cooldown_ms": 0, "metadata": {"k": "v"}, "actions": {}, "window_ms": None, "name": "b"}
    changed = await body_of(await world.call("PATCH", path, json=patch))
    assert changed["breaker"] == flat | {"threshold": 7.0, "metadata": {"k": "v"}, "name": "b"}
    again = await body_of(await world.call("PATCH", path, json={"metadata": None, "name": None}))
    assert again["breaker"]["metadata"] == {}
    assert again["breaker"]["name"]
    await error_of(await world.call("PATCH", path, json={"kind": None}), 422, "validation_failed")
    await error_of(await world.call("POST", "breakers", json=RULE | {"id": flat["id"]}), 409, "breaker_exists")
    response = await world.call("DELETE", path)
    assert (response.status_code, await response.get_data()) == (204, b"")
    await error_of(await world.call("DELETE", path), 404, "not_found")


async def test_a_breaker_may_bring_its_id_and_go_without_a_name(world: World) -> None:
    wanted = "ABCDEF00-0000-4000-8000-000000000001"
    made = await body_of(await world.call("POST", "breakers", json=RULE | {"id": wanted, "name": ""}), 201)
    assert made["id"] == wanted.lower()
    assert made["name"]


async def test_the_list_is_a_conditional_read(world: World) -> None:
    row = await world.breaker("a")
    first = await world.call("GET", "breakers?limit=1&cursor=x")
    body, tag = await body_of(first), first.headers["ETag"]
    assert tag == f'W/"{body["hash"]}"'
    assert [item["router_id"] for item in body["breakers"]] == [row.router_ids[0]]
    assert body["items"] == body["breakers"]
    assert body["count"] == 1
    assert body["updated_at"].endswith("Z")
    for held in (tag, tag.removeprefix("W/"), f'"x", {tag}', "*"):
        response = await world.call("GET", "breakers", headers={"If-None-Match": held})
        assert (response.status_code, await response.get_data()) == (304, b"")
        assert response.headers["ETag"] == tag
    await world.call("PATCH", f"breakers/{row.id}", json={"metadata": {"k": "v"}})
    changed = await world.call("GET", "breakers", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] != tag


async def test_an_empty_list_is_an_empty_list(world: World) -> None:
    for path, key in [("breakers", "breakers"), ("routers", "routers"), ("events", "events")]:
        body = await body_of(await world.call("GET", path))
        assert body[key] == body["items"] == []


async def test_a_router_shows_its_breakers_in_full(world: World) -> None:
    one, two = await world.breaker("a"), await world.breaker("b")
    asked = {
        "name": "r",
        "mode": "",
        "breaker_ids": [two.id, one.id, two.id.upper()],
        "metadata": None,
        "description": 1,
    }
    made = await body_of(await world.call("POST", "routers", json=asked), 201)
    inner = made.pop("router")
    assert made == inner | {"warnings": [ignored("description")]}
    assert (made["name"], made["mode"], made["enabled"], made["created_by"]) == ("r", "static", True, "user")
    assert (made["breaker_count"], made["metadata"]) == (2, {})
    assert [item["id"] for item in made["breakers"]] == [two.id, one.id]
    assert made["breakers"][0]["router_ids"] == [two.router_ids[0], made["id"]]
    assert made["breakers"][0]["kind"] == "avg"
    assert made["inserted_at"] == "2026-11-21T06:30:00.000Z"
    assert (await body_of(await world.call("GET", f"routers/{made['id']}")))["router"] == inner
    listed = await body_of(await world.call("GET", "routers"))
    assert listed["count"] == 3
    assert {item["breaker_count"] for item in listed["routers"]} == {1, 2}
    assert "breakers" not in listed["routers"][0]


async def test_a_router_of_nothing_is_a_router(world: World) -> None:
    assert (await body_of(await world.call("POST", "routers", data=b""), 201))["breakers"] == []
    assert (await body_of(await world.call("POST", "routers", json={"enabled": False}), 201))["enabled"] is False


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"mode": "random"}, 422),
        ({"mode": 1}, 422),
        ({"enabled": "yes"}, 422),
        ({"breaker_ids": "x"}, 422),
        ({"breaker_ids": ["x"]}, 422),
        ({"breaker_ids": [NIL]}, 404),
    ],
)
async def test_a_bad_router(world: World, asked: Any, status: int) -> None:
    code = "not_found" if status == 404 else "validation_failed"
    await error_of(await world.call("POST", "routers", json=asked), status, code)


@pytest.mark.parametrize("kind", ["breakers", "routers"])
async def test_metadata_lists_are_conditional_reads_for_project_keys(world: World, kind: str) -> None:
    row = await world.breaker("a")
    first = await world.call("GET", f"{kind}/metadata", "project")
    body = await body_of(first)
    wanted = row.id if kind == "breakers" else row.router_ids[0]
    assert body["project_id"] == world.project.id
    assert body[kind] == [{"id": wanted, "name": "a", "metadata": {}}]
    tag = first.headers["ETag"]
    held = await world.call("GET", f"{kind}/metadata", "project", headers={"If-None-Match": tag})
    assert (held.status_code, held.headers["ETag"]) == (304, tag)
    assert (await world.call("HEAD", f"{kind}/metadata", "user")).headers["ETag"] == tag
    await world.breaker("b")
    again = await world.call("GET", f"{kind}/metadata", "project", headers={"If-None-Match": tag})
    assert again.status_code == 200


# states


async def test_a_state_shows_why(world: World) -> None:
    row = await world.breaker("a")
    path = f"breakers/{row.id}/state"
    body = await body_of(await world.call("GET", path))
    assert (body["breaker_id"], body["name"], body["state"], body["allow_rate"]) == (row.id, "a", "closed", 1.0)
    assert (body["indeterminate"], body["indeterminate_reason"], body["reason_code"]) == (False, None, None)
    assert (body["value"], body["sample_count"], body["passes"], body["threshold"]) == (12.5, 4, 0, 500.0)
    assert body["updated_at"] == "2026-11-21T06:29:59.000Z"
    assert "stale" not in body
    world.gateway.stale = {row.id}
    world.gateway.views[row.id] = view(verdict="indeterminate", value=None, sample_count=0, last_eval_ms=0)
    body = await body_of(await world.call("GET", path))
    assert (body["indeterminate"], body["indeterminate_reason"]) == (True, "insufficient_samples")
    assert (body["reason_code"], body["stale"], body["observed"]) == ("insufficient_samples", True, False)
    assert (body["last_eval_ms"], body["evaluated_at_ms"]) == (0, None)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"state": "open", "open_cause": "insufficient_samples", "verdict": "healthy"}, "insufficient_samples"),
        ({"state": "open", "open_cause": "threshold_exceeded", "verdict": "indeterminate"}, "threshold_exceeded"),
        ({"state": "half_open", "verdict": "indeterminate"}, "insufficient_samples"),
        ({"verdict": "breach", "held_back": True}, "threshold_exceeded"),
        ({"verdict": "breach"}, None),
        ({}, None),
    ],
)
async def test_the_reason_of_a_batch_item(world: World, fields: dict[str, Any], reason: str | None) -> None:
    row = await world.breaker()
    world.gateway.views[row.id] = view(**fields)
    body = await body_of(await world.call("POST", "breakers/state:batch", json={"breaker_ids": [row.id]}))
    assert body["states"] == body["items"]
    assert body["states"][0]["reason_code"] == reason


async def test_a_batch_is_a_union_in_request_order(world: World) -> None:
    a, b, c = [await world.breaker(name) for name in "abc"]
    router = await world.router(c.id, a.id)

    async def names(**asked: Any) -> list[str]:
        body = await body_of(await world.call("POST", "breakers/state:batch", json=asked))
        return [state["name"] for state in body["states"]]

    assert await names(breaker_ids=[b.id, NIL, a.id, b.id.upper()], router_ids=[]) == ["b", "a"]
    assert await names(router_id=router.id) == ["c", "a"]
    assert await names(breaker_ids=[a.id], router_ids=[router.id, NIL, b.router_ids[0]]) == ["a", "c", "b"]
    assert await names(breaker_ids=[NIL]) == []


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"breaker_ids": []},
        {"breaker_ids": [], "router_ids": []},
        {"breaker_ids": None, "router_id": ""},
        {"breaker_ids": "x"},
        {"breaker_ids": ["x"]},
        {"breaker_ids": [5]},
        {"router_id": 5},
    ],
)
async def test_a_batch_of_nothing_is_refused(world: World, asked: Any) -> None:
    await error_of(await world.call("POST", "breakers/state:batch", json=asked), 422, "validation_failed")


async def test_status_counts_each_state(world: World) -> None:
    empty = await body_of(await world.call("GET", "status"))
    assert empty == {"closed_count": 0, "open_count": 0, "half_open_count": 0, "last_eval_ms": 0}
    rows = [await world.breaker() for _ in range(3)]
    world.gateway.views[rows[0].id] = view(state="open", allow_rate=0.0, last_eval_ms=NOW_MS)
    world.gateway.views[rows[1].id] = view(state="half_open", allow_rate=0.2)
    response = await world.call("GET", "status", "project")
    assert await body_of(response) == {"closed_count": 1, "open_count": 1, "half_open_count": 1, "last_eval_ms": NOW_MS}
    head = await world.call("HEAD", "status", "project")
    assert (head.status_code, await head.get_data()) == (200, b"")
    assert head.headers["ETag"] == response.headers["ETag"]
    held = {"If-None-Match": response.headers["ETag"]}
    assert (await world.call("GET", "status", "project", headers=held)).status_code == 304


# events


async def history(world: World, count: int) -> str:
    """A breaker with some transitions, one second apart."""
    row = await world.breaker("a")
    head = await world.store.open_journal(0)
    epoch = (await world.store.claim(await world.store.open_directory(), "breaker", {row.id: "owner"}))[row.id]
    words = ["closed", "open"]
    for n in range(1, count + 1):
        draft = EventDraft(
            name="a",
            prev=words[(n + 1) % 2],  # type: ignore[arg-type]
            curr=words[n % 2],  # type: ignore[arg-type]
            ts_ms=NOW_MS + n * 1000,
            transition_seq=n,
            reason="threshold_exceeded",
            allow_rate=0.0,
            value=1.0,
            rule={"kind": "avg", "metric": "latency", "threshold": 500.0, "window_ms": 60000, "tags": {}},
            agg={"avg": 1.0, "count": 1, "error_count": 0, "p95": 1.0},
        )
        commit = Commit(
            breaker_id=row.id,
            project_id=world.project.id,
            epoch=epoch,
            events=(draft,),
            state=draft.curr,
            allow_rate=0.0,
            transition_seq=n,
            record=b"r",
            applied_offsets={},
        )
        head, results = await world.store.commit(head, [commit])
        assert results == ["ok"]
    return row.id


async def test_events_come_newest_first_page_by_page(world: World) -> None:
    breaker_id = await history(world, 5)
    seen, cursor, pages = [], "", 0
    while cursor is not None:
        response = await world.call("GET", f"events?limit=2&cursor={cursor}")
        body = await body_of(response)
        assert response.headers["X-Latest-Timestamp"] == str(NOW_MS + 5000)
        assert body["returned"] == len(body["events"]) > 0
        seen += [event["transition_seq"] for event in body["events"]]
        cursor, pages = body["next_cursor"], pages + 1
        assert (body["cursor"], body["has_more"]) == (cursor, cursor is not None)
        assert cursor is None or cursor.replace("-", "").replace("_", "").isalnum()
    assert (seen, pages) == ([5, 4, 3, 2, 1], 3)
    event = (await body_of(await world.call("GET", "events")))["items"][0]
    assert event["project_id"] == world.project.id
    assert (event["breaker_id"], event["name"]) == (breaker_id, "a")
    assert (event["prev"], event["curr"]) == (event["from_state"], event["to_state"]) == ("closed", "open")
    assert (event["ts_ms"], event["timestamp"]) == (NOW_MS + 5000, "2026-11-21T06:30:05.000Z")
    assert event["rule"]["tags"] == {}
    assert isinstance(event["id"], str)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"since_ms={NOW_MS + 3000}", [5, 4]),
        (f"since_ms={NOW_MS + 5000}", []),
        ("start_time=2026-11-21T06:30:03Z", [5, 4, 3]),
        ("end_time=2026-11-21T06:30:02.000000001Z", [2, 1]),
        ("start_time=2026-11-21T07:30:03%2B01:00&end_time=2026-11-21T07:30:03+01:00", [3]),
        ("after_sequence=2", [3, 4, 5]),
        ("breaker_id=" + NIL, []),
        ("limit=200&surprise=1&since_ms=", [5, 4, 3, 2, 1]),
        ("since_ms=-5&limit=1", [5]),
    ],
)
async def test_filters_of_events(world: World, query: str, found: list[int]) -> None:
    await history(world, 5)
    response = await world.call("GET", f"events?{query}")
    body = await body_of(response)
    assert [event["transition_seq"] for event in body["events"]] == found
    assert ("X-Latest-Timestamp" in response.headers) == bool(found)


async def test_the_lossless_poll_pages_forward(world: World) -> None:
    await history(world, 5)
    first = await body_of(await world.call("GET", "events?after_sequence=0&limit=3"))
    second = await body_of(await world.call("GET", f"events?after_sequence=0&limit=3&cursor={first['next_cursor']}"))
    assert [event["transition_seq"] for event in first["events"] + second["events"]] == [1, 2, 3, 4, 5]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=x",
        "limit=1.5",
        "limit=" + "9" * 400,
        "since_ms=x",
        "since_ms=" + "9" * 30,
        "breaker_id=x",
        "cursor=x",
        "cursor=%00",
        "cursor=%C3%A9",
        "cursor=" + "A" * 5000,
        "cursor=ZC4xLng",
        "start_time=yesterday",
        "end_time=0001-01-01T00:00:00+23:59x",
        "after_sequence=x",
    ],
)
async def test_a_bad_query_is_400(world: World, query: str) -> None:
    await error_of(await world.call("GET", f"events?{query}"), 400, "bad_request")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("reason=a%00b", "reason"),
        ("a=1&q=%00", "q"),
        ("%00=1", "query"),
        ("%00", "query"),
    ],
)
async def test_a_nul_in_a_query_string_is_400_whoever_reads_it(world: World, query: str, field: str) -> None:
    row = await world.breaker()
    for method, path in (("DELETE", f"breakers/{row.id}/override"), ("GET", "breakers"), ("GET", "/api/healthz")):
        error = await error_of(await world.call(method, f"{path}?{query}"), 400, "bad_request")
        assert list(error["details"]) == [field]
    assert (await world.call("GET", "breakers?reason=%2500")).status_code == 200


@pytest.mark.parametrize("path", ["breakers/%00/override", "mappings/a%00b", "/nowhere/%00", "/console/projects/%00"])
async def test_a_nul_in_a_path_is_nothing(world: World, path: str) -> None:
    assert (await world.call("GET", path)).status_code == 404


@pytest.mark.parametrize("query", ["start_time=0001-01-01T00:00:00%2B23:59", "end_time=9999-12-31T23:59:59-23:59"])
async def test_times_at_the_end_of_the_calendar_are_no_failure(world: World, query: str) -> None:
    assert (await body_of(await world.call("GET", f"events?{query}"), 200))["events"] == []


# ingest


def sample(router_id: str, **more: Any) -> dict[str, Any]:
    return {"router_id": router_id, "metric": "latency", "ts_ms": NOW_MS, "value": 1} | more


async def test_samples_become_one_part_per_router(world: World) -> None:
    one, two = await world.breaker(), await world.breaker()
    asked = {"samples": [sample(row.router_ids[0], value=n) for n, row in enumerate([one, two, one])]}
    response = await world.call("POST", "ingest", None, data=gzip.compress(json.dumps(asked).encode()), headers=GZIP)
    assert await body_of(response, 202) == {"accepted": 3}
    assert {part.router_id: part.count for part in world.gateway.parts} == {one.router_ids[0]: 2, two.router_ids[0]: 1}
    assert decode_samples(world.gateway.parts[0].payload).batch.value.tolist() == [0.0, 2.0]
    assert all(len(part.keys) == 1 and len(part.keys[0]) == 16 for part in world.gateway.parts)


GZIP = {"Content-Encoding": "gzip"}


def named(field: str, code: str) -> dict[str, str]:
    return {"field": field, "code": code, "message": SENTENCES[code]}


async def test_good_samples_are_taken_and_bad_ones_named(world: World) -> None:
    row = await world.breaker()
    asked = [sample(row.router_ids[0]), sample(NIL), sample(row.router_ids[0], value=None)]
    body = await body_of(await world.call("POST", "ingest", None, json=asked), 202)
    assert body == {
        "accepted": 1,
        "rejected": 2,
        "errors": [
            {"index": 1, **named("router_id", "invalid_router_id")},
            {"index": 2, **named("value", "invalid_value")},
        ],
    }
    refused = await world.call("POST", "ingest", None, json=asked[1:])
    assert (await error_of(refused, 422, "validation_failed"))["details"]["rejected"] == 2
    assert await body_of(await world.call("POST", "ingest", None, json=[]), 202) == {"accepted": 0}
    assert len(world.gateway.parts) == 1


async def test_a_literal_nan_spoils_its_sample_only(world: World) -> None:
    row = await world.breaker()
    good, bad = json.dumps(sample(row.router_ids[0])), json.dumps(sample(row.router_ids[0], value=float("nan")))
    body = await body_of(await world.call("POST", "ingest", None, data=f"[{good},{bad}]"), 202)
    assert (body["accepted"], body["rejected"]) == (1, 1)


@pytest.mark.parametrize(
    ("data", "headers", "status", "code"),
    [
        (b"", {}, 400, "bad_request"),
        (b"{", {}, 400, "bad_request"),
        (b'{"a":1}', {}, 400, "bad_request"),
        (b"[]", GZIP, 400, "bad_request"),
        (b"[]", {"Content-Encoding": "br"}, 400, "bad_request"),
        (b"[" + b"1," * 1000 + b"1]", {}, 413, "payload_too_large"),
        (gzip.compress(bytes(17 << 20)), GZIP, 413, "payload_too_large"),
        (b"[1]", {}, 422, "validation_failed"),
    ],
)
async def test_bad_requests_of_samples(world: World, data: bytes, headers: Any, status: int, code: str) -> None:
    await error_of(await world.call("POST", "ingest", None, data=data, headers=headers), status, code)
    assert world.gateway.parts == []


@pytest.mark.parametrize("project", ["x", NIL])
async def test_samples_of_no_project_are_404(world: World, project: str) -> None:
    await error_of(await world.call("POST", f"/v1/projects/{project}/ingest", None, json=[]), 404, "not_found")


@pytest.mark.parametrize(
    ("word", "status", "limit"),
    [
        ("ok", 202, None),
        ("duplicate", 202, None),
        ("full", 429, "BREAKERS_LANE_SAMPLES_MAX"),
        ("log_full", 429, "BREAKERS_LOG_BYTES_MAX"),
        ("share_full", 429, "BREAKERS_LOG_PROJECT_PERCENT_MAX"),
        ("reused", 422, None),
        ("failed", 503, None),
        ("not_owner", 503, None),
    ],
)
async def test_what_becomes_of_the_parts_decides(world: World, word: str, status: int, limit: str | None) -> None:
    """A 429 says which limit was met."""
    row = await world.breaker()
    world.gateway.word = word
    response = await world.call("POST", "ingest", None, json=[sample(row.router_ids[0])])
    assert response.status_code == status
    assert ("Retry-After" in response.headers) == (status == 429)
    assert (await response.get_json()).get("details", {}).get("limit") == limit


async def test_a_signed_project_wants_a_signature_over_the_wire_bytes(world: World) -> None:
    row = await world.breaker()
    await world.call("PATCH", world.path, json={"enable_signed_ingest": True})
    data = gzip.compress(json.dumps([sample(row.router_ids[0], ts_ms=None)]).encode())
    stamp = str(NOW_MS - 1000)
    signed = GZIP | {"X-EB-Timestamp": stamp, "X-EB-Signature": sign(world.project.ingest_secret, stamp, data)}
    for _ in range(2):
        assert (await world.call("POST", "ingest", None, data=data, headers=signed)).status_code == 202
    first, second = world.gateway.parts
    assert first.keys[0] != second.keys[0]
    assert first.keys[1] == second.keys[1]
    assert decode_samples(first.payload).batch.ts_ms.tolist() == [NOW_MS - 1000]
    old = str(NOW_MS - world.settings.signature_skew_ms - 1)
    for wrong in [
        GZIP,
        {"X-EB-Signature": "v1=" + "0" * 64},
        {"X-EB-Timestamp": str(NOW_MS)},
        {"X-EB-Timestamp": old, "X-EB-Signature": sign(world.project.ingest_secret, old, data)},
    ]:
        refused = await world.call("POST", "ingest", None, data=data, headers=signed | wrong if wrong != GZIP else GZIP)
        await error_of(refused, 401, "unauthorized")
    seconds = str(NOW_MS // 1_000)
    wrong = {"X-EB-Timestamp": seconds, "X-EB-Signature": sign(world.project.ingest_secret, seconds, data)}
    refused = await world.call("POST", "ingest", None, data=data, headers=signed | wrong)
    assert "is it in milliseconds?" in (await error_of(refused, 401, "unauthorized"))["message"]
    secret = (await body_of(await world.call("POST", "ingest_secret/rotate?overlap_ms=0")))["ingest_secret"]
    await error_of(await world.call("POST", "ingest", None, data=data, headers=signed), 401, "unauthorized")
    signed["X-EB-Signature"] = sign(secret, stamp, data)
    assert (await world.call("POST", "ingest", None, data=data, headers=signed)).status_code == 202


async def test_an_unsigned_project_looks_at_no_signature(world: World) -> None:
    row = await world.breaker()
    asked = [sample(row.router_ids[0])]
    for headers in ({"X-EB-Signature": "nonsense"}, {"Authorization": "Bearer nonsense"}):
        assert (await world.call("POST", "ingest", None, json=asked, headers=headers)).status_code == 202
    assert [len(part.keys) for part in world.gateway.parts] == [1, 1]
    await world.call("POST", "ingest", None, json=asked, headers={"Idempotency-Key": "a"})
    await world.call("POST", "ingest", None, json=asked, headers={"X-EB-Timestamp": "1"})
    assert [len(part.keys) for part in world.gateway.parts] == [1, 1, 3, 2]


async def test_a_router_made_elsewhere_is_found_at_its_first_sample(world: World) -> None:
    first = await world.breaker()
    assert (await world.call("POST", "ingest", None, json=[sample(first.router_ids[0])])).status_code == 202
    second = await world.breaker()
    assert (await world.call("POST", "ingest", None, json=[sample(second.router_ids[0].upper())])).status_code == 202
    assert world.gateway.parts[-1].router_id == second.router_ids[0]
