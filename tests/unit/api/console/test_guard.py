"""Every page of the console, walked: without a session, with another project's ids, without the proof of a form, and
with a key that may only look. A new page joins by being there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from werkzeug.routing import Rule

from api.app import create_app
from api.console.guard import csrf_of
from breaker_actors.clock import SystemClock
from breaker_actors.settings import Settings
from tests.support.asgi import Headers, Reply, ask
from tests.support.estate import Estate
from tests.support.fake_gateway import FakeGateway
from tests.support.web_world import store_at
from tests.unit.api.app.matrix import ABSENT

GUARDED = ("console.", "console_live.")
OPEN = {"/", "/console/sign-in", "/console/enter", "/console/static/<name>"}
"""Pages for who is not signed in."""
OUT = "/console/sign-out"
FOR_ALL_KEYS = {"/console", "/console/p/<project_id>", "/console/p/<project_id>/live"}
"""Reads that a project key has as well; screens that show states alone join here."""
STATES_ALONE = {"/console/p/<project_id>/b/<breaker_id>"}


def console_rules() -> list[Rule]:
    from pathlib import Path

    app = create_app(FakeGateway(store_at(Path("/nowhere"))), Settings(), SystemClock())
    return [rule for rule in app.url_map.iter_rules() if rule.endpoint.startswith("console")]


RULES = console_rules()
PAGES = [(rule, method) for rule in RULES for method in sorted(rule.methods or ()) if method in ("GET", "POST")]
GUARDED_PAGES = [pair for pair in PAGES if pair[0].endpoint.startswith(GUARDED)]


def told(pair: Any) -> str:
    return f"{pair[1]} {pair[0].rule}"


def filled(rule: Rule, ids: dict[str, str]) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: ids.get(found[1], ABSENT), rule.rule)


async def session(estate: Estate, kind: str) -> str:
    store, clock = estate.world.store, estate.world.clock
    key = await store.find_key(estate.world.keys[kind])
    assert key is not None
    token = f"token-of-{kind}"
    if await store.find_session(token, clock.now_ms()) is None:
        await store.create_session(key.id, token, clock.now_ms(), clock.now_ms() + 3_600_000)
    return token


async def send(estate: Estate, method: str, path: str, token: str, csrf: str | None, headers: Headers = ()) -> Reply:  # type: ignore[assignment]
    sent = [("Cookie", f"breakers_session={token}")] if token else []
    body = f"csrf={csrf_of(token) if csrf is None else csrf}".encode() if method == "POST" else None
    return await ask(estate.world.app, method, path, [*sent, *headers], body)


def test_all_pages_are_guarded_but_the_door() -> None:
    unguarded = {rule.rule for rule, _ in PAGES if not rule.endpoint.startswith(GUARDED)}
    assert unguarded == OPEN


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", GUARDED_PAGES, ids=told)
@pytest.mark.parametrize("token", ["", "forged"])
async def test_nobody_is_let_in_without_a_session(estate: Estate, pair: tuple[Rule, str], token: str) -> None:
    rule, method = pair
    before = await estate.snapshot()
    reply = await send(estate, method, filled(rule, estate.ids["ours"]), token, None)
    if method == "GET":
        assert (reply.status, reply.headers["location"].partition("?")[0]) == (303, "/console/sign-in")
    else:
        assert reply.status == 401
    assert await estate.snapshot() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [pair for pair in GUARDED_PAGES if "<project_id>" in pair[0].rule], ids=told)
@pytest.mark.parametrize("whose", ["stranger", "foreign_admin", "second"])
async def test_another_projects_pages_are_not_there(estate: Estate, pair: tuple[Rule, str], whose: str) -> None:
    rule, method = pair
    token = await session(estate, whose)
    before = await estate.snapshot()
    reply = await send(estate, method, filled(rule, estate.ids["ours"]), token, None)
    assert reply.status in (403, 404), reply
    assert await estate.snapshot() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [pair for pair in GUARDED_PAGES if pair[1] == "POST"], ids=told)
@pytest.mark.parametrize("csrf", ["", "0" * 64])
async def test_a_form_without_its_proof_changes_nothing(estate: Estate, pair: tuple[Rule, str], csrf: str) -> None:
    token, before = await session(estate, "admin"), await estate.snapshot()
    reply = await send(estate, "POST", filled(pair[0], estate.ids["ours"]), token, csrf)
    assert reply.status == 403
    assert await estate.snapshot() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [pair for pair in PAGES if pair[1] == "POST"], ids=told)
@pytest.mark.parametrize(
    "headers",
    [[("Origin", "https://evil.example")], [("Sec-Fetch-Site", "cross-site")], [("Sec-Fetch-Site", "same-site")]],
)
async def test_a_form_of_another_site_changes_nothing(estate: Estate, pair: tuple[Rule, str], headers: Headers) -> None:
    token, before = await session(estate, "admin"), await estate.snapshot()
    reply = await send(estate, "POST", filled(pair[0], estate.ids["ours"]), token, None, headers)
    assert reply.status == 403
    assert await estate.snapshot() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [p for p in GUARDED_PAGES if p[1] == "POST" and p[0].rule != OUT], ids=told)
@pytest.mark.parametrize("kind", ["project", "reader"])
async def test_a_key_that_reads_changes_nothing(estate: Estate, pair: tuple[Rule, str], kind: str) -> None:
    token, before = await session(estate, kind), await estate.snapshot()
    reply = await send(estate, "POST", filled(pair[0], estate.ids["ours"]), token, None)
    assert reply.status in (403, 404, 422)
    assert await estate.snapshot() == before


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [pair for pair in GUARDED_PAGES if pair[1] == "GET"], ids=told)
@pytest.mark.parametrize("kind", ["project", "reader"])
async def test_a_key_of_a_project_sees_states_alone(estate: Estate, pair: tuple[Rule, str], kind: str) -> None:
    rule, _ = pair
    reply = await send(estate, "GET", filled(rule, estate.ids["ours"]), await session(estate, kind), None)
    let_in = rule.rule in FOR_ALL_KEYS | STATES_ALONE
    assert reply.status in ((200, 303) if let_in else (403,)), reply


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("pair", [pair for pair in PAGES if pair[1] == "GET"], ids=told)
async def test_pages_keep_to_themselves(estate: Estate, pair: tuple[Rule, str]) -> None:
    """Nothing of another host, nothing inline, in nobody's frame, kept by no cache."""
    rule, _ = pair
    ids = estate.ids["ours"] | {"name": "console.css"}
    token = await session(estate, "admin")
    reply = await send(estate, "GET", filled(rule, ids), token, None, [("Accept", "text/html")])
    assert reply.status in (200, 303), reply
    assert reply.headers["x-content-type-options"] == "nosniff"
    if "<name>" in rule.rule:
        return
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["cache-control"] == "no-store"
    text = reply.body.decode()
    assert not re.search(r"""\son\w+=|\sstyle=|<style|javascript:|<script(?![^>]*\ssrc=)""", text)
    assert not re.search(r"""(?:src|href|action|hx-\w+)=["'](?:https?:)?//""", text)
