"""Logs that breakers here have found damaged, and their owners' being told, so that nothing more is taken into them.

An owner that is away, or has only just begun, is told later; all are told again with each checkpoint, since one that
has started anew knows nothing of it. They are as many at most as there are routers of breakers here.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from breaker_actors.errors import BreakersError, LogDamaged
from breaker_actors.messages import FoundDamage
from breaker_actors.transport.peers import DirectoryPeer, Net, RouterPeer

TOLD_AT_ONCE = 500


class DamagedLogs:
    """By router. Nothing is told before `tell`."""

    def __init__(self, net: Net, owner_timeout_s: float) -> None:
        self._net = net
        self._owner_timeout_s = owner_timeout_s
        self._found: dict[str, FoundDamage] = {}
        self._untold: dict[str, None] = {}

    def note(self, error: LogDamaged) -> FoundDamage:
        """A log can't be read on."""
        router_id = str(error.details["router_id"])
        found = FoundDamage(router_id, str(error), int(error.details["offset"]))
        self._found.setdefault(router_id, found)
        self._untold[router_id] = None
        return found

    def renew(self) -> None:
        """All are to be told once more."""
        self._untold.update(dict.fromkeys(self._found))

    async def tell(self) -> None:
        """Tells owners of some that are untold; those that did not hear it come last next time. Logs that nobody owns
        are told of with the next checkpoint: their routers may be gone."""
        some = list(islice(self._untold, TOLD_AT_ONCE))
        if not some:
            return
        for router_id in some:
            del self._untold[router_id]
        try:
            async with asyncio.timeout(self._owner_timeout_s):
                owners = await DirectoryPeer(self._net).locate("router", some)
        except (BreakersError, TimeoutError):
            self._untold.update(dict.fromkeys(some))
            return
        by_owner: dict[str, list[FoundDamage]] = {}
        for router_id, owner in owners.items():
            by_owner.setdefault(owner, []).append(self._found[router_id])
        answers = await asyncio.gather(*(self._tell(owner, found) for owner, found in by_owner.items()))
        heard = {router_id for answer in answers for router_id in answer}
        self._untold.update(dict.fromkeys(router_id for router_id in owners if router_id not in heard))

    async def _tell(self, owner: str, found: list[FoundDamage]) -> list[str]:
        try:
            async with asyncio.timeout(self._owner_timeout_s):
                return await RouterPeer(self._net, owner).note_damage(found)
        except (BreakersError, TimeoutError):
            return []
