"""The process that has apprise loaded, from the service's side: started when it is first needed, again when it has
ended, and ended when nothing was sent for a while. Each notification gets a connection, and a fork, of its own; and so
do the addresses that one request has looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess  # nosec B404 # our own program, no shell
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

PROGRAM = Path(__file__).with_name("apprise_child.py")
PASSED_ON = ("LD_LIBRARY_PATH", "TZ")
"""All that the process gets of the environment, in which the service's own secrets are."""
PROCESSES_MAX = 64
"""Notifications under way at once, of some 7 MB each."""
EXAMINING_MAX = 8
"""Requests at once whose addresses are looked at: each has one process for all of its own."""
IDLE_S = 300.0
STOP_S = 2.0
LINE_BYTES_MAX = 1 << 20


class AppriseProcess:
    """The process; one per sender at most."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._connections = 0
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return None if self._process is None else self._process.pid

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A new fork's end of a line; when it is left the fork ends. Raises OSError where none can be had."""
        with self._busy():
            ours = self._fork()
            try:
                reader, writer = await asyncio.open_unix_connection(sock=ours, limit=LINE_BYTES_MAX)
            except BaseException:
                ours.close()
                raise
            try:
                yield reader, writer
            finally:
                writer.transport.abort()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        if self._idle is not None:
            self._idle.cancel()
        self._connections += 1
        try:
            yield
        finally:
            self._connections -= 1
            if not self._connections:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.stop)

    def _fork(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._hand_over(theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        return ours

    def _hand_over(self, theirs: socket.socket) -> None:
        """To the process; to a new one where the old one has ended."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
                return
            self.stop()
        socket.send_fds(self._start(), [b"."], [theirs.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(  # nosec B603 # our own program
                [sys.executable, "-I", str(PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=passed | {"LANG": "C.UTF-8", "PATH": os.defpath},
                cwd="/",
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        return ours

    def stop(self) -> None:
        """Ends the process; the forks end by themselves, with their connections. Another use starts it anew."""
        if self._idle is not None:
            self._idle.cancel()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._process = None
