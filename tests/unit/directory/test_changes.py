"""Changes of configuration on their way into the logs: who waits for its own does not wait for everybody's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import decode_breaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.directory import config_dispatch
from breaker_actors.errors import Unavailable
from breaker_actors.messages import ChangeRow, RouterRef
from breaker_actors.store.rows import BreakerDraft, BreakerRow, RouterDraft
from breaker_actors.transport.peers import DIRECTORY, DirectoryPeer
from tests.support.cluster import FAST_RULE, Service, service, until

MANY = 200


async def write(s: Service, project_id: str, count: int) -> list[int]:
    """Breakers of a project that nobody has put into their routers' logs; the ids of their changes."""
    change_ids: list[int] = []
    for n in range(count):
        draft = BreakerDraft(rule=parse_rule(FAST_RULE), name=f"b{n}")
        change_ids += (await s.store.create_breaker(project_id, draft, s.clock.now_ms()))[1]
    return change_ids


async def edit(s: Service, row: BreakerRow) -> int:
    """A change that nobody has put into its router's log; its id."""
    _, (change_id,) = await s.store.update_breaker(
        s.project.id, row.id, lambda r: replace(r, metadata={"x": "1"}), s.clock.now_ms()
    )
    return change_id


async def waiting(s: Service, project_id: str) -> int:
    return sum(change.project_id == project_id for change in await s.store.pending_changes(10_000))


class HeldUp:
    """Rounds of settling wait until all is written, and from the fourth one on for leave: one may begin by itself at
    any time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written, self.goes_on, self.seen = asyncio.Event(), asyncio.Event(), 0
        apply = config_dispatch.ConfigDispatch._apply_batch

        async def held(dispatch: config_dispatch.ConfigDispatch, changes: list[ChangeRow]) -> list[ChangeRow]:
            await self.written.wait()
            self.seen += len(changes)
            if self.seen > 30:
                await self.goes_on.wait()
            return await apply(dispatch, changes)

        monkeypatch.setattr(config_dispatch.ConfigDispatch, "_apply_batch", held)


async def test_who_waits_for_one_change_does_not_wait_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered after the round that settled it; the many are settled in the end, and their caller told so."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 10)
    async with service(tmp_path) as s:
        now = s.clock.now_ms()
        workspace_id = s.project.workspace_id
        org_id = (await s.store.list_orgs())[0].id
        other = await s.store.create_project(org_id, workspace_id, "other", now)
        rounds = HeldUp(monkeypatch)
        many = await write(s, s.project.id, MANY)
        (one,) = await write(s, other.id, 1)
        rounds.written.set()
        await asyncio.wait_for(s.gateway.configured(other.id, [one]), 60)
        assert await s.store.unsettled([one]) == []
        assert await waiting(s, s.project.id) > MANY // 2
        rounds.goes_on.set()
        await s.gateway.configured(s.project.id, many)
        assert await waiting(s, s.project.id) == 0


async def test_a_change_that_a_round_settled_before_anybody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller need not wait for the rounds that follow."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 10)
    async with service(tmp_path) as s:
        org_id = (await s.store.list_orgs())[0].id
        other = await s.store.create_project(org_id, s.project.workspace_id, "other", s.clock.now_ms())
        rounds = HeldUp(monkeypatch)
        many = await write(s, s.project.id, MANY)
        (one,) = await write(s, other.id, 1)
        rounds.written.set()
        all_told = asyncio.create_task(s.gateway.configured(s.project.id, many))
        async with asyncio.timeout(60):
            while await s.store.unsettled([one]) or rounds.seen <= 30:
                await asyncio.sleep(0)
        await asyncio.wait_for(s.gateway.configured(other.id, [one]), 5)
        assert await s.store.count_pending(2 * MANY) >= MANY - 30
        rounds.goes_on.set()
        await all_told


async def test_full_rounds_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they took, up to a bound; others are followed by none."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 10)
    rests, full = list[float](), list[int]()

    async def rest(time_s: float) -> None:
        rests.append(time_s)

    monkeypatch.setattr(config_dispatch, "pause", rest)
    apply = config_dispatch.ConfigDispatch._apply_batch

    async def slow(dispatch: config_dispatch.ConfigDispatch, changes: list[ChangeRow]) -> list[ChangeRow]:
        if len(changes) == 10:
            await asyncio.sleep(0.02 if full else 0.3)
            full.append(1)
        return await apply(dispatch, changes)

    async with service(tmp_path) as s:
        monkeypatch.setattr(config_dispatch.ConfigDispatch, "_apply_batch", slow)
        await s.gateway.configured(s.project.id, await write(s, s.project.id, 35))
    assert len(rests) == len(full) >= 2
    assert rests[0] == config_dispatch.ROUND_REST_MAX_S
    assert rests[1] >= 0.02


async def test_a_breaker_that_is_brought_to_life_again_keeps_its_owner(tmp_path: Path) -> None:
    """It has left the router that it was made with, whose log was recovered: another one tells of its creation."""
    async with service(tmp_path) as s:
        change_ids = await write(s, s.project.id, 1)
        (row,) = (await s.store.list_breakers(s.project.id))[0]
        (made_with,) = row.router_ids
        draft = RouterDraft(name="r", breaker_ids=(row.id,))
        change_ids += (await s.store.create_router(s.project.id, draft, s.clock.now_ms()))[1]
        change_ids += await s.store.unlink_breaker(s.project.id, made_with, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, change_ids)
        await s.store.router_entries(s.project.id, made_with, s.clock.now_ms())
        again = [change for change in await s.store.pending_changes(10) if change.project_id == s.project.id]
        assert [decode_breaker(payload).again for change in again for _, payload in change.entries] == [True]
        await s.gateway.configured(s.project.id, [change.id for change in again])
        assert not (await s.gateway.states(s.project.id, [row.id]))[row.id].stale
        assert list(await DirectoryPeer(s.net).locate("breaker", [row.id])) == [row.id]


@pytest.mark.parametrize(("count", "most"), [(7, 500), (3, 2)])
async def test_changes_of_damaged_logs_hold_up_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, most: int
) -> None:
    """More of them wait than a round takes, and they come first; past the bound others' go a round at a time."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 5)
    monkeypatch.setattr(config_dispatch, "DAMAGED_MAX", most)
    async with service(tmp_path) as s:
        await s.gateway.configured(s.project.id, await write(s, s.project.id, count + 7))
        rows, _ = await s.store.list_breakers(s.project.id)
        damaged, whole = rows[:count], rows[count:]
        for row in damaged:
            s.net.actors["router-0"]._owned.note_damage(row.router_ids[0], "a record is missing", 1)
        stuck = [await edit(s, row) for row in damaged]
        told = await s.gateway.configured(s.project.id, [await edit(s, row) for row in whole])
        assert told is (most == 500)

        async def settled() -> bool:
            return [change.id for change in await s.store.pending_changes(100)] == stuck

        await until(settled)
        assert not await s.gateway.configured(s.project.id, stuck)
        for row in damaged:
            s.net.actors["router-0"]._owned.by_id[row.router_ids[0]].damage = ""
        assert await s.gateway.configured(s.project.id, stuck)


@pytest.mark.parametrize("is_told", [True, False])
async def test_who_holds_the_first_life_of_a_breaker_lets_go_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """Its end stood in no log that this owner read, as it hung on no router; nor may the call arrive that says so."""
    async with service(tmp_path, breaker_actors=2) as s:
        call = s.net.call

        async def deaf(actor: str, method: str, *args: Any) -> Any:
            nonlocal is_told
            if method == "drop" and not is_told:
                is_told = True
                raise Unavailable("nobody hears it")
            return await call(actor, method, *args)

        s.net.call = deaf  # type: ignore[method-assign]
        directory = s.net.actors[DIRECTORY]
        monkeypatch.setattr(directory._placer, "choose", lambda kind: f"{kind}-0")
        draft = BreakerDraft(rule=parse_rule(FAST_RULE), name="b", id=str(uuid4()))
        first, change_ids = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, change_ids)
        (held,) = (await s.gateway.states(s.project.id, [first.id])).values()
        (router,) = first.router_ids
        change_ids = await s.store.unlink_breaker(s.project.id, router, first.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, change_ids)
        hosts = {name: actor._hosted for name, actor in s.net.actors.items() if name.startswith("breaker-")}

        async def rests() -> bool:
            hosted = hosts["breaker-0"][first.id]
            return not hosted.routers and not hosted.dirty

        await until(rests)
        assert await s.store.delete_breaker(s.project.id, first.id, s.clock.now_ms()) == []
        monkeypatch.setattr(directory._placer, "choose", lambda kind: f"{kind}-{int(kind == 'breaker')}")
        _, change_ids = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, change_ids)

        async def is_new() -> bool:
            (reading,) = (await s.gateway.states(s.project.id, [first.id])).values()
            return reading.view.state_since_ms > held.view.state_since_ms

        await until(is_new)
        assert first.id not in hosts["breaker-0"]


async def test_an_owner_that_was_away_hears_of_links_when_it_is_back_with_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new Directory hears from actors after it has looked at what its predecessor may not have told them."""
    up, told, asked = {"breaker-0"}, [], []
    owners = {"here": "breaker-0", "there": "breaker-1"}

    class Peer:
        def __init__(self, net: object, name: str) -> None:
            self.name = name

        async def link(self, links: list[tuple[str, RouterRef]]) -> None:
            told.append((self.name, [breaker_id for breaker_id, _ in links]))

    class Store:
        async def link_refs(self, breaker_ids: list[str], router_ids: object) -> list[tuple[str, RouterRef]]:
            asked.extend(breaker_ids)
            return [(breaker_id, RouterRef("r", "router-0", "slot", 1)) for breaker_id in breaker_ids]

    async def placed(kind: str, things: object) -> None: ...
    async def nobody(owners: object) -> None: ...

    monkeypatch.setattr(config_dispatch, "BreakerPeer", Peer)
    placer = SimpleNamespace(
        assignments={"breaker": SimpleNamespace(owner=owners.get)},
        end_former=nobody,
        membership=SimpleNamespace(is_up=up.__contains__),
        tasks=None,
    )
    supervision: Any = SimpleNamespace(place_new=placed)
    dispatch = config_dispatch.ConfigDispatch(Store(), Any, placer, supervision, Any)  # type: ignore[arg-type]
    dispatch.load(["here", "there"])
    for _ in range(2):
        await dispatch._start_breakers()
    assert told == [("breaker-0", ["here"])]
    up.add("breaker-1")
    for _ in range(2):
        await dispatch._start_breakers()
    assert told == [("breaker-0", ["here"]), ("breaker-1", ["there"])]
    assert asked == ["here", "there"], "nothing is looked up for who is away"
