"""Ray around the plain parts: actor classes, names, handles, the Net over them. Beside it only fleet.py
and metrics.py import ray here.

Every actor is named, detached within the cluster, restarted for ever and never retried by Ray (lanes retry by append
id). An actor that Ray starts or restarts owns nothing; it says hello to the Directory, which assigns.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import ray
import structlog
from pydantic import SecretStr
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util import list_named_actors
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from breaker_actors.breaker.host import BreakerHost
from breaker_actors.clock import SteadyClock, SystemClock, real_time, share_finely
from breaker_actors.directory.host import DirectoryHost
from breaker_actors.directory.retention import Retention
from breaker_actors.errors import BreakersError, Invalid, SchemaMismatch, Unavailable
from breaker_actors.journal.host import JournalHost
from breaker_actors.messages import Address, ClusterTopology, Counted, Node, Process
from breaker_actors.notify.nudge import Nudge
from breaker_actors.persistence import make_log, make_store
from breaker_actors.router.host import RouterHost
from breaker_actors.settings import Settings
from breaker_actors.telemetry import logs
from breaker_actors.telemetry import ray_export as metrics
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import ActorKind, DirectoryPeer, Spawned, shard_of
from breaker_actors.transport.rpc import Listener, Wires, encrypts, may_carry

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
}
HEAD = "node:__internal_head__"
REPLICA = f"SERVE_REPLICA::{NAMESPACE}#"
# Changes of these concern the replicas only.
_NOT_THE_ACTORS = {"host", "port", "replicas", "health_token", "history_url", "bootstrap_admin_key"}


class RayNet:
    """Calls actors of this cluster by name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._handles: dict[str, Any] = {}
        self._spawning: set[asyncio.Task[None]] = set()
        self._wires = Wires(self._find)

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        wire = self._wires.get(actor)
        if wire is None:
            return await self._ask(actor, lambda handle: handle.call.remote(method, *args))
        try:
            async with asyncio.timeout(CALL_S):
                return await self._wires.call(actor, wire, method, args)
        except TimeoutError:
            raise Unavailable(f"{actor} does not answer") from None

    async def _find(self, actor: str) -> Address | None:
        """Where an actor listens; those of an earlier release do not."""
        try:
            found: Address | None = await self._ask(actor, lambda handle: handle.address.remote())
        except AttributeError:
            return None
        return found

    async def process(self, actor: str) -> Process:
        found: Process = await self._ask(actor, lambda handle: handle.process.remote())
        return found

    async def counted(self, actor: str) -> Counted:
        try:
            found: Counted = await self._ask(actor, lambda handle: handle.counted.remote())
        except AttributeError:  # of an earlier release
            raise Unavailable(f"{actor} does not tell what it counts") from None
        return found

    async def topology(self) -> ClusterTopology:
        try:
            return await asyncio.to_thread(site_of_cluster)
        except RayError:
            raise Unavailable("the cluster does not say what it consists of") from None

    async def _ask(self, actor: str, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                handle = self._handles.get(actor)
                if handle is None:
                    handle = self._handles[actor] = await asyncio.to_thread(ray.get_actor, actor, NAMESPACE)
                return await ask(handle)
        except TimeoutError:
            raise Unavailable(f"{actor} does not answer") from None
        except RayTaskError as error:
            raise _cause(error) from None
        except (RayError, ValueError) as error:
            # ValueError: no actor of that name (yet). RayActorError: it may or may not have run.
            if isinstance(error, RayActorError | ValueError):
                self._handles.pop(actor, None)
            raise Unavailable(f"{actor} does not answer") from None

    def spawn(self, kind: Spawned, name: str) -> None:
        actor, first = (JournalActor, shard_of(name)) if kind == "journal" else (SEATED[kind], name)
        task = asyncio.create_task(self._spawn(actor, name, first))
        self._spawning.add(task)
        task.add_done_callback(self._spawning.discard)

    async def _spawn(self, actor: type[_Wrapped], name: str, first: int | str) -> None:
        """On a thread: Ray asks its control service, and waits while that is away. Who wants the actor asks again."""
        with contextlib.suppress(RayError, ValueError):
            await asyncio.to_thread(start, actor, name, first, self._settings)


def start(actor: type[_Wrapped], name: str, *args: Any) -> Any:
    """The handle of a named actor, started unless it runs; the settings come last."""
    return ray.remote(actor).options(name=name, scheduling_strategy=_strategy(name, args[-1]), **OPTIONS).remote(*args)


def _strategy(name: str, settings: Settings) -> Any:
    """A numbered one: in turn on all nodes, by their CPUs (it needs none, so Ray would not balance it); where
    that node can't take it, Ray chooses. Only on this node while the store is a file of its: who starts actors runs
    where the file is."""
    if settings.database_url is None:
        return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    number = name.rpartition("-")[2]
    if not number.isdigit():
        return "SPREAD"
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    return NodeAffinitySchedulingStrategy(place_of(int(number), cpus), soft=True)


def place_of(number: int, cpus: Mapping[str, int]) -> str:
    """The node of a numbered actor: nodes take turns, each as often as it has CPUs."""
    turns = sorted((turn, node) for node, count in cpus.items() for turn in range(count))
    nodes = [node for _, node in turns] or sorted(cpus)
    return nodes[number % len(nodes)]


def _own_address() -> str:
    """By which the nodes of the cluster reach this one."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def site_of_cluster() -> ClusterTopology:
    """The nodes that are up, and the API's replicas."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    names = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
    nodes = (
        Node(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            head=HEAD in node["Resources"],
        )
        for node in alive
    )
    return ClusterTopology(nodes=tuple(nodes), replicas=sum(name.startswith(REPLICA) for name in names))


def _cause(error: RayTaskError) -> Exception:
    cause = error.cause
    return cause if isinstance(cause, BreakersError) else Unavailable(f"{type(cause).__name__} in an actor")


class _Wrapped:
    """An actor process: one plain part, reached through `call`."""

    _part: Any

    async def call(self, method: str, *args: Any) -> Any:
        return await getattr(self._part, method)(*args)

    async def process(self) -> Process:
        return self._process

    async def counted(self) -> Counted:
        meters: Meters = self._part.meters
        return meters.counted()

    async def address(self) -> Address | None:
        return self._address

    async def _hold(self, settings: Settings) -> None:
        """The data directory is in use from here on; to be called before anything of it is opened."""
        from breaker_actors.ray_runtime.presence import hold_data_dir

        context = ray.get_runtime_context()

        async def hold() -> None:
            self._held = hold_data_dir(settings, context.get_session_name(), context.gcs_address)

        await _until_up(hold)

    async def _open(self, settings: Settings) -> None:
        """From here on this process logs, exports what the part counts, knows what it is, and listens for calls. Its
        loop comes before what threads of the store and the log compute. What is there from the start, modules and their
        like, is no garbage: each look at all of it would keep everybody waiting for a tenth of a second."""
        share_finely()
        gc.freeze()
        self._process = Process(
            node=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            started_ms=SystemClock().now_ms(),
            release=release(settings),
        )
        meters: Meters = self._part.meters
        logs.configure(meters.actor, meters=meters)
        self._exporting = metrics.start(meters, settings)
        self._listener = Listener(self.call, meters)
        self._address = await self._listen()

    async def _listen(self) -> Address | None:
        """None: all calls go through Ray. What it encrypts is not to leave the machine beside it in the clear; and not
        every address of a node is one of its interfaces."""
        address = _own_address()
        if not may_carry(address, encrypting=encrypts(os.environ)):
            return None
        try:
            return await self._listener.open(address)
        except OSError as error:
            structlog.get_logger().warning("not_listening", error=str(error))
            return None


class BreakerActor(_Wrapped):
    async def __init__(self, name: str, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._hold(settings)
        incarnation = uuid4().hex
        net = RayNet(settings)
        self._part = BreakerHost(name, incarnation, make_log(settings), net, steady_clock(settings), settings)
        await self._open(settings)
        self._part.start()
        self._hello = asyncio.create_task(_say_hello(net, "breaker", name, incarnation))


class RouterActor(_Wrapped):
    async def __init__(self, name: str, settings: Settings) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._hold(settings)
        incarnation = uuid4().hex
        net = RayNet(settings)
        self._part = RouterHost(name, incarnation, make_log(settings), net, steady_clock(settings), settings)
        await self._open(settings)
        self._part.start()
        self._hello = asyncio.create_task(_say_hello(net, "router", name, incarnation))


class JournalActor(_Wrapped):
    async def __init__(self, shard: int, settings: Settings) -> None:  # type: ignore[misc]
        await self._hold(settings)
        store = make_store(settings)
        await _until_up(store.open)
        self._part = JournalHost(shard, store, steady_clock(settings), settings, Nudge(RayNet(settings)), _end_process)
        await self._open(settings)
        await _until_up(self._part.start)


class NotifierActor(_Wrapped):
    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        await self._hold(settings)
        # no other actor needs its clients of HTTP and SMTP: they cost time and memory
        from breaker_actors.notify.notifier import NotifierHost
        from breaker_actors.notify.sender import open_sender

        store, clock = make_store(settings), steady_clock(settings)
        await _until_up(store.open)
        self._part = NotifierHost(store, open_sender(settings, clock), clock, settings, superseded=_end_process)
        await self._open(settings)
        await _until_up(self._part.start)


class DirectoryActor(_Wrapped):
    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]
        await self._hold(settings)
        store = make_store(settings)
        await _until_up(store.open)
        net, clock = RayNet(settings), steady_clock(settings)
        self._part = directory = DirectoryHost(store, net, clock, settings, lambda: budgets(settings), _end_process)
        await self._open(settings)
        from breaker_actors.ray_runtime.presence import show_presence

        self._presence = show_presence(settings, ray.get_runtime_context().get_session_name())
        self._started = asyncio.create_task(self._part.start())
        self._retention = Retention(store, make_log(settings), net, clock, settings, directory.meters)
        self._retention.start()


SEATED: dict[ActorKind, type[_Wrapped]] = {"router": RouterActor, "breaker": BreakerActor}


def steady_clock(settings: Settings) -> SteadyClock:
    """The clock of an actor. Replicas go by the machine's own: what they compare with it is the clock of a caller."""

    def tell(event: str, step_ms: int) -> None:
        structlog.get_logger().warning(event, step_ms=step_ms)

    return SteadyClock(SystemClock(), settings.clock_step_max_ms, real_time, tell)


def release(settings: Settings) -> str:
    """Program and settings in one word: actors of another one are replaced by a deployment."""
    values = settings.model_dump(exclude=_NOT_THE_ACTORS)
    plain = {k: v.get_secret_value() if isinstance(v, SecretStr) else str(v) for k, v in values.items()}
    text = json.dumps([version("breaker-actors"), plain], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _end_process() -> None:
    """As a crash: Ray starts another process under the name, unless it has done so long ago."""
    structlog.get_logger().warning("superseded")
    os._exit(1)


async def _until_up(step: Callable[[], Awaitable[None]]) -> None:
    """Ray does not restart an actor whose constructor raised, so a constructor waits for the store instead."""
    while True:
        try:
            return await step()
        except (Invalid, SchemaMismatch):
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
    """How many actors of each kind there may be in this cluster now (architecture.md section 2, Placement)."""
    try:
        resources = await asyncio.to_thread(ray.cluster_resources)
    except RayError:
        raise Unavailable("the cluster does not say how large it is") from None
    cpus = int(resources.get("CPU", 1))
    return {
        "breaker": settings.breaker_actors or max(2, 2 * cpus),
        "router": settings.router_actors or max(1, cpus // 2),
    }
