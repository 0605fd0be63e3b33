"""Configuration on its way into the routers' logs (architecture.md section 3.6): change rows of the store are
appended by the routers' owners, in order per router, then settled; breakers that start to count are placed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import islice

import structlog

from breaker_actors.core.log_entries import BREAKER, BreakerSet, decode_breaker
from breaker_actors.directory.announcements import Announcements
from breaker_actors.directory.placement import Placer
from breaker_actors.directory.rebalancer import Rebalancer
from breaker_actors.directory.supervision import Supervision
from breaker_actors.errors import BreakersError, NotOwner
from breaker_actors.messages import EVERY_PROJECT, ChangeRow, ChangesTaken, RouterRef
from breaker_actors.store.base import PlacementStore
from breaker_actors.transport.peers import BreakerPeer, Net, RouterPeer

CHANGES_MAX = 50
"""Of one round. A round holds the database's readers up: few at a time let others in between."""
ROUND_REST, ROUND_REST_MAX_S = 1, 0.03
"""So many times as long as a full round took the next one is put off, at most so long: what a large set keeps busy
(owners of routers and of breakers, the Journal) is free for others half of the time."""

SETTLE_AFTER_S = 0.004
"""A small round settles so long after its appends. On SQLite one writes at a time, and what a breaker makes of a
change, an override above all, is to be stored first: settling only tidies up."""
DAMAGED_MAX = 500
"""So many damaged logs are passed over by those whose changes wait; beyond them their owner is, as if it were away."""
ROUTERS_NAMED_MAX = 500
LATELY_MAX, SERVED_MAX = 50_000, 10_000

log = structlog.get_logger()


async def pause(time_s: float) -> None:
    await asyncio.sleep(time_s)


class _Waiter:
    """Somebody who waits for changes to be settled; `settled` says whether they are."""

    def __init__(self, wanted: set[int], settled: asyncio.Future[bool]) -> None:
        self._wanted = wanted
        self._is_for_all = not wanted
        self.settled = settled

    def hear(self, settled: Set[int]) -> bool:
        """Notes changes that are settled; True when it need not wait any more."""
        self._wanted -= settled
        if not self.settled.done() and (self._wanted or self._is_for_all):
            return False
        self._answer(True)
        return True

    def give_up(self) -> None:
        self._answer(False)

    def fail(self, error: Exception) -> None:
        if not self.settled.done():
            self.settled.set_exception(error)

    def _answer(self, is_settled: bool) -> None:
        if not self.settled.done():
            self.settled.set_result(is_settled)


class ConfigDispatch:
    """Relays change rows from the store to the routers' logs, and starts breakers that are new."""

    def __init__(
        self, store: PlacementStore, net: Net, placer: Placer, supervision: Supervision, rebalancer: Rebalancer
    ) -> None:
        self._store = store
        self._net = net
        self._placer = placer
        self._supervision = supervision
        self._rebalancer = rebalancer
        # bounded by the calls that wait here
        self._waiters: list[_Waiter] = []
        self._is_applying = False
        # projects by the round in which they last had a change, the last one last; SERVED_MAX at most
        self._served: dict[str, int] = {}
        self._rounds = 0
        # the last changes that were settled while somebody waited, LATELY_MAX at most
        self._lately: dict[int, None] = {}
        # breakers that are to be started, or linked: by these routers, or by all (None)
        self._unstarted: dict[str, set[str] | None] = {}
        # who held breakers that were made again; bounded by the breakers there are
        self._former: dict[str, str] = {}
        # changes whose settling has an unknown outcome: nobody else will notice when they are settled after all
        self._doubtful: dict[int, ChangeRow] = {}
        # routers whose logs took nothing in these rounds; DAMAGED_MAX at most
        self._damaged: set[str] = set()
        self._starting = asyncio.Lock()
        self.announcements = Announcements(net, placer.tasks)

    def load(self, breaker_ids: Sequence[str]) -> None:
        """What the last Directory had settled but not started, or not linked, is done (again) by this one. It may have
        announced nothing of that, so all replicas look at everything."""
        self._unstarted.update(dict.fromkeys(breaker_ids))
        self.announcements.note([EVERY_PROJECT])

    async def apply_left(self) -> None:
        """One regular look: what waits is applied in the background, and breakers that could not be started when their
        turn was. Whoever has other regular work does not wait for thousands of changes."""
        if not self._is_applying:
            self._placer.tasks.spawn(self._apply_quietly())
        if self._unstarted and not self._starting.locked():
            self._placer.tasks.spawn(self._start_breakers())
        if self.announcements.is_left():
            self._placer.tasks.spawn(self.announcements.tell())

    async def _apply_quietly(self) -> None:
        try:
            await self.apply(())
        except BreakersError as error:
            log.warning("changes_not_applied", error=str(error))

    async def apply(self, wanted: Collection[int]) -> bool:
        """Applies what waits in the store for owners that are up; one that is stuck holds up nobody else's changes,
        nor does a damaged log.
        Returns True once the changes `wanted` are settled, False when nothing more can be done for now."""
        left = set(wanted) - self._lately.keys()  # a round may have been quicker than who asks
        if wanted and not left:
            return True
        waiter = _Waiter(left, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if not self._is_applying:
            self._is_applying = True
            self._placer.tasks.spawn(self._apply_for_all())
        try:
            return await waiter.settled
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def _apply_for_all(self) -> None:
        """Until nobody waits. What fails is told to who waited longest; for the others it is tried again."""
        try:
            while self._waiters:
                try:
                    await self._apply_rounds()
                except Exception as error:
                    if self._waiters:
                        self._waiters.pop(0).fail(error)
        finally:
            self._is_applying = False
            self._lately.clear()  # who asks from here on looks itself

    async def _apply_rounds(self) -> None:
        """Whoever waits is answered after the round that settled the last of its changes, and the others when nothing
        is left that can be done. The last look at the store is no answer to who came after it."""
        await self._check_doubtful()
        stuck: set[str] = set()
        self._damaged.clear()
        clock = asyncio.get_running_loop().time
        while True:
            begun, passed = clock(), len(self._damaged)
            present = list(self._waiters)
            able = [name for name in self._placer.membership.up("router") if name not in stuck]
            changes = await self._store.pending_changes(CHANGES_MAX, able, self._served, self._damaged)
            self._note_served(changes)
            left = await self._apply_batch(changes)
            settled = {c.id for c in changes} - {c.id for c in left}
            self._note_settled(settled)
            self._waiters = [waiter for waiter in self._waiters if not waiter.hear(settled)]
            owner = self._placer.assignments["router"].owner
            owners = {owner(c.router_id) or "" for c in left if c.router_id not in self._damaged}
            if len(left) == len(changes) and owners <= stuck and len(self._damaged) == passed:
                self._waiters = [waiter for waiter in self._waiters if waiter not in present]
                for waiter in present:
                    waiter.give_up()
                return
            stuck |= owners
            if len(changes) >= CHANGES_MAX:
                await pause(min(ROUND_REST_MAX_S, ROUND_REST * (clock() - begun)))

    def _note_served(self, changes: Sequence[ChangeRow]) -> None:
        self._rounds += 1
        for change in changes:
            self._served.pop(change.project_id, None)
            self._served[change.project_id] = self._rounds
        for project_id in list(islice(self._served, max(0, len(self._served) - SERVED_MAX))):
            del self._served[project_id]

    def _note_settled(self, change_ids: Collection[int]) -> None:
        self._lately.update(dict.fromkeys(change_ids))
        for change_id in list(islice(self._lately, max(0, len(self._lately) - LATELY_MAX))):
            del self._lately[change_id]

    async def publish(self, project_id: str) -> None:
        """Announces to replicas that a project's configuration changed: now, or in a later round."""
        self.announcements.note([project_id])
        await self.announcements.tell()

    async def unsettled_owners(self, change_ids: Sequence[int]) -> set[str]:
        """The owners of the routers for which some of these changes still wait; "": nobody owns it yet."""
        left = await self._store.unsettled(change_ids)
        return {self._placer.assignments["router"].owner(router_id) or "" for router_id in left}

    # ------------------------------------------------------------------ inside

    async def _apply_batch(self, changes: list[ChangeRow]) -> list[ChangeRow]:
        """Appends changes through the routers' owners; answers those that are not settled."""
        await self._supervision.place_new("router", dict.fromkeys(c.router_id for c in changes))
        offsets = await self._append(changes)
        if settled := [c for c in changes if c.id in offsets]:
            if len(changes) < CHANGES_MAX:
                await asyncio.sleep(SETTLE_AFTER_S)
            self._doubtful.update((c.id, c) for c in settled)
            await self._placer.write(lambda epoch: self._store.settle_changes(epoch, offsets))
            await self._follow(settled)
        return [c for c in changes if c.id not in offsets]

    async def _check_doubtful(self) -> None:
        """Changes that nobody knew to be settled may be by now, and don't come again."""
        if self._doubtful:
            waiting = set(await self._store.unsettled(list(self._doubtful)))
            await self._follow([c for c in self._doubtful.values() if c.router_id not in waiting])

    async def _follow(self, settled: Sequence[ChangeRow]) -> None:
        """Carries out what follows settled changes: breakers start or end, replicas are notified."""
        if not settled:
            return
        for change in settled:
            self._doubtful.pop(change.id, None)
        ended = self._forget_created(settled)
        self._note_unstarted((breaker_id, {c.router_id}) for c in settled for breaker_id in c.links)
        self._placer.tasks.spawn(self._start_breakers())
        self.announcements.note(c.project_id for c in settled)
        await self.announcements.tell()
        with contextlib.suppress(BreakersError):  # they stay listed until the next Directory
            await self._release_routers({c.router_id for c in settled})
            await self._forget_ended(ended)

    async def _append(self, changes: Sequence[ChangeRow], again: bool = True) -> dict[int, int]:
        """Change id -> offset of what was appended. Who is not the owner any more is made one again, or the one to
        whom a router has moved is asked."""
        by_owner: dict[str, list[ChangeRow]] = {}
        for change in changes:
            owner = self._placer.assignments["router"].owner(change.router_id)
            if owner is not None and self._placer.membership.is_up(owner):
                by_owner.setdefault(owner, []).append(change)
        answers = await asyncio.gather(*(self._append_at(owner, rows) for owner, rows in by_owner.items()))
        offsets = {change_id: offset for answer in answers if answer for change_id, offset in answer.offsets.items()}
        damaged = (router_id for answer in answers if answer for router_id in answer.damaged)
        self._damaged.update(islice(damaged, DAMAGED_MAX - len(self._damaged)))
        if again and None in answers:
            offsets |= await self._append([c for c in changes if c.id not in offsets], again=False)
        return offsets

    async def _append_at(self, owner: str, changes: list[ChangeRow]) -> ChangesTaken | None:
        """None: a router was not owned there; now it is, or it has moved."""
        try:
            return await RouterPeer(self._net, owner).change(changes)
        except NotOwner:
            async with self._rebalancer.lock, self._supervision.lock(owner):
                owners = self._placer.assignments["router"]
                theirs = {c.router_id for c in changes if owners.owner(c.router_id) == owner}
                await self._placer.assign("router", owner, sorted(theirs))
            return None
        except BreakersError as error:
            self._placer.membership.lost(owner)
            log.warning("change_not_appended", actor=owner, error=str(error))
            return ChangesTaken({})

    async def _release_routers(self, router_ids: set[str]) -> None:
        """Routers that were deleted with their last change: their owners let go of them."""
        there = {a.router_id for a in await self._store.router_assignments(sorted(router_ids))}
        owners = self._placer.assignments["router"]
        by_owner: dict[str, list[str]] = {}
        for router_id in sorted(router_ids - there):
            owner = owners.owner(router_id)
            owners.forget(router_id)
            if owner is not None:
                by_owner.setdefault(owner, []).append(router_id)
        for owner, gone in by_owner.items():
            with contextlib.suppress(BreakersError):  # a successor of that process never hears of them
                await RouterPeer(self._net, owner).release(gone)

    def _forget_created(self, changes: Sequence[ChangeRow]) -> set[str]:
        """A created breaker is new, even if its predecessor of the same id has not been read away yet; not so one that
        is only brought to life again: who has it keeps it. Answers those that were deleted."""
        decoded = [self._settings_in(c, payload) for c in changes for kind, payload in c.entries if kind == BREAKER]
        readable = [settings for settings in decoded if settings is not None]
        for settings in readable:
            if settings.created and not settings.again:
                owners = self._placer.assignments["breaker"]
                if (owner := owners.owner(settings.breaker_id)) is not None:
                    self._former[settings.breaker_id] = owner
                owners.forget(settings.breaker_id)
        return {settings.breaker_id for settings in readable if settings.rule is None}

    def _settings_in(self, change: ChangeRow, payload: bytes) -> BreakerSet | None:
        where = (change.router_id, payload, change.id, change.project_id)
        return self._store.asides.attempt(partial(decode_breaker, payload), "change", *where)

    async def _forget_ended(self, breaker_ids: set[str]) -> None:
        """A deleted breaker frees its place; its owner drops it when it reads the record. Not so one that was created
        again meanwhile: another router's log may have heard of that first."""
        if breaker_ids:
            there = {a.breaker_id for a in await self._store.breaker_assignments(sorted(breaker_ids))}
            for breaker_id in breaker_ids - there:
                self._placer.assignments["breaker"].forget(breaker_id)

    async def _start_breakers(self) -> None:
        """Breakers whose link now lies in a log: new ones are placed, held ones listen to one more router.

        What fails stays in `_unstarted` and is tried again every second."""
        async with self._starting:
            linked, self._unstarted = self._unstarted, {}
            held = [i for i in linked if self._placer.assignments["breaker"].owner(i) is not None]
            try:
                await self._supervision.place_new("breaker", dict.fromkeys(linked))
                former, self._former = self._former, {}
                await self._placer.end_former(former)
                await self._link({i: linked[i] for i in held})
            except BreakersError as error:
                self._note_unstarted(linked.items())
                log.warning("breakers_not_started", error=str(error))

    def _note_unstarted(self, linked: Iterable[tuple[str, set[str] | None]]) -> None:
        for breaker_id, routers in linked:
            known = self._unstarted.setdefault(breaker_id, set())
            self._unstarted[breaker_id] = None if known is None or routers is None else known | routers

    async def _link(self, breakers: Mapping[str, set[str] | None]) -> None:
        """Repeating a link is harmless. An owner that is away is told later: it may come back with what it had, and is
        assigned nothing then."""
        owners, is_up = self._placer.assignments["breaker"], self._placer.membership.is_up
        away = {i: routers for i, routers in breakers.items() if (o := owners.owner(i)) is not None and not is_up(o)}
        self._note_unstarted(away.items())
        there = {i: routers for i, routers in breakers.items() if i not in away}
        by_owner: dict[str, list[tuple[str, RouterRef]]] = {}
        for breaker_id, router in await self._links_of(there) if there else ():
            owner = owners.owner(breaker_id)
            if owner is not None:
                by_owner.setdefault(owner, []).append((breaker_id, router))
        for owner, links in by_owner.items():
            await BreakerPeer(self._net, owner).link(links)

    async def _links_of(self, breakers: Mapping[str, set[str] | None]) -> list[tuple[str, RouterRef]]:
        """The links of breakers, by the routers named alone where all of them name some."""
        named = [some for some in breakers.values() if some is not None]
        routers = sorted(set[str]().union(*named))
        few = len(named) == len(breakers) and len(routers) <= ROUTERS_NAMED_MAX
        return await self._store.link_refs(list(breakers), routers if few else None)
