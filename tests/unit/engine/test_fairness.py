"""One project takes its share of what all projects use, and no more: of the log, of transitions, of window memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from breaker_actors.breaker.hosted import EFFECTS_MAX, HostedBreaker
from breaker_actors.core.rules import parse_rule
from breaker_actors.messages import Commit
from breaker_actors.store.rows import BreakerDraft, BreakerRow, JournalHead, RouterDraft
from breaker_actors.transport.peers import journal_name
from tests.support.cluster import FAST_RULE, Service, service, until

QUIET = {"upkeep_interval_ms": 3_600_000, "checkpoint_interval_ms": 3_600_000}
DAY_MS = 86_400_000


async def neighbour(s: Service) -> Service:
    """Another organisation's project on the same actors."""
    now = s.clock.now_ms()
    org = await s.store.create_org("other org", now)
    workspace = await s.store.create_workspace(org, "workspace", "workspace", now)
    return Service(s.cluster, await s.store.create_project(org, workspace.id, "other project", now))


async def fill(s: Service, router_id: str, sends: int = 40) -> list[str]:
    return [(await s.send(router_id, [1.0] * 2_000)).status for _ in range(sends)]


async def limits(s: Service) -> list[tuple[str, str]]:
    return [(share.project_id, share.limit) for share in (await s.gateway.status()).limits]


async def test_a_project_at_its_share_of_the_log_is_refused_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also right after a restart. Once its breaker is deleted the log goes early, and there is room again."""
    async with service(tmp_path, log_bytes_max=2 << 20, log_project_percent_max=25, **QUIET) as s:
        other = await neighbour(s)
        greedy, quiet = await s.breaker(window_ms=DAY_MS), await other.breaker()
        router_id = greedy.router_ids[0]
        words = await fill(s, router_id)
        assert words[:8] == ["ok"] * 8
        assert words[-1] == "share_full"
        assert await limits(s) == [(s.project.id, "log_bytes")]
        await s.cluster.retention.round()
        assert (await s.send(router_id, [1.0])).status == "share_full", "its window needs what lies there"
        assert (await other.send(quiet.router_ids[0], [1.0])).status == "ok"
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        await until(lambda: taken(other, quiet.router_ids[0]))
        assert (await s.send(router_id, [1.0])).status == "share_full"
        changes = await s.store.delete_breaker(s.project.id, greedy.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        fresh = await s.breaker()
        assert (await s.send(fresh.router_ids[0], [1.0])).status == "share_full"
        await s.cluster.retention.round()
        assert (await s.send(fresh.router_ids[0], [1.0])).status == "share_full", "its end is still to be read"
        monkeypatch.setattr("breaker_actors.directory.retention.GONE_SPARED_MS", -1_000)
        await s.cluster.retention.round()
        assert (await s.send(fresh.router_ids[0], [1.0])).status == "ok"
        assert await limits(s) == []


async def test_an_organisation_with_many_projects_leaves_room_in_the_log(tmp_path: Path) -> None:
    """However many shares it has: others are taken, and it again once there is room. Where it is the only one it may
    have all."""
    async with service(tmp_path, log_bytes_max=2 << 20, log_project_percent_max=25, **QUIET) as s:
        mine = [s, *[await sibling(s) for _ in range(5)]]
        greedy = [await one.breaker(window_ms=DAY_MS) for one in mine]
        await s.cluster.retention.round()
        assert await fill(mine[0], greedy[0].router_ids[0], 6) == ["ok"] * 6
        other = await neighbour(s)
        quiet = (await other.breaker(window_ms=DAY_MS)).router_ids[0]
        await s.cluster.retention.round()
        words = [(await fill(one, row.router_ids[0]))[-1] for one, row in zip(mine, greedy, strict=True)]
        assert words == ["share_full"] * 6
        await s.cluster.retention.round()
        assert (await mine[5].send(greedy[5].router_ids[0], [1.0])).status == "share_full"
        assert await fill(other, quiet, 6) == ["ok"] * 6
        found = (await s.gateway.status()).limits
        assert [(one.org_id is not None, one.limit) for one in found if one.project_id is None] == [(True, "log_bytes")]


async def sibling(s: Service) -> Service:
    """Another project of the same organisation."""
    now = s.clock.now_ms()
    return Service(s.cluster, await s.store.create_project(s.project.org_id, s.project.workspace_id, "sibling", now))


async def taken(s: Service, router_id: str) -> bool:
    return (await s.send(router_id, [1.0])).status == "ok"


async def test_what_a_breaker_needs_of_a_deleted_router_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little room there is: the window of a breaker that hung on it reaches back to there."""
    monkeypatch.setattr("breaker_actors.directory.retention.GONE_SPARED_MS", -1_000)
    monkeypatch.setattr("breaker_actors.directory.retention.GONE_MIN_MS", -1_000)
    async with service(tmp_path, log_bytes_max=2 << 20, log_retention_ms=0, **QUIET) as s:
        row = await s.breaker(window_ms=DAY_MS)
        draft = RouterDraft(breaker_ids=(row.id,))
        router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await fill(s, router.id, 12)
        changes = await s.store.unlink_breaker(s.project.id, router.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        changes = await s.store.delete_router(s.project.id, router.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await until(lambda: holds(s, row.id, 24_000))
        for actor in s.net.actors.values():
            if row.id in getattr(actor, "_hosted", {}):
                await actor.checkpoint()
                name = actor.name
        await s.cluster.retention.round()
        await s.net.kill(name)
        s.net.revive("breaker", name)
        assert (await s.fresh(row.id)).view.sample_count == 24_000


async def holds(s: Service, breaker_id: str, count: int) -> bool:
    return (await s.state(breaker_id)).view.sample_count == count


EAGER = {
    "kind": "count",
    "op": "gte",
    "threshold": 1,
    "window_ms": 1,
    "eval_interval_ms": 1,
    "cooldown_ms": 0,
    "half_open_backoff_enabled": False,
    "half_open_indeterminate_policy": "pessimistic",
    "recovery_allow_rate_ramp_steps": 1,
}


async def test_breakers_that_never_rest_hold_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 of them, one sample each: they store no more than their project's budget, in commits of bounded size, and
    another project's trip is committed within a second."""
    monkeypatch.setattr("breaker_actors.journal.host.BURST_MIN", 100)
    async with service(tmp_path, transitions_per_minute_max=600, **QUIET) as s:
        other = await neighbour(s)
        quiet = await other.breaker()
        drafts = [BreakerDraft(rule=parse_rule({**FAST_RULE, **EAGER})) for _ in range(100)]
        journal = s.net.actors[journal_name(0)]
        sizes, real = [], journal._store.commit

        async def commit(head: JournalHead, commits: list[Commit]) -> object:
            sizes.extend(len(c.events) for c in commits if c.project_id == s.project.id)
            return await real(head, commits)

        journal._store.commit = commit
        begun = asyncio.get_running_loop().time()
        for draft in drafts:
            row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
            await s.gateway.configured(s.project.id, changes)
            await s.send(row.router_ids[0], [1.0])
        await until(lambda: at_limit(s, "transitions"))
        before = sum(sizes)
        sent = asyncio.get_running_loop().time()
        await other.send(quiet.router_ids[0], [900.0])
        await other.in_state(quiet.id, "open")
        assert asyncio.get_running_loop().time() - sent < 1.0
        await until(lambda: paced_for(sizes, before + 20), 20.0)
        stored = sum(sizes)
        seconds = asyncio.get_running_loop().time() - begun
        assert max(sizes) <= EFFECTS_MAX
        assert stored <= 600 + 10 * seconds + EFFECTS_MAX, "the last commit within the budget may end beyond it"
        assert (await journal.status()).limits[0].project_id == s.project.id


async def at_limit(s: Service, limit: str) -> bool:
    return (s.project.id, limit) in await limits(s)


async def paced_for(sizes: list[int], count: int) -> bool:
    return sum(sizes) >= count


async def test_a_projects_windows_hold_its_share_and_no_other_is_cut(tmp_path: Path) -> None:
    """What one sample costs is multiplied by the breakers of its router; beyond the share the oldest leave early."""
    async with service(tmp_path, breaker_actors=1, window_project_samples_max=10_000, **QUIET) as s:
        other = await neighbour(s)
        quiet = await other.breaker(window_ms=DAY_MS)
        rows = [await s.breaker(window_ms=DAY_MS) for _ in range(20)]
        draft = RouterDraft(breaker_ids=tuple(row.id for row in rows[1:]))
        router, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await other.send(quiet.router_ids[0], [1.0] * 3_000)
        await s.send(rows[0].router_ids[0], [1.0] * 10)
        for _ in range(5):
            await s.send(router.id, [1.0] * 400)
        await until(lambda: at_limit(s, "window_samples"))
        (actor,) = [a for a in s.net.actors.values() if rows[0].id in getattr(a, "_hosted", {})]
        await until(lambda: held_at_most(actor._hosted, rows, 10_000))
        views = [(await s.state(row.id)).view for row in rows]
        assert views[0].truncated_count == 0, "a small window is left alone"
        assert all(400 < actor._hosted[row.id].breaker.samples_held < 500 for row in rows[1:])
        assert sum(actor._hosted[row.id].breaker.lost[1] for row in rows) > 25_000
        assert actor._hosted[quiet.id].breaker.samples_held == 3_000
        assert (s.project.id, "window_samples") in await limits(s)


async def test_many_projects_hold_what_all_may_and_small_ones_are_not_cut(tmp_path: Path) -> None:
    """Each within its share: together they would take any memory. Once they are gone windows may grow again."""
    async with service(tmp_path, breaker_actors=1, window_all_samples_max=10_000, **QUIET) as s:
        other = await neighbour(s)
        quiet = await other.breaker(window_ms=DAY_MS)
        await other.send(quiet.router_ids[0], [1.0] * 500)
        mine = [s, *[await sibling(s) for _ in range(4)]]
        rows = [await one.breaker(window_ms=DAY_MS) for one in mine]
        for one, row in zip(mine, rows, strict=True):
            for _ in range(2):
                await one.send(row.router_ids[0], [1.0] * 2_000)
        (actor,) = [a for a in s.net.actors.values() if quiet.id in getattr(a, "_hosted", {})]
        await until(lambda: at_limit(s, "window_samples"))
        await until(lambda: held_at_most(actor._hosted, rows, 9_000))
        sizes = [actor._hosted[row.id].breaker.samples_held for row in rows]
        assert min(sizes) > 1_000, sizes
        assert actor._hosted[quiet.id].breaker.samples_held == 500
        for one, row in zip(mine[1:], rows[1:], strict=True):
            changes = await s.store.delete_breaker(one.project.id, row.id, s.clock.now_ms())
            await s.gateway.configured(one.project.id, changes)
        await until(lambda: not_at_limit(s))
        await s.send(rows[0].router_ids[0], [1.0] * 2_000)
        await until(lambda: holds(s, rows[0].id, sizes[0] + 2_000))


async def test_many_projects_of_an_organisation_leave_the_windows_of_another(tmp_path: Path) -> None:
    """What all may hold is shared by organisation first: one large project is not cut for many smaller ones."""
    async with service(tmp_path, breaker_actors=1, window_all_samples_max=10_000, **QUIET) as s:
        other = await neighbour(s)
        large = await other.breaker(window_ms=DAY_MS)
        for _ in range(2):
            await other.send(large.router_ids[0], [1.0] * 2_000)
        mine = [s, *[await sibling(s) for _ in range(6)]]
        rows = [await one.breaker(window_ms=DAY_MS) for one in mine]
        for one, row in zip(mine, rows, strict=True):
            await one.send(row.router_ids[0], [1.0] * 1_500)
        (actor,) = [a for a in s.net.actors.values() if large.id in getattr(a, "_hosted", {})]
        await until(lambda: at_limit(s, "window_samples"))
        await until(lambda: held_at_most(actor._hosted, rows, 5_000))
        assert actor._hosted[large.id].breaker.samples_held == 4_000
        assert min(actor._hosted[row.id].breaker.samples_held for row in rows) > 300


async def not_at_limit(s: Service) -> bool:
    return await limits(s) == []


async def held_at_most(held: dict[str, HostedBreaker], rows: list[BreakerRow], most: int) -> bool:
    return 0 < sum(b.samples_held for row in rows if (b := held[row.id].breaker) is not None) <= most


async def test_a_deleted_breaker_holds_no_samples(tmp_path: Path) -> None:
    """Timers may know it for a while: its window is let go at once."""
    async with service(tmp_path, breaker_actors=1, **QUIET) as s:
        row = await s.breaker(window_ms=DAY_MS)
        await s.send(row.router_ids[0], [1.0] * 1_000)
        await until(lambda: holds(s, row.id, 1_000))
        (actor,) = [a for a in s.net.actors.values() if row.id in getattr(a, "_hosted", {})]
        gone = actor._hosted[row.id]
        changes = await s.store.delete_breaker(s.project.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        await until(lambda: is_dropped(gone))
        assert gone.breaker is not None
        assert gone.breaker.samples_held == 0


async def is_dropped(held: HostedBreaker) -> bool:
    return held.dropped
