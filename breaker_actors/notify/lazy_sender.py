"""The sender of a replica, for /test alone: opened when it is first needed, as most replicas never need one."""

from __future__ import annotations

from collections.abc import Callable

from breaker_actors.clock import Clock
from breaker_actors.notify.model import Attempt, Destination, Message, Sender
from breaker_actors.settings import Settings


class LateSender:
    """A Sender that `open_one` makes on first use."""

    def __init__(self, open_one: Callable[[], Sender]) -> None:
        self._open = open_one
        self._sender: Sender | None = None

    async def send(self, to: Destination, message: Message) -> Attempt:
        if self._sender is None:
            self._sender = self._open()
        return await self._sender.send(to, message)

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()


def late_sender(settings: Settings, clock: Clock) -> LateSender:
    """The real one. Its clients of HTTP and SMTP are imported with it."""

    def open_one() -> Sender:
        from breaker_actors.notify.sender import open_sender

        return open_sender(settings, clock)

    return LateSender(open_one)
