"""All parts in one process over one store, without Ray: for unit tests and simulation. Calls are pickled on the way, so
nothing that could not cross a process does."""

from __future__ import annotations

import asyncio
import os
import pickle  # nosec B403 # own values, in one process
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from uuid import uuid4

from breaker_actors.breaker.host import BreakerHost
from breaker_actors.clock import Clock
from breaker_actors.directory.host import DirectoryHost
from breaker_actors.directory.retention import Retention
from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.gateway.gateway import ActorGateway
from breaker_actors.journal.host import JournalHost
from breaker_actors.messages import ClusterTopology, Counted, Node, Process
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Sender
from breaker_actors.notify.notifier import NotifierHost
from breaker_actors.notify.nudge import Nudge
from breaker_actors.router.host import RouterHost
from breaker_actors.settings import Settings
from breaker_actors.store.base import Store
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.peers import (
    DIRECTORY,
    NOTIFIER,
    ActorKind,
    DirectoryPeer,
    Net,
    Spawned,
    journal_name,
    shard_of,
)
from breaker_actors.wal.base import SampleLog

HELLO_RETRY_S = 0.05


def make_host(
    kind: ActorKind, name: str, log: SampleLog, net: Net, clock: Clock, settings: Settings
) -> RouterHost | BreakerHost:
    """The inside of a new, empty actor process."""
    build = RouterHost if kind == "router" else BreakerHost
    return build(name, uuid4().hex, log, net, clock, settings)


def make_journal(
    store: Store,
    clock: Clock,
    settings: Settings,
    net: Net | None = None,
    superseded: Callable[[], None] = lambda: None,
    shard: int = 0,
) -> JournalHost:
    """The inside of a shard's Journal; without `net` no Notifier hears of its commits, it looks by itself."""
    nudge = Nudge(net) if net is not None else lambda: None
    return JournalHost(shard, store, clock, settings, nudge, superseded)


def make_directory(
    store: Store,
    net: Net,
    clock: Clock,
    settings: Settings,
    budgets: Mapping[ActorKind, int] | None = None,
    superseded: Callable[[], None] = lambda: None,
) -> DirectoryHost:
    """The inside of the Directory; `budgets` may change as it runs. Without a set budget there are two BreakerActors
    and one RouterActor."""
    found = budgets or local_budgets(settings)

    async def ask() -> dict[ActorKind, int]:
        return dict(found)

    return DirectoryHost(store, net, clock, settings, ask, superseded)


def local_budgets(settings: Settings) -> dict[ActorKind, int]:
    return {"breaker": settings.breaker_actors or 2, "router": settings.router_actors or 1}


async def say_hello(net: Net, kind: ActorKind, name: str, incarnation: str) -> None:
    """Tells the Directory of a new process until it has heard."""
    while True:
        try:
            await DirectoryPeer(net).hello(kind, name, incarnation)
            return
        except BreakersError:
            await asyncio.sleep(HELLO_RETRY_S)


class LocalNet:
    """Actors by name in this process. `kill` drops one without a word; `spawn` (or `revive`) starts it anew, empty."""

    def __init__(self, log: SampleLog, clock: Clock, settings: Settings) -> None:
        self._log = log
        self._clock = clock
        self._settings = settings
        self.actors: dict[str, Any] = {}
        self._hellos: set[asyncio.Task[None]] = set()
        self.start_journal: Callable[[int], Coroutine[Any, Any, None]]
        """How a Journal is started, where a Directory has to."""

    async def call(self, actor: str, method: str, *args: Any) -> Any:
        target = self.actors.get(actor)
        if target is None:
            await asyncio.sleep(0)
            raise Unavailable(f"{actor} does not answer")
        result = await getattr(target, method)(*pickle.loads(pickle.dumps(args)))  # nosec B301 # as above
        if self.actors.get(actor) is not target:
            raise Unavailable(f"{actor} died during the call")
        return pickle.loads(pickle.dumps(result))  # nosec B301 # as above

    def spawn(self, kind: Spawned, name: str) -> None:
        if name in self.actors:
            return
        if kind == "journal":
            task = asyncio.create_task(self.start_journal(shard_of(name)))
            self._hellos.add(task)
            task.add_done_callback(self._hellos.discard)
        else:
            self.revive(kind, name)

    async def process(self, actor: str) -> Process:
        if actor not in self.actors:
            raise Unavailable(f"{actor} does not answer")
        return Process(node="local", pid=os.getpid(), started_ms=0, release="local")

    async def counted(self, actor: str) -> Counted:
        if actor not in self.actors:
            raise Unavailable(f"{actor} does not answer")
        found: Counted = pickle.loads(pickle.dumps(self.actors[actor].meters.counted()))  # nosec B301 # as above
        return found

    async def topology(self) -> ClusterTopology:
        node = Node(id="local", address="127.0.0.1", cpus=float(os.cpu_count() or 1), head=True)
        return ClusterTopology(nodes=(node,), replicas=0)

    def revive(self, kind: ActorKind, name: str) -> None:
        """A new, empty process under the name."""
        host = make_host(kind, name, self._log, self, self._clock, self._settings)
        host.start()
        self.actors[name] = host
        task = asyncio.create_task(say_hello(self, kind, name, host.incarnation))
        self._hellos.add(task)
        task.add_done_callback(self._hellos.discard)

    async def kill(self, name: str) -> Any:
        """Takes an actor away as a crash would; answers what is left of it."""
        host = self.actors.pop(name)
        await host.stop()
        return host

    async def close(self) -> None:
        for task in list(self._hellos):
            task.cancel()
        await asyncio.gather(*self._hellos, return_exceptions=True)
        for name in list(self.actors):
            await self.kill(name)


class LocalCluster:
    """A whole service in this process: `async with LocalCluster(store, log, clock, settings) as cluster`."""

    def __init__(self, store: Store, log: SampleLog, clock: Clock, settings: Settings) -> None:
        self.store = store
        self.log = log
        self.settings = settings
        self.budgets = local_budgets(settings)
        self._clock = clock
        self.net = LocalNet(log, clock, settings)
        self.net.start_journal = self.start_journal
        self.gateway = ActorGateway(store, self.net, clock, settings)
        self.retention = Retention(store, log, self.net, clock, settings, Meters("directory", DIRECTORY))

    async def __aenter__(self) -> LocalCluster:
        for shard in range(self.settings.journals):
            await self.start_journal(shard)
        await self.start_directory()
        self.retention.start()
        self.gateway.start()
        while True:
            try:
                await self.gateway.ready()
                return self
            except Unavailable:
                await asyncio.sleep(0.01)

    async def start_journal(self, shard: int = 0) -> None:
        journal = make_journal(self.store, self._clock, self.settings, self.net, shard=shard)
        await journal.start()
        self.net.actors[journal_name(shard)] = journal

    async def start_directory(self) -> None:
        directory = make_directory(self.store, self.net, self._clock, self.settings, self.budgets)
        self.net.actors[DIRECTORY] = directory
        await directory.start()

    async def start_notifier(self, sender: Sender, pace: Pace | None = None) -> None:
        """Nobody is told of anything before; the rows wait."""
        notifier = NotifierHost(self.store, sender, self._clock, self.settings, pace=pace)
        await notifier.start()
        self.net.actors[NOTIFIER] = notifier

    async def __aexit__(self, *exc: object) -> None:
        await self.retention.stop()
        await self.net.close()
        await self.gateway.close()
        await self.log.close()
