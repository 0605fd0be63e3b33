"""Large answers are told in slices, callers in turn: whoever asks for little is served between two slices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert

from api.admission.intake import Turn, Turns
from api.admission.shares import keyed
from api.context.replica import EXTENSION
from api.wire import responses, responses_accounts, responses_deliveries, telling
from api.wire.http import digest, plain_text
from api.wire.telling import PIECE_BYTES, SLICE_ITEMS, Telling
from breaker_actors.errors import Overloaded
from breaker_actors.store import tables as t
from breaker_actors.store.rows import BreakerDraft, ChannelDraft, KeyRow
from tests.contract.store_world import RULE
from tests.support.web_world import World, error_of

MANY = 4 * SLICE_ITEMS


def caller(name: str) -> Any:
    row = KeyRow(id=name, org_id=name, kind="admin", project_id=None, name=name, key_prefix="", inserted_ms=1)
    return keyed(row)


# turns


async def test_turns_go_round_callers_slice_by_slice() -> None:
    """Two of one caller and one of another: each caller has every other slice, in a round of the loop of its own."""
    turns, told, rounds = Turns(), list[str](), list[int]()

    async def work(name: str, holders: Any) -> None:
        async with Turn(turns, holders) as turn:
            for _ in range(4):
                await turn.next()
                told.append(name)
                rounds.append(now)

    tasks = [asyncio.create_task(work(*one)) for one in (("a1", caller("a")), ("a2", caller("a")), ("b", caller("b")))]
    now = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        now += 1
    assert [name[0] for name in told[2:10]] == ["a", "b"] * 4
    assert max(rounds.count(n) for n in rounds) <= 2
    async with turns.turn(caller("c")):
        pass
    assert turns._places.total == 0


@pytest.mark.parametrize("when", ["first", "later"])
async def test_who_leaves_while_waiting_holds_up_nobody(when: str) -> None:
    turns = Turns()

    async def stays() -> None:
        async with Turn(turns, caller("a")) as turn:
            await turn.next()
            if when == "later":
                await turn.next()
            await asyncio.Event().wait()

    async def slices(n: int) -> None:
        async with Turn(turns, caller("b")) as turn:
            for _ in range(n):
                await turn.next()

    async with turns.turn(caller("c")):
        task = asyncio.create_task(stays())
        await asyncio.sleep(0)
        if when == "first":
            task.cancel()
            await asyncio.wait([task])
    if when == "later":
        other = asyncio.create_task(slices(3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait_for(other, 5)
    await asyncio.wait_for(slices(3), 5)
    assert not turns._busy
    assert turns._places.total == 0


async def test_too_many_are_refused_unless_it_is_done() -> None:
    turns = Turns(waiting_max=8)
    async with turns.turn(caller("a")):
        with pytest.raises(Overloaded):
            async with Turn(turns, caller("a")) as turn:
                await turn.next()
        sure = Turn(turns, caller("a"), sure=True)
        waiting = asyncio.create_task(sure.next())
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 5)
    await sure.__aexit__()
    assert turns._places.total == 0


# bodies


class Thing(responses.Answer, kw_only=True):
    id: str
    metadata: dict[str, str]


class Holder(Thing, kw_only=True):
    things: list[Any]
    none: list[Any]


class Envelope(Holder, kw_only=True):
    holder: Holder


class Empty(responses.Answer, kw_only=True):
    stale: bool | msgspec.UnsetType = msgspec.UNSET


ThingList = responses.list_of("ThingList", "things", Thing, count=int, hash=str)


def bodies() -> list[msgspec.Struct]:
    texts = [msgspec.Raw(plain_text(Thing(id=str(i), metadata={"a": "x" * i}))) for i in range(MANY)]
    holder: dict[str, Any] = {"id": "r", "metadata": {"a": "1"}, "things": texts, "none": []}
    return [
        responses.listing(ThingList, texts, count=len(texts), hash='é"'),
        Envelope(**holder, holder=Holder(**holder)),
        responses.listing(ThingList, [], count=0, hash=""),
        Empty(),
    ]


@pytest.mark.parametrize("which", range(4))
async def test_a_body_in_pieces_is_what_the_encoder_makes(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "PIECE_BYTES", 1_000)
    body = bodies()[which]
    async with Turn(Turns(), caller("a")) as turn:
        pieces = await Telling(turn).body(body)
    assert b"".join(pieces) == msgspec.json.encode(body)
    assert len(pieces) > 1 or which > 1
    assert all(len(piece) < 2_000 for piece in pieces)


class Item(responses.Answer, kw_only=True):
    id: str
    b: int
    a: str


async def test_a_hash_is_that_of_the_whole_list() -> None:
    items = [Item(id=str(7 * i % MANY), b=i, a="x" * i) for i in range(MANY)]
    async with Turn(Turns(), caller("a")) as turn:
        texts, found = await Telling(turn).hashed(items, msgspec.structs.replace)
    assert [bytes(text) for text in texts] == list(map(plain_text, items))
    assert found == digest(sorted(items, key=lambda item: item.id))


# every list


async def fill_breakers(world: World) -> None:
    for i in range(MANY):
        draft = BreakerDraft(rule=RULE, name=f"b{i}", metadata={"a": "1"})
        await world.store.create_breaker(world.project.id, draft, 1)


async def fill_routers(world: World) -> None:
    for _ in range(MANY):
        await world.router()


async def fill_keys(world: World) -> None:
    for i in range(MANY):
        await world.store.create_key(world.project.org_id, "project", f"k{i}", 1, world.project.id)


async def fill_projects(world: World) -> None:
    for i in range(MANY):
        await world.store.create_project(world.project.org_id, world.workspace_id, f"p{i}", 1)


async def fill_workspaces(world: World) -> None:
    for i in range(MANY):
        await world.store.create_workspace(world.project.org_id, f"w{i}", f"w{i}", 1)


async def fill_channels(world: World) -> None:
    config = {"webhook_url": "https://example.org/x"} | {f"name{i}": "x" * 50 for i in range(900)}
    for _ in range(8):
        await world.store.create_channel(world.project.id, ChannelDraft(channel="slack", config=config), 1)


async def fill_audit(world: World) -> None:
    for i in range(MANY):
        await world.store.create_key(world.project.org_id, "project", f"k{i}", 1, world.project.id, by="x")


async def fill_events(world: World) -> None:
    row = await world.breaker()
    event = {
        "project_id": world.project.id, "breaker_id": row.id, "name": "b", "prev": "closed", "curr": "open",
        "reason": "", "allow_rate": 0.0, "ts_ms": 1, "rule": {}, "agg": {},
    }  # fmt: skip
    values = [event | {"shard": 0, "sequence": i + 1, "transition_seq": i + 1} for i in range(MANY)]
    await world.store._db.write(lambda c: c.execute(insert(t.events), values))


LISTS: dict[str, tuple[Callable[[World], Any], str, Any, str]] = {
    "breakers": (fill_breakers, "GET", "breakers", "breaker"),
    "breaker metadata": (fill_breakers, "GET", "breakers/metadata", "metadata"),
    "states": (fill_breakers, "POST", "breakers/state:batch", "state"),
    "routers": (fill_routers, "GET", "routers", "router"),
    "router metadata": (fill_routers, "GET", "routers/metadata", "metadata"),
    "keys": (fill_keys, "GET", "keys", "key"),
    "projects": (fill_projects, "GET", "/v1/projects", "project"),
    "workspaces": (fill_workspaces, "GET", "/v1/workspaces", "workspace"),
    "channels": (fill_channels, "GET", "notification-channels", "listed_channel"),
    "audit": (fill_audit, "GET", "audit?limit=200", "audit_entry"),
    "events": (fill_events, "GET", "events?limit=200", "event"),
}


@pytest.mark.parametrize("name", LISTS)
async def test_every_list_is_told_in_slices(world: World, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No round of the loop has more than slices of two requests that ask at once, and each item is told once."""
    fill, method, path, item = LISTS[name]
    await fill(world)
    more = {}
    if method == "POST":
        rows, _ = await world.store.list_breakers(world.project.id)
        more = {"json": {"breaker_ids": [row.id for row in rows]}}
    rounds = list[int]()
    module = next(m for m in (responses, responses_accounts, responses_deliveries) if hasattr(m, item))
    plain = getattr(module, item)

    def counted(row: Any, **more: Any) -> Any:
        rounds.append(now)
        return plain(row, **more)

    def counted_pair(row: Any, other: Any) -> Any:
        rounds.append(now)
        return plain(row, other)

    for place in (module, *_routes()):
        if getattr(place, item, None) is plain:
            monkeypatch.setattr(place, item, counted_pair if item in ("state", "audit_entry") else counted)
    now = 0
    calls = [asyncio.create_task(world.call(method, path, **more)) for _ in range(2)]
    while not all(call.done() for call in calls):
        await asyncio.sleep(0)
        now += 1
    assert [call.result().status_code for call in calls] == [200] * 2
    body = await calls[0].result().get_json()
    told = len(body["items"])
    assert len(rounds) == 2 * told >= 8
    # the first slice of each takes no turn, and two rounds of the loop, with a turn each, may fall between two looks
    most = 4 if name == "channels" else 4 * SLICE_ITEMS
    assert max(rounds.count(n) for n in set(rounds)) <= most
    assert await calls[1].result().get_json() == body


def _routes() -> list[Any]:
    from api.routes import audit, deliveries

    return [audit, deliveries]


async def test_a_large_answer_goes_out_whole(world: World) -> None:
    """More than a piece, as one JSON text of the length it says; HEAD has nothing."""
    for i in range(8):
        draft = BreakerDraft(rule=RULE, name=f"b{i}", actions={"a": "x" * 60_000})
        await world.store.create_breaker(world.project.id, draft, 1)
    response = await world.call("GET", "breakers")
    data = await response.get_data()
    assert len(data) > 2 * PIECE_BYTES
    assert int(response.headers["Content-Length"]) == len(data)
    assert json.loads(data)["count"] == 8
    head = await world.call("HEAD", "breakers")
    assert head.status_code == 200
    assert await head.get_data() == b""


@pytest.mark.parametrize("path", ["notification-channels", "keys", "audit"])
async def test_room_is_asked_for_before_anything_is_read(world: World, path: str) -> None:
    """Where answers have no room, the store is not asked for the list."""
    await fill_channels(world)
    outlet = world.app.extensions[EXTENSION].intake.outlet
    outlet.patience_s = 0.0
    outlet.bytes.add((), world.settings.bodies_in_flight_bytes)
    asked = list[str]()
    for name in ("list_channels", "list_keys", "audit"):
        _spy(world, name, asked)
    refused = await error_of(await world.call("GET", path), 429, "rate_limited")
    assert refused["details"]["limit"] == "bytes of answers"
    assert not asked


def _spy(world: World, name: str, asked: list[str]) -> None:
    plain = getattr(world.store, name)

    async def noted(*given: Any, **more: Any) -> Any:
        asked.append(name)
        return await plain(*given, **more)

    setattr(world.store, name, noted)


async def test_few_items_take_no_turn(world: World) -> None:
    await world.breaker()
    async with world.app.extensions[EXTENSION].intake.turns.turn(caller("a")):
        for path in ("breakers", "breakers/metadata", "keys", "status"):
            async with asyncio.timeout(5):
                assert (await world.call("GET", path)).status_code == 200
