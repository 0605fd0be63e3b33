"""Signing in with a key or a one-time link, and out again."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from api.middleware.rate_limits import SIGN_INS_BURST
from tests.support.asgi import Reply, ask
from tests.support.web_world import World, soon
from tests.unit.api.console.conftest import HOUR_MS, Visitor, sign_in


async def send(world: World, path: str, **fields: str) -> Reply:
    return await ask(world.app, "POST", path, [], urlencode(fields).encode())


def cookie(reply: Reply) -> tuple[str, str]:
    value, _, rest = reply.headers["set-cookie"].partition(";")
    return value.partition("=")[2], rest


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/console/none", 404), ("GET", "/console/p/x/y/z/w", 404), ("POST", "/console/p/x", 405)],
)
async def test_what_is_no_page_is_told_as_one_to_browsers(world: World, method: str, path: str, status: int) -> None:
    reply = await ask(world.app, method, path, [("Accept", "text/html,*/*")], b"")
    assert (reply.status, reply.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert 'href="/console"' in reply.body.decode()
    assert "default-src 'self'" in reply.headers["content-security-policy"]
    assert ("allow" in reply.headers) == (status == 405)
    program = await ask(world.app, method, path, [("Accept", "application/json")], b"")
    assert (program.status, program.headers["content-type"]) == (status, "application/json")
    elsewhere = await ask(world.app, "GET", "/v1/none", [("Accept", "text/html")], None)
    assert elsewhere.headers["content-type"] == "application/json"


async def test_a_key_becomes_a_session(world: World) -> None:
    reply = await send(world, "/console/sign-in", key=f" {world.keys['user']}\n", to="/console/p/x?state=open")
    assert (reply.status, reply.headers["location"]) == (303, "/console/p/x?state=open")
    token, rest = cookie(reply)
    assert all(word in rest for word in ("HttpOnly", "SameSite=Strict", "Path=/console", "Max-Age=43200"))
    assert world.keys["user"] not in str(reply)
    assert "Breakers of shop" in await Visitor(world, token).page()


@pytest.mark.parametrize("key", ["", "eb_user_" + "0" * 64, "' OR 1=1"])
async def test_what_is_no_key_opens_nothing(world: World, key: str) -> None:
    reply = await send(world, "/console/sign-in", key=key)
    assert reply.status == 401
    assert "set-cookie" not in reply.headers
    assert "no key of this service" in reply.body.decode()


@pytest.mark.parametrize(
    "to",
    [
        *("https://evil.example/", "//evil.example", "/v1/projects", "/console\\@evil.example", "x"),
        *("\x01/console", "/console/\n//x", "/console\t//x", "/console/\x7f", "/console/\u2028x", "///console/"),
    ],
)
async def test_nobody_is_led_elsewhere(world: World, to: str) -> None:
    reply = await send(world, "/console/sign-in", key=world.keys["user"], to=to)
    assert (reply.status, reply.headers["location"]) == (303, "/console")


async def test_sign_ins_of_a_key_have_a_rate_of_their_own(world: World) -> None:
    replies = [await send(world, "/console/sign-in", key=world.keys["project"]) for _ in range(SIGN_INS_BURST + 20)]
    assert {reply.status for reply in replies[:SIGN_INS_BURST]} == {303}
    assert replies[-1].status == 429
    assert "More than 2 sign-ins a second with this key" in replies[-1].body.decode()
    assert "set-cookie" not in replies[-1].headers
    assert (await send(world, "/console/sign-in", key=world.keys["user"])).status == 303


async def test_an_ingest_token_opens_no_session(world: World) -> None:
    _, token = await world.store.create_key(world.project.org_id, "ingest", "i", 1, world.project.id)
    reply = await send(world, "/console/sign-in", key=token)
    assert reply.status == 403
    assert "An ingest token sends samples" in reply.body.decode()
    assert "set-cookie" not in reply.headers


async def test_a_link_opens_one_session(world: World) -> None:
    key = await world.store.find_key(world.keys["admin"])
    assert key is not None
    now_ms = world.clock.now_ms()
    await world.store.create_link(key.id, "link", now_ms, now_ms + HOUR_MS)
    reply = await send(world, "/console/enter", link="http://127.0.0.1:7117/console/enter#link")
    assert (reply.status, reply.headers["location"]) == (303, "/console")
    assert (await Visitor(world, cookie(reply)[0]).get("/console")).status == 303
    again = await send(world, "/console/enter", link="link")
    assert again.status == 401
    assert "used already" in again.body.decode()


async def test_who_signs_out_is_out(world: World, ann: Visitor) -> None:
    await ann.page()
    reply = await ann.post("/console/sign-out")
    assert (reply.status, reply.headers["location"]) == (303, "/console/sign-in")
    assert cookie(reply)[0] == ""
    assert (await ann.get()).status == 303


async def test_a_session_ends_by_itself_and_with_its_key(world: World, ann: Visitor) -> None:
    admin = await sign_in(world, "admin")
    await admin.page()
    key = await world.store.find_key(world.keys["admin"])
    assert key is not None
    await world.store.revoke_key(key.org_id, key.id, world.clock.now_ms())
    await world.gateway.announce("keys", [""])
    await soon(lambda: not world.app.extensions["breakers"].feed.caches.knows_session(admin.token))
    assert (await admin.get()).status == 303
    assert (await ann.get()).status == 200
    world.clock.ms += HOUR_MS
    assert (await ann.get()).status == 303


async def test_a_page_that_is_asked_for_leads_back_after_signing_in(world: World) -> None:
    reply = await ask(world.app, "GET", "/console/p/x?state=open", [])
    assert reply.headers["location"] == "/console/sign-in?to=/console/p/x%3Fstate%3Dopen"


async def test_a_link_from_elsewhere_is_asked_for_again_by_this_site(world: World) -> None:
    """A strict cookie does not come with it."""
    reply = await ask(world.app, "GET", '/console/p/x?a="><b>', [("Sec-Fetch-Site", "cross-site")])
    assert reply.status == 401, "HAProxy takes nobody for known by it"
    assert 'http-equiv="refresh"' in reply.body.decode()
    assert "<b>" not in reply.body.decode()


async def test_browsers_are_led_to_the_console_and_programs_are_not(world: World) -> None:
    page = await ask(world.app, "GET", "/", [("Accept", "text/html,*/*")])
    assert (page.status, page.headers["location"]) == (303, "/console")
    program = await ask(world.app, "GET", "/", [("Accept", "*/*")])
    assert (program.status, program.code) == (404, "not_found")


@pytest.mark.parametrize("bad", ["http://[", "//[x", "http://%5B"])
async def test_an_address_that_is_none_is_no_bug(world: World, bad: str) -> None:
    """It says what is wrong, and writes no line into the log for each request of somebody without a key."""
    reply = await ask(world.app, "GET", f"/console/sign-in?{urlencode({'to': bad})}", [], None)
    assert reply.status == 200
    reply = await ask(world.app, "POST", "/console/sign-in", [("Origin", bad)], b"key=x")
    assert reply.status == 403
    assert (await send(world, "/console/sign-in", key="x", to=bad)).status == 401


@pytest.mark.parametrize("path", ["/console/sign-in", "/console/enter"])
async def test_a_form_has_so_many_fields(world: World, path: str) -> None:
    reply = await ask(world.app, "POST", path, [], b"&".join([b"a=1"] * 1_100))
    assert reply.status == 422
    assert "at most 1000 fields" in reply.body.decode()
