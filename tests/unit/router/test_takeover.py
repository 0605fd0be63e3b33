"""A takeover of routers whose logs have many duplicate keys: read a page at a time, beside appends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from breaker_actors.core.log_entries import encode_samples
from breaker_actors.errors import Unavailable
from breaker_actors.messages import AppendResult, Part, RouterAssignment
from breaker_actors.router import host as hosts
from breaker_actors.router import takeover
from breaker_actors.transport.peers import DIRECTORY
from breaker_actors.wal.base import RouterHead, StoredKey
from tests.support.cluster import Service, service

PAGE, MANY = 10, 65


class Watched:
    """The log of a service: what its calls answered, and what holds them up."""

    def __init__(self, s: Service) -> None:
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.pages, self.answered = list[int](), list[int]()
        self.fails: set[str] = set()
        log: Any = s.cluster.log
        keys, acquire = log.keys, log.acquire

        async def watched_keys(slot: str, after: Mapping[str, Any], each: int) -> dict[str, list[StoredKey]]:
            await self.goes_on.wait()
            found: dict[str, list[StoredKey]] = await keys(slot, after, each)
            self.pages.append(sum(map(len, found.values())))
            return found

        async def watched_acquire(slot: str, owner: str, routers: Sequence[Any], *rest: Any) -> list[RouterHead]:
            if self.fails & {router_id for router_id, _ in routers}:
                raise Unavailable("away")
            heads: list[RouterHead] = await acquire(slot, owner, routers, *rest)
            self.answered += [len(head.keys) for head in heads]
            return heads

        log.keys, log.acquire = watched_keys, watched_acquire


@pytest.fixture
async def s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(takeover, "KEYS_AT_ONCE", PAGE)
    async with service(tmp_path, breaker_actors=1, router_actors=1) as found:
        yield found


def key(n: int) -> bytes:
    return b"request-%08d" % n


async def send(s: Service, router_id: str, key: bytes) -> str:
    """Appends a sample past the replicas, which don't know of what a test gives; its outcome."""
    payload = encode_samples(["latency"], [1], np.array([s.clock.now_ms()]), np.array([1.0]), np.ones(1, bool))
    outcome: AppendResult = (await s.net.actors["router-0"].append([Part(router_id, (key,), payload, 1)]))[0]
    return outcome.status


async def of_another(s: Service, *router_ids: str) -> list[RouterAssignment]:
    """Routers that the RouterActor knew nothing of, as they are given to it."""
    await s.net.kill(DIRECTORY)
    s.net.actors["router-0"]._owned.keys.__init__(1_000_000, 600_000)  # type: ignore[misc] # as in a new process
    await s.net.actors["router-0"].release(router_ids)
    stored = await s.store.router_assignments(router_ids)
    return [replace(one, epoch=one.epoch + 1) for one in stored]


async def test_keys_are_read_beside_appends_and_a_page_at_a_time(s: Service) -> None:
    """None of them is read while the router is taken; each is known then."""
    mine, theirs = (await s.breaker()).router_ids[0], (await s.breaker()).router_ids[0]
    for n in range(MANY):
        assert await send(s, theirs, key(n)) == "ok"
    log, host = Watched(s), s.net.actors["router-0"]
    given = await of_another(s, theirs)
    log.goes_on.clear()
    taking = asyncio.create_task(host.acquire(given))
    for n in range(3):
        assert await send(s, mine, key(n)) == "ok"
    assert not taking.done()
    log.goes_on.set()
    assert await taking == [theirs]
    assert log.answered == [0]
    assert max(log.pages) == PAGE
    assert sum(log.pages) >= MANY
    for n in (0, MANY // 2, MANY - 1):
        assert await send(s, theirs, key(n)) == "duplicate"
    assert len(host._owned.by_id[theirs].keys) == sum(log.pages)
    assert await send(s, theirs, key(MANY)) == "ok"


async def test_what_is_owned_already_reads_no_keys_again(s: Service) -> None:
    """After a write of unknown outcome nobody waits for more than what may have come with that."""
    row = await s.breaker()
    for n in range(MANY):
        assert await send(s, row.router_ids[0], key(n)) == "ok"
    log, host = Watched(s), s.net.actors["router-0"]
    append = s.cluster.log.append

    async def lost(*args: Any) -> list[bool]:
        s.cluster.log.append = append  # type: ignore[method-assign]
        await append(*args)
        raise Unavailable("the answer is lost")

    s.cluster.log.append = lost  # type: ignore[method-assign]
    assert await send(s, row.router_ids[0], key(MANY)) == "failed"
    assert await send(s, row.router_ids[0], key(MANY)) == "duplicate"
    assert (log.pages, log.answered) == ([], [1])
    for n in range(MANY + 1):
        assert await send(s, row.router_ids[0], key(n)) == "duplicate"
    assert len(host._owned.keys) == len(host._owned.by_id[row.router_ids[0]].keys)


async def test_a_long_reading_goes_on_with_the_next_call(s: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a router without any is taken meanwhile."""
    few, many = (await s.breaker()).router_ids[0], (await s.breaker()).router_ids[0]
    for n in range(MANY):
        assert await send(s, many, key(n)) == "ok"
    log, host = Watched(s), s.net.actors["router-0"]
    given = {one.router_id: one for one in await of_another(s, few, many)}
    monkeypatch.setattr(hosts, "ACQUIRE_S", -1.0)
    assert await host.acquire(list(given.values())) == [few]
    for _ in range(MANY // PAGE):
        with pytest.raises(Unavailable, match="duplicate keys of logs are being read"):
            await host.acquire([given[many]])
    assert await host.acquire([given[many]]) == [many]
    assert log.answered == [0, 0]
    assert await send(s, many, key(0)) == "duplicate"


async def test_routers_are_taken_beside_those_that_fail(s: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ACQUIRE_AT_ONCE", 1)
    ids = [(await s.breaker()).router_ids[0] for _ in range(3)]
    log, host = Watched(s), s.net.actors["router-0"]
    given = await of_another(s, *ids)
    log.fails = {given[0].router_id}
    assert await host.acquire(given) == [one.router_id for one in given[1:]]
    with pytest.raises(Unavailable, match="away"):
        await host.acquire(given[:1])
    log.fails.clear()
    assert await host.acquire(given[:1]) == [given[0].router_id]


async def test_a_log_keeps_no_more_keys_than_its_owner(s: Service) -> None:
    """What the owner forgot early is dropped there with the next upkeep; others' keys stay."""
    mine, theirs = (await s.breaker()).router_ids[0], (await s.breaker()).router_ids[0]
    host = s.net.actors["router-0"]
    assert await send(s, theirs, key(0)) == "ok"
    host._owned.keys._ages._keys_max = PAGE
    for n in range(1, MANY):
        assert await send(s, theirs, key(n)) == "ok"
    await host.trim([], [])
    slot = await s.slot(theirs)
    stored = await s.cluster.log.keys(slot, {theirs: (0, b""), mine: (0, b"")}, 1_000)
    held = {i: host._owned.by_id[i].keys for i in (mine, theirs)}
    assert sum(map(len, held.values())) == PAGE
    assert {i: {one.key: one.offset for one in found} for i, found in stored.items()} == held
    assert await send(s, theirs, key(MANY - 1)) == "duplicate"
