"""Routers with many breakers: who takes a record is counted, and others go on while it is handed on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from breaker_actors.core.counters import CounterPoint, encode_points
from breaker_actors.core.log_entries import GAP, Link, Mode, RouterView, encode_samples
from breaker_actors.messages import REACHABILITY_INTERVAL_MS, AppendResult, ChangeRow, Delivery, Part, RouterAssignment
from breaker_actors.router.delivery import CALL_ROWS_MAX, DeliveryLane, Subscription
from breaker_actors.router.fanout import TAKERS_AT_ONCE
from breaker_actors.router.group import OwnedRouter
from breaker_actors.router.host import CHANGES_BYTES, RouterHost, _slices
from breaker_actors.router.outage import SLICE_LINKS, OwedGaps
from breaker_actors.router.owned import TAKERS_A_ROW
from breaker_actors.settings import Settings
from breaker_actors.transport.peers import BreakerPeer
from breaker_actors.wal.base import Append, RouterHead
from tests.support.cluster import service

T_MS = 1_800_000_000_000
LINKS = 1_000


class Log:
    """Takes everything; a group is one entry."""

    def __init__(self) -> None:
        self.groups: list[list[Append]] = []

    async def append(self, slot: str, appends: Sequence[Append]) -> list[bool]:
        self.groups.append(list(appends))
        return [True] * len(appends)


class Net:
    """Takes deliveries."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        self.deliveries.append(args[0])
        return []

    def spawn(self, kind: Any, name: str) -> None:
        raise AssertionError


class Stands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ms = T_MS

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class World:
    """A RouterActor without an actor: `wide` routers with LINKS breakers each, of an organisation with a project for
    each, and a neighbour's with one."""

    def __init__(self, wide: int, mode: Mode = "static", settings: Settings | None = None) -> None:
        self.log, self.net, self.clock = Log(), Net(), Stands()
        log: Any = self.log
        self.host = RouterHost("router-0", "i", log, self.net, self.clock, settings or Settings())
        self.host._outages.wrote(T_MS)
        for n in range(wide):
            self.own(f"wide-{n}", "loud", mode, tuple(Link(f"{n}-{i}", "m") for i in range(LINKS)))
        self.own("quiet", "neighbour", "static", (Link("q", "m"),))

    def own(self, router_id: str, org_id: str, mode: Mode, links: tuple[Link, ...]) -> None:
        head = RouterHead(
            router_id=router_id,
            epoch=1,
            offset=1,
            last_received_ms=T_MS,
            alive_ms=T_MS,
            view_offset=1,
            view=None,
            generation=1,
            keys=(),
        )
        assignment = RouterAssignment(
            router_id=router_id, project_id=f"of-{router_id}", org_id=org_id, epoch=1, log_slot="s"
        )
        router = OwnedRouter(assignment, head, RouterView(version=1, mode=mode, links=links))
        self.host._owned.adopt(router, 0, T_MS)
        for link in links:
            self.host._owned.fanout.subscribe(router, link.breaker_id, 1, "breaker-0")

    def weight(self, *parts: Part) -> int:
        return sum(some.weight for some in self.host._owned.taken(parts, 1 << 60))


def part(router_id: str, metric: str = "m", rows: int = 1, key: int = 0) -> Part:
    payload = encode_samples([metric], [rows], np.full(rows, T_MS), np.ones(rows), np.ones(rows, bool))
    return Part(router_id, (f"{router_id}:{key}".encode().rjust(16)[-16:],), payload, rows)


async def test_others_go_on_while_a_group_is_handed_on() -> None:
    """It was done in one go: 800 rows for 1,000 breakers each took 2.7 s."""
    world = World(40)
    fanout, passes, in_pass = world.host._owned.fanout, 0, Counter[int]()
    handed = fanout.hand_on

    def counted(record: Any) -> Any:
        in_pass[passes] += LINKS
        return handed(record)

    fanout.hand_on = counted  # type: ignore[method-assign]

    async def pass_by() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    passing = asyncio.create_task(pass_by())
    outcomes = await world.host.append([part(f"wide-{n}") for n in range(40)])
    passing.cancel()
    assert [outcome.status for outcome in outcomes] == ["ok"] * 40
    assert len(world.log.groups) == 1
    assert in_pass.total() == 40 * LINKS
    assert max(in_pass.values()) <= TAKERS_AT_ONCE + LINKS
    await world.host.stop()


async def test_callers_that_get_through_meanwhile_end_no_outage() -> None:
    """Each record takes its time here. Callers waited in their sockets, and every router was owed a gap."""
    world = World(60)
    fanout, host, step_ms = world.host._owned.fanout, world.host, REACHABILITY_INTERVAL_MS // 10
    handed = fanout.hand_on

    def slow(record: Any) -> Any:
        world.clock.ms += step_ms
        return handed(record)

    fanout.hand_on = slow  # type: ignore[method-assign]
    replica = asyncio.create_task(_pings(host))
    await host.append([part(f"wide-{n}") for n in range(60)])
    assert world.clock.ms - T_MS > 2 * REACHABILITY_INTERVAL_MS + 1_000
    assert (await host.append([part("quiet")]))[0].status == "ok"
    replica.cancel()
    kinds = [append.kind for group in world.log.groups for append in group]
    assert GAP not in kinds
    assert not host._outages.owed
    await host.stop()


async def _pings(host: RouterHost) -> None:
    while True:
        host._outages.heard(host._clock.now_ms())
        await asyncio.sleep(0)


async def test_all_is_in_the_lanes_in_order_when_a_group_was_handed_on() -> None:
    """Whatever was taken from the lanes between its slices: each breaker gets its router's records once, in order."""
    world = World(30)
    for key in range(3):
        await world.host.append([part(f"wide-{n}", key=key) for n in range(30)])
    fanout = world.host._owned.fanout
    for lane in fanout._lanes.values():
        while lane._pump is not None:
            await lane._pump
    reached: dict[tuple[str, str], int] = {}
    for delivery in world.net.deliveries:
        for target in delivery.targets:
            at = (target.router_id, target.breaker_id)
            assert target.after == reached.get(at, 1)
            reached[at] = target.upto
    assert len(reached) == 30 * LINKS
    assert set(reached.values()) == {4}
    for router_id, breaker_id in reached:
        assert fanout.sent(router_id, breaker_id) == world.host._owned.by_id[router_id].offset == 4
    await world.host.stop()


async def test_takers_weigh() -> None:
    world = World(2)
    assert world.weight(part("quiet", rows=7)) == 7
    assert world.weight(part("wide-0", rows=7)) == 7 + LINKS // TAKERS_A_ROW
    assert world.weight(part("wide-0", "unheard")) == 1
    assert world.weight(part("nobody's")) == 1
    one_record = [part("wide-0", key=key) for key in range(5)]
    assert world.weight(*one_record) == 5 + LINKS // TAKERS_A_ROW, "they are one record"
    assert world.weight(*one_record, part("wide-1")) == 6 + 2 * LINKS // TAKERS_A_ROW
    point = CounterPoint(series=b"s" * 16, metric="m", ts_ms=T_MS, start_ms=0, value=1.0)
    counters = Part("wide-0", (b"c" * 16,), part("wide-0", "unheard").payload, 1, encode_points([point]))
    assert world.weight(counters) >= 1 + LINKS // TAKERS_A_ROW
    unreadable = [Part("wide-0", (b"u" * 16,), payload, 1, payload) for payload in (b"", b"\xff" * 9)]
    assert [world.weight(one) for one in unreadable] == [1, 1], "it is judged when its turn has come"
    assert World(1, "weighted").weight(part("wide-0", rows=7)) == 7, "each row goes to one breaker"


async def test_a_call_takes_what_a_group_carries() -> None:
    """An answer waits for all of its call: what others brought with it was as much as they had routers."""
    world = World(300)
    outcomes = await world.host.append([*(part(f"wide-{n}") for n in range(300)), part("quiet")])
    taken = [outcome.status for outcome in outcomes]
    assert taken[-1] == "ok"
    assert set(taken) == {"ok", "later"}
    assert 90 <= taken.count("ok") <= 101
    assert sum(map(len, world.log.groups)) == taken.count("ok")
    await world.host.stop()


async def test_rows_put_nothing_off_and_takers_hold_nothing() -> None:
    """What comes in a call was bounded where the call was made, to the row: whoever takes it, it finds room."""
    world = World(2, settings=Settings(lane_samples_max=100))
    for each in (50, 5_000):
        parts = [part(f"wide-{n}", rows=each, key=each + n) for n in range(2)]
        if each == 50:
            assert [one.status for one in await world.host.append(parts)] == ["ok", "ok"]
        else:
            assert [one.places for one in world.host._owned.taken(parts, 10_000)] == [[0], [1]]
    await world.host.stop()


async def test_what_is_left_of_a_call_is_brought_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("breaker_actors.router.owned.TAKERS_A_ROW", 1)
    monkeypatch.setattr("breaker_actors.router.host.RECORD_ROWS_MAX", 1)
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = [await s.breaker() for _ in range(4)]
        outcomes = await s.gateway.ingest(s.project.id, [part(row.router_ids[0], "latency") for row in rows])
        assert outcomes == [AppendResult("ok", outcome.offset) for outcome in outcomes]


async def test_who_is_put_off_is_taken_the_next_time_whatever_others_bring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among others it would stand behind them again, for as long as they go on."""
    monkeypatch.setattr("breaker_actors.router.owned.TAKERS_A_ROW", 1)
    monkeypatch.setattr("breaker_actors.router.host.RECORD_ROWS_MAX", 1)
    put_off = Counter[bytes]()
    append = RouterHost.append

    async def counted(host: RouterHost, parts: Sequence[Part]) -> list[AppendResult]:
        outcomes = await append(host, parts)
        put_off.update(
            key for one, outcome in zip(parts, outcomes, strict=True) for key in one.keys if outcome.status == "later"
        )
        return outcomes

    monkeypatch.setattr(RouterHost, "append", counted)
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = [await s.breaker() for _ in range(12)]

        async def bring(router_id: str, own: int) -> None:
            for n in range(5):
                (outcome,) = await s.gateway.ingest(s.project.id, [part(router_id, "latency", key=100 * own + n)])
                assert outcome.status == "ok"

        await asyncio.gather(*(bring(row.router_ids[0], own) for own, row in enumerate(rows)))
    assert len(put_off) > 10
    assert set(put_off.values()) == {1}


async def test_markers_of_many_projects_go_in_calls() -> None:
    """They weigh no rows: those of all projects were one call."""
    net = Net()
    lane = DeliveryLane(BreakerPeer(net, "breaker-0"), lambda *_: None, 1_000)
    for project in range(30):
        for n in range(LINKS):
            lane.mark(Subscription(f"r{project}", str(n), 1, "breaker-0", 0, ("loud", f"p{project}")), 5)
    lane.flush()
    while lane._pump is not None:
        await lane._pump
    sizes = [len(delivery.targets) for delivery in net.deliveries]
    assert sum(sizes) == 30 * LINKS
    assert max(sizes) <= CALL_ROWS_MAX


def test_large_changes_go_in_slices() -> None:
    big = [
        ChangeRow(id=n, router_id=f"r{n}", project_id="p", entries=((1, b"x" * (CHANGES_BYTES // 2)),))
        for n in range(5)
    ]
    over = ChangeRow(id=9, router_id="r9", project_id="p", entries=((1, b"x" * (CHANGES_BYTES + 1)),))
    assert [len(slice_) for slice_ in _slices([*big, over])] == [2, 2, 1, 1]


def test_gaps_that_many_hear_go_in_slices() -> None:
    world, owed = World(60), OwedGaps()
    for router in world.host._owned.by_id.values():
        owed.owe(router, T_MS, T_MS + 5_000)
    assert len(owed) == 61
    assert len(owed.slice(world.host._owned.by_id)) == SLICE_LINKS // LINKS
