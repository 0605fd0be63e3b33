"""How many samples the windows of a project, and of all, hold in one BreakerActor, and memory given back when they hold
fewer.

A sample costs some 20 bytes in every window it lies in: one router with 400 breakers keeps 400 of it. Beyond a
project's share its largest windows are cut to a common size, oldest samples first: counted as truncated, like those
beyond window_samples_max. Beyond what all may hold the organisations that hold most are cut to a common size likewise,
however many projects they have, and within each the largest projects. What was cut is not in a replay's windows.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Collection, Sequence

from breaker_actors.breaker.hosted import HostedBreaker, reading_rows
from breaker_actors.breaker.slices import Slices
from breaker_actors.messages import ProjectShare
from breaker_actors.telemetry.meters import Meters

ROOM = 0.9
"""To so much of the share a project is cut, so that it is not cut again at once."""
LIFTED = 0.5
"""Below so much of the share a project's windows are bounded by window_samples_max alone again."""
RETURNED_MIN = 1_000_000
"""Samples gone before memory is given back to the system: about 20 MB."""


class WindowShares:
    """The windows of the breakers held by one process, looked at now and then: `check` is to be called so."""

    def __init__(self, window_max: int, project_max: int, all_max: int, slices: Slices) -> None:
        self._slices = slices
        self._window_max, self._project_max, self._all_max = window_max, project_max, all_max
        # of each project of an organisation: less while all together hold too much
        self._rooms: dict[str, int] = {}
        self._caps: dict[str, int] = {}
        self._most = 0
        self._used: dict[str, int] = {}
        self._orgs: dict[str, str] = {}

    @property
    def samples(self) -> int:
        """What all windows held when they were looked at last."""
        return sum(self._used.values())

    def look(self, meters: Meters) -> None:
        """Tells how things stood when the windows were looked at last (see Meters.watch)."""
        meters.gauge("breakers_window_samples", self.samples)
        meters.gauge("breakers_window_shares_full", len(self.limits()))

    async def check(self, breakers: Collection[HostedBreaker]) -> None:
        """Cuts the windows of projects beyond their share, in slices; gives memory back when much has gone."""
        if await self._cut_all(breakers):
            await asyncio.to_thread(give_back)

    async def _cut_all(self, breakers: Collection[HostedBreaker]) -> bool:
        windows: dict[str, list[tuple[int, HostedBreaker]]] = {}
        for hosted in breakers:
            if hosted.breaker is not None and (n := hosted.breaker.samples_held):
                windows.setdefault(hosted.project_id, []).append((n, hosted))
        self._used = {project_id: sum(n for n, _ in some) for project_id, some in windows.items()}
        self._orgs = {project_id: some[0][1].org_id for project_id, some in windows.items()}
        self._caps = {project_id: cap for project_id, cap in self._caps.items() if project_id in windows}
        self._share_out()
        for project_id, some in windows.items():
            await self._bound(project_id, some)
        self._most = max(self._most, self.samples)
        if self._most - self.samples < RETURNED_MIN:
            return False
        self._most = self.samples
        return True

    def _share_out(self) -> None:
        """Says what a project may hold: so much that all organisations together, each with no more than a common size,
        have room, and within one that has more its projects likewise."""
        held: dict[str, list[int]] = {}
        for project_id, n in self._used.items():
            held.setdefault(self._orgs[project_id], []).append(min(n, self._project_max))
        together = [sum(some) for some in held.values()]
        if sum(together) > self._all_max:
            most = level(together, int(ROOM * self._all_max))
            self._rooms = {org_id: level(some, most) for org_id, some in held.items() if sum(some) > most}
        elif sum(together) < LIFTED * self._all_max:
            self._rooms = {}

    def _room(self, project_id: str) -> int:
        return min(self._project_max, self._rooms.get(self._orgs.get(project_id, ""), self._project_max))

    async def _bound(self, project_id: str, windows: Sequence[tuple[int, HostedBreaker]]) -> None:
        used, room = self._used[project_id], self._room(project_id)
        if used > room:
            self._caps[project_id] = level([n for n, _ in windows], int(ROOM * room))
        elif used < LIFTED * room and project_id in self._caps:
            del self._caps[project_id]
            await self._cut(windows, self._window_max)
        if project_id in self._caps:
            self._used[project_id] -= await self._cut(windows, self._caps[project_id])

    async def _cut(self, windows: Sequence[tuple[int, HostedBreaker]], samples_max: int) -> int:
        """Bounds windows of a project; answers how many samples went."""
        gone, work = 0, self._slices.work([hosted for _, hosted in windows])
        for n, hosted in windows:
            assert hosted.breaker is not None
            if cut := hosted.breaker.bound(min(samples_max, self._window_max)):
                gone, hosted.dirty = gone + cut, True
                await work.worked(n + reading_rows(hosted))
        return gone

    def limits(self) -> tuple[ProjectShare, ...]:
        """The projects whose windows are cut."""
        return tuple(
            ProjectShare(
                project_id=project_id,
                limit="window_samples",
                used=self._used.get(project_id, 0),
                most=self._room(project_id),
            )
            for project_id in self._caps
        )


def level(sizes: Sequence[int], room: int) -> int:
    """The size to which the largest have to be cut so that all together take `room` at most; 1 at least."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left >= room:
            break
        room -= size
        left -= 1
    return max(1, room // max(1, left))


def give_back() -> None:
    """Returns free memory of this process to the system, where the C library can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return
