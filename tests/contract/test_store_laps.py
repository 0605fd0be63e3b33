"""Store: a round looks at a bounded number of rows of what is beyond shares, however many of them have to stay; laps
through them go on in later rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.dialects import postgresql

from breaker_actors.store import aging
from breaker_actors.store import tables as t
from breaker_actors.store.aging import Found, Walk
from breaker_actors.store.operational import retention
from breaker_actors.store.outbox import outbox
from breaker_actors.store.quotas import add
from breaker_actors.store.section import new_id
from tests.contract.backends import Backend
from tests.contract.outbox_world import OutboxWorld
from tests.contract.store_world import World
from tests.contract.test_outage_effort import FEW, Counted, cost_as_much, counting, repeat
from tests.contract.test_store_aging import open_breakers, told_of, write
from tests.contract.test_store_shares import sibling

NOW_MS = 50_000
Small = Callable[..., Any]


def hurry(monkeypatch: pytest.MonkeyPatch, page: int, looks: int) -> None:
    monkeypatch.setattr(outbox, "PRUNE_MAX", page)
    monkeypatch.setattr(retention, "PAGE", page)
    monkeypatch.setattr(retention, "PAGES_MAX", 1)
    monkeypatch.setattr(aging, "LOOKS_MAX", looks)


async def standing(told: OutboxWorld, count: int) -> str:
    """Sent trips of outages that go on; their channel."""
    channel, row = await told.channel(), await told.breaker("standing")
    await told.moves(row.id, "open")
    await told.send_all(channel.id)
    await write(told.world, lambda c: repeat(c, channel.id, count - 1, "sent", outages=True))
    return channel.id


async def numbers(told: OutboxWorld) -> int:
    mine = select(func.count()).where(t.outbox.c.project_id == told.world.project_id)
    found: int = await told.store._db.read(lambda c: c.execute(mine).scalar_one())  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("what", ["deliveries", "events"])
async def test_what_has_to_stay_costs_a_bounded_look(
    small: Small, backend: Backend, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    hurry(monkeypatch, page=FEW // 2, looks=2)

    async def cost(world: World, count: int) -> Counted:
        if what == "deliveries":
            await standing(await told_of(world), count)
        else:
            await open_breakers(world, count)
        with counting(world) as counted:
            if what == "deliveries":
                assert await world.store.shed_deliveries(NOW_MS) == 0
            else:
                assert (await world.store.prune(0))["events"] == 0
        enough = update(t.stored).where(t.stored.c.of_id == world.project_id, t.stored.c.what == what).values(used=0)
        await write(world, lambda c: c.execute(enough) and None)
        return counted

    await cost_as_much(backend, await small(full_projects=10_000, **{what: FEW // 2 - 1}), cost)


async def test_so_do_many_projects_of_an_organisation(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Together as much as one."""
    hurry(monkeypatch, page=2, looks=4)
    world, counts = await small(deliveries=4, full_projects=1), list[int]()
    for one in [world] + [await sibling(world) for _ in range(3)]:
        await standing(await told_of(one), 20)
        with counting(world) as counted:
            assert await world.store.shed_deliveries(NOW_MS) == 0
        counts.append(counted.statements)
    assert len(set(counts)) == 1, counts


async def test_a_lap_finds_what_may_go_behind_what_has_to_stay(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds later; what waits ends once a whole lap has found nothing that ended."""
    hurry(monkeypatch, page=2, looks=2)
    told = await told_of(await small(deliveries=4))
    first = await standing(told, 4)
    row = await told.breaker("b")
    await told.outage(row.id)
    await told.send_all(first)
    await told.outage(row.id)
    before = await numbers(told)
    left = [before]
    for _ in range(6):
        await told.store.shed_deliveries(NOW_MS)
        left.append(await numbers(told))
    assert left[:3] == [8, 8, 6], "two pages that have to stay, then the outage that was sent"
    assert left[-1] == 4
    assert await told.words(first) == ["trip sent"] * 4
    figures = await told.store.stored_figures()
    assert (figures.deliveries_dropped, figures.unsent) == (4, 2)


async def test_who_has_nothing_to_give_keeps_no_sibling_from_it(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest is asked first, and the next one when a lap through it has found nothing; from then on in each
    round, while the laps through the largest go on."""
    hurry(monkeypatch, page=2, looks=3)
    world = await small(deliveries=20, full_projects=1)
    largest = await told_of(world)
    await standing(largest, 12)
    other = await told_of(await sibling(world))
    channel, row = await other.channel(), await other.breaker()
    for _ in range(5):
        await other.outage(row.id)
    await other.send_all(channel.id)
    left = []
    for _ in range(5):
        await world.store.shed_deliveries(NOW_MS)
        left.append((await numbers(largest), await numbers(other)))
    assert left[0] == (12, 10), "half a lap"
    assert left[-1] == (12, 8)


async def test_time_is_looked_at_between_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing may go of what lies on them."""
    hurry(monkeypatch, page=2, looks=9)
    told = await told_of(world)
    channel_id = await standing(told, 8)
    monkeypatch.setattr(aging, "WALK_S", -1.0)
    with counting(world) as counted:
        assert await world.store.prune_deliveries(1_000_000) == 0
    assert counted.statements <= 2, "of one page, and the beginning of its transaction"
    assert len(await told.rows(channel_id)) == 8


async def test_a_page_is_read_by_its_index_whatever_the_projects_share(backend: Backend, world: World) -> None:
    """Of PostgreSQL, where nearly all rows are its own: not by the key, with everybody's older rows. And what is asked
    about its rows reads no table of all that is pending."""
    if not backend.database:
        pytest.skip("SQLite plans by no statistics")
    told = await told_of(world)
    await standing(told, 5_000)

    def plan(c: Connection) -> str:
        rows = aging.page_of(c, outbox._KEPT, world.project_id, (1,), 500).c
        query = select(rows.number, outbox._forgettable(rows)).compile(
            dialect=postgresql.dialect(),  # type: ignore[no-untyped-call]
            compile_kwargs={"literal_binds": True},
        )
        return "\n".join(c.execute(text(f"EXPLAIN {query}")).scalars())

    await write(world, lambda c: c.execute(text("ANALYZE outbox")) and None)
    found = await world.store._db.read(plan)  # type: ignore[attr-defined]
    assert "ix_outbox_project_number" in found, found
    assert "ix_outbox_pending" not in found, found
    assert "Seq Scan on outbox" not in found, found


def page(*keys: int, last: int | None = None, waits: bool = False) -> Found:
    return Found(keys, lambda c, keys: 0, None if last is None else (last,), waits)


def test_laps() -> None:
    first = Walk().behind(page(last=5))
    assert first == Walk((5,))
    second = first.behind(page(last=9, waits=True))
    assert second == Walk((9,), waiting=(5,))
    again = second.behind(page(waits=True))
    assert again == Walk((5,), takes_them=True), "from where something waits"
    assert again.behind(page(waits=True)) == Walk(is_spent=True), "it may not end: the next lap is an ordinary one"
    assert second._replace(gave=True).behind(page()) == Walk(), "what waits has time, as something has gone"
    assert Walk(is_spent=True).behind(page(last=3)) == Walk((3,), is_spent=True)


async def more(told: OutboxWorld, channel_id: str, times: int, state: str) -> None:
    """Deliveries like a channel's newest one, of outages of their own."""
    o, events = t.outbox, t.events.c

    def write_them(c: Connection) -> None:
        newest = select(o).where(o.c.channel_id == channel_id).order_by(o.c.number.desc()).limit(1)
        like = {name: value for name, value in c.execute(newest).one()._mapping.items() if name != "number"}
        last = max(c.execute(select(func.max(column))).scalar() or 0 for column in (o.c.sequence, events.sequence))
        own = [{"id": new_id(), "sequence": last + n, "incident": last + n} for n in range(1, times + 1)]
        c.execute(insert(o), [like | {"state": state} | one for one in own])
        add(c, like["project_id"], "deliveries", times)

    await write(told.world, write_them)


async def test_what_waits_goes_also_where_a_little_ends_now_and_then(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two more wait each round for a channel that does not answer, and one has ended: a lap that gives less than comes
    counts as one that gave nothing."""
    hurry(monkeypatch, page=10, looks=2)
    told = await told_of(await small(deliveries=100))
    silent, row = await told.channel("trip"), await told.breaker("b")
    await told.moves(row.id, "open")
    await more(told, silent.id, 100, "pending")
    left = []
    for _ in range(60):
        await more(told, silent.id, 2, "pending")
        await more(told, silent.id, 1, "dead")
        await told.store.shed_deliveries(NOW_MS)
        left.append(await numbers(told))
    assert max(left) <= 130
    assert max(left[20:]) <= 110


async def test_siblings_are_asked_also_where_the_largest_gives_a_little_now_and_then(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, page=10, looks=4)
    world, both, channels = await small(deliveries=100, full_projects=1), list[OutboxWorld](), list[str]()
    for is_second in (False, True):
        told = await told_of(await sibling(world) if is_second else world)
        channel, row = await told.channel("trip"), await told.breaker("b")
        await told.moves(row.id, "open")
        await told.send_all(channel.id)
        both.append(told)
        channels.append(channel.id)
    await more(both[0], channels[0], 75, "sent")  # of outages that go on: they stay
    await more(both[1], channels[1], 30, "dead")
    for _ in range(40):
        for told, channel_id in zip(both, channels, strict=True):
            await more(told, channel_id, 1, "dead")
        await both[0].store.shed_deliveries(NOW_MS)
    assert await numbers(both[0]) + await numbers(both[1]) <= 110
