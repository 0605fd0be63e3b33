"""Subscriptions of the breakers hosted here with their routers' owners: made, checked, and renewed after a restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from breaker_actors.breaker.hosted import END_OF_LOG, HostedBreaker, catch_up_marker, relink
from breaker_actors.breaker.lag import figures
from breaker_actors.errors import BreakersError
from breaker_actors.messages import ENDING, BreakerFigures, RouterRef, SubscribeRequest, Subscribers
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import DirectoryPeer, Net, RouterPeer

UNSUBSCRIBED_S = 3.0

Want = tuple[HostedBreaker, str]
"""A breaker, and the id of a router whose entries it wants."""


class Subscriptions:
    """Subscriptions of the breakers in `hosted`; what they have to read then waits in their inboxes.

    `name`: the BreakerActor's, to which routers' owners deliver."""

    def __init__(self, name: str, net: Net, hosted: Mapping[str, HostedBreaker], owner_timeout_s: float) -> None:
        self._name = name
        self._net = net
        self._hosted = hosted
        self._owner_timeout_s = owner_timeout_s
        self._unsubscribed: dict[tuple[str, str], float] = {}
        self._incarnations: dict[str, str] = {}

    async def subscribe(self, wants: Sequence[Want]) -> None:
        """Subscribes (breaker, router_id) pairs; what was logged before is marked to be read."""
        by_owner: dict[str, list[Want]] = {}
        for hosted, router_id in wants:
            router = hosted.routers.get(router_id)
            if router is not None and _goes_on(router) and not hosted.dropped:  # the link may have ended
                by_owner.setdefault(router.owner, []).append((hosted, router_id))
        for owner, pairs in by_owner.items():
            await self._subscribe_at(owner, pairs)

    async def figures(self, now_ms: int) -> BreakerFigures:
        """How far the breakers are behind."""
        return await figures(self._net, list(self._hosted.values()), len(self._unsubscribed), now_ms)

    def look(self, meters: Meters) -> None:
        """Tells how many links there are to routers that nobody serves now (see Meters.watch)."""
        meters.gauge("breakers_unattached", len(self._unsubscribed))

    def mark_missing(self, hosted: HostedBreaker, router_id: str) -> None:
        """Notes that a router's owner did not answer for a breaker, or does not know it: `retry` subscribes anew."""
        self._unsubscribed.setdefault((hosted.id, router_id), asyncio.get_running_loop().time())

    async def to_retry(self) -> list[Want]:
        """Returns the subscriptions that are missing. A breaker that has missed one for UNSUBSCRIBED_S reads the log:
        the router may be gone, and the breaker's own end may be the last entry."""
        if not self._unsubscribed:
            return []
        now = asyncio.get_running_loop().time()
        wants = []
        for (breaker_id, router_id), since in list(self._unsubscribed.items()):
            hosted = self._hosted.get(breaker_id)
            if hosted is None or router_id not in hosted.routers:
                del self._unsubscribed[breaker_id, router_id]
                continue
            wants.append((hosted, router_id))
            if now - since >= UNSUBSCRIBED_S:
                self._unsubscribed[breaker_id, router_id] = now
                hosted.push(catch_up_marker(router_id, END_OF_LOG))
        await self._refresh_owners(sorted({router_id for _, router_id in wants}))
        return wants

    def by_owner(self) -> Mapping[str, list[Want]]:
        """Returns all subscriptions that there should be, by the routers' owners."""
        owners: dict[str, list[Want]] = {}
        for hosted in self._hosted.values():
            for router in filter(_goes_on, hosted.routers.values()):
                owners.setdefault(router.owner, []).append((hosted, router.router_id))
        return owners

    async def to_renew(self, owner: str, wants: Sequence[Want]) -> list[Want]:
        """Returns which of an owner's subscriptions it does not have: it restarted, or gave the router away, or was
        refused by a predecessor of this process."""
        counts, epochs = Counter[str](), Counter[str]()
        for hosted, router_id in wants:
            counts[router_id] += 1
            epochs[router_id] += hosted.epoch
        expected = {router_id: Subscribers(count, epochs[router_id]) for router_id, count in counts.items()}
        try:
            async with asyncio.timeout(self._owner_timeout_s):
                check = await RouterPeer(self._net, owner).check_subscriptions(self._name, expected)
        except (BreakersError, TimeoutError):
            moved = await self._refresh_owners(sorted(expected))
            return [want for want in wants if want[1] in moved]
        renew = await self._refresh_owners(check.not_owned) if check.not_owned else set()
        renew.update(check.mismatched)
        if self._incarnations.get(owner) != check.incarnation:
            self._incarnations[owner] = check.incarnation
            renew.update(expected)
        return [want for want in wants if want[1] in renew]

    async def _refresh_owners(self, router_ids: Sequence[str]) -> set[str]:
        """Asks the Directory who owns these routers; returns those that have moved since it was asked last."""
        try:
            async with asyncio.timeout(self._owner_timeout_s):
                owners = await DirectoryPeer(self._net).locate("router", router_ids)
        except (BreakersError, TimeoutError):
            return set()
        moved = set()
        for hosted in self._hosted.values():
            for router_id in [i for i in hosted.routers if i in owners]:
                ref = hosted.routers[router_id]
                if ref.owner != owners[router_id]:
                    relink(hosted, msgspec.structs.replace(ref, owner=owners[router_id]))
                    moved.add(router_id)
        return moved

    async def _subscribe_at(self, owner: str, pairs: list[Want]) -> None:
        heads: list[int | None] = [None] * len(pairs)
        if owner:
            peer = RouterPeer(self._net, owner)
            with contextlib.suppress(BreakersError):
                if owner not in self._incarnations:
                    self._incarnations[owner] = await peer.incarnation()
                heads = await peer.subscribe(
                    self._name,
                    [SubscribeRequest(i, hosted.id, hosted.epoch, hosted.applied_offsets[i]) for hosted, i in pairs],
                )
        for (hosted, router_id), head in zip(pairs, heads, strict=True):
            if router_id not in hosted.routers or hosted.dropped:
                continue
            if head is None:
                self.mark_missing(hosted, router_id)
                continue
            self._unsubscribed.pop((hosted.id, router_id), None)
            if head > hosted.applied_offsets.get(router_id, 0):
                hosted.push(catch_up_marker(router_id, head))


def _goes_on(router: RouterRef) -> bool:
    """Whether anything can still come over a link."""
    return router.until_offset in (None, ENDING)
