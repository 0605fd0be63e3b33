"""Changed projects on their way to the replicas: each Journal is told of each, by itself, until it has heard. A replica
that hears one of them knows; one Journal that is away holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from breaker_actors.errors import BreakersError
from breaker_actors.telemetry.guard import Background
from breaker_actors.transport.peers import JournalPeer, Net, journal_name

log = structlog.get_logger()


class Announcements:
    """What is left to tell, for each Journal there is."""

    def __init__(self, net: Net, tasks: Background) -> None:
        self._net = net
        self._tasks = tasks
        # projects not announced yet, by shard; bounded by the projects there are
        self._waiting: list[set[str]] = []
        self._telling: dict[int, asyncio.Task[None]] = {}
        self._noted = 0
        # up to which number each has heard
        self._heard: list[int] = []
        self.extend(1)

    def extend(self, journals: int) -> None:
        """So many Journals there are, or more. Whoever listens to a new one looks at everything first."""
        for _ in range(len(self._waiting), journals):
            self._waiting.append(set())
            self._heard.append(self._noted)

    def note(self, project_ids: Iterable[str]) -> None:
        found = set(project_ids)
        self._noted += 1
        for waiting in self._waiting:
            waiting |= found

    def is_left(self) -> bool:
        """Whether a Journal has to be told, and is not being told."""
        return any(waiting and shard not in self._telling for shard, waiting in enumerate(self._waiting))

    async def tell(self) -> None:
        """Has all of them told; returns when one has heard what is noted up to now, or none can be told. What is left
        is tried again with the next call."""
        wanted, left = self._noted, set(range(len(self._waiting)))
        for shard in left - self._telling.keys():
            if self._waiting[shard]:
                self._begin(shard)
        while left and max(self._heard) < wanted:
            tasks = {shard: self._telling.get(shard) or self._begin(shard) for shard in left}
            heard = list(self._heard)
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            left -= {shard for shard, task in tasks.items() if task.done() and self._heard[shard] == heard[shard]}

    def _begin(self, shard: int) -> asyncio.Task[None]:
        task = self._telling[shard] = self._tasks.spawn(self._tell(shard))
        return task

    async def _tell(self, shard: int) -> None:
        """All that waits for one Journal. What could not be announced waits on."""
        projects, self._waiting[shard], noted = self._waiting[shard], set(), self._noted
        try:
            await JournalPeer(self._net, journal_name(shard)).announce("config", sorted(projects))
            self._heard[shard] = noted
        except BreakersError as error:
            log.warning("config_not_announced", journal=journal_name(shard), error=str(error))
        finally:
            if self._heard[shard] != noted:
                self._waiting[shard] |= projects
            self._telling.pop(shard, None)
