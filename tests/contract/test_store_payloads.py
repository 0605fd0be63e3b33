"""Store: what an alert says is stored once for all channels that are told the same, and goes with the last of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from breaker_actors.core.model import StateWord
from breaker_actors.store.config.channels import CHANNELS_MAX
from breaker_actors.store.outbox.payloads import UNIT
from breaker_actors.store.tables import alert_payloads, outbox
from tests.contract.mute_world import HOUR, MuteWorld
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.contract.test_store_shares import read, sums

LONG = "y" * 3_900


@pytest.fixture
async def told(world: World) -> MuteWorld:
    told = MuteWorld(world)
    await told.open()
    return told


async def move_with_long_rule(told: OutboxWorld, breaker_id: str, *moves: StateWord) -> None:
    commit = told.commit(breaker_id, *moves)
    rule = {"kind": "avg", "kind_params": {"x": LONG}, "tags": {}}
    commit = replace(commit, events=tuple(replace(one, rule=rule) for one in commit.events))
    assert await told.world.write(commit) == ["ok"]


async def stored(told: OutboxWorld) -> tuple[int, int]:
    """Rows and payloads of the project; its sum is that of both."""
    o, p, mine = outbox.c, alert_payloads.c, told.world.project_id
    count = select(func.count())
    rows: int = await read(told.world, lambda c: c.execute(count.where(o.project_id == mine)).scalar_one())
    texts = await read(told.world, lambda c: c.execute(select(p.payload).where(p.project_id == mine)).scalars().all())
    own = await read(told.world, lambda c: c.execute(count.where(o.told.is_not(None))).scalar_one())
    assert own == 0
    units = sum(len(msgspec.json.encode(one)) // UNIT for one in texts)
    assert (await sums(told.world)).get("deliveries", 0) == rows + units
    return rows, len(texts)


async def test_one_text_for_all_channels_of_an_event(told: MuteWorld) -> None:
    """A trip that as many hear as may be is written with its text once."""
    channels = [await told.channel() for _ in range(CHANNELS_MAX)]
    row = await told.breaker()
    await move_with_long_rule(told, row.id, "open", "half_open", "closed")
    assert await stored(told) == (2 * len(channels), 2)
    for channel in (channels[0], channels[-1]):
        trip, recover = await told.rows(channel.id)
        assert (trip.told.curr, recover.told.curr) == ("open", "closed")
        assert trip.told.rule["kind_params"] == {"x": LONG}
        assert [one.told for one in await told.send_all(channel.id)] == [trip.told, recover.told]
    assert (
        await told.store.deliveries_of(told.world.project_id, 0, [trip.sequence]) if hasattr(trip, "sequence") else True
    )


async def test_a_text_goes_with_the_last_that_tells_it(small: Callable[..., Any]) -> None:
    told = OutboxWorld(await small(deliveries=1_000))
    await told.open()
    first, second, row = await told.channel(), await told.channel(), await told.breaker()
    await move_with_long_rule(told, row.id, "open", "half_open", "closed")
    await told.send_all(first.id)
    assert await told.store.prune_deliveries(1_000_000) == 2
    assert await stored(told) == (2, 2)
    assert [one.told.rule["kind_params"] for one in await told.send_all(second.id)] == [{"x": LONG}] * 2
    assert await told.store.prune_deliveries(1_000_000) == 2
    assert await stored(told) == (0, 0)


async def test_long_texts_count_more_of_the_share(small: Callable[..., Any]) -> None:
    """Of what fits no more is written than twice the share, texts among it."""
    told = OutboxWorld(await small(deliveries=10))
    await told.open()
    channel, row = await told.channel(), await told.breaker()
    for _ in range(6):
        await move_with_long_rule(told, row.id, "open", "half_open", "closed")
    rows, texts = await stored(told)
    assert (rows, texts) == (4, 4), "each counts four or five"
    assert (await told.store.stored_figures()).unsent == 8
    assert await told.words(channel.id) == ["trip pending", "recover pending"] * 2


async def test_what_a_mute_let_go_is_one_text_as_well(told: MuteWorld) -> None:
    """Its first text goes."""
    channels = [await told.channel() for _ in range(3)]
    row = await told.breaker()
    mute = await told.mute()
    await told.moves(row.id, "open")
    assert await stored(told) == (3, 1)
    assert await told.look(HOUR) == {"pending": 3}
    trips = [one for channel in channels for one in await told.rows(channel.id) if one.kind == "trip"]
    assert {one.told.muted_by.mute_id for one in trips if one.told.muted_by is not None} == {mute.id}
    assert len(trips) == 3
    assert await stored(told) == (3, 1)
