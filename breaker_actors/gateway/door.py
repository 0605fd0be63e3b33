"""Whether callers get in: the node's own HTTP port, asked as any caller would."""

from __future__ import annotations

import asyncio
import contextlib

from breaker_actors.messages import REACHABILITY_INTERVAL_MS
from breaker_actors.settings import from_here

ANSWER_S = REACHABILITY_INTERVAL_MS / 1000
_ASKED = b"GET /-/healthz HTTP/1.1\r\nHost: door\r\nConnection: close\r\n\r\n"


class Door:
    """The port that HAProxy (or Serve's proxy) listens on. A process that was stopped still has its connections taken
    by the kernel, so what counts is an answer; of one that asks for TLS a hang-up is one. A door that was never open
    here says nothing: it may have another port, or be on other nodes."""

    def __init__(self, host: str, port: int) -> None:
        self._host = from_here(host)
        self._port = port
        self._was_open = False

    async def is_open(self) -> bool:
        """Waits ANSWER_S at most."""
        answered = await self._answers()
        self._was_open = self._was_open or answered
        return answered or not self._was_open

    async def _answers(self) -> bool:
        writer = None
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                writer.write(_ASKED)
                with contextlib.suppress(ConnectionError):
                    await reader.read(1)
                return True
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()
