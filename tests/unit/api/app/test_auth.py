"""Keys, rights, signatures: who may do what, and in which order it is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from api import auth
from breaker_actors.errors import Forbidden, NotFound, Unauthorized
from breaker_actors.store.rows import KeyRow
from tests.support.web_world import World, error_of, sign

SECRET = "0f" * 32
NIL = "00000000-0000-0000-0000-000000000000"


def basic(pair: bytes) -> str:
    return f"Basic {base64.b64encode(pair).decode()}"


def key(kind: Any) -> KeyRow:
    return KeyRow(id="k", org_id="o", project_id="p", kind=kind, name="n", key_prefix="eb", inserted_ms=0)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, ""),
        ("", ""),
        ("Bearer ", ""),
        ("Bearer", ""),
        ("Bearer null", ""),
        ("Basic abc", ""),
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
    ],
)
def test_the_key_is_what_follows_bearer(header: str | None, found: str) -> None:
    assert auth.bearer(header) == found


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, ""),
        ("Bearer abc", "abc"),
        ("Bearer null", ""),
        ("Basic", ""),
        ("Basic abc", ""),
        ("Basic ÿ", ""),
        (basic(b"no colon"), ""),
        (basic(b"user:"), ""),
        (basic(b"\xff:abc"), ""),
        (basic(b":abc"), "abc"),
        (basic(b"any:abc"), "abc"),
        (basic(b"any:abc\n"), "abc"),
        (basic(b"any:a:b"), "a:b"),
        (basic(b"any:abc").replace("Basic", " bASIC  "), "abc"),
        ("Digest abc", ""),
    ],
)
def test_a_sender_shows_a_bearer_or_a_password(header: str | None, found: str) -> None:
    assert auth.sender_key(header) == found
    assert auth.ingest_token(header) == ""


def test_a_token_is_told_from_other_keys_by_its_beginning() -> None:
    for header in ("Bearer eb_ingest_0", basic(b"eb_pk_0:eb_ingest_0")):
        assert auth.ingest_token(header) == "eb_ingest_0"
    for header in ("Bearer eb_pk_0", "eb_ingest_0", basic(b"eb_ingest_0:")):
        assert auth.ingest_token(header) == ""


@pytest.mark.parametrize(
    ("kind", "rights"),
    [
        ("user", {"manage", "read_rules", "read_runtime"}),
        ("admin", {"manage", "read_rules", "read_runtime", "edit_metadata"}),
        ("reader", {"read_rules", "read_runtime"}),
        ("project", {"read_runtime"}),
        ("ingest", {"ingest"}),
    ],
)
def test_every_kind_has_exactly_its_rights(kind: Any, rights: set[str]) -> None:
    for right in ("manage", "read_rules", "read_runtime", "edit_metadata", "ingest"):
        if right in rights:
            assert auth.permit(key(kind), right).kind == kind
        else:
            with pytest.raises(Forbidden):
                auth.permit(key(kind), right)


@pytest.mark.parametrize(
    ("kind", "right", "kinds"),
    [
        ("project", "manage", "user, admin"),
        ("user", "edit_metadata", "admin"),
        ("ingest", "read_runtime", "user, admin, project, reader"),
        ("admin", "ingest", "ingest"),
    ],
)
def test_a_key_without_the_right_is_told_which_kinds_have_it(kind: Any, right: Any, kinds: str) -> None:
    with pytest.raises(Forbidden) as refused:
        auth.permit(key(kind), right)
    assert str(refused.value).startswith("The key is valid but lacks the right for this operation.")
    assert str(refused.value).endswith(f" Its kind is {kind}; keys that may: {kinds}.")


def test_an_unknown_key_is_refused_before_its_rights_are_looked_at() -> None:
    with pytest.raises(Unauthorized):
        auth.permit(None, "manage")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer null", "Token x"])
def test_a_missing_and_a_wrong_key_are_told_apart(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="The API key is missing"):
        auth.permit(None, "manage", header)
    for wrong in ("Bearer eb_user_0", basic(b"any:eb_user_0")):
        with pytest.raises(Unauthorized, match="There is no such API key"):
            auth.permit(None, "manage", wrong)


@pytest.mark.parametrize("text", ["", "x", "any", NIL[:-1], NIL + "0", "{" + NIL + "}", NIL.replace("-", "")])
def test_a_malformed_uuid_in_a_path_names_nothing(text: str) -> None:
    with pytest.raises(NotFound):
        auth.path_uuid(text)


def test_a_uuid_is_spelled_in_lower_case() -> None:
    assert auth.path_uuid("ABCDEF00-0000-0000-0000-000000000000").startswith("abcdef00")


@pytest.mark.parametrize(
    ("timestamp", "signature", "good"),
    [
        ("1000000", sign(SECRET, "1000000", b"body"), True),
        ("1300000", sign(SECRET, "1300000", b"body"), True),
        ("1300001", sign(SECRET, "1300001", b"body"), False),
        ("699999", sign(SECRET, "699999", b"body"), False),
        ("1000000", sign(SECRET, "1000000", b"other"), False),
        ("1000000", sign("00" * 32, "1000000", b"body"), False),
        ("1000000", sign(SECRET, "1000000", b"body").upper(), False),
        ("1000000", sign(SECRET, "1000000", b"body").removeprefix("v1="), False),
        ("1000000", "v1=é", False),
        ("1000000", "", False),
        ("1000000", None, False),
        (None, sign(SECRET, "1000000", b"body"), False),
        ("-1", sign(SECRET, "-1", b"body"), False),
        ("1e6", sign(SECRET, "1e6", b"body"), False),
        ("9" * 400, sign(SECRET, "9" * 400, b"body"), False),
    ],
)
def test_a_signature_counts_over_timestamp_and_wire_bytes(
    timestamp: str | None, signature: str | None, good: bool
) -> None:
    if good:
        auth.check_signature((SECRET,), timestamp, signature, b"body", 1_000_000, 300_000)
    else:
        with pytest.raises(Unauthorized):
            auth.check_signature((SECRET,), timestamp, signature, b"body", 1_000_000, 300_000)


@pytest.mark.parametrize("bad", [None, "", "null", "eb_user_nobody", "schlüssel"])
async def test_a_missing_or_unknown_key_is_401_whatever_the_project(world: World, bad: str | None) -> None:
    for path in ("/v1/projects", "/v1/projects/any", f"/v1/projects/{NIL}", "breakers", "events", "status"):
        await error_of(await world.call("GET", path, bad), 401, "unauthorized")


@pytest.mark.parametrize(
    "project", ["any", NIL, "00000000-0000-0000-0000-00000000000g", "%00", "a%2Fb", "ÿ", "x" * 5000]
)
async def test_a_project_that_is_not_there_is_404(world: World, project: str) -> None:
    for rest in ("", "/breakers", "/status"):
        await error_of(await world.call("GET", f"/v1/projects/{project}{rest}"), 404, "not_found")


async def test_a_project_of_another_organisation_is_404(world: World) -> None:
    for who in ("user", "admin", "project"):
        path = f"/v1/projects/{world.other.id}/status"
        await error_of(await world.call("GET", path, who), 404, "not_found")
    await error_of(await world.call("GET", world.path, "stranger"), 404, "not_found")


async def test_a_project_key_reads_the_runtime_and_nothing_else(world: World) -> None:
    row = await world.breaker()
    assert (await world.call("GET", "status", "project")).status_code == 200
    assert (await world.call("GET", f"breakers/{row.id}/state", "project")).status_code == 200
    batch = await world.call("POST", "breakers/state:batch", "project", json={"breaker_ids": [row.id]})
    assert batch.status_code == 200
    for method, path in [
        ("GET", "/v1/projects"),
        ("POST", "/v1/projects"),
        ("GET", world.path),
        ("PATCH", world.path),
        ("POST", "ingest_secret/rotate"),
        ("GET", "breakers"),
        ("POST", "breakers"),
        ("GET", f"breakers/{row.id}"),
        ("DELETE", f"breakers/{row.id}"),
        ("GET", "routers"),
        ("POST", "routers"),
        ("GET", "events"),
    ]:
        await error_of(await world.call(method, path, "project"), 403, "forbidden")


async def test_right_comes_before_reach(world: World) -> None:
    """403 for a key without the right, even where the project isn't the key's own."""
    await error_of(await world.call("GET", f"/v1/projects/{world.other.id}", "project"), 403, "forbidden")


HEALTH = [("GET", "health"), ("GET", "healthz"), ("HEAD", "healthz"), ("GET", "readyz"), ("HEAD", "readyz")]


@pytest.mark.parametrize(("method", "name"), HEALTH)
async def test_health_needs_no_key(world: World, method: str, name: str) -> None:
    response = await world.call(method, f"/api/{name}", None)
    assert response.status_code == 200
    body = await response.get_data()
    assert (b'"status"' in body) == (method == "GET")


async def test_readyz_is_503_while_a_part_is_away(world: World) -> None:
    world.gateway.down = True
    response = await world.call("GET", "/api/readyz", None)
    await error_of(response, 503, "not_ready")
    assert "Retry-After" not in response.headers
    assert (await world.call("HEAD", "/api/readyz", None)).status_code == 503
    assert (await world.call("GET", "/api/healthz", None)).status_code == 200
