"""Turns of the Notifier: what organisations begin in one while several have something to send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from breaker_actors.notify.limits import Pace
from breaker_actors.store.rows import BreakerRow, Leased
from tests.contract.outbox_world import OutboxWorld
from tests.unit.notify.test_notifier import Shop, empty, shop

__all__ = ["empty", "shop"]

PACE = Pace()


async def trip(world: OutboxWorld, rows: Sequence[BreakerRow], now_ms: int) -> None:
    """All of them in one commit."""
    await world.world.take_journal()
    commits = [world.commit(row.id, "open", ts_ms=now_ms) for row in rows]
    assert set(await world.world.write(*commits)) == {"ok"}


async def test_a_burst_waits_for_few_rows_of_another_organisations_backlog(shop: Shop) -> None:
    """Of a hundred alerts of one channel, beside sixty channels with 900 rows that were first. With longer turns all of
    these went before them: four a turn beside sixty-four."""
    many = await shop.neighbour("many")
    for _ in range(60):
        await many.channel()
    await trip(many, [await many.breaker(f"b{n}") for n in range(15)], shop.clock.ms)
    channel = await shop.channel()
    await trip(shop, [await shop.breaker(f"b{n}") for n in range(100)], shop.clock.ms)
    begun, lease = list[Counter[str]](), shop.store.lease_deliveries

    async def noted(*args: Any) -> list[Leased]:
        found = await lease(*args)
        begun.append(sum((Counter({one.org_id: len(one.rows)}) for one in found), Counter[str]()))
        return found

    shop.store.lease_deliveries = noted  # type: ignore[method-assign]
    await shop.notifier.run_for(20)
    mine, theirs = shop.world.org_id, many.world.org_id
    assert len(shop.sender.got(channel.id)) == 100
    assert sum(turn[theirs] for turn in begun) == 900
    beside = [turn for turn in begun if turn[mine]]
    assert max(turn[theirs] for turn in beside) <= PACE.begun_beside_max
    last = max(n for n, turn in enumerate(begun) if turn[mine])
    assert sum(turn[theirs] for turn in begun[:last]) <= 500
    assert max(turn[theirs] for turn in begun) > PACE.begun_beside_max, "and then it goes faster"
