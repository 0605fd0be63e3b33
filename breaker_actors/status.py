"""How a running service is doing: values for whoever operates it, and how they are gathered from all parts.

Nothing here waits long for anybody: a part that does not answer is shown as such, without its figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Literal, TypeVar

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.messages import BreakerFigures, JournalFigures, Node, Process, RouterFigures, Seat
from breaker_actors.net import (
    DIRECTORY,
    NOTIFIER,
    BreakerPeer,
    DirectoryPeer,
    JournalPeer,
    Net,
    RouterPeer,
    journal_name,
)

T = TypeVar("T")
ANSWER_S = 2.0

Kind = Literal["journal", "directory", "notifier", "router", "breaker"]
State = Literal["up", "starting", "away"]


class ActorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One actor. `since_ms`: of its state, where the Directory knows it; `node` and what follows: None when it does
    not answer. `holds`: routers or breakers placed there."""

    name: str
    kind: Kind
    state: State
    since_ms: int | None
    restarts: int
    holds: int
    process: Process | None = None
    incarnation: str = ""
    router: RouterFigures | None = None
    breaker: BreakerFigures | None = None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `journal` None: it does not answer; `budgets` empty: the Directory does not."""

    at_ms: int
    nodes: tuple[Node, ...]
    replicas: int
    budgets: dict[str, int]
    journal: JournalFigures | None
    log_bytes: int
    actors: tuple[ActorStatus, ...]


async def gather(net: Net, clock: Clock) -> ClusterStatus:
    """Asks everybody at once; takes ANSWER_S three times at most."""
    site, overview, journal = await asyncio.gather(
        _soon(net.site()), _soon(DirectoryPeer(net).overview()), _soon(JournalPeer(net, journal_name(0)).status())
    )
    seats = overview.seats if overview is not None else []
    singles = [_single(net, journal_name(0), "journal"), _single(net, DIRECTORY, "directory")]
    singles.append(_single(net, NOTIFIER, "notifier"))
    actors = await asyncio.gather(*singles, *(_seated(net, seat) for seat in seats))
    slots = {slot: size for a in actors if a.router is not None for slot, size in a.router.log_bytes.items()}
    return ClusterStatus(
        at_ms=clock.now_ms(),
        nodes=tuple(site.nodes) if site is not None else (),
        replicas=site.replicas if site is not None else 0,
        budgets=overview.budgets if overview is not None else {},
        journal=journal,
        log_bytes=sum(slots.values()),
        actors=tuple(actors),
    )


async def _single(net: Net, name: str, kind: Kind) -> ActorStatus:
    process = await _soon(net.process(name))
    state: State = "away" if process is None else "up"
    since_ms = None if process is None else process.started_ms
    return ActorStatus(name=name, kind=kind, state=state, since_ms=since_ms, restarts=0, holds=0, process=process)


async def _seated(net: Net, seat: Seat) -> ActorStatus:
    status = ActorStatus(**msgspec.structs.asdict(seat))
    if seat.state != "up":
        return status
    process = await _soon(net.process(seat.name))
    if seat.kind == "router":
        figures = await _soon(RouterPeer(net, seat.name).status())
        return msgspec.structs.replace(status, process=process, router=figures)
    return msgspec.structs.replace(status, process=process, breaker=await _soon(BreakerPeer(net, seat.name).status()))


async def _soon(answer: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer
    except (BreakersError, TimeoutError):
        return None
