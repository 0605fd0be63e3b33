"""The sender of a replica, for /test and a look at addresses: opened when first needed, as most never need one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from breaker_actors.clock import Clock
from breaker_actors.notify.model import Attempt, Destination, ExaminingSender, Message
from breaker_actors.settings import Settings


class LateSender:
    """A Sender that `open_one` makes on first use."""

    def __init__(self, open_one: Callable[[], ExaminingSender]) -> None:
        self._open = open_one
        self._sender: ExaminingSender | None = None

    async def send(self, to: Destination, message: Message) -> Attempt:
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
