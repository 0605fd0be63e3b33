"""Store: what writing an alert costs for each channel that hears of it."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from sqlalchemy.event import listens_for

from breaker_actors.store.config.channels import CHANNELS_MAX
from tests.contract.backends import Backend
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World

STEPS = 10
"""Instructions of SQLite between two counts."""


async def steps_of_a_trip(world: World, channels: int) -> int:
    """What SQLite does, in its own instructions, to store the trip of a breaker that so many channels hear of."""
    told = OutboxWorld(world)
    for _ in range(channels):
        await told.channel()
    row = await told.breaker()
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    @listens_for(world.store._db._engines.rows, "begin")  # type: ignore[attr-defined]
    def begin(connection: Any) -> None:
        driver: sqlite3.Connection = connection.connection.driver_connection
        driver.set_progress_handler(tick, STEPS)

    await told.moves(row.id, "open")
    return count


async def test_what_a_channel_adds_does_not_grow_with_their_number(backend: Backend, world: World) -> None:
    """A project's mutes and its kinds of channels are asked about once, not with each of its channels."""
    if backend.database:
        pytest.skip("SQLite counts, PostgreSQL does not; the statements are the same")
    few = await steps_of_a_trip(world, CHANNELS_MAX // 10)
    many = await steps_of_a_trip(await world.neighbour("other"), CHANNELS_MAX)
    assert many < 15 * few, (few, many)
