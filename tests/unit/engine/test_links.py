"""Breakers on several routers, shares of samples, and links that end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import LogRecord, encode_samples, share_of_trace
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Invalid
from breaker_actors.messages import AppendResult, Part
from breaker_actors.store.rows import BreakerRow, RouterDraft, RouterRow
from breaker_actors.wal.sqlite import SqliteLog
from tests.support.cluster import Service, service, until


async def counting(s: Service, name: str) -> BreakerRow:
    return await s.breaker(name, kind="count", threshold=1e9, window_ms=3_600_000)


async def router(s: Service, *breakers: BreakerRow, **fields: object) -> RouterRow:
    draft = RouterDraft(breaker_ids=tuple(b.id for b in breakers), **fields)  # type: ignore[arg-type]
    row, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
    await s.gateway.configured(s.project.id, changes)
    return row


async def counts(s: Service, *breakers: BreakerRow) -> list[int]:
    readings = await s.gateway.states(s.project.id, [b.id for b in breakers])
    return [readings[b.id].view.sample_count for b in breakers]


async def test_weighted_and_canary_shares_survive_a_restart_of_the_breakers(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=2) as s:
        a, b, c = [await counting(s, name) for name in "abc"]
        weighted = await router(s, a, b, mode="weighted", metadata={"weight:a": "1", "weight:b": "3"})
        canary = await router(s, b, c, mode="canary", metadata={"canary:c": "25"})
        for _ in range(4):
            await s.send(weighted.id, [1.0] * 250)
            await s.send(canary.id, [1.0] * 250)

        async def all_there() -> bool:
            first, second, _ = await counts(s, a, b, c)
            return first + second == 2_000

        await until(all_there)
        before = await counts(s, a, b, c)
        assert 200 < before[0] < 300
        assert 200 < before[2] < 300
        for name in ("breaker-0", "breaker-1"):
            await s.net.kill(name)
            s.net.revive("breaker", name)
        for row in (a, b, c):
            await s.fresh(row.id)
        assert await counts(s, a, b, c) == before


async def test_samples_of_one_trace_go_to_one_breaker(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        a, b = await counting(s, "a"), await counting(s, "b")
        weighted = await router(s, a, b, mode="weighted")
        n, now = 40, s.clock.now_ms()
        share = np.full(n, share_of_trace("one-trace"), np.int64)
        payload = encode_samples(["latency"], [n], np.full(n, now), np.ones(n), np.ones(n, bool), share)
        (outcome,) = await s.gateway.ingest(s.project.id, [Part(weighted.id, (os.urandom(16),), payload, n)])
        assert outcome.status == "ok"

        async def there() -> bool:
            return sum(await counts(s, a, b)) == n

        await until(there)
        assert sorted(await counts(s, a, b)) == [0, n]


async def test_an_ended_link_stops_counting_and_a_new_one_begins_anew(tmp_path: Path) -> None:
    async with service(tmp_path, checkpoint_interval_ms=100) as s:
        row = await counting(s, "a")
        extra = await router(s, row)
        await s.send(extra.id, [1.0] * 3)
        await until(lambda: has(s, row, 3))
        changes = await s.store.unlink_breaker(s.project.id, extra.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await s.send(extra.id, [1.0] * 5)
        held = next(a._hosted[row.id] for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {}))

        async def left() -> bool:
            return extra.id not in held.routers

        await until(left)
        assert await counts(s, row) == [3]
        _, changes = await s.store.link_breakers(s.project.id, extra.id, [row.id], s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await until(lambda: listening(held, extra.id))
        last = await s.send(extra.id, [1.0] * 2)
        await until(lambda: has(s, row, 5))

        async def stored() -> bool:
            (assignment,) = await s.store.breaker_assignments([row.id])
            return assignment.applied_offsets.get(extra.id) == last.offset

        await until(stored)
        name = await s.owner(row.id)
        await s.net.kill(name)
        s.net.revive("breaker", name)
        await s.fresh(row.id)
        assert await counts(s, row) == [5]


async def test_what_came_through_an_ended_link_stays_in_the_window_over_a_restart(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await counting(s, "a")
        extra = await router(s, row)
        await s.send(extra.id, [1.0] * 3)
        await until(lambda: has(s, row, 3))
        await unlink(s, extra.id, row)
        await again(s, row)
        await until(lambda: has(s, row, 3))
        changes = await s.store.delete_router(s.project.id, extra.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await again(s, row)
        await until(lambda: has(s, row, 3))
        assert (await s.store.forget_ended_links("")).count == 0


async def test_what_was_not_read_before_a_link_ended_is_read_later(tmp_path: Path) -> None:
    """The breaker was away while the link ended, and while it ended and began anew."""
    async with service(tmp_path) as s:
        row = await counting(s, "a")
        extra = await router(s, row)
        name = await s.owner(row.id)
        await s.net.kill(name)
        await s.send(extra.id, [1.0] * 4)
        await unlink(s, extra.id, row)
        await s.send(extra.id, [1.0] * 50)
        s.net.revive("breaker", name)
        await s.fresh(row.id)
        await until(lambda: has(s, row, 4))

        await s.net.kill(name)
        await link(s, extra.id, row)
        await s.send(extra.id, [1.0] * 2)
        await unlink(s, extra.id, row)
        await s.send(extra.id, [1.0] * 50)
        await link(s, extra.id, row)
        await s.send(extra.id, [1.0])
        s.net.revive("breaker", name)
        await s.fresh(row.id)
        await until(lambda: has(s, row, 7))
        await s.send(extra.id, [1.0])
        await until(lambda: has(s, row, 8))


async def test_an_ended_link_is_forgotten_when_no_window_reaches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breaker_actors.store.operational.log_needs.SETTLED_WITHIN_MS", 0)
    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", 100)
    async with service(tmp_path, checkpoint_interval_ms=100) as s:
        row = await s.breaker(window_ms=100)
        extra = await router(s, row)
        await s.send(extra.id, [1.0])
        await unlink(s, extra.id, row)

        async def forgotten() -> bool:
            return (await s.store.forget_ended_links("")).count == 1

        await until(forgotten)
        (assignment,) = await s.store.breaker_assignments([row.id])
        assert [r.router_id for r in assignment.routers] == list(row.router_ids)


async def test_a_breaker_names_no_routers_that_it_has_left_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its cut would grow with each router it ever hung on. A link to one of them begins anew, and what came before
    is not counted again."""
    monkeypatch.setattr("breaker_actors.store.operational.log_needs.SETTLED_WITHIN_MS", 0)
    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", 100)
    async with service(tmp_path, checkpoint_interval_ms=100, upkeep_interval_ms=3_600_000) as s:
        row = await s.breaker(kind="count", threshold=1e9, window_ms=300)
        extra = await router(s, row)
        await s.send(extra.id, [1.0] * 3)
        await unlink(s, extra.id, row)

        async def left() -> bool:
            s.cluster.retention._pruned_s = None
            await s.cluster.retention.round()
            (assignment,) = await s.store.breaker_assignments([row.id])
            return list(assignment.applied_offsets) == list(row.router_ids)

        await until(left)
        held = next(a._hosted[row.id] for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {}))
        assert (list(held.applied_offsets), dict(held.ended_links)) == (list(row.router_ids), {})
        await link(s, extra.id, row)
        last = await s.send(extra.id, [1.0] * 2)
        await until(lambda: has(s, row, 2))
        assert held.applied_offsets[extra.id] == last.offset
        await until(lambda: has(s, row, 0))
        await again(s, row)
        assert await counts(s, row) == [0]


async def unlink(s: Service, router_id: str, row: BreakerRow) -> None:
    changes = await s.store.unlink_breaker(s.project.id, router_id, row.id, s.clock.now_ms())
    await s.gateway.configured(s.project.id, changes)


async def link(s: Service, router_id: str, row: BreakerRow) -> None:
    _, changes = await s.store.link_breakers(s.project.id, router_id, [row.id], s.clock.now_ms())
    await s.gateway.configured(s.project.id, changes)


async def again(s: Service, row: BreakerRow) -> None:
    """Its BreakerActor dies and comes back."""
    name = await s.owner(row.id)
    await s.net.kill(name)
    s.net.revive("breaker", name)
    await s.fresh(row.id)


async def has(s: Service, row: BreakerRow, count: int) -> bool:
    return await counts(s, row) == [count]


async def listening(held: object, router_id: str) -> bool:
    return router_id in held.routers  # type: ignore[attr-defined]


async def test_a_router_of_many_breakers_is_read_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each: each would read past the settings of all others."""
    read_rows: dict[str, int] = {}
    read = SqliteLog.read

    async def counted(log: SqliteLog, slot: str, router_id: str, after: int, upto: int, *most: int) -> list[LogRecord]:
        found = await read(log, slot, router_id, after, upto, *most)
        read_rows[router_id] = read_rows.get(router_id, 0) + len(found)
        return found

    monkeypatch.setattr(SqliteLog, "read", counted)
    async with service(tmp_path) as s:
        breakers = [await counting(s, f"b{n}") for n in range(200)]
        shared = await router(s, *breakers)
        await s.send(shared.id, [1.0])

        async def have_counted() -> bool:
            return await counts(s, *breakers) == [1] * len(breakers)

        await until(have_counted, 20)
    assert read_rows[shared.id] < 10 * len(breakers)


async def test_windows_of_many_breakers_are_filled_with_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of thousands on one router that gets longer windows is no thousands of reads of its log, whether their
    owner hears of it as it happens or when it comes back."""
    async with service(tmp_path, breaker_actors=1) as s:
        rows = [await s.breaker(str(i), kind="count", threshold=1e9, window_ms=1_000) for i in range(30)]
        wide = await router(s, *rows)
        await s.send(wide.id, [1.0] * 10)
        await asyncio.sleep(5)
        begun: list[str] = []
        find = SqliteLog.find

        async def counted(log: SqliteLog, slot: str, router_id: str, after_ms: int) -> int:
            begun.append(router_id)
            return await find(log, slot, router_id, after_ms)

        monkeypatch.setattr(SqliteLog, "find", counted)
        await lengthen(s, rows, 60_000)
        await until(lambda: all_count(s, rows, 10))
        assert begun.count(wide.id) <= 5
        await s.net.actors["breaker-0"].checkpoint()
        await s.net.kill("breaker-0")
        await s.send(wide.id, [1.0] * 10)
        await lengthen(s, rows, 600_000)
        begun.clear()
        s.net.revive("breaker", "breaker-0")
        await until(lambda: all_count(s, rows, 20))
        assert begun.count(wide.id) <= 5


async def lengthen(s: Service, rows: Sequence[BreakerRow], window_ms: int) -> None:
    changes: list[int] = []
    for row in rows:
        _, some = await s.store.update_breaker(
            s.project.id,
            row.id,
            lambda r: replace(r, rule=parse_rule({"window_ms": window_ms}, r.rule)),
            s.clock.now_ms(),
        )
        changes += some
    await s.gateway.configured(s.project.id, changes)


async def all_count(s: Service, rows: Sequence[BreakerRow], n: int) -> bool:
    return await counts(s, *rows) == [n] * len(rows)


async def test_a_project_has_so_many_links(tmp_path: Path) -> None:
    """Twice as many as it may have breakers. Who had more before may unlink."""
    async with service(tmp_path, breakers_per_project_max=2) as s:
        a, b = [await counting(s, name) for name in "ab"]
        first = await router(s, a, b)
        with pytest.raises(Invalid, match="at most 4 links"):
            await router(s, a)
        empty = await router(s)
        with pytest.raises(Invalid, match="at most 4 links"):
            await s.store.link_breakers(s.project.id, empty.id, [a.id], s.clock.now_ms())
        changes = await s.store.unlink_breaker(s.project.id, first.id, a.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await router(s, a)


async def test_an_append_says_what_nobody_hears(tmp_path: Path) -> None:
    """Metrics without a breaker, and all of a disabled router; nothing where every metric is heard."""
    async with service(tmp_path) as s:
        row = await counting(s, "a")
        now = s.clock.now_ms()

        async def send(*metrics: str) -> AppendResult:
            n = len(metrics)
            payload = encode_samples(metrics, [1] * n, np.full(n, now), np.ones(n), np.ones(n, bool))
            (outcome,) = await s.gateway.ingest(s.project.id, [Part(row.router_ids[0], (os.urandom(16),), payload, n)])
            assert outcome.status == "ok"
            return outcome

        heard = await send("latency")
        assert (heard.disabled, heard.unheard, heard.heard) == (False, (), ())
        many = await send("latency", *(f"m{n}" for n in range(9)))
        assert (many.unheard, many.heard) == (("m0", "m1", "m2", "m3", "m4"), ("latency",))
        _, changes = await s.store.update_router(
            s.project.id, row.router_ids[0], lambda r: replace(r, enabled=False), now
        )
        await s.gateway.configured(s.project.id, changes)
        off = await send("latency", "m")
        assert (off.disabled, off.unheard) == (True, ())
