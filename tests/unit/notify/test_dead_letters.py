"""What can't be sent ends in the log of its channel with the words that /test has for it."""

from __future__ import annotations

from pathlib import Path

from breaker_actors.notify.model import Attempt, Destination, Message, Sender
from breaker_actors.notify.sender import open_sender
from breaker_actors.persistence import make_store
from breaker_actors.settings import Settings
from breaker_actors.store.rows import ChannelDraft
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.support.fake_gateway import FakeClock
from tests.support.notifying import ScriptedSender, VirtualNotifier
from tests.unit.notify.refusals import BY_SETTINGS, REFUSALS


class Passing(ScriptedSender):
    """Hands everything to another sender."""

    def __init__(self, clock: FakeClock, sender: Sender) -> None:
        super().__init__(clock)
        self._sender = sender

    async def send(self, to: Destination, message: Message) -> Attempt:
        attempt = await self._sender.send(to, message)
        self.asked.append((self._clock.now_ms(), to, message, attempt))
        return attempt


async def test_every_refused_trip_is_dead_at_once_and_says_why(tmp_path: Path) -> None:
    """One attempt each, by the real sender under default settings; the recovery goes with its trip."""
    settings, clock = Settings(data_dir=tmp_path), FakeClock()
    store, sender = make_store(settings), open_sender(settings, clock)
    await store.open()
    try:
        told = OutboxWorld(await World.make(store))
        drafts = [ChannelDraft(channel=kind, config=config) for kind, config, _ in REFUSALS]
        channels = [await store.create_channel(told.world.project_id, draft, 1) for draft in drafts]
        row = await told.breaker()
        await told.outage(row.id)
        notifier = VirtualNotifier(store, clock, passing := Passing(clock, sender), settings)
        await notifier.run_for(10)
        await notifier.kill()
        found = {channel.id: await told.rows(channel.id) for channel in channels}
    finally:
        await sender.close()
        await store.close()
    trips = [(trip.kind, trip.state, trip.attempts, trip.last_error) for trip, _ in found.values()]
    assert trips == [("trip", "dead", 1, words) for _, _, words in REFUSALS]
    assert {(end.kind, end.state, end.attempts) for _, end in found.values()} == {("recover", "dead", 0)}
    assert len(passing.asked) == len(REFUSALS)


async def test_what_a_setting_keeps_back_is_sent_by_a_start_that_allows_it(tmp_path: Path) -> None:
    """And given up in time, like alerts to a receiver that is away."""
    settings, clock = Settings(data_dir=tmp_path), FakeClock()
    store, sender = make_store(settings), open_sender(settings, clock)
    await store.open()
    try:
        told = OutboxWorld(await World.make(store))
        drafts = [ChannelDraft(channel=kind, config=config) for kind, config, _ in BY_SETTINGS]
        channels = [await store.create_channel(told.world.project_id, draft, 1) for draft in drafts]
        row = await told.breaker()
        await told.outage(row.id)
        notifier = VirtualNotifier(store, clock, Passing(clock, sender), settings)
        await notifier.run_for(60_000)
        await notifier.kill()
        kept = [(await told.rows(channel.id))[0] for channel in channels]
        notifier = VirtualNotifier(store, clock, allowed := ScriptedSender(clock), settings)
        await notifier.run_for(120_000)
        await notifier.kill()
        await told.outage(row.id)
        notifier = VirtualNotifier(store, clock, Passing(clock, sender), settings)
        await notifier.run_for(settings.notify_give_up_ms + 120_000)
        await notifier.kill()
        ended = [[trip.state for trip in await told.rows(channel.id)] for channel in channels]
    finally:
        await sender.close()
        await store.close()
    assert [(trip.state, trip.last_error) for trip in kept] == [("pending", words) for _, _, words in BY_SETTINGS]
    assert all(trip.attempts >= 3 for trip in kept)
    assert [allowed.kinds(channel.id) for channel in channels] == [["trip", "recover"]] * len(BY_SETTINGS)
    assert ended == [["sent", "sent", "dead", "dead"]] * len(BY_SETTINGS)
