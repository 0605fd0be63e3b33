"""Placement of routers and breakers on actors: raises epochs in the store, then notifies the owners.

An actor owns nothing until it has said hello and was assigned. A notification that comes late or twice does no harm,
for its epochs are checked: what has moved on meanwhile is not given, and what is given already is left alone.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TypeVar

import structlog

from breaker_actors.clock import Clock
from breaker_actors.directory.membership import Assignments, Membership, report_of
from breaker_actors.errors import Fenced, Unavailable
from breaker_actors.messages import BreakerEpoch
from breaker_actors.store.base import PlacementStore
from breaker_actors.telemetry.guard import Background
from breaker_actors.transport.peers import ActorKind, BreakerPeer, Net, RouterPeer

T = TypeVar("T")

ASSIGN_MAX = 1_000
GIVE_AGAIN_S = 1.0

Budgets = Callable[[], Awaitable[dict[ActorKind, int]]]

log = structlog.get_logger()


class Placer:
    """Places routers and breakers. `ask_budgets`: how many actors of each kind there may be now;
    `superseded` is called when a newer Directory has taken over."""

    def __init__(
        self, store: PlacementStore, net: Net, clock: Clock, ask_budgets: Budgets, superseded: Callable[[], None]
    ) -> None:
        self.assignments: dict[ActorKind, Assignments] = {"router": Assignments(), "breaker": Assignments()}
        self.membership = Membership(clock)
        self.tasks = Background()
        self.budgets: dict[ActorKind, int] = {"router": 1, "breaker": 1}
        self.epoch = 0
        self.claims: Counter[ActorKind] = Counter()
        """How often anything was given an owner under a new epoch."""
        self._store = store
        self._net = net
        self._ask_budgets = ask_budgets
        self._superseded = superseded
        self._writing = asyncio.Lock()
        self._doubtful = False

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
                self.assignments[kind].assign(placement.id, placement.owner, placement.epoch)
        await self._leave_gone(kind)
        return [placement.id for placement in placements]

    async def _leave_gone(self, kind: ActorKind) -> None:
        """Places anew what belongs to an actor beyond the budget, unless that one still runs."""
        assignments = self.assignments[kind]
        beyond = [name for name in assignments.claimed() if name not in self.names(kind)]
        reports = await asyncio.gather(*(report_of(self._net, kind, name) for name in beyond))
        moved: dict[str, str] = {}
        for name, report in zip(beyond, reports, strict=True):
            for thing in assignments.list_for(name) if report is None else ():
                moved[thing] = self.choose(kind)
                assignments.assign(thing, moved[thing])
        await self.claim(kind, moved)

    async def ask_budgets(self) -> None:
        self.budgets = await self._ask_budgets()

    def names(self, kind: ActorKind) -> list[str]:
        return [f"{kind}-{i}" for i in range(self.budgets[kind])]

    def choose(self, kind: ActorKind) -> str:
        """An actor of its own while the budget lasts, then the least loaded one."""
        return self.assignments[kind].least_loaded(self.names(kind))

    async def claim(self, kind: ActorKind, owners: Mapping[str, str]) -> list[str]:
        """Raises epochs for new owners; answers the ids that still exist."""
        if not owners:
            return []
        claimed = await self.write(lambda epoch: self._store.claim(epoch, kind, owners))
        self.claims[kind] += len(claimed)
        for thing, owner in owners.items():
            if thing in claimed:
                self.assignments[kind].assign(thing, owner, claimed[thing])
            else:
                self.assignments[kind].forget(thing)
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
        """Checks that no newer Directory has taken over: one that has nothing to write would not notice."""
        async with self._writing:
            if await self._store.directory_epoch() != self.epoch:
                self._superseded()

    async def assign(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        """Claims new epochs for what an owner gets, ASSIGN_MAX at a time, then gives it."""
        for start in range(0, len(ids), ASSIGN_MAX):
            chunk = ids[start : start + ASSIGN_MAX]
            await self.give(kind, owner, await self.claim(kind, dict.fromkeys(chunk, owner)))

    async def give(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        """Assigns to an owner what is its own, under the epochs of the store. An owner that does not answer counts as
        lost."""
        try:
            if kind == "router":
                await self._give_routers(owner, ids)
            else:
                await self._give_breakers(owner, ids)
        except Unavailable:
            self.membership.lost(owner)

    async def _give_routers(self, owner: str, ids: list[str]) -> None:
        """In several calls where one does not take all, until none takes any. An owner that took some is there: what
        failed after that is given to it a little later. Raises Unavailable when it took none."""
        took = False
        while ids:
            stored = await self._store.router_assignments(ids)
            current = [a for a in stored if self.assignments["router"].is_held_by(a.router_id, owner, a.epoch)]
            try:
                acquired = await RouterPeer(self._net, owner).acquire(current)
            except Unavailable:
                if not took:
                    raise
                self.tasks.spawn(self._give_later(owner, ids))
                return
            self.tasks.spawn(self._notify_moved(dict.fromkeys(acquired, owner)))
            took = bool(acquired)
            left = {a.router_id for a in current}.difference(acquired)
            ids = [i for i in ids if i in left] if took else []

    async def _give_later(self, owner: str, ids: list[str]) -> None:
        await asyncio.sleep(GIVE_AGAIN_S)
        await self.give("router", owner, ids)

    async def _give_breakers(self, owner: str, ids: list[str]) -> None:
        stored = await self._store.breaker_assignments(ids)
        current = [a for a in stored if self.assignments["breaker"].is_held_by(a.breaker_id, owner, a.epoch)]
        await BreakerPeer(self._net, owner).assign(current)

    async def _notify_moved(self, owners: dict[str, str]) -> None:
        """Notifies breakers' owners of routers' new owners, so that they subscribe at once (later, by themselves)."""
        names = self.membership.up("breaker")
        calls = (BreakerPeer(self._net, name).routers_moved(owners) for name in names)
        for name, error in zip(names, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if error is not None:
                log.info("routers_moved_not_told", actor=name, error=str(error))

    async def end_former(self, owners: Mapping[str, str]) -> None:
        """Who held breakers before they were made again (id -> owner) lets go of them, unless it has them anew: their
        ends may stand in no log that is read there."""
        moved = [i for i, owner in owners.items() if self.assignments["breaker"].owner(i) not in (None, owner)]
        for owner, ids in grouped(moved, owners).items():
            await self.let_go("breaker", owner, ids)

    async def let_go(self, kind: ActorKind, owner: str, ids: Collection[str]) -> None:
        """Has a former owner let go of routers or breakers. One that does not answer is refused by the logs and the
        journal, and asked again by `Supervision.resume`."""
        if not ids:
            return
        try:
            if kind == "router":
                await RouterPeer(self._net, owner).release(list(ids))
            else:
                epochs = [BreakerEpoch(i, self.assignments[kind].epoch(i)) for i in ids]
                await BreakerPeer(self._net, owner).drop(epochs)
        except Unavailable:
            self.membership.lost(owner)


def grouped(things: Iterable[str], owners: Mapping[str, str]) -> dict[str, list[str]]:
    """Things by owner."""
    by_owner: dict[str, list[str]] = {}
    for thing in things:
        by_owner.setdefault(owners[thing], []).append(thing)
    return by_owner
