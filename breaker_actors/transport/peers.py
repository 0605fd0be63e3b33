"""Typed stubs of remote calls: by actor name and method, between processes of a cluster or directly in one process.

`Net` is the only thing a plain part knows of the others; `actors.py` has the Ray version, `local.py` the direct one.
The peers below give its calls their types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from breaker_actors.errors import BreakersError
from breaker_actors.messages import (
    ActorReport,
    AppendResult,
    Aside,
    BreakerAssignment,
    BreakerEpoch,
    BreakerFigures,
    ChangeRow,
    ChangesTaken,
    ClusterTopology,
    Commit,
    CommitResult,
    Counted,
    Delivery,
    FeedPage,
    FoundDamage,
    JournalFigures,
    LogFloor,
    Overview,
    Paced,
    Part,
    Process,
    Rebalanced,
    RouterAssignment,
    RouterFigures,
    RouterRef,
    StateReading,
    SubscribeRequest,
    Subscribers,
    SubscriptionCheck,
    WatermarkAnswers,
)
from breaker_actors.telemetry.set_aside import Asides

ActorKind = Literal["breaker", "router"]
Spawned = Literal["breaker", "router", "journal"]
"""What a Directory has started."""
DIRECTORY = "directory"
NOTIFIER = "notifier"


def journal_name(shard: int) -> str:
    """The actor name of a shard's Journal."""
    return f"journal-{shard}"


def shard_of(name: str) -> int:
    """The shard of the Journal of that name."""
    return int(name.rpartition("-")[2])


class Net(Protocol):
    """Calls raise errors.Unavailable when it is unknown whether they ran; the callee's own errors pass through."""

    async def call(self, actor: str, method: str, *args: Any) -> Any: ...

    def spawn(self, kind: Spawned, name: str) -> None:
        """Starts the actor in the background unless it runs; one that is placed says hello to the Directory when it is
        up."""
        ...

    async def process(self, actor: str) -> Process:
        """Where an actor runs."""
        ...

    async def counted(self, actor: str) -> Counted:
        """What an actor's process has counted."""
        ...

    async def topology(self) -> ClusterTopology:
        """The cluster's nodes, and how many replicas of the API there are."""
        ...


class _Peer:
    def __init__(self, net: Net, name: str) -> None:
        self.net = net
        self.name = name


class RouterPeer(_Peer):
    """Calls to a RouterActor; what they mean is said at `router.host.RouterHost`."""

    async def append(self, parts: Sequence[Part]) -> list[AppendResult]:
        return cast(list[AppendResult], await self.net.call(self.name, "append", parts))

    async def acquire(self, assignments: Sequence[RouterAssignment]) -> list[str]:
        return cast(list[str], await self.net.call(self.name, "acquire", assignments))

    async def change(self, changes: Sequence[ChangeRow]) -> ChangesTaken:
        return cast(ChangesTaken, await self.net.call(self.name, "change", changes))

    async def subscribe(self, owner: str, requests: Sequence[SubscribeRequest]) -> list[int | None]:
        return cast(list[int | None], await self.net.call(self.name, "subscribe", owner, requests))

    async def advance_watermark(self, upto_ms: int, pairs: Sequence[tuple[str, str]]) -> WatermarkAnswers:
        return cast(WatermarkAnswers, await self.net.call(self.name, "advance_watermark", upto_ms, pairs))

    async def release(self, router_ids: Sequence[str]) -> None:
        await self.net.call(self.name, "release", router_ids)

    async def trim(self, floors: Sequence[LogFloor], gone: Sequence[tuple[str, str]]) -> int:
        return cast(int, await self.net.call(self.name, "trim", floors, gone))

    async def check_subscriptions(self, owner: str, subscribers: Mapping[str, Subscribers]) -> SubscriptionCheck:
        return cast(SubscriptionCheck, await self.net.call(self.name, "check_subscriptions", owner, subscribers))

    async def note_damage(self, found: Sequence[FoundDamage]) -> list[str]:
        return cast(list[str], await self.net.call(self.name, "note_damage", found))

    async def status(self) -> RouterFigures:
        return cast(RouterFigures, await self.net.call(self.name, "status"))

    async def ping(self) -> str:
        """Returns why its log does not take writes; "" when it does."""
        return cast(str, await self.net.call(self.name, "ping"))

    async def incarnation(self) -> str:
        return cast(str, await self.net.call(self.name, "incarnation_id"))

    async def report(self) -> ActorReport:
        return cast(ActorReport, await self.net.call(self.name, "report"))


class BreakerPeer(_Peer):
    """Calls to a BreakerActor; what they mean is said at `breaker.host.BreakerHost`."""

    async def deliver(self, delivery: Delivery) -> list[BreakerEpoch]:
        return cast(list[BreakerEpoch], await self.net.call(self.name, "deliver", delivery))

    async def assign(self, assignments: Sequence[BreakerAssignment]) -> None:
        await self.net.call(self.name, "assign", assignments)

    async def drop(self, epochs: Sequence[BreakerEpoch]) -> None:
        await self.net.call(self.name, "drop", epochs)

    async def link(self, links: Sequence[tuple[str, RouterRef]]) -> None:
        await self.net.call(self.name, "link", links)

    async def routers_moved(self, owners: Mapping[str, str]) -> None:
        await self.net.call(self.name, "routers_moved", owners)

    async def states(self, breaker_ids: Sequence[str], wait_s: float) -> list[StateReading]:
        return cast(list[StateReading], await self.net.call(self.name, "states", breaker_ids, wait_s))

    async def status(self) -> BreakerFigures:
        return cast(BreakerFigures, await self.net.call(self.name, "status"))

    async def report(self) -> ActorReport:
        return cast(ActorReport, await self.net.call(self.name, "report"))


class JournalPeer(_Peer):
    """Calls to a Journal; what they mean is said at `journal.host.JournalHost`."""

    async def commit(self, commits: Sequence[Commit]) -> list[CommitResult | Paced]:
        return cast(list[CommitResult | Paced], await self.net.call(self.name, "commit", commits))

    async def announce(self, kind: Literal["config", "keys"], project_ids: Sequence[str]) -> None:
        await self.net.call(self.name, "announce", kind, project_ids)

    async def poll(self, epoch: int, after: int, wait_s: float) -> FeedPage:
        return cast(FeedPage, await self.net.call(self.name, "poll", epoch, after, wait_s))

    async def status(self) -> JournalFigures:
        return cast(JournalFigures, await self.net.call(self.name, "status"))

    async def ready(self) -> None:
        await self.net.call(self.name, "ready")


class DirectoryPeer(_Peer):
    """Calls to the Directory; what they mean is said at `directory.host.DirectoryHost`."""

    def __init__(self, net: Net) -> None:
        super().__init__(net, DIRECTORY)

    async def hello(self, kind: ActorKind, name: str, incarnation: str) -> None:
        await self.net.call(self.name, "hello", kind, name, incarnation)

    async def configured(self, change_ids: Sequence[int]) -> bool:
        return bool(await self.net.call(self.name, "configured", change_ids))

    async def changed(self, project_id: str) -> None:
        await self.net.call(self.name, "changed", project_id)

    async def locate(self, kind: ActorKind, ids: Sequence[str]) -> dict[str, str]:
        return cast(dict[str, str], await self.net.call(self.name, "locate", kind, ids))

    async def rebalance(self, most: int) -> Rebalanced:
        return cast(Rebalanced, await self.net.call(self.name, "rebalance", most))

    async def overview(self) -> Overview:
        return cast(Overview, await self.net.call(self.name, "overview"))

    async def exchange(self, own: Counted) -> list[Counted]:
        return cast(list[Counted], await self.net.call(self.name, "exchange", own))

    async def ready(self) -> None:
        await self.net.call(self.name, "ready")

    async def set_aside(self, entries: Sequence[Aside]) -> None:
        await self.net.call(self.name, "set_aside", entries)

    async def report_asides(self, asides: Asides) -> None:
        """Has stored what a process without a store set aside; what can't be reported now is kept for the next call."""
        if not asides.waiting:
            return
        entries = asides.drain()
        try:
            await self.set_aside(entries)
        except BaseException as error:
            asides.put_back(entries)
            if not isinstance(error, BreakersError):
                raise


class NotifierPeer(_Peer):
    """Calls to the Notifier."""

    def __init__(self, net: Net) -> None:
        super().__init__(net, NOTIFIER)

    async def nudge(self) -> None:
        await self.net.call(self.name, "nudge")
