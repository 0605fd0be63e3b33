"""The Notifier: every alert arrives, in order, and nobody waits for a receiver that is away."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from breaker_actors.core.machine import Breaker
from breaker_actors.errors import Unavailable
from breaker_actors.notify import notifier
from breaker_actors.notify.circuit import Circuit
from breaker_actors.notify.limits import FAILURES_MAX, Pace
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.notify.notifier import NotifierHost, rest
from breaker_actors.settings import Settings
from breaker_actors.store.migrations import upgrade
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.sql_store import SqlStore
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.support.fake_gateway import FakeClock
from tests.support.notifying import DOWN, REFUSED, SENT, Script, ScriptedSender, VirtualNotifier

MINUTE = 60_000
HOUR = 60 * MINUTE


class Shop(OutboxWorld):
    """A project on a store, a Notifier in virtual time, and a sender that does as told."""

    def __init__(self, world: World, clock: FakeClock, settings: Settings) -> None:
        super().__init__(world)
        self.clock = clock
        self.sender = ScriptedSender(clock)
        self.notifier = VirtualNotifier(world.store, clock, self.sender, settings)

    async def neighbour(self, name: str) -> OutboxWorld:
        """A project of another organisation on the same store."""
        return OutboxWorld(await self.world.neighbour(name))

    def look_seldom(self) -> None:
        """For long spans: the Notifier looks by itself every 20 s only."""
        self.notifier.pace = msgspec.structs.replace(self.notifier.pace, poll_ms=20_000, sweep_ms=20_000)

    def give_up_after(self, ms: int) -> None:
        self.notifier.settings = self.notifier.settings.model_copy(update={"notify_give_up_ms": ms})

    def answer(self, script: Script) -> None:
        self.sender.script = script

    async def move(self, breaker_id: str, *moves: Any) -> None:
        """Moves of now."""
        await self.moves(breaker_id, *moves, ts_ms=self.clock.ms)

    async def words_of(self, channel_id: str) -> list[str]:
        return [row.state for row in await self.rows(channel_id)]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database, made once: that costs more than most tests."""
    path = tmp_path_factory.mktemp("empty") / "store.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
async def shop(tmp_path: Path, empty: Path) -> AsyncIterator[Shop]:
    shutil.copy(empty, tmp_path / "store.sqlite")
    store = SqlStore(f"sqlite:///{tmp_path / 'store.sqlite'}", SecretBox(b"k" * 32))
    await store.open()
    shop = Shop(await World.make(store), FakeClock(), Settings(data_dir=tmp_path))
    yield shop
    if shop.notifier.host is not None:
        await shop.notifier.kill()
    await store.close()


def flaky(failures: int, attempt: Attempt = DOWN) -> Script:
    """The first attempts fail."""
    left = [failures]

    def script(to: Destination, message: Message) -> Attempt:
        left[0] -= 1
        return attempt if left[0] >= 0 else SENT

    return script


def only(channel_id: str, attempt: Attempt) -> Script:
    """One channel answers so, the others take everything."""
    return lambda to, message: attempt if to.channel_id == channel_id else SENT


# what arrives


async def test_a_trip_and_its_fast_recovery_both_arrive_in_order(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(10)
    trip, recover = shop.sender.got(channel.id)
    assert (trip.kind, trip.prev, trip.curr, trip.transition_seq) == ("trip", "closed", "open", 1)
    assert (recover.kind, recover.prev, recover.curr, recover.outage_ms) == ("recover", "half_open", "closed", 0)
    assert (trip.project_id, trip.project_name, trip.breaker_id, trip.name) == (row.project_id, "shop", row.id, "a")
    assert trip.delivery_id != recover.delivery_id
    assert await shop.words_of(channel.id) == ["sent", "sent"]


async def test_the_end_of_a_deleted_breaker_arrives_after_its_trip(shop: Shop) -> None:
    channel, row = await shop.channel("trip"), await shop.breaker()
    await shop.move(row.id, "open")
    await shop.store.delete_breaker(row.project_id, row.id, shop.clock.ms + 5)
    await shop.notifier.run_for(10)
    trip, end = shop.sender.got(channel.id)
    assert (trip.kind, end.kind, end.reason, end.prev, end.curr) == ("trip", "resolve", "deleted", "open", "closed")


async def test_rows_are_found_without_a_nudge(shop: Shop) -> None:
    """It looks by itself, every second."""
    channel, row = await shop.channel(), await shop.breaker()
    start = shop.clock.ms
    shop.notifier.at(start + 2_500, lambda: shop.move(row.id, "open"))
    await shop.notifier.run_until(start + 4_000)
    assert [at - start for at, *_ in shop.sender.asked] == [3_000]
    assert shop.sender.kinds(channel.id) == ["trip"]


async def test_breakers_go_side_by_side_and_each_in_its_order(shop: Shop) -> None:
    """At most four at once on a channel."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(12)]
    for _ in range(3):
        for row in rows:
            await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(channel.id)) == 72
    assert shop.sender.most[channel.id] == 4
    for row in rows:
        mine = [m.transition_seq for m in shop.sender.got(channel.id) if m.breaker_id == row.id]
        assert mine == sorted(mine)


# attempts that fail


async def test_retries_back_off_with_jitter_and_keep_the_id(shop: Shop) -> None:
    """Pauses double from two seconds on, each between half and whole by chance, another one in each Notifier; the id
    stays the same."""
    patient = msgspec.structs.replace(shop.notifier.pace, poll_ms=20_000, sweep_ms=20_000)
    shop.notifier.pace = msgspec.structs.replace(patient, cooldown_ms=1, cooldown_cap_ms=1)
    channel = await shop.channel()
    wholes = [min(60_000, 2_000 << i) for i in range(8)]
    found: list[list[int]] = []
    for name in ("a", "b"):
        shop.answer(flaky(len(wholes)))
        row = await shop.breaker(name)
        await shop.move(row.id, "open")
        await shop.notifier.run_for(10 * MINUTE)
        await shop.notifier.kill()
        tries = [(at, message.delivery_id) for at, _, message, _ in shop.sender.asked if message.breaker_id == row.id]
        found.append([b - a for (a, _), (b, _) in pairwise(tries)])
        assert len({id_ for _, id_ in tries}) == 1
    for pauses in found:
        assert all(whole / 2 <= pause < whole for pause, whole in zip(pauses, wholes, strict=True)), pauses
    assert all(pause != other for pause, other in zip(*found, strict=True)), found
    ended = [(row.state, row.attempts, row.last_status, row.last_error) for row in await shop.rows(channel.id)]
    assert ended == [("sent", 9, 200, None)] * 2


async def test_retry_after_is_honoured_for_the_whole_channel(shop: Shop) -> None:
    """Nothing of the channel is sent before, also what comes meanwhile; other channels don't care."""
    limited, free, row = await shop.channel(), await shop.channel(), await shop.breaker()
    other = await shop.breaker("b")
    slow = flaky(1, Attempt(result="retry", status=429, error="answered 429", retry_after_ms=30_000))
    shop.answer(lambda to, message: slow(to, message) if to.channel_id == limited.id else SENT)
    start = shop.clock.ms
    await shop.move(row.id, "open")
    shop.notifier.at(start + 5_000, lambda: shop.move(other.id, "open"))
    await shop.notifier.run_until(start + MINUTE)
    mine = [at - start for at, to, *_ in shop.sender.asked if to.channel_id == limited.id]
    assert mine[0] < 100
    assert all(at >= 30_000 for at in mine[1:])
    assert len(mine) == 3
    assert [at - start <= 6_000 for at, to, *_ in shop.sender.asked if to.channel_id == free.id] == [True, True]


async def test_after_a_pause_asked_for_it_goes_one_by_one(shop: Shop) -> None:
    """A receiver that takes one a second gets one a second, and its circuit stays closed."""
    rows = [await shop.breaker(f"b{i}") for i in range(20)]
    await shop.channel()
    last = [0]

    def one_a_second(to: Destination, message: Message) -> Attempt:
        if shop.clock.ms - last[0] < 1_000:
            return Attempt(result="retry", status=429, retry_after_ms=1_000)
        last[0] = shop.clock.ms
        return SENT

    shop.answer(one_a_second)
    for row in rows:
        await shop.move(row.id, "open")
    start = shop.clock.ms
    await shop.notifier.run_for(2 * MINUTE)
    taken = [at - start for at, _, _, attempt in shop.sender.asked if attempt.result == "sent"]
    assert len(taken) == 20
    assert taken[-1] < 45_000
    assert len(shop.sender.asked) < 60


async def test_a_final_refusal_is_a_dead_letter_at_once(shop: Shop) -> None:
    """With its recovery, and with the reason; the channel itself counts as alive."""
    channel, row, other = await shop.channel(), await shop.breaker(), await shop.breaker("b")
    shop.answer(lambda to, m: REFUSED if m.breaker_id == row.id else SENT)
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.move(other.id, "open")
    await shop.notifier.run_for(10)
    trip, recover, fine = await shop.rows(channel.id)
    assert (trip.state, trip.attempts, trip.last_status, trip.last_error) == ("dead", 1, 404, "answered 404 Not Found")
    assert (recover.state, recover.attempts, recover.incident) == ("dead", 0, trip.incident)
    assert fine.state == "sent"
    assert len(shop.sender.asked) == 2


async def test_the_log_says_once_that_a_channel_is_silent_and_once_that_it_answers(shop: Shop) -> None:
    """However often it is probed meanwhile: `serve` shows these lines."""
    channel, row = await shop.channel(), await shop.breaker()
    back = shop.clock.ms + 30 * MINUTE
    shop.answer(lambda to, m: DOWN if shop.clock.ms < back else SENT)
    await shop.move(row.id, "open")
    with capture_logs() as found:
        await shop.notifier.run_for(35 * MINUTE)
    told = [(line["event"], line["channel_id"]) for line in found if line["event"].startswith("channel_")]
    assert told == [("channel_silent", channel.id), ("channel_answers", channel.id)]
    assert shop.sender.attempts(channel.id) > 10


async def test_giving_up_takes_the_recovery_along_and_a_newer_trip_goes_on(shop: Shop) -> None:
    shop.look_seldom()
    shop.give_up_after(10 * MINUTE)
    channel, row = await shop.channel(), await shop.breaker()
    shop.answer(lambda to, m: DOWN if m.transition_seq == 1 else SENT)
    start = shop.clock.ms
    await shop.move(row.id, "open", "half_open", "closed")
    shop.notifier.at(start + 5 * MINUTE, lambda: shop.move(row.id, "open"))
    await shop.notifier.run_until(start + 9 * MINUTE)
    assert await shop.words_of(channel.id) == ["pending", "pending", "pending"]
    await shop.notifier.run_until(start + 13 * MINUTE)
    assert await shop.words_of(channel.id) == ["dead", "dead", "sent"]
    assert [m.transition_seq for m in shop.sender.got(channel.id)] == [4]
    rows = await shop.rows(channel.id)
    assert rows[0].last_error == DOWN.error
    assert rows[0].ended_ms is not None
    assert 0 <= rows[0].ended_ms - start - 10 * MINUTE <= 2 * MINUTE


async def test_what_was_never_tried_says_why(shop: Shop) -> None:
    """Behind a silent channel rows are given up without an attempt of their own."""
    shop.look_seldom()
    shop.give_up_after(3 * MINUTE)
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(20)]
    shop.answer(only(channel.id, DOWN))
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(5 * MINUTE)
    found = await shop.rows(channel.id)
    assert {one.state for one in found} == {"dead"}
    untried = [one for one in found if not one.attempts]
    assert untried
    assert {one.last_error for one in untried} == {f"not tried: the channel does not answer ({DOWN.error})"}


async def test_time_in_which_nobody_could_try_does_not_count(shop: Shop) -> None:
    """The service was down for two hours: what waited is sent."""
    channel, row = await shop.channel(), await shop.breaker()
    await shop.move(row.id, "open")
    shop.clock.ms += 2 * HOUR
    shop.answer(flaky(2))
    await shop.notifier.run_for(MINUTE)
    assert await shop.words_of(channel.id) == ["sent"]


# a dead receiver


async def test_a_dead_receiver_costs_few_attempts_and_then_everything_arrives(shop: Shop) -> None:
    """Ten minutes: at most a tenth of what one attempt every 3 seconds makes; then all of it, soon and in order."""
    shop.look_seldom()
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(30)]
    start = shop.clock.ms
    back = start + 10 * MINUTE
    shop.answer(lambda to, m: DOWN if shop.clock.ms < back else SENT)
    for i, row in enumerate(rows):
        shop.notifier.at(start + i * 15_000, lambda row=row: shop.move(row.id, "open"))
        shop.notifier.at(start + i * 15_000 + 9_000, lambda row=row: shop.move(row.id, "half_open", "closed"))
    await shop.notifier.run_until(back)
    attempts = shop.sender.attempts(channel.id)
    assert 10 <= attempts <= 600_000 // 3_000 // 10
    await shop.notifier.run_until(back + 62_000)
    assert set(await shop.words_of(channel.id)) == {"sent"}
    for row in rows:
        assert [m.kind for m in shop.sender.got(channel.id) if m.breaker_id == row.id] == ["trip", "recover"]


async def test_one_dead_receiver_delays_no_other(shop: Shop) -> None:
    """Not even one that answers nobody, with its places taken."""
    dead, row = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(8)]
    fine = [await shop.channel() for _ in range(5)]
    hold = shop.sender.hold = asyncio.Event()
    shop.sender.held = {dead.id}
    for one in row:
        await shop.move(one.id, "open", "half_open", "closed")
    await shop.notifier.run_for(10)
    assert [len(shop.sender.got(one.id)) for one in fine] == [16] * 5
    assert shop.sender.got(dead.id) == []
    hold.set()
    await shop.notifier.run_for(10)
    assert len(shop.sender.got(dead.id)) == 16


async def test_the_last_places_are_for_channels_that_have_none(shop: Shop) -> None:
    """From a third on, of an organisation alone, a channel gets no second place; one without any still gets its
    first, up to half of all."""
    shop.notifier.pace = msgspec.structs.replace(shop.notifier.pace, total_max=12)
    rows = [await shop.breaker(f"b{i}") for i in range(6)]
    channels = [await shop.channel() for _ in range(2)]
    hold = shop.sender.hold = asyncio.Event()
    for row in rows:
        await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(5_000)
    assert sorted(shop.sender.most.values()) == [2, 2]
    channels += [await shop.channel() for _ in range(3)]
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(5_000)
    assert sorted(shop.sender.most.values()) == [1, 1, 2, 2]
    hold.set()
    await shop.notifier.run_for(5_000)
    assert [len(shop.sender.got(one.id)) for one in channels] == [18, 18, 6, 6, 6]


async def test_no_organisation_waits_for_the_receivers_of_others(shop: Shop) -> None:
    """Two of them have ever more channels that don't answer; the alert of a third is sent within the same instant."""
    shop.notifier.pace = msgspec.structs.replace(shop.notifier.pace, total_max=12)
    shop.sender.hold = asyncio.Event()
    for name in ("slow", "slower"):
        its = await shop.neighbour(name)
        row = await its.breaker()
        shop.sender.held |= {(await its.channel()).id for _ in range(20)}
        await its.moves(row.id, "open", ts_ms=shop.clock.ms)
    await shop.notifier.run_for(1_000)
    assert shop.sender.stuck == 8
    await shop.world.take_journal()
    channel, row = await shop.channel(), await shop.breaker()
    for curr in ("open", "half_open", "closed"):
        began = shop.clock.ms
        await shop.move(row.id, curr)
        await shop.notifier.run_for(1_000)
        assert {at - began for at, _, message, _ in shop.sender.asked if message.ts_ms == began} <= {0}
    assert shop.sender.kinds(channel.id) == ["trip", "recover"]
    assert {to.org_id for _, to, _, _ in shop.sender.asked} == {shop.world.org_id}
    assert shop.sender.stuck == 8


async def test_an_edited_channel_is_tried_at_once(shop: Shop) -> None:
    """It may be another receiver: what was learnt of the old address is forgotten."""
    shop.look_seldom()
    channel, row = await shop.channel(), await shop.breaker()
    shop.answer(lambda to, m: DOWN if to.config["url"].endswith("/x") else SENT)
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(20 * MINUTE)
    assert [one.channel_id for one in await shop.store.failing_channels(channel.project_id)] == [channel.id]
    config = {"url": "http://hook.example/y"}
    await shop.store.update_channel(
        row.project_id, channel.id, lambda r: msgspec.structs.replace(r, config=config), shop.clock.ms
    )
    before = shop.sender.attempts(channel.id)
    await shop.notifier.run_for(85_000)  # it looks every 20 s, and its first row may still wait to be tried again
    assert shop.sender.kinds(channel.id) == ["trip", "recover"]
    assert shop.sender.attempts(channel.id) == before + 2


async def test_a_circuit_is_remembered_over_a_restart(shop: Shop) -> None:
    """A notifier that dies again and again does not try a dead receiver more often."""
    shop.look_seldom()
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(10)]
    shop.answer(only(channel.id, DOWN))
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(5 * MINUTE)
    before = shop.sender.attempts(channel.id)
    for _ in range(20):
        await shop.notifier.kill()
        await shop.notifier.run_for(1_000)
    assert shop.sender.attempts(channel.id) - before <= 1


async def test_a_clock_that_was_ahead_puts_nothing_off(shop: Shop) -> None:
    """A circuit, rows and leases have times of that clock; who reads them goes by the right one."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(3)]
    shop.clock.ms += 2 * HOUR
    shop.answer(only(channel.id, DOWN))
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(5_000)
    assert set(await shop.words_of(channel.id)) == {"pending"}
    shop.clock.ms -= 2 * HOUR
    shop.answer(only(channel.id, SENT))
    await shop.notifier.run_for(2 * MINUTE)
    assert set(await shop.words_of(channel.id)) == {"sent"}


async def test_a_clock_that_is_set_back_during_a_turn_puts_nothing_off(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the next look is due was reckoned by the clock of before."""
    await shop.channel()
    await shop.breaker()
    rests: list[int] = []
    real, idle = shop.store.waiting_channels, shop.notifier._idle

    async def set_back(*asked: Any) -> Any:
        monkeypatch.setattr(shop.store, "waiting_channels", real)
        shop.clock.ms -= 5 * MINUTE
        return await real(*asked)

    async def noted(host: NotifierHost, wake: asyncio.Event, ms: int) -> None:
        rests.append(ms)
        await idle(host, wake, ms)

    monkeypatch.setattr(shop.store, "waiting_channels", set_back)
    monkeypatch.setattr(shop.notifier, "_idle", noted)
    await shop.notifier.run_for(5_000)
    assert max(rests) <= shop.notifier.pace.poll_ms


async def test_a_clock_that_was_ahead_before_a_restart_puts_nothing_off(shop: Shop) -> None:
    """A lease of then is over, too: who sent under it is gone."""
    channel, row = await shop.channel(), await shop.breaker()
    await shop.move(row.id, "open")
    ahead_ms = shop.clock.ms + 2 * HOUR
    epoch = await shop.world.store.open_notifier()
    await shop.world.store.lease_deliveries(epoch, {channel.id: 1}, (), ahead_ms, ahead_ms + 12_000)
    await shop.notifier.run_for(5_000)
    assert await shop.words_of(channel.id) == ["sent"]


# many channels


async def test_news_make_nobody_look_through_all_channels(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An organisation may have a hundred thousand of them that don't answer: what others' trips wait for is a look at
    the new rows."""
    await shop.channel()
    rows = [await shop.breaker(f"b{n}") for n in range(4)]
    real, asked = shop.store.waiting_channels, list[Any]()

    async def noted(*given: Any) -> Any:
        asked.append(given[0])
        return await real(*given)

    monkeypatch.setattr(shop.store, "waiting_channels", noted)
    await shop.notifier.run_for(10)
    for row in rows:
        await shop.move(row.id, "open")
        await shop.notifier.run_for(10)
    assert len(shop.sender.asked) == 4
    assert asked[0] is None
    assert sum(after is None for after in asked) == 1
    assert len(asked) >= 4


async def test_a_long_look_through_all_channels_is_followed_by_a_rest(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shop.channel()
    real, asked = shop.store.waiting_channels, list[Any]()

    async def slow(*given: Any) -> Any:
        asked.append(given[0])
        shop.clock.seconds += 2
        return await real(*given)

    monkeypatch.setattr(shop.store, "waiting_channels", slow)
    await shop.notifier.run_for(19_000)
    assert asked.count(None) == 1
    await shop.notifier.run_for(10_000)
    assert asked.count(None) == 2


def test_a_circuit_without_room_is_asked_again_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit, advanced = Circuit("c", "v", None, Pace(), 1_000), 0
    for _ in range(FAILURES_MAX):
        circuit.note(DOWN, circuit.seq, 1_000)
    advance = Breaker.advance

    def counted(breaker: Breaker, now_ms: int) -> Any:
        nonlocal advanced
        advanced += 1
        return advance(breaker, now_ms)

    monkeypatch.setattr(Breaker, "advance", counted)
    assert [circuit.capacity(1_000 + ms) for ms in range(0, Pace().cooldown_ms - 100, 100)] == [0] * 19
    assert advanced == 1
    assert circuit.capacity(1_001 + Pace().cooldown_ms) == 1


# channels that go


async def test_rows_of_a_disabled_channel_are_cancelled_and_counted(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.store.update_channel(row.project_id, channel.id, lambda r: msgspec.structs.replace(r, enabled=False), 2)
    await shop.notifier.run_for(10)
    assert await shop.words_of(channel.id) == ["cancelled", "cancelled"]
    assert shop.sender.asked == []
    assert shop.notifier.host is not None
    assert shop.notifier.host.meters.value("breakers_notifications_unsent_total", state="cancelled") == 2


async def test_channels_that_are_gone_keep_nobody_waiting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows end after what can be sent was begun, some channels at a time, with rests."""
    gone, row = [await shop.channel() for _ in range(5)], await shop.breaker()
    other = await shop.neighbour("other")
    channel, theirs = await other.channel(), await other.breaker()
    real, asked = shop.store.cancel_deliveries, list[int]()

    async def slow(epoch: int, ids: Any, now_ms: int) -> Any:
        asked.append(len(ids))
        shop.clock.seconds += 2
        return await real(epoch, ids, now_ms)

    monkeypatch.setattr(shop.store, "cancel_deliveries", slow)
    monkeypatch.setattr(notifier, "GONE_MAX", 2)
    await shop.world.take_journal()
    await shop.move(row.id, "open")
    for one in gone:
        await shop.store.delete_channel(row.project_id, one.id, 2)
    await other.world.take_journal()
    await other.moves(theirs.id, "open")
    await shop.notifier.run_for(19_000)
    assert asked == [2]
    assert shop.sender.attempts(channel.id) == 1
    await shop.notifier.run_for(2 * MINUTE)
    assert asked == [2, 2, 1]
    assert [await shop.words_of(one.id) for one in gone] == [["cancelled"]] * 5
    assert shop.notifier.host is not None
    assert shop.notifier.host.meters.value("breakers_notifications_unsent_total", state="cancelled") == 5


async def test_redrive(shop: Shop) -> None:
    """A dead pair is sent again, in order, under the same ids."""
    channel, row = await shop.channel(), await shop.breaker()
    shop.answer(only(channel.id, REFUSED))
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(10)
    assert await shop.words_of(channel.id) == ["dead", "dead"]
    first = shop.sender.asked[0][2].delivery_id
    shop.answer(only(channel.id, SENT))
    await shop.store.redrive_delivery(row.project_id, channel.id, first, shop.clock.ms)
    await shop.notifier.run_for(2_000)
    assert shop.sender.kinds(channel.id) == ["trip", "recover"]
    assert shop.sender.got(channel.id)[0].delivery_id == first


# crashes


@pytest.mark.parametrize("point", ["before lease", "after lease", "lease answer lost", "after send", "outcome lost"])
async def test_a_crash_at_any_point_loses_nothing(shop: Shop, point: str) -> None:
    """Only what was sent without the outcome being stored comes twice, under one id."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(3)]
    for row in rows:
        await shop.move(row.id, "open", "half_open", "closed")
    store: Any = shop.store
    lease, settle, asked = store.lease_deliveries, store.settle_deliveries, asyncio.Event()
    stuck = asyncio.Event()

    async def lease_then(*args: Any) -> Any:
        if point == "before lease":
            asked.set()
            await stuck.wait()
        answer = await lease(*args)
        if point in ("after lease", "lease answer lost"):
            asked.set()
            await stuck.wait()
        return answer

    async def settle_then(*args: Any) -> Any:
        if point == "outcome lost":
            await settle(*args)
        asked.set()
        await stuck.wait()

    store.lease_deliveries = lease_then
    if point in ("after send", "outcome lost"):
        store.lease_deliveries, store.settle_deliveries = lease, settle_then
    await shop.notifier.start()
    await asyncio.wait_for(asked.wait(), 10)
    await shop.notifier.kill()
    store.lease_deliveries, store.settle_deliveries = lease, settle
    await shop.notifier.run_for(30_000)
    assert set(await shop.words_of(channel.id)) == {"sent"}
    got = [m.delivery_id for m in shop.sender.got(channel.id)]
    assert len(set(got)) == 6
    assert len(got) - 6 == {"after send": 3}.get(point, 0)
    for row in rows:
        kinds = [m.kind for m in shop.sender.got(channel.id) if m.breaker_id == row.id]
        assert list(dict.fromkeys(kinds)) == ["trip", "recover"]


async def test_a_store_that_is_away_for_a_moment_repeats_nothing(shop: Shop) -> None:
    """Neither a lease nor an outcome that could not be stored at first sends anything twice."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(3)]
    for row in rows:
        await shop.move(row.id, "open", "half_open", "closed")
    store: Any = shop.store
    calls = {"lease_deliveries": 0, "settle_deliveries": 0, "waiting_channels": 0}

    def sometimes(name: str) -> None:
        real = getattr(store, name)

        async def call(*args: Any) -> Any:
            calls[name] += 1
            if calls[name] == 1:
                raise Unavailable("away")
            answer = await real(*args)
            if calls[name] == 2:
                raise Unavailable("done, but who knows")
            return answer

        setattr(store, name, call)

    for name in calls:
        sometimes(name)
    await shop.notifier.run_for(MINUTE)
    got = [m.delivery_id for m in shop.sender.got(channel.id)]
    assert len(got) == len(set(got)) == 6
    assert set(await shop.words_of(channel.id)) == {"sent"}


async def test_a_replaced_notifier_says_so(shop: Shop) -> None:
    """An opening that was given up and lands late replaces the one that it was of: somebody has to begin anew."""
    ended = asyncio.Event()
    store, settings = shop.store, shop.notifier.settings
    host = NotifierHost(store, shop.sender, shop.clock, settings, superseded=ended.set)
    await host.start()
    await store.open_notifier()
    shop.clock.ms += 2 * MINUTE
    await host.nudge()
    async with asyncio.timeout(10):
        await ended.wait()
    await host.stop()


async def test_a_replaced_notifier_takes_nothing_more(shop: Shop) -> None:
    """It may still say what became of what it was sending; the new one does not send it beside it."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(3)]
    for row in rows:
        await shop.move(row.id, "open")
    hold = shop.sender.hold = asyncio.Event()
    await shop.notifier.run_for(5)
    zombie = shop.notifier.host
    assert zombie is not None
    await shop.notifier.start()
    await shop.notifier.run_for(100)
    assert shop.sender.got(channel.id) == []
    hold.set()
    for row in rows:
        await shop.move(row.id, "half_open", "closed")
    await shop.notifier.run_for(30_000)
    await zombie.nudge()
    await asyncio.sleep(0.05)
    with pytest.raises(Unavailable):
        await zombie.ready()
    await zombie.stop()
    got = [m.delivery_id for m in shop.sender.got(channel.id)]
    assert len(got) == len(set(got)) == 6


async def test_drained_it_repeats_nothing(shop: Shop) -> None:
    """What is under way is finished, nothing more is begun; the next one goes on at once."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(6)]
    for row in rows:
        await shop.move(row.id, "open", "half_open", "closed")
    hold = shop.sender.hold = asyncio.Event()
    await shop.notifier.run_for(5)
    assert shop.notifier.host is not None
    draining = asyncio.create_task(shop.notifier.host.drain(10))
    await asyncio.sleep(0)
    hold.set()
    await draining
    assert len(shop.sender.got(channel.id)) == 4
    await shop.notifier.kill()
    await shop.notifier.run_for(100)
    got = [m.delivery_id for m in shop.sender.got(channel.id)]
    assert len(got) == len(set(got)) == 12


async def test_rows_that_are_due_and_find_no_place_are_waited_for_at_rest(shop: Shop) -> None:
    """A retry comes due while nothing more is taken: the Notifier sleeps until its next look all the same."""
    shop.look_seldom()
    channel, row = await shop.channel(), await shop.breaker()
    shop.answer(flaky(1))
    await shop.move(row.id, "open")
    await shop.notifier.run_for(5)
    assert shop.notifier.host is not None
    await shop.notifier.host.drain(0)
    shop.notifier.stopped_s = 10.0
    await shop.notifier.run_for(MINUTE)
    assert shop.sender.kinds(channel.id) == []


async def test_a_round_without_a_pause_leaves_the_others_their_turn() -> None:
    turns: list[int] = []

    async def others() -> None:
        turns.append(1)

    task = asyncio.create_task(others())
    await rest(asyncio.Event(), 0)
    assert turns
    await task


async def test_between_silent_channels_that_are_looked_through_others_are_sent_to(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "SWEPT_MAX", 2)
    shop.give_up_after(MINUTE)
    silent, row = [await shop.channel() for _ in range(7)], await shop.breaker()
    shop.answer(lambda to, message: SENT if to.channel_id == healthy.id else DOWN)
    healthy = await shop.channel()
    give_up, turns = shop.store.give_up_deliveries, list[int]()

    async def counted(*args: Any) -> Any:
        assert shop.notifier.host is not None
        turns.append(shop.notifier.host._turns)
        return await give_up(*args)

    shop.store.give_up_deliveries = counted  # type: ignore[method-assign]
    await shop.move(row.id, "open")
    await shop.notifier.run_for(2 * MINUTE)
    assert len(turns) >= 7
    assert max(Counter(turns).values()) == 2
    assert [await shop.words_of(channel.id) for channel in silent] == [["dead"]] * 7
    assert shop.sender.kinds(healthy.id) == ["trip"]


async def test_looking_through_silent_channels_takes_a_part_of_the_time(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that takes long a new round does not begin before all were looked at."""
    monkeypatch.setattr(notifier, "SWEPT_MAX", 1)
    silent, row = [await shop.channel() for _ in range(4)], await shop.breaker()
    shop.answer(lambda to, message: DOWN)
    give_up, looks = shop.store.give_up_deliveries, list[tuple[int, str]]()

    async def slow(epoch: int, channel_id: str, now_ms: int, *rest: Any) -> Any:
        looks.append((now_ms, channel_id))
        shop.clock.seconds += 0.4
        return await give_up(epoch, channel_id, now_ms, *rest)

    shop.store.give_up_deliveries = slow  # type: ignore[method-assign]
    await shop.move(row.id, "open")
    await shop.notifier.run_for(2 * MINUTE)
    assert all(later - earlier >= 4_000 for (earlier, _), (later, _) in pairwise(looks))
    assert {id_ for _, id_ in looks} == {channel.id for channel in silent}


async def test_a_sender_with_a_bug_stops_nothing(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    left = [2]

    def script(to: Destination, message: Message) -> Attempt:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("secret")
        return SENT

    shop.answer(script)
    await shop.move(row.id, "open")
    await shop.notifier.run_for(100)
    assert (await shop.rows(channel.id))[0].last_error == "internal error (ValueError)"
    await shop.notifier.run_for(MINUTE)
    assert await shop.words_of(channel.id) == ["sent"]


async def test_figures(shop: Shop) -> None:
    """Depth, age, attempts by result, channels that are silent."""
    channel, row = await shop.channel(), await shop.breaker()
    shop.answer(only(channel.id, DOWN))
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(5 * MINUTE)
    assert shop.notifier.host is not None
    value = shop.notifier.host.meters.value
    assert value("breakers_outbox_depth") == 2
    assert 290 <= value("breakers_outbox_age_seconds") <= 300
    assert value("breakers_notifications_total", channel="webhook", result="retry") == len(shop.sender.asked)
    assert len(shop.sender.asked) > FAILURES_MAX
    assert value("breakers_notification_seconds", channel="webhook") == len(shop.sender.asked)
    shop.answer(only(channel.id, SENT))
    await shop.notifier.run_for(2 * MINUTE)
    assert value("breakers_notifications_total", channel="webhook", result="delivered") == 2
    assert value("breakers_outbox_depth") == value("breakers_channels_silent") == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_circuit_that_remembers_its_room_says_what_one_that_looks_says(seed: int) -> None:
    """Whether it is asked at each step or not, and whatever comes of attempts, of moves before as well."""
    chance, now = random.Random(seed), 1_000_000
    known, looking = (Circuit("c", "v", None, Pace(), now) for _ in range(2))
    for _ in range(2_000):
        now += chance.choice((0, 1, 7, 50, 99, 100, 101, 400, 2_000, 5_000, 60_000))
        looking._found = (0, 0, 0)
        room = known.capacity(now)
        assert room == looking.capacity(now)
        if room and chance.random() < 0.5:
            assert known.seq == looking.seq
            now += 1  # a tick of the same instant goes before or behind, as it was looked at or not
            attempt = chance.choice((SENT, DOWN, DOWN, Attempt(result="retry", retry_after_ms=3_000)))
            seq = known.seq - chance.randrange(2)
            assert known.note(attempt, seq, now) == looking.note(attempt, seq, now)


def test_a_circuit_with_room_is_asked_again_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    circuit = Circuit("c", "v", None, Pace(), 1_000)
    assert circuit.capacity(1_000) == Pace().channel_max
    monkeypatch.delattr(Breaker, "advance")
    assert {circuit.capacity(1_000 + ms) for ms in range(0, 3_600_000, 10_000)} == {Pace().channel_max}
    monkeypatch.undo()
    circuit.note(DOWN, circuit.seq, 5_000)
    assert circuit.capacity(5_000) == 1
