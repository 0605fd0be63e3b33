"""Supervision of actors: starts those that are assigned something, and finds those that came up, or came back.

An actor owns nothing until it has said hello and was assigned. One that gave no answer is asked what it holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping

import structlog

from breaker_actors.directory.membership import report_of
from breaker_actors.directory.placement import Placer, grouped
from breaker_actors.errors import BreakersError
from breaker_actors.transport.peers import ActorKind, Net

log = structlog.get_logger()


class Supervision:
    """Which actors run, and whether they hold what is theirs."""

    def __init__(self, placer: Placer, net: Net) -> None:
        self._placer = placer
        self._membership = placer.membership
        self._net = net
        self._missed: dict[str, list[tuple[str, int]]] = {}
        self._came_up = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = {}

    def wake(self, kind: ActorKind, name: str) -> None:
        """Starts an actor unless it runs. A new process says hello; one that runs already is asked what it holds."""
        self._membership.starting(kind, name)
        self._net.spawn(kind, name)
        self._placer.tasks.spawn(self.resume(kind, name))

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        """A process is up and empty: everything placed there is given to it under new epochs."""
        async with self.lock(name):
            if self._membership.is_up(name, incarnation):
                return
            await self._bring_up(kind, name, incarnation, self._placer.assignments[kind].list_for(name))
        self._notify_came_up()
        log.info("actor_up", actor=name, incarnation=incarnation, holds=self._placer.assignments[kind].count(name))

    async def resume(self, kind: ActorKind, name: str) -> None:
        """An actor that outlived the last Directory, or a lost call, keeps what it holds under the stored epochs."""
        report = await report_of(self._net, kind, name)
        if report is None:
            return  # it says hello when it is up
        incarnation, owned = report.incarnation, report.epochs
        async with self.lock(name):
            if not self._membership.is_up(name):
                missed = [i for i, _ in self._missing(kind, name, owned)]
                with contextlib.suppress(BreakersError):
                    await self._bring_up(kind, name, incarnation, missed)
                    await self._placer.let_go(kind, name, self._moved_on(kind, name, owned))
        self._notify_came_up()

    async def check_all(self) -> None:
        """Checks what every actor that is up owns. What it was given may have reached a predecessor that still runs,
        and what it owned it may have dropped: then it counts as lost, and `resume` gives it what it misses."""
        kinds: tuple[ActorKind, ...] = ("router", "breaker")
        up = [(kind, name) for kind in kinds for name in self._membership.up(kind)]
        await asyncio.gather(*(self._check(kind, name) for kind, name in up))

    async def _check(self, kind: ActorKind, name: str) -> None:
        report = await report_of(self._net, kind, name)
        if report is None or not self._membership.is_up(name):
            return  # whoever calls it for something notices
        incarnation, owned = report.incarnation, report.epochs
        missed = self._missing(kind, name, owned)
        # one look may fall between a claim and its being told
        if not self._membership.is_up(name, incarnation) or (missed and missed == self._missed.get(name)):
            log.info("actor_misses", actor=name, things=len(missed))
            self._membership.lost(name)
        self._missed[name] = missed
        if kind == "breaker":
            await self._placer.let_go(kind, name, self._moved_on(kind, name, owned))

    def _moved_on(self, kind: ActorKind, name: str, owned: Iterable[str]) -> list[str]:
        """What an actor holds that is somebody else's: nobody told it, or that was in vain."""
        assignments = self._placer.assignments[kind]
        return [i for i in owned if assignments.owner(i) not in (None, name)]

    def _missing(self, kind: ActorKind, name: str, owned: Mapping[str, int]) -> list[tuple[str, int]]:
        """What an actor should hold under which epochs, and does not."""
        assignments = self._placer.assignments[kind]
        return [(i, assignments.epoch(i)) for i in assignments.list_for(name) if owned.get(i) != assignments.epoch(i)]

    async def until_up(self, names: Collection[str]) -> None:
        """Returns when none of these actors is only starting; those that are away are not waited for."""
        while any(map(self._membership.is_starting, names)):
            await self._came_up.wait()

    async def _bring_up(self, kind: ActorKind, name: str, incarnation: str, ids: list[str]) -> None:
        """An actor counts as up once it was given what is missing there; a failure is tried again by `resume`."""
        self._membership.came_up(kind, name, incarnation)
        try:
            await self._placer.assign(kind, name, ids)
        except BaseException:
            self._membership.lost(name)
            raise

    def lock(self, name: str) -> asyncio.Lock:
        """Held while an actor is being given what it missed."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _notify_came_up(self) -> None:
        came_up, self._came_up = self._came_up, asyncio.Event()
        came_up.set()

    async def place_new(self, kind: ActorKind, things: Iterable[str]) -> None:
        """Places what nobody owns yet; actors are started and told in the background."""
        assignments = self._placer.assignments[kind]
        owners = {}
        for thing in things:
            if assignments.owner(thing) is None:
                owners[thing] = self._placer.choose(kind)
                assignments.assign(thing, owners[thing])
        try:
            claimed = await self._placer.claim(kind, owners)
        except BaseException:
            for thing in owners:
                if not assignments.epoch(thing):
                    assignments.forget(thing)
            raise
        for owner, ids in grouped(claimed, owners).items():
            if self._membership.is_up(owner):
                await self._placer.give(kind, owner, ids)
            else:
                self.wake(kind, owner)
