"""Alerts of an Alertmanager, in virtual time: what stands fires as long as it stands, and ends when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from breaker_actors.clock import rfc3339
from breaker_actors.errors import Unavailable
from breaker_actors.notify.channels.alertmanager import LASTS, render
from breaker_actors.notify.model import Attempt, Destination, Message
from breaker_actors.store.outbox.standing import BATCH_MAX
from breaker_actors.store.rows import ChannelDraft, ChannelRow
from tests.support.fake_gateway import FakeClock
from tests.support.notifying import DOWN, REFUSED, SENT, ScriptedSender
from tests.unit.notify.test_mutes import mute
from tests.unit.notify.test_notifier import MINUTE, Shop, empty, shop

__all__ = ["empty", "shop"]


class Alertmanager(ScriptedSender):
    """A receiver with the memory of a real one: the newest alert of each set of labels, and when it ends."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, self._answer)
        self.away = False
        self.known: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
        self.clock = clock

    def _answer(self, to: Destination, message: Message) -> Attempt:
        return DOWN if self.away else SENT

    async def send(self, to: Destination, message: Message) -> Attempt:
        attempt = await super().send(to, message)
        return self._take(to, [message], self.clock.ms, attempt)

    async def renew(self, to: Destination, trips: Sequence[Message], now_ms: int) -> Attempt:
        return self._take(to, trips, now_ms, await super().renew(to, trips, now_ms))

    def _take(self, to: Destination, messages: Sequence[Message], now_ms: int, attempt: Attempt) -> Attempt:
        if attempt.result == "sent" and to.kind == "alertmanager":
            for message in messages:
                alert = render(message, to.config, now_ms, MINUTE)
                self.known[frozenset(alert["labels"].items())] = alert
        return attempt

    def lose_memory(self) -> None:
        self.known.clear()

    def firing(self) -> set[str]:
        """The breakers whose alerts have not ended."""
        now = rfc3339(self.clock.ms)
        return {alert["labels"]["breaker_id"] for alert in self.known.values() if alert["endsAt"] > now}


class Watch:
    """A project with a channel to an Alertmanager."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        shop.look_seldom()
        self.far = Alertmanager(shop.clock)
        shop.sender = shop.notifier.sender = self.far

    async def channel(self, **config: Any) -> ChannelRow:
        draft = ChannelDraft(channel="alertmanager", config={"url": "http://alerts.example:9093"} | config)
        return await self.shop.store.create_channel(self.shop.world.project_id, draft, 1)


@pytest.fixture
async def watch(shop: Shop) -> Watch:
    return Watch(shop)


async def test_what_stands_fires_as_long_as_it_stands(watch: Watch) -> None:
    """One delivery, a renewal a minute, and not a row more; ended at once by the recovery."""
    shop, far, channel = watch.shop, watch.far, await watch.channel()
    row, quiet = await shop.breaker("a"), await shop.breaker("quiet")
    await shop.move(row.id, "open")
    for _ in range(12):
        await shop.notifier.run_for(MINUTE)
        assert far.firing() == {row.id}
    assert far.kinds(channel.id) == ["trip"]
    assert await shop.words(channel.id) == ["trip sent"]
    assert 11 <= len(far.renewed) <= 13
    assert {m.breaker_id for _, _, trips, _ in far.renewed for m in trips} == {row.id}
    await shop.move(row.id, "half_open")
    await shop.notifier.run_for(5 * MINUTE)
    assert far.firing() == {row.id}
    await shop.move(row.id, "closed")
    await shop.notifier.run_for(10)
    assert far.firing() == set()
    before = len(far.renewed)
    await shop.notifier.run_for(5 * MINUTE)
    assert (len(far.renewed), far.firing(), len(far.known)) == (before, set(), 1)
    host = shop.notifier.host
    assert host is not None
    assert host.meters.value("breakers_alerts_renewed_total", result="delivered") == before
    assert quiet.id not in str(far.known)


async def test_nothing_is_renewed_on_channels_that_remember(watch: Watch) -> None:
    hook, row = await watch.shop.channel(), await watch.shop.breaker()
    await watch.shop.move(row.id, "open")
    await watch.shop.notifier.run_for(5 * MINUTE)
    assert (watch.far.kinds(hook.id), watch.far.renewed) == (["trip"], [])


@pytest.mark.parametrize("forgets", [False, True])
async def test_after_ten_minutes_away_it_knows_what_stands_and_what_has_ended(watch: Watch, forgets: bool) -> None:
    """Trips before and during its absence, those that ended meanwhile among them; whether it kept its memory or not."""
    shop, far, channel = watch.shop, watch.far, await watch.channel()
    stands, ends, begins, both = rows = [await shop.breaker(name) for name in "abcd"]
    await shop.move(stands.id, "open")
    await shop.move(ends.id, "open")
    await shop.notifier.run_for(MINUTE)
    assert far.firing() == {stands.id, ends.id}
    far.away, left = True, shop.clock.ms
    shop.notifier.at(left + 2 * MINUTE, lambda: shop.move(ends.id, "half_open", "closed"))
    shop.notifier.at(left + 3 * MINUTE, lambda: shop.move(begins.id, "open"))
    shop.notifier.at(left + 4 * MINUTE, lambda: shop.move(both.id, "open", "half_open", "closed"))
    await shop.notifier.run_until(left + 10 * MINUTE)
    assert far.firing() == set()  # what it does not hear of again, it lets go
    tries = far.attempts(channel.id, left) + sum(at >= left for at, *_ in far.renewed)
    assert 10 <= tries < 20
    if forgets:
        far.lose_memory()
    far.away = False
    await shop.notifier.run_for(2 * MINUTE)
    assert far.firing() == {stands.id, begins.id}
    assert set(await shop.words_of(channel.id)) == {"sent"}
    assert {dict(labels)["breaker_id"] for labels in far.known} == {row.id for row in rows}
    await shop.notifier.run_for(10 * MINUTE)
    assert far.firing() == {stands.id, begins.id}


async def test_what_it_forgets_it_knows_again_after_one_renewal(watch: Watch) -> None:
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(5 * MINUTE)
    far.lose_memory()
    await shop.notifier.run_for(MINUTE + 1)
    assert far.firing() == {row.id}


async def test_a_new_notifier_renews_at_once(watch: Watch) -> None:
    """From what is stored: it knows nothing of its predecessor's."""
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE // 2)
    await shop.notifier.kill()
    shop.clock.ms += 10 * MINUTE
    assert far.firing() == set()
    await shop.notifier.run_for(10)
    assert far.firing() == {row.id}


async def test_it_is_the_same_alert_whatever_is_renamed(watch: Watch) -> None:
    """Until the end of the outage; the next one has the new names."""
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.world.edit(row.id, metadata={"team": "pay", "runbook_url": "https://wiki.example/a"})
    await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE)
    await shop.world.edit(row.id, name="renamed", metadata={"team": "x"})
    await shop.move(row.id, "half_open", "open")
    await shop.notifier.run_for(5 * MINUTE)
    await shop.move(row.id, "half_open", "closed")
    await shop.notifier.run_for(MINUTE)
    ((labels, alert),) = far.known.items()
    assert dict(labels)["team"] == "pay"
    assert (dict(labels)["breaker"], dict(labels)["project"], dict(labels)["router"]) == ("a", "shop", "a")
    assert alert["annotations"]["runbook_url"] == "https://wiki.example/a"
    assert "runbook_url" not in dict(labels)
    await shop.move(row.id, "open")
    await shop.notifier.run_for(10)
    assert far.firing() == {row.id}
    assert {dict(labels).get("team") for labels in far.known} == {"pay", "x"}


async def test_a_deleted_breaker_ends_its_alert_under_the_same_labels(watch: Watch) -> None:
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE)
    await shop.world.edit(row.id, name="renamed")
    await shop.store.delete_breaker(row.project_id, row.id, shop.clock.ms)
    await shop.notifier.run_for(10)
    assert (far.firing(), len(far.known)) == (set(), 1)


async def test_a_mute_holds_a_trip_and_not_what_was_told(watch: Watch) -> None:
    shop, far = watch.shop, watch.far
    await watch.channel()
    told, held = await shop.breaker("told"), await shop.breaker("held")
    await shop.move(told.id, "open")
    await shop.notifier.run_for(10)
    await mute(shop)
    await shop.move(told.id, "half_open", "open")
    await shop.move(held.id, "open")
    await shop.notifier.run_for(14 * MINUTE)
    assert far.firing() == {told.id}
    await shop.notifier.run_for(2 * MINUTE)
    assert far.firing() == {held.id, told.id}
    assert [m.kind for m in far.got(far.asked[0][1].channel_id)] == ["trip"] * 3  # no warning


async def test_a_disabled_channel_lets_its_alerts_go_and_takes_them_up_again(watch: Watch) -> None:
    shop, far, channel, row = watch.shop, watch.far, await watch.channel(), await watch.shop.breaker()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE)
    await _enable(shop, channel, False)
    await shop.notifier.run_for((LASTS + 1) * MINUTE)
    assert far.firing() == set()
    await _enable(shop, channel, True)
    await shop.notifier.run_for(MINUTE + 1)
    assert far.firing() == {row.id}


async def _enable(shop: Shop, channel: ChannelRow, enabled: bool) -> None:
    def edit(row: ChannelRow) -> ChannelRow:
        return replace(row, enabled=enabled)

    await shop.store.update_channel(channel.project_id, channel.id, edit, shop.clock.ms)


async def test_many_are_renewed_in_batches_between_which_news_are_told(watch: Watch) -> None:
    shop, far, channel = watch.shop, watch.far, await watch.channel()
    rows = [await shop.breaker(f"b{i:03}") for i in range(2 * BATCH_MAX + 5)]
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE // 2)
    far.renewed.clear()
    await shop.notifier.kill()
    news = await shop.breaker("news")
    await shop.move(news.id, "open")
    await shop.notifier.run_for(10)
    sizes = [len(trips) for _, _, trips, _ in far.renewed]
    assert sizes == [BATCH_MAX, BATCH_MAX, 6]  # the news was told between them, and stands as well
    assert len({m.breaker_id for _, _, trips, _ in far.renewed for m in trips}) == len(rows) + 1
    assert len(far.firing()) == len(rows) + 1
    assert far.most[channel.id] <= 4


async def test_an_end_is_never_told_beside_a_renewal(watch: Watch) -> None:
    """A renewal that arrives behind the end would let the alert stand again."""
    shop, far, channel, row = watch.shop, watch.far, await watch.channel(), await watch.shop.breaker()
    other = await shop.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE - 10)
    far.hold, far.held = asyncio.Event(), {channel.id}
    await shop.notifier.run_for(1_000)
    assert far.stuck == 1
    await shop.move(row.id, "half_open", "closed")
    await shop.notifier.run_for(1_000)
    assert (far.kinds(channel.id), far.kinds(other.id)) == (["trip"], ["trip", "recover"])
    far.hold.set()
    far.hold = None
    await shop.notifier.run_for(1_000)
    assert far.kinds(channel.id) == ["trip", "recover"]
    assert far.firing() == set()


async def test_a_refused_renewal_does_not_stop_the_others_and_is_told(
    watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop, far = watch.shop, watch.far
    await watch.channel()
    rows = [await shop.breaker(f"b{i:03}") for i in range(BATCH_MAX + 1)]
    for row in rows:
        await shop.move(row.id, "open")
    await shop.notifier.run_for(MINUTE // 2)
    far.renewed.clear()
    far.script = lambda to, message: REFUSED if message.breaker_id == rows[0].id else SENT
    await shop.notifier.run_for(MINUTE)
    assert [attempt.result for *_, attempt in far.renewed] == ["refused", "sent"]
    assert "renewal_refused" in capsys.readouterr().out


async def test_a_store_that_fails_is_asked_again(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(10)
    real, left = shop.store.standing_alerts, [3]

    async def failing(*args: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("away")
        return await real(*args)

    monkeypatch.setattr(shop.store, "standing_alerts", failing)
    await shop.notifier.run_for(3 * MINUTE)
    assert far.firing() == {row.id}
    assert left[0] < 0


@pytest.mark.parametrize("fails", [False, True])
async def test_a_clock_that_was_ahead_puts_no_renewal_off(watch: Watch, fails: bool) -> None:
    shop, far, row = watch.shop, watch.far, await watch.shop.breaker()
    await watch.channel()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(10)
    shop.clock.ms += 60 * MINUTE
    far.away = fails
    await shop.notifier.run_for(10)
    far.away = False
    shop.clock.ms -= 60 * MINUTE
    far.lose_memory()
    await shop.notifier.run_for(2 * MINUTE)
    assert far.firing() == {row.id}
