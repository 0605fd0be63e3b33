"""How a running service is doing: values for whoever operates it, and how they are gathered from all parts.

Nothing here waits long for anybody: a part that does not answer is shown as such, without its figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Literal, TypeVar

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.messages import (
    ActorPlacement,
    BreakerFigures,
    JournalFigures,
    Node,
    Process,
    ProjectShare,
    RouterFigures,
)
from breaker_actors.store.base import ReplicaStore
from breaker_actors.store.rows import StoredFigures
from breaker_actors.transport.peers import (
    DIRECTORY,
    NOTIFIER,
    BreakerPeer,
    DirectoryPeer,
    JournalPeer,
    Net,
    RouterPeer,
)

T = TypeVar("T")
ANSWER_S = 2.0
LIMITS_MAX = 100

Kind = Literal["journal", "directory", "notifier", "router", "breaker"]
State = Literal["up", "starting", "away"]


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. `since_ms`: of its state, where the Directory knows it; `node` and what follows: None when it does
    not answer. `restarts`: since the
    Directory began, None of those it does not place. `holds`: routers or breakers placed there."""

    name: str
    kind: Kind
    state: State
    since_ms: int | None
    restarts: int | None
    holds: int
    process: Process | None = None
    incarnation: str = ""
    router: RouterFigures | None = None
    breaker: BreakerFigures | None = None


class JournalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One Journal. `figures` None: it does not answer."""

    name: str
    figures: JournalFigures | None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `budgets` empty: the Directory does not answer."""

    at_ms: int
    nodes: tuple[Node, ...]
    replicas: int
    budgets: dict[str, int]
    journals: tuple[JournalStatus, ...]
    log_bytes: int
    actors: tuple[ActorStatus, ...]
    set_aside: int | None = 0
    """Stored things that could not be read; None: the store does not answer."""
    limits: tuple[ProjectShare, ...] = ()
    """Projects that have reached a share of theirs, LIMITS_MAX at most."""


async def gather(net: Net, clock: Clock, store: ReplicaStore, journals: Sequence[str]) -> ClusterStatus:
    """Asks everybody at once; takes ANSWER_S three times at most. `journals`: their names."""
    topology, overview, told, aside, stored = await asyncio.gather(
        soon(net.topology()),
        soon(DirectoryPeer(net).overview()),
        asyncio.gather(*(soon(JournalPeer(net, name).status()) for name in journals)),
        soon(store.count_aside()),
        soon(store.stored_figures()),
    )
    placements = overview.actors if overview is not None else []
    singles = [*(_single(net, name, "journal") for name in journals), _single(net, DIRECTORY, "directory")]
    singles.append(_single(net, NOTIFIER, "notifier"))
    actors = await asyncio.gather(*singles, *(_placed(net, placement) for placement in placements))
    slots = {slot: size for a in actors if a.router is not None for slot, size in a.router.log_bytes.items()}
    return ClusterStatus(
        at_ms=clock.now_ms(),
        nodes=tuple(topology.nodes) if topology is not None else (),
        replicas=topology.replicas if topology is not None else 0,
        budgets=overview.budgets if overview is not None else {},
        journals=tuple(JournalStatus(name=n, figures=f) for n, f in zip(journals, told, strict=True)),
        log_bytes=sum(slots.values()),
        actors=tuple(actors),
        set_aside=None if aside is None else sum(aside),
        limits=_limits(stored, told, actors),
    )


def _limits(
    stored: StoredFigures | None, journals: Sequence[JournalFigures | None], actors: Sequence[ActorStatus]
) -> tuple[ProjectShare, ...]:
    """Collects the projects at their limits, LIMITS_MAX at most."""
    figures = [*journals, *(actor.router for actor in actors), *(actor.breaker for actor in actors)]
    shares = [share for each in figures if each is not None for share in each.limits]
    return (*shares, *(() if stored is None else stored.shares))[:LIMITS_MAX]


async def _single(net: Net, name: str, kind: Kind) -> ActorStatus:
    process = await soon(net.process(name))
    state: State = "away" if process is None else "up"
    since_ms = None if process is None else process.started_ms
    return ActorStatus(name=name, kind=kind, state=state, since_ms=since_ms, restarts=None, holds=0, process=process)


async def _placed(net: Net, placement: ActorPlacement) -> ActorStatus:
    status = ActorStatus(**msgspec.structs.asdict(placement))
    if placement.state != "up":
        return status
    process = await soon(net.process(placement.name))
    figures: RouterFigures | BreakerFigures | None
    if placement.kind == "router":
        figures = router = await soon(RouterPeer(net, placement.name).status())
        status = msgspec.structs.replace(status, process=process, router=router)
    else:
        figures = breaker = await soon(BreakerPeer(net, placement.name).status())
        status = msgspec.structs.replace(status, process=process, breaker=breaker)
    # the Directory believes that it is up until it has something to tell it
    return status if figures is not None else msgspec.structs.replace(status, state="away", since_ms=None)


async def soon(answer: Awaitable[T]) -> T | None:
    """The answer, or None where it takes more than ANSWER_S or can't be had."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer
    except (BreakersError, TimeoutError):
        return None
