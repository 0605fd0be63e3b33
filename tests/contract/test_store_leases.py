"""Store: leases of the outbox, what becomes of what was taken (semantics.md section 9, architecture.md section 3.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import update

from breaker_actors.errors import Fenced
from breaker_actors.store import tables as t
from breaker_actors.store.base import Store
from breaker_actors.store.outbox import channel_queue
from breaker_actors.store.rows import DeliveryResult
from breaker_actors.store.sql_store import SqlStore
from tests.contract.outbox_world import LEASE_MS, OutboxWorld, circuit_row
from tests.contract.store_world import World


@pytest.fixture
async def told(world: World) -> OutboxWorld:
    told = OutboxWorld(world)
    await told.open()
    return told


async def test_of_a_breaker_only_the_oldest_row_is_taken(told: OutboxWorld) -> None:
    """Breakers side by side, each in its order."""
    channel, rows = await told.channel(), [await told.breaker(name) for name in "abc"]
    for row in rows:
        await told.outage(row.id)
    taken = await told.take(channel.id)
    assert [(one.breaker_id, one.kind) for one in taken] == [(row.id, "trip") for row in rows]
    assert [one.attempts for one in taken] == [1, 1, 1]
    assert await told.settle(taken[1], "sent")
    more = await told.take(channel.id, held=[taken[0].id, taken[2].id])
    assert [(one.breaker_id, one.kind) for one in more] == [(rows[1].id, "recover")]


async def test_a_lease_is_bounded_and_by_age(told: OutboxWorld) -> None:
    channel, rows = await told.channel(), [await told.breaker(f"b{i}") for i in range(6)]
    for row in rows:
        await told.moves(row.id, "open")
    (first,) = await told.lease(channel.id, want=2)
    assert [one.breaker_id for one in first.rows] == [rows[0].id, rows[1].id]
    assert first.later_ms == 10_000  # there is more
    (second,) = await told.lease(channel.id, want=9, held=[one.id for one in first.rows])
    assert [one.breaker_id for one in second.rows] == [row.id for row in rows[2:]]
    assert second.later_ms is None


async def test_a_long_chain_hides_no_other_breaker(told: OutboxWorld) -> None:
    """More rows of one breaker than a page, the first of which has to wait."""
    channel, busy, other = await told.channel(), await told.breaker(), await told.breaker("b")
    for _ in range(40):
        await told.outage(busy.id)
    await told.moves(other.id, "open")
    (head, late) = await told.take(channel.id)
    assert (head.breaker_id, late.breaker_id) == (busy.id, other.id)
    await told.settle(head, "retry", next_ms=50_000)
    await told.settle(late, "retry", next_ms=40_000)
    (nothing,) = await told.lease(channel.id)
    assert (nothing.rows, nothing.later_ms) == ((), 40_000)
    assert [one.id for one in await told.take(channel.id, now_ms=40_000)] == [late.id]


async def test_what_an_older_notifier_leased_is_taken_when_the_lease_is_over(told: OutboxWorld) -> None:
    """It may still be sending. Nobody else may take anything under its epoch."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (taken,) = await told.take(channel.id)
    old, told.epoch = told.epoch, await told.store.open_notifier()
    (nothing,) = await told.lease(channel.id, now_ms=10_001)
    assert (nothing.rows, nothing.later_ms) == ((), 10_000 + LEASE_MS)
    (again,) = await told.take(channel.id, now_ms=10_000 + LEASE_MS)
    assert (again.id, again.attempts) == (taken.id, 2)
    for call in (
        told.store.lease_deliveries(old, {channel.id: 1}, (), 50_000, 60_000),
        told.store.give_up_deliveries(old, channel.id, 50_000, 50_000, "x"),
        told.store.cancel_deliveries(old, [channel.id], 50_000),
    ):
        with pytest.raises(Fenced):
            await call


async def test_a_replaced_notifier_may_still_tell_what_it_sent(told: OutboxWorld) -> None:
    """As long as nobody has taken the row since; afterwards its word counts for nothing."""
    channel, a, b = await told.channel(), await told.breaker(), await told.breaker("b")
    for row in (a, b):
        await told.moves(row.id, "open")
    first, second = await told.take(channel.id)
    old, told.epoch = told.epoch, await told.store.open_notifier()
    tried = [DeliveryResult(delivery_id=one.id, result="sent", at_ms=10_500) for one in (first, second)]
    circuit = circuit_row(channel.id, "v")
    assert await told.store.settle_deliveries(old, tried[:1], [circuit], [channel.id]) == {first.id}
    (again,) = await told.take(channel.id, now_ms=20_000)
    assert again.id == second.id
    assert await told.store.settle_deliveries(old, tried, [circuit]) == set()
    assert await told.words(channel.id) == ["trip sent", "trip pending"]
    assert (await told.store.waiting_channels())[0].circuit is None


async def test_a_lease_whose_answer_got_lost_is_taken_again(told: OutboxWorld) -> None:
    """The same epoch asks again and does not hold the row: then nobody is sending it."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (lost,) = await told.take(channel.id)
    assert [one.id for one in await told.take(channel.id, now_ms=10_001)] == [lost.id]
    assert await told.take(channel.id, now_ms=50_000, held=[lost.id]) == []


async def test_two_notifiers_take_a_row_once(told: OutboxWorld, make_store: Callable[[], Awaitable[Store]]) -> None:
    """Side by side on two stores: one is fenced, or the row is taken once."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    other = await make_store()
    newer = await other.open_notifier()
    answers = await asyncio.gather(
        told.store.lease_deliveries(told.epoch, {channel.id: 4}, (), 10_000, 11_000),
        other.lease_deliveries(newer, {channel.id: 4}, (), 10_000, 11_000),
        return_exceptions=True,
    )
    assert isinstance(answers[0], Fenced)
    assert isinstance(answers[1], list)
    assert len(answers[1][0].rows) == 1


async def test_a_configuration_that_does_not_open_harms_its_channel_alone(told: OutboxWorld) -> None:
    good, bad = await told.channel(), await told.channel()
    row = await told.breaker()
    await told.moves(row.id, "open")
    assert isinstance(told.store, SqlStore)
    broken = update(t.channels).where(t.channels.c.id == bad.id).values(config=b"0" * 40)
    await told.store._db.write(lambda c: c.execute(broken))
    found = {one.channel_id: one.config for one in await told.lease(good.id, bad.id)}
    assert found == {good.id: {"url": "http://hook.example/x"}, bad.id: None}


async def test_outcomes_are_kept(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (taken,) = await told.take(channel.id)
    await told.settle(taken, "retry", status=503, error="down", next_ms=12_000)
    (stored,) = await told.rows(channel.id)
    assert (stored.state, stored.last_status, stored.last_error, stored.next_ms) == ("pending", 503, "down", 12_000)
    assert (stored.attempts, stored.since_ms, stored.ended_ms) == (1, 10_000, None)
    (taken,) = await told.take(channel.id, now_ms=12_000)
    assert taken.since_ms == 10_000
    await told.settle(taken, "sent", at_ms=12_500, status=200)
    (stored,) = await told.rows(channel.id)
    assert (stored.state, stored.attempts, stored.last_status, stored.last_error) == ("sent", 2, 200, None)
    assert stored.ended_ms == 12_500
    assert not await told.settle(taken, "dead")


async def test_a_dead_trip_takes_its_recovery_with_it(told: OutboxWorld) -> None:
    """And no other: a newer trip goes on. A recovery that comes later ends when its turn comes."""
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.moves(row.id, "open")
    (trip,) = await told.take(channel.id)
    await told.settle(trip, "dead", error="refused")
    assert await told.words(channel.id) == ["trip dead", "recover dead", "trip pending"]
    (second,) = await told.take(channel.id)
    await told.settle(second, "dead", error="refused")
    await told.moves(row.id, "half_open", "closed")
    (leased,) = await told.lease(channel.id)
    assert (leased.rows, leased.dropped) == ((), {"dead": 1})
    assert (await told.words(channel.id))[2:] == ["trip dead", "recover dead"]
    rows = await told.rows(channel.id)
    assert "trip" in (rows[1].last_error or "")


async def test_of_several_trips_one_sent_is_enough(told: OutboxWorld) -> None:
    """Who heard of an outage hears of its end."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open", "half_open", "open", "half_open", "closed")
    (first,) = await told.take(channel.id)
    await told.settle(first, "dead")
    assert await told.words(channel.id) == ["trip dead", "trip pending", "recover pending"]
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip", "recover"]


async def test_a_channel_made_within_an_outage_does_not_hear_of_its_end_only(told: OutboxWorld) -> None:
    """The row says why; a channel that takes recoveries only gets it."""
    row = await told.breaker()
    await told.moves(row.id, "open")
    both, ends = await told.channel(), await told.channel("recover")
    await told.moves(row.id, "half_open", "closed")
    leased = {one.channel_id: one for one in await told.lease(both.id, ends.id)}
    assert (leased[both.id].rows, leased[both.id].dropped) == ((), {"cancelled": 1})
    assert [one.kind for one in leased[ends.id].rows] == ["recover"]
    (only,) = await told.rows(both.id)
    assert (only.state, only.last_error) == ("cancelled", "no trip of this outage was sent on this channel")


async def test_cancelled_rows_of_a_channel_that_is_off_or_gone(told: OutboxWorld) -> None:
    """One that came back meanwhile is left alone; what was sent all the same is told."""
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    assert await told.store.cancel_deliveries(told.epoch, [channel.id], 9_000) == ({}, True)
    (taken,) = await told.take(channel.id)
    await told.store.update_channel(
        channel.project_id, channel.id, lambda r: msgspec.structs.replace(r, enabled=False), 2
    )
    assert await told.lease(channel.id) == []
    assert await told.store.cancel_deliveries(told.epoch, [channel.id], 9_000) == ({channel.id: 2}, True)
    assert await told.words(channel.id) == ["trip cancelled", "recover cancelled"]
    await told.settle(taken, "sent")
    assert await told.words(channel.id) == ["trip sent", "recover cancelled"]
    await told.store.update_channel(
        channel.project_id, channel.id, lambda r: msgspec.structs.replace(r, enabled=True), 3
    )
    await told.moves(row.id, "open")
    await told.store.delete_channel(channel.project_id, channel.id, 4)
    assert (await told.store.waiting_channels())[0].version is None
    assert await told.store.cancel_deliveries(told.epoch, [channel.id], 9_000) == ({channel.id: 1}, True)


async def test_a_failed_attempt_at_a_cancelled_row_leaves_it_so(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (taken,) = await told.take(channel.id)
    await told.store.delete_channel(channel.project_id, channel.id, 4)
    await told.store.cancel_deliveries(told.epoch, [channel.id], 9_000)
    assert await told.settle(taken, "retry", next_ms=20_000)
    assert await told.words(channel.id) == ["trip cancelled"]


async def test_giving_up(told: OutboxWorld) -> None:
    """What waited too long for a channel that is silent; time runs from when somebody looked, not from the event."""
    channel, a, b = await told.channel(), await told.breaker(), await told.breaker("b")
    for row in (a, b):
        await told.outage(row.id)
    (tried,) = await told.take(channel.id, want=1)
    await told.settle(tried, "retry", error="down", next_ms=10_500)

    async def give_up(now_ms: int, after_ms: int) -> dict[str, int]:
        return await told.store.give_up_deliveries(told.epoch, channel.id, now_ms, now_ms - after_ms, "not tried")

    assert await give_up(10_600, 1_000) == {}
    (again,) = await told.take(channel.id, want=1, now_ms=10_700)
    assert again.id == tried.id
    assert await give_up(11_650, 1_000) == {"dead": 2}  # those that only waited; what is behind a sent one waits on
    assert [one.state for one in await told.rows(channel.id)] == ["pending", "pending", "dead", "dead"]
    await told.settle(again, "retry", at_ms=11_660, error="down", next_ms=11_900)
    assert await give_up(11_700, 1_000) == {"dead": 2}
    rows = await told.rows(channel.id)
    assert {one.state for one in rows} == {"dead"}
    assert [one.last_error for one in rows if one.kind == "trip"] == ["down", "not tried"]


async def test_a_channel_with_nothing_to_give_up_is_looked_at_without_a_write(
    told: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much waits: writes of everybody else would wait for the look. And of what waits anew the time of a
    bounded part begins."""
    channel = await told.channel()
    for name in "abc":
        await told.outage((await told.breaker(name)).id)
    monkeypatch.setattr("breaker_actors.store.outbox.claims.BEGUN_MAX", 4)
    write, writes = told.store._db.write, list[object]()

    async def counted(work: Any) -> Any:
        writes.append(work)
        return await write(work)

    monkeypatch.setattr(told.store._db, "write", counted)

    async def give_up(now_ms: int) -> dict[str, int]:
        return await told.store.give_up_deliveries(told.epoch, channel.id, now_ms, now_ms - 1_000, "not tried")

    assert [await give_up(10_000 + at_ms) for at_ms in range(4)] == [{}] * 4
    assert len(writes) == 2
    assert await give_up(11_000) == {"dead": 4}
    assert sorted(one.state for one in await told.rows(channel.id)) == ["dead"] * 4 + ["pending"] * 2
    assert await give_up(11_001) == {"dead": 2}
    assert len(writes) == 4


async def test_what_waits_is_looked_through_without_a_write(told: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of a channel waits to be tried again: only what is found is written."""
    channel = await told.channel()
    for name in "abc":
        await told.moves((await told.breaker(name)).id, "open")
    for row in await told.take(channel.id):
        await told.settle(row, "retry", next_ms=50_000)
    write, writes = told.store._db.write, list[object]()

    async def counted(work: Any) -> Any:
        writes.append(work)
        return await write(work)

    monkeypatch.setattr(told.store._db, "write", counted)
    assert [(one.rows, one.later_ms) for one in await told.lease(channel.id)] == [((), 50_000)]
    assert writes == []
    assert len(await told.take(channel.id, now_ms=50_000)) == 3
    assert len(writes) == 1


def between(told: OutboxWorld, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[Any]]) -> None:
    """Something happens once, between the look for what may be taken and its lease."""
    read = told.store._db.read

    async def read_then(work: Any) -> Any:
        found = await read(work)
        monkeypatch.setattr(told.store._db, "read", read)
        await act()
        return found

    monkeypatch.setattr(told.store._db, "read", read_then)


async def dead_trip(told: OutboxWorld, *moves: str) -> tuple[Any, Any]:
    """A channel, and a trip on it that is dead; then the breaker moves on."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (trip,) = await told.take(channel.id)
    await told.settle(trip, "dead")
    await told.moves(row.id, *moves)
    return channel, trip


async def test_an_end_whose_trip_is_sent_again_meanwhile_waits_for_it(
    told: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, trip = await dead_trip(told, "half_open", "closed")

    async def redrive() -> None:
        await told.store._db.write(
            lambda c: c.execute(update(t.outbox).where(t.outbox.c.id == trip.id).values(state="pending"))
        )

    between(told, monkeypatch, redrive)
    assert [(one.rows, one.later_ms) for one in await told.lease(channel.id)] == [((), 10_000)]
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip", "recover"]


async def test_what_is_redriven_meanwhile_comes_before_what_was_found(
    told: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage that is told again is told before the next one, which stands."""
    channel, trip = await dead_trip(told, "half_open", "closed", "open")

    async def redrive() -> None:
        await told.store.redrive_delivery(told.world.project_id, channel.id, trip.id, 10_000)

    between(told, monkeypatch, redrive)
    assert [one.rows for one in await told.lease(channel.id)] == [()]
    sent = [(one.kind, one.number) for one in await told.send_all(channel.id)]
    assert sent == sorted(sent, key=lambda one: one[1])
    assert (sent[0][1], sent[-1][0]) == (trip.number, "trip")


async def test_redrives_of_another_project_put_nothing_off(told: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who redrives again and again had everybody's alerts wait: each lease came back empty."""
    theirs, trip = await dead_trip(told, "half_open")
    told.world = await told.world.neighbour("quiet")
    channel, row = await told.channel(), await told.breaker("quiet")
    await told.moves(row.id, "open")

    async def redrive() -> None:
        await told.store.redrive_delivery(theirs.project_id, theirs.id, trip.id, 10_000)

    between(told, monkeypatch, redrive)
    assert [one.breaker_id for one in await told.take(channel.id)] == [row.id]


async def test_what_ended_meanwhile_is_not_taken(told: OutboxWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next of its breaker is looked for at once."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open", "half_open", "open")
    first, second = await told.rows(channel.id)

    async def end() -> None:
        await told.store._db.write(
            lambda c: c.execute(update(t.outbox).where(t.outbox.c.id == first.id).values(state="dead"))
        )

    between(told, monkeypatch, end)
    assert [(one.rows, one.later_ms) for one in await told.lease(channel.id)] == [((), 10_000)]
    assert [one.id for one in await told.take(channel.id)] == [second.id]


async def test_what_waits_for_a_receiver_is_counted_up_to_a_bound(
    told: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million may wait, and every page asks."""
    monkeypatch.setattr(channel_queue, "PENDING_COUNTED", 2)
    channel = await told.channel()
    for name in "xyz":
        await told.moves((await told.breaker(name)).id, "open")
    (waiting,) = await told.store.waiting_channels()
    assert waiting.version is not None
    await told.store.settle_deliveries(told.epoch, [], [circuit_row(channel.id, waiting.version)])
    (counted,) = await told.store.failing_channels(channel.project_id)
    oldest_ms = min(row.created_ms for row in await told.rows(channel.id))
    assert (counted.pending, counted.oldest_ms) == (2, oldest_ms)


async def test_circuits_are_kept_per_version_of_the_channel(told: OutboxWorld) -> None:
    """An edited channel starts anew; hasten makes what waits due."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (before,) = await told.store.waiting_channels()
    assert before.version is not None
    (taken,) = await told.take(channel.id)
    kept = circuit_row(channel.id, before.version)
    retry = DeliveryResult(delivery_id=taken.id, result="retry", at_ms=10_000, next_ms=90_000)
    await told.store.settle_deliveries(told.epoch, [retry], [kept])
    assert (await told.store.waiting_channels())[0].circuit == kept
    (failing,) = await told.store.failing_channels(channel.project_id)
    assert (failing.channel_id, failing.name, failing.circuit, failing.pending) == (channel.id, channel.name, kept, 1)
    assert failing.oldest_ms == (await told.rows(channel.id))[0].created_ms
    assert await told.store.failing_channels("another") == []
    newer = circuit_row(channel.id, before.version, last_error="slow")
    await told.store.settle_deliveries(told.epoch, [], [newer])
    assert (await told.store.failing_channels(channel.project_id))[0].circuit == newer
    await told.store.update_channel(channel.project_id, channel.id, lambda r: msgspec.structs.replace(r, name="n"), 3)
    (after,) = await told.store.waiting_channels()
    assert after.version != before.version
    assert await told.store.failing_channels(channel.project_id) == []
    (other,) = [await told.breaker("b")]
    await told.moves(other.id, "open")
    (second,) = await told.take(channel.id)
    sent = DeliveryResult(delivery_id=second.id, result="sent", at_ms=20_000)
    await told.store.settle_deliveries(told.epoch, [sent], [], [channel.id])
    assert [one.id for one in await told.take(channel.id, now_ms=20_000)] == [taken.id]


async def test_depth_and_waiting_channels(told: OutboxWorld) -> None:
    assert await told.store.outbox_depth() == (0, None)
    assert await told.store.waiting_channels() == []
    channels = sorted([(await told.channel()).id for _ in range(3)])
    row = await told.breaker()
    await told.outage(row.id)
    assert await told.store.outbox_depth() == (6, 1000)
    waiting = await told.store.waiting_channels()
    assert [one.channel_id for one in waiting] == channels
    assert {one.kind for one in waiting} == {"webhook"}
    await told.send_all(channels[1])
    assert [one.channel_id for one in await told.store.waiting_channels()] == [channels[0], channels[2]]
    newest = max(one.number for one in await told.rows(channels[0]))
    assert (await told.store.waiting_channels())[0].newest == newest


async def test_channels_with_new_rows_are_found_without_a_look_at_all(told: OutboxWorld) -> None:
    """Behind a number, and those that are asked for by name."""
    channels = sorted([(await told.channel()).id for _ in range(3)])
    row = await told.breaker()
    await told.outage(row.id)
    newest = {id_: max(one.number for one in await told.rows(id_)) for id_ in channels}
    numbers = sorted(newest.values())
    behind = [one for one in channels if newest[one] > numbers[0]]
    found = await told.store.waiting_channels(numbers[0])
    assert {one.channel_id: one.newest for one in found} == {one: newest[one] for one in behind}
    assert await told.store.waiting_channels(numbers[-1]) == []
    (named,) = await told.store.waiting_channels(numbers[-1], [channels[0], "none"])
    assert (named.channel_id, named.newest, named.kind) == (channels[0], newest[channels[0]], "webhook")


async def test_waiting_channels_say_whose_they_are(told: OutboxWorld) -> None:
    """Also a project's own slack_webhook_url."""
    await told.store.update_project(told.world.project_id, {"slack_webhook_url": "https://hooks.slack.com/x"}, 1)
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    waiting = await told.store.waiting_channels()
    assert {one.channel_id for one in waiting} == {channel.id, told.world.project_id}
    assert {(one.org_id, one.project_id) for one in waiting} == {(told.world.org_id, told.world.project_id)}
