"""Logs and history stay bounded, and what a breaker still needs of its log stays."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.breaker.hosted import HostedBreaker
from breaker_actors.core.log_entries import VIEW
from breaker_actors.directory.retention import DAY_MS
from breaker_actors.errors import Unavailable
from breaker_actors.messages import LogFloor
from breaker_actors.persistence import DATABASE
from breaker_actors.store.rows import RouterDraft
from breaker_actors.transport.peers import journal_name
from tests.support.cluster import Service, service, until

QUIET = {"upkeep_interval_ms": 3_600_000, "checkpoint_interval_ms": 3_600_000}


async def kept(s: Service, router_id: str) -> list[int]:
    records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60, 1 << 30)
    return [r.offset for r in records if r.kind != VIEW]


async def head(s: Service, router_id: str) -> int:
    return (await kept(s, router_id))[-1]


async def test_what_is_read_and_older_than_windows_and_retention_goes(tmp_path: Path) -> None:
    async with service(tmp_path, log_retention_ms=0, **QUIET) as s:
        row = await s.breaker(window_ms=300)
        router_id = row.router_ids[0]
        for _ in range(5):
            await s.send(router_id, [1.0] * 10)
        await s.cluster.retention.round()
        assert len(await kept(s, router_id)) == 6  # nothing was checkpointed: all of it must be read again
        await asyncio.sleep(0.4)
        await s.send(router_id, [1.0] * 10)
        (actor,) = [a for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {})]
        await until(lambda: applied(s, row.id, 10))
        await actor.checkpoint()
        await s.cluster.retention.round()
        assert await kept(s, router_id) == [8]  # the window still holds it
        name = actor.name
        await s.net.kill(name)
        s.net.revive("breaker", name)
        assert (await s.fresh(row.id)).view.sample_count == 10


async def applied(s: Service, breaker_id: str, count: int) -> bool:
    return (await s.state(breaker_id)).view.sample_count == count


async def test_retention_keeps_what_nobody_needs(tmp_path: Path) -> None:
    async with service(tmp_path, **QUIET) as s:
        draft = RouterDraft(breaker_ids=())
        router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await s.send(router.id, [1.0])
        await s.cluster.retention.round()
        assert len(await kept(s, router.id)) == 1


async def test_what_a_new_breaker_has_to_read_stays(tmp_path: Path) -> None:
    """Its creation lies in the log before anybody may know; linked while a round is under way it was not counted."""
    async with service(tmp_path, log_retention_ms=0, **QUIET) as s:
        call, settle, floors = s.net.call, s.store.settle_changes, s.store.log_floors
        await s.breaker()
        trimmed: list[object] = []

        async def watched(actor: str, method: str, *args: Any) -> Any:
            if method == "trim":
                trimmed.append(args)
            return await call(actor, method, *args)

        s.net.call = watched  # type: ignore[method-assign]

        async def unsettled(epoch: int, offsets: Mapping[int, int]) -> None:
            await s.cluster.retention.round()  # appended, not settled
            await settle(epoch, offsets)

        async def late() -> list[LogFloor]:
            known = await floors()
            s.store.log_floors = floors  # type: ignore[method-assign]
            born.append(await s.breaker())  # created while the round goes on
            return known

        s.store.settle_changes = unsettled  # type: ignore[method-assign]
        born = [await s.breaker()]
        s.store.settle_changes = settle  # type: ignore[method-assign]
        s.store.log_floors = late  # type: ignore[method-assign]
        await s.cluster.retention.round()
        assert len(trimmed) >= 2
        for row in born:
            assert (await kept(s, row.router_ids[0]))[0] == 1


async def test_a_log_at_its_byte_bound_refuses_samples_until_it_was_trimmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions and configuration pass; trimming before the retention is over makes room."""
    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", 100)
    async with service(tmp_path, log_bytes_max=1 << 20, log_project_percent_max=100, **QUIET) as s:
        row = await s.breaker(window_ms=200)
        router_id, key = row.router_ids[0], b"k" * 16
        assert (await s.send(router_id, [1.0], keys=(key,))).status == "ok"
        words = [(await s.send(router_id, [1.0] * 9000)).status for _ in range(10)]
        assert words[:6] == ["ok"] * 6
        assert words[-1] == "log_full"
        assert (await s.send(router_id, [1.0], keys=(key,))).status == "duplicate"
        await s.edit(row.id, threshold=7)
        await s.cluster.retention.round()
        refused = (await s.send(router_id, [1.0])).status  # the breaker's cut is still at its beginning
        assert refused in ("log_full", "share_full")
        (actor,) = [a for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {})]
        last, looked_ms = await head(s, router_id), s.clock.now_ms() + 400
        await until(lambda: reached(actor._hosted[row.id], router_id, last, looked_ms))
        await actor.checkpoint()
        await s.cluster.retention.round()
        assert (await s.send(router_id, [1.0])).status == "ok"
        assert len(await kept(s, router_id)) < 5


async def reached(held: HostedBreaker, router_id: str, offset: int, looked_ms: int = 0) -> bool:
    return held.applied_offsets.get(router_id, 0) >= offset and held.looked_ms >= looked_ms


async def test_an_idle_breaker_does_not_hold_the_log_of_a_busy_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample ever comes for it, yet its cut follows the log and its window moves on."""
    monkeypatch.setattr("breaker_actors.breaker.hosted.IDLE_MS", 100)
    async with service(tmp_path, log_retention_ms=0, **QUIET) as s:
        row = await s.breaker(window_ms=100, metric="never")
        router_id = row.router_ids[0]
        for _ in range(5):
            await s.send(router_id, [1.0])
        (actor,) = [a for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {})]
        looked_ms = s.clock.now_ms() + 200
        await until(lambda: reached(actor._hosted[row.id], router_id, 7, looked_ms))
        await actor.checkpoint()
        await s.cluster.retention.round()
        assert await kept(s, router_id) == []


async def test_the_log_of_a_deleted_router_goes_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(tmp_path, log_retention_ms=0, **QUIET) as s:
        row = await s.breaker()
        other = await s.breaker()
        slot = await s.slot(row.router_ids[0])
        changes = await s.store.delete_breaker(s.project.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await s.cluster.retention.round()
        assert {e.router_id for e in await s.cluster.log.stock(slot)} == {row.router_ids[0], other.router_ids[0]}
        monkeypatch.setattr("breaker_actors.directory.retention.GONE_MIN_MS", -1_000)
        await s.cluster.retention.round()
        assert {e.router_id for e in await s.cluster.log.stock(slot)} == {other.router_ids[0]}


async def test_history_is_pruned(tmp_path: Path) -> None:
    async with service(tmp_path, **QUIET) as s:
        row = await s.breaker()
        await s.send(row.router_ids[0], [900.0])
        await s.in_state(row.id, "open")
        assert await s.store.prune(s.clock.now_ms() - 60_000) == {
            "events": 0,
            "audit": 0,
            "backfill_events": 0,
            "mutes": 0,
        }
        assert (await s.store.prune(s.clock.now_ms() + 1))["events"] == 0, "what stands has a beginning"
        assert len(await s.events(row.id)) == 1
        await s.store.delete_breaker(s.project.id, row.id, s.clock.now_ms())
        removed = await s.store.prune(s.clock.now_ms() + 1)
        assert (removed["events"], removed["audit"]) == (1, 1)
        assert await s.events(row.id) == []
        assert await s.store.audit(s.project.id, 10) == []


async def test_pruning_goes_on_while_there_is_much_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only once in ten minutes: history may come faster than one round removes it."""
    monkeypatch.setattr("breaker_actors.store.operational.retention.PAGE", 2)
    monkeypatch.setattr("breaker_actors.store.operational.retention.PAGES_MAX", 1)
    async with service(tmp_path, **QUIET) as s:
        with closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
            old = [(number, s.clock.now_ms() - 100 * DAY_MS) for number in range(-5, 0)]
            sql = "INSERT INTO audit (number, at_ms, who, action, target_id) VALUES (?, ?, 'us', 'test', 'it')"
            with connection:
                connection.executemany(sql, old)
            left = []
            for _ in range(4):
                await s.cluster.retention.round()
                left.append(connection.execute("SELECT count(*) FROM audit WHERE number < 0").fetchone()[0])
        assert left == [3, 1, 0, 0]


async def test_a_journal_goes_on_after_a_commit_of_unknown_outcome(tmp_path: Path) -> None:
    """The database took the commit but its answer was lost: no event twice, and the next one is stored."""
    async with service(tmp_path, **QUIET) as s:
        row = await s.breaker(cooldown_ms=200, recovery_allow_rate_ramp_steps=1)
        journal = s.net.actors[journal_name(0)]
        real, lost = journal._store.commit, []

        async def commit(*args: object) -> object:
            done = await real(*args)
            if not lost:
                lost.append(done)
                raise Unavailable("the answer was lost")
            return done

        journal._store.commit = commit
        await s.send(row.router_ids[0], [900.0])
        await s.in_state(row.id, "half_open")
        assert lost
        assert [e.transition_seq for e in await s.events(row.id)] == [1, 2]
