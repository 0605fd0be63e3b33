"""Who listens to which router: breakers held here, subscribed with their routers' owners, again after every restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from breaker_actors.errors import BreakersError
from breaker_actors.held import END_OF_LOG, Held, mark
from breaker_actors.messages import ENDING, RouterRef
from breaker_actors.net import DirectoryPeer, Net, RouterPeer

LISTENLESS_S = 3.0


class Listening:
    """Subscriptions of the breakers in `held`. `work(held)` is called when a breaker got something to read.

    `name`: the BreakerActor's, to which routers' owners deliver."""

    def __init__(
        self, name: str, net: Net, held: Mapping[str, Held], owner_timeout_s: float, work: Callable[[Held], None]
    ) -> None:
        self._name = name
        self._net = net
        self._held = held
        self._owner_timeout_s = owner_timeout_s
        self._work = work
        self._unattached: dict[tuple[str, str], float] = {}
        self._incarnations: dict[str, str] = {}

    async def attach(self, wants: Sequence[tuple[Held, str]]) -> None:
        """Subscribes (breaker, router_id) pairs; what was logged before is marked to be read."""
        by_owner: dict[str, list[tuple[Held, str]]] = {}
        for held, router_id in wants:
            router = held.routers.get(router_id)
            if router is not None and _goes_on(router) and not held.dropped:  # the link may have ended
                by_owner.setdefault(router.owner, []).append((held, router_id))
        for owner, pairs in by_owner.items():
            await self._attach_to(owner, pairs)

    async def attach_and_work(self, wants: Sequence[tuple[Held, str]]) -> None:
        await self.attach(wants)
        for held, _ in wants:
            self._work(held)

    @property
    def missing_count(self) -> int:
        """Links to routers that nobody serves now."""
        return len(self._unattached)

    def missing(self, held: Held, router_id: str) -> None:
        """A router's owner did not answer for a breaker, or does not know it: listen anew."""
        self._unattached.setdefault((held.id, router_id), asyncio.get_running_loop().time())

    async def again(self) -> None:
        """Listens anew where that failed. Who finds nobody to listen to for LISTENLESS_S reads the log: the router may
        be gone, and the breaker's own end may be the last thing in there."""
        if not self._unattached:
            return
        now = asyncio.get_running_loop().time()
        wants = []
        for (breaker_id, router_id), since in list(self._unattached.items()):
            held = self._held.get(breaker_id)
            if held is None or router_id not in held.routers:
                del self._unattached[breaker_id, router_id]
                continue
            wants.append((held, router_id))
            if now - since >= LISTENLESS_S:
                self._unattached[breaker_id, router_id] = now
                held.push(mark(router_id, END_OF_LOG))
        await self._find(sorted({router_id for _, router_id in wants}))
        await self.attach_and_work(wants)

    async def watch(self) -> None:
        """A router's owner that restarted has forgotten us, one that gave it away serves us no more, one that was
        refused by a predecessor of ours has forgotten some: whether or not anybody told."""
        owners: dict[str, list[tuple[Held, str]]] = {}
        for held in self._held.values():
            for router in filter(_goes_on, held.routers.values()):
                owners.setdefault(router.owner, []).append((held, router.router_id))
        await asyncio.gather(*(self._watch_owner(owner, wants) for owner, wants in owners.items()))

    async def _watch_owner(self, owner: str, wants: list[tuple[Held, str]]) -> None:
        counts, epochs = Counter[str](), Counter[str]()
        for held, router_id in wants:
            counts[router_id] += 1
            epochs[router_id] += held.epoch
        listeners = {router_id: (count, epochs[router_id]) for router_id, count in counts.items()}
        incarnation, lost, other = self._incarnations.get(owner), sorted(listeners), list[str]()
        with contextlib.suppress(BreakersError, TimeoutError):
            async with asyncio.timeout(self._owner_timeout_s):
                incarnation, lost, other = await RouterPeer(self._net, owner).lacking(self._name, listeners)
        again = await self._find(lost) if lost else set()
        again.update(other)
        if incarnation is not None and self._incarnations.get(owner) != incarnation:
            self._incarnations[owner] = incarnation
            again.update(listeners)
        await self.attach_and_work([want for want in wants if want[1] in again])

    async def _find(self, router_ids: Sequence[str]) -> set[str]:
        """Asks the Directory who owns these routers; answers those that have moved since we heard of them last."""
        try:
            async with asyncio.timeout(self._owner_timeout_s):
                owners = await DirectoryPeer(self._net).locate("router", router_ids)
        except (BreakersError, TimeoutError):
            return set()
        moved = set()
        for held in self._held.values():
            for router_id in [i for i in held.routers if i in owners]:
                ref = held.routers[router_id]
                if ref.owner != owners[router_id]:
                    held.routers[router_id] = msgspec.structs.replace(ref, owner=owners[router_id])
                    moved.add(router_id)
        return moved

    async def _attach_to(self, owner: str, pairs: list[tuple[Held, str]]) -> None:
        heads = [-1] * len(pairs)
        if owner:
            peer = RouterPeer(self._net, owner)
            with contextlib.suppress(BreakersError):
                if owner not in self._incarnations:
                    self._incarnations[owner] = await peer.incarnation()
                heads = await peer.attach(self._name, [(router_id, held.id, held.epoch) for held, router_id in pairs])
        for (held, router_id), head in zip(pairs, heads, strict=True):
            if router_id not in held.routers or held.dropped:
                continue
            if head < 0:
                self.missing(held, router_id)
                continue
            self._unattached.pop((held.id, router_id), None)
            if head > held.cut.get(router_id, 0):
                held.push(mark(router_id, head))


def _goes_on(router: RouterRef) -> bool:
    """Whether anything can still come over a link."""
    return router.until_offset in (None, ENDING)
