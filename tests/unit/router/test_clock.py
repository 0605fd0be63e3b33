"""A RouterActor whose clock is not what it was: no sample is taken that could not count, and it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.cli.recover import make_whole
from api.context.appended import check_outcomes
from api.problems import status_of
from breaker_actors.clock import SteadyClock
from breaker_actors.errors import ClockBehindLog
from breaker_actors.messages import AppendResult
from breaker_actors.persistence import make_log, make_store
from breaker_actors.router.host import RouterHost
from tests.support.cluster import Service, service, until

HOUR_MS = 3_600_000


class Shifted:
    """A clock that is off by `ms`."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self.ms = 0

    def now_ms(self) -> int:
        return int(self._clock.now_ms()) + self.ms

    def monotonic(self) -> float:
        return float(self._clock.monotonic())


def shifted(s: Service, name: str, steady: bool) -> Shifted:
    """The clock of an actor, from here on another one: believed as actors do, or at once."""
    host: Any = s.net.actors[name]
    wrong = Shifted(s.clock)
    clock = SteadyClock(wrong, s.cluster.settings.clock_step_max_ms) if steady else wrong
    parts = [host, *vars(host).values()]
    for part in [*parts, getattr(getattr(host, "_watermarks", None), "timers", None)]:
        if hasattr(part, "_clock"):
            part._clock = clock
    return wrong


async def test_a_clock_that_was_ahead_for_a_moment_harms_nobody(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker(window_ms=2_000, min_count=3, cooldown_ms=60_000)
        clocks = [shifted(s, name, steady=True) for name in ("router-0", "breaker-0")]
        for clock in clocks:
            clock.ms = 2 * HOUR_MS
        assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        router: Any = s.net.actors["router-0"]
        assert (await router.status()).clock_doubted_ms == 2 * HOUR_MS
        assert "stepped ahead by 7200 s" in await s.gateway.notice()
        for clock in clocks:
            clock.ms = 0
        assert (await s.send(row.router_ids[0], [1e9] * 9)).status == "ok"
        await s.in_state(row.id, "open")
        assert await s.gateway.notice() == ""


async def test_a_log_that_is_ahead_of_the_clock_takes_no_samples(tmp_path: Path) -> None:
    """They would get 202, and count for nobody. What comes of it is told; another router's go on."""
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        row = await s.breaker()
        clock = shifted(s, "router-0", steady=False)
        clock.ms = HOUR_MS
        assert (await s.send(row.router_ids[0], [1.0], keys=(b"k" * 16,))).status == "ok"
        clock.ms = 0
        assert (await s.send(row.router_ids[0], [1.0])).status == "clock_behind"
        assert (await s.send(row.router_ids[0], [1.0], keys=(b"k" * 16,))).status == "duplicate"
        router: RouterHost = s.net.actors["router-0"]
        figures = await router.status()
        assert figures.logs_ahead == tuple(row.router_ids)
        assert HOUR_MS - 5_000 < figures.ahead_ms <= HOUR_MS
        assert "logs are up to 36" in await s.gateway.notice()

        async def is_told() -> bool:
            return bool((await s.net.actors["breaker-0"].status()).ahead == 1)

        await until(is_told)
        fresh = await s.breaker(name="made since")
        assert (await s.send(fresh.router_ids[0], [1e9] * 9)).status == "ok"
        await s.in_state(fresh.id, "open")


def test_the_answer_has_a_word_of_its_own() -> None:
    with pytest.raises(ClockBehindLog) as raised:
        check_outcomes([AppendResult("ok"), AppendResult("clock_behind")])
    assert (status_of(raised.value), raised.value.code) == (503, "clock_behind_log")


async def test_a_breaker_whose_clock_is_ahead_gets_no_watermark(tmp_path: Path) -> None:
    """One would move its router's stamps ahead, and with them what samples count for everybody."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        router: RouterHost = s.net.actors["router-0"]
        far = s.clock.now_ms() + HOUR_MS
        (answer,) = await router.advance_watermark(far, [(row.router_ids[0], row.id)])
        assert answer.status == "unavailable"
        assert (await s.send(row.router_ids[0], [1e9] * 9)).status == "ok"
        await s.in_state(row.id, "open")


async def test_an_operator_sets_logs_back(tmp_path: Path) -> None:
    """Breakers keep state and numbers, count what comes from then on, and go on by their timers."""
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        trips = await s.breaker(name="trips", window_ms=2_000, cooldown_ms=3_000)
        calm = await s.breaker(name="calm", window_ms=2_000, min_count=3)
        for name in ("router-0", "breaker-0"):
            shifted(s, name, steady=False).ms = HOUR_MS
        ahead_ms = s.clock.now_ms() + HOUR_MS
        assert (await s.send(trips.router_ids[0], [1e9] * 9, ts_ms=ahead_ms)).status == "ok"
        assert (await s.send(calm.router_ids[0], [1.0])).status == "ok"
        await s.in_state(trips.id, "open")
        await s.net.call("breaker-0", "checkpoint")
        project = s.project
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        assert (await s.send(calm.router_ids[0], [1.0])).status == "clock_behind"
        now_ms = s.clock.now_ms()
    log, store = make_log(s.cluster.settings), make_store(s.cluster.settings)
    await store.open()
    for router in await store.router_assignments([*trips.router_ids, *calm.router_ids]):
        assert await make_whole(store, log, router, now_ms, False, s.cluster.settings.clock_step_max_ms)
    await log.close()
    await store.close()
    async with service(tmp_path, breaker_actors=1, router_actors=1) as s:
        s.project = project
        await s.fresh(trips.id)
        assert (await s.state(trips.id)).view.state == "open"
        assert (await s.send(calm.router_ids[0], [1e9] * 9)).status == "ok"
        await s.in_state(calm.id, "open")
        await s.in_state(trips.id, "half_open")
        assert (await s.state(trips.id)).view.transition_seq == 2
        assert (await s.net.actors["breaker-0"].status()).ahead == 0
