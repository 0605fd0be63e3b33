"""Placement, the Directory's heart: raises epochs in the store, then tells the owners; finds actors that were away.

An actor owns nothing until it has said hello and was assigned. Whoever is told something late or twice is protected by
the epochs: what has moved on meanwhile is not given, and what is given already is left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import structlog

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Fenced, Unavailable
from breaker_actors.net import ActorKind, BreakerPeer, Net, RouterPeer
from breaker_actors.roster import Owners, Roster
from breaker_actors.stores.base import Store

T = TypeVar("T")

ASSIGN_MAX = 1_000
REPORT_S = 2.0

Budgets = Callable[[], Awaitable[dict[ActorKind, int]]]

log = structlog.get_logger()


class Placing:
    """Who owns what, and which actors are there. `ask_budgets`: how many actors of each kind there may be now;
    `superseded` is called when a newer Directory has taken over."""

    def __init__(
        self, store: Store, net: Net, clock: Clock, ask_budgets: Budgets, superseded: Callable[[], None]
    ) -> None:
        self.owners: dict[ActorKind, Owners] = {"router": Owners(), "breaker": Owners()}
        self.roster = Roster()
        self.budgets: dict[ActorKind, int] = {"router": 1, "breaker": 1}
        self.epoch = 0
        self.claims: Counter[ActorKind] = Counter()
        """How often anything was given an owner under a new epoch."""
        self._store = store
        self._net = net
        self._clock = clock
        self._ask_budgets = ask_budgets
        self._superseded = superseded
        self._missed: dict[str, list[tuple[str, int]]] = {}
        self._came_up = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = {}
        self._writing = asyncio.Lock()
        self._doubtful = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work in the background, ended by `stop`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load(self) -> list[str]:
        """Fences an older Directory and learns what is placed; answers all breakers. May be repeated."""
        await self.ask_budgets()
        self.epoch = await self._store.open_directory()
        await self._load_kind("router")
        return await self._load_kind("breaker")

    async def _load_kind(self, kind: ActorKind) -> list[str]:
        placements = await self._store.placements(kind)
        for placement in placements:
            if placement.owner is not None:
                self.owners[kind].place(placement.id, placement.owner, placement.epoch)
        await self._leave_gone(kind)
        return [placement.id for placement in placements]

    async def _leave_gone(self, kind: ActorKind) -> None:
        """Places anew what belongs to an actor beyond the budget, unless that one still runs."""
        mine = self.owners[kind]
        beyond = [name for name in mine.claimed() if name not in self.names(kind)]
        reports = await asyncio.gather(*(self._report(kind, name) for name in beyond))
        moved: dict[str, str] = {}
        for name, report in zip(beyond, reports, strict=True):
            for thing in mine.of(name) if report is None else ():
                moved[thing] = self.choose(kind)
                mine.place(thing, moved[thing])
        await self.claim(kind, moved)

    async def ask_budgets(self) -> None:
        self.budgets = await self._ask_budgets()

    def names(self, kind: ActorKind) -> list[str]:
        return [f"{kind}-{i}" for i in range(self.budgets[kind])]

    def choose(self, kind: ActorKind) -> str:
        """An actor of its own while the budget lasts, then the least loaded one."""
        return self.owners[kind].least_loaded(self.names(kind))

    # ------------------------------------------------------------------ actors

    def wake(self, kind: ActorKind, name: str) -> None:
        """Starts an actor unless it runs. A new process says hello; one that runs already is asked what it holds."""
        self.roster.starting(kind, name, self._clock.now_ms())
        self._net.spawn(kind, name)
        self.spawn(self.resume(kind, name))

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """A process is up and empty: everything placed there is given to it under new epochs."""
        async with self.lock(name):
            if self.roster.is_up(name, incarnation):
                return
            await self._bring_up(kind, name, incarnation, self.owners[kind].of(name))
        self._tell_came_up()
        log.info("actor_up", actor=name, incarnation=incarnation, holds=self.owners[kind].count(name))

    async def resume(self, kind: ActorKind, name: str) -> None:
        """An actor that outlived the last Directory, or a lost call, keeps what it holds under the stored epochs."""
        report = await self._report(kind, name)
        if report is None:
            return  # it says hello when it is up
        incarnation, held = report
        mine = self.owners[kind]
        async with self.lock(name):
            if not self.roster.is_up(name):
                missed = [i for i, _ in self._missing(kind, name, held)]
                with contextlib.suppress(BreakersError):
                    await self._bring_up(kind, name, incarnation, missed)
                    await self.let_go(kind, name, [i for i in held if mine.owner(i) not in (None, name)])
        self._tell_came_up()

    async def look_after(self) -> None:
        """Asks every actor that is up what it holds. What it was given may have reached a predecessor that still runs,
        and what it held it may have dropped: then it counts as lost, and `resume` gives it what it misses."""
        kinds: tuple[ActorKind, ...] = ("router", "breaker")
        up = [(kind, name) for kind in kinds for name in self.roster.up(kind)]
        await asyncio.gather(*(self._look_at(kind, name) for kind, name in up))

    async def _look_at(self, kind: ActorKind, name: str) -> None:
        report = await self._report(kind, name)
        if report is None or not self.roster.is_up(name):
            return  # whoever calls it for something notices
        incarnation, held = report
        missed = self._missing(kind, name, held)
        # one look may fall between a claim and its being told
        if not self.roster.is_up(name, incarnation) or (missed and missed == self._missed.get(name)):
            log.info("actor_misses", actor=name, things=len(missed))
            self.lost(name)
        self._missed[name] = missed

    def _missing(self, kind: ActorKind, name: str, held: Mapping[str, int]) -> list[tuple[str, int]]:
        """What an actor should hold under which epochs, and does not."""
        mine = self.owners[kind]
        return [(i, mine.epoch(i)) for i in mine.of(name) if held.get(i) != mine.epoch(i)]

    async def until_up(self, names: Collection[str]) -> None:
        """Returns when none of these actors is only starting; those that are away are not waited for."""
        while any(map(self.roster.is_starting, names)):
            await self._came_up.wait()

    async def _report(self, kind: ActorKind, name: str) -> tuple[str, dict[str, int]] | None:
        """An actor's incarnation and what it holds; None when it does not answer soon."""
        peer = RouterPeer(self._net, name) if kind == "router" else BreakerPeer(self._net, name)
        try:
            async with asyncio.timeout(REPORT_S):
                return await peer.report()
        except (BreakersError, TimeoutError):
            return None

    async def _bring_up(self, kind: ActorKind, name: str, incarnation: str, ids: list[str]) -> None:
        """An actor counts as up once it was given what is missing there; a failure is tried again by `resume`."""
        self.roster.came_up(kind, name, incarnation, self._clock.now_ms())
        try:
            await self.assign(kind, name, ids)
        except BaseException:
            self.lost(name)
            raise

    def lost(self, name: str) -> None:
        """A call got no answer. If the process died, its successor says hello; if not, `resume` finds it again."""
        self.roster.lost(name, self._clock.now_ms())

    def lock(self, name: str) -> asyncio.Lock:
        """Held while an actor is being given what it missed."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _tell_came_up(self) -> None:
        came_up, self._came_up = self._came_up, asyncio.Event()
        came_up.set()

    # ------------------------------------------------------------------ things

    async def claim(self, kind: ActorKind, owners: Mapping[str, str]) -> list[str]:
        """Raises epochs for new owners; answers the ids that still exist."""
        if not owners:
            return []
        claimed = await self.write(lambda epoch: self._store.claim(epoch, kind, owners))
        self.claims[kind] += len(claimed)
        for thing, owner in owners.items():
            if thing in claimed:
                self.owners[kind].place(thing, owner, claimed[thing])
            else:
                self.owners[kind].forget(thing)
        return list(claimed)

    async def write(self, work: Callable[[int], Awaitable[T]]) -> T:
        """A write under this Directory's epoch, one at a time. After one of unknown outcome the next has a new epoch:
        the other must not land behind it, under what owners were told meanwhile.

        Fenced may mean our own opening, sent twice: the process ends, and its successor opens anew, if it has none yet.
        """
        async with self._writing:
            try:
                if self._doubtful:
                    self.epoch = await self._store.open_directory(self.epoch)
                self._doubtful = True
                done = await work(self.epoch)
            except Fenced:
                self._superseded()
                raise
            self._doubtful = False
            return done

    async def check_place(self) -> None:
        """One that has nothing to write would go on telling what it knew when a newer one took over."""
        async with self._writing:
            if await self._store.directory_epoch() != self.epoch:
                self._superseded()

    async def place_new(self, kind: ActorKind, things: Iterable[str]) -> None:
        """Places what nobody owns yet; actors are started and told in the background."""
        mine = self.owners[kind]
        owners = {}
        for thing in things:
            if mine.owner(thing) is None:
                owners[thing] = self.choose(kind)
                mine.place(thing, owners[thing])
        try:
            claimed = await self.claim(kind, owners)
        except BaseException:
            for thing in owners:
                if not mine.epoch(thing):
                    mine.forget(thing)
            raise
        for owner, ids in grouped(claimed, owners).items():
            if self.roster.is_up(owner):
                await self.give(kind, owner, ids)
            else:
                self.wake(kind, owner)

    async def assign(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        """New epochs for an owner's things, then the owner is told."""
        for start in range(0, len(ids), ASSIGN_MAX):
            chunk = ids[start : start + ASSIGN_MAX]
            await self.give(kind, owner, await self.claim(kind, dict.fromkeys(chunk, owner)))

    async def give(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        """Tells an owner what is its own, under the epochs of the store."""
        try:
            if kind == "router":
                await self._give_routers(owner, ids)
            else:
                await self._give_breakers(owner, ids)
        except Unavailable:
            self.lost(owner)

    async def _give_routers(self, owner: str, ids: list[str]) -> None:
        found = await self._store.router_assignments(ids)
        mine = [a for a in found if self.owners["router"].at(a.router_id, owner, a.epoch)]
        taken = await RouterPeer(self._net, owner).take(mine)
        self.spawn(self._tell_moved(dict.fromkeys(taken, owner)))

    async def _give_breakers(self, owner: str, ids: list[str]) -> None:
        found = await self._store.breaker_assignments(ids)
        mine = [a for a in found if self.owners["breaker"].at(a.breaker_id, owner, a.epoch)]
        await BreakerPeer(self._net, owner).assign(mine)

    async def _tell_moved(self, owners: dict[str, str]) -> None:
        """Breakers' owners listen to a router's new owner at once (they would notice by themselves, later)."""
        names = self.roster.up("breaker")
        told = (BreakerPeer(self._net, name).routers_moved(owners) for name in names)
        for name, error in zip(names, await asyncio.gather(*told, return_exceptions=True), strict=True):
            if error is not None:
                log.info("routers_moved_not_told", actor=name, error=str(error))

    async def let_go(self, kind: ActorKind, owner: str, ids: Collection[str]) -> None:
        """Tells a former owner that things of its are not its own any more. One that does not hear it is refused by
        routers and the journal, and told again by `resume`."""
        if not ids:
            return
        try:
            if kind == "router":
                await RouterPeer(self._net, owner).release(list(ids))
            else:
                epochs = [(i, self.owners[kind].epoch(i)) for i in ids]
                await BreakerPeer(self._net, owner).drop(epochs)
        except Unavailable:
            self.lost(owner)


def grouped(things: Iterable[str], owners: Mapping[str, str]) -> dict[str, list[str]]:
    """Things by owner."""
    found: dict[str, list[str]] = {}
    for thing in things:
        found.setdefault(owners[thing], []).append(thing)
    return found
