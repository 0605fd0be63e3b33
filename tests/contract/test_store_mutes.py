"""Store: mutes (semantics.md section 9): what is held, what is released, what ends unheard, on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from breaker_actors.errors import Fenced, Invalid, NotFound, NotRedrivable
from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.mutes.schedule import Window
from breaker_actors.store.quotas import Shares
from breaker_actors.store.rows import ChannelDraft
from tests.contract.backends import Backend
from tests.contract.mute_world import AHEAD_MS, HOUR, NAMED_A, MuteWorld
from tests.contract.store_world import World, draft

SLACK = "https://hooks.slack.example/services/T0/B0/secret"


@pytest.fixture
async def told(world: World) -> MuteWorld:
    told = MuteWorld(world)
    await told.open()
    return told


# birth


async def test_a_muted_trip_is_held_and_others_are_not(told: MuteWorld) -> None:
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    mute = await told.mute(NAMED_A)
    await told.moves(row.id, "open")
    await told.moves(other.id, "open")
    assert await told.words(channel.id) == ["trip held", "trip pending"]
    assert await told.mutes_of(channel.id) == [mute.id, None]
    assert [one.breaker_id for one in await told.take(channel.id)] == [other.id]


@pytest.mark.parametrize(
    "matchers",
    [
        [("name", "=", "a")],
        [("name", "glob", "?")],
        [("metric", "=", "latency"), ("kind", "=", "avg")],
        [("metadata.team", "=", "payments")],
        [("metadata.none", "!=", "x")],
        [("router.env", "glob", "prod*")],
        [("channel", "=", "webhook")],
    ],
)
async def test_what_a_matcher_may_look_at(told: MuteWorld, matchers: list[tuple[str, str, Any]]) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.world.edit(row.id, metadata={"team": "payments"})
    await told.world.router(row.id, metadata={"env": "prod-1"})
    await told.mute(*(Matcher(field=field, op=op, value=value) for field, op, value in matchers))  # type: ignore[arg-type]
    await told.moves(row.id, "open")
    assert await told.words(channel.id) == ["trip held"]


@pytest.mark.parametrize(
    "matchers",
    [
        [("name", "=", "b")],
        [("name", "!=", "a")],
        [("name", "=", "a"), ("kind", "=", "p95")],
        [("metadata.team", "=", "payments")],
        [("router.env", "=", "prod")],
        [("channel", "=", "slack")],
    ],
)
async def test_what_does_not_match_is_heard(told: MuteWorld, matchers: list[tuple[str, str, Any]]) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute(*(Matcher(field=field, op=op, value=value) for field, op, value in matchers))  # type: ignore[arg-type]
    await told.moves(row.id, "open")
    assert await told.words(channel.id) == ["trip pending"]


async def test_a_channel_is_muted_by_id_name_or_kind_and_others_hear(told: MuteWorld) -> None:
    muted, heard, row = await told.channel(), await told.channel(), await told.breaker()
    await told.mute(Matcher(field="channel", op="=", value=muted.id))
    await told.moves(row.id, "open")
    assert await told.words(muted.id) == ["trip held"]
    assert await told.words(heard.id) == ["trip pending"]


async def test_the_projects_own_slack_address_is_muted_like_a_channel(told: MuteWorld) -> None:
    project_id, row = told.world.project_id, await told.breaker()
    await told.store.update_project(project_id, {"slack_webhook_url": SLACK}, 1)
    await told.mute(Matcher(field="channel", op="=", value="slack"))
    await told.moves(row.id, "open")
    assert await told.words(project_id) == ["trip held"]
    assert await told.look(HOUR) == {"pending": 1}


async def test_the_time_of_the_event_decides(told: MuteWorld) -> None:
    """From the start on, until before the end."""
    channel = await told.channel()
    rows = [await told.breaker(name) for name in "abcd"]
    await told.mute(starts_ms=2_000, ends_ms=4_000)
    for row, ts_ms in zip(rows, (1_999, 2_000, 3_999, 4_000), strict=True):
        await told.moves(row.id, "open", ts_ms=ts_ms)
    assert await told.words(channel.id) == ["trip pending", "trip held", "trip held", "trip pending"]


async def test_a_window_of_the_night_in_its_zone(told: MuteWorld) -> None:
    """22:00 to 06:00 in Berlin, the night to the 29th of March 2026, when 02:00 to 03:00 is left out."""
    channel = await told.channel()
    night = Window(weekdays=("sat",), begins="22:00", ends="06:00")
    await told.mute(ends_ms=None, windows=(night,), zone="Europe/Berlin")
    begin, end = 1_774_731_600_000, 1_774_756_800_000  # 21:00 UTC, 04:00 UTC: seven hours
    for name, ts_ms in (("a", begin - 1), ("b", begin), ("c", end - 1), ("d", end)):
        await told.moves((await told.breaker(name)).id, "open", ts_ms=ts_ms)
    assert await told.words(channel.id) == ["trip pending", "trip held", "trip held", "trip pending"]
    assert await told.look(end - 1) == {}
    assert await told.look(end) == {"pending": 2}


async def test_other_projects_are_not_muted(told: MuteWorld) -> None:
    world = told.world
    other = await told.store.create_project(world.org_id, world.workspace_id, "other", 1)
    mine = await told.channel()
    theirs = await told.store.create_channel(other.id, _webhook(), 1)
    row = await told.breaker()
    await told.mute()
    breaker, _ = await told.store.create_breaker(other.id, draft("a"), 0)
    await told.adopt(breaker.id)
    commit = msgspec.structs.replace(told.commit(breaker.id, "open"), project_id=other.id)
    assert await world.write(commit) == ["ok"]
    await told.moves(row.id, "open")
    assert await told.words(mine.id) == ["trip held"]
    waiting = {one.channel_id for one in await told.store.waiting_channels()}
    assert waiting == {theirs.id}


def _webhook() -> ChannelDraft:
    return ChannelDraft(channel="webhook", config={"url": "http://hook.example/x"})


# what comes after


async def test_an_outage_that_ends_meanwhile_is_heard_by_nobody(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    mute = await told.mute()
    await told.moves(row.id, "open")
    await told.moves(row.id, "half_open", "closed")
    assert await told.words(channel.id) == ["trip suppressed", "recover suppressed"]
    assert await told.mutes_of(channel.id) == [mute.id, mute.id]
    assert [one.ended_ms for one in await told.rows(channel.id)] == [3_000, 3_000]
    assert await told.look(HOUR) == {}
    assert await told.send_all(channel.id) == []


async def test_a_whole_outage_in_one_commit_is_heard_by_nobody(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute()
    await told.moves(row.id, "open", "half_open", "open", "half_open", "closed", "open")
    words = ["trip suppressed", "trip suppressed", "recover suppressed", "trip held"]
    assert await told.words(channel.id) == words


async def test_what_still_stands_is_told_once_with_its_mute(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    mute = await told.mute()
    await told.moves(row.id, "open")
    assert await told.look(HOUR - 1) == {}
    assert await told.look(HOUR) == {"pending": 1}
    assert await told.words(channel.id) == ["trip pending", "mute_ending pending"]
    sent = {one.kind: one for one in await told.send_all(channel.id)}["trip"]
    by = sent.told.muted_by
    assert by is not None
    assert (by.mute_id, by.comment, by.by, by.open_since_ms) == (mute.id, "deploy", "ann", 1_000)
    assert await told.look(HOUR + 1) == {}
    await told.moves(row.id, "half_open", "closed", ts_ms=HOUR + 5)
    assert [one.kind for one in await told.send_all(channel.id)] == ["recover"]
    assert await told.words(channel.id) == ["trip sent", "mute_ending sent", "recover sent"]


async def test_of_several_trips_of_an_outage_the_newest_is_told(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute()
    await told.moves(row.id, "open")
    await told.moves(row.id, "half_open", "open")
    assert await told.words(channel.id) == ["trip suppressed", "trip held"]
    assert await told.look(HOUR) == {"pending": 1}
    (sent,) = await told.send_all(channel.id)
    assert sent.transition_seq == 3
    assert sent.told.muted_by is not None
    assert sent.told.muted_by.open_since_ms == 1_000


async def test_a_recovery_whose_trip_was_told_goes_out_inside_a_mute(told: MuteWorld) -> None:
    """A further trip in between is held, and ends with the outage."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    await told.send_all(channel.id)
    mute = await told.mute()
    await told.moves(row.id, "half_open", "open")
    await told.moves(row.id, "half_open", "closed")
    assert await told.words(channel.id) == ["trip sent", "trip suppressed", "recover pending"]
    assert await told.mutes_of(channel.id) == [None, mute.id, None]
    assert [one.kind for one in await told.send_all(channel.id)] == ["recover"]


async def test_a_recovery_whose_trip_is_still_to_be_sent_goes_out_behind_it(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    await told.mute()
    await told.moves(row.id, "half_open", "closed")
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip", "recover"]


async def test_a_trip_after_the_mute_takes_the_place_of_the_held_one(told: MuteWorld) -> None:
    """Before the Notifier has looked: one notification, which says what was not heard."""
    channel, row = await told.channel(), await told.breaker()
    mute = await told.mute(ends_ms=2_500)
    await told.moves(row.id, "open")
    await told.moves(row.id, "half_open", "open")
    assert await told.words(channel.id) == ["trip suppressed", "trip pending"]
    (sent,) = await told.send_all(channel.id)
    assert sent.told.muted_by is not None
    assert (sent.told.muted_by.mute_id, sent.told.muted_by.open_since_ms) == (mute.id, 1_000)
    assert await told.look() == {}


async def test_a_recovery_after_the_mute_and_before_the_look_is_not_told(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute(ends_ms=2_500)
    await told.moves(row.id, "open")
    await told.moves(row.id, "half_open", "closed")
    assert await told.words(channel.id) == ["trip suppressed", "recover suppressed"]


async def test_a_channel_of_recoveries_alone_hears_none_inside_a_mute(told: MuteWorld) -> None:
    ends, row = await told.channel("recover"), await told.breaker()
    mute = await told.mute(ends_ms=3_500)
    await told.outage(row.id)
    await told.outage(row.id)
    assert await told.words(ends.id) == ["recover suppressed", "recover pending"]
    assert await told.mutes_of(ends.id) == [mute.id, None]


async def test_a_deleted_breaker_is_heard_of_by_who_heard_of_its_trip(told: MuteWorld) -> None:
    heard, row = await told.channel(), await told.breaker()
    mute = await told.mute(Matcher(field="channel", op="!=", value=heard.id))
    muted = await told.channel()
    await told.moves(row.id, "open")
    await told.store.delete_breaker(told.world.project_id, row.id, 9_000)
    assert await told.words(heard.id) == ["trip pending", "resolve pending"]
    assert await told.words(muted.id) == ["trip suppressed"]
    assert await told.mutes_of(muted.id) == [mute.id]


# release


async def test_overlapping_mutes_hold_until_the_last_ends(told: MuteWorld) -> None:
    """Which of them is named, too."""
    channel, row = await told.channel(), await told.breaker()
    await told.mute(NAMED_A, ends_ms=5_000)
    long = await told.mute(ends_ms=8_000, comment="move")
    await told.moves(row.id, "open")
    assert await told.mutes_of(channel.id) == [long.id]
    assert await told.look(5_000) == await told.look(7_999) == {}
    later = await told.mute(NAMED_A, ends_ms=9_000, comment="later", now_ms=7_999)
    assert await told.look(8_000) == {}
    assert await told.mutes_of(channel.id) == [later.id]
    assert await told.look(9_000) == {"pending": 1}
    by = (await told.rows(channel.id))[0].told.muted_by
    assert by is not None
    assert by.comment == "later"


async def test_a_mute_that_is_deleted_or_edited_lets_go(told: MuteWorld) -> None:
    channel, first, second = await told.channel(), await told.breaker(), await told.breaker("b")
    one, two = await told.mute(NAMED_A), await told.mute(Matcher(field="name", op="=", value="b"))
    for row in (first, second):
        await told.moves(row.id, "open")
    before = await told.store.held_news()
    await told.end(one)
    assert await told.store.held_news() != before
    assert await told.look() == {"pending": 1}
    other = (Matcher(field="name", op="=", value="c"),)
    before = await told.store.held_news()
    await told.store.update_mute(
        told.world.project_id, two.id, lambda row: msgspec.structs.replace(row, matchers=other), 10_000
    )
    assert await told.store.held_news() != before
    assert await told.look() == {"pending": 1}
    assert await told.words(channel.id) == ["trip pending", "trip pending"]


async def test_what_no_longer_matches_is_let_go(told: MuteWorld) -> None:
    """A breaker's metadata were changed."""
    channel, row = await told.channel(), await told.breaker()
    await told.mute(Matcher(field="metadata.team", op="!=", value="payments"))
    await told.moves(row.id, "open")
    await told.world.edit(row.id, metadata={"team": "payments"})
    assert await told.look() == {"pending": 1}
    assert await told.words(channel.id) == ["trip pending"]


async def test_what_lost_its_channel_is_cancelled(told: MuteWorld) -> None:
    gone, off, row = await told.channel(), await told.channel(), await told.breaker()
    await told.mute()
    await told.moves(row.id, "open")
    await told.store.delete_channel(told.world.project_id, gone.id, 2_000)
    await told.store.update_channel(
        told.world.project_id, off.id, lambda one: msgspec.structs.replace(one, enabled=False), 2_000
    )
    assert await told.look() == {"cancelled": 2}
    assert await told.words(gone.id) == await told.words(off.id) == ["trip cancelled"]


async def test_a_deleted_project_leaves_nothing_waiting(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute()
    await told.moves(row.id, "open")
    await told.store.delete_project(told.world.project_id, 9_000)
    await told.look()
    assert await told.words(channel.id) == ["trip cancelled"]
    assert await told.store.held_count() == 0


async def test_an_older_notifier_releases_and_warns_of_nothing(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    mute = await told.mute()
    await told.moves(row.id, "open")
    old = told.epoch
    await told.open()
    for call in (
        told.store.look_at_held(old, HOUR),
        told.store.tend_mutes(old, HOUR - 1, AHEAD_MS),
        told.store.tend_mutes(old, HOUR, AHEAD_MS),
        told.store.warn_of_ends(old, HOUR - 1, AHEAD_MS, {mute.id: {channel.id: 1}}),
        told.store.end_unmatched(old, HOUR, 1),
    ):
        with pytest.raises(Fenced):
            await call
    assert await told.words(channel.id) == ["trip held"]
    assert await told.look(HOUR) == {"pending": 1}
    assert await told.words(channel.id) == ["trip pending"]


async def test_a_look_is_bounded_and_goes_on(told: MuteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from breaker_actors.store.outbox import held

    monkeypatch.setattr(held, "LOOK_MAX", 2)
    monkeypatch.setattr(held, "SHARE_MIN", 2)
    channel = await told.channel()
    rows = [await told.breaker(name) for name in "abcde"]
    await told.mute()
    for row in rows:
        await told.moves(row.id, "open")
    first = await told.store.look_at_held(told.epoch, HOUR)
    assert (first.states, first.released) == ({"pending": 2}, (channel.id,))
    assert await told.look(HOUR) == {"pending": 3}
    assert len(await told.send_all(channel.id)) == 5


# warnings


async def test_the_end_of_a_mute_is_warned_of_once_where_something_waits(told: MuteWorld) -> None:
    channel, quiet, row = await told.channel(), await told.channel("recover"), await told.breaker()
    mute = await told.mute()
    pager = await told.store.create_channel(
        told.world.project_id, ChannelDraft(channel="pagerduty", config={"routing_key": "k"}), 1
    )
    tended = await told.store.tend_mutes(told.epoch, HOUR - AHEAD_MS, AHEAD_MS)
    assert (tended.ended, tended.running, tended.oldest_ms, tended.next_ms) == ((), 1, 0, HOUR)
    await told.moves(row.id, "open")
    assert (await told.store.tend_mutes(told.epoch, HOUR - AHEAD_MS - 1, AHEAD_MS)).next_ms == HOUR - AHEAD_MS
    warned = []
    for now_ms in (HOUR - AHEAD_MS - 1, HOUR - AHEAD_MS, HOUR - AHEAD_MS, HOUR - 1):
        await told.look(now_ms)
        warned.append(told.warned)
    assert warned == [(), (channel.id,), (), ()]
    assert await told.words(channel.id) == ["trip held", "mute_ending pending"]
    assert await told.words(pager.id) == ["trip held"]
    assert await told.words(quiet.id) == []
    warning = (await told.rows(channel.id))[1]
    assert (warning.mute_id, warning.breaker_id, warning.told.name) == (mute.id, mute.id, "deploy")
    by = warning.told.muted_by
    assert by is not None
    assert (by.ends_ms, by.holding, by.by) == (HOUR, 1, "ann")
    assert [one.kind for one in await told.send_all(channel.id)] == ["mute_ending"]


async def test_another_end_is_warned_of_again_and_windows_are_not(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    mute = await told.mute()
    night = Window(weekdays=("thu",), begins="00:00", ends="24:00")
    await told.mute(windows=(night,), comment="night", ends_ms=HOUR // 2)
    await told.moves(row.id, "open")
    await told.look(HOUR - AHEAD_MS)
    await told.store.update_mute(
        told.world.project_id, mute.id, lambda one: msgspec.structs.replace(one, ends_ms=2 * HOUR), HOUR - 1
    )
    await told.look(HOUR)
    await told.look(2 * HOUR - AHEAD_MS)
    words = await told.words(channel.id)
    assert words == ["trip held", "mute_ending pending", "mute_ending pending"]


async def test_a_short_mute_is_warned_of_in_its_last_quarter(told: MuteWorld) -> None:
    """Not while most of it is to come; its begin counts, not when it was made."""
    channel, row = await told.channel(), await told.breaker()
    await told.mute(ends_ms=AHEAD_MS // 2, now_ms=0)
    await told.moves(row.id, "open")
    due_ms = AHEAD_MS // 2 - AHEAD_MS // 8
    assert (await told.store.tend_mutes(told.epoch, due_ms - 1, AHEAD_MS)).next_ms == due_ms
    for now_ms, warned in ((due_ms - 1, ()), (due_ms, (channel.id,))):
        await told.look(now_ms)
        assert told.warned == warned


async def test_nobody_is_warned_of_what_is_over(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.mute()
    await told.outage(row.id)
    await told.look(HOUR - 1)
    assert await told.words(channel.id) == ["trip suppressed", "recover suppressed"]


# mutes


async def test_a_mute_is_kept_with_its_changes_in_the_audit_log(told: MuteWorld) -> None:
    project_id, store = told.world.project_id, told.store
    mute = await told.mute(NAMED_A)
    assert await store.get_mute(project_id, mute.id) == mute
    assert [mute.state(ms) for ms in (-1, 0, HOUR)] == ["pending", "active", "expired"]
    changed = await store.update_mute(
        project_id, mute.id, lambda row: msgspec.structs.replace(row, comment="longer", ends_ms=2 * HOUR), 5, by="k2"
    )
    assert (changed.comment, changed.updated_ms, changed.created_by) == ("longer", 5, "k1")
    ended = await store.end_mute(project_id, mute.id, 7, by="k2")
    assert (ended.ended_ms, ended.ended_reason, ended.state(8)) == (7, "deleted", "expired")
    assert await store.list_mutes(project_id) == [ended]
    assert await store.end_mute(project_id, mute.id, 9) == ended
    with pytest.raises(Invalid, match="has ended"):
        await store.update_mute(project_id, mute.id, lambda row: row, 9)
    notes = {one.action: one for one in await store.audit(project_id, 10)}
    assert [(notes[word].who, notes[word].target_id) for word in ("mute.create", "mute.update", "mute.end")] == [
        ("k1", mute.id),
        ("k2", mute.id),
        ("k2", mute.id),
    ]
    update = notes["mute.update"]
    assert update.before is not None
    assert update.after is not None
    assert (update.before["comment"], update.after["comment"]) == ("deploy", "longer")
    for call in (store.update_mute(project_id, "x", lambda row: row, 9), store.end_mute("y", mute.id, 9)):
        with pytest.raises(NotFound):
            await call


async def test_a_project_has_so_many_mutes(backend: Backend) -> None:
    """Those that have ended don't count."""
    store = backend.store(shares=Shares(mutes=2))
    await store.open()
    told = MuteWorld(await World.make(store))
    first, _ = [await told.mute() for _ in range(2)]
    with pytest.raises(Invalid, match="at most 2 mutes"):
        await told.mute()
    await told.end(first)
    await told.mute()
    await told.mute(now_ms=HOUR)
    await store.close()


async def test_a_mute_that_matches_nothing_ends_itself(told: MuteWorld) -> None:
    """Channels don't count; nor do windows, which may wait for theirs."""
    store, project_id = told.store, told.world.project_id
    row, day = await told.breaker(), 24 * HOUR
    late = await told.mute(Matcher(field="name", op="glob", value="b*"), ends_ms=30 * day, comment="typo")
    fits = await told.mute(NAMED_A, Matcher(field="channel", op="=", value="x"), ends_ms=30 * day)
    night = Window(weekdays=("thu",), begins="00:00", ends="24:00")
    await told.mute(Matcher(field="name", op="=", value="b"), windows=(night,), ends_ms=None)
    assert await store.end_unmatched(told.epoch, 7 * day - 1, 7 * day) == (fits.number, [])
    assert await store.end_unmatched(told.epoch, 7 * day, 7 * day) == (fits.number, [late.id])
    assert await store.end_unmatched(told.epoch, 7 * day, 7 * day, fits.number) == (None, [])
    ended = {one.id: one.ended_reason for one in await store.list_mutes(project_id)}
    assert ended[late.id] == "matched_nothing"
    assert ended[fits.id] is None
    (note,) = [one for one in await store.audit(project_id, 10) if one.action == "mute.end"]
    assert (note.who, note.target_id) == ("system", late.id)
    await store.delete_breaker(project_id, row.id, 7 * day)
    assert (await store.end_unmatched(told.epoch, 14 * day, 7 * day))[1] == [fits.id]


async def test_an_end_that_has_come_is_noted(told: MuteWorld) -> None:
    mute = await told.mute()
    assert (await told.store.tend_mutes(told.epoch, HOUR - 1, AHEAD_MS)).ended == ()
    tended = await told.store.tend_mutes(told.epoch, HOUR, AHEAD_MS)
    assert (tended.ended, tended.running, tended.next_ms) == ((mute.id,), 0, None)
    (row,) = await told.store.list_mutes(told.world.project_id)
    assert (row.ended_ms, row.ended_reason) == (HOUR, "expired")


async def test_what_breakers_match_and_what_waits(told: MuteWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.world.edit(row.id, metadata={"team": "x"})
    router = await told.world.router(row.id, metadata={"env": "prod"})
    await told.breaker("b")
    mute = await told.mute(NAMED_A)
    await told.moves(row.id, "open")
    first, second = await told.store.muted_breakers(told.world.project_id)
    assert (first.id, first.name, first.metric, first.kind, first.open) == (row.id, "a", "latency", "avg", True)
    assert first.metadata == {"team": "x"}
    assert router.metadata in first.routers
    assert (second.name, second.open) == ("b", False)
    assert await told.store.held_counts(told.world.project_id) == {mute.id: 1}
    assert await told.store.held_count() == 1
    assert await told.words(channel.id) == ["trip held"]


# retention, shedding, redrive


async def test_held_deliveries_stay_and_suppressed_ones_go_with_the_history(told: MuteWorld) -> None:
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    mute = await told.mute(ends_ms=HOUR)
    await told.outage(row.id)
    await told.moves(other.id, "open")
    assert await told.store.prune_deliveries(50_000) == 2
    assert await told.words(channel.id) == ["trip held"]
    await told.end(mute)
    assert (await told.store.prune(9_000))["mutes"] == 0
    assert (await told.store.prune(20_000))["mutes"] == 1
    assert await told.look() == {"pending": 1}


async def test_neither_held_nor_suppressed_ones_are_sent_again(told: MuteWorld) -> None:
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.mute()
    await told.outage(row.id)
    await told.moves(other.id, "open")
    for one in await told.rows(channel.id):
        with pytest.raises(NotRedrivable, match=f"is {one.state}, not dead"):
            await told.store.redrive_delivery(told.world.project_id, channel.id, one.id, 20_000)


async def test_held_ones_are_shed_like_those_that_wait(backend: Backend) -> None:
    store = backend.store(shares=Shares(deliveries=3))
    await store.open()
    told = MuteWorld(await World.make(store))
    await told.open()
    channel = await told.channel()
    await told.mute()
    for name in "abcde":
        await told.moves((await told.breaker(name)).id, "open")
    await store.shed_deliveries(10_000)
    words = await told.words(channel.id)
    assert words.count("trip held") == 3
    assert len(words) <= 4
    await store.close()
