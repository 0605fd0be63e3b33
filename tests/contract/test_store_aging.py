"""Store: what grows old goes, whatever has to stay beside it, and nobody's writes wait for the walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count as counted_up
from typing import Any

import pytest
from sqlalchemy import Connection, Table, func, insert, select

from breaker_actors.errors import Unavailable
from breaker_actors.store import aging, section
from breaker_actors.store import tables as t
from breaker_actors.store.aging import Turns
from breaker_actors.store.operational import retention
from breaker_actors.store.outbox import outbox
from breaker_actors.store.quotas import Excess, add
from breaker_actors.store.rows import MuteDraft, Once
from breaker_actors.store.secrets import SecretBox
from breaker_actors.store.section import new_id
from breaker_actors.store.sql_store import SqlStore
from tests.contract.backends import Backend
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World, event
from tests.contract.test_outage_effort import FEW, Counted, cost_as_much, counting, repeat
from tests.contract.test_store_shares import sibling, sums

OLD_MS = 1_000_000


async def told_of(world: World) -> OutboxWorld:
    await world.take_journal()
    told = OutboxWorld(world)
    await told.open()
    return told


async def write(world: World, work: Callable[[Connection], None]) -> None:
    await world.store._db.write(work)  # type: ignore[attr-defined]


async def open_breakers(world: World, count: int) -> None:
    """So many whose outages go on, each with the event that it began with."""
    row = await world.breaker("a")
    await world.take_journal()
    await world.write(world.commit(row.id, await world.own(row.id), event(1)))

    def fill(c: Connection) -> None:
        tables = (t.breakers, t.breakers.c.id), (t.records, t.records.c.breaker_id), (t.events, t.events.c.breaker_id)
        for table, id_ in tables:
            like = dict(c.execute(select(table).where(id_ == row.id)).one()._mapping)
            like.pop("number", None)
            at = -(c.execute(select(func.count()).select_from(t.events)).scalar_one() + count)
            more = [{id_.name: id_of} | ({"sequence": at + n} if table is t.events else {}) for n, id_of in ids]
            c.execute(insert(table), [like | values for values in more])
        add(c, world.project_id, "events", count)

    ids = [(n, new_id()) for n in range(count)]
    await write(world, fill)


async def events_of(world: World) -> int:
    query = select(func.count()).select_from(t.events).where(t.events.c.project_id == world.project_id)
    found: int = await world.store._db.read(lambda c: c.execute(query).scalar_one())  # type: ignore[attr-defined]
    return found


async def test_old_events_of_every_journal_go(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind as many young ones of another one as are looked at."""
    monkeypatch.setattr(retention, "PAGE", 2)
    store = SqlStore(backend.url, SecretBox(b"k" * 32), shards=2)
    await store.open()
    world = await World.make(store)
    of_shard: dict[int, str] = {}
    while len(of_shard) < 2:
        project = await store.create_project(world.org_id, world.workspace_id, "p", 1)
        of_shard[project.shard] = project.id
    for shard, age_ms in ((0, OLD_MS), (1, 0)):
        world.project_id, world.journal = of_shard[shard], await store.open_journal(shard)
        row = await world.breaker("a")
        moves = [
            event(n, *(("closed", "open") if n % 2 else ("open", "closed")), ts_ms=age_ms + n) for n in range(1, 7)
        ]
        await world.write(world.commit(row.id, await world.own(row.id), *moves))
    assert (await store.prune(OLD_MS))["events"] == 6
    assert (await events_of(world), (await store.prune(OLD_MS + 3))["events"]) == (0, 2)
    assert await store.history_ms() == OLD_MS + 6, "that of the newest event of whatever journal"
    await store.close()


async def test_the_walk_goes_on_behind_what_has_to_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round by round, and begins anew at the end: what had to stay may go by then."""
    monkeypatch.setattr(outbox, "PRUNE_MAX", 2)
    monkeypatch.setattr(outbox, "PRUNE_PAGES", 1)
    told = await told_of(world)
    channel = await told.channel()
    rows = [await told.breaker(name) for name in "abcde"]
    for row in rows[:4]:
        await told.moves(row.id, "open")
    await told.outage(rows[4].id)
    await told.send_all(channel.id)
    assert [await world.store.prune_deliveries(OLD_MS) for _ in range(4)] == [0, 0, 2, 0]
    await told.moves(rows[0].id, "half_open", "closed")
    await told.send_all(channel.id)
    assert [await world.store.prune_deliveries(OLD_MS) for _ in range(3)] == [1, 0, 1]
    assert await told.words(channel.id) == ["trip sent"] * 3


async def test_what_a_round_has_no_time_for_goes_in_the_next_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps wait for others' large changes: logs are trimmed meanwhile."""
    told = await told_of(world)
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    await told.send_all(channel.id)
    with monkeypatch.context() as hurried:
        hurried.setattr(aging, "WALK_S", -1.0)
        assert [await world.store.prune_deliveries(OLD_MS), (await world.store.prune(OLD_MS))["events"]] == [0, 0]
    await world.store.prune(OLD_MS)
    assert not world.store.is_pruned
    assert await world.store.prune_deliveries(OLD_MS) == 2
    assert world.store.is_pruned
    assert await told.words(channel.id) == []


@pytest.mark.parametrize("what", ["deliveries", "events"])
async def test_who_has_too_much_gives_it_up_in_turns(
    small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Also where a round has time for one step: then of the other organisation, then of a project's sibling. Whoever
    has most keeps nobody else from going down."""
    monkeypatch.setattr(aging, "perf_counter", counted_up(0.0, 0.6 * aging.WALK_S).__next__)
    monkeypatch.setattr(aging, "PARAMETERS_MAX", 2)
    monkeypatch.setattr(section, "PARAMETERS_MAX", 2)
    world = await small(**{what: 10})
    sibling_, other = await sibling(world), await world.neighbour("other")
    for one, outages in ((world, 8), (sibling_, 7), (other, 7)):
        if what == "deliveries":
            told = await told_of(one)
            channel, row = await told.channel(), await told.breaker()
            for _ in range(outages):
                await told.outage(row.id)
            await told.send_all(channel.id)
        else:
            row = await one.breaker("a")
            await one.take_journal()
            words = ("closed", "open", "closed")
            moves = [event(n + 1, *words[n % 2 :][:2]) for n in range(2 * outages)]
            await one.write(one.commit(row.id, await one.own(row.id), *moves))
    left = []
    for _ in range(4):
        await (world.store.shed_deliveries(50_000) if what == "deliveries" else world.store.prune(0))
        left.append([(await sums(one))[what] for one in (world, sibling_, other)])
    assert left == [[14, 14, 14], [14, 14, 12], [14, 12, 12], [14, 12, 10]]


def test_who_has_nothing_to_give_had_a_turn() -> None:
    """Or the look at it, which may be long, would be all of each round."""
    turns, first, second = Turns(), Excess("o", "p", (("p", 1),)), Excess("other", "q", (("q", 1),))
    assert turns.of([first, second], set()) == [first, second]
    turns.note(first)
    assert turns.of([first, second], {("o", "p")}) == [second]
    assert turns.of([first, second], set()) == [second, first]


@pytest.mark.parametrize("what", ["deliveries", "events", "shares"])
async def test_what_has_to_stay_costs_no_writes(small: Callable[..., Any], backend: Backend, what: str) -> None:
    async def cost(world: World, count: int) -> Counted:
        if what == "deliveries":
            told = await told_of(world)
            channel, row = await told.channel(), await told.breaker()
            await told.moves(row.id, "open")
            await told.send_all(channel.id)
            await write(world, lambda c: repeat(c, channel.id, count, "sent", outages=True))
        else:
            await open_breakers(world, count)
        with counting(world, writes_alone=True) as counted:
            removed = [
                await world.store.prune_deliveries(OLD_MS),
                (await world.store.prune(OLD_MS if what == "events" else 0))["events"],
            ]
        assert removed == [0, 0]
        return counted

    await cost_as_much(backend, await small(events=FEW // 2), cost)


async def test_what_is_sent_again_meanwhile_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps look again at what was found."""
    told = await told_of(world)
    channel, row, other = await told.channel(), await told.breaker(), await told.breaker("b")
    await told.moves(row.id, "open")
    await told.outage(other.id)
    await told.send_all(channel.id, "dead")
    first, *_ = await told.rows(channel.id)
    in_steps = world.store._in_steps  # type: ignore[attr-defined]

    async def redriven_before(keys: Sequence[int], *args: Any) -> Any:
        await world.store.redrive_delivery(world.project_id, channel.id, first.id, 20_000)
        assert first.number in keys
        return await in_steps(keys, *args)

    monkeypatch.setattr(world.store, "_in_steps", redriven_before)
    assert await world.store.prune_deliveries(OLD_MS) == 2
    assert await told.words(channel.id) == ["trip pending"]


async def fill(world: World, table: Table, count: int) -> None:
    """So many more like the only row of a table, all young."""

    def work(c: Connection) -> None:
        like = dict(c.execute(select(table).order_by(table.c.number).limit(1)).one()._mapping)
        own = "id" if table is t.mutes else "key"
        if table is t.mutes:
            like |= {"ended_ms": OLD_MS, "comment": "c" * 4_000}
        else:
            like |= {"inserted_ms": OLD_MS, "sealed": b"x" * 4_000}
        like.pop("number")
        c.execute(insert(table), [like | {own: new_id()} for _ in range(count)])

    await write(world, work)


@pytest.mark.parametrize("table", [t.mutes, t.idempotency_keys])
async def test_what_is_young_costs_no_look(backend: Backend, world: World, table: Table) -> None:
    async def cost(world: World, count: int) -> Counted:
        draft = MuteDraft(starts_ms=0, ends_ms=None, all=True, comment="c")
        once = Once(
            org_id=world.org_id, operation="POST /x", key="k", fingerprint="f", now_ms=OLD_MS, status=201, answer=str
        )
        await world.store.create_mute(world.project_id, draft, OLD_MS, once=once)
        await fill(world, table, count)
        with counting(world) as counted:
            assert await world.store.prune_idempotency_keys(OLD_MS) == 0
            assert (await world.store.prune(OLD_MS))["mutes"] == 0
        return counted

    await cost_as_much(backend, world, cost)


async def test_old_ones_of_both_go_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "PARAMETERS_MAX", 2)
    draft = MuteDraft(starts_ms=0, ends_ms=None, all=True, comment="c")
    for n in range(5):
        once = Once(
            org_id=world.org_id, operation="POST /x", key=str(n), fingerprint="f", now_ms=n, status=201, answer=str
        )
        mute = await world.store.create_mute(world.project_id, draft, n, once=once)
        await world.store.end_mute(world.project_id, mute.id, n)
    assert await world.store.prune_idempotency_keys(4) == 4
    assert (await world.store.prune(3))["mutes"] == 3
    assert len(await world.store.list_mutes(world.project_id)) == 2


async def test_what_fails_keeps_nothing_else_from_going(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at the end."""
    draft = MuteDraft(starts_ms=0, ends_ms=None, all=True, comment="c")
    mute = await world.store.create_mute(world.project_id, draft, 1)
    await world.store.end_mute(world.project_id, mute.id, 2)

    async def fails(*args: Any) -> int:
        raise Unavailable("not now")

    monkeypatch.setattr(world.store, "_remove_old", fails)
    with pytest.raises(Unavailable, match="not now"):
        await world.store.prune(3)
    assert await world.store.list_mutes(world.project_id) == []
    ended, had = world.store._note_end, list[str]()  # type: ignore[attr-defined]
    monkeypatch.setattr(retention, "_ENDING", {"broken": (), **retention._ENDING})
    monkeypatch.setattr(world.store, "_note_end", lambda name, is_done: had.append(name) or ended(name, is_done))
    with pytest.raises(ValueError, match="not enough values"):
        await world.store.prune_ended(3)
    assert had == ["gone_names", "sessions"]
