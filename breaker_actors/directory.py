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
from breaker_actors.net import ActorKind, BreakerPeer, JournalPeer, Net, RouterPeer, journal_name
from breaker_actors.stores.base import ChangeRow, Store

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
        self._epochs: dict[str, int] = {}
        self._up: dict[str, str] = {}
        self._away: set[str] = set()
        self._came_up = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = {}
        self._applying = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Fences an older Directory, starts the actors that own something (and one of each kind), goes on working."""
        while not self._epoch:
            try:
                self._epoch = await self._store.open_directory()
                for kind in ("router", "breaker"):
                    await self._load(kind)
            except Unavailable as error:
                log.warning("directory_not_started", error=str(error))
                self._epoch = 0
                await asyncio.sleep(RETRY_S)
        self._spawn(self._keep_applying())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ready(self) -> None:
        """Returns when this Directory works and a RouterActor is up to take samples."""
        if not self._epoch or not any(name.startswith("router-") for name in self._up):
            raise Unavailable("no RouterActor is up yet")

    async def _load(self, kind: ActorKind) -> None:
        names = self._names(kind)
        placements = await self._store.placements(kind)
        moved = []
        for placement in placements:
            self._epochs[placement.id] = placement.epoch
            if placement.owner in names:
                self._place(kind, placement.id, placement.owner)
            elif placement.owner is not None:
                moved.append(placement.id)
        await self._claim(kind, {thing: self._choose(kind) for thing in moved})
        # routers are few and every sample needs one: all start now; breakers' actors start when they are needed
        for name in names if kind == "router" else {*self._counts[kind], names[0]}:
            self._wake(kind, name)

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
                self._up[name] = incarnation
                self._away.discard(name)
                mine = self._things(kind, name)
                await self._assign(kind, name, [i for i in mine if held.get(i) != self._epochs.get(i)])

    # ------------------------------------------------------------------ calls

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """An actor process is up and empty: everything placed there is given to it under new epochs."""
        async with self._lock(name):
            if self._up.get(name) == incarnation:
                return
            self._up[name] = incarnation
            self._away.discard(name)
            await self._assign(kind, name, self._things(kind, name))
        came_up, self._came_up = self._came_up, asyncio.Event()
        came_up.set()
        log.info("actor_up", actor=name, incarnation=incarnation, holds=self._counts[kind][name])

    async def locate(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        """Owners of breakers or routers; what nobody owns is left out."""
        owners = self._owners[kind]
        return {i: owners[i] for i in ids if i in owners}

    async def configured(self, change_ids: Sequence[int]) -> None:
        """Applies written changes; returns when these are in the routers' logs or an owner of theirs is away.

        An owner that is only starting is waited for; the caller sets the limit."""
        while True:
            came_up = self._came_up
            left = await self._apply_changes()
            waiting = {self._owners["router"].get(c.router_id, "") for c in left if c.id in change_ids}
            if not waiting - self._up.keys() - self._away:
                return
            await came_up.wait()

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
        self._epochs.update(claimed)
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
        for thing in await self._claim(kind, owners):
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
        for name in [n for n in self._up if n.startswith("breaker-")]:
            try:
                await BreakerPeer(self._net, name).routers_moved(owners)
            except BreakersError as error:
                log.info("routers_moved_not_told", actor=name, error=str(error))

    # ------------------------------------------------------------------ configuration

    async def _keep_applying(self) -> None:
        while True:
            try:
                await self._apply_changes()
            except BreakersError as error:
                log.warning("changes_not_applied", error=str(error))
            for name in self._away:
                self._spawn(self._resume("router" if name.startswith("router-") else "breaker", name))
            await asyncio.sleep(RETRY_S)

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
            await self._announce({c.project_id for c in settled})
            await self._release_routers({c.router_id for c in settled})
            self._spawn(self._start_breakers(settled))
        return [c for c in changes if c.id not in offsets]

    async def _release_routers(self, router_ids: set[str]) -> None:
        """Routers that were deleted with their last change: their owners let go of them."""
        there = {a.router_id for a in await self._store.router_assignments(sorted(router_ids))}
        by_owner: dict[str, list[str]] = {}
        for router_id in router_ids - there:
            owner = self._owners["router"].get(router_id)
            self._forget("router", router_id)
            self._epochs.pop(router_id, None)
            if owner is not None:
                by_owner.setdefault(owner, []).append(router_id)
        for owner, gone in by_owner.items():
            with contextlib.suppress(BreakersError):  # a successor of that process never hears of them
                await RouterPeer(self._net, owner).release(gone)

    def _forget_breakers(self, changes: list[ChangeRow]) -> None:
        """A deleted breaker frees its place; its owner drops it when it reads the record."""
        for change in changes:
            for kind, payload in change.entries:
                if kind == BREAKER and (gone := decode_breaker(payload)).rule is None:
                    self._forget("breaker", gone.breaker_id)
                    self._epochs.pop(gone.breaker_id, None)

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

    async def _start_breakers(self, changes: list[ChangeRow]) -> None:
        """Breakers whose link now lies in a log: new ones are placed, held ones listen to one more router."""
        linked = [breaker_id for c in changes for breaker_id in c.links]
        held = [i for i in linked if i in self._owners["breaker"]]
        try:
            await self._place_new("breaker", dict.fromkeys(linked))
            await self._link(held)
        except BreakersError as error:
            log.warning("breakers_not_started", error=str(error))

    async def _link(self, breaker_ids: list[str]) -> None:
        if not breaker_ids:
            return
        for assignment in await self._store.breaker_assignments(breaker_ids):
            owner = self._owners["breaker"].get(assignment.breaker_id)
            if owner is None or owner not in self._up:
                continue  # it is assigned with all its links when its owner is up
            for router in assignment.routers:
                await BreakerPeer(self._net, owner).link(assignment.breaker_id, router)

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
