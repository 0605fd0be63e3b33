"""Evening out: the plan is least and deterministic, and carrying it out loses and doubles nothing whoever dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breaker_actors.core.log_entries import GAP, SAMPLES, decode_samples
from breaker_actors.directory.host import DirectoryHost
from breaker_actors.directory.rebalance_plan import Move, plan, step_size
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.store.rows import BreakerRow
from breaker_actors.transport.peers import DIRECTORY, ActorKind
from tests.support.cluster import Service, service, until

# the plan


def held(**counts: int) -> dict[str, list[str]]:
    return {owner: [f"{owner}-{i:03}" for i in range(count)] for owner, count in counts.items()}


def after(holdings: dict[str, list[str]], moves: Sequence[Move]) -> dict[str, int]:
    owners = {thing: owner for owner, things in holdings.items() for thing in things}
    for move in moves:
        assert owners[move.thing] == move.source
        owners[move.thing] = move.target
    return Counter(owners.values())


def test_a_new_actor_gets_its_share_from_those_that_have_most() -> None:
    moves, needed = plan(held(a=4, b=3, c=2), "abcd", "abcd", 100)
    assert after(held(a=4, b=3, c=2), moves) == {"a": 3, "b": 2, "c": 2, "d": 2}
    assert needed == len(moves) == 2
    assert {move.target for move in moves} == {"d"}


def test_a_plan_cut_short_takes_from_the_fullest_first() -> None:
    moves, needed = plan(held(a=9, b=3), "abc", "abc", 3)
    assert needed == 5
    assert [move.source for move in moves] == ["a"] * 3
    assert plan(held(a=9, b=3), "abc", "abc", 0) == ([], 5)


def test_who_is_away_gets_nothing_but_gives() -> None:
    assert plan(held(a=4), "ab", "a", 9) == ([], 0)
    moves, _ = plan(held(a=4), "ab", "b", 9)
    assert after(held(a=4), moves) == {"a": 2, "b": 2}
    moves, _ = plan(held(a=1, b=9), "abc", "bc", 9)
    assert after(held(a=1, b=9), moves) == {"a": 1, "b": 5, "c": 4}


def test_an_owner_beyond_the_budget_gives_everything() -> None:
    moves, _ = plan(held(a=1, z=3), "ab", "ab", 9)
    assert after(held(a=1, z=3), moves) == {"a": 2, "b": 2}
    assert plan(held(z=3), "ab", "", 9) == ([], 0)


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=7),
    away=st.sets(st.integers(0, 6), max_size=6),
    beyond=st.integers(0, 5),
    most=st.integers(0, 100),
)
def test_a_plan_is_even_and_least(counts: list[int], away: set[int], beyond: int, most: int) -> None:
    """Whole: those that can take something and those that can still give differ by at most one; nobody both gives and
    takes. Cut: a beginning of the whole one."""
    names = [f"n{i}" for i in range(len(counts))]
    able = [name for i, name in enumerate(names) if i not in away]
    holdings = held(**dict(zip(names, counts, strict=True)), gone=beyond)
    moves, needed = plan(holdings, names, able, 1_000)
    assert len(moves) == needed
    assert plan(holdings, names, able, most) == (moves[:most], needed)
    assert not {move.source for move in moves} & {move.target for move in moves}
    assert {move.target for move in moves} <= set(able)
    if able:
        loads = after(holdings, moves)
        assert loads["gone"] == 0
        # who is away and has little stays out of it
        most_loaded = max(loads[name] for name in names)
        assert all(loads[name] >= most_loaded - 1 for name in able)
        assert sum(loads.values()) == sum(counts) + beyond


def test_the_pace_is_at_most_what_is_allowed() -> None:
    assert step_size(60) == (1.0, 1)
    assert step_size(6) == (10.0, 1)
    assert step_size(600) == (1.0, 10)
    assert step_size(90) == (1.0, 1)
    for rate in range(1, 1_000):
        pause_s, moves = step_size(rate)
        assert moves >= 1
        assert moves * 60 / pause_s <= rate + 1e-9


# carrying it out

still = partial(service, rebalance_moves_per_minute=0)
"""A service in which nothing moves by itself."""


class Flow:
    """Samples for many breakers at once, each with good and bad spells; `accepted` per breaker."""

    def __init__(self, s: Service, rows: Sequence[BreakerRow]) -> None:
        self._s, self._rows = s, rows
        self.accepted: Counter[str] = Counter()
        self.stop = asyncio.Event()

    async def send(self) -> None:
        spell = 0
        while not self.stop.is_set():
            spell += 1
            for _ in range(6):
                value = 500.0 if spell % 3 == 1 else 10.0
                outcomes = await asyncio.gather(*(self._s.send(r.router_ids[0], [value] * 2) for r in self._rows))
                for row, outcome in zip(self._rows, outcomes, strict=True):
                    assert outcome.status in ("ok", "duplicate"), outcome
                    self.accepted[row.id] += 2
                await asyncio.sleep(0.01)


@asynccontextmanager
async def flow(s: Service, rows: Sequence[BreakerRow]) -> AsyncIterator[Flow]:
    flowing = Flow(s, rows)
    task = asyncio.create_task(flowing.send())
    try:
        yield flowing
    finally:
        flowing.stop.set()
        await task


def directory(s: Service) -> DirectoryHost:
    found: DirectoryHost = s.net.actors[DIRECTORY]
    return found


async def loads(s: Service, kind: Any) -> dict[str, int]:
    """How many breakers or routers each owner has in the store."""
    return Counter(p.owner or "" for p in await s.store.placements(kind))


async def even_out(s: Service, most: int = 100) -> int:
    """Rebalances to the end, through whatever dies meanwhile; answers how many things moved."""
    moved = 0

    async def done() -> bool:
        nonlocal moved
        try:
            step = await s.gateway.rebalance(most)
        except BreakersError:
            return False
        moved += step.moved
        return not step.left

    await until(done, 30)
    return moved


async def check_all(s: Service, rows: Sequence[BreakerRow], flowed: Flow) -> None:
    """Nothing lost, nothing doubled: what was accepted is in the log, events are those of its replay, and every
    breaker is held once, by its owner."""
    owners = {p.id: (p.owner, p.epoch) for p in await s.store.placements("breaker")}
    for row in rows:
        await s.fresh(row.id)
        records = await s.cluster.log.read(await s.slot(row.router_ids[0]), row.router_ids[0], 0, 1 << 60, 1 << 30)
        assert (
            sum(len(decode_samples(r.payload).batch) for r in records if r.kind == SAMPLES) == flowed.accepted[row.id]
        )
        await s.assert_events_equal_replay(row)

    async def held_once() -> bool:
        held: dict[str, list[tuple[str, int]]] = {}
        for name, actor in s.net.actors.items():
            if name.startswith("breaker-"):
                for breaker_id, epoch in (await actor.report()).epochs.items():
                    held.setdefault(breaker_id, []).append((name, epoch))
        nonlocal owners
        owners = {p.id: (p.owner, p.epoch) for p in await s.store.placements("breaker")}
        return all(held.get(row.id) == [owners[row.id]] for row in rows)

    await until(held_once)


async def some(s: Service, count: int) -> list[BreakerRow]:
    return [await s.breaker(f"b{i}", cooldown_ms=300) for i in range(count)]


async def moved_events(s: Service, rows: Sequence[BreakerRow], more: int) -> None:
    """Every breaker has changed its state `more` times since now."""
    before = {row.id: len(await s.events(row.id)) for row in rows}

    async def all_moved() -> bool:
        return all([len(await s.events(row.id)) >= before[row.id] + more for row in rows])

    await until(all_moved, 30)


async def test_breakers_and_routers_move_while_samples_flow(tmp_path: Path) -> None:
    """A budget that grows again and again, many moves, and not one sample or event more or less than without."""
    async with still(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = await some(s, 12)
        async with flow(s, rows) as flowed:
            for size in (2, 3, 4):
                s.cluster.budgets |= {"breaker": size, "router": size}
                await directory(s)._rebalancer.fit_budget()
                assert await even_out(s) == 24 // size
                assert (
                    set((await loads(s, "breaker")).values())
                    == set((await loads(s, "router")).values())
                    == {12 // size}
                )
                await moved_events(s, rows, 2)
        await check_all(s, rows, flowed)
        for row in rows:
            assert await s.slot(row.router_ids[0]) == "router-0"  # a log stays where it began
            records = await s.cluster.log.read("router-0", row.router_ids[0], 0, 1 << 60, 1 << 30)
            assert [r.offset for r in records] == list(range(1, len(records) + 1))
            assert [r for r in records if r.kind == GAP] == []


async def test_it_goes_on_by_itself_when_the_budget_grew_at_its_pace(tmp_path: Path) -> None:
    """One move a second for 60 a minute: here 6,000 of them, so that the test does not wait for it."""
    async with service(tmp_path, breaker_actors=1, rebalance_moves_per_minute=6_000) as s:
        rows = await some(s, 6)
        s.cluster.budgets["breaker"] = 3
        await directory(s)._rebalancer.fit_budget()

        async def even() -> bool:
            return set((await loads(s, "breaker")).values()) == {2}

        await until(even)
        for row in rows:
            await s.fresh(row.id)


async def test_it_goes_on_once_an_actor_that_starts_slowly_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breaker_actors.directory.rebalancer.START_S", 0.05)
    async with service(tmp_path, breaker_actors=1, rebalance_moves_per_minute=6_000) as s:
        await some(s, 4)
        spawn = s.net.spawn
        held: list[str] = []
        s.net.spawn = lambda kind, name: held.append(name)  # type: ignore[method-assign]
        s.cluster.budgets["breaker"] = 2
        moving = directory(s)._rebalancer
        await moving.fit_budget()

        async def given_up() -> bool:
            return moving._late == {"breaker-1"}

        await until(given_up)
        assert held == ["breaker-1"]
        assert await loads(s, "breaker") == {"breaker-0": 4}
        spawn("breaker", "breaker-1")

        async def even() -> bool:
            await moving.fit_budget()
            return await loads(s, "breaker") == {"breaker-0": 2, "breaker-1": 2}

        await until(even)


async def test_by_itself_it_goes_step_by_step_with_a_pause_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much there is to move, of either kind: all that moves at once is one step's."""
    pause_s = 0.3
    monkeypatch.setattr("breaker_actors.directory.rebalancer.step_size", {60: (pause_s, 1)}.__getitem__)
    async with service(tmp_path, breaker_actors=1, router_actors=1, rebalance_moves_per_minute=60) as s:
        rows = await some(s, 4)
        steps: list[tuple[float, int]] = []
        real = s.store.claim

        async def claim(epoch: int, kind: ActorKind, owners: Mapping[str, str]) -> dict[str, int]:
            steps.append((asyncio.get_running_loop().time(), len(owners)))
            return await real(epoch, kind, owners)

        s.store.claim = claim  # type: ignore[method-assign, assignment]
        s.cluster.budgets |= {"breaker": 2, "router": 2}
        await directory(s)._rebalancer.fit_budget()

        async def even() -> bool:
            return all([set((await loads(s, kind)).values()) == {2} for kind in ("breaker", "router")])

        await until(even)
        assert [moves for _, moves in steps] == [1] * 4
        times = [at for at, _ in steps]
        assert min(b - a for a, b in pairwise(times)) >= pause_s, times
        for row in rows:
            await s.fresh(row.id)


async def test_nothing_moves_by_itself_when_that_is_turned_off_or_the_budget_shrinks(tmp_path: Path) -> None:
    async with still(tmp_path, breaker_actors=3) as s:
        rows = await some(s, 6)
        before = await loads(s, "breaker")
        for size in (1, 4):
            s.cluster.budgets["breaker"] = size
            await directory(s)._rebalancer.fit_budget()
        await asyncio.sleep(0.1)
        assert await loads(s, "breaker") == before
        # a new one goes where the budget says, and a new Directory leaves alone what runs beyond it
        s.cluster.budgets["breaker"] = 1
        await directory(s)._rebalancer.fit_budget()
        new = await s.breaker("new")
        assert await s.owner(new.id) == "breaker-0"
        await s.net.kill(DIRECTORY)
        await s.cluster.start_directory()
        assert await loads(s, "breaker") == before + Counter(["breaker-0"])
        # but not what belongs to an actor that is not there any more
        await s.net.kill(DIRECTORY)
        await s.net.kill("breaker-2")
        await s.cluster.start_directory()
        assert (await loads(s, "breaker"))["breaker-2"] == 0
        for row in rows:
            await s.fresh(row.id)


async def test_a_command_brings_everything_into_the_budget(tmp_path: Path) -> None:
    async with still(tmp_path, breaker_actors=4) as s:
        rows = await some(s, 8)
        s.cluster.budgets["breaker"] = 2
        await directory(s)._rebalancer.fit_budget()
        assert (await s.gateway.rebalance(1)).left == 3
        assert await even_out(s) == 3
        assert await loads(s, "breaker") == {"breaker-0": 4, "breaker-1": 4}
        for row in rows:
            await s.fresh(row.id)


@pytest.mark.parametrize("kind", ["breaker", "router"])
async def test_moving_away_from_a_dead_owner(tmp_path: Path, kind: str) -> None:
    async with still(tmp_path, breaker_actors=2, router_actors=2) as s:
        rows = await some(s, 6)
        async with flow(s, rows) as flowed:
            await moved_events(s, rows, 1)
            s.cluster.budgets |= {"breaker": 3, "router": 3}
            await directory(s)._rebalancer.fit_budget()
            await s.net.kill(f"{kind}-0")
            assert await even_out(s) == 4
            s.net.revive(kind, f"{kind}-0")  # type: ignore[arg-type]
            await moved_events(s, rows, 2)
        await check_all(s, rows, flowed)


def dying(s: Service, name: str, method: str) -> Callable[..., Awaitable[Any]]:
    """The net's `call`, but at the first call of a method to an actor that one dies, before it has run or after it."""
    call, left = s.net.call, [2]

    async def fatal(actor: str, called: str, *args: Any) -> Any:
        if (actor, called) != (name, method) or not left[0]:
            return await call(actor, called, *args)
        left[0] -= 1
        if not left[0]:
            await call(actor, called, *args)
        await s.net.kill(name)
        s.net.revive("router" if name.startswith("router") else "breaker", name)
        raise Unavailable("it died")

    return fatal


@pytest.mark.parametrize(
    ("name", "method"),
    [("breaker-1", "assign"), ("breaker-0", "drop"), ("router-1", "acquire"), ("router-0", "release")],
)
async def test_an_owner_that_dies_in_the_middle(tmp_path: Path, name: str, method: str) -> None:
    """The new owner when it is given something, the old one when it is to let go: each once before and once after."""
    async with still(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = await some(s, 6)
        async with flow(s, rows) as flowed:
            await moved_events(s, rows, 1)
            s.cluster.budgets |= {"breaker": 2, "router": 2}
            await directory(s)._rebalancer.fit_budget()
            s.net.call = dying(s, name, method)  # type: ignore[method-assign]
            await even_out(s, 2)
            await moved_events(s, rows, 2)
        await check_all(s, rows, flowed)
        assert set((await loads(s, "breaker")).values()) == {3}


@pytest.mark.parametrize("when", ["claim", "assign", "acquire", "drop"])
async def test_a_directory_that_dies_in_the_middle(tmp_path: Path, when: str) -> None:
    """Its successor gives what was claimed, and tells old owners of what is not theirs any more."""
    async with still(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = await some(s, 8)
        async with flow(s, rows) as flowed:
            await moved_events(s, rows, 1)
            s.cluster.budgets |= {"breaker": 2, "router": 2}
            stopped = asyncio.Event()

            async def hang(*args: Any) -> Any:
                stopped.set()
                await asyncio.sleep(3600)

            zombie = directory(s)
            await zombie._rebalancer.fit_budget()
            if when == "claim":
                zombie._placer._store = Hanging(s.store, hang)  # type: ignore[assignment]
            else:
                zombie._placer._net = HangingNet(s.net, when, hang)  # type: ignore[assignment]
            moving = asyncio.create_task(zombie.rebalance(100))
            await stopped.wait()
            s.net.actors.pop(DIRECTORY)
            moving.cancel()
            await zombie.stop()
            await s.cluster.start_directory()
            await even_out(s)
            await moved_events(s, rows, 2)
        await check_all(s, rows, flowed)


class Hanging:
    """A store whose claims never come back, after they are done."""

    def __init__(self, store: Any, hang: Callable[..., Awaitable[Any]]) -> None:
        self._store, self._hang = store, hang

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, *args: Any) -> Any:
        await self._store.claim(*args)
        return await self._hang()


class HangingNet:
    """A net on which one method is never heard."""

    def __init__(self, net: Any, method: str, hang: Callable[..., Awaitable[Any]]) -> None:
        self._net, self._method, self._hang = net, method, hang

    def spawn(self, *args: Any) -> None:
        self._net.spawn(*args)

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        if method == self._method:
            return await self._hang()
        return await self._net.call(actor, method, *args)


async def test_a_store_that_fails_during_a_move_leaves_nothing_homeless(tmp_path: Path) -> None:
    """The claim is done, its answer gets lost: nobody may go on believing the old owner."""
    async with still(tmp_path, breaker_actors=1, router_actors=1) as s:
        rows = await some(s, 6)
        async with flow(s, rows) as flowed:
            s.cluster.budgets |= {"breaker": 2, "router": 2}
            await directory(s)._rebalancer.fit_budget()
            real, left = s.store.claim, [4]

            async def claim(*args: Any) -> Any:
                answer = await real(*args)
                left[0] -= 1
                if left[0] > 0:
                    raise Unavailable("the answer got lost")
                return answer

            s.store.claim = claim  # type: ignore[method-assign]
            await even_out(s)
            await moved_events(s, rows, 2)
        await check_all(s, rows, flowed)


async def test_configuration_goes_on_while_routers_move(tmp_path: Path) -> None:
    """Changes that meet a router between two owners are appended by the new one."""
    async with still(tmp_path, breaker_actors=2, router_actors=1) as s:
        rows = await some(s, 10)
        async with flow(s, rows) as flowed:
            for size in (2, 3, 4, 1, 4):
                s.cluster.budgets["router"] = size
                await directory(s)._rebalancer.fit_budget()
                changing = [s.edit(row.id, threshold=100 + size) for row in rows]
                await asyncio.gather(even_out(s, 3), *changing)
        for row in rows:
            stored = await s.store.get_breaker(s.project.id, row.id)
            assert stored is not None
            assert stored.rule.threshold == 104
        assert await s.store.pending_changes(10) == []
        await check_all(s, rows, flowed)


async def test_a_new_owner_with_a_slow_clock_waits_for_the_old_ones_last_stamp(tmp_path: Path) -> None:
    """Until its own clock has passed it, and at most max_clock_skew_ms."""
    async with still(tmp_path, breaker_actors=1, router_actors=1, max_clock_skew_ms=400) as s:
        (row,) = await some(s, 1)
        assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        old = s.net.actors["router-0"]
        ahead_ms = s.clock.now_ms() + 200
        await s.cluster.log.alive("router-0", old.incarnation, ahead_ms)
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        assert s.clock.now_ms() > ahead_ms
        records = await s.cluster.log.read("router-0", row.router_ids[0], 0, 1 << 60)
        assert records[-1].received_ms > ahead_ms
        # a clock that is off by more is not waited for: stamps go on from the last one
        far_ms = s.clock.now_ms() + 4_000
        await s.cluster.log.alive("router-0", s.net.actors["router-0"].incarnation, far_ms)
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        assert (await s.send(row.router_ids[0], [1.0])).status == "ok"
        assert s.clock.now_ms() < far_ms
        records = await s.cluster.log.read("router-0", row.router_ids[0], 0, 1 << 60)
        assert records[-1].received_ms > far_ms
        # and behind a log that is far ahead nothing is taken
        await s.cluster.log.alive("router-0", s.net.actors["router-0"].incarnation, s.clock.now_ms() + 60_000)
        await s.net.kill("router-0")
        s.net.revive("router", "router-0")
        assert (await s.send(row.router_ids[0], [1.0])).status == "clock_behind"


async def test_a_stuck_owner_holds_up_nobody_elses_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes wait for an absent RouterActor than are looked at at once; others' are applied all the same."""
    from breaker_actors.directory import config_dispatch as changes

    monkeypatch.setattr(changes, "CHANGES_MAX", 5)
    async with still(tmp_path, breaker_actors=1, router_actors=2) as s:
        a, b = await some(s, 2)
        owners = {p.id: p.owner or "" for p in await s.store.placements("router")}
        stuck, free = (a, b) if owners[a.router_ids[0]] == "router-0" else (b, a)
        await s.net.kill("router-0")
        assert (await s.store.placements("router"))[0].owner is not None
        for threshold in range(20):
            await s.edit(stuck.id, threshold=200 + threshold)
        await s.edit(free.id, threshold=300)
        left = await s.store.pending_changes(100)
        assert {change.router_id for change in left} == set(stuck.router_ids)
        s.net.revive("router", "router-0")

        async def applied() -> bool:
            return not await s.store.pending_changes(1)

        await until(applied)


async def test_a_breaker_that_was_not_told_of_a_moved_router_finds_it(tmp_path: Path) -> None:
    """A closed breaker waits for nothing and asks nobody for promises: only by looking does it notice."""
    async with still(tmp_path, breaker_actors=1, router_actors=1, checkpoint_interval_ms=200) as s:
        rows = await some(s, 2)
        call = s.net.call

        async def deaf(actor: str, method: str, *args: Any) -> Any:
            if method == "routers_moved":
                raise Unavailable("nobody hears it")
            return await call(actor, method, *args)

        s.net.call = deaf  # type: ignore[method-assign]
        s.cluster.budgets["router"] = 2
        await directory(s)._rebalancer.fit_budget()
        assert await even_out(s) == 1
        for row in rows:
            assert (await s.send(row.router_ids[0], [500.0] * 3)).status == "ok"

            async def tripped(breaker_id: str = row.id) -> bool:
                return any(event.curr == "open" for event in await s.events(breaker_id))

            await until(tripped)  # by the time it hears of the samples it may be half_open again
            await s.assert_events_equal_replay(row)


async def test_the_overview_tells_who_holds_what(tmp_path: Path) -> None:
    async with still(tmp_path, breaker_actors=2, router_actors=1) as s:
        rows = await some(s, 3)
        await s.send(rows[0].router_ids[0], [1.0] * 5)
        status = await s.gateway.status()
        seats = {actor.name: actor for actor in status.actors}
        assert {name: (a.kind, a.state, a.holds) for name, a in seats.items()} == {
            "journal-0": ("journal", "up", 0),
            "directory": ("directory", "up", 0),
            "notifier": ("notifier", "away", 0),
            "router-0": ("router", "up", 3),
            "breaker-0": ("breaker", "up", 2),
            "breaker-1": ("breaker", "up", 1),
        }
        assert status.budgets == {"breaker": 2, "router": 1}
        assert all(journal.figures for journal in status.journals)
        assert status.log_bytes > 0
        held = [a.breaker for a in seats.values() if a.breaker]
        assert [(h.breakers, h.starting, h.behind, h.lag, h.unheard) for h in held] == [
            (2, 0, 0, 0, 0),
            (1, 0, 0, 0, 0),
        ]
        await s.net.kill("breaker-0")
        await s.net.kill("router-0")
        s.net.revive("breaker", "breaker-0")

        async def came_back() -> bool:
            seats = {a.name: a for a in (await s.gateway.status()).actors}
            assert (seats["router-0"].process, seats["router-0"].router) == (None, None)
            breaker = seats["breaker-0"].breaker
            assert [a.restarts for a in seats.values() if a.kind in ("journal", "directory", "notifier")] == [None] * 3
            return seats["breaker-0"].restarts == 1 and breaker is not None and breaker.unheard == 2

        await until(came_back)
