"""Many changes of configuration at once: in few groups, in order per router, and never one that takes all the time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import GAP, Gap, encode_entry
from breaker_actors.core.rules import parse_rule
from breaker_actors.directory.config_dispatch import ConfigDispatch
from breaker_actors.gateway import gateway
from breaker_actors.messages import ChangeRow, SubscribeRequest
from breaker_actors.router import host
from breaker_actors.store.rows import BreakerDraft, BreakerItem
from breaker_actors.transport.peers import DIRECTORY
from breaker_actors.wal.base import Append
from tests.support.cluster import FAST_RULE, Service, service

MANY = 5 * host.CHANGES_AT_ONCE // 2


async def waiting(s: Service, count: int) -> list[ChangeRow]:
    """Changes for so many routers that `router-0` owns, which nobody has appended."""
    items = [BreakerItem(rule=parse_rule(FAST_RULE), name=f"b{n}") for n in range(count)]
    done = await s.store.replace_breakers(s.project.id, items, lambda rows, removed: None, s.clock.now_ms())
    await s.gateway.configured(s.project.id, done.change_ids)
    for row in done.rows:
        await s.fresh(row.id)
    await s.net.kill(DIRECTORY)
    changed = [BreakerItem(rule=parse_rule({"threshold": 7}, item.rule), name=item.name) for item in items]
    await s.store.replace_breakers(s.project.id, changed, lambda rows, removed: None, s.clock.now_ms())
    found: list[ChangeRow] = await s.store.pending_changes(10 * count)
    assert len({row.router_id for row in found}) == count
    return found


async def test_many_changes_ride_in_few_groups(tmp_path: Path) -> None:
    async with service(tmp_path, breaker_actors=1) as s:
        changes = await waiting(s, MANY)
        router: Any = s.net.actors["router-0"]
        before = router._work.calls
        assert (await router.change(changes)).offsets.keys() == {row.id for row in changes}
        assert router._work.calls - before <= -(-len(changes) // host.CHANGES_AT_ONCE) + 3  # and a heartbeat or two
        assert (await router.change(changes)).offsets.keys() == {row.id for row in changes}, "repeating is harmless"


async def test_a_number_that_is_given_again_is_another_change(tmp_path: Path) -> None:
    """A database that was put back gives the numbers of changes again that the logs have seen since."""
    async with service(tmp_path, breaker_actors=1) as s:
        (change,) = await waiting(s, 1)
        router: Any = s.net.actors["router-0"]
        first = (await router.change([change])).offsets[change.id]
        gap = (GAP, encode_entry(Gap(1, 2)))
        assert (await router.change([replace(change, entries=(gap,))])).offsets[change.id] == first + len(
            change.entries
        )
        assert (await router.change([change])).offsets[change.id] == first, "what is repeated is known"


async def test_a_log_that_is_slow_gets_as_many_as_it_takes_in_time(tmp_path: Path) -> None:
    """What a caller gave up would come again as a whole, and again."""
    async with service(tmp_path, breaker_actors=1) as s:
        changes = await waiting(s, MANY)
        router: Any = s.net.actors["router-0"]
        real = s.cluster.log.append

        async def slow(*args: Any) -> Any:
            await asyncio.sleep(host.CHANGES_S)
            return await real(*args)

        s.cluster.log.append = slow  # type: ignore[method-assign]
        begun, left, turns = s.clock.now_ms(), changes, 0
        while left:
            done = (await router.change(left)).offsets
            assert done
            assert [row.id for row in left[: len(done)]] == sorted(done), "those that came first are first"
            left, turns = left[len(done) :], turns + 1
            assert s.clock.now_ms() - begun <= turns * 3_000 * host.CHANGES_S
        assert turns >= 2


def test_slices_hold_one_change_of_a_router_each() -> None:
    def row(number: int, router: str) -> ChangeRow:
        return ChangeRow(id=number, router_id=router, project_id="p", entries=())

    rows = [row(1, "a"), row(2, "b"), row(3, "a"), row(4, "a"), row(5, "c")]
    assert [[r.id for r in part] for part in host._slices(rows)] == [[1, 2], [3], [4, 5]]
    assert [len(part) for part in host._slices([row(n, f"r{n}") for n in range(250)])] == [100, 100, 50]
    assert list(host._slices([])) == []


async def test_who_was_replaced_takes_no_log_for_damaged(tmp_path: Path) -> None:
    """A breaker has read what the new owner wrote, and asks the old one, who does not know of it yet."""
    async with service(tmp_path, breaker_actors=1) as s:
        row = await s.breaker(name="b")
        await s.fresh(row.id)
        router: Any = s.net.actors["router-0"]
        held = router._owned.by_id[row.router_ids[0]]
        await s.net.kill(DIRECTORY)
        (head,) = await s.cluster.log.acquire(held.slot, "another", [(held.id, held.epoch + 1)], s.clock.now_ms(), 0)
        now = s.clock.now_ms() + 60_000
        new = Append(held.id, held.epoch + 1, head.offset + 1, now, GAP, head.view_offset, encode_entry(Gap(now, now)))
        assert await s.cluster.log.append(held.slot, [new]) == [True]
        request = SubscribeRequest(router_id=held.id, breaker_id=row.id, epoch=1, applied=new.offset)
        assert await router.subscribe("breaker-0", [request]) == [None]
        assert (await router.status()).damaged == ()
        assert router._asides.waiting == 0


async def test_samples_wait_for_the_first_view_of_their_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router is owned a while before its log says who counts: 202 for what nobody will ever count would be a lie."""
    async with service(tmp_path) as s:
        append = ConfigDispatch._append

        async def nothing(*_: Any, **__: Any) -> dict[int, int]:
            return {}

        monkeypatch.setattr(ConfigDispatch, "_append", nothing)
        draft = BreakerDraft(rule=parse_rule(FAST_RULE | {"min_count": 3}), name="late")
        row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        assert not await s.gateway.configured(s.project.id, changes)
        (router_id,) = row.router_ids
        assert await s.slot(router_id), "it is owned"
        monkeypatch.setattr(gateway, "INGEST_S", 0.3)
        assert (await s.send(router_id, [1e9] * 9)).status == "failed"
        monkeypatch.setattr(gateway, "INGEST_S", 10.0)
        sending = asyncio.create_task(s.send(router_id, [1e9] * 9))
        await asyncio.sleep(0.3)
        monkeypatch.setattr(ConfigDispatch, "_append", append)
        assert (await sending).status == "ok"
        await s.in_state(row.id, "open")
        assert await s.gateway.configured(s.project.id, changes)
