"""Connections to a wire's port that have not proven themselves: a bound, a count, and a line in the log a minute.

Any user of the machine may connect. When all places are taken the connection that waits longest makes room, so whoever
takes them keeps nobody out: an actor proves itself within a millisecond. What is refused is counted at once and said at
most every SAY_EACH_S, so nobody can wash out a log.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

import structlog

from breaker_actors.telemetry.meters import Meters

UNPROVEN_MAX = 256
SAY_EACH_S = 60.0

What = Literal["unproven", "late", "connections"]
"""Why a connection was ended: it said something else than a proof, nothing in time, or made room for another one."""
log = structlog.get_logger()


class Unproven(Protocol):
    """A connection that waits for its proof."""

    def refuse(self, what: What) -> None:
        """Leaves, and ends at once."""


class Strangers:
    """Those of one listener. Counts into `meters`."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._waiting: dict[Unproven, None] = {}  # those that came first are first
        self._unsaid = 0
        self._last: tuple[What, object] = ("late", None)
        self._quiet: asyncio.TimerHandle | None = None

    def admit(self, connection: Unproven) -> None:
        """A new connection waits for its proof, if need be in the place of another one."""
        if len(self._waiting) >= UNPROVEN_MAX:
            next(iter(self._waiting)).refuse("connections")
        self._waiting[connection] = None

    def leave(self, connection: Unproven) -> bool:
        """It is proven, or gone. Whether it had been waiting."""
        return self._waiting.pop(connection, self) is None

    def count(self, what: What, peer: object) -> None:
        """One was refused. `peer`: who, for the log."""
        self._meters.count("breakers_wires_refused_total", what=what)
        self._unsaid += 1
        self._last = what, peer
        if self._quiet is None:
            self._say()

    def close(self) -> None:
        """Says nothing more."""
        if self._quiet is not None:
            self._quiet.cancel()

    def _say(self) -> None:
        """What has not been said yet, if anything; then nothing for SAY_EACH_S."""
        self._quiet = None
        if self._unsaid:
            what, peer = self._last
            log.warning("strangers_refused", n=self._unsaid, last=what, peer=peer)
            self._unsaid = 0
            self._quiet = asyncio.get_running_loop().call_later(SAY_EACH_S, self._say)
