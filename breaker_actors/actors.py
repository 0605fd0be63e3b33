"""Ray around the plain parts: actor classes, names, handles, the Net over them. Only this file and
metrics.py import ray here.

Every actor is named, detached within the cluster, restarted for ever and never retried by Ray (lanes retry by append
id). An actor that Ray starts or restarts owns nothing; it says hello to the Directory, which assigns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from breaker_actors import logs, metrics
from breaker_actors.clock import SystemClock
from breaker_actors.directory import DirectoryHost
from breaker_actors.errors import BreakersError, SchemaMismatch, Unavailable
from breaker_actors.gateway import ActorGateway
from breaker_actors.host import BreakerHost
from breaker_actors.journal import JournalHost
from breaker_actors.meters import Meters
from breaker_actors.net import DIRECTORY, ActorKind, DirectoryPeer, journal_name
from breaker_actors.router import RouterHost
from breaker_actors.settings import Settings
from breaker_actors.stores.opening import make_log, make_store
from breaker_actors.upkeep import Upkeep

NAMESPACE = "breakers"
HELLO_RETRY_S = 0.2
CALL_S = 15.0
OPTIONS: dict[str, Any] = {
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "get_if_exists": True,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 10_000,
    "num_cpus": 0,
    "scheduling_strategy": "SPREAD",
}


class RayNet:
    """Calls actors of this cluster by name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._handles: dict[str, Any] = {}

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        try:
            handle = self._handles.get(actor)
            if handle is None:
                handle = self._handles[actor] = await asyncio.to_thread(ray.get_actor, actor, NAMESPACE)
            async with asyncio.timeout(CALL_S):
                return await handle.call.remote(method, *args)
        except TimeoutError:
            raise Unavailable(f"{actor} does not answer") from None
        except RayTaskError as error:
            raise _cause(error) from None
        except (RayError, ValueError) as error:
            # ValueError: no actor of that name (yet). RayActorError: it may or may not have run.
            if isinstance(error, RayActorError | ValueError):
                self._handles.pop(actor, None)
            raise Unavailable(f"{actor} does not answer") from None

    def spawn(self, kind: ActorKind, name: str) -> None:
        actor = RouterActor if kind == "router" else BreakerActor
        self._handles[name] = _start(actor, name, name, self._settings)


def _start(actor: type[_Wrapped], name: str, *args: Any) -> Any:
    """The handle of a named actor, started unless it runs."""
    return ray.remote(actor).options(name=name, **OPTIONS).remote(*args)


def _cause(error: RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, BreakersError) else Unavailable(f"{type(cause).__name__} in an actor")


class _Wrapped:
    """An actor process: one plain part, reached through `call`."""

    _part: Any

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self._part, method)(*args)

    def _observe(self, settings: Settings) -> None:
        """From here on this process logs, and exports what the part counts."""
        meters: Meters = self._part.meters
        logs.configure(meters.actor, meters=meters)
        self._exporting = metrics.start(meters, settings)


class BreakerActor(_Wrapped):
    async def __init__(self, name: str, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        incarnation = uuid4().hex
        net = RayNet(settings)
        self._part = BreakerHost(name, incarnation, make_log(settings), net, SystemClock(), settings)
        self._observe(settings)
        self._part.start()
        self._hello = asyncio.create_task(_say_hello(net, "breaker", name, incarnation))


class RouterActor(_Wrapped):
    async def __init__(self, name: str, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        incarnation = uuid4().hex
        net = RayNet(settings)
        self._part = RouterHost(name, incarnation, make_log(settings), net, SystemClock(), settings)
        self._observe(settings)
        self._part.start()
        self._hello = asyncio.create_task(_say_hello(net, "router", name, incarnation))


class JournalActor(_Wrapped):
    async def __init__(self, shard: int, settings: Settings) -> None:  # type: ignore[misc]
        store = make_store(settings)
        await _until_up(store.open)
        self._part = JournalHost(shard, store, settings)
        self._observe(settings)
        await _until_up(self._part.start)


class DirectoryActor(_Wrapped):
    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        store = make_store(settings)
        await _until_up(store.open)
        net = RayNet(settings)
        self._part = DirectoryHost(store, net, SystemClock(), settings, lambda: budgets(settings))
        self._started = asyncio.create_task(self._part.start())
        self._upkeep = Upkeep(store, make_log(settings), net, SystemClock(), settings)
        self._upkeep.start()


async def _until_up(step: Callable[[], Awaitable[None]]) -> None:
    """Ray does not restart an actor whose constructor raised, so a constructor waits for the store instead."""
    while True:
        try:
            return await step()
        except SchemaMismatch:
            raise
        except BreakersError:
            await asyncio.sleep(HELLO_RETRY_S)


async def _say_hello(net: RayNet, kind: ActorKind, name: str, incarnation: str) -> None:
    while True:
        try:
            await DirectoryPeer(net).hello(kind, name, incarnation)
            return
        except BreakersError:
            await asyncio.sleep(HELLO_RETRY_S)


async def budgets(settings: Settings) -> dict[ActorKind, int]:
    """How many actors of each kind there may be in this cluster now (design.md section 2, Placement)."""
    try:
        resources = await asyncio.to_thread(ray.cluster_resources)
    except RayError:
        raise Unavailable("the cluster does not say how large it is") from None
    cpus = int(resources.get("CPU", 1))
    return {
        "breaker": settings.breaker_actors or max(8, 2 * cpus),
        "router": settings.router_actors or max(1, cpus // 2),
    }


def launch(settings: Settings) -> None:
    """Starts the named actors of the service on the Ray cluster this process is connected to; returns at once."""
    _start(JournalActor, journal_name(0), 0, settings)
    _start(DirectoryActor, DIRECTORY, settings)


def connect(settings: Settings, meters: Meters | None = None) -> ActorGateway:
    """The Gateway of a process inside the cluster; `await gateway.open()` before use."""
    return ActorGateway(make_store(settings), RayNet(settings), SystemClock(), settings, meters)
