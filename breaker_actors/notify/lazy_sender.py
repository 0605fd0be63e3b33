"""The sender of a replica, for /test and a look at addresses: opened when first needed, as most never need one.
Organisations share what it sends at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from breaker_actors.clock import Clock
from breaker_actors.errors import Overloaded
from breaker_actors.notify.limits import Pace
from breaker_actors.notify.model import Attempt, Destination, ExaminingSender, Message
from breaker_actors.notify.org_places import Places
from breaker_actors.settings import Settings

TESTS_MAX = Pace().total_max
"""Test notifications under way at once in a replica: as many as it has connections for."""
TESTING = "test notifications under way"


class LateSender:
    """A Sender that `open_one` makes on first use."""

    def __init__(self, open_one: Callable[[], ExaminingSender]) -> None:
        self._open = open_one
        self._sender: ExaminingSender | None = None
        self._places = Places(TESTS_MAX)

    async def send(self, to: Destination, message: Message) -> Attempt:
        """Raises Overloaded, at once, where the organisation has as many under way as are left free."""
        if not self._places.has_one(to.org_id):
            words = f"This organisation has too many test notifications under way, of {TESTS_MAX} of all at a time."
            raise Overloaded(words, {"limit": TESTING, "retry_after_s": 1})
        async with self._places.place(to.org_id):
            return await self._opened().send(to, message)

    async def examine(self, org_id: str, many: Sequence[Destination]) -> list[str | None]:
        """Nothing is opened for kinds that need no library to tell."""
        if all(to.kind != "apprise" for to in many):
            return [""] * len(many)
        return await self._opened().examine(org_id, many)

    def _opened(self) -> ExaminingSender:
        if self._sender is None:
            self._sender = self._open()
        return self._sender

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()


def late_sender(settings: Settings, clock: Clock) -> LateSender:
    """The real one. Its clients of HTTP and SMTP are imported with it."""

    def open_one() -> ExaminingSender:
        from breaker_actors.notify.sender import open_sender

        return open_sender(settings, clock)

    return LateSender(open_one)
