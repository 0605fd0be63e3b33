"""The store or the log is away for a moment, or an owner is not the owner any more: nothing stays broken behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import GAP, VIEW, decode_gap, decode_view, encode_samples
from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Unavailable
from breaker_actors.messages import NOT_SUBSCRIBED, Part, SubscribeRequest
from breaker_actors.store.rows import BreakerDraft, RouterDraft, RouterRow
from breaker_actors.transport.peers import DIRECTORY, journal_name
from tests.support.cluster import FAST_RULE, Service, service, until


def failing(real: Callable[..., Any], times: int, when: Callable[..., bool] = lambda *a: True) -> Callable[..., Any]:
    """`real`, but its first calls of a kind say that nobody answers."""
    left = [times]

    async def call(*args: Any) -> Any:
        if left[0] and when(*args):
            left[0] -= 1
            raise Unavailable("away")
        return await real(*args)

    return call


def part(router_id: str) -> Part:
    payload = encode_samples(["latency"], [1], np.array([1]), np.array([1.0]), np.ones(1, bool))
    return Part(router_id, (os.urandom(16),), payload, 1)


async def gaps(s: Service, router_id: str) -> list[tuple[int, int]]:
    records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60)
    found = [decode_gap(r.payload) for r in records if r.kind == GAP]
    return [(g.from_ms, g.to_ms) for g in found]


async def test_a_failed_log_write_is_an_error_to_everything_in_its_group(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        router_id, router = row.router_ids[0], s.net.actors["router-0"]
        s.cluster.log.append = failing(s.cluster.log.append, 1)  # type: ignore[method-assign]
        got = await asyncio.gather(
            router.append([part(router_id)]),
            router.advance_watermark(5, [(router_id, row.id)]),
            router.subscribe("breaker-0", [SubscribeRequest(router_id, row.id, 1 << 60)]),
            router.release([]),
            return_exceptions=True,
        )
        assert got[0][0].status == "failed"
        assert [type(g) for g in got[1:]] == [Unavailable] * 3
        assert (await s.send(router_id, [1.0])).status == "ok"


@pytest.mark.parametrize("victim", ["router-0", "breaker-0"])
async def test_an_actor_that_says_hello_while_the_store_is_away_is_assigned_later(tmp_path: Path, victim: str) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        await s.net.kill(victim)
        s.store.claim = failing(s.store.claim, 1)  # type: ignore[method-assign]
        s.net.revive(victim.split("-")[0], victim)  # type: ignore[arg-type]
        assert (await s.send(row.router_ids[0], [500.0])).status == "ok"
        await s.in_state(row.id, "half_open")


async def test_a_hello_before_the_directory_knows_what_is_placed_is_not_lost(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        await s.net.kill(DIRECTORY)
        await s.net.kill("router-0")
        real = s.store.placements

        async def slow(kind: Any) -> Any:
            await asyncio.sleep(0.2)
            return await real(kind)

        s.store.placements = slow  # type: ignore[method-assign]
        s.net.revive("router", "router-0")
        await s.cluster.start_directory()
        assert (await s.send(row.router_ids[0], [1.0])).status == "ok"


async def test_a_new_breaker_is_placed_even_if_the_first_claim_fails(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        await s.breaker()
        s.store.claim = failing(s.store.claim, 1, lambda epoch, kind, owners: kind == "breaker")  # type: ignore[method-assign]
        row = await s.breaker()  # returns when its owner answers
        assert not (await s.state(row.id)).stale


async def test_a_refill_that_is_repeated_counts_nothing_twice(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker(kind="count", threshold=1000, window_ms=60_000)
        draft = RouterDraft(breaker_ids=(row.id,))
        second, changes = await s.store.create_router(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        for router_id in (row.router_ids[0], second.id):
            await s.send(router_id, [1.0] * 10)
        await until(lambda: counted(s, row.id, 20))
        await s.net.actors["breaker-0"].checkpoint()
        await s.net.kill("breaker-0")
        calls: list[str] = []

        def second_call(*args: Any) -> bool:
            calls.append(args[1])
            return len(calls) == 2

        s.cluster.log.find_some = failing(s.cluster.log.find_some, 10)  # type: ignore[method-assign]
        s.cluster.log.find = failing(s.cluster.log.find, 1, second_call)  # type: ignore[method-assign]
        s.net.revive("breaker", "breaker-0")
        await s.fresh(row.id)
        assert len(calls) == 2  # the second one failed, and all of it was read again
        assert await counted(s, row.id, 20)


async def counted(s: Service, breaker_id: str, count: int) -> bool:
    return (await s.state(breaker_id)).view.sample_count == count


async def test_a_gap_begins_after_what_was_promised(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1, heartbeat_interval_ms=10_000) as s:
        row = await s.breaker()
        router_id, router = row.router_ids[0], s.net.actors["router-0"]
        await s.send(router_id, [1.0])
        await asyncio.sleep(0.1)
        upto = s.clock.now_ms()
        await router.advance_watermark(upto, [(router_id, row.id)])
        await asyncio.sleep(4)
        router._outages._up_ms = upto - 60_000  # as if the process had slept for a minute before it promised
        await s.send(router_id, [1.0])
        found = await gaps(s, router_id)
        assert len(found) == 1
        assert found[0][0] >= upto
        assert found[0][1] - found[0][0] >= 1_000


async def test_who_is_no_longer_the_owner_of_a_router_promises_nothing(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        router_id = row.router_ids[0]
        zombie = s.net.actors.pop("router-0")
        s.net.revive("router", "router-0")
        assert (await s.send(router_id, [10.0])).status == "ok"
        assert await zombie.advance_watermark(s.clock.now_ms(), [(router_id, row.id)]) == [NOT_SUBSCRIBED]
        await zombie.stop()


async def test_an_id_that_is_made_again_owes_nothing_to_its_predecessor(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        journal = s.net.actors.pop(journal_name(0))
        await s.send(row.router_ids[0], [500.0] * 3)  # opens; its commit waits for the journal
        changes = await s.store.delete_breaker(s.project.id, row.id, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        draft = replace(BreakerDraft(rule=parse_rule(FAST_RULE)), id=row.id)
        _, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        await s.gateway.configured(s.project.id, changes)
        s.net.actors[journal_name(0)] = journal
        reading = await s.fresh(row.id)
        assert (reading.view.state, reading.view.transition_seq) == ("closed", 0)
        assert await s.events(row.id) == []


async def test_changes_of_a_router_keep_their_order_when_one_fails(tmp_path: Path) -> None:
    """An old view behind a newer one would be in force again."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        router, router_id = s.net.actors["router-0"], row.router_ids[0]
        await s.net.kill(DIRECTORY)
        for enabled in (False, True):

            def switch(stored: RouterRow, enabled: bool = enabled) -> RouterRow:
                return replace(stored, enabled=enabled)

            await s.store.update_router(s.project.id, router_id, switch, s.clock.now_ms())
        changes = await s.store.pending_changes(10)
        s.cluster.log.append = failing(s.cluster.log.append, 1)  # type: ignore[method-assign]
        assert (await router.change(changes)).offsets == {}
        assert (await router.change(changes)).offsets.keys() == {change.id for change in changes}
        records = await s.cluster.log.read(await s.slot(router_id), router_id, 0, 1 << 60)
        assert [decode_view(r.payload).enabled for r in records if r.kind == VIEW] == [True, False, True]


async def test_a_breaker_starts_though_the_answer_to_its_settling_was_lost(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        real, lost = s.store.settle_changes, []

        async def settle(*args: Any) -> None:
            await real(*args)
            if not lost:
                lost.append(args)
                raise Unavailable("the answer was lost")

        s.store.settle_changes = settle  # type: ignore[method-assign]
        row = await s.breaker()  # returns when its owner answers
        assert lost
        assert not (await s.state(row.id)).stale


async def test_duplicate_keys_are_noted_once_however_often_the_log_is_read_again(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker()
        router = s.net.actors["router-0"]
        for _ in range(20):
            router._appends.is_doubtful = True
            await s.send(row.router_ids[0], [1.0])
        assert len(router._owned.keys) == len(router._owned.by_id[row.router_ids[0]].keys)


async def test_an_event_tells_the_rule_it_was_made_under(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker(cooldown_ms=600)
        host = s.net.actors["breaker-0"]
        await s.send(row.router_ids[0], [500.0])
        await s.in_state(row.id, "open")
        host._watermarks.ask = lambda due, upto: asyncio.sleep(3600)  # the timer is due, its watermark does not come
        await asyncio.sleep(0.65)
        await s.edit(row.id, threshold=777)
        await s.in_state(row.id, "half_open")
        assert [(e.curr, e.rule["threshold"]) for e in await s.events(row.id)] == [("open", 100), ("half_open", 100)]


async def test_one_breaker_that_is_being_restored_does_not_make_the_others_stale(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        a, b = await s.breaker(), await s.breaker()
        waiting = s.net.actors["breaker-0"]._hosted[b.id]
        waiting.ready = False
        readings = await s.gateway.states(s.project.id, [a.id, b.id])
        waiting.be_ready()
        assert (readings[a.id].stale, readings[b.id].stale) == (False, True)
