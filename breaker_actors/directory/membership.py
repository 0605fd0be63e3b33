"""Assignments and membership, as the Directory remembers them: who owns what, and which actors are there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal

import msgspec

from breaker_actors.clock import Clock
from breaker_actors.errors import BreakersError
from breaker_actors.messages import ActorReport
from breaker_actors.transport.peers import ActorKind, BreakerPeer, Net, RouterPeer

REPORT_S = 2.0


class Assignments:
    """Owners and epochs of all routers, or of all breakers. Epoch 0: a claim is under way, or its outcome unknown."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[str, int]] = {}
        self._of: dict[str, dict[str, None]] = {}

    def assign(self, thing: str, owner: str, epoch: int = 0) -> None:
        """Notes an owner, unless a later claim has been heard of already: answers may overtake each other."""
        if epoch and epoch < self.epoch(thing):
            return
        self.forget(thing)
        self._at[thing] = owner, epoch
        self._of.setdefault(owner, {})[thing] = None

    def forget(self, thing: str) -> None:
        owner, _ = self._at.pop(thing, ("", 0))
        if owner:
            del self._of[owner][thing]

    def owner(self, thing: str) -> str | None:
        return self._at[thing][0] if thing in self._at else None

    def epoch(self, thing: str) -> int:
        return self._at[thing][1] if thing in self._at else 0

    def is_held_by(self, thing: str, owner: str, epoch: int) -> bool:
        """Whether this owner has it under this epoch."""
        return self._at.get(thing) == (owner, epoch)

    def list_for(self, owner: str) -> list[str]:
        return list(self._of.get(owner, ()))

    def count(self, owner: str) -> int:
        return len(self._of.get(owner, ()))

    def claimed(self) -> dict[str, list[str]]:
        """What each owner surely has: what can be moved."""
        return {owner: [t for t in things if self._at[t][1]] for owner, things in self._of.items() if things}

    def least_loaded(self, names: Iterable[str]) -> str:
        return min(names, key=self.count)


class Member(msgspec.Struct):
    """One actor as the Directory knows it. away: it was up, and a call to it got no answer."""

    kind: ActorKind
    since_ms: int
    state: Literal["starting", "up", "away"] = "starting"
    incarnation: str = ""
    restarts: int = 0
    """How often another process came up under the name, as far as this Directory has seen."""


class Membership:
    """Which actors are up, away or starting."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Member] = {}

    def starting(self, kind: ActorKind, name: str) -> None:
        self._known.setdefault(name, Member(kind, self._clock.now_ms()))

    def came_up(self, kind: ActorKind, name: str, incarnation: str) -> None:
        now_ms = self._clock.now_ms()
        known = self._known.setdefault(name, Member(kind, now_ms))
        known.restarts += known.incarnation not in ("", incarnation)
        known.incarnation, known.state, known.since_ms = incarnation, "up", now_ms

    def lost(self, name: str) -> None:
        """A call got no answer. If the process died, its successor says hello; if not, `resume` finds it again."""
        known = self._known.get(name)
        if known is not None and known.state == "up":
            known.state, known.since_ms = "away", self._clock.now_ms()

    def is_known(self, name: str) -> bool:
        return name in self._known

    def is_up(self, name: str, incarnation: str = "") -> bool:
        """Whether it is up, and (if given) as this process."""
        known = self._known.get(name)
        return known is not None and known.state == "up" and incarnation in ("", known.incarnation)

    def is_starting(self, name: str) -> bool:
        """Whether it has yet to be heard of for the first time."""
        known = self._known.get(name)
        return known is None or known.state == "starting"

    def up(self, kind: ActorKind) -> list[str]:
        return [name for name, known in self._known.items() if known.kind == kind and known.state == "up"]

    def away(self) -> list[tuple[ActorKind, str]]:
        return [(known.kind, name) for name, known in self._known.items() if known.state == "away"]

    def not_up(self) -> list[tuple[ActorKind, str]]:
        """Those away, and those that have yet to be heard of."""
        return [(known.kind, name) for name, known in self._known.items() if known.state != "up"]

    def all(self) -> list[tuple[str, Member]]:
        return list(self._known.items())


async def report_of(net: Net, kind: ActorKind, name: str) -> ActorReport | None:
    """Asks an actor what it owns; None when it does not answer within REPORT_S."""
    peer = RouterPeer(net, name) if kind == "router" else BreakerPeer(net, name)
    try:
        async with asyncio.timeout(REPORT_S):
            return await peer.report()
    except (BreakersError, TimeoutError):
        return None
