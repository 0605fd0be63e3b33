"""Keys on the console: made and shown once, revoked for good, and whoever was signed in with one is out."""

from __future__ import annotations

import re

from tests.support.asgi import Reply
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor, sign_in


def led_to(reply: Reply) -> str:
    assert reply.status == 200, reply
    return reply.headers["hx-redirect"]


async def project_key(world: World) -> str:
    """The id of the project's only key."""
    (row,) = await world.store.list_keys(world.project.org_id, world.project.id)
    return row.id


async def test_keys_are_listed_without_themselves(world: World, ann: Visitor) -> None:
    text = await ann.page("keys")
    assert world.keys["project"][:8] in text
    assert all(key not in text for key in world.keys.values())
    assert "never" in text or " ago" in text


async def test_a_new_key_is_shown_once(world: World, ann: Visitor) -> None:
    reply = await ann.post("keys", name="check<b>out</b>", once="1" * 32)
    text = reply.body.decode()
    (key,) = re.findall(r'id="new-key" tabindex="0">(\S+)</pre>', text)
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["hx-trigger"] == "acted"
    assert "shown only here and only once" in text
    assert "<b>" not in text
    assert (await world.call("GET", "breakers/status", key)).status_code != 401
    listed = await ann.page("keys")
    assert key not in listed
    assert "check&lt;b&gt;out&lt;/b&gt;" in listed
    assert key not in await ann.page("audit")


async def test_an_ingest_token_is_made_told_apart_and_revoked(world: World, ann: Visitor) -> None:
    assert '<option value="ingest">post samples</option>' in await ann.page("keys")
    text = (await ann.post("keys", name="prometheus", kind="ingest", once="1" * 32)).body.decode()
    (token,) = re.findall(r'id="new-key" tabindex="0">(eb_ingest_\w+)</pre>', text)
    assert "The ingest token prometheus was made" in text
    listed = await ann.page("keys")
    assert token[:14] in listed
    assert token not in listed
    assert re.findall(r'data-label="May">([^<]*)<', listed) == ["post samples", "read states"]
    row = await world.store.find_key(token)
    assert row is not None
    assert "get 401 and count nowhere" in await ann.page(f"keys/{row.id}/revoke")
    led_to(await ann.post(f"keys/{row.id}/revoke", name="prometheus"))
    assert await world.store.find_key(token) is None
    assert (await ann.post("keys", name="x", kind="admin", once="2" * 32)).status == 422


async def test_a_form_that_is_sent_twice_makes_one_key_and_the_next_another(world: World, ann: Visitor) -> None:
    first = await ann.post("keys", name="a", once="1" * 32)
    again = await ann.post("keys", name="a", once="1" * 32)
    assert re.findall(r"eb_\w+", first.body.decode()) == re.findall(r"eb_\w+", again.body.decode())
    (once,) = re.findall(r'name="once" value="(\w+)" hx-swap-oob', first.body.decode())
    await ann.post("keys", name="a", once=once)
    assert len(await world.store.list_keys(world.project.org_id, world.project.id)) == 3


async def test_a_key_is_revoked_by_its_name(world: World, ann: Visitor) -> None:
    key_id = await project_key(world)
    page = await ann.page(f"keys/{key_id}/revoke")
    assert "can't be undone" in page.replace("&#39;", "'")
    refused = await ann.post(f"keys/{key_id}/revoke", name="q")
    assert refused.status == 422
    assert 'id="at-name" hx-swap-oob="true">is not the name of this key' in refused.body.decode()
    assert await world.store.find_key(world.keys["project"]) is not None
    assert led_to(await ann.post(f"keys/{key_id}/revoke", name=" p ")) == ann.path("keys") + "?said=revoked"
    assert await world.store.find_key(world.keys["project"]) is None
    assert "signed out" in await ann.page("keys?said=revoked")
    assert (await ann.get(f"keys/{key_id}/revoke")).status == 404


async def test_who_is_signed_in_with_a_revoked_key_is_out_within_a_second(
    world: World, ann: Visitor, guest: Visitor
) -> None:
    """On all of its sessions: the stream of an open page says so, the next page leads to the door."""
    key = await world.store.find_key(world.keys["project"])
    assert key is not None
    now_ms = world.clock.now_ms()
    await world.store.create_session(key.id, "another", now_ms, now_ms + 3_600_000)
    other = Visitor(world, "another")
    await guest.page()
    await other.page()
    client = world.app.test_client()
    cookie = {"Cookie": f"breakers_session={guest.token}"}
    async with client.request(guest.path("live"), headers=cookie) as stream:
        await stream.send_complete()
        assert b"event: on" in await stream.receive()
        led_to(await ann.post(f"keys/{key.id}/revoke", name="p"))
        heard = b""
        while b"event: over" not in heard:
            heard += await stream.receive()
    for visitor in (guest, other):
        reply = await visitor.get()
        assert (reply.status, reply.headers["location"].partition("?")[0]) == (303, "/console/sign-in")
    assert (await ann.get()).status == 200


async def test_a_project_key_sees_no_keys_and_makes_none(world: World, guest: Visitor) -> None:
    assert (await guest.get("keys")).status == 403
    assert (await guest.post("keys", name="x")).status == 403
    assert (await guest.post(f"keys/{await project_key(world)}/revoke", name="p")).status == 403
    assert (await (await sign_in(world, "stranger")).get("keys")).status == 404
    assert await world.store.find_key(world.keys["project"]) is not None


async def test_many_keys_are_paged(world: World, ann: Visitor) -> None:
    for number in range(55):
        await world.store.create_key(world.project.org_id, "project", f"k{number:02}", number, world.project.id)
    first, second = await ann.page("keys"), await ann.page("keys?page=2")
    assert "Page 1 of 2" in first
    assert ("k54" in first, "k00" in first, "k00" in second) == (True, False, True)
