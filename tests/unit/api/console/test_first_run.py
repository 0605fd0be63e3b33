"""From no breaker to the first trip and back."""

from __future__ import annotations

import re

from breaker_actors.core.log_entries import decode_samples
from tests.support.fake_gateway import view
from tests.support.web_world import World
from tests.unit.api.console.conftest import Visitor
from tests.unit.api.console.test_timeline import outages, write


async def made(ann: Visitor) -> tuple[str, str]:
    """The page of a new demo breaker, and its id."""
    reply = await ann.post("first-run", once="o" * 16)
    path = reply.headers["hx-redirect"]
    return path, path.rpartition("=")[2]


def done(text: str) -> list[bool]:
    return [word.strip() == "done" for word in re.findall(r'<li class="(\w*)"><strong>', text)]


async def test_the_overview_of_no_breakers_offers_it(world: World, ann: Visitor) -> None:
    text = await ann.page()
    assert f'hx-post="/console/p/{world.project.id}/first-run"' in text
    assert f'href="/console/p/{world.project.id}/new"' in text
    await world.breaker("a")
    world.app.extensions["breakers"].indexes.forget(world.project.id)
    assert "first-run" not in await ann.page()


async def test_who_may_only_look_is_told_so(world: World, guest: Visitor) -> None:
    text = await guest.page()
    assert "a user or admin key makes breakers" in text
    assert "<form hx-post" not in text
    assert (await guest.post("first-run", once="x" * 16)).status == 403
    row = await world.breaker("a")
    assert (await guest.get(f"first-run?breaker={row.id}")).status == 403
    assert (await guest.post("first-run/samples", breaker=row.id)).status == 403


async def test_one_breaker_though_asked_twice(world: World, ann: Visitor) -> None:
    assert await made(ann) == await made(ann)
    (row,) = (await world.store.list_breakers(world.project.id))[0]
    assert row.rule.kind == "error_rate"
    assert row.metadata == {"made_by": "first-run"}


async def test_steps_turn_green_one_by_one(world: World, ann: Visitor) -> None:
    path, id_ = await made(ann)
    world.gateway.views[id_] = view(sample_count=0)
    assert done(await ann.page(path)) == [True, False, False, False]
    assert (await ann.post("first-run/samples", breaker=id_, kind="healthy")).status == 200
    assert done(await ann.page(path)) == [True, True, False, False]
    world.gateway.views[id_] = view(state="open")
    text = await ann.page(path, part=True)
    assert done(text) == [True, True, True, False]
    assert 'data-stage="recover"' in text
    world.gateway.views[id_] = view()
    await write(world, id_, *outages(1))
    text = await ann.page(path)
    assert done(text) == [True] * 4
    assert "/channels" in text
    assert "/docs" in text


async def test_test_samples_go_through_the_api(world: World, ann: Visitor) -> None:
    _, id_ = await made(ann)
    for kind, n in (("healthy", 10), ("failing", 20)):
        said = (await ann.post("first-run/samples", breaker=id_, kind=kind)).body.decode()
        assert f"Sent {n} {kind} samples" in said
    oks = [decode_samples(part.payload).batch.ok.tolist() for part in world.gateway.parts]
    assert oks == [[True] * 10, [False] * 20]


async def test_they_are_signed_where_the_project_asks_for_it(world: World, ann: Visitor) -> None:
    _, id_ = await made(ann)
    await ann.post("signatures", signed="true")
    reply = await ann.post("first-run/samples", breaker=id_, kind="failing")
    assert reply.status == 200
    assert len(world.gateway.parts) == 1
    project = await world.store.get_project(world.project.id)
    assert project is not None
    assert project.ingest_secret not in reply.body.decode()


async def test_other_breakers_get_none(world: World, ann: Visitor) -> None:
    row = await world.breaker("<b>real</b>")
    assert (await ann.post("first-run/samples", breaker=row.id, kind="failing")).status == 422
    assert (await ann.post("first-run/delete", breaker=row.id)).status == 422
    assert world.gateway.parts == []
    text = await ann.page(f"first-run?breaker={row.id}")
    assert "Send test samples" not in text.replace("Send test samples below", "")
    assert "<b>real</b>" not in text
    assert (await ann.get("first-run?breaker=zzz")).status == 404
    assert (await ann.get("first-run")).headers["location"] == f"/console/p/{world.project.id}"


async def test_it_goes_again(world: World, ann: Visitor) -> None:
    _, id_ = await made(ann)
    reply = await ann.post("first-run/delete", breaker=id_)
    assert reply.headers["hx-redirect"] == f"/console/p/{world.project.id}"
    assert (await world.store.list_breakers(world.project.id))[0] == []
