"""The Directory: the one actor that knows which actor owns which breaker and router.

Holds nothing that the store does not. Its calls are here; what it does lies in `placement.py` (owners and epochs),
`supervision.py` (actors), `config_dispatch.py` (configuration on its way into the logs) and `rebalancer.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.directory.config_dispatch import ConfigDispatch
from breaker_actors.directory.exchange import Exchange
from breaker_actors.directory.placement import Budgets, Placer
from breaker_actors.directory.rebalancer import KINDS, Rebalancer
from breaker_actors.directory.supervision import Supervision
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.messages import ActorPlacement, Aside, Counted, Overview, Rebalanced
from breaker_actors.settings import Settings
from breaker_actors.store.base import DirectoryStore
from breaker_actors.store.rows import StoredFigures
from breaker_actors.telemetry.catalog import STORED
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import DIRECTORY, ActorKind, Net, journal_name

CONFIGURED_S = 10.0
RETRY_S = 1.0
COUNTED_MAX = 100_000
CHECK_S = 2.0
"""How often actors that are up are asked what they hold."""


class DirectoryHost:
    """Everything the Directory does, without Ray. `budgets` says how many actors of each kind there may be now;
    `superseded` is called when a newer Directory has taken over."""

    def __init__(
        self,
        store: DirectoryStore,
        net: Net,
        clock: Clock,
        settings: Settings,
        budgets: Budgets,
        superseded: Callable[[], None] = lambda: None,
    ) -> None:
        self._placer = Placer(store, net, clock, budgets, superseded)
        self._supervision = Supervision(self._placer, net)
        self._rebalancer = Rebalancer(self._placer, self._supervision, settings.rebalance_moves_per_minute)
        self._dispatch = ConfigDispatch(store, net, self._placer, self._supervision, self._rebalancer)
        self._loaded = False
        self._replicas = Exchange(clock)
        self._net = net
        self._journals = settings.journals
        self._store = store
        self.meters = Meters("directory", DIRECTORY)
        self.meters.watch(self._look)
        self.meters.watch_asides(store.asides)

    async def start(self) -> None:
        """Fences an older Directory, starts the actors that own something (and one of each kind), goes on working."""
        while not self._loaded:
            await run_supervised("directory start", self._load())
            if not self._loaded:
                await asyncio.sleep(RETRY_S)
        routers, breakers = self._placer.names("router"), self._placer.names("breaker")
        # routers are few and every sample needs one: all start now; breakers' actors start when they are needed
        for name in dict.fromkeys([*routers, *self._placer.assignments["router"].claimed()]):
            self._supervision.wake("router", name)
        for name in dict.fromkeys([breakers[0], *self._placer.assignments["breaker"].claimed()]):
            self._supervision.wake("breaker", name)
        self._placer.tasks.spawn(self._work())
        self._placer.tasks.spawn(self._check_actors())
        self._placer.tasks.spawn(self._watch_journals())
        self._rebalancer.start()

    async def stop(self) -> None:
        await self._placer.tasks.stop()

    async def _load(self) -> None:
        """Everything placed is known before any actor is heard: an early hello must not find nothing to own."""
        self._dispatch.announcements.extend(await self._store.journals())
        self._dispatch.load(await self._placer.load())
        self._loaded = True

    async def _work(self) -> None:
        while True:
            await run_supervised("configuration", self._dispatch.apply_left())
            # one that said hello to an earlier Directory does not say it again
            for kind, name in self._placer.membership.not_up():
                self._placer.tasks.spawn(self._supervision.resume(kind, name))
            await run_supervised("pending changes", self._count_pending())
            await asyncio.sleep(RETRY_S)

    async def _check_actors(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await run_supervised("check actors", self._supervision.check_all())

    async def _watch_journals(self) -> None:
        while True:
            await run_supervised("journals", self._keep_journals())
            await asyncio.sleep(CHECK_S)

    async def _keep_journals(self) -> None:
        """Starts the Journals of projects from when there were more of them; the others start with the service."""
        with contextlib.suppress(BreakersError):
            count = await self._store.journals()
            self._dispatch.announcements.extend(count)
            for name in map(journal_name, range(self._journals, count)):
                try:
                    await self._net.process(name)
                except BreakersError:
                    self._net.spawn("journal", name)

    async def _count_pending(self) -> None:
        """Also of routers whose owner is away, which nobody applies."""
        with contextlib.suppress(BreakersError):
            await self._placer.check_place()
            self.meters.gauge("breakers_changes_pending", await self._store.count_pending(COUNTED_MAX))
            rows, dropped = await self._store.count_aside()
            self.meters.gauge("breakers_set_aside_rows", rows)
            self.meters.total("breakers_set_aside_dropped_total", dropped)
            self._show_stored(await self._store.stored_figures())

    def _show_stored(self, stored: StoredFigures) -> None:
        full = Counter(str(share.limit) for share in stored.shares)
        for what in STORED:
            self.meters.gauge("breakers_stored_shares_full", full[what], what=what)
        self.meters.total("breakers_audit_shortened_total", stored.shortened)
        self.meters.total("breakers_events_dropped_total", stored.dropped)
        self.meters.total("breakers_deliveries_dropped_total", stored.deliveries_dropped)
        self.meters.total("breakers_alerts_unsent_total", stored.unsent)
        self.meters.total("breakers_alerts_unmuted_total", stored.unmuted)

    def _look(self) -> None:
        """How things stand (see Meters.watch)."""
        for kind in KINDS:
            self.meters.gauge("breakers_actors_up", len(self._placer.membership.up(kind)), kind=kind)
            self.meters.total("breakers_assignments_total", self._placer.claims[kind], kind=kind)

    # ------------------------------------------------------------------ calls

    async def ready(self) -> None:
        """Returns when this Directory works and a RouterActor is up to take samples."""
        if not self._loaded or not self._placer.membership.up("router"):
            raise Unavailable("no RouterActor is up yet")

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """An actor process is up and empty: everything placed there is given to it under new epochs."""
        self._check_loaded()
        await self._supervision.hello(kind, name, incarnation)

    async def locate(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        """Owners of breakers or routers; what nobody owns is left out."""
        self._check_loaded()
        found = ((i, self._placer.assignments[kind].owner(i)) for i in ids)
        return {i: owner for i, owner in found if owner is not None}

    async def configured(self, change_ids: Sequence[int]) -> bool:
        """Applies written changes; returns when these are in the routers' logs (True) or an owner of theirs is away.

        An owner that is only starting is waited for, up to CONFIGURED_S."""
        self._check_loaded()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIGURED_S):
                return await self._apply_until(change_ids)
        return False

    async def changed(self, project_id: str) -> None:
        """Has replicas told that a project's configuration was written of which no router's log is to know."""
        self._check_loaded()
        await self._dispatch.publish(project_id)

    async def set_aside(self, entries: Sequence[Aside]) -> None:
        """Stores what a part without a store could not read."""
        await self._store.set_aside(entries)

    async def rebalance(self, most: int) -> Rebalanced:
        """Moves up to `most` things (100 at a time) to even out; call it again while anything is `left`."""
        self._check_loaded()
        return await self._rebalancer.rebalance(most)

    async def exchange(self, own: Counted) -> list[Counted]:
        """Takes what a replica of the API has counted, which nobody can ask; returns that of all of them."""
        return self._replicas.exchange(own)

    async def overview(self) -> Overview:
        """Returns all RouterActors and BreakerActors there are, and how many there may be."""
        membership, owners = self._placer.membership, self._placer.assignments
        actors = [
            ActorPlacement(name=name, holds=owners[known.kind].count(name), **msgspec.structs.asdict(known))
            for name, known in membership.all()
        ]
        return Overview(budgets={str(kind): count for kind, count in self._placer.budgets.items()}, actors=actors)

    # ------------------------------------------------------------------ inside

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise Unavailable("the directory is starting")

    async def _apply_until(self, change_ids: Sequence[int]) -> bool:
        again = True
        while True:
            if await self._dispatch.apply(change_ids):
                return True
            owners = await self._dispatch.unsettled_owners(change_ids)
            if any(map(self._placer.membership.is_starting, owners)):
                await self._supervision.until_up(owners)
            elif again and any(map(self._placer.membership.is_up, owners)):
                again = False  # it came up, or got the router back, while we were at it
            else:
                return not owners
