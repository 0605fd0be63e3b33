"""Parts die, come back or refuse to die while samples flow: the log decides, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from breaker_actors.core.rules import parse_rule
from breaker_actors.errors import Unavailable
from breaker_actors.store.rows import BreakerDraft, BreakerRow
from breaker_actors.transport.peers import DIRECTORY, journal_name
from tests.support.cluster import FAST_RULE, Service, service, until


@asynccontextmanager
async def load(s: Service, row: BreakerRow) -> AsyncIterator[list[int]]:
    """Alternating good and bad spells for one breaker; yields the list of accepted sample counts."""
    accepted: list[int] = []
    stop = asyncio.Event()

    async def send() -> None:
        spell = 0
        while not stop.is_set():
            spell += 1
            for _ in range(15):
                outcome = await s.send(row.router_ids[0], [500.0 if spell % 3 == 1 else 10.0] * 4)
                assert outcome.status in ("ok", "duplicate"), outcome
                accepted.append(4)
                await asyncio.sleep(0.005)

    task = asyncio.create_task(send())
    try:
        yield accepted
    finally:
        stop.set()
        await task


async def logged(s: Service, row: BreakerRow) -> int:
    """Samples in the log of the breaker's router."""
    from breaker_actors.core.log_entries import SAMPLES, decode_samples

    records = await s.cluster.log.read(await s.slot(row.router_ids[0]), row.router_ids[0], 0, 1 << 60, 1 << 30)
    return sum(len(decode_samples(r.payload).batch) for r in records if r.kind == SAMPLES)


async def enough(s: Service, row: BreakerRow, more: int) -> None:
    """Waits for `more` further events."""
    start = len(await s.events(row.id))

    async def there() -> bool:
        return len(await s.events(row.id)) >= start + more

    await until(there, 20)


@pytest.mark.parametrize("kind", ["breaker", "router"])
async def test_a_killed_actor_comes_back_as_if_nothing_happened(tmp_path: Path, kind: str) -> None:
    async with service(tmp_path, router_actors=1, checkpoint_interval_ms=200) as s:
        row = await s.breaker(cooldown_ms=100)
        async with load(s, row) as accepted:
            await enough(s, row, 4)
            victim = await s.owner(row.id) if kind == "breaker" else "router-0"
            await s.net.kill(victim)
            s.net.revive(kind, victim)  # type: ignore[arg-type]
            await enough(s, row, 4)
        assert await logged(s, row) == sum(accepted)
        reading = await s.fresh(row.id)
        events = await s.assert_events_equal_replay(row)
        assert reading.view.transition_seq >= len(events) - 1


async def test_a_killed_journal_and_directory_come_back(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker(cooldown_ms=100)
        async with load(s, row):
            await enough(s, row, 2)
            await s.net.kill(journal_name(0))
            await s.cluster.start_journal()
            await enough(s, row, 2)
            await s.net.kill(DIRECTORY)
            await s.cluster.start_directory()
            await enough(s, row, 2)
        await s.assert_events_equal_replay(row)
        other = await s.breaker("other")
        await s.send(other.router_ids[0], [500.0])
        await s.in_state(other.id, "open")


async def test_a_zombie_breaker_owner_changes_nothing(tmp_path: Path) -> None:
    """Two live hosts over one store: the old one is refused by routers and fenced by the journal."""
    async with service(tmp_path, checkpoint_interval_ms=100) as s:
        row = await s.breaker()
        await s.send(row.router_ids[0], [10.0])
        name = await s.owner(row.id)
        zombie = s.net.actors.pop(name)  # still runs, nobody knows it any more
        s.net.revive("breaker", name)

        async def moved() -> bool:
            successor = s.net.actors[name]
            held = (await successor.report()).epochs
            return held.get(row.id, 0) > (await zombie.report()).epochs[row.id]

        await until(moved)
        old_epoch = (await zombie.report()).epochs[row.id]
        held = zombie._hosted[row.id]
        assert held.breaker is not None
        # the zombie believes in a trip of its own and tries to commit it
        from breaker_actors.core.model import Batch

        effects = held.breaker.ingest(Batch.of([(s.clock.now_ms(), 900.0, True)]), s.clock.now_ms())
        assert effects
        await zombie._commit(held, effects)
        assert zombie.meters.value("breakers_fenced_total") == 1
        assert row.id not in (await zombie.report()).epochs
        assert await s.events(row.id) == []
        assert (await s.fresh(row.id)).view.state == "closed"
        # and the successor goes on
        await s.send(row.router_ids[0], [900.0] * 3)
        await s.in_state(row.id, "open")
        assert (await s.net.actors[name].report()).epochs[row.id] > old_epoch
        await s.assert_events_equal_replay(row)
        await zombie.stop()


async def test_a_zombie_router_owner_appends_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        zombie = s.net.actors.pop("router-0")
        s.net.revive("router", "router-0")
        await s.send(row.router_ids[0], [10.0])
        before = await logged(s, row)
        import os

        import numpy as np

        from breaker_actors.core.log_entries import encode_samples
        from breaker_actors.messages import Part

        payload = encode_samples(["latency"], [1], np.array([1]), np.array([1.0]), np.ones(1, bool))
        (outcome,) = await zombie.append([Part(row.router_ids[0], (os.urandom(16),), payload, 1)])
        assert outcome.status == "not_owner"
        assert zombie.meters.value("breakers_log_refusals_total") == 1
        assert await logged(s, row) == before
        await zombie.stop()


async def test_a_zombie_directory_places_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        zombie = s.net.actors.pop(DIRECTORY)
        await s.cluster.start_directory()
        from breaker_actors.errors import Fenced

        row = await s.breaker()
        with pytest.raises(Fenced):
            await zombie._placer.claim("breaker", {row.id: "breaker-1"})
        await zombie.stop()


async def test_a_zombie_journal_stores_nothing(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        zombie = s.net.actors[journal_name(0)]
        await s.cluster.start_journal()
        with pytest.raises(Unavailable):  # whoever listens to its successor would not hear of it
            await zombie.announce("config", [s.project.id])
        held = next(h for a in s.net.actors.values() if hasattr(a, "_hosted") for h in a._hosted.values())
        with pytest.raises(Unavailable):
            await zombie.commit([held.commit(())])
        await s.send(row.router_ids[0], [900.0])
        await s.in_state(row.id, "open")
        await zombie.stop()


async def test_a_repeated_part_counts_once_also_across_a_restart(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        row = await s.breaker()
        router_id = row.router_ids[0]
        key = b"request-key-0001"
        first = await s.send(router_id, [10.0] * 3, keys=(b"append-id-000001", key))
        again = await s.send(router_id, [10.0] * 3, keys=(b"append-id-000002", key))
        assert (first.status, again.status) == ("ok", "duplicate")
        assert again.offset == first.offset
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        assert (await s.send(router_id, [10.0] * 3, keys=(b"append-id-000003", key))).status == "duplicate"
        both = await asyncio.gather(*(s.send(router_id, [10.0], keys=(b"%016d" % i, b"same" * 4)) for i in range(20)))
        assert {o.offset for o in both} == {both[0].offset}
        assert await logged(s, row) == 4


async def test_another_body_under_a_known_key_is_refused_also_across_a_restart(tmp_path: Path) -> None:
    """Keys of a part: its append id, key and body, the key alone."""
    async with service(tmp_path) as s:
        row = await s.breaker()
        router_id, key, body = row.router_ids[0], b"key-alone-000001", b"key-and-body-001"
        assert (await s.send(router_id, [10.0], keys=(b"append-id-000001", body, key))).status == "ok"
        for n in (2, 3):
            again = await s.send(router_id, [10.0], keys=(b"append-id-%06d" % n, body, key))
            other = await s.send(router_id, [20.0], keys=(b"another-id-%05d" % n, b"key-and-body-002", key))
            assert (again.status, other.status) == ("duplicate", "reused")
            await s.net.kill("router-0")
            s.net.revive("router", "router-0")
        parts = [(b"%016d" % n, b"%016d" % (n % 2 + 100), b"same" * 4) for n in range(10)]
        words = {o.status for o in await asyncio.gather(*(s.send(router_id, [10.0], keys=keys) for keys in parts))}
        assert words == {"ok", "reused"}, "within one group, too"
        assert await logged(s, row) == 2


async def test_a_signed_part_is_known_by_its_signature_and_by_its_key(tmp_path: Path) -> None:
    """Signed anew it is the same request, without its key, too; another body under the key is none."""
    async with service(tmp_path) as s:
        row = await s.breaker()
        router_id, key, body = row.router_ids[0], b"key-alone-000001", b"key-and-body-001"

        async def sent(n: int, *keys: bytes) -> str:
            return (await s.send(router_id, [10.0], keys=(b"append-id-%06d" % n, *keys))).status

        assert await sent(1, b"signature-000001", body, key) == "ok"
        assert await sent(2, b"signature-000001", body, key) == "duplicate"
        assert await sent(3, b"signature-000002", body, key) == "duplicate"
        assert await sent(4, b"signature-000001") == "duplicate"
        assert await sent(5, b"signature-000003", b"key-and-body-002", key) == "reused"
        assert await sent(6, b"signature-000003") == "ok", "nothing of what was refused is kept"
        assert await logged(s, row) == 2


async def test_an_outage_of_a_router_is_a_gap_in_its_log(tmp_path: Path) -> None:
    """A pessimistic breaker in half_open does not trip again over silence in which nobody could be heard."""
    async with service(tmp_path, heartbeat_interval_ms=100) as s:
        row = await s.breaker(half_open_indeterminate_policy="pessimistic", eval_interval_ms=400, cooldown_ms=50)
        await s.send(row.router_ids[0], [500.0])
        await s.in_state(row.id, "half_open")
        await s.net.kill("router-0")
        await asyncio.sleep(1.3)  # the outage itself
        s.net.revive("router", "router-0")
        assert (await s.send(row.router_ids[0], [10.0])).status == "ok"
        await s.in_state(row.id, "half_open")
        assert [e.curr for e in await s.events(row.id)] == ["open", "half_open"]
        assert s.net.actors["router-0"].meters.value("breakers_log_gaps_total") == 1
        await s.assert_events_equal_replay(row)


async def test_a_restart_of_everything_keeps_states_and_repeats_no_event(tmp_path: Path) -> None:
    from breaker_actors.persistence import make_log, make_store
    from tests.support.in_process import LocalCluster

    async with service(tmp_path) as s:
        rows = [await s.breaker(f"b{i}", cooldown_ms=3_600_000) for i in range(20)]
        for row in rows[::2]:
            await s.send(row.router_ids[0], [500.0])
        for row in rows[::2]:
            await s.in_state(row.id, "open")
        before = {row.id: await s.events(row.id) for row in rows}
        since = {row.id: (await s.fresh(row.id)).view.state_since_ms for row in rows}
        settings, project, clock = s.cluster.settings, s.project, s.clock
    store = make_store(settings)
    await store.open()
    async with LocalCluster(store, make_log(settings), clock, settings) as cluster:
        s = Service(cluster, project)
        for i, row in enumerate(rows):
            reading = await s.fresh(row.id)
            assert reading.view.state == ("open" if i % 2 == 0 else "closed")
            assert reading.view.state_since_ms == since[row.id]
            assert await s.events(row.id) == before[row.id]


async def test_replicas_hear_of_a_change_that_could_not_be_announced_at_once(tmp_path: Path) -> None:
    """Also of one that concerns no router: nothing is written that would tell of it later."""
    async with service(tmp_path) as s:
        call, refused = s.net.call, asyncio.Event()

        async def deaf(actor: str, method: str, *args: Any) -> Any:
            if method == "announce" and not refused.is_set():
                refused.set()
                raise Unavailable("not now")
            return await call(actor, method, *args)

        s.net.call = deaf  # type: ignore[method-assign]
        page = await s.gateway.feed(0, 0, 0, 0.0)
        await s.gateway.configured(s.project.id, [])
        assert refused.is_set()

        async def told() -> bool:
            news = await s.gateway.feed(0, page.epoch, page.position, 1.0)
            return any((e.kind, e.project_id) == ("config", s.project.id) for e in news.entries)

        await until(told)


async def test_a_settling_that_succeeds_after_it_was_given_up_starts_its_breaker(tmp_path: Path) -> None:
    async with service(tmp_path) as s:
        settle, late = s.store.settle_changes, list[tuple[int, Mapping[int, int]]]()

        async def given_up(epoch: int, offsets: Mapping[int, int]) -> None:
            if late:
                return await settle(epoch, offsets)
            late.append((epoch, offsets))
            raise Unavailable("no answer came")

        s.store.settle_changes = given_up  # type: ignore[method-assign]
        draft = BreakerDraft(rule=parse_rule(FAST_RULE), name="late")
        row, changes = await s.store.create_breaker(s.project.id, draft, s.clock.now_ms())
        applying = asyncio.create_task(s.gateway.configured(s.project.id, changes))

        async def tried() -> bool:
            return bool(late)

        await until(tried)
        await settle(*late[0])
        assert await s.fresh(row.id)
        await applying
