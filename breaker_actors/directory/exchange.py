"""What the replicas of the API have counted: each brings its own now and then, and finds there that of the others."""

from __future__ import annotations

from breaker_actors.clock import Clock
from breaker_actors.messages import Counted

GONE_S = 30.0
"""Who has brought nothing for so long is not there any more."""
PARTS_MAX = 256
"""So many are kept at most; beyond it the one that has been silent for longest goes."""


class Exchange:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._parts: dict[str, tuple[float, Counted]] = {}

    def exchange(self, own: Counted) -> list[Counted]:
        """Takes one, returns all that are there, the one that came last at the end."""
        now = self._clock.monotonic()
        self._parts.pop(own.actor, None)
        self._parts[own.actor] = now, own
        gone = [actor for actor, (at, _) in self._parts.items() if now - at > GONE_S]
        for actor in [*gone, *list(self._parts)[: max(0, len(self._parts) - PARTS_MAX)]]:
            self._parts.pop(actor, None)
        return [counted for _, counted in self._parts.values()]
