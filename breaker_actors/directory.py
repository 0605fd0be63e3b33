"""The Directory: which actor owns which breaker and router, and configuration on its way into the routers' logs.

Holds nothing that the store does not. Ownership changes raise an epoch in the store first (compare-and-set), then the
owner is told; an actor owns nothing until it has said hello and was assigned.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

import structlog

from breaker_actors.core.records import BREAKER, decode_breaker
from breaker_actors.errors import BreakersError, NotOwner, Unavailable
from breaker_actors.guard import one_round
from breaker_actors.messages import RouterRef
from breaker_actors.net import ActorKind, BreakerPeer, JournalPeer, Net, RouterPeer, journal_name
from breaker_actors.stores.base import ChangeRow, Store

KINDS: tuple[ActorKind, ...] = ("router", "breaker")
CONFIGURED_S = 10.0
CHANGES_MAX = 1_000
ASSIGN_MAX = 1_000
REPORT_S = 2.0
RETRY_S = 1.0

log = structlog.get_logger()


class DirectoryHost:
    """Everything the Directory does, without Ray. `budgets`: how many actors of each kind there may be."""

    def __init__(self, store: Store, net: Net, budgets: dict[ActorKind, int]) -> None:
        self._store = store
        self._net = net
        self._budgets = budgets
        self._epoch = 0
        self._owners: dict[ActorKind, dict[str, str]] = {"breaker": {}, "router": {}}
        self._counts: dict[ActorKind, Counter[str]] = {"breaker": Counter(), "router": Counter()}
        self._epochs: dict[tuple[ActorKind, str], int] = {}
        self._loaded = False
        self._unstarted: set[str] = set()
        self._starting = asyncio.Lock()
        self._up: dict[str, str] = {}
        self._away: set[str] = set()
        self._came_up = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = {}
        self._applying = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Fences an older Directory, starts the actors that own something (and one of each kind), goes on working."""
        while not self._loaded:
            await one_round("directory start", self._load())
            if not self._loaded:
                await asyncio.sleep(RETRY_S)
        # routers are few and every sample needs one: all start now; breakers' actors start when they are needed
        for name in self._names("router"):
            self._wake("router", name)
        for name in {*self._counts["breaker"], self._names("breaker")[0]}:
            self._wake("breaker", name)
        self._spawn(self._keep_applying())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ready(self) -> None:
        """Returns when this Directory works and a RouterActor is up to take samples."""
        if not self._loaded or not any(name.startswith("router-") for name in self._up):
            raise Unavailable("no RouterActor is up yet")

    async def _load(self) -> None:
        """Everything placed is known before any actor is heard: an early hello must not find nothing to own."""
        self._epoch = await self._store.open_directory()
        for kind in KINDS:
            names = self._names(kind)
            moved = []
            for placement in await self._store.placements(kind):
                self._epochs[kind, placement.id] = placement.epoch
                if placement.owner in names:
                    self._place(kind, placement.id, placement.owner)
                elif placement.owner is not None:
                    moved.append(placement.id)
                if kind == "breaker":
                    # what the last Directory had settled but not started, or not linked, is done (again) by this one
                    self._unstarted.add(placement.id)
            await self._claim(kind, {thing: self._choose(kind) for thing in moved})
        self._loaded = True

    def _wake(self, kind: ActorKind, name: str) -> None:
        """Starts an actor unless it runs. A new process says hello; one that runs already is asked what it holds."""
        self._net.spawn(kind, name)
        self._spawn(self._resume(kind, name))

    async def _resume(self, kind: ActorKind, name: str) -> None:
        """An actor that outlived the last Directory, or a lost call, keeps what it holds under the stored epochs."""
        peer = RouterPeer(self._net, name) if kind == "router" else BreakerPeer(self._net, name)
        try:
            async with asyncio.timeout(REPORT_S):
                incarnation, held = await peer.report()
        except (BreakersError, TimeoutError):
            return  # it says hello when it is up
        async with self._lock(name):
            if name not in self._up:
                mine = self._things(kind, name)
                mismatched = [i for i in mine if held.get(i) != self._epochs.get((kind, i))]
                with contextlib.suppress(BreakersError):
                    await self._bring_up(kind, name, incarnation, mismatched)
        self._tell_came_up()

    async def _bring_up(self, kind: ActorKind, name: str, incarnation: str, ids: list[str]) -> None:
        """An actor counts as up once it was given what is missing there; a failure is tried again by `_resume`."""
        self._up[name] = incarnation
        try:
            await self._assign(kind, name, ids)
        except BaseException:
            self._lost(name)
            raise
        if name in self._up:
            self._away.discard(name)

    def _tell_came_up(self) -> None:
        came_up, self._came_up = self._came_up, asyncio.Event()
        came_up.set()

    # ------------------------------------------------------------------ calls

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """An actor process is up and empty: everything placed there is given to it under new epochs."""
        self._check_loaded()
        async with self._lock(name):
            if self._up.get(name) == incarnation:
                return
            await self._bring_up(kind, name, incarnation, self._things(kind, name))
        self._tell_came_up()
        log.info("actor_up", actor=name, incarnation=incarnation, holds=self._counts[kind][name])

    async def locate(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        """Owners of breakers or routers; what nobody owns is left out."""
        self._check_loaded()
        owners = self._owners[kind]
        return {i: owners[i] for i in ids if i in owners}

    async def configured(self, change_ids: Sequence[int]) -> None:
        """Applies written changes; returns when these are in the routers' logs or an owner of theirs is away.

        An owner that is only starting is waited for, up to CONFIGURED_S."""
        self._check_loaded()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIGURED_S):
                while True:
                    came_up = self._came_up
                    left = await self._apply_changes()
                    waiting = {self._owners["router"].get(c.router_id, "") for c in left if c.id in change_ids}
                    if not waiting - self._up.keys() - self._away:
                        return
                    await came_up.wait()

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise Unavailable("the directory is starting")

    # ------------------------------------------------------------------ placement

    def _names(self, kind: ActorKind) -> list[str]:
        return [f"{kind}-{i}" for i in range(self._budgets[kind])]

    def _choose(self, kind: ActorKind) -> str:
        """An actor of its own while the budget lasts, then the least loaded one."""
        counts = self._counts[kind]
        return min(self._names(kind), key=lambda name: counts[name])

    def _things(self, kind: ActorKind, owner: str) -> list[str]:
        return [i for i, o in self._owners[kind].items() if o == owner]

    def _place(self, kind: ActorKind, thing: str, owner: str) -> None:
        self._forget(kind, thing)
        self._owners[kind][thing] = owner
        self._counts[kind][owner] += 1

    def _forget(self, kind: ActorKind, thing: str) -> None:
        old = self._owners[kind].pop(thing, None)
        if old is not None:
            self._counts[kind][old] -= 1

    async def _claim(self, kind: ActorKind, owners: dict[str, str]) -> list[str]:
        """Raises epochs for new owners; answers the ids that still exist."""
        if not owners:
            return []
        claimed = await self._store.claim(self._epoch, kind, owners)
        self._epochs.update({(kind, thing): epoch for thing, epoch in claimed.items()})
        for thing, owner in owners.items():
            if thing in claimed:
                self._place(kind, thing, owner)
            else:
                self._forget(kind, thing)
        return list(claimed)

    async def _place_new(self, kind: ActorKind, things: Iterable[str]) -> None:
        """Places what nobody owns yet; actors are started and told in the background."""
        new = [thing for thing in things if thing not in self._owners[kind]]
        owners = {}
        for thing in new:
            owners[thing] = self._choose(kind)
            self._place(kind, thing, owners[thing])
        by_owner: dict[str, list[str]] = {}
        try:
            claimed = await self._claim(kind, owners)
        except BaseException:
            for thing in owners:
                self._forget(kind, thing)
            raise
        for thing in claimed:
            by_owner.setdefault(owners[thing], []).append(thing)
        for owner, ids in by_owner.items():
            if owner in self._up:
                await self._give(kind, owner, ids)
            else:
                self._wake(kind, owner)

    async def _assign(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        """New epochs for an owner's things, then the owner is told."""
        for start in range(0, len(ids), ASSIGN_MAX):
            chunk = ids[start : start + ASSIGN_MAX]
            await self._give(kind, owner, await self._claim(kind, dict.fromkeys(chunk, owner)))

    async def _give(self, kind: ActorKind, owner: str, ids: list[str]) -> None:
        try:
            if kind == "router":
                taken = await RouterPeer(self._net, owner).take(await self._store.router_assignments(ids))
                self._spawn(self._tell_moved(dict.fromkeys(taken, owner)))
            else:
                await BreakerPeer(self._net, owner).assign(await self._store.breaker_assignments(ids))
        except Unavailable:
            self._lost(owner)

    def _lost(self, owner: str) -> None:
        """A call got no answer. If the process died, its successor says hello; if not, `_resume` finds it again."""
        if self._up.pop(owner, None) is not None:
            self._away.add(owner)

    async def _tell_moved(self, owners: dict[str, str]) -> None:
        """Breakers' owners listen to a router's new owner at once (they would notice by themselves, later)."""
        names = [n for n in self._up if n.startswith("breaker-")]
        told = (BreakerPeer(self._net, name).routers_moved(owners) for name in names)
        for name, error in zip(names, await asyncio.gather(*told, return_exceptions=True), strict=True):
            if error is not None:
                log.info("routers_moved_not_told", actor=name, error=str(error))

    # ------------------------------------------------------------------ configuration

    async def _keep_applying(self) -> None:
        while True:
            await one_round("configuration", self._apply_left())
            for name in self._away:
                self._spawn(self._resume("router" if name.startswith("router-") else "breaker", name))
            if self._unstarted and not self._starting.locked():
                self._spawn(self._start_breakers())
            await asyncio.sleep(RETRY_S)

    async def _apply_left(self) -> None:
        try:
            await self._apply_changes()
        except BreakersError as error:
            log.warning("changes_not_applied", error=str(error))

    async def _apply_changes(self) -> list[ChangeRow]:
        """Applies what waits in the store; answers what could not be applied now."""
        async with self._applying:
            while changes := await self._store.pending_changes(CHANGES_MAX):
                if left := await self._apply_some(changes):
                    return left
            return []

    async def _apply_some(self, changes: list[ChangeRow]) -> list[ChangeRow]:
        """Appends changes through the routers' owners, in order per router; answers those that are not settled."""
        await self._place_new("router", dict.fromkeys(c.router_id for c in changes))
        by_owner: dict[str, list[ChangeRow]] = {}
        for change in changes:
            owner = self._owners["router"].get(change.router_id)
            if owner is not None:
                by_owner.setdefault(owner, []).append(change)
        offsets: dict[int, int] = {}
        for got in await asyncio.gather(*(self._append(owner, rows) for owner, rows in by_owner.items())):
            offsets.update(got)
        settled = [c for c in changes if c.id in offsets]
        if settled:
            await self._store.settle_changes(self._epoch, offsets)
            self._forget_breakers(settled)
            self._unstarted.update(breaker_id for c in settled for breaker_id in c.links)
            self._spawn(self._start_breakers())
            await self._announce({c.project_id for c in settled})
            with contextlib.suppress(BreakersError):  # they stay listed until the next Directory
                await self._release_routers({c.router_id for c in settled})
        return [c for c in changes if c.id not in offsets]

    async def _release_routers(self, router_ids: set[str]) -> None:
        """Routers that were deleted with their last change: their owners let go of them."""
        there = {a.router_id for a in await self._store.router_assignments(sorted(router_ids))}
        by_owner: dict[str, list[str]] = {}
        for router_id in router_ids - there:
            owner = self._owners["router"].get(router_id)
            self._forget("router", router_id)
            self._epochs.pop(("router", router_id), None)
            if owner is not None:
                by_owner.setdefault(owner, []).append(router_id)
        for owner, gone in by_owner.items():
            with contextlib.suppress(BreakersError):  # a successor of that process never hears of them
                await RouterPeer(self._net, owner).release(gone)

    def _forget_breakers(self, changes: list[ChangeRow]) -> None:
        """A deleted breaker frees its place, its owner drops it when it reads the record; a created one is new, even if
        its predecessor of the same id has not been read away yet."""
        for change in changes:
            for kind, payload in change.entries:
                if kind == BREAKER and ((told := decode_breaker(payload)).rule is None or told.created):
                    self._forget("breaker", told.breaker_id)
                    self._epochs.pop(("breaker", told.breaker_id), None)

    async def _append(self, owner: str, changes: list[ChangeRow]) -> dict[int, int]:
        if owner not in self._up:
            return {}
        try:
            return await RouterPeer(self._net, owner).change(changes)
        except NotOwner:
            async with self._lock(owner):
                await self._assign("router", owner, list({c.router_id for c in changes}))
        except BreakersError as error:
            self._lost(owner)
            log.warning("change_not_appended", actor=owner, error=str(error))
        return {}

    async def _start_breakers(self) -> None:
        """Breakers whose link now lies in a log: new ones are placed, held ones listen to one more router.

        What fails stays in `_unstarted` and is tried again every second."""
        async with self._starting:
            linked, self._unstarted = self._unstarted, set()
            held = [i for i in linked if i in self._owners["breaker"]]
            try:
                await self._place_new("breaker", linked)
                await self._link(held)
            except BreakersError as error:
                self._unstarted |= linked
                log.warning("breakers_not_started", error=str(error))

    async def _link(self, breaker_ids: list[str]) -> None:
        """Repeating a link is harmless."""
        by_owner: dict[str, list[tuple[str, RouterRef]]] = {}
        for assignment in await self._store.breaker_assignments(breaker_ids) if breaker_ids else ():
            owner = self._owners["breaker"].get(assignment.breaker_id)
            if owner in self._up:  # else it is assigned with all its links when its owner is up
                links = by_owner.setdefault(owner, [])
                links.extend((assignment.breaker_id, router) for router in assignment.routers)
        for owner, links in by_owner.items():
            await BreakerPeer(self._net, owner).link(links)

    async def _announce(self, project_ids: set[str]) -> None:
        try:
            await JournalPeer(self._net, journal_name(0)).announce("config", sorted(project_ids))
        except BreakersError as error:
            log.warning("config_not_announced", error=str(error))  # replicas reload when the journal is back

    # ------------------------------------------------------------------ inside

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
