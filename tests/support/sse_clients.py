"""Thousands of state stream clients in a process of their own: raw sockets on one loop, parsed no further than needed.

Every client comes back when its connection ends, as the SDKs do. Slow readers take a sip now and then, less than what
is sent to them, until they are told to read on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import multiprocessing
import socket
import time
from array import array
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from api.launch.processes import raise_file_limit

AGAIN_S = 0.2
ARRIVING_MAX = 64
"""Clients that are connecting at the same time."""
SIP_BYTES, SIP_EVERY_S = 128, 2.0
SIPPING_BUFFER = 4_096
LEAVE_S = 30.0

Shown = tuple[str, float | None]
"""State and allow_rate as a stream shows them."""


class Ask(NamedTuple):
    """What one client asks for. `states`: how many messages its first snapshot has."""

    path: str
    key: str
    states: int
    slow: bool = False


@dataclass
class Report:
    """What all clients saw until now."""

    counts: Counter[str] = field(default_factory=Counter)
    """messages, heartbeats, connections; ends: cut (slow readers), dropped (others), refused; replaced, malformed."""
    opens: dict[tuple[str, int], array[float]] = field(default_factory=dict)
    """(breaker, which of its `open` messages) -> when that came to each steady client, by time.perf_counter."""
    steady: list[tuple[str, int]] = field(default_factory=list)
    """Path and number of `open` messages, snapshots aside, of each steady client."""
    wrong: list[str] = field(default_factory=list)
    """Clients that don't show what they should."""
    cpu_s: float = 0.0
    files_max: int = 0


class Reading:
    """The bytes of one connection: a head, then chunks whose contents are events, each ended by an empty line."""

    __slots__ = ("_raw", "_text", "status")

    def __init__(self) -> None:
        self.status = 0
        self._raw = self._text = b""

    def feed(self, received: bytes) -> list[bytes]:
        """The events that are complete now."""
        raw, text = self._raw + received, self._text
        if not self.status:
            head, end, rest = raw.partition(b"\r\n\r\n")
            if not end:
                self._raw = raw
                return []
            self.status, raw = int(head[9:12]), rest
        while (at := raw.find(b"\r\n")) >= 0:
            end_at = at + 2 + int(raw[:at], 16)
            if len(raw) < end_at + 2:
                break
            text += raw[at + 2 : end_at]
            raw = raw[end_at + 2 :]
        *events, self._text = text.split(b"\n\n")
        self._raw = raw
        return events


@functools.cache
def state_in(event: bytes) -> tuple[str, Shown] | None:
    """Breaker and what is told of it; None for a comment. There are few different events, so each is parsed once."""
    if event.startswith(b":"):
        return None
    head, _, payload = event.partition(b"\ndata: ")
    assert head == b"event: state", event
    told = json.loads(payload)
    return told["breaker"], (told["state"], told["allow_rate"])


class Client:
    """One client over all its connections."""

    def __init__(self, hall: Hall, ask: Ask, first: bool) -> None:
        self._hall = hall
        self._first = first
        self.ask = ask
        self.states: dict[str, Shown] = {}
        self.connections = 0
        self.opens: Counter[str] = Counter()
        self._sock: socket.socket | None = None
        self._sip: asyncio.TimerHandle | None = None

    @property
    def there(self) -> bool:
        """Connected, with a whole snapshot."""
        return self._sock is not None and self._reading.status == 200 and self._told >= self.ask.states

    @property
    def steady(self) -> bool:
        """Reads promptly and has heard all there was since the start: not a replacement, not connected again."""
        return self._first and not self.ask.slow and self.connections == 1

    async def stay(self) -> None:
        """Until it is cancelled."""
        counts = self._hall.report.counts
        try:
            while True:
                async with self._hall.door:
                    self._connect()
                    await self._arrived
                if self.there and self.ask.slow and not self._hall.reading_on:
                    self._dawdle()
                ended = await self._ended
                counts["cut" if ended == "dropped" and self.ask.slow else ended] += 1
                await asyncio.sleep(AGAIN_S)
        finally:
            self._close()

    def read_on(self) -> None:
        """Ends the dawdling of a slow reader."""
        if self._sip is not None and self._sock is not None:
            self._sip.cancel()
            self._hall.loop.add_reader(self._sock, self._read, 65_536)
        self._sip = None

    def _connect(self) -> None:
        loop = self._hall.loop
        self._arrived: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[str] = loop.create_future()
        self._reading, self._told, self.states = Reading(), 0, {}
        self.connections += 1
        sock = socket.socket()
        if self.ask.slow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIPPING_BUFFER)
        try:
            sock.connect(self._hall.address)
            sock.sendall(
                f"GET {self.ask.path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.ask.key}\r\n\r\n".encode()
            )
        except OSError:
            sock.close()
            self._end("dropped")
            return
        sock.setblocking(False)
        self._sock = sock
        loop.add_reader(sock, self._read, 65_536)

    def _read(self, most: int) -> None:
        assert self._sock is not None
        try:
            received = self._sock.recv(most)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        at = time.perf_counter()
        for event in self._reading.feed(received):
            self._hear(event, at)
        if self._reading.status not in (0, 200):
            self._end("refused")
        elif not received:
            self._end("dropped")
        elif self.there and not self._arrived.done():
            self._hall.report.counts["connections"] += 1
            self._arrived.set_result(None)

    def _hear(self, event: bytes, at: float) -> None:
        report, told = self._hall.report, state_in(event)
        if told is None:
            report.counts["heartbeats"] += 1
            return
        report.counts["messages"] += 1
        self._told += 1
        breaker, shown = told
        self.states[breaker] = shown
        if shown[0] == "open" and self._told > self.ask.states:
            if self.steady:
                report.opens.setdefault((breaker, self.opens[breaker]), array("d")).append(at)
            self.opens[breaker] += 1

    def _dawdle(self) -> None:
        """From here on only sips are read."""
        assert self._sock is not None
        self._hall.loop.remove_reader(self._sock)
        self._sip = self._hall.loop.call_later(SIP_EVERY_S, self._take_a_sip)

    def _take_a_sip(self) -> None:
        self._read(SIP_BYTES)
        if self._sock is not None:
            self._sip = self._hall.loop.call_later(SIP_EVERY_S, self._take_a_sip)

    def _end(self, why: str) -> None:
        self._close()
        for future, result in ((self._arrived, None), (self._ended, why)):
            if not future.done():
                future.set_result(result)

    def _close(self) -> None:
        if self._sip is not None:
            self._sip.cancel()
            self._sip = None
        if self._sock is not None:
            self._hall.loop.remove_reader(self._sock)
            self._sock.close()
            self._sock = None


class Hall:
    """All clients, in their own process, and what they are told to do."""

    def __init__(self, pipe: Connection, address: tuple[str, int], asks: Sequence[Ask]) -> None:
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(self._note)
        self.door = asyncio.Semaphore(ARRIVING_MAX)
        self.address = address
        self.reading_on = False
        self.report = Report(files_max=raise_file_limit())
        self._pipe = pipe
        self._clients: deque[tuple[Client, asyncio.Task[None]]] = deque(self._seat(ask, True) for ask in asks)
        self._replacing: asyncio.Task[None] | None = None

    def _seat(self, ask: Ask, first: bool) -> tuple[Client, asyncio.Task[None]]:
        client = Client(self, ask, first)
        return client, self.loop.create_task(client.stay())

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What a client could not read raises in a callback."""
        self.report.counts["malformed"] += 1
        loop.default_exception_handler(context)

    async def run(self) -> None:
        """Each command is a method and its arguments; the report so far is the answer to any."""
        with contextlib.suppress(EOFError):
            while True:
                name, *arguments = await asyncio.to_thread(self._pipe.recv)
                await getattr(self, name)(*arguments)
                self.report.cpu_s = time.process_time()
                self.report.steady = [
                    (client.ask.path, client.opens.total()) for client, _ in self._clients if client.steady
                ]
                self._pipe.send(self.report)

    async def count(self) -> None:
        """Nothing beside the answer."""

    async def arrive(self, within_s: float) -> None:
        """Waits until all are there."""
        deadline = self.loop.time() + within_s
        while absent := sum(not client.there for client, _ in self._clients):
            assert self.loop.time() < deadline, f"{absent} of {len(self._clients)} clients did not get in"
            await asyncio.sleep(0.05)

    async def replace(self, per_s: float) -> None:
        """From now on so many clients a second are replaced, those first that have been there for longest."""
        self._replacing = self.loop.create_task(self._replace(per_s))

    async def _replace(self, per_s: float) -> None:
        while True:
            await asyncio.sleep(1 / per_s)
            client, staying = self._clients.popleft()
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)
            self._clients.append(self._seat(client.ask, False))
            self.report.counts["replaced"] += 1

    async def settle(self, expected: Mapping[str, Mapping[str, Shown]], within_s: float) -> None:
        """Nobody leaves any more, slow readers read on, and all should come to show what their path is to show."""
        if self._replacing is not None:
            self._replacing.cancel()
        self.reading_on = True
        for client, _ in self._clients:
            client.read_on()
        deadline = self.loop.time() + within_s
        while self.loop.time() < deadline and self._wrong(expected):
            await asyncio.sleep(0.1)
        self.report.wrong = self._wrong(expected)

    def _wrong(self, expected: Mapping[str, Mapping[str, Shown]]) -> list[str]:
        found = []
        for n, (client, _) in enumerate(self._clients):
            due = expected[client.ask.path]
            if not client.there or client.states != due:
                off = {breaker: client.states.get(breaker) for breaker in due.keys() | client.states.keys()}
                off = {breaker: shown for breaker, shown in off.items() if shown != due.get(breaker)}
                who = f"{'slow ' if client.ask.slow else ''}client {n} of {client.ask.path}"
                found.append(f"{who} ({client.connections} connections) shows {off if client.there else 'nothing'}")
        return found


class Audience:
    """The clients as their bench sees them."""

    def __init__(self, address: tuple[str, int], asks: Sequence[Ask]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(theirs, address, asks), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Audience:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(LEAVE_S)
        self._process.kill()

    def tell(self, command: str, *arguments: Any) -> Report:
        """The report after a command, which is a public method of Hall."""
        self._pipe.send((command, *arguments))
        report: Report = self._pipe.recv()
        return report


def _child(pipe: Connection, address: tuple[str, int], asks: Sequence[Ask]) -> None:
    async def run() -> None:
        await Hall(pipe, address, asks).run()

    asyncio.run(run())
