"""Cumulative series at the owner of their router: neither a killed owner nor a repeated request loses or doubles a
rise, and what is counted of a room is what is held."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from breaker_actors.core.counters import KEPT_MS, CounterPoint, Counters, Room, encode_points, packed, packed_floats
from breaker_actors.core.log_entries import BREAKER, RouterView, encode_samples
from breaker_actors.messages import AppendResult, ChangeRow, Part, RouterAssignment
from breaker_actors.router.group import Change, Group, OwnedRouter
from breaker_actors.wal.base import RouterHead
from tests.support.cluster import Service, service, until

NOTHING = encode_samples([], [], np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_))
SERIES = b"s" * 16


async def send(
    s: Service, router_id: str, value: int, ts_ms: int, series: bytes = SERIES, keys: tuple[bytes, ...] | None = None
) -> AppendResult:
    points = [CounterPoint(series, "requests", ts_ms, 0, ok=True, value=float(value))]
    return (
        await s.gateway.ingest(
            s.project.id, [Part(router_id, keys or (os.urandom(16),), NOTHING, 1, encode_points(points))]
        )
    )[0]


async def counted(s: Service, breaker_id: str, count: int) -> None:
    """The breaker comes to hold so many observations."""

    async def held() -> bool:
        reading = await s.fresh(breaker_id)
        return reading.view.sample_count == count

    await until(held)


async def test_a_rise_counts_once_over_a_kill_and_a_repeat(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(metric="requests", kind="count", op="gt", threshold=1_000, window_ms=600_000)
        router_id, now = row.router_ids[0], s.clock.now_ms()
        assert (await send(s, router_id, 100, now)).status == "ok"
        assert (await send(s, router_id, 103, now + 1)).status == "ok"
        await counted(s, row.id, 3)
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        key = (os.urandom(16),)
        first = await send(s, router_id, 110, now + 2, keys=key)
        assert first.status == "ok"
        assert (await send(s, router_id, 110, now + 2, keys=key)).status == "duplicate"
        assert (await send(s, router_id, 110, now + 2)).status == "ok"  # known by its time
        await counted(s, row.id, 10)
        assert (await send(s, router_id, 4, now + 3)).status == "ok"  # the sender began anew
        await counted(s, row.id, 14)


async def test_there_is_room_for_so_many_series(tmp_path: Path) -> None:
    async with service(tmp_path, counter_series_max=3) as s:
        row = await s.breaker(metric="requests", kind="count", op="gt", threshold=1_000, window_ms=600_000)
        router_id, now = row.router_ids[0], s.clock.now_ms()
        results = [await send(s, router_id, 1, now, bytes([n]) * 16) for n in range(5)]
        assert [result.beyond for result in results] == [0, 0, 0, 1, 1]
        assert (await send(s, router_id, 6, now + 1, bytes([2]) * 16)).beyond == 0
        await counted(s, row.id, 5)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_counted_is_what_is_held(seed: int) -> None:
    """Routers of several projects and organisations, in groups with changes between their samples, while series come,
    grow, shrink and are forgotten, and routers are lost and taken over: each sum is what a recount of the logs says."""
    rng, now, most = random.Random(seed), 1_800_000_000_000, 120
    room, logs, owned = Room(400), [dict[bytes, bytes]() for _ in range(6)], dict[str, OwnedRouter]()
    forgotten = several = beyond = 0
    for turn in range(120):
        now += rng.choice((1, 1_000, KEPT_MS // 8))
        for n in [n for n in range(len(logs)) if f"r{n}" not in owned or rng.random() < 0.03]:
            if f"r{n}" in owned:
                owned[f"r{n}"].counters.leave()
            owned[f"r{n}"] = with_series(n, now, logs[n], most)
            owned[f"r{n}"].counters.enter(room, *whose(n))
        group = Group(owned, lambda *_: None, now, lambda _: None)
        for index in range(rng.randrange(1, 20)):
            n, key = rng.randrange(len(logs)), b"%d-%d" % (turn, index)
            change = Change(ChangeRow(id=1, router_id=f"r{n}", project_id="p", entries=((BREAKER, b""),)), key)
            points = [some_point(rng, now) for _ in range(rng.randrange(1, 10))]
            part = Part(f"r{n}", (key,), NOTHING, len(points), encode_points(points))
            group.add(index, part if rng.random() < 0.7 else change)
        staged = group.close()
        with_points = Counter(record.router.id for record in staged if record.counted is not None)
        several += sum(count > 1 for count in with_points.values())
        for record in staged:
            n = int(record.router.id[1:])
            if rng.random() < 0.01 and f"r{n}" in owned:
                owned.pop(f"r{n}").counters.leave()  # the log says that another one owns it
            if record.counted is not None and f"r{n}" in owned:
                record.router.counters.keep(record.counted)
                logs[n] |= dict(record.append.counters)
                forgotten, beyond = forgotten + len(record.counted.gone), beyond + sum(record.beyond.values())
        sizes = {n: recount(logs[n]) if f"r{n}" in owned else 0 for n in range(len(logs))}
        assert {int(i[1:]): router.counters.weight for i, router in owned.items()} == {
            n: size for n, size in sizes.items() if f"r{n}" in owned
        }
        assert max(sizes.values()) <= most
        for at, held in ((slice(2), room._taken), (0, room._orgs)):
            sums = Counter[object]()
            for n, size in sizes.items():
                sums[whose(n)[at]] += size
            assert held == +sums
        assert room.taken == sum(sizes.values())
    assert min(forgotten, several, beyond) > 10, "all of it happened"
    for router in owned.values():
        router.counters.leave()
    assert (room.taken, room._taken, room._orgs) == (0, {}, {})


def whose(n: int) -> tuple[str, str]:
    return f"o{n % 2}", f"p{n % 4}"


def recount(log: dict[bytes, bytes]) -> int:
    """What the states of a log weigh."""
    return Counters([(series, state) for series, state in log.items() if state]).weight


def some_point(rng: random.Random, now: int) -> CounterPoint:
    """Of a counter, or a histogram of few or many buckets, with or without a unit."""
    series, size = b"s%015d" % rng.randrange(30) + rng.choice((b"", b"", b"of units")), rng.choice((0, 1, 40, 160, 400))
    if not size:
        return CounterPoint(series, "m", now, 0, value=1.0)
    numbers, values = packed(range(size)), packed_floats([1.0] * size)
    return CounterPoint(series, "m", now, 0, layout=b"l", buckets=numbers, values=values, totals=packed([1] * size))


def with_series(n: int, now: int, log: dict[bytes, bytes], most: int) -> OwnedRouter:
    """A router whose log has these states."""
    states = tuple((series, state) for series, state in log.items() if state)
    head = RouterHead(
        router_id=f"r{n}", epoch=1, offset=1, last_received_ms=now, alive_ms=now, view_offset=1, view=None,
        generation=1, keys=(), counters=states,
    )  # fmt: skip
    org_id, project_id = whose(n)
    assignment = RouterAssignment(router_id=f"r{n}", project_id=project_id, epoch=1, log_slot="s", org_id=org_id)
    return OwnedRouter(assignment, head, RouterView(version=1), most)
