"""How fast a body arrives, and which of those on their way in makes place for another.

Every body has credit: GRACE_S of time at most, used up as time passes and refilled by FLOOR_BYTES_PER_S bytes a second.
A body whose credit is used up lags, and goes into debt. It stays as long as nobody needs its place; the one that lags
most goes first. Credit can't be saved up: neither a fast beginning nor a byte now and then keeps a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from api.admission.shares import EVERYBODY, Holder, Holders

FLOOR_BYTES_PER_S = 16 << 10
"""A body that keeps arriving as fast as this, in pieces less than GRACE_S apart, never makes place."""
GRACE_S = 1.0
"""What a body may stall at most: a packet that is lost on the way is sent again well within it."""


class Body(Protocol):
    """A body on its way in."""

    lags_from_s: float
    """When its credit is used up, by the monotonic clock."""
    held_bytes: int

    def give_up(self) -> None:
        """Gives back at once what the request holds, and ends it."""


def credited(lags_from_s: float, now_s: float, n: int, grace_s: float = GRACE_S) -> float:
    """When the credit of a body is used up, or was, after `n` bytes of it came now."""
    return min(now_s + grace_s, lags_from_s + n / FLOOR_BYTES_PER_S)


class Arriving:
    """The bodies on their way in, by holder. As many as requests in flight at most, which are bounded."""

    def __init__(self) -> None:
        self._bodies: dict[Holder, dict[Body, None]] = {}

    def add(self, body: Body, holders: Holders) -> None:
        for holder in (*holders, EVERYBODY):
            self._bodies.setdefault(holder, {})[body] = None

    def remove(self, body: Body, holders: Holders) -> None:
        for holder in (*holders, EVERYBODY):
            self._bodies[holder].pop(body)
            if not self._bodies[holder]:
                del self._bodies[holder]

    def slowest(self, holder: Holder, with_bytes: bool) -> Body | None:
        """Of the holder's bodies the one whose credit is, or will be, used up first; `with_bytes`: of those that hold
        any. Looks at all of them: a tenth of a millisecond for a thousand, and only where a place is missing."""
        bodies: Iterable[Body] = self._bodies.get(holder, ())
        if with_bytes:
            bodies = [body for body in bodies if body.held_bytes]
        return min(bodies, key=lambda body: body.lags_from_s, default=None)
