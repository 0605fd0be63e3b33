"""The Notifier and mutes, in virtual time: what is held goes out when it may, once, and on time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from breaker_actors.errors import Unavailable
from breaker_actors.notify.mute_keeper import MuteKeeper
from breaker_actors.settings import Settings
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import Window
from breaker_actors.store.rows import ChannelDraft, HeldLook, MuteDraft, MuteRow
from breaker_actors.telemetry.meters import Meters
from tests.unit.notify.test_notifier import HOUR, MINUTE, Shop, empty, shop

__all__ = ["empty", "shop"]


QUARTER = 15 * MINUTE
"""A mute's length here: a Notifier looks every second, so that each minute more takes its time."""


async def mute(shop: Shop, *matchers: Matcher, ms: int = QUARTER, **fields: Any) -> MuteRow:
    now = shop.clock.ms
    values: dict[str, Any] = {"starts_ms": now, "ends_ms": now + ms, "comment": "deploy", "all": not matchers}
    draft = MuteDraft(matchers=matchers, **(values | fields))
    return await shop.store.create_mute(shop.world.project_id, draft, now, by="k1", by_name="ann")


def kinds(shop: Shop, channel_id: str) -> list[tuple[str, int]]:
    """What arrived, and when after the start."""
    return [(m.kind, at) for at, to, m, _ in shop.sender.asked if to.channel_id == channel_id]


async def test_what_stands_is_told_when_the_mute_ends(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    held = await mute(shop, ms=HOUR)
    start = shop.clock.ms
    await shop.move(row.id, "open")
    await shop.notifier.run_until(start + HOUR - 1)
    assert kinds(shop, channel.id) == [("mute_ending", start + HOUR - 10 * MINUTE)]
    assert shop.notifier.host is not None
    assert shop.notifier.host.meters.value("breakers_notifications_held") == 1
    assert shop.notifier.host.meters.value("breakers_mutes_active") == 1
    await shop.notifier.run_for(2 * MINUTE)
    assert kinds(shop, channel.id)[1:] == [("trip", start + HOUR)]
    by = shop.sender.got(channel.id)[1].muted_by
    assert by is not None
    assert (by.mute_id, by.comment, by.by, by.open_since_ms) == (held.id, "deploy", "ann", start)
    assert shop.notifier.host.meters.value("breakers_notifications_released_total") == 1
    assert shop.notifier.host.meters.value("breakers_notifications_held") == 0
    assert shop.notifier.host.meters.value("breakers_mutes_active") == 0


async def test_what_is_over_is_never_told(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    await mute(shop)
    await shop.move(row.id, "open", "half_open", "closed")
    await shop.notifier.run_for(2 * QUARTER)
    assert shop.sender.got(channel.id) == []
    assert await shop.words_of(channel.id) == ["suppressed", "suppressed"]


async def test_a_recovery_goes_out_at_once_inside_a_mute(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    await shop.move(row.id, "open")
    await shop.notifier.run_for(10)
    await mute(shop)
    await shop.move(row.id, "half_open", "closed")
    await shop.notifier.run_for(10)
    assert shop.sender.kinds(channel.id) == ["trip", "recover"]


async def test_an_edit_is_seen_within_a_second_without_a_nudge(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    held = await mute(shop)
    await shop.move(row.id, "open")
    start = shop.clock.ms
    shop.notifier.at(
        start + 10 * MINUTE + 300, lambda: shop.store.end_mute(row.project_id, held.id, start + 10 * MINUTE + 300)
    )
    await shop.notifier.run_until(start + 11 * MINUTE)
    assert kinds(shop, channel.id) == [("trip", start + 10 * MINUTE + 1_000)]


async def test_metadata_that_change_are_seen_within_a_minute(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    await mute(shop, Matcher(field="metadata.team", op="!=", value="x"))
    await shop.move(row.id, "open")
    start = shop.clock.ms
    shop.notifier.at(start + MINUTE // 2, lambda: shop.world.edit(row.id, metadata={"team": "x"}))
    await shop.notifier.run_until(start + 2 * MINUTE)
    ((kind, at),) = kinds(shop, channel.id)
    assert (kind, at <= start + MINUTE + 1_000) == ("trip", True)


async def test_a_window_that_closes_lets_go_at_its_second(shop: Shop) -> None:
    """No warning before that: it closes every day."""
    channel, row = await shop.channel(), await shop.breaker()
    day = 24 * HOUR
    shop.clock.ms += -shop.clock.ms % day + 3 * HOUR
    night = Window(weekdays=("mon", "tue", "wed", "thu", "fri", "sat", "sun"), begins="00:00", ends="03:15")
    await mute(shop, ends_ms=None, windows=(night,))
    await shop.move(row.id, "open")
    start = shop.clock.ms
    await shop.notifier.run_for(2 * QUARTER)
    assert kinds(shop, channel.id) == [("trip", start + QUARTER)]


async def test_pagerduty_is_not_warned_and_hears_of_what_stands(shop: Shop) -> None:
    draft = ChannelDraft(channel="pagerduty", config={"routing_key": "k"})
    pager, row = await shop.store.create_channel(shop.world.project_id, draft, 1), await shop.breaker()
    await mute(shop)
    await shop.move(row.id, "open")
    await shop.notifier.run_for(2 * QUARTER)
    assert shop.sender.kinds(pager.id) == ["trip"]


async def test_a_notifier_that_dies_at_any_time_loses_and_repeats_nothing(shop: Shop) -> None:
    """Killed every few seconds around the end of the mute."""
    channel, rows = await shop.channel(), [await shop.breaker(f"b{i}") for i in range(6)]
    await mute(shop, ms=20_000)
    for row in rows:
        await shop.move(row.id, "open")
    for _ in range(20):
        await shop.notifier.run_for(1_300)
        await shop.notifier.kill()
    await shop.notifier.run_for(MINUTE)
    told = [m.breaker_id for m in shop.sender.got(channel.id) if m.kind == "trip"]
    assert sorted(told) == sorted(row.id for row in rows)
    assert shop.sender.kinds(channel.id).count("mute_ending") == 1


async def test_a_store_that_fails_between_two_steps_loses_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call fails once, before or after it was carried out."""
    channel, row = await shop.channel(), await shop.breaker()
    await mute(shop, ms=20_000)
    await shop.move(row.id, "open")
    for name in ("held_news", "tend_mutes", "look_at_held", "warn_of_ends", "end_unmatched"):
        for after in (False, True):
            _fail_once(shop, name, after, monkeypatch)
            await shop.notifier.run_for(4_000)
    await shop.notifier.run_for(MINUTE)
    assert shop.sender.kinds(channel.id) == ["mute_ending", "trip"]


def _fail_once(shop: Shop, name: str, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = getattr(shop.store, name), [1]

    async def failing(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return await real(*args)
        if after:
            await real(*args)
        raise Unavailable("the database does not answer")

    monkeypatch.setattr(shop.store, name, failing)


async def test_a_mute_that_matches_nothing_ends_itself(shop: Shop) -> None:
    """It is looked at every hour."""
    shop.look_seldom()
    shop.notifier.settings = shop.notifier.settings.model_copy(update={"mute_unmatched_ms": 3 * HOUR})
    await shop.channel()
    lost = await mute(shop, Matcher(field="name", op="=", value="typo"), ms=30 * 24 * HOUR)
    await shop.breaker()
    await shop.notifier.run_for(3 * HOUR - MINUTE)
    ended = await shop.store.get_mute(shop.world.project_id, lost.id)
    assert ended is not None
    assert ended.ended_ms is None
    await shop.notifier.run_for(HOUR)
    ended = await shop.store.get_mute(shop.world.project_id, lost.id)
    assert ended is not None
    assert ended.ended_reason == "matched_nothing"


async def test_new_rows_are_looked_at_from_the_newest_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at under the same mutes is not looked at again before its time."""
    asked: list[int] = []
    real = shop.store.look_at_held

    async def look(epoch: int, now_ms: int, after: int = 0, turns: Any = None, ahead_ms: int = 0) -> Any:
        asked.append(after)
        return await real(epoch, now_ms, after, turns, ahead_ms)

    monkeypatch.setattr(shop.store, "look_at_held", look)
    channel, rows = await shop.channel(), [await shop.breaker(name) for name in "abc"]
    await mute(shop)
    for row in rows:
        await shop.move(row.id, "open")
        await shop.notifier.run_for(2_000)
    numbers = [row.number for row in await shop.rows(channel.id)]
    assert asked == [0, numbers[0], numbers[1], numbers[1], numbers[2]]
    await shop.notifier.run_for(10_000)
    assert len(asked) == 5


async def test_many_held_rows_take_several_turns(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from breaker_actors.store.outbox import held

    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    channel = await shop.channel()
    await mute(shop, ms=20_000)
    for i in range(21):
        await shop.move((await shop.breaker(f"b{i}")).id, "open")
    await shop.notifier.run_for(MINUTE)
    assert shop.sender.kinds(channel.id).count("trip") == 21


async def test_a_warning_counts_what_all_looks_at_its_project_found(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from breaker_actors.store.outbox import held

    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    channels = [await shop.channel(), await shop.channel()]
    await mute(shop, ms=HOUR)
    for i in range(11):
        await shop.move((await shop.breaker(f"b{i}")).id, "open")
    await shop.notifier.run_for(HOUR - MINUTE)
    for channel in channels:
        (warning,) = shop.sender.got(channel.id)
        assert warning.muted_by is not None
        assert (warning.kind, warning.muted_by.holding) == ("mute_ending", 11)


async def test_a_look_counts_for_the_ends_that_were_near_when_it_began(shop: Shop) -> None:
    """Of others it has counted its later part alone: the store is asked as of then, and the next look counts all."""
    asked: list[tuple[int, dict[str, dict[str, int]]]] = []

    class Store:
        async def warn_of_ends(self, epoch: int, now_ms: int, ahead_ms: int, behind: dict[str, Any]) -> tuple[str, ...]:
            asked.append((now_ms, {id_: dict(channels) for id_, channels in behind.items()}))
            return ()

    keeper = MuteKeeper(Store(), shop.clock, Settings(), Meters("notifier", "notifier"))  # type: ignore[arg-type]
    keeper._count({"p": 0, "q": 0}, HeldLook(last=1, turns={"p": 4, "q": 2}, behind={("p", "m", "c"): 2}), 100)
    keeper._count({"p": 4}, HeldLook(last=1, turns={"p": None}, behind={("p", "m", "c"): 1}), 200)
    keeper._count({"q": 2}, HeldLook(last=1, turns={"q": None}, behind={("q", "n", "d"): 1}), 300)
    keeper._count({"r": 0}, HeldLook(last=1, turns={"r": None}, behind={("r", "o", "e"): 5}), 400)
    while keeper._warnings:
        await keeper._warn(1)
    assert asked == [(100, {"m": {"c": 3}, "n": {"d": 1}}), (400, {"o": {"e": 5}})]


async def test_a_mute_that_holds_nothing_is_warned_of_once_it_does(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is asked for nothing until then."""
    channel, row = await shop.channel(), await shop.breaker()
    await mute(shop, ms=HOUR)
    start, asked, real = shop.clock.ms, list[int](), shop.store.warn_of_ends

    async def warn(epoch: int, now_ms: int, *args: Any) -> Any:
        asked.append(now_ms)
        return await real(epoch, now_ms, *args)

    monkeypatch.setattr(shop.store, "warn_of_ends", warn)
    at = start + HOUR - 5 * MINUTE + 30_000

    async def trip() -> None:
        await shop.move(row.id, "open")

    shop.notifier.at(at, trip)
    await shop.notifier.run_until(start + HOUR - 1)
    ((kind, told),) = kinds(shop, channel.id)
    assert (kind, at <= told <= at + 2_000, len(asked)) == ("mute_ending", True, 1)


@pytest.mark.parametrize("name", ["held_news", "tend_mutes", "look_at_held", "warn_of_ends"])
async def test_what_goes_wrong_with_mutes_keeps_nobody_from_being_told(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """However long it does; it is tried again after a rest."""
    row, told = await shop.breaker(), await (other := await shop.neighbour("other")).channel()
    await shop.channel()
    theirs, tries = await other.breaker(), list[int]()
    await shop.world.take_journal()
    await mute(shop, ms=11 * MINUTE)
    await shop.move(row.id, "open")

    async def fail(*_: Any) -> Any:
        tries.append(shop.clock.ms)
        raise Unavailable("canceling statement due to statement timeout")

    monkeypatch.setattr(shop.store, name, fail)
    at = shop.clock.ms + 10 * MINUTE

    async def trip() -> None:
        await other.world.take_journal()
        await other.moves(theirs.id, "open", ts_ms=shop.clock.ms)
        assert shop.notifier.host is not None
        await shop.notifier.host.nudge()

    shop.notifier.at(at, trip)
    await shop.notifier.run_until(at + 10_000)
    ((kind, heard),) = kinds(shop, told.id)
    assert (kind, heard - at <= 100) == ("trip", True)
    assert all(later - one >= 1_000 for one, later in pairwise(tries))


async def test_an_edit_of_the_end_holds_on(shop: Shop) -> None:
    channel, row = await shop.channel(), await shop.breaker()
    held = await mute(shop, ms=12 * MINUTE)
    await shop.move(row.id, "open")
    start = shop.clock.ms

    async def longer() -> None:
        await shop.store.update_mute(
            row.project_id,
            held.id,
            lambda one: msgspec.structs.replace(one, ends_ms=start + 16 * MINUTE),
            shop.clock.ms,
        )

    shop.notifier.at(start + 10 * MINUTE, longer)
    await shop.notifier.run_for(20 * MINUTE)
    assert kinds(shop, channel.id) == [
        ("mute_ending", start + 9 * MINUTE),
        ("mute_ending", start + 12 * MINUTE),
        ("trip", start + 16 * MINUTE),
    ]


async def test_changes_of_others_keep_nobody_waiting(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An organisation changes its mutes all the time, and has many held deliveries before those of another one."""
    from breaker_actors.store.outbox import held

    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 1)
    other = await shop.neighbour("other")
    await other.channel()
    draft = MuteDraft(starts_ms=0, ends_ms=shop.clock.ms + HOUR, comment="x", all=True)
    theirs = await shop.store.create_mute(other.world.project_id, draft, shop.clock.ms)
    for i in range(30):
        await other.moves((await other.breaker(f"b{i}")).id, "open", ts_ms=shop.clock.ms)
    await shop.world.take_journal()
    channel, row = await shop.channel(), await shop.breaker()
    await mute(shop, ms=20_000)
    await shop.move(row.id, "open")
    start = shop.clock.ms

    async def change() -> None:
        at = shop.clock.ms
        await shop.store.update_mute(
            other.world.project_id, theirs.id, lambda one: msgspec.structs.replace(one, ends_ms=at + HOUR), at
        )

    for at in range(start + 18_000, start + 23_000, 50):
        shop.notifier.at(at, change)
    await shop.notifier.run_until(start + 22_000)
    trips = [at for kind, at in kinds(shop, channel.id) if kind == "trip"]
    assert len(trips) == 1
    assert trips[0] <= start + 21_100


async def test_others_are_told_between_slow_looks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that takes long is the only one of its turn, and a rest of as long comes after it."""
    from breaker_actors.store.outbox import held

    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    looks: list[tuple[int, int]] = []
    real = shop.store.look_at_held

    async def look(epoch: int, now_ms: int, after: int = 0, turns: Any = None, ahead_ms: int = 0) -> Any:
        assert shop.notifier.host is not None
        looks.append((shop.notifier.host._turns, shop.clock.ms))
        shop.clock.ms, shop.clock.seconds = shop.clock.ms + 60, shop.clock.seconds + 0.06
        return await real(epoch, now_ms, after, turns, ahead_ms)

    channel, told = await shop.channel(), await (other := await shop.neighbour("other")).channel()
    theirs = await other.breaker()
    await shop.world.take_journal()
    await mute(shop, ms=20_000)
    for i in range(20):
        await shop.move((await shop.breaker(f"b{i}")).id, "open")
    await shop.notifier.run_for(19_000)
    end = shop.clock.ms + 1_000
    monkeypatch.setattr(shop.store, "look_at_held", look)

    async def trip() -> None:
        await other.world.take_journal()
        await other.moves(theirs.id, "open", ts_ms=shop.clock.ms)
        assert shop.notifier.host is not None
        await shop.notifier.host.nudge()

    shop.notifier.at(end + 300, trip)
    await shop.notifier.run_until(end + MINUTE)
    assert len(looks) >= 10
    assert len({turn for turn, _ in looks}) == len(looks)
    begun = [at for _, at in looks]
    assert all(later - at >= 120 for at, later in pairwise(begun))
    ((_, at),) = kinds(shop, told.id)
    assert end + 300 <= at <= end + 420
    released = [at for kind, at in kinds(shop, channel.id) if kind == "trip"]
    assert (len(released), max(released) > at) == (20, True)
