"""Which breakers' commits the store refuses by themselves, and when each may be tried again. Pure: time is an argument,
in seconds of any steady clock.

Such a commit comes again for as long as its breaker lives, and there may be thousands: each rests longer after each
try, and between the tries of any two of them is a gap.
"""

from __future__ import annotations

from typing import NamedTuple

PAUSE_S, PAUSE_MAX_S = 0.2, 60.0
"""After the first try, and at most; it doubles from one to the next."""
GAP_S = 0.05
KNOWN_MAX = 100_000
"""Breakers; of more the one that failed longest ago is forgotten."""


class _Rest(NamedTuple):
    """Its last pause, and until when it waits: for the pause to end, or, `booked`, for its turn behind others."""

    pause_s: float
    until_s: float
    booked: bool = False


class Unstorable:
    """Breakers whose last commit was refused, whatever it was stored with."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}
        self._free_s = 0.0

    def __contains__(self, breaker_id: str) -> bool:
        return breaker_id in self._rests

    def wait_s(self, breaker_id: str, now_s: float) -> float:
        """How long a commit of it has to wait, at most PAUSE_MAX_S, and then it asks again; 0: it goes now."""
        rest = self._rests.get(breaker_id)
        if rest is None:
            return 0.0
        if rest.until_s <= now_s and not rest.booked:
            rest = rest._replace(until_s=max(now_s, self._free_s), booked=True)
            self._rests[breaker_id], self._free_s = rest, rest.until_s + GAP_S
        return min(PAUSE_MAX_S, max(0.0, rest.until_s - now_s))

    def note(self, breaker_id: str, now_s: float) -> None:
        """Its commit was refused."""
        before = self._rests.pop(breaker_id, None)
        pause_s = PAUSE_S if before is None else min(PAUSE_MAX_S, 2 * before.pause_s)
        self._rests[breaker_id] = _Rest(pause_s, now_s + pause_s)
        if len(self._rests) > KNOWN_MAX:
            del self._rests[next(iter(self._rests))]

    def forget(self, breaker_id: str) -> None:
        """Its commit was stored."""
        self._rests.pop(breaker_id, None)
