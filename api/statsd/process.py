"""The loop of `breakers statsd`: reads datagrams, flushes, and says how it is doing.

Everything but sending is on one thread. A flush is encoded in steps, and what has come is read between them, so that
the kernel's room does not overflow meanwhile.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Any

from api.statsd.aggregation import Aggregate
from api.statsd.encoding import NS_PER_MS, Encoder
from api.statsd.outbox import Outbox
from api.statsd.sockets import DATAGRAM_BYTES_MAX, kernel_drops
from breaker_actors.clock import Clock

TURN, TURN_BYTES = 256, 1 << 15
"""Datagrams of one socket that are read before others have their turn, and bytes after which it ends: some 10 ms, so a
flush gets on where a socket is never empty."""
STEP = 500
"""Series and points of a flush that are encoded before what has come is read."""
SWEEPS_MAX = 600
"""Turns in which what the kernel holds is read at the end."""
END_S = 10.0
"""How long requests may take at the end."""


class Process:
    """One running receiver."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        aggregate: Aggregate,
        outbox: Outbox,
        clock: Clock,
        draw: Callable[[], float],
        flush_ms: int,
        status_s: float,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        """`draw`: a number from 0 to 1. `tell`: hears of the status every `status_s`, and at the end."""
        self._sockets, self._aggregate, self._outbox, self._clock = sockets, aggregate, outbox, clock
        self._draw, self._flush_s, self._status_s, self._tell = draw, flush_ms / 1000, status_s, tell
        self._buffer = bytearray(DATAGRAM_BYTES_MAX + 1)
        self._flushed_ms = clock.now_ms()
        self.datagrams = self.cut_off = self.kernel_drops = 0

    def run(self, stop: int) -> None:
        """Works until the file descriptor `stop` can be read, then flushes once more."""
        self._outbox.start()
        with selectors.DefaultSelector() as selector:
            for sock in self._sockets:
                selector.register(sock, selectors.EVENT_READ, sock)
            selector.register(stop, selectors.EVENT_READ, None)
            flush_at = self._clock.monotonic() + self._flush_s
            status_at = self._clock.monotonic() + self._status_s
            stopping = False
            while not stopping:
                for key, _ in selector.select(max(0.0, flush_at - self._clock.monotonic())):
                    if key.data is None:
                        stopping = True
                    else:
                        self._read(key.data)
                now_s = self._clock.monotonic()
                if now_s >= flush_at:
                    self.flush()
                    flush_at = max(flush_at + self._flush_s, now_s)
                if now_s >= status_at:
                    self._tell(self.status())
                    status_at = now_s + self._status_s
        self._end()

    def _end(self) -> None:
        for _ in range(SWEEPS_MAX):
            if not any([self._read(sock) for sock in self._sockets]):
                break
        self.flush()
        self._outbox.close(END_S)
        self._tell(self.status())

    def _read(self, sock: socket.socket) -> int:
        """Takes what has come, at most a turn of it; how many datagrams."""
        take, buffer = self._aggregate.take, self._buffer
        view = memoryview(buffer)
        number = read = 0
        while number < TURN and read < TURN_BYTES:
            try:
                size = sock.recv_into(buffer)
            except BlockingIOError:
                break
            number += 1
            read += size
            if size > DATAGRAM_BYTES_MAX:
                self.cut_off += 1
                size = buffer.rfind(b"\n", 0, size) + 1
            take(bytes(view[:size]))
        self.datagrams += number
        return number

    def flush(self) -> None:
        """Hands over what was summed up since the last flush."""
        now_ms = max(self._clock.now_ms(), self._flushed_ms)
        salt = int(self._draw() * NS_PER_MS), int(self._draw() * NS_PER_MS)
        encoder = Encoder(self._flushed_ms, now_ms, salt)
        for step, request in enumerate(self._aggregate.flush(encoder), 1):
            if request is not None:
                self._outbox.put(request)
            if step % STEP == 0:
                for sock in self._sockets:
                    self._read(sock)
        self._flushed_ms = now_ms

    def status(self) -> dict[str, Any]:
        """Totals since the start, and what is there now."""
        aggregate, outbox, room = self._aggregate, self._outbox, self._aggregate.room
        self.kernel_drops = kernel_drops(self._sockets)
        return {
            "datagrams": self.datagrams,
            "lines": aggregate.lines,
            "series": aggregate.series,
            "malformed": dict(aggregate.malformed),
            "newest_malformed": aggregate.newest_malformed,
            "datagrams_cut_off": self.cut_off,
            "datagrams_dropped_by_kernel": self.kernel_drops,
            "dropped": dict(room.dropped),
            "values_rounded": room.rounded,
            "points_sent": outbox.sent,
            "points_rejected": outbox.rejected,
            "points_dropped": dict(outbox.dropped),
            "requests_waiting": outbox.waiting,
            "newest_trouble": outbox.newest_trouble,
        }
