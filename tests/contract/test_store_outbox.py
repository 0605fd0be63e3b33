"""Store: the outbox (semantics.md sections 3 and 9, architecture.md section 3.7): rows born, and what people do."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import update

from breaker_actors.errors import Fenced, NotFound, NotRedrivable
from breaker_actors.store.rows import REDRIVEN_MAX, ChannelRow, DeliveryQuery, RouterDraft
from breaker_actors.store.tables import outbox
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import RULE, World, draft, event
from tests.contract.test_outage_effort import counting, repeat

SLACK = "https://hooks.slack.example/services/T0/B0/secret"


@pytest.fixture
async def told(world: World) -> OutboxWorld:
    told = OutboxWorld(world)
    await told.open()
    return told


async def test_a_row_for_each_channel_that_takes_the_kind(told: OutboxWorld) -> None:
    """Every move to open is a trip, half_open to closed a recovery; open to half_open is nobody's business."""
    both, trips, ends = await told.channel(), await told.channel("trip"), await told.channel("recover")
    off = await told.channel(enabled=False)
    row = await told.breaker()
    await told.moves(row.id, "open", "half_open", "open", "half_open", "closed")
    assert await told.words(both.id) == ["trip pending", "trip pending", "recover pending"]
    assert await told.words(trips.id) == ["trip pending", "trip pending"]
    assert await told.words(ends.id) == ["recover pending"]
    assert await told.words(off.id) == []


async def test_the_projects_own_slack_address_is_a_channel_of_both_kinds(told: OutboxWorld) -> None:
    """Its rows are under the project's id; a lease opens the address."""
    project_id = told.world.project_id
    await told.store.update_project(project_id, {"slack_webhook_url": SLACK}, 1)
    row = await told.breaker()
    await told.outage(row.id)
    assert await told.words(project_id) == ["trip pending", "recover pending"]
    (leased,) = await told.lease(project_id)
    assert (leased.kind, leased.config, leased.project_name) == ("slack", {"webhook_url": SLACK}, "shop")


async def test_a_row_tells_of_its_event(told: OutboxWorld) -> None:
    """The event's own figures, more of the rule while it is the same, and how long the outage has been."""
    channel, row = await told.channel(), await told.breaker()
    whole = {"kind": "avg", "metric": "latency", "threshold": 500.0, "window_ms": 60_000, "tags": {}}
    drafts = [event(1), event(2, "open", "half_open"), event(3, "half_open", "closed", ts_ms=61_000)]
    same = [msgspec.structs.replace(one, rule=whole) for one in drafts]
    assert await told.world.write(told.world.commit(row.id, told.epochs[row.id], *same)) == ["ok"]
    trip, recover = await told.rows(channel.id)
    assert (trip.breaker_id, trip.project_id, trip.transition_seq, trip.created_ms) == (row.id, row.project_id, 1, 1000)
    assert (trip.told.name, trip.told.prev, trip.told.curr, trip.told.value) == ("a", "closed", "open", 512.5)
    assert trip.told.rule == {**whole, "op": "gt", "min_count": 1, "kind_params": None}
    assert trip.told.agg == {"avg": 512.5, "count": 3}
    assert (trip.told.outage_ms, recover.told.outage_ms) == (None, 60_000)
    assert trip.incident == recover.incident == 1
    assert trip.id != recover.id


async def test_the_rule_of_now_is_not_told_of_an_event_of_before(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    old = {"kind": "avg", "metric": "latency", "threshold": 400.0, "window_ms": 60_000, "tags": {}}
    first = msgspec.structs.replace(event(1), rule=old)
    await told.world.write(told.world.commit(row.id, told.epochs[row.id], first))
    assert (await told.rows(channel.id))[0].told.rule == old


async def test_an_outage_may_begin_half_open(told: OutboxWorld) -> None:
    """A breaker that is throttled trips: in one commit or another, trip and end are of the same outage. One that was
    never open has no trip."""
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.moves(row.id, "half_open", "open")
    await told.moves(row.id, "half_open", "closed")
    trip, recover = (await told.rows(channel.id))[-2:]
    assert (trip.kind, recover.kind, trip.incident, recover.incident) == ("trip", "recover", 4, 4)
    await told.moves(row.id, "half_open", "closed")
    assert [end.incident for end in (await told.rows(channel.id))[-1:]] == [8]


async def test_what_a_breaker_observes_is_told_to_who_asks_for_it(told: OutboxWorld) -> None:
    """A channel that takes `observed` hears of trips and recoveries that callers don't see, no other one does; what an
    override hides is told to nobody."""
    asks, others, row = await told.channel("trip", "observed"), await told.channel(), await told.breaker()
    hidden = [
        msgspec.structs.replace(draft_, hidden_by="observe")
        for draft_ in (event(1), event(2, "open", "half_open"), event(3, "half_open", "closed"))
    ]
    under = msgspec.structs.replace(event(4), hidden_by="override")
    commit = told.world.commit(row.id, told.epochs[row.id], *hidden, under)
    assert await told.world.write(commit) == ["ok"]
    assert await told.words(asks.id) == ["observed pending", "observed pending"]
    assert await told.words(others.id) == []
    assert [one.told.curr for one in await told.rows(asks.id)] == ["open", "closed"]


async def test_who_moved_a_breaker_by_hand_is_told(told: OutboxWorld) -> None:
    """And why."""
    channel, row = await told.channel(), await told.breaker()
    forced = msgspec.structs.replace(event(1), reason="forced_open", by="sam", comment="drill", value=None)
    assert await told.world.write(told.world.commit(row.id, told.epochs[row.id], forced)) == ["ok"]
    (trip,) = await told.rows(channel.id)
    assert (trip.told.reason, trip.told.by, trip.told.comment) == ("forced_open", "sam", "drill")


async def test_an_outage_is_known_over_many_commits(told: OutboxWorld) -> None:
    """All rows of one outage have the sequence of the event it began with, whatever came in which commit."""
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.outage(row.id)
    await told.moves(row.id, "open")
    await told.moves(other.id, "open")
    await told.moves(row.id, "half_open")
    await told.moves(row.id, "open", "half_open")
    assert await told.world.write(
        told.commit(row.id, "closed"), told.commit(row.id, "open"), told.commit(other.id, "half_open", "closed")
    ) == ["ok", "ok", "ok"]
    mine = [one.incident for one in await told.rows(channel.id) if one.breaker_id == row.id]
    assert mine == [1, 1, 4, 4, 4, 10]
    others = {one.incident for one in await told.rows(channel.id) if one.breaker_id == other.id}
    assert others == {5}


async def test_a_repeated_commit_makes_no_second_row(told: OutboxWorld) -> None:
    """Whether its first answer got lost, or both met in one call."""
    channel, row = await told.channel(), await told.breaker()
    commit = told.commit(row.id, "open")
    assert await told.world.write(commit, commit) == ["ok", "repeated"]
    assert await told.world.write(commit) == ["repeated"]
    assert await told.words(channel.id) == ["trip pending"]


async def test_a_fenced_commit_makes_no_row(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    stale = told.commit(row.id, "open")
    await told.world.own(row.id, owner="b-1")
    assert await told.world.write(stale) == ["fenced"]
    with pytest.raises(Fenced):
        await told.store.commit(msgspec.structs.replace(told.world.journal, epoch=0), [stale])
    assert await told.words(channel.id) == []


async def test_channels_of_other_projects_hear_nothing(told: OutboxWorld) -> None:
    world, channel = told.world, await told.channel()
    other = await told.store.create_project(world.org_id, world.workspace_id, "other", 1)
    row, _ = await told.store.create_breaker(other.id, draft("x"), 0)
    epoch = await world.own(row.id)
    assert await world.write(world.commit(row.id, epoch, event(1), project_id=other.id)) == ["ok"]
    assert await told.words(channel.id) == []


async def test_the_end_of_an_open_breaker_is_told_to_who_knows_of_its_trip(told: OutboxWorld) -> None:
    """Also to channels that take trips only, and to those that have still to hear of it; not to new ones."""
    both, trips, ends = await told.channel(), await told.channel("trip"), await told.channel("recover")
    row = await told.breaker()
    await told.moves(row.id, "open")
    await told.send_all(both.id)
    late = await told.channel()
    await told.store.delete_breaker(told.world.project_id, row.id, 9_000)
    assert await told.words(both.id) == ["trip sent", "resolve pending"]
    assert await told.words(trips.id) == ["trip pending", "resolve pending"]
    assert await told.words(ends.id) == await told.words(late.id) == []
    end = (await told.rows(both.id))[1]
    assert (end.told.prev, end.told.curr, end.told.reason, end.told.ts_ms) == ("open", "closed", "deleted", 9_000)
    assert (end.told.name, end.told.outage_ms, end.transition_seq) == ("a", 8_000, 1)
    assert end.told.rule["op"] == RULE.op


async def test_the_end_of_a_half_open_breaker_is_told_and_of_a_closed_one_not(told: OutboxWorld) -> None:
    channel, row, closed = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.moves(row.id, "open", "half_open")
    await told.outage(closed.id)
    for one in (row, closed):
        await told.store.delete_breaker(told.world.project_id, one.id, 9_000)
    rows = await told.rows(channel.id)
    assert [(one.kind, one.breaker_id) for one in rows if one.kind == "resolve"] == [("resolve", row.id)]


async def test_a_dead_trip_has_no_end(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    await told.send_all(channel.id, "dead")
    await told.store.delete_breaker(told.world.project_id, row.id, 9_000)
    assert await told.words(channel.id) == ["trip dead"]


async def test_a_bulk_replace_tells_of_the_breakers_it_removes(told: OutboxWorld) -> None:
    channel = await told.channel()
    rows = [await told.breaker(name) for name in "ab"]
    for row in rows:
        await told.moves(row.id, "open")
    await told.store.replace_breakers(told.world.project_id, [], lambda *_: None, 9_000)
    ends = [one.breaker_id for one in await told.rows(channel.id) if one.kind == "resolve"]
    assert sorted(ends) == sorted(row.id for row in rows)


async def test_the_rows_of_a_deleted_project_end_as_cancelled(told: OutboxWorld) -> None:
    """Its channels are gone, so nobody can be told, and nothing is written of the end of its breakers."""
    channel, row = await told.channel(), await told.breaker()
    await told.store.update_project(told.world.project_id, {"slack_webhook_url": SLACK}, 1)
    await told.moves(row.id, "open")
    await told.store.delete_project(told.world.project_id, 9_000)
    waiting = {one.channel_id: (one.kind, one.version) for one in await told.store.waiting_channels()}
    assert waiting == {channel.id: (None, None), told.world.project_id: (None, None)}
    gone = list(waiting)
    assert await told.store.cancel_deliveries(told.epoch, gone, 9_500) == (dict.fromkeys(gone, 1), True)
    for channel_id in gone:
        assert await told.words(channel_id) == ["trip cancelled"]
    assert await told.store.waiting_channels() == []


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_channel_that_is_gone_has_no_end_of_what_it_heard(told: OutboxWorld, is_deleted: bool) -> None:
    gone, there, row = await told.channel(), await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    if is_deleted:
        await told.store.delete_channel(told.world.project_id, gone.id, 8_000)
    else:
        await told.store.update_channel(
            told.world.project_id, gone.id, lambda one: msgspec.structs.replace(one, enabled=False), 8_000
        )
    await told.store.delete_breaker(told.world.project_id, row.id, 9_000)
    assert await told.words(gone.id) == ["trip pending"]
    assert await told.words(there.id) == ["trip pending", "resolve pending"]


async def test_a_breaker_made_again_begins_new_outages(told: OutboxWorld) -> None:
    """Its numbers go on, the end of its predecessor is not taken for one of its own."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    await told.store.delete_breaker(told.world.project_id, row.id, 9_000)
    again, _ = await told.store.create_breaker(told.world.project_id, draft("a", id=row.id), 10)
    told.epochs[row.id], told.states[row.id] = await told.world.own(again.id), "closed"
    await told.outage(row.id)
    rows = await told.rows(channel.id)
    assert [(one.kind, one.incident, one.transition_seq) for one in rows] == [
        ("trip", 1, 1),
        ("resolve", 1, 1),
        ("trip", 2, 2),
        ("recover", 2, 4),
    ]


async def test_deliveries_page_by_page(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    for _ in range(3):
        await told.outage(row.id)
    everything = (await told.rows(channel.id))[::-1]
    query = DeliveryQuery(project_id=told.world.project_id, channel_id=channel.id, limit=4)
    first = await told.store.deliveries(query)
    second = await told.store.deliveries(msgspec.structs.replace(query, before=first[-1].number))
    assert first + second == everything
    (trip,) = await told.take(channel.id, want=1)
    await told.settle(trip, "sent")
    of_state = {
        state: len(await told.store.deliveries(msgspec.structs.replace(query, state=state, limit=99)))
        for state in ("pending", "sent", "dead")
    }
    assert of_state == {"pending": 5, "sent": 1, "dead": 0}
    assert await told.store.deliveries(msgspec.structs.replace(query, project_id="other")) == []


async def test_redrive_sends_the_pair_again_in_order(told: OutboxWorld) -> None:
    """Whichever of the two is asked for; with a fresh count of attempts and a note in the audit log."""
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.send_all(channel.id, "dead", error="no")
    trip, recover = await told.rows(channel.id)
    redriven = await told.store.redrive_delivery(row.project_id, channel.id, recover.id, 20_000, by="k")
    assert [(one.id, one.state, one.attempts) for one in redriven] == [
        (trip.id, "pending", 0),
        (recover.id, "pending", 0),
    ]
    assert redriven[0].last_error == "no"
    notes = [one for one in await told.store.audit(row.project_id, 10) if one.action == "delivery.redrive"]
    assert [(one.who, one.target_id, one.after) for one in notes] == [
        ("k", recover.id, {"state": "pending", "deliveries": 2})
    ]
    assert [one.id for one in await told.send_all(channel.id)] == [trip.id, recover.id]
    assert await told.words(channel.id) == ["trip sent", "recover sent"]


async def test_a_newer_trip_after_a_dead_pair(told: OutboxWorld) -> None:
    """It goes on; the old end is not sent into the new outage, but may be after it."""
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.send_all(channel.id, "dead")
    await told.moves(row.id, "open")
    old = (await told.rows(channel.id))[0]
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip"]
    with pytest.raises(NotRedrivable):
        await told.store.redrive_delivery(row.project_id, channel.id, old.id, 20_000)
    await told.moves(row.id, "half_open", "closed")
    await told.store.redrive_delivery(row.project_id, channel.id, old.id, 20_000)
    sent = await told.send_all(channel.id)
    assert [(one.kind, one.transition_seq) for one in sent] == [("trip", 1), ("recover", 3), ("recover", 6)]


@pytest.mark.parametrize("asked", [0, -1])
async def test_of_a_long_outage_the_newest_are_redriven(told: OutboxWorld, world: World, asked: int) -> None:
    """With the one that is asked for, in a few statements, however many there are; once more takes the next ones."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    await world.store._db.write(lambda c: repeat(c, channel.id, 3 * REDRIVEN_MAX, "pending"))  # type: ignore[attr-defined]
    await told.moves(row.id, "half_open", "closed")
    await world.store._db.write(lambda c: c.execute(update(outbox).values(state="dead")))  # type: ignore[attr-defined]
    rows = await told.rows(channel.id)
    with counting(world) as counted:
        redriven = await told.store.redrive_delivery(row.project_id, channel.id, rows[asked].id, 20_000)
    newest = rows[-REDRIVEN_MAX:] if asked else [rows[0], *rows[1 - REDRIVEN_MAX :]]
    assert [one.id for one in redriven] == [one.id for one in newest]
    assert {one.state for one in redriven} == {"pending"}
    assert counted.statements < 30
    (note,) = [one for one in await told.store.audit(row.project_id, 10) if one.action == "delivery.redrive"]
    assert note.after == {"state": "pending", "deliveries": REDRIVEN_MAX}
    again = await told.store.redrive_delivery(row.project_id, channel.id, rows[1].id, 20_000)
    assert len(again) == REDRIVEN_MAX
    assert (await told.words(channel.id)).count("trip dead") == len(rows) - 2 * REDRIVEN_MAX


async def test_redrive_goes_before_what_is_still_to_be_sent(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.send_all(channel.id, "dead")
    await told.moves(row.id, "open")
    old = (await told.rows(channel.id))[0]
    await told.store.redrive_delivery(row.project_id, channel.id, old.id, 20_000)
    assert [one.transition_seq for one in await told.send_all(channel.id)] == [1, 3, 4]


async def test_an_old_trip_is_not_sent_behind_its_recovery(told: OutboxWorld) -> None:
    """Nobody would ever take it back."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open", "half_open", "open", "half_open", "closed")
    (first,) = await told.take(channel.id)
    await told.settle(first, "dead")
    await told.send_all(channel.id)
    with pytest.raises(NotRedrivable):
        await told.store.redrive_delivery(row.project_id, channel.id, first.id, 20_000)


async def test_a_trip_whose_end_was_never_written_is_not_sent_behind_it(told: OutboxWorld) -> None:
    """The channel was switched off when its breaker recovered."""
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    for id_ in (row.id, other.id):
        await told.moves(id_, "open")
    await told.send_all(channel.id, "dead")
    trip, still = await told.rows(channel.id)
    await switch(told, channel, False)
    await told.moves(row.id, "half_open", "closed")
    await switch(told, channel, True)
    with pytest.raises(NotRedrivable, match="is over"):
        await told.store.redrive_delivery(row.project_id, channel.id, trip.id, 20_000)
    await told.moves(row.id, "open")
    await told.store.redrive_delivery(row.project_id, channel.id, trip.id, 20_000)  # what follows puts it right
    await told.store.redrive_delivery(row.project_id, channel.id, still.id, 20_000)
    assert [one.transition_seq for one in await told.send_all(channel.id)] == [1, 1, 4]


async def test_who_takes_trips_only_may_have_old_ones(told: OutboxWorld) -> None:
    channel, row = await told.channel("trip"), await told.breaker()
    await told.outage(row.id)
    await told.send_all(channel.id, "dead")
    (trip,) = await told.rows(channel.id)
    await told.store.redrive_delivery(row.project_id, channel.id, trip.id, 20_000)
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip"]


async def test_the_beginning_of_an_outage_is_kept_as_long_as_it_lasts(told: OutboxWorld) -> None:
    """Its end is told with how long it was, and to nobody who had no trip of it."""
    channel, row, closed = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.outage(closed.id)
    await told.moves(row.id, "open", "half_open", "open")
    await told.send_all(channel.id, "dead")
    assert (await told.store.prune(1 << 40))["events"] == 5
    await told.moves(row.id, "half_open", "closed")
    assert await told.send_all(channel.id) == [], "its trips are dead, so is its end"
    assert (await told.words(channel.id))[-1] == "recover dead"
    assert (await told.rows(channel.id))[-1].told.outage_ms == 4_000
    assert (await told.store.prune(1 << 40))["events"] == 3


async def switch(told: OutboxWorld, channel: ChannelRow, enabled: bool) -> None:
    await told.store.update_channel(
        channel.project_id, channel.id, lambda row: msgspec.structs.replace(row, enabled=enabled), 2
    )


async def test_what_can_not_be_redriven(told: OutboxWorld) -> None:
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    (trip,) = await told.rows(channel.id)
    with pytest.raises(NotRedrivable):
        await told.store.redrive_delivery(row.project_id, channel.id, trip.id, 20_000)
    await told.send_all(channel.id, "dead")
    for project_id, channel_id, id_ in (
        (row.project_id, channel.id, "nothing"),
        (row.project_id, "other", trip.id),
        ("other", channel.id, trip.id),
    ):
        with pytest.raises(NotFound):
            await told.store.redrive_delivery(project_id, channel_id, id_, 20_000)
    await told.store.update_channel(row.project_id, channel.id, lambda r: msgspec.structs.replace(r, enabled=False), 2)
    with pytest.raises(NotRedrivable):
        await told.store.redrive_delivery(row.project_id, channel.id, trip.id, 20_000)


async def test_a_recovery_without_a_trip_of_its_own_is_redriven_alone(told: OutboxWorld) -> None:
    channel, row = await told.channel("recover"), await told.breaker()
    for _ in range(2):
        await told.outage(row.id)
    await told.send_all(channel.id, "dead")
    first, _ = await told.rows(channel.id)
    await told.store.redrive_delivery(row.project_id, channel.id, first.id, 20_000)
    assert await told.words(channel.id) == ["recover pending", "recover dead"]


async def test_pruning(told: OutboxWorld) -> None:
    """What ended before a time; never what waits, nor the trip of an outage whose end is still to be told."""
    channel, a, b = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.moves(a.id, "open", ts_ms=100)
    await told.send_all(channel.id)
    await told.moves(b.id, "open", "half_open", "closed", ts_ms=200)
    await told.send_all(channel.id)
    await told.moves(b.id, "open", ts_ms=5_000)
    assert await told.store.prune_deliveries(200) == 0
    assert await told.store.prune_deliveries(1_000) == 2
    assert await told.words(channel.id) == ["trip sent", "trip pending"]
    await told.moves(a.id, "half_open", "closed", ts_ms=6_000)
    assert await told.store.prune_deliveries(1_000) == 0
    assert [one.kind for one in await told.send_all(channel.id)] == ["trip", "recover"]
    assert await told.store.prune_deliveries(1_000) == 1
    assert await told.store.prune_deliveries(9_000) == 1  # b is open: its trip stays
    assert await told.words(channel.id) == ["trip sent"]


async def test_routers_and_links_leave_the_outbox_alone(told: OutboxWorld) -> None:
    """A change of configuration beside the state tells nobody anything."""
    channel, row = await told.channel(), await told.breaker()
    await told.moves(row.id, "open")
    router, _ = await told.store.create_router(row.project_id, RouterDraft(breaker_ids=(row.id,)), 5)
    await told.world.edit(row.id, name="renamed")
    await told.store.unlink_breaker(row.project_id, router.id, row.id, 6)
    await told.moves(row.id, "half_open", "closed")
    rows = await told.rows(channel.id)
    assert [(one.kind, one.told.name) for one in rows] == [("trip", "a"), ("recover", "a")]
