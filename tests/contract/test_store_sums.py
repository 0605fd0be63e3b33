"""Store: sums and counters are what a transaction writes last, each once and all in one order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection
from sqlalchemy.event import listen, remove

from breaker_actors.errors import NotFound
from breaker_actors.store.outbox import held, judges
from breaker_actors.store.quotas import UNMUTED, UNSENT, add, used
from breaker_actors.store.rows import ChannelDraft
from breaker_actors.store.section import bump
from breaker_actors.store.sql_store import SqlStore
from tests.contract.mute_world import AHEAD_MS, HOUR, MuteWorld
from tests.contract.store_world import World, event

SUMS = ("UPDATE stored SET used=(stored.used + ", "UPDATE counters SET value=(counters.value + ")
"""How statements begin that add to a sum, in the order of their tables."""
_Place = tuple[int, tuple[str, ...]] | None


class Told:
    """The statements of each transaction of a store that may write: the place of the sum that one adds to, None for all
    else. That a sum is made which was not there is a part of adding to it."""

    def __init__(self, store: SqlStore) -> None:
        assert store._db._engines is not None
        self._engines = {store._db._engines.serial, store._db._engines.rows}
        self._hooks = {"begin": self._begin, "before_cursor_execute": self._note}
        self.transactions: list[list[_Place]] = []

    def _begin(self, _: Connection) -> None:
        self.transactions.append([])

    def _note(self, c: Connection, cursor: Any, statement: str, values: Any, context: Any, *_: Any) -> None:
        place: _Place = None
        if statement.startswith(("INSERT INTO stored", "INSERT INTO counters")) and "ON CONFLICT" in statement:
            self.transactions[-1].pop()
            return
        for number, begin in enumerate(SUMS):
            if statement.startswith(begin):
                named = context.compiled_parameters[0]
                place = number, tuple(named[name] for name in ("of_of_id", "of_what", "of_name") if name in named)
        self.transactions[-1].append(place)

    def __enter__(self) -> Told:
        for engine in self._engines:
            for name, hook in self._hooks.items():
                listen(engine, name, hook)
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._engines:
            for name, hook in self._hooks.items():
                remove(engine, name, hook)

    def sums(self) -> Iterator[list[Any]]:
        """Of each transaction that adds to any, which must be behind all else that it does."""
        for done in self.transactions:
            sums = [place for place in done if place is not None]
            assert done[len(done) - len(sums) :] == sums
            if sums:
                yield sums


@pytest.fixture
async def told(world: World) -> MuteWorld:
    told = MuteWorld(world)
    await told.open()
    return told


async def test_sums_are_written_last_in_one_order(
    told: MuteWorld, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a commit of two projects with unmuted alerts, warnings of mutes, releases, redrives and ends of projects."""
    monkeypatch.setattr(judges, "EFFORT_MAX", 0)
    other = MuteWorld(await told.world.neighbour("other"))
    await other.open()
    told.epoch = other.epoch
    await told.world.take_journal()
    worlds = sorted((told, other), key=lambda one: one.world.project_id)
    behind, rows = {}, {}
    for one in worlds:
        draft = ChannelDraft(channel="webhook", config={"url": "http://h/"}, events=("trip", "recover", "observed"))
        channel = await store.create_channel(one.world.project_id, draft, 1)
        rows[one] = [await one.breaker(name) for name in "ab"]
        for _ in range(8):
            behind[(await one.mute(comment="\u00e9" * 1_000, ends_ms=HOUR)).id] = {channel.id: 1}
    with Told(store) as seen:
        hidden = event(1), event(1)
        hidden = tuple(msgspec.structs.replace(one, hidden_by="observe") for one in hidden)
        commits = [
            commit
            for one, observing in zip(reversed(worlds), hidden, strict=True)
            for commit in (
                one.commit(rows[one][0].id, "open"),
                one.world.commit(rows[one][1].id, one.epochs[rows[one][1].id], observing),
            )
        ]
        assert await told.world.write(*commits) == ["ok"] * 4
        assert await store.warn_of_ends(told.epoch, HOUR - AHEAD_MS, AHEAD_MS, behind)
        plan = await store._db.read(lambda c: held.look(c, told.epoch, 2 * HOUR, 0, {}))
        unjudged = tuple(fate._replace(state="pending", judged=False) for fate in plan.fates)
        named = await store._db.read(lambda c: held.mutes_named(c, behind))
        plan = plan._replace(fates=unjudged, named=dict.fromkeys([None], named[min(behind)]))
        await store._db.write(lambda c: held.carry_out(c, told.epoch, 2 * HOUR, plan))
        await store.prune(1 << 60)
        await store.prune_deliveries(1 << 60)
        for one in worlds:
            await store.delete_project(one.world.project_id, 2 * HOUR)
    found = list(seen.sums())
    assert all(sums == sorted(set(sums)) for sums in found), found
    of_both = [(0, (one.world.project_id, "deliveries")) for one in worlds]
    assert sum(set(of_both) <= set(sums) for sums in found) >= 3, "the commit, the warnings and the releases"
    assert sum((1, (UNMUTED,)) in sums for sums in found) == 2
    assert (await store.stored_figures()).unmuted == 4


async def test_a_transaction_knows_what_it_adds(world: World, store: SqlStore) -> None:
    """And nobody else does before it ends; of one that fails nothing is left."""

    def adds(c: Connection) -> tuple[int, ...]:
        seen = [used(c, world.project_id, "deliveries")]
        for count in (5, -2):
            add(c, world.project_id, "deliveries", count)
            seen.append(used(c, world.project_id, "deliveries"))
        bump(c, UNSENT, 2)
        bump(c, UNSENT)
        return tuple(seen)

    def fails(c: Connection) -> None:
        adds(c)
        raise NotFound("nothing")

    with pytest.raises(NotFound):
        await store._db.write(fails)
    assert await store._db.write(adds) == (0, 5, 3)
    assert await store._db.write_rows(adds) == (3, 8, 6)
    assert await store._db.read(lambda c: used(c, world.project_id, "deliveries")) == 6
    assert (await store.stored_figures()).unsent == 6
