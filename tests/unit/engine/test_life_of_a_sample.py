"""One sample's way through the parts without Ray: from the gateway to the journal's feed."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

import numpy as np

from breaker_actors.core.log_entries import encode_samples
from breaker_actors.messages import Part
from tests.support.cluster import service, until


async def test_a_breaker_trips_and_recovers_and_the_feed_tells_it_in_order(tmp_path: Path) -> None:
    """Steps of the ramp that fall into one evaluation are told as one."""
    async with service(tmp_path) as s:
        row = await s.breaker("checkout", cooldown_ms=500)
        page = await s.gateway.feed(0, 0, 0, 0)
        assert page.reset
        epoch, position, seen = page.epoch, page.position, []
        assert (await s.send(row.router_ids[0], [500.0] * 5)).status == "ok"
        await until(lambda: s.events(row.id))
        while not seen or seen[-1][0] != "closed":
            await s.send(row.router_ids[0], [10.0])
            page = await s.gateway.feed(0, epoch, position, 0.05)
            position = page.position
            seen += [(e.state, e.allow_rate) for e in page.entries]
        steps = [("open", 0.0), *(("half_open", rate) for rate in (0.2, 0.4, 0.6, 0.8, 1.0)), ("closed", 1.0)]
        assert seen == [step for step in steps if step in seen]
        assert [state for state, _ in groupby(state for state, _ in seen)] == ["open", "half_open", "closed"]
        events = await s.assert_events_equal_replay(row)
        assert [(e.prev, e.curr) for e in events] == [
            ("closed", "open"),
            ("open", "half_open"),
            ("half_open", "closed"),
        ]
        assert events[0].agg == {"avg": 500.0, "count": 5, "error_count": 0, "p95": 500.0}


async def test_a_record_reaches_only_the_breakers_of_its_metric(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        await s.send(row.router_ids[0], [500.0], metric="other")
        await s.send(row.router_ids[0], [20.0])

        async def counted() -> bool:
            return (await s.state(row.id)).view.sample_count == 1

        await until(counted)
        assert (await s.state(row.id)).view.value == 20.0


async def test_parts_of_several_metrics_arrive_in_one_record(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        now = s.clock.now_ms()
        payload = encode_samples(
            ["other", "latency"], [1, 2], np.full(3, now), np.array([900.0, 10.0, 30.0]), np.ones(3, bool)
        )
        (outcome,) = await s.gateway.ingest(s.project.id, [Part(row.router_ids[0], (os.urandom(16),), payload, 3)])
        assert outcome.status == "ok"

        async def counted() -> bool:
            return (await s.state(row.id)).view.sample_count == 2

        await until(counted)
        assert (await s.state(row.id)).view.value == 20.0


async def test_samples_for_an_unknown_router_are_not_owned(tmp_path: Path, monkeypatch: object) -> None:
    async with service(tmp_path) as s:
        from breaker_actors.transport.peers import RouterPeer

        payload = encode_samples(["m"], [1], np.array([1]), np.array([1.0]), np.ones(1, bool))
        (outcome,) = await RouterPeer(s.net, "router-0").append([Part("nobody", (b"k" * 16,), payload, 1)])
        assert outcome.status == "not_owner"


async def test_new_settings_take_effect_in_log_order(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(threshold=1000, window_ms=60_000)
        await s.send(row.router_ids[0], [500.0])
        assert (await s.state(row.id)).view.state == "closed"
        await s.edit(row.id, threshold=200)
        await s.send(row.router_ids[0], [500.0])
        await s.in_state(row.id, "open")
        await s.assert_events_equal_replay(row)


async def test_a_longer_window_counts_what_the_log_still_has(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(threshold=1e9, window_ms=100, kind="count")
        await s.send(row.router_ids[0], [1.0] * 7)

        async def forgotten() -> bool:
            return (await s.state(row.id)).view.sample_count == 0

        await until(forgotten)
        await s.edit(row.id, window_ms=60_000)

        async def back() -> bool:
            return (await s.state(row.id)).view.sample_count == 7

        await until(back)


async def test_a_breaker_on_two_routers_counts_both(tmp_path: Path) -> None:
    from breaker_actors.store.rows import RouterDraft

    async with service(tmp_path, router_actors=2) as s:
        row = await s.breaker(kind="count", threshold=1e9, window_ms=60_000)
        router, changes = await s.store.create_router(
            s.project.id, RouterDraft(name="second", breaker_ids=(row.id,)), s.clock.now_ms()
        )
        await s.gateway.configured(s.project.id, changes)
        await s.send(row.router_ids[0], [1.0] * 3)
        assert (await s.send(router.id, [1.0] * 4)).status == "ok"

        async def seven() -> bool:
            return (await s.state(row.id)).view.sample_count == 7

        await until(seven)


async def test_a_deleted_breaker_is_gone_everywhere(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        changes = await s.store.delete_breaker(s.project.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)

        async def gone() -> bool:
            return not await s.gateway.states(s.project.id, [row.id])

        await until(gone)

        async def let_go() -> bool:
            parts = s.net.actors.values()
            held = {i for part in parts for i in (*getattr(part, "_routers", ()), *getattr(part, "_hosted", ()))}
            return not held & {row.id, row.router_ids[0]}

        await until(let_go)
        again = await s.breaker("next")
        await s.send(again.router_ids[0], [500.0])
        await s.in_state(again.id, "open")
