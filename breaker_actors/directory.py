"""The Directory: the one actor that knows which actor owns which breaker and router.

Holds nothing that the store does not. Its calls are here; what it does lies in `placing.py` (owners and epochs),
`changes.py` (configuration on its way into the logs) and `moving.py` (evening out).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from breaker_actors.changes import CHANGES_MAX, Changes
from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.guard import one_round
from breaker_actors.messages import Overview, Rebalanced, Seat
from breaker_actors.meters import Meters
from breaker_actors.moving import KINDS, Moving
from breaker_actors.net import DIRECTORY, ActorKind, Net
from breaker_actors.placing import Budgets, Placing
from breaker_actors.settings import Settings
from breaker_actors.stores.base import Store

CONFIGURED_S = 10.0
RETRY_S = 1.0
LOOK_S = 2.0
"""How often actors that are up are asked what they hold."""


class DirectoryHost:
    """Everything the Directory does, without Ray. `budgets` says how many actors of each kind there may be now;
    `superseded` is called when a newer Directory has taken over."""

    def __init__(
        self,
        store: Store,
        net: Net,
        clock: Clock,
        settings: Settings,
        budgets: Budgets,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._placing = Placing(store, net, clock, budgets, superseded)
        self._moving = Moving(self._placing, settings.rebalance_moves_per_minute)
        self._changes = Changes(store, net, self._placing, self._moving)
        self._loaded = False
        self._store = store
        self.meters = Meters("directory", DIRECTORY)
        self.meters.watch(self._look)

    async def start(self) -> None:
        """Fences an older Directory, starts the actors that own something (and one of each kind), goes on working."""
        while not self._loaded:
            await one_round("directory start", self._load())
            if not self._loaded:
                await asyncio.sleep(RETRY_S)
        routers, breakers = self._placing.names("router"), self._placing.names("breaker")
        # routers are few and every sample needs one: all start now; breakers' actors start when they are needed
        for name in dict.fromkeys([*routers, *self._placing.owners["router"].claimed()]):
            self._placing.wake("router", name)
        for name in dict.fromkeys([breakers[0], *self._placing.owners["breaker"].claimed()]):
            self._placing.wake("breaker", name)
        self._placing.spawn(self._work())
        self._placing.spawn(self._look_after())
        self._moving.start()

    async def stop(self) -> None:
        await self._placing.stop()

    async def _load(self) -> None:
        """Everything placed is known before any actor is heard: an early hello must not find nothing to own."""
        self._changes.load(await self._placing.load())
        self._loaded = True

    async def _work(self) -> None:
        while True:
            await one_round("configuration", self._changes.apply_left())
            # one that said hello to an earlier Directory does not say it again
            for kind, name in self._placing.roster.not_up():
                self._placing.spawn(self._placing.resume(kind, name))
            await one_round("pending changes", self._count_pending())
            await asyncio.sleep(RETRY_S)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await one_round("looking after actors", self._placing.look_after())

    async def _count_pending(self) -> None:
        """Also of routers whose owner is away, which nobody applies."""
        with contextlib.suppress(BreakersError):
            await self._placing.check_place()
            waiting = await self._store.pending_changes(CHANGES_MAX)
            self.meters.gauge("breakers_changes_pending", len(waiting))

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        for kind in KINDS:
            self.meters.gauge("breakers_actors_up", len(self._placing.roster.up(kind)), kind=kind)
            self.meters.total("breakers_assignments_total", self._placing.claims[kind], kind=kind)

    # ------------------------------------------------------------------ calls

    async def ready(self) -> None:
        """Returns when this Directory works and a RouterActor is up to take samples."""
        if not self._loaded or not self._placing.roster.up("router"):
            raise Unavailable("no RouterActor is up yet")

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """An actor process is up and empty: everything placed there is given to it under new epochs."""
        self._check_loaded()
        await self._placing.hello(kind, name, incarnation)

    async def locate(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        """Owners of breakers or routers; what nobody owns is left out."""
        self._check_loaded()
        found = ((i, self._placing.owners[kind].owner(i)) for i in ids)
        return {i: owner for i, owner in found if owner is not None}

    async def configured(self, change_ids: Sequence[int]) -> None:
        """Applies written changes; returns when these are in the routers' logs or an owner of theirs is away.

        An owner that is only starting is waited for, up to CONFIGURED_S."""
        self._check_loaded()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIGURED_S):
                await self._apply_until(change_ids)

    async def changed(self, project_id: str) -> None:
        """Has replicas told that a project's configuration was written of which no router's log is to know."""
        self._check_loaded()
        await self._changes.tell(project_id)

    async def rebalance(self, most: int) -> Rebalanced:
        """Moves up to `most` things (100 at a time) to even out; call it again while anything is `left`."""
        self._check_loaded()
        return await self._moving.rebalance(most)

    async def overview(self) -> Overview:
        """All seats there are, and how many there may be."""
        roster, owners = self._placing.roster, self._placing.owners
        seats = [
            Seat(name=name, holds=owners[known.kind].count(name), **msgspec.structs.asdict(known))
            for name, known in roster.all()
        ]
        return Overview(budgets={str(kind): count for kind, count in self._placing.budgets.items()}, seats=seats)

    # ------------------------------------------------------------------ inside

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise Unavailable("the directory is starting")

    async def _apply_until(self, change_ids: Sequence[int]) -> None:
        again = True
        while True:
            await self._changes.apply()
            owners = await self._changes.unsettled_owners(change_ids)
            if any(map(self._placing.roster.is_starting, owners)):
                await self._placing.until_up(owners)
            elif again and any(map(self._placing.roster.is_up, owners)):
                again = False  # it came up, or got the router back, while we were at it
            else:
                return
