"""Whether callers get in: the node's own HTTP port, asked as any caller would."""

from __future__ import annotations

import asyncio
import ssl

from breaker_actors.messages import REACHABILITY_INTERVAL_MS
from breaker_actors.settings import from_here

ANSWER_S = REACHABILITY_INTERVAL_MS / 1000
NEVER_OPEN_S = 10.0
"""A door that has not opened after so long is none of this node's. HAProxy takes 4 s to come back after a kill."""
_ASKED = b"GET /-/healthz HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n"
_VERSION = b"HTTP/1.1 "


class Door:
    """The port that HAProxy (or Serve's proxy) listens on. A process that was stopped still has its connections taken
    by the kernel, one that is killed hangs up, and one that has just come back knows of no replica and answers 503: so
    what counts is an answer below 500. A door that was never open here says nothing after a while: it may have another
    port, or be on other nodes."""

    def __init__(self, host: str, port: int, tls: bool = False) -> None:
        self._host = from_here(host)
        self._port = port
        self._context = _unchecked() if tls else None
        self._asked_at: float | None = None
        self._was_open = False

    async def is_open(self) -> bool:
        """Waits ANSWER_S at most."""
        now = asyncio.get_running_loop().time()
        self._asked_at = now if self._asked_at is None else self._asked_at
        answered = await self._answers()
        self._was_open = self._was_open or answered
        return answered or not (self._was_open or now < self._asked_at + NEVER_OPEN_S)

    async def _answers(self) -> bool:
        writer = None
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._context)
                writer.write(_ASKED)
                head = await reader.readexactly(len(_VERSION) + 1)
                return head[-1:] in (b"1", b"2", b"3", b"4")
        except (OSError, EOFError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.transport.abort()  # nothing is owed to it: a TLS goodbye would outlive this call


def _unchecked() -> ssl.SSLContext:
    """Whose certificate it is does not matter: nothing is told, and nothing is believed but that somebody answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
