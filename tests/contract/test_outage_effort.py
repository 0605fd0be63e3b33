"""Store: what is asked about a breaker's past costs as much for one with thousands of trips or moves behind it as for
one with a few."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.event import listen, remove

from breaker_actors.store.mutes.matching import Matcher
from breaker_actors.store.outbox import claims
from breaker_actors.store.quotas import Shares, add
from breaker_actors.store.rows import ChannelDraft, ChannelRow
from breaker_actors.store.section import new_id
from breaker_actors.store.sql_store import SqlStore
from breaker_actors.store.tables import events, outbox
from tests.contract.backends import Backend
from tests.contract.mute_world import AHEAD_MS, HOUR, MuteWorld
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World, event

STEPS = 10
"""Instructions of SQLite between two counts."""
FEW, MANY = 10, 4_000


class Counted:
    """Statements, and instructions of SQLite by STEPS (PostgreSQL counts none)."""

    statements = steps = 0
    is_over = False


@contextmanager
def counting(world: World, writes_alone: bool = False) -> Iterator[Counted]:
    engines = world.store._db._engines  # type: ignore[attr-defined]
    counted = Counted()

    def counts(connection: Any) -> bool:
        return not writes_alone or connection.engine is not engines.read

    def asked(connection: Any, *_: Any) -> None:
        counted.statements += counts(connection)

    def stepped() -> None:
        counted.steps += not counted.is_over

    def begun(connection: Any) -> None:
        driver = connection.connection.driver_connection
        if isinstance(driver, sqlite3.Connection):
            driver.set_progress_handler(stepped if counts(connection) else None, STEPS)

    for engine in engines:
        listen(engine, "begin", begun)
        listen(engine, "before_cursor_execute", asked)
    try:
        yield counted
    finally:
        counted.is_over = True  # a connection keeps its handler
        for engine in engines:
            remove(engine, "begin", begun)
            remove(engine, "before_cursor_execute", asked)


async def alertmanager(told: OutboxWorld) -> ChannelRow:
    draft = ChannelDraft(channel="alertmanager", config={"url": "http://alerts.example:9093"})
    return await told.store.create_channel(told.world.project_id, draft, 1)


def repeat(c: Connection, channel_id: str, times: int, state: str, outages: bool = False) -> None:
    """So many more trips like the first one of a channel; each with an outage of its own, or of the same."""
    row = c.execute(select(outbox).where(outbox.c.channel_id == channel_id).order_by(outbox.c.number).limit(1)).one()
    like = {name: value for name, value in row._mapping.items() if name != "number"} | {"state": state}
    rows = [like | {"id": new_id(), "sequence": 1_000_000 + n} for n in range(times)]
    c.execute(insert(outbox), [row | {"incident": row["sequence"]} for row in rows] if outages else rows)
    add(c, like["project_id"], "deliveries", times)


async def cost_as_much(backend: Backend, world: World, cost: Callable[[World, int], Awaitable[Counted]]) -> None:
    """What a little costs, and much of it, in as many statements and steps."""
    few = await cost(world, FEW)
    many = await cost(await world.neighbour("other"), MANY)
    assert few.statements == many.statements
    if not backend.database:
        assert many.steps < 1.5 * few.steps, (few.steps, many.steps)


@pytest.mark.parametrize("state", ["sent", "dead", "suppressed"])
@pytest.mark.parametrize("ask", ["trip", "recover", "delete", "standing", "settle"])
async def test_it_does_not_grow_with_the_trips_of_the_outage(
    backend: Backend, world: World, ask: str, state: str
) -> None:
    """Neither its next trip, nor its end, nor what an Alertmanager is told again: on channels with and without labels,
    beside a live mute."""

    async def cost(world: World, trips: int) -> Counted:
        told = MuteWorld(world)
        await told.open()
        channels = [await alertmanager(told), await told.channel()]
        await told.mute(Matcher(field="name", op="=", value="nobody"))
        row = await told.breaker()
        await told.world.take_journal()
        await told.moves(row.id, "open", "half_open")
        for channel in channels:
            await world.store._db.write(lambda c, id_=channel.id: repeat(c, id_, trips, state))  # type: ignore[attr-defined]
        (taken,) = await told.take(channels[0].id, want=1)
        asking: dict[str, Callable[[], Awaitable[Any]]] = {
            "trip": lambda: told.moves(row.id, "open"),
            "recover": lambda: told.moves(row.id, "closed"),
            "delete": lambda: told.store.delete_breaker(world.project_id, row.id, 9_000),
            "standing": lambda: told.store.standing_alerts(told.epoch, channels[0].id),
            "settle": lambda: told.settle(taken, "dead"),
        }
        with counting(world) as counted:
            await asking[ask]()
        return counted

    await cost_as_much(backend, world, cost)


async def test_an_id_is_taken_up_again_whatever_it_has_behind_it(backend: Backend, world: World) -> None:
    """Everybody's writes wait for it; its last transition is the end of an index."""

    async def cost(world: World, moves: int) -> Counted:
        row = await world.breaker("a")
        await world.take_journal()
        await world.settle()
        assert await world.write(world.commit(row.id, await world.own(row.id), event(1))) == ["ok"]

        def repeated(c: Connection) -> None:
            like = dict(c.execute(select(events).where(events.c.breaker_id == row.id)).one()._mapping)
            first = 1_000_000 * like["sequence"]
            rows = [like | {"sequence": first + n, "transition_seq": n} for n in range(2, moves + 1)]
            c.execute(insert(events), rows)

        await world.store._db.write(repeated)  # type: ignore[attr-defined]
        await world.store.delete_breaker(world.project_id, row.id, 50)
        with counting(world) as counted:
            again = await world.breaker("a", now_ms=60, id=row.id)
        (state,) = await world.store.stored_states(world.project_id, [again.id])
        assert state.transition_seq == moves
        return counted

    await cost_as_much(backend, world, cost)


async def test_a_lease_walks_what_waits_once(backend: Backend, world: World) -> None:
    """Where all breakers of a channel wait to be tried again, twice as many are looked through in twice the time."""

    async def cost(world: World, breakers: int) -> Counted:
        told = OutboxWorld(world)
        channel, row = await told.channel(), await told.breaker()
        await told.open()
        await told.world.take_journal()
        await told.moves(row.id, "open")
        later = {"next_ms": 50_000}

        def repeated(c: Connection) -> None:
            repeat(c, channel.id, breakers * 100 - 1, "pending")
            numbers = c.execute(select(outbox.c.number).where(outbox.c.channel_id == channel.id)).scalars().all()
            for start in range(0, len(numbers), 100):
                mine = outbox.c.number.in_(numbers[start : start + 100])
                c.execute(update(outbox).where(mine).values(later | {"breaker_id": f"b{start}"}))

        await told.store._db.write(repeated)  # type: ignore[attr-defined]
        with counting(world) as counted:
            (leased,) = await told.lease(channel.id)
        assert (leased.rows, leased.later_ms) == ((), 50_000)
        return counted

    few = await cost(world, 50)
    many = await cost(await world.neighbour("other"), 200)
    if not backend.database:
        assert many.steps < 6 * few.steps, (few.steps, many.steps)


async def test_outages_end_by_as_many_statements_as_one(backend: Backend) -> None:
    """In a step of shedding, however many there are."""
    store: SqlStore = backend.store(shares=Shares(deliveries=1))
    await store.open()
    world, counts = await World.make(store), list[int]()
    for name, outages in (("few", 10), ("many", 900)):
        told = OutboxWorld(await world.neighbour(name))
        channel, row = await told.channel(), await told.breaker()
        await told.world.take_journal()
        await told.moves(row.id, "open")
        await store._db.write(lambda c, id_=channel.id, n=outages: repeat(c, id_, n, "pending", outages=True))
        with counting(world) as counted:
            assert await store.shed_deliveries(10_000) >= outages
        counts.append(counted.statements)
    await store.close()
    assert counts[1] < 4 * counts[0], counts


async def test_rows_of_channels_that_are_gone_end_a_part_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By as many statements for many channels as for one; what is left is said."""
    told = OutboxWorld(world)
    await told.open()
    channels, row = [await told.channel() for _ in range(30)], await told.breaker()
    await told.outage(row.id)
    for channel in channels:
        await told.store.delete_channel(world.project_id, channel.id, 2)
    ids, counts = [channel.id for channel in channels], list[int]()
    monkeypatch.setattr(claims, "CANCEL_MAX", 40)
    for some, is_all in ((ids[:1], True), (ids[1:], False), (ids[1:], True)):
        with counting(world) as counted:
            assert (await told.store.cancel_deliveries(told.epoch, some, 9_000))[1] is is_all
        counts.append(counted.statements)
    assert len(set(counts)) == 1, counts
    assert [await told.words(id_) for id_ in ids] == [["trip cancelled", "recover cancelled"]] * 30


@pytest.mark.parametrize("ask", ["tend", "warn"])
async def test_mutes_that_end_soon_cost_as_much_whatever_they_hold(backend: Backend, world: World, ask: str) -> None:
    """Everybody's writes wait for it; what waits behind each is found by looks, which read."""

    async def cost(world: World, held: int) -> Counted:
        told = MuteWorld(world)
        await told.open()
        channel, row = await told.channel(), await told.breaker()
        mutes = [await told.mute(Matcher(field="name", op="=", value=str(number))) for number in range(10)]
        last = await told.mute()
        await told.world.take_journal()
        await told.moves(row.id, "open")
        await world.store._db.write(lambda c: repeat(c, channel.id, held, "held"))  # type: ignore[attr-defined]
        behind = {mute.id: {channel.id: held} for mute in (*mutes, last)}
        with counting(world) as counted:
            if ask == "tend":
                assert (await told.store.tend_mutes(told.epoch, HOUR - 1, AHEAD_MS)).ended == ()
            else:
                await told.store.warn_of_ends(told.epoch, HOUR - 1, AHEAD_MS, behind)
        return counted

    few = await cost(world, FEW)
    many = await cost(await world.neighbour("other"), MANY)
    assert few.statements == many.statements
    if not backend.database:
        assert many.steps < 3 * few.steps, (few.steps, many.steps)  # of the mutes of both
