"""Store: how many deliveries a project keeps. Ended ones go early, oldest first; then what waits for longest ends
unsent, whole outages at a time; at twice the bound nothing more is written but the ends of what is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import func, select

from breaker_actors.store.tables import outbox
from tests.contract.outbox_world import OutboxWorld
from tests.contract.test_store_shares import read, sums

Small = Callable[..., Any]
NOW_MS = 50_000


async def told_of(small: Small, deliveries: int) -> OutboxWorld:
    told = OutboxWorld(await small(deliveries=deliveries))
    await told.open()
    return told


async def counted(told: OutboxWorld) -> int:
    """The project's sum, which is the number of its rows."""
    mine = select(func.count()).select_from(outbox).where(outbox.c.project_id == told.world.project_id)
    rows: int = await read(told.world, lambda c: c.execute(mine).scalar_one())
    assert (await sums(told.world)).get("deliveries", 0) == rows
    return rows


async def test_the_oldest_ended_ones_go_early(small: Small) -> None:
    """Counted; what waits stays, and so does the sent trip of an outage that goes on."""
    told = await told_of(small, 10)
    channel, standing, row = await told.channel(), await told.breaker("standing"), await told.breaker("b")
    await told.moves(standing.id, "open")
    for _ in range(6):
        await told.outage(row.id)
    await told.send_all(channel.id)
    await told.outage(row.id)
    assert await counted(told) == 15
    assert await told.store.shed_deliveries(NOW_MS) == 5
    assert await counted(told) == 10
    words = await told.words(channel.id)
    assert words[0] == "trip sent"
    assert (await told.rows(channel.id))[0].breaker_id == standing.id
    assert words[-2:] == ["trip pending", "recover pending"]
    figures = await told.store.stored_figures()
    assert (figures.deliveries_dropped, figures.unsent) == (5, 0)
    assert await told.store.shed_deliveries(NOW_MS) == 0


async def test_dead_ones_are_counted_by_channel(small: Small) -> None:
    told = await told_of(small, 10)
    first, second, row = await told.channel(), await told.channel(), await told.breaker("a")
    await told.moves(row.id, "open")
    assert await told.store.dead_deliveries(told.world.project_id, first.id) == 0
    await told.send_all(first.id, "dead")
    counts = [await told.store.dead_deliveries(told.world.project_id, one.id) for one in (first, second)]
    assert counts == [1, 0]
    assert await told.store.dead_deliveries("another", first.id) == 0


async def test_who_takes_alerts_too_slowly_loses_whole_outages(small: Small) -> None:
    """The longest waiting first; the end of an outage whose trip was sent is kept, what is being sent is left alone."""
    told = await told_of(small, 6)
    channel, row, other = await told.channel(), await told.breaker("a"), await told.breaker("b")
    await told.moves(row.id, "open")
    await told.send_all(channel.id)
    await told.moves(row.id, "half_open", "closed")
    await told.moves(other.id, "open")
    held = await told.take(channel.id, now_ms=NOW_MS)
    assert [r.kind for r in held] == ["recover", "trip"]
    for _ in range(4):
        await told.outage(row.id)
    await told.moves(other.id, "half_open", "closed")
    newest = [r.id for r in await told.rows(channel.id)][-3:]
    assert await counted(told) == 12
    assert await told.store.shed_deliveries(NOW_MS) == 12, "three outages end, and go with their ends"
    assert await told.words(channel.id) == [
        "trip sent",
        "recover pending",
        *["trip pending"] * 2,
        *["recover pending"] * 2,
    ]
    assert [r.id for r in await told.rows(channel.id)][-3:] == newest
    assert await counted(told) == 6
    figures = await told.store.stored_figures()
    assert (figures.deliveries_dropped, figures.unsent) == (6, 6)
    assert [await told.settle(r, "sent", NOW_MS) for r in held] == [True, True], "they were being sent all the while"
    assert len(await told.send_all(channel.id)) == 3
    assert set(await told.words(channel.id)) == {"trip sent", "recover sent"}


async def test_at_twice_the_bound_only_ends_of_what_is_told_are_written(small: Small) -> None:
    """In one commit and over several; of what is not written nobody hears the end. Counted."""
    told = await told_of(small, 3)
    channel, a, b = await told.channel(), await told.breaker("a"), await told.breaker("b")
    await told.moves(a.id, "open")
    for _ in range(2):
        await told.outage(b.id)
    await told.moves(b.id, "open", "half_open", "closed", "open", "half_open", "closed")
    assert await counted(told) == 7, "the third trip of b is the sixth row; its end is written, too"
    assert (await told.store.stored_figures()).unsent == 2
    await told.moves(b.id, "open")
    await told.moves(b.id, "half_open", "closed")
    assert await counted(told) == 7
    await told.moves(a.id, "half_open", "closed")
    assert await counted(told) == 8
    assert [r.kind for r in await told.rows(channel.id) if r.breaker_id == a.id] == ["trip", "recover"]
    figures = await told.store.stored_figures()
    assert figures.unsent == 4
    (share,) = figures.shares
    assert (share.project_id, share.limit, share.used, share.most) == (told.world.project_id, "deliveries", 8, 3)
    assert len(await told.send_all(channel.id)) == 8
    await told.store.shed_deliveries(NOW_MS)
    await told.moves(b.id, "open")
    assert (await told.words(channel.id))[-1] == "trip pending"


async def test_a_deleted_open_breaker_is_ended_also_beyond_the_bound(small: Small) -> None:
    told = await told_of(small, 1)
    channel, a, b = await told.channel(), await told.breaker("a"), await told.breaker("b")
    await told.moves(a.id, "open")
    await told.send_all(channel.id)
    await told.moves(b.id, "open")
    assert await counted(told) == 2
    await told.store.delete_breaker(told.world.project_id, a.id, 9_000)
    assert (await told.words(channel.id))[-1] == "resolve pending"
    assert await counted(told) == 3


async def all_sent(small: Small) -> OutboxWorld:
    """An outage that was told, whole."""
    told = await told_of(small, 10)
    channel, row = await told.channel(), await told.breaker()
    await told.outage(row.id)
    assert len(await told.send_all(channel.id)) == await counted(told) == 2
    return told


async def test_deliveries_of_a_deleted_project_go_early(small: Small) -> None:
    told = await all_sent(small)
    await told.store.delete_project(told.world.project_id, 9_000)
    assert await told.store.shed_deliveries(NOW_MS) == 2
    assert await counted(told) == 0


async def test_pruned_deliveries_make_room(small: Small) -> None:
    told = await all_sent(small)
    assert await told.store.prune_deliveries(NOW_MS) == 2
    assert await counted(told) == 0
