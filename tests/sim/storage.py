"""Each process's own door to the real store and the real log, through which their faults come.

An operation is one step in virtual time: it waits, is done whole, waits again, answers. It belongs to the database, not
to its caller: it may land although the caller gave up on it or died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from breaker_actors.errors import BreakersError, Unavailable
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

READS = {
    "store": frozenset(
        "access_version audit circuit deliveries held_count held_news held_projects get_mute list_mutes muted_breakers"
        " get_mapping list_mappings router_names project_rules"
        " held_counts"
        " outbox_depth standing_alerts standing_channels waiting_channels"
        " breaker_assignments breaker_briefs breaker_metadata directory_epoch"
        " events find_key get_breaker get_channel get_project get_router get_workspace has_org history_ms"
        " journal_head journals latest_event_ms link_refs list_breakers live_keys live_projects"
        " list_channels list_keys list_orgs list_projects list_routers list_workspaces operator_org pending_changes"
        " ping placements router_assignments router_links router_modes scraped_breakers stored_states"
        " stream_snapshot".split()
    ),
    "log": frozenset("read find stock size_bytes".split()),
}
QUICK_S = {"store": (0.0003, 0.004), "log": (0.0001, 0.002)}


def drive(work: Awaitable[Any]) -> Any:
    """Runs what never really waits, in one go: the stores do all their work in line here."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as done:
        return done.value
    raise AssertionError("a store operation waited for something")


class Door:
    """`real` as seen by one process. `realm` is "store" or "log"."""

    def __init__(self, world: World, process: Process, realm: str, real: Any) -> None:
        self._world = world
        self._process = process
        self._realm = realm
        self._real = real
        self._draws = world.faults.stream(f"{realm} of {process.label}")

    async def open(self) -> None:
        """The real one is open."""

    async def close(self) -> None:
        """The real one stays open for the others."""

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._real, name)
        if name == "asides":
            return method  # a part's own notes: no operation

        async def operation(*args: Any, **kwargs: Any) -> Any:
            return await self._perform(name, lambda: method(*args, **kwargs), args)

        setattr(self, name, operation)
        return operation

    async def _perform(self, name: str, work: Callable[[], Awaitable[Any]], args: tuple[Any, ...]) -> Any:
        self._process.must_live()
        world, realm = self._world, self._realm
        answer: asyncio.Future[Any] = world.loop.create_future()
        before_s, after_s = self._draws.uniform(*QUICK_S[realm]), self._draws.uniform(*QUICK_S[realm])
        if self._strikes("slow"):
            self._hit("slow")
            before_s += world.faults.span(f"{realm}_slow", 0.02, 2.5)
        fails, unknown, late, deadly = (*map(self._strikes, ("fails", "unknown", "late")), self._deadly())
        writes = name not in READS[realm]
        operation = _Operation(self, name, work, args, answer)
        operation.after_s = after_s
        operation.outlives = late
        if fails:
            self._hit("fails")
            world.later(before_s, operation.fail, "fails")
        elif writes and late:
            world.later(before_s, operation.fail, "times out")
            world.later(before_s + world.faults.span(f"{realm}_late", 0.0, 3.0), operation.do)
        else:
            operation.unknown, operation.deadly = writes and unknown, writes and deadly
            world.later(before_s, operation.do)
        return await answer

    def _strikes(self, kind: str) -> bool:
        return self._world.faults.strikes(f"{self._realm}_{kind}")

    def _hit(self, kind: str) -> None:
        self._world.faults.hit(f"{self._realm}_{kind}")

    def _deadly(self) -> bool:
        return self._world.faults.strikes("crash_mid") and self._process.kind != "client"


class _Operation:
    __slots__ = ("_answer", "_args", "_door", "_name", "_stops", "_work", "after_s", "deadly", "outlives", "unknown")

    def __init__(
        self,
        door: Door,
        name: str,
        work: Callable[[], Awaitable[Any]],
        args: tuple[Any, ...],
        answer: asyncio.Future[Any],
    ) -> None:
        self._door = door
        self._name = name
        self._work = work
        self._args = args
        self._answer = answer
        self._stops = door._world.stops
        self.after_s = 0.0
        self.unknown = self.deadly = self.outlives = False

    def fail(self, how: str) -> None:
        self._trace(how)
        self._reply(None, Unavailable(f"injected: {self._door._realm} {self._name} {how}"))

    def do(self) -> None:
        door, world, process = self._door, self._door._world, self._door._process
        for kind in (f"{door._realm}_outage", f"{door._realm}_readonly"):
            if world.down[kind] and (kind.endswith("outage") or self._name not in READS[door._realm]):
                world.faults.hit(kind)
                self.fail(f"meets {kind}")
                return
        if not process.alive and (not self.outlives or self._stops != world.stops):
            return
        if self._answer.done() or not process.alive:
            door._hit("late")
            self._trace("lands late")
        if process.replaced and world.net.actors.get(process.name) is not None:
            world.zombie_acts(process)
        result, error = None, None
        try:
            result = drive(self._work())
        except BreakersError as refused:
            error = refused
        except Exception as unexpected:
            error = unexpected
            world.fail(f"{door._realm} {self._name} raised {type(unexpected).__name__}: {unexpected}", unexpected)
        self._trace(type(error).__name__ if error else "done", *_brief(self._name, self._args, result))
        if error is None:
            world.observe(process, self._name, self._args, result)
        if self.deadly and process.alive:
            world.faults.hit("crash_mid")
            world.net.kill(process, world.faults.span("crash_mid", 0.05, 3.0))
        elif self.unknown and error is None:
            door._hit("unknown")
            self.fail("has an unknown outcome")
        else:
            world.later(self.after_s, self._reply, result, error)

    def _reply(self, result: Any, error: Exception | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)
        else:
            self._answer.set_exception(error)
            self._answer.exception()

    def _trace(self, *what: Any) -> None:
        self._door._world.trace(self._door._process.label, self._door._realm, self._name, *what)


def _brief(name: str, args: tuple[Any, ...], result: Any) -> tuple[Any, ...]:
    """What a reader of the trace wants to know of the writes that matter."""
    if name == "append":
        return tuple(
            f"{a.router_id[:4]}@{a.offset} e{a.epoch} k{a.kind} t{a.received_ms % 10**8}" for a in args[1]
        ), result
    if name == "commit":
        told = tuple(f"{c.breaker_id[:4]} #{c.transition_seq}+{len(c.events)} e{c.epoch} {c.state}" for c in args[1])
        return told, None if result is None else result[1]
    if name == "claim":
        return (tuple(f"{i[:4]} e{epoch}" for i, epoch in (result or {}).items()),)
    return ()
