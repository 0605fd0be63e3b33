"""What a replica says of RouterActors that don't answer their pings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.errors import Unavailable
from breaker_actors.gateway import reachability
from breaker_actors.gateway.reachability import MISSED_MAX, ReachabilityHeartbeat
from breaker_actors.messages import ActorPlacement, Overview
from tests.support.cluster import service, until

ONE, TWO = "router-0 did not answer 10 pings or more", "router-0 and 1 more RouterActors did not answer 10 pings"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "REACHABILITY_INTERVAL_MS", 20)


class Net:
    """RouterActors by name with how many routers each has; those in `away` don't answer."""

    def __init__(self, holds: dict[str, int]) -> None:
        self.holds = holds
        self.away: set[str] = set()
        self.unanswered: dict[str, int] = dict.fromkeys(holds, 0)
        self.shut = False

    async def is_open(self) -> bool:
        return not self.shut

    async def call(self, actor: str, method: str, *_: Any) -> Any:
        if method == "overview":
            return Overview(budgets={}, actors=[_placed(name, holds) for name, holds in self.holds.items()])
        if actor not in self.away:
            return "" if method == "ping" else await asyncio.sleep(1)
        if method == "ping":
            self.unanswered[actor] += 1
        raise Unavailable("gone")


def _placed(name: str, holds: int) -> ActorPlacement:
    return ActorPlacement(name=name, kind="router", state="up", since_ms=0, restarts=0, incarnation="a", holds=holds)


@asynccontextmanager
async def beating(**holds: int) -> AsyncIterator[tuple[Net, ReachabilityHeartbeat]]:
    net = Net({name.replace("_", "-"): count for name, count in holds.items()})
    heartbeat = ReachabilityHeartbeat(net, net.is_open)  # type: ignore[arg-type]
    heartbeat.start()
    yield net, heartbeat
    await heartbeat.stop()


async def missed(net: Net, count: int, *names: str) -> None:
    """Returns when these have missed so many pings more."""
    upto = {name: net.unanswered[name] + count for name in names}
    while any(net.unanswered[name] < least for name, least in upto.items()):
        await asyncio.sleep(0.002)


async def test_that_none_answers_which_has_routers_is_a_fault_until_one_does() -> None:
    async with beating(router_0=2, router_1=1, router_2=0) as (net, heartbeat):
        net.away = {"router-0", "router-1"}
        await missed(net, MISSED_MAX // 2, *net.away)
        assert (heartbeat.fault(), "did not answer" in await heartbeat.notice()) == ("", False)
        await missed(net, MISSED_MAX // 2 + 2, *net.away)
        assert heartbeat.fault().startswith(TWO)
        net.away = {"router-0"}
        while heartbeat.fault():
            await asyncio.sleep(0.01)
        assert (await heartbeat.notice()).startswith(f"{ONE}, samples of their routers are refused")
        net.away = set()
        while await heartbeat.notice():
            await asyncio.sleep(0.01)


async def test_one_without_routers_is_not_missed() -> None:
    async with beating(router_0=0, router_1=1) as (net, heartbeat):
        net.away = {"router-0"}
        await missed(net, MISSED_MAX + 2, "router-0")
        assert (heartbeat.fault(), await heartbeat.notice()) == ("", "")
        net.holds["router-1"] = 0
        net.away = {"router-0", "router-1"}
        await missed(net, MISSED_MAX + 2, *net.away)
        assert heartbeat.fault() == ""


async def test_a_successor_that_is_up_in_time_is_not_told_of() -> None:
    async with beating(router_0=1) as (net, heartbeat):
        for _ in range(3):
            net.away = {"router-0"}
            await missed(net, MISSED_MAX // 2, "router-0")
            net.away = set()
            await asyncio.sleep(0.2)
            assert heartbeat.fault() == ""


async def test_what_was_missed_before_the_door_was_shut_counts_no_more() -> None:
    async with beating(router_0=1) as (net, heartbeat):
        net.away = {"router-0"}
        await missed(net, MISSED_MAX + 2, "router-0")
        net.shut = True
        while heartbeat.fault():
            await asyncio.sleep(0.01)


async def test_a_service_whose_only_router_actor_stays_away_is_not_ready(tmp_path: Path) -> None:
    """Though its Directory, which had nothing to tell it, believes that it is up."""
    async with service(tmp_path) as s:
        await s.breaker()
        assert await s.refusal() == ""
        await s.net.kill("router-0")
        assert (await until(s.refusal, 10)).startswith(f"samples can't be stored: {ONE}")
        assert {one.name: one.state for one in (await s.gateway.status()).actors}["router-0"] == "away"
        s.net.revive("router", "router-0")

        async def ready() -> bool:
            return await s.refusal() == ""

        await until(ready, 10)
