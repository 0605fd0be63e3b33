"""Calls between processes, with everything that can become of one: late, lost on either way, run twice, overtaken,
its callee dead half way, or answered by a zombie that somebody else has replaced."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.transport.peers import Spawned
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

CALL_S = 15.0
"""Nobody waits longer for an answer (as in `breaker_actors/ray_runtime/actors.py`)."""
HOP_S = (0.0002, 0.003)


class Wire:
    """The Net of one process."""

    def __init__(self, net: SimNet, process: Process) -> None:
        self._net = net
        self._process = process

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        return await self._net.call(self._process, actor, method, *args)

    def spawn(self, kind: Spawned, name: str) -> None:
        self._process.must_live()
        self._net.spawn(kind, name)


class _Call:
    __slots__ = ("answer", "caller", "method", "number", "replies", "target", "wire")

    def __init__(
        self, caller: Process, target: Process, method: str, wire: bytes, answer: asyncio.Future[Any], number: int
    ) -> None:
        self.caller = caller
        self.target = target
        self.method = method
        self.wire = wire
        self.answer = answer
        self.number = number
        self.replies = True


class SimNet:
    """Actors by name. `start(kind, name)` makes a new, empty process; a killed one comes back as Ray brings it."""

    def __init__(self, world: World, start: Callable[[str, str], Process]) -> None:
        self._world = world
        self._start = start
        self._loop = world.loop
        self._draws = world.faults.stream("net")
        self._numbers = itertools.count()
        self._arrived: dict[tuple[str, str], int] = {}
        self._stuck: dict[tuple[str, str], Process] = {}
        self._known: set[str] = set()
        self._unnoticed: list[asyncio.Future[Any]] = []
        self.actors: dict[str, Process] = {}
        self.closed = False

    # life and death

    def spawn(self, kind: str, name: str) -> None:
        if name not in self._known:
            self._known.add(name)
            self._world.later(self._draws.uniform(0.02, 0.5), self._begin, kind, name)

    def _begin(self, kind: str, name: str) -> None:
        if not self.closed:
            self.actors[name] = self._start(kind, name)

    def kill(self, process: Process, back_s: float) -> None:
        """Ends a process at once; unless it was replaced before, the next one of its name comes up after a while."""
        if not process.alive:
            return
        self._world.trace("killed", process.label, f"back in {back_s:.3f}")
        self._world.look_back(process)
        process.die()
        for key in [k for k, stuck in self._stuck.items() if stuck is process]:
            del self._stuck[key]
        if self.actors.get(process.name) is process:
            del self.actors[process.name]
            self._world.later(back_s, self._begin, process.kind, process.name)

    def replace(self, process: Process, after_s: float, callers: list[Process]) -> None:
        """The process goes on, but its name is given to a new one; some callers still hold the old one's handle."""
        if self.actors.get(process.name) is not process or not process.up.is_set():
            return
        process.replaced = True
        del self.actors[process.name]
        for caller in callers:
            if caller is not process and self._draws.random() < 0.5:
                self._stuck[caller.label, process.name] = process
        self._world.trace("replaced", process.label, f"in {after_s:.3f}")
        self._world.later(after_s, self._begin, process.kind, process.name)

    # calls

    async def call(self, caller: Process, actor: str, method: str, *args: Any) -> Any:
        caller.must_live()
        faults, wire = self._world.faults, pickle.dumps(args)
        answer: asyncio.Future[Any] = self._loop.create_future()
        limit = self._loop.call_later(CALL_S, self._fail, answer, f"{actor} takes too long")
        target = self._stuck.get((caller.label, actor)) or self.actors.get(actor)
        if target is None:
            self._world.later(self._draws.uniform(0.001, 0.3), self._fail, answer, f"{actor} is not there")
        elif faults.strikes("lost_request"):
            faults.hit("lost_request")
            self._world.trace("lost request", caller.label, actor, method)
            self._lose(answer, "lost_request", f"{actor} was not reached")
        else:
            self._send(_Call(caller, target, method, wire, answer, next(self._numbers)))
        try:
            return pickle.loads(await answer)
        finally:
            limit.cancel()

    def _send(self, call: _Call) -> None:
        faults = self._world.faults
        hop_s = self._draws.uniform(*HOP_S)
        if "reorder" in faults.standing and faults.active:
            hop_s += self._draws.random() ** 4 * 0.05
        if faults.strikes("slow_call"):
            faults.hit("slow_call")
            hop_s += faults.span("slow_call", 0.05, 3.0)
        if faults.strikes("lost_reply"):
            call.replies = False
        self._world.later(hop_s, self._arrive, call)
        if faults.strikes("duplicate") and call.caller.kind != "client":  # HTTP does not do that
            twin = _Call(call.caller, call.target, call.method, call.wire, self._loop.create_future(), call.number)
            twin.replies = False
            self._world.later(hop_s + faults.span("duplicate", 0.0, 1.0), self._arrive, twin, True)

    def _arrive(self, call: _Call, twin: bool = False) -> None:
        target = call.target
        if not target.alive:
            self._die_slowly(call)
            return
        if twin:
            self._world.faults.hit("duplicate")
        key = (call.caller.label, target.label)
        faults = self._world.faults
        overtaken = call.number < self._arrived.get(key, -1) and not twin
        if overtaken and "reorder" in faults.standing and faults.active:
            faults.hit("reorder")
        self._arrived[key] = max(call.number, self._arrived.get(key, -1))
        if target.replaced and self.actors.get(target.name) is not None:
            self._world.zombie_acts(target)
        if self._world.calls_traced:
            self._world.trace("call", call.caller.label, target.label, call.method, "again" if twin else "")
        mark = next(self._numbers)
        target.serving[mark] = lambda: self._die_slowly(call)
        target.run(self._serve(call, mark))

    async def _serve(self, call: _Call, mark: int) -> None:
        target, world = call.target, self._world
        await target.up.wait()
        try:
            result = await getattr(target.part, call.method)(*pickle.loads(call.wire))
            reply: bytes | BaseException = pickle.dumps(result)
        except BreakersError as error:
            reply = pickle.loads(pickle.dumps(error))
        except Exception as error:
            if target.alive:
                world.fail(f"{call.method} of {target.label} raised {type(error).__name__}: {error}", error)
            reply = Unavailable(f"{type(error).__name__} in an actor")
        if not target.alive:
            return
        if world.calls_traced:
            shown = reply if isinstance(reply, BaseException) else result
            world.trace("answer", call.caller.label, target.label, call.method, str(shown)[:200])
        target.serving.pop(mark, None)
        if not call.replies:
            if not call.answer.done():
                world.faults.hit("lost_reply")
            self._lose(call.answer, "lost_reply", "no answer came")
        else:
            self._world.later(self._draws.uniform(*HOP_S), self._answer, call, reply)

    @staticmethod
    def _answer(call: _Call, reply: bytes | BaseException) -> None:
        if call.answer.done():
            return
        if isinstance(reply, bytes):
            call.answer.set_result(reply)
        else:
            call.answer.set_exception(reply)
            call.answer.exception()  # a caller that is gone does not ask

    def _fail(self, answer: asyncio.Future[Any], text: str) -> None:
        if not answer.done():
            answer.set_exception(Unavailable(text))
            answer.exception()

    def _die_slowly(self, call: _Call) -> None:
        """Ray tells callers of a dead actor after a while."""
        wait_s = self._draws.uniform(0.02, 1.6)
        self._world.later(wait_s, self._fail, call.answer, f"{call.target.name} died")

    def _lose(self, answer: asyncio.Future[Any], kind: str, text: str) -> None:
        """Mostly the connection is seen to break; sometimes nobody notices before the time is over, or all is well."""
        seconds = self._world.faults.span(kind, 0.0, 1.0)
        if seconds < 0.9 or not self._world.faults.active:
            self._world.later(0.01 + seconds, self._fail, answer, text)
        else:
            self._unnoticed.append(answer)

    def heal(self) -> None:
        """Connections that are broken are seen to be."""
        for answer in self._unnoticed:
            self._world.later(self._draws.uniform(0.01, 1.0), self._fail, answer, "the connection was broken")
        self._unnoticed.clear()
