"""Turns of the Notifier: what an organisation gets in one, and what becomes of rows that a channel has in hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from breaker_actors.core.model import StateWord
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.store.rows import BreakerRow, Leased
from tests.contract.outbox_world import OutboxWorld
from tests.support.notifying import DOWN, SENT
from tests.unit.notify.test_notifier import HOUR, Shop, empty, shop

__all__ = ["empty", "shop"]

PACE = Pace()


async def breakers(world: OutboxWorld, count: int) -> list[BreakerRow]:
    return [await world.breaker(f"b{n}") for n in range(count)]


async def trip(world: OutboxWorld, rows: Sequence[BreakerRow], now_ms: int, *moves: StateWord) -> None:
    """All of them in one commit."""
    await world.world.take_journal()
    commits = [world.commit(row.id, *(moves or ("open",)), ts_ms=now_ms) for row in rows]
    assert set(await world.world.write(*commits)) == {"ok"}


class Turns:
    """What each organisation got in each turn; `between`: is done before each."""

    def __init__(self, shop: Shop, between: Callable[[], Awaitable[None]] | None = None) -> None:
        self.got: list[Counter[str]] = []
        lease = shop.store.lease_deliveries

        async def noted(*args: Any) -> list[Leased]:
            if between is not None:
                await between()
            found = await lease(*args)
            self.got.append(Counter({one.org_id: 0 for one in found}))
            for one in found:
                self.got[-1][one.org_id] += len(one.rows)
            return found

        shop.store.lease_deliveries = noted  # type: ignore[method-assign]

    def of(self, org_id: str) -> list[int]:
        """How much it got in the turns from its first one to its last one."""
        mine = [got[org_id] for got in self.got]
        there = [n for n, count in enumerate(mine) if count]
        return mine[there[0] : there[-1] + 1] if there else []


async def backlog(shop: Shop, channels: int, rows: int) -> OutboxWorld:
    """Another organisation, with so many rows for each of its channels."""
    many = await shop.neighbour("many")
    its = await breakers(many, rows)
    for _ in range(channels):
        await many.channel()
    await trip(many, its, shop.clock.ms)
    return many


async def test_a_burst_beside_a_backlog_takes_few_turns(shop: Shop) -> None:
    """A hundred alerts of one channel, and sixty channels of another organisation with 600 rows that were first: 25
    turns where a turn gives no more than places. Some turns find rows in hand, and give none."""
    many = await backlog(shop, 60, 10)
    channel, rows = await shop.channel(), await breakers(shop, 100)
    await trip(shop, rows, shop.clock.ms)
    turns = Turns(shop)
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(channel.id)) == 100
    mine, theirs = turns.of(shop.world.org_id), turns.of(many.world.org_id)
    assert len(mine) <= 8
    assert sum(n > 0 for n in mine) <= 4
    assert sum(mine) == 100
    assert max(mine + theirs) <= PACE.begun_max
    assert sum(theirs) == 600
    assert max(shop.sender.most.values()) <= PACE.channel_max


async def test_a_steady_inflow_beside_a_backlog_is_never_more_than_a_turn_behind(shop: Shop) -> None:
    """Eight rows come in each turn: each one gets what came before it."""
    await backlog(shop, 60, 10)
    channel, rows = await shop.channel(), await breakers(shop, 80)
    behind: list[int] = []

    async def come() -> None:
        some = [rows.pop() for _ in range(min(8, len(rows)))]
        if some:
            behind.append(80 - len(rows) - len(some) - len(shop.sender.got(channel.id)))
            await trip(shop, some, shop.clock.ms)
            assert shop.notifier.host is not None
            await shop.notifier.host.nudge()

    Turns(shop, come)
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(channel.id)) == 80
    assert max(behind) <= 16


async def test_many_channels_of_one_row_each_take_no_more_than_one_channel_beside_them(shop: Shop) -> None:
    many = await backlog(shop, 90, 1)
    channel, rows = await shop.channel(), await breakers(shop, 100)
    await trip(shop, rows, shop.clock.ms)
    turns = Turns(shop)
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(channel.id)) == 100
    assert len(turns.of(shop.world.org_id)) <= 4
    assert max(turns.of(many.world.org_id)) <= PACE.begun_max
    assert sum(turns.of(many.world.org_id)) == 90


async def test_rows_in_hand_keep_the_order_of_each_breaker(shop: Shop) -> None:
    channel, rows = await shop.channel(), await breakers(shop, 40)
    for _ in range(3):
        await trip(shop, rows, shop.clock.ms, "open", "half_open", "closed")
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(channel.id)) == 240
    assert shop.sender.most[channel.id] == PACE.channel_max
    for row in rows:
        mine = [m.transition_seq for m in shop.sender.got(channel.id) if m.breaker_id == row.id]
        assert mine == sorted(mine)
    assert {one.attempts for one in await shop.rows(channel.id)} == {1}


async def test_rows_in_hand_of_a_slow_receiver_are_given_back(shop: Shop) -> None:
    """As if they had never been leased; the next time the channel gets fewer."""
    shop.look_seldom()
    channel, rows = await shop.channel(), await breakers(shop, 30)
    shop.sender.hold = asyncio.Event()
    await trip(shop, rows, shop.clock.ms)
    turns = Turns(shop)
    await shop.notifier.run_for(5_000)
    assert turns.of(shop.world.org_id) == [30]
    found = [(one.attempts, one.since_ms is None) for one in await shop.rows(channel.id)]
    assert Counter(found) == {(1, False): 4, (0, True): 26}
    shop.sender.hold.set()
    await shop.notifier.run_for(5_000)
    assert {(one.state, one.attempts) for one in await shop.rows(channel.id)} == {("sent", 1)}
    assert shop.sender.most[channel.id] == PACE.channel_max


async def test_a_failure_ends_what_is_in_hand(shop: Shop) -> None:
    """Nothing of it is tried at a receiver that is away."""
    shop.look_seldom()
    channel, rows = await shop.channel(), await breakers(shop, 30)
    shop.answer(lambda to, message: DOWN)
    await trip(shop, rows, shop.clock.ms)
    await shop.notifier.run_for(100)
    assert len(shop.sender.asked) == PACE.channel_max
    assert Counter(one.attempts for one in await shop.rows(channel.id)) == {1: 4, 0: 26}


async def test_what_is_in_hand_is_not_late_after_a_kill(shop: Shop) -> None:
    """What was begun may still arrive, and waits for its lease; the others go as soon as their short one is over."""
    await shop.channel()
    rows = await breakers(shop, 16)
    hold = shop.sender.hold = asyncio.Event()
    await trip(shop, rows, shop.clock.ms)
    await shop.notifier.run_for(10)
    await shop.notifier.kill()
    began = shop.clock.ms
    hold.set()
    await shop.notifier.run_for(30_000)
    late = sorted(at - began for at, *_ in shop.sender.asked)
    assert len(late) == 16
    assert late[11] <= PACE.hand_lease_ms + PACE.poll_ms
    assert late[12] > 9_000


async def test_an_attempt_from_the_hand_that_takes_long_is_nobody_elses(shop: Shop) -> None:
    """Its short lease is prolonged: a Notifier that comes does not send it beside."""
    channel, rows = await shop.channel(), await breakers(shop, 8)
    hold = asyncio.Event()

    def then_slow(to: Destination, message: Message) -> Attempt:
        shop.sender.hold = hold if len(shop.sender.asked) >= 3 else None
        return SENT

    shop.answer(then_slow)
    await trip(shop, rows, shop.clock.ms)
    await shop.notifier.run_for(PACE.hand_lease_ms + 1_000)
    assert len(shop.sender.asked) == 4
    assert shop.sender.stuck == 4
    first = shop.notifier.host
    assert first is not None
    await shop.notifier.start()
    await shop.notifier.run_for(2_000)
    assert shop.sender.stuck == 4
    hold.set()
    await shop.notifier.run_for(100)
    assert len(shop.sender.got(channel.id)) == 8
    assert {(one.state, one.attempts) for one in await shop.rows(channel.id)} == {("sent", 1)}
    await first.stop()


async def test_what_is_in_hand_of_a_channel_that_is_disabled_is_not_sent(shop: Shop) -> None:
    channel, rows = await shop.channel(), await breakers(shop, 16)
    hold = shop.sender.hold = asyncio.Event()
    await trip(shop, rows, shop.clock.ms)
    await shop.notifier.run_for(10)
    await shop.store.delete_channel(channel.project_id, channel.id, shop.clock.ms)
    await shop.notifier.run_for(1_000)
    hold.set()
    await shop.notifier.run_for(100)
    assert len(shop.sender.asked) == PACE.channel_max


async def test_a_row_that_is_sent_again_goes_before_a_newer_one_in_hand(shop: Shop) -> None:
    """A dead one of the same breaker is redriven while the newer one waits for a place."""
    channel, rows = await shop.channel(), await breakers(shop, 16)
    shop.answer(lambda to, m: Attempt(result="refused") if m.breaker_id == rows[-1].id else SENT)
    await trip(shop, rows[-1:], shop.clock.ms)
    await shop.notifier.run_for(10)
    (dead,) = await shop.rows(channel.id)
    assert dead.state == "dead"
    shop.answer(lambda to, m: SENT)
    hold = shop.sender.hold = asyncio.Event()
    await trip(shop, rows[:-1], shop.clock.ms)
    await trip(shop, rows[-1:], shop.clock.ms, "half_open", "closed", "open")
    await shop.notifier.run_for(10)
    await shop.store.redrive_delivery(channel.project_id, channel.id, dead.id, shop.clock.ms)
    await shop.notifier.run_for(1_000)
    hold.set()
    await shop.notifier.run_for(HOUR // 60)
    mine = [m.transition_seq for m in shop.sender.got(channel.id) if m.breaker_id == rows[-1].id]
    assert mine == sorted(mine)
    assert set(mine) >= {1, 4}


async def test_what_is_in_hand_when_it_is_drained_is_due_at_once(shop: Shop) -> None:
    channel, rows = await shop.channel(), await breakers(shop, 16)
    hold = shop.sender.hold = asyncio.Event()
    await trip(shop, rows, shop.clock.ms)
    await shop.notifier.run_for(5)
    assert shop.notifier.host is not None
    draining = asyncio.create_task(shop.notifier.host.drain(5))
    await asyncio.sleep(0)
    hold.set()
    await draining
    assert len(shop.sender.got(channel.id)) == PACE.channel_max
    await shop.notifier.kill()
    await shop.notifier.run_for(100)
    assert {(one.state, one.attempts) for one in await shop.rows(channel.id)} == {("sent", 1)}
