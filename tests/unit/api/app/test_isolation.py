"""Ways round the matrix of keys: ids of others in bodies, filters, links and cursors, fields that are not the caller's
to set, and other places and spellings of a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from api.openapi.table import OPERATIONS
from api.wire.query import number_cursor
from tests.support.asgi import Headers
from tests.support.estate import HEALTH_TOKEN, Estate, Ids
from tests.support.web_world import RULE, sign

pytestmark = pytest.mark.asyncio(loop_scope="module")
OTHERS = ("second", "theirs")


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def restored(estate: Estate) -> AsyncIterator[None]:
    yield
    await estate.restore()


def of(estate: Estate, key: str) -> Headers:
    return [("Authorization", f"Bearer {estate.world.keys[key]}")]


async def told(estate: Estate, path: str, method: str = "GET", body: Any = None, key: str = "admin") -> Any:
    """A successful answer's body, about our project where the path says so."""
    reply = await estate.ask(method, path.format(**estate.ids["ours"]), of(estate, key), body)
    assert reply.status < 300, reply
    return reply.body.decode() if method == "GET" else reply.json


def shows(text: str, ids: Ids) -> list[str]:
    return [name for name, id_ in ids.items() if id_ in text]


# reading


async def test_lists_show_nothing_of_other_organisations(estate: Estate) -> None:
    """Nor do those of a project show anything of another one of the same organisation."""
    lists = [o for o in OPERATIONS if o.method == "GET" and o.access not in ("metrics", "probe")]
    paths = [o.path for o in lists if o.path.count("{") <= o.path.count("{project_id}")]
    assert len(paths) > 10
    for path in paths:
        if "stream" in path or path.startswith("/api"):
            continue
        text = await told(estate, path)
        assert shows(text, estate.ids["theirs"]) == [], path
        if "{project_id}" in path:
            assert shows(text, estate.ids["second"]) == [], path


@pytest.mark.parametrize("other", OTHERS)
async def test_filters_by_ids_of_others_find_nothing(estate: Estate, other: str) -> None:
    ids = estate.ids[other]
    base = "/v1/projects/{project_id}"
    found = await told(estate, f"{base}/events?breaker_id={ids['breaker_id']}&source=all")
    assert '"events":[]' in found
    for body in ({"breaker_ids": [ids["breaker_id"]]}, {"router_ids": [ids["router_id"]]}):
        assert (await told(estate, f"{base}/breakers/state:batch", "POST", body))["states"] == []
    if other == "theirs":
        assert shows(await told(estate, f"/v1/projects?workspace_id={ids['workspace_id']}"), ids) == []


async def test_a_cursor_is_a_place_and_no_key(estate: Estate) -> None:
    """Made for another project, or up, it reads the caller's project or is refused."""
    rows = [row for name in OTHERS for row in [estate.ids[name]]]
    numbers = (0, 1, 10**15)
    for path in ("audit", "notification-channels/{channel_id}/deliveries"):
        for number in numbers:
            text = await told(estate, f"/v1/projects/{{project_id}}/{path}?cursor={number_cursor(number)}")
            assert [shows(text, ids) for ids in rows] == [[], []]
    for cursor in ("../..", number_cursor(1) + "x", "'%20OR%201=1--", estate.ids["theirs"]["breaker_id"]):
        for path in ("events", "audit"):
            reply = await estate.ask(
                "GET", f"/v1/projects/{estate.ids['ours']['project_id']}/{path}?cursor={cursor}", of(estate, "admin")
            )
            assert (reply.status, reply.code) == (400, "bad_request")


# writing


LINKS: list[tuple[str, str, Any, int]] = [
    ("POST", "/v1/projects/{project_id}/routers", {"breaker_ids": ["BREAKER"]}, 404),
    ("POST", "/v1/projects/{project_id}/routers/{router_id}/breakers", {"breaker_ids": ["BREAKER"]}, 404),
    ("POST", "/v1/projects/{project_id}/routers/{router_id}/breakers", {"breaker_id": "BREAKER"}, 404),
    ("POST", "/v1/projects/{project_id}/breakers", {**RULE, "id": "BREAKER"}, 409),
    ("PUT", "/v1/projects/{project_id}/breakers", {"breakers": [{**RULE, "id": "BREAKER"}]}, 422),
    ("POST", "/v1/projects/{project_id}/ingest", [{"router_id": "ROUTER", "metric": "m", "value": 1}], 422),
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(("method", "path", "body", "status"), LINKS)
async def test_ids_of_others_in_bodies_reach_nothing(
    estate: Estate, method: str, path: str, body: Any, status: int, other: str
) -> None:
    before = await estate.snapshot()
    reply = await estate.ask(
        method, path.format(**estate.ids["ours"]), of(estate, "admin"), _named(body, estate.ids[other])
    )
    assert reply.status == status, reply
    assert await estate.snapshot() == before
    assert estate.world.gateway.parts == []
    words = reply.body.decode().lower()
    assert "project" not in words, "it is not said where the id is"


def _named(value: Any, ids: Ids) -> Any:
    if isinstance(value, dict):
        return {key: _named(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item, ids) for item in value]
    return {"BREAKER": ids["breaker_id"], "ROUTER": ids["router_id"]}.get(value, value)


async def test_a_project_is_made_in_ones_own_workspaces_only(estate: Estate) -> None:
    body = {"workspace_id": estate.ids["theirs"]["workspace_id"]}
    reply = await estate.ask("POST", "/v1/projects", of(estate, "admin"), body)
    absent = await estate.ask("POST", "/v1/projects", of(estate, "admin"), {"workspace_id": "3" * 36})
    assert (reply.status, reply.json["message"]) == (absent.status, absent.json["message"]) == (422, ANY_WORKSPACE)


ANY_WORKSPACE = "workspace_id: is none of yours: the id of a workspace; GET /v1/workspaces lists them"
FOREIGN = {
    "id": "BREAKER",
    "org_id": "o",
    "project_id": "p",
    "workspace_id": "w",
    "router_id": "ROUTER",
    "created_by": "system",
    "inserted_at": "2000-01-01T00:00:00Z",
    "ingest_secret": "00" * 32,
    "key": "eb_admin_mine",
    "kind_of_key": "admin",
    "version": 99,
    "shard": 7,
    "owner": "me",
    "epoch": 99,
    "recovery_window_ms": 1,
    "half_open_confirmation_ms": 1,
    "state": "open",
    "number": 1,
    "deleted_ms": 1,
    "breaker_count": 99,
}
"""What is not for a caller to set, beside anything that is."""
CHANGES: list[tuple[str, Any, set[str]]] = [
    ("/v1/workspaces/{workspace_id}", {"name": "n"}, {"id", "org_id", "inserted_at"}),
    ("/v1/projects/{project_id}", {"name": "n"}, {"id", "project_id", "workspace_id"}),
    (
        "/v1/projects/{project_id}/breakers/{breaker_id}",
        {"threshold": 9},
        {"id", "router_id", "recovery_window_ms", "half_open_confirmation_ms"},
    ),
    (
        "/v1/projects/{project_id}/routers/{router_id}",
        {"name": "n"},
        {"id", "created_by", "inserted_at", "breaker_count"},
    ),
    (
        "/v1/projects/{project_id}/notification-channels/{channel_id}",
        {"name": "n"},
        {"id", "project_id", "inserted_at"},
    ),
]
"""Path, change, and which of the foreign fields an answer has: these may come back without a warning."""


@pytest.mark.parametrize(("path", "change", "read"), CHANGES)
async def test_fields_that_are_not_the_callers_change_nothing(
    estate: Estate, path: str, change: Any, read: set[str]
) -> None:
    """The same request with and without them comes to the same, but for a warning about each that is never read."""
    full = path.format(**estate.ids["ours"])
    sent = _named(FOREIGN, estate.ids["theirs"]) | change
    for body in (change, sent):
        reply = await estate.ask("PATCH", full, of(estate, "admin"), body)
        assert reply.status == 200, reply
        if body is change:
            plain = reply.json, await estate.told()
            await estate.restore()
    strange = [field for field in FOREIGN if field not in read]
    after = reply.json, await estate.told()
    warnings = after[0].pop("warnings")
    assert [(each["code"], each["field"]) for each in warnings] == [("unknown_field", field) for field in strange]
    assert after == plain


# other places and spellings of a key


async def test_authorization_is_one_header_and_nothing_else(estate: Estate) -> None:
    """Of several the first counts; no query, cookie, body or override speaks for a caller."""
    user, revoked = (f"Bearer {estate.world.keys[name]}" for name in ("user", "revoked"))
    key = estate.world.keys["user"]
    path = f"/v1/projects/{estate.ids['ours']['project_id']}"
    name = "Authorization"
    for headers, status in [
        ([(name, user)], 200),
        ([(name.lower(), user.lower().replace(key.lower(), key))], 200),
        ([(name, f"  {user}  ")], 200),
        ([(name, user), (name, revoked)], 200),
        ([(name, revoked), (name, user)], 401),
        ([(name, f"{revoked}, {user}")], 401),
        ([(name, f"{user}, {revoked}")], 401),
        ([(name, key)], 401),
        ([(name, f"Bearer\t{key}")], 401),
        ([(name, f"Token {key}")], 401),
        ([(name, f"Bearer {key.upper()}")], 401),
        ([(name, f"Bearer {key[:-1]}")], 401),
        ([(name, f"Bearer {HEALTH_TOKEN}")], 401),
        ([("Proxy-Authorization", user)], 401),
        ([("X-Authorization", user)], 401),
        ([("X-Api-Key", key)], 401),
        ([("X-Forwarded-Authorization", user)], 401),
        ([("Cookie", f"Authorization={key}; api_key={key}")], 401),
    ]:
        reply = await estate.ask("GET", path, headers)
        assert reply.status == status, headers
    for query in (f"authorization={key}", f"access_token={key}", f"api_key={key}", f"key={key}"):
        assert (await estate.ask("GET", f"{path}?{query}", [])).status == 401
    reply = await estate.ask("POST", f"{path}/breakers/state:batch", [], {"authorization": user, "key": key})
    assert reply.status == 401


OVERRIDES: list[Headers] = [
    [("X-HTTP-Method-Override", "DELETE")],
    [("X-HTTP-Method", "DELETE")],
    [("X-Method-Override", "DELETE")],
    [("X-Original-URL", "/v1/admin/status")],
    [("X-Rewrite-URL", "/v1/admin/status")],
    [("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-Host", "localhost"), ("X-Real-IP", "127.0.0.1")],
    [("X-Forwarded-User", "admin"), ("X-Remote-User", "admin"), ("X-Org-Id", "o")],
]


@pytest.mark.parametrize("headers", OVERRIDES)
async def test_no_header_makes_another_request_of_one(estate: Estate, headers: Headers) -> None:
    before = await estate.snapshot()
    path = f"/v1/projects/{estate.ids['ours']['project_id']}"
    plain = await estate.ask("GET", path, of(estate, "user"))
    bent = await estate.ask("GET", path, [*of(estate, "user"), *headers])
    assert (bent.status, bent.body) == (plain.status, plain.body) == (200, plain.body)
    bent = await estate.ask("GET", f"{path}?_method=DELETE", of(estate, "user"))
    assert (bent.status, bent.body) == (200, plain.body)
    assert (await estate.ask("GET", path, headers)).status == 401
    assert (await estate.ask("GET", path, [*of(estate, "project"), *headers])).status == 403
    assert await estate.snapshot() == before


async def test_a_signed_project_asks_for_its_own_signature_whatever_the_key(estate: Estate) -> None:
    """No key stands in for it but an ingest token of its own, nor does another project's secret."""
    ids, clock = estate.ids["ours"], estate.world.clock
    path = f"/v1/projects/{ids['project_id']}"
    assert (await estate.ask("PATCH", path, of(estate, "user"), {"enable_signed_ingest": True})).status == 200
    for key in estate.world.keys:
        status = {"ingest": 202, "second_ingest": 404, "foreign_ingest": 404}.get(key, 401)
        assert (await estate.ask("POST", f"{path}/ingest", of(estate, key), [])).status == status, key
    stamp = str(clock.ms)
    for secret, status in ((estate.world.other.ingest_secret, 401), (estate.world.project.ingest_secret, 202)):
        headers = [("X-EB-Timestamp", stamp), ("X-EB-Signature", sign(secret, stamp, b"[]"))]
        assert (await estate.ask("POST", f"{path}/ingest", headers, b"[]")).status == status
