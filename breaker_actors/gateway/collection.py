"""What all processes have counted, for one scrape: actors are asked, replicas bring theirs to the Directory.

Nothing here waits long for anybody: who does not answer is left out and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from breaker_actors.gateway.status import soon
from breaker_actors.messages import Counted
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import DIRECTORY, NOTIFIER, DirectoryPeer, Net

BRING_S = 5.0
"""How often a replica brings what it counts: the figures of another one are at most so old."""
ACTORS_MAX = 512


class Collection:
    """Of one replica. `named`: what it is called among them, since all replicas count under one name; asked when it is
    needed, as a replica knows it only once it runs. `journals`: the names of the Journals."""

    def __init__(
        self, net: Net, meters: Meters, named: Callable[[], str], journals: Callable[[], Sequence[str]]
    ) -> None:
        self._net = net
        self._meters = meters
        self._named = named
        self._journals = journals
        self._bringing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._bringing = asyncio.create_task(self._bring())

    async def stop(self) -> None:
        if self._bringing is not None:
            self._bringing.cancel()
            await asyncio.gather(self._bringing, return_exceptions=True)

    async def gather(self) -> tuple[list[Counted], int]:
        """What everybody has counted, and how many do not answer. Takes ANSWER_S twice at most."""
        own = self._meters.counted(self._named())
        directory = DirectoryPeer(self._net)
        overview, replicas = await asyncio.gather(soon(directory.overview()), soon(directory.exchange(own)))
        names = [*self._journals(), DIRECTORY, NOTIFIER]
        names += sorted(actor.name for actor in (overview.actors if overview is not None else ()))
        asked = names[:ACTORS_MAX]
        answers = await asyncio.gather(*(soon(self._net.counted(name)) for name in asked))
        found = [counted for counted in answers if counted is not None]
        return [*found, *(replicas if replicas is not None else [own])], len(names) - len(found)

    async def _bring(self) -> None:
        while True:
            await soon(DirectoryPeer(self._net).exchange(self._meters.counted(self._named())))
            await asyncio.sleep(BRING_S)
