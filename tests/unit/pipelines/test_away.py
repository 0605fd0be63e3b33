"""When the service was away from a project, out of its routers' own logs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from breaker_actors.settings import Settings
from pipelines import away as module
from pipelines.away import Away, away, joined
from tests.support.cluster import Service, service

RULE = {"cooldown_ms": 100, "window_ms": 150, "eval_interval_ms": 20}


async def asked(s: Service, since_ms: int, *, late: bool = False, settings: Settings | None = None) -> Away:
    given = settings or s.cluster.settings
    return await asyncio.to_thread(away, s.project.id, given, since_ms, s.clock.now_ms(), lambda: late)


async def test_a_stretch_without_a_router_is_told(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        busy, quiet = await s.breaker("busy", **RULE), await s.breaker("quiet", **RULE)
        for router_id in (busy.router_ids[0], quiet.router_ids[0]):
            await s.send(router_id, [1.0])
        begun_ms = s.clock.now_ms()
        assert (await asked(s, 0)).stretches == []
        await s.net.kill("router-0")
        await asyncio.sleep(1.5)  # only a router that was away for a second writes it down
        s.net.revive("router", "router-0")
        for router_id in (busy.router_ids[0], quiet.router_ids[0]):
            await s.send(router_id, [1.0])
        ended_ms = s.clock.now_ms()
        ((from_ms, to_ms),) = (await asked(s, begun_ms)).stretches
        assert to_ms - from_ms >= 1_000
        assert from_ms <= begun_ms + 100
        assert begun_ms < to_ms <= ended_ms
        assert (await asked(s, to_ms)).stretches == []  # it is over by then


async def test_what_takes_too_long_is_known_since_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    async with service(tmp_path) as s:
        row = await s.breaker("b", **RULE)
        begun_ms = s.clock.now_ms()
        for _ in range(20):
            await s.send(row.router_ids[0], [1.0])
            await asyncio.sleep(0.01)
        assert (await asked(s, begun_ms)).known_ms == begun_ms
        assert (await asked(s, begun_ms, late=True)).known_ms > begun_ms
        monkeypatch.setattr(module, "RECORDS_MAX", 8)
        assert (await asked(s, begun_ms)).known_ms > begun_ms


async def test_nothing_is_known_of_what_the_logs_do_not_keep(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        now_ms, day_ms = s.clock.now_ms(), 86_400_000
        assert s.cluster.settings.log_retention_ms == day_ms
        assert (await asked(s, now_ms - 7 * day_ms)).known_ms >= now_ms - day_ms


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], []),
        ([(1, 3), (3, 4)], [(1, 4)]),
        ([(5, 9), (1, 3), (2, 4)], [(1, 4), (5, 9)]),
        ([(1, 9), (2, 3)], [(1, 9)]),
    ],
)
def test_what_touches_is_one(given: list[tuple[int, int]], told: list[tuple[int, int]]) -> None:
    assert joined(given) == told
