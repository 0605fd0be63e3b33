"""What meters say of a service at work: late samples, timers that fire late, and what waits in each lane."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import journal_name
from tests.support.cluster import Service, service, until

NEVER_MS = 3_600_000
QUIET: dict[str, Any] = {"cooldown_ms": NEVER_MS, "eval_interval_ms": NEVER_MS}
"""Rules with which a breaker that has tripped stays as it is."""


class Gate:
    """A call that waits until `go` is set; `begun`: somebody has called."""

    def __init__(self, call: Callable[..., Awaitable[Any]]) -> None:
        self._call = call
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, *args: Any) -> Any:
        self.begun.set()
        await self.go.wait()
        return await self._call(*args)


def meters_of(s: Service, actor: str) -> Meters:
    found: Meters = s.net.actors[actor].meters
    found.refresh()
    return found


def waiting(s: Service, actor: str, lane: str) -> float:
    return meters_of(s, actor).value("breakers_lane_waiting", lane=lane)


async def until_applied(s: Service, actor: str, samples: int) -> Meters:
    async def applied() -> bool:
        return meters_of(s, actor).value("breakers_samples_applied_total") == samples

    await until(applied)
    return meters_of(s, actor)


async def test_a_sample_older_than_its_window_counts_as_late_once(tmp_path: Path) -> None:
    """However often somebody looks, and not again where its breaker is taken over."""
    async with service(tmp_path, breaker_actors=1, checkpoint_interval_ms=NEVER_MS) as s:
        row = await s.breaker(window_ms=60_000)
        (router_id,) = row.router_ids
        await s.send(router_id, [1.0] * 3)
        assert (await until_applied(s, "breaker-0", 3)).value("breakers_samples_late_total") == 0
        await s.send(router_id, [1.0], ts_ms=s.clock.now_ms() - 70_000)
        assert (await until_applied(s, "breaker-0", 4)).value("breakers_samples_late_total") == 1
        await s.send(router_id, [1.0, 1.0], ts_ms=s.clock.now_ms() - 70_000)
        assert (await until_applied(s, "breaker-0", 6)).value("breakers_samples_late_total") == 3
        await s.net.actors["breaker-0"].checkpoint()
        left = await s.net.kill("breaker-0")
        s.net.revive("breaker", "breaker-0")
        await s.fresh(row.id)
        assert meters_of(s, "breaker-0").value("breakers_samples_late_total") == 0
        assert left.meters.value("breakers_samples_late_total") == 3


async def test_the_end_of_a_cooldown_is_one_timer_with_its_lag(tmp_path: Path) -> None:
    """Its router's watermark is kept back for a while: so late it is at least."""
    kept_ms = 300
    async with service(tmp_path, breaker_actors=1, owner_timeout_ms=10_000) as s:
        row = await s.breaker(**(QUIET | {"cooldown_ms": 200}))
        router = s.net.actors["router-0"]
        router.advance_watermark = advance = Gate(router.advance_watermark)
        await s.send(row.router_ids[0], [900.0] * 3)
        await s.in_state(row.id, "open")
        (opened,) = await s.events(row.id)
        due_ms = opened.ts_ms + 200

        async def overdue() -> bool:
            return advance.begun.is_set() and s.clock.now_ms() >= due_ms + kept_ms

        await until(overdue)
        assert meters_of(s, "breaker-0").value("breakers_timer_lag_seconds") == 0
        advance.go.set()
        await s.in_state(row.id, "half_open")
        told_ms = s.clock.now_ms()
        meters = meters_of(s, "breaker-0")
        assert meters.value("breakers_timer_lag_seconds") == 1
        assert (await s.events(row.id))[-1].ts_ms == due_ms
        lag_s = meters.histograms["breakers_timer_lag_seconds",].sum
        assert kept_ms <= round(1000 * lag_s) <= told_ms - due_ms


async def test_samples_that_wait_for_the_log_show_in_the_lanes_to_it(tmp_path: Path) -> None:
    """One call of each replica goes to the router, where those wait that came after the one being written."""
    async with service(tmp_path, breaker_actors=1) as s:
        (router_id,) = (await s.breaker()).router_ids
        replica = Meters("api", "replica")
        s.gateway, other = ActorGateway(s.store, s.net, s.clock, s.cluster.settings, replica), s.gateway
        s.cluster.log.append = append = Gate(s.cluster.log.append)  # type: ignore[method-assign, assignment]
        sent = [asyncio.create_task(s.send(router_id, [1.0]))]
        await append.begun.wait()
        sent += [asyncio.create_task(s.send(router_id, [1.0] * n)) for n in (2, 3)]

        async def figures(*expected: float) -> bool:
            replica.refresh()
            return (replica.value("breakers_lane_waiting", lane="ingest"), waiting(s, "router-0", "log")) == expected

        await until(lambda: figures(5, 0))
        s.gateway = other
        sent.append(asyncio.create_task(s.send(router_id, [1.0] * 4)))
        await until(lambda: figures(5, 4))
        append.go.set()
        assert {outcome.status for outcome in await asyncio.gather(*sent)} == {"ok"}
        assert await figures(0, 0)
        await until_applied(s, "breaker-0", 10)


async def test_samples_that_wait_for_their_breaker_show_in_the_lane_to_it(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        (router_id,) = (await s.breaker()).router_ids
        owner = s.net.actors["breaker-0"]
        owner.deliver = deliver = Gate(owner.deliver)
        await s.send(router_id, [1.0])
        await deliver.begun.wait()
        for n in (2, 3):
            await s.send(router_id, [1.0] * n)
        assert waiting(s, "router-0", "delivery") == 5
        deliver.go.set()
        await until_applied(s, "breaker-0", 6)
        assert waiting(s, "router-0", "delivery") == 0


async def test_commits_that_wait_for_the_database_show_in_the_lanes_to_it(tmp_path: Path) -> None:
    """One call of each BreakerActor goes to the Journal, where those wait that came after the one being stored."""
    async with service(tmp_path, breaker_actors=2, checkpoint_interval_ms=NEVER_MS) as s:
        rows = [await s.breaker(**QUIET) for _ in range(6)]
        owners = {row.id: await s.owner(row.id) for row in rows}
        mine = [row for row in rows if owners[row.id] == "breaker-0"]
        others = [row for row in rows if owners[row.id] == "breaker-1"]
        s.store.commit = commit = Gate(s.store.commit)  # type: ignore[method-assign, assignment]

        async def trips(*expected: float) -> bool:
            lanes = [("breaker-0", "commit"), ("breaker-1", "commit"), (journal_name(0), "journal")]
            return tuple(waiting(s, *lane) for lane in lanes) == expected

        await s.send(mine[0].router_ids[0], [900.0])
        await commit.begun.wait()
        await s.send(others[0].router_ids[0], [900.0])
        await until(lambda: trips(0, 0, 1))
        for row in (*mine[1:], others[1]):
            await s.send(row.router_ids[0], [900.0])
        await until(lambda: trips(2, 1, 1))
        commit.go.set()
        for row in (*mine, *others[:2]):
            await s.in_state(row.id, "open")
        assert await trips(0, 0, 0)
