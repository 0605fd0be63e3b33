"""Routers and what comes to them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from typing import Any

import pytest

from api.console.snippets import Target, address_for_programs, go_text, js_text, snippets
from breaker_actors.messages import AppendResult
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in

HOSTILE = "<script>alert(1)</script>'\"`$(id){{7*7}}"


async def send(world: World, router_id: str, **more: Any) -> int:
    body = [{"router_id": router_id, "metric": "latency", "value": 1, "ts_ms": world.clock.now_ms()} | more]
    return (await world.call("POST", "ingest", key=None, json=body)).status_code


async def audited(world: World) -> list[str]:
    return [row.action for row in await world.store.audit(world.project.id, 50)]


async def test_routers_with_their_breakers_and_samples(world: World, ann: Visitor) -> None:
    row = await world.breaker("checkout")
    lonely = await world.router()
    text = await ann.page("routers")
    assert ">checkout</a>" in text
    assert "none: nobody hears its samples" in text
    assert "nothing came to it yet" in text
    assert await send(world, row.router_ids[0]) == 202
    world.clock.ms += 5_000
    text = await ann.page("routers", part=True)
    assert "5 s ago" in text
    assert f"/routers/{lonely.id}" in text
    assert "0.2" in text


async def test_refused_samples_are_told_by_reason_with_an_example(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    assert await send(world, row.router_ids[0], value="NaN", metric=HOSTILE) == 422
    assert await send(world, row.router_ids[0], ts_ms=1) == 422
    text = await ann.page("routers")
    assert "the value is not a finite number" in text
    assert "the time is too old" in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "Requests that were refused as a whole" not in text
    world.clock.ms += 86_400_001
    assert "the time is too old" not in await (await sign_in(world, "admin")).page("routers")


async def test_requests_that_are_refused_as_a_whole(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    assert (await world.call("POST", "ingest", key=None, data=b"{no json")).status_code == 400
    world.gateway.word = "log_full"
    assert await send(world, row.router_ids[0]) == 429
    text = await ann.page("routers")
    assert "rate_limited" in text
    assert "bad_request" in text
    assert "The sample log has reached its bound" in text


async def test_metrics_that_nobody_hears(world: World, ann: Visitor) -> None:
    row = await world.breaker("a")
    world.gateway.outcome = AppendResult("ok", 1, unheard=(HOSTILE, "latency"), heard=("latency",))
    assert await send(world, row.router_ids[0], metric=HOSTILE) == 202
    text = await ann.page("routers")
    assert text.count('<th scope="row">&lt;script&gt;') == 1
    assert '<th scope="row">latency' not in text  # somebody hears it by now
    assert "<script>alert" not in text


async def test_a_router_is_made_once_though_asked_twice(world: World, ann: Visitor) -> None:
    for _ in range(2):
        reply = await ann.post("routers", name="edge", mode="canary", once="k" * 16)
        assert reply.headers["hx-redirect"].startswith(f"/console/p/{world.project.id}/routers/")
    (made,) = [row for row in await world.store.list_routers(world.project.id) if row.name == "edge"]
    assert made.mode == "canary"
    assert "edge" in await ann.page("routers")
    assert (await audited(world)).count("router.create") == 1


async def test_disable_and_undo(world: World, ann: Visitor) -> None:
    row = await world.router()
    said = (await ann.post(f"routers/{row.id}/enabled", enabled="false")).body.decode()
    assert "is disabled" in said
    assert 'name="enabled" value="true"' in said
    assert ">disabled</span>" in await ann.page("routers")
    await ann.post(f"routers/{row.id}/enabled", enabled="true")
    (now,) = await world.store.list_routers(world.project.id)
    assert now.enabled


async def test_link_and_unlink(world: World, ann: Visitor) -> None:
    breaker, router = await world.breaker("a"), await world.router()
    assert "a hears this router" in (await ann.post(f"routers/{router.id}/link", breaker="a")).body.decode()
    assert breaker.id in await ann.page(f"routers/{router.id}")
    said = (await ann.post(f"routers/{router.id}/unlink", breaker=breaker.id)).body.decode()
    assert f'name="breaker" value="{breaker.id}"' in said
    assert (await ann.post(f"routers/{router.id}/unlink", breaker=breaker.id)).status == 404
    assert (await ann.post(f"routers/{router.id}/link", breaker="zzz")).status == 404
    await world.breaker("a")
    await ann.get("routers")
    world.app.extensions["breakers"].indexes.forget(world.project.id)
    assert "give its id" in (await ann.post(f"routers/{router.id}/link", breaker="a")).body.decode()


async def test_delete_and_the_refusal_of_it(world: World, ann: Visitor) -> None:
    breaker, router = await world.breaker("a"), await world.router()
    reply = await ann.post(f"routers/{breaker.router_ids[0]}/delete")
    assert reply.status == 409
    assert "unlink them first" in reply.body.decode()
    assert (await ann.post(f"routers/{router.id}/delete")).headers["hx-redirect"].endswith("/routers")
    assert (await ann.get(f"routers/{router.id}")).status == 404


async def test_signatures_and_their_undo(world: World, ann: Visitor) -> None:
    said = (await ann.post("signatures", signed="true")).body.decode()
    assert 'name="signed" value="false"' in said
    project = await world.store.get_project(world.project.id)
    assert project is not None
    assert project.enable_signed_ingest
    row = await world.breaker("a")
    text = await ann.page(f"routers/{row.router_ids[0]}")
    assert "X-EB-Signature" in text
    assert project.ingest_secret not in text
    assert project.ingest_secret not in await ann.page("routers")
    assert await send(world, row.router_ids[0]) == 401
    assert "unauthorized" in await ann.page("routers")


async def test_the_new_secret_is_shown_once(world: World, ann: Visitor) -> None:
    reply = await ann.post("secret", once="r" * 16, overlap_ms="0")
    project = await world.store.get_project(world.project.id)
    assert project is not None
    assert project.ingest_secret in reply.body.decode()
    assert project.ingest_secret != world.project.ingest_secret
    assert reply.headers["cache-control"] == "no-store"
    assert project.ingest_secret not in await ann.page("routers")
    again = await ann.post("secret", once="r" * 16, overlap_ms="0")
    assert project.ingest_secret in again.body.decode()  # the same request, sent twice
    assert "counts until" in (await ann.post("secret", once="s" * 16)).body.decode()
    assert (await audited(world)).count("project.rotate_secret") == 2


@pytest.mark.parametrize(
    "path", ["routers", "routers/{id}", "routers/{id}/enabled", "routers/{id}/delete", "routers/{id}/link",
             "routers/{id}/unlink", "signatures", "secret"],
)  # fmt: skip
async def test_a_project_key_is_refused(world: World, guest: Visitor, path: str) -> None:
    row = await world.router()
    path = path.replace("{id}", row.id)
    if path in ("routers", f"routers/{row.id}"):
        assert (await guest.get(path)).status == 403
    else:
        assert (await guest.post(path, enabled="false", breaker=row.id)).status == 403
    assert await world.store.list_routers(world.project.id) == [row]


async def test_a_change_needs_the_sessions_proof(world: World, ann: Visitor) -> None:
    row = await world.router()
    assert (await ann.post(f"routers/{row.id}/delete", csrf="wrong")).status == 403
    assert await world.store.list_routers(world.project.id) == [row]


async def test_a_page_has_fifty_routers(world: World, ann: Visitor) -> None:
    for _ in range(51):
        await world.router()
    assert (await ann.page("routers")).count('<tr id="r-') == 50
    assert (await ann.page("routers?page=2")).count('<tr id="r-') == 1
    assert "No router is like that" in await ann.page("routers?q=zzz")


# snippets

ODD = 'it\'s "odd" \\ `x` ${y} é 😀\n</pre>'


def target(signed: bool, metric: str = ODD) -> Target:
    return Target("http://127.0.0.1:1", "11111111-1111-4111-8111-111111111111", "r-1", metric, ODD, signed)


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("http://0123456789abcdef.localhost:7117/", "http://127.0.0.1:7117"),
        ("http://localhost:7117/", "http://localhost:7117"),
        ("http://b.example/", "http://b.example"),
        ("https://a.localhost:7117/", "https://a.localhost:7117"),
    ],
)
def test_programs_are_not_sent_to_a_sessions_own_name(page: str, told: str) -> None:
    assert address_for_programs(page) == told


@pytest.mark.parametrize("signed", [False, True])
def test_python_snippets_are_python(signed: bool) -> None:
    for one in snippets(target(signed)):
        if one.id in ("python", "sdk"):
            tree = ast.parse(one.text)
            assert ODD in [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert ("BREAKERS_INGEST_SECRET" in one.text) == signed


@pytest.mark.parametrize("signed", [False, True])
def test_the_shell_reads_curls_snippet_as_it_was_meant(signed: bool) -> None:
    (one,) = [one for one in snippets(target(signed)) if one.id == "curl"]
    fake = 'export BREAKERS_INGEST_SECRET=00\ncurl() { for a in "$@"; do printf "%s\\0" "$a"; done; }\n'
    said = subprocess.run(["bash", "-c", fake + one.text], capture_output=True, check=True).stdout.decode()
    body = said.split("\0")[-2]
    assert __import__("json").loads(body)[0]["metric"] == ODD
    assert ("X-EB-Signature: v1=" in said) == signed


@pytest.mark.parametrize("signed", [False, True])
def test_a_loop_of_curls_snippet_sends_no_sample_twice(signed: bool) -> None:
    """In a plain sh, within a second: what names a request is another one each time."""
    (one,) = [one for one in snippets(target(signed)) if one.id == "curl"]
    fake = 'export BREAKERS_INGEST_SECRET=00\ncurl() { for a in "$@"; do printf "%s\\0" "$a"; done; }\n'
    loop = f"{fake}for i in 1 2 3; do\n{one.text}done\n"
    said = subprocess.run(["sh", "-c", loop], capture_output=True, check=True).stdout.decode().split("\0")
    name = "X-EB-Signature: v1=" if signed else "Idempotency-Key: "
    keys = [text.removeprefix(name) for text in said if text.startswith(name)]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {64 if signed else 32}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_javascript_reads_its_text() -> None:
    said = subprocess.run(["node", "-e", f"process.stdout.write({js_text(ODD)})"], capture_output=True, check=True)
    assert said.stdout.decode() == ODD


def test_go_has_no_halves_of_characters() -> None:
    assert go_text('a"b\\😀\n\ud800é') == '"a\\"b\\\\\\U0001f600\\n\\u00e9"'
    text = next(one.text for one in snippets(target(True)) if one.id == "go")
    imports = re.findall(r'^\t"([a-z/0-9]+)"$', text, re.MULTILINE)
    assert imports == sorted(imports)
    assert {"crypto/hmac", "os"} <= set(imports)
