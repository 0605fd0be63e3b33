"""Outages that stand, as an Alertmanager has to hear of them again: which, under which labels, page by page."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from breaker_actors.errors import Fenced
from breaker_actors.store.outbox.standing import BATCH_MAX
from breaker_actors.store.rows import ChannelDraft, ChannelRow, DeliveryRow
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World


class Standing(OutboxWorld):
    """The outbox of a project, as a Notifier, with a channel to an Alertmanager."""

    far: ChannelRow

    async def far_channel(self, **fields: Any) -> ChannelRow:
        draft = ChannelDraft(channel="alertmanager", config={"url": "http://alerts.example:9093"}, **fields)
        return await self.store.create_channel(self.world.project_id, draft, 1)

    async def page(self, after: int = 0) -> tuple[list[DeliveryRow], int | None]:
        leased, last = await self.store.standing_alerts(self.epoch, self.far.id, after)
        assert leased is not None
        assert (leased.kind, leased.config) == ("alertmanager", {"url": "http://alerts.example:9093"})
        return list(leased.rows), last

    async def standing(self) -> list[tuple[str, int]]:
        """Breaker and number of the move that is told of it."""
        return [(row.breaker_id, row.transition_seq) for row in (await self.page())[0]]

    async def channels(self) -> list[str]:
        return [one.channel_id for one in await self.store.standing_channels()]


@pytest.fixture
async def told(world: World) -> Standing:
    told = Standing(world)
    await told.open()
    told.far = await told.far_channel()
    return told


async def test_what_was_told_stands_until_it_is_over(told: Standing) -> None:
    """The last trip that was sent is told, and nothing while more is on its way."""
    row = await told.breaker()
    assert await told.channels() == []
    await told.moves(row.id, "open")
    assert await told.channels() == [told.far.id]
    assert await told.standing() == []  # nobody was told yet
    await told.send_all(told.far.id)
    assert await told.standing() == [(row.id, 1)]
    await told.moves(row.id, "half_open")
    assert await told.standing() == [(row.id, 1)]
    await told.moves(row.id, "open")
    assert await told.standing() == []
    await told.send_all(told.far.id)
    assert await told.standing() == [(row.id, 3)]
    await told.moves(row.id, "half_open", "closed")
    assert await told.standing() == []
    await told.send_all(told.far.id)
    assert (await told.standing(), await told.channels()) == ([], [])


async def test_a_dead_trip_and_one_of_an_earlier_outage_do_not_stand(told: Standing) -> None:
    row = await told.breaker()
    await told.outage(row.id)
    await told.send_all(told.far.id)
    await told.moves(row.id, "open")
    await told.send_all(told.far.id, "dead")
    assert await told.standing() == []


async def test_a_deleted_breaker_does_not_stand(told: Standing) -> None:
    row = await told.breaker()
    await told.moves(row.id, "open")
    await told.send_all(told.far.id)
    await told.store.delete_breaker(row.project_id, row.id, 9_000)
    assert await told.standing() == []
    (end,) = await told.send_all(told.far.id)
    trip = (await told.rows(told.far.id))[0]
    assert end.kind == "resolve"
    assert end.told.subject == trip.told.subject is not None


async def test_pages_go_on_behind_the_last_breaker(told: Standing) -> None:
    rows = [await told.breaker(f"b{i}") for i in range(BATCH_MAX + 3)]
    for row in rows:
        await told.moves(row.id, "open")
    await told.send_all(told.far.id)
    first, last = await told.page()
    assert last is not None
    second, end = await told.page(last)
    assert (len(first), len(second), end) == (BATCH_MAX, 3, None)
    assert [one.breaker_id for one in (*first, *second)] == [row.id for row in rows]


async def test_channels_that_remember_and_that_are_not_there_are_left_out(told: Standing) -> None:
    row, hook = await told.breaker(), await told.channel()
    off = await told.far_channel(enabled=False)
    await told.moves(row.id, "open")
    assert await told.channels() == [told.far.id]
    for channel_id in (off.id, "nobody"):
        assert await told.store.standing_alerts(told.epoch, channel_id) == (None, None)
    assert [one.told.subject for one in await told.rows(hook.id)] == [None]


async def test_who_was_replaced_reads_nothing(told: Standing) -> None:
    before = told.epoch
    await told.open()
    with pytest.raises(Fenced):
        await told.store.standing_alerts(before, told.far.id)


async def test_the_subject_of_an_outage_is_that_of_its_first_trip(told: Standing) -> None:
    """On each channel by itself; a channel that takes recoveries only has none to go by."""
    ends = await told.far_channel(events=("recover",))
    row = await told.breaker()
    await told.world.edit(row.id, metadata={"team": "a"})
    await told.moves(row.id, "open", "half_open")
    await told.world.edit(row.id, metadata={"team": "b"})
    late = await told.far_channel()
    await told.moves(row.id, "open", "half_open", "closed")
    await told.moves(row.id, "open")

    async def teams(channel: ChannelRow) -> list[str]:
        subjects = [one.told.subject for one in await told.rows(channel.id)]
        return [subject.metadata["team"] for subject in subjects if subject is not None]

    assert await teams(told.far) == ["a", "a", "a", "b"]
    assert await teams(late) == ["b", "b", "b"]
    assert await teams(ends) == ["b"]
    subject = (await told.rows(told.far.id))[0].told.subject
    assert subject is not None
    assert replace(subject, metadata={}) == replace(
        subject, metadata={}, breaker="a", metric="", kind="avg", project="shop", router="a"
    )
