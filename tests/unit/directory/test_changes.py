"""Changes of configuration on their way into the logs: who waits for its own does not wait for everybody's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from breaker_actors.core.log_entries import decode_breaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.directory import config_dispatch
from breaker_actors.messages import ChangeRow
from breaker_actors.store.rows import BreakerDraft, RouterDraft
from breaker_actors.transport.peers import DirectoryPeer
from tests.support.cluster import FAST_RULE, Service, service

MANY = 200


async def write(s: Service, project_id: str, count: int) -> list[int]:
    """Breakers of a project that nobody has put into their routers' logs; the ids of their changes."""
    change_ids: list[int] = []
    for n in range(count):
        draft = BreakerDraft(rule=parse_rule(FAST_RULE), name=f"b{n}")
        change_ids += (await s.store.create_breaker(project_id, draft, s.clock.now_ms()))[1]
    return change_ids


async def waiting(s: Service, project_id: str) -> int:
    return sum(change.project_id == project_id for change in await s.store.pending_changes(10_000))


async def test_who_waits_for_one_change_does_not_wait_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered after the round that settled it; the many are settled in the end, and their caller told so."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 10)
    async with service(tmp_path) as s:
        now = s.clock.now_ms()
        workspace_id = s.project.workspace_id
        org_id = (await s.store.list_orgs())[0].id
        other = await s.store.create_project(org_id, workspace_id, "other", now)
        many = await write(s, s.project.id, MANY)
        (one,) = await write(s, other.id, 1)
        await s.gateway.configured(other.id, [one])
        assert await s.store.unsettled([one]) == []
        assert await waiting(s, s.project.id) > MANY // 2
        await s.gateway.configured(s.project.id, many)
        assert await waiting(s, s.project.id) == 0


async def test_a_change_that_a_round_settled_before_anybody_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller need not wait for the rounds that follow."""
    monkeypatch.setattr(config_dispatch, "CHANGES_MAX", 10)
    apply, goes_on, seen = config_dispatch.ConfigDispatch._apply_batch, asyncio.Event(), 0

    async def held_up(self: config_dispatch.ConfigDispatch, changes: list[ChangeRow]) -> list[ChangeRow]:
        """From the fourth round on."""
        nonlocal seen
        seen += len(changes)
        if seen > 30:
            await goes_on.wait()
        return await apply(self, changes)

    async with service(tmp_path) as s:
        org_id = (await s.store.list_orgs())[0].id
        other = await s.store.create_project(org_id, s.project.workspace_id, "other", s.clock.now_ms())
        many = await write(s, s.project.id, MANY)
        (one,) = await write(s, other.id, 1)
        monkeypatch.setattr(config_dispatch.ConfigDispatch, "_apply_batch", held_up)
        rounds = asyncio.create_task(s.gateway.configured(s.project.id, many))
        while await s.store.unsettled([one]) or seen <= 30:
            await asyncio.sleep(0)
        await asyncio.wait_for(s.gateway.configured(other.id, [one]), 5)
        assert await s.store.count_pending(2 * MANY) >= MANY - 30
        goes_on.set()
        await rounds


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
