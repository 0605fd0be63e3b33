"""Routers are given to an owner that takes some of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from breaker_actors.directory import placement
from breaker_actors.directory.placement import Placer
from breaker_actors.errors import Unavailable
from breaker_actors.messages import RouterAssignment
from tests.support.virtual_time import clock_of_loop

OWNER = "router-0"
IDS = ["a", "b", "c"]


class Owner:
    """A RouterActor that takes these of what it is asked to take, call by call; None: its log does not answer."""

    def __init__(self, *takes: str | None) -> None:
        self.takes = list(takes)
        self.asked: list[str] = []

    async def call(self, name: str, method: str, assignments: Sequence[RouterAssignment]) -> list[str]:
        assert (name, method) == (OWNER, "acquire")
        self.asked.append("".join(a.router_id for a in assignments))
        takes = self.takes.pop(0)
        if takes is None:
            raise Unavailable("the sample log does not answer")
        return [a.router_id for a in assignments if a.router_id in takes]


async def given(owner: Owner) -> Placer:
    async def router_assignments(ids: Sequence[str]) -> list[RouterAssignment]:
        return [RouterAssignment(router_id=i, project_id="p", epoch=1, log_slot="s") for i in ids]

    store: Any = SimpleNamespace(router_assignments=router_assignments)
    net: Any = owner
    placer = Placer(store, net, clock_of_loop(), lambda: asyncio.sleep(0, {}), lambda: None)
    placer.membership.came_up("router", OWNER, "x")
    for router_id in IDS:
        placer.assignments["router"].assign(router_id, OWNER, 1)
    await placer.give("router", OWNER, IDS)
    return placer


async def test_what_one_call_does_not_take_the_next_does() -> None:
    owner = Owner("a", "bc")
    assert (await given(owner)).membership.is_up(OWNER)
    assert owner.asked == ["abc", "bc"]


async def test_what_has_a_higher_epoch_is_asked_for_once_more() -> None:
    owner = Owner("ab", "")
    assert (await given(owner)).membership.is_up(OWNER)
    assert owner.asked == ["abc", "c"]


async def test_a_failure_loses_no_owner_that_took_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is given to it later; where it takes none at all it counts as lost."""
    monkeypatch.setattr(placement, "GIVE_AGAIN_S", 0.01)
    owner = Owner("b", None, "a", None, None)
    placer = await given(owner)
    assert placer.membership.is_up(OWNER)
    async with asyncio.timeout(10):
        while placer.membership.is_up(OWNER):
            await asyncio.sleep(0.01)
    assert owner.asked == ["abc", "ac", "ac", "c", "c"]
    await placer.tasks.stop()
