"""Direct connections between processes: a call over one costs a tenth of a call through Ray, in time and in CPU.

Ray stays the one who knows: it starts actors, says where each of them listens (and with which token), and takes every
call for which there is no wire. Wires are made in the background, one per pair of processes, and are given up when the
other end falls silent or Ray does not vouch for it any more.

A frame is a length (4 bytes, little endian) and a pickle. The server begins with a nonce; the client's first frame is
its HMAC under the token, which only Ray gives out: who can get it could call the actor through Ray as well. Nothing of
a stranger is unpickled. Several calls share a connection and may end in any order; how many are under way is bounded
by their callers (lanes have one each).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import pickle
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import msgspec
import structlog

from breaker_actors.errors import BreakersError, Unavailable

FRAME_MAX = 256 << 20
"""Of a peer; far beyond what a lane carries in one call."""
GREETING_MAX = 64
CONNECT_S = 2.0
AGAIN_S = 1.0
"""After an attempt that failed, calls go through Ray for so long before the next one."""
VOUCH_S = 5.0
"""A wire in use is asked about so often: whether its actor still lives at the other end."""
SILENT_S = 4
"""An end that acknowledges nothing for so long is lost (RFC 5482, RFC 1122 4.2.3.6): its machine may be gone."""

Serve = Callable[..., Awaitable[Any]]
log = structlog.get_logger()


class Address(msgspec.Struct, frozen=True):
    """Where a process listens, and what proves that Ray sent the caller."""

    host: str
    port: int
    token: bytes


class _Frames(asyncio.Protocol):
    """Cuts a stream of bytes into frames; `_max` bounds the next ones."""

    def __init__(self, longest: int) -> None:
        self._max = longest
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _watch(self._transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and self._transport is not None:
            size = int.from_bytes(self._received[:4], "little")
            if size > self._max:
                self.close()
            elif len(self._received) < 4 + size:
                return
            else:
                frame = bytes(memoryview(self._received)[4 : 4 + size])
                del self._received[: 4 + size]
                self._take(frame)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._received.clear()

    def close(self) -> None:
        """Nothing more is sent or read, whatever has come already."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((len(frame).to_bytes(4, "little"), frame))

    def _take(self, frame: bytes) -> None:
        raise NotImplementedError


class Wire(_Frames):
    """The calling end."""

    def __init__(self, address: Address) -> None:
        super().__init__(FRAME_MAX)
        self.address = address
        self._greeted = asyncio.get_running_loop().create_future()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    @classmethod
    async def open(cls, address: Address) -> Wire:
        """Connected and greeted. Raises OSError when there is no way to it."""
        loop, wire = asyncio.get_running_loop(), cls(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: wire, address.host, address.port)
                await wire._greeted
        except TimeoutError:
            wire.close()
            raise OSError("no connection in time") from None
        return wire

    @property
    def is_open(self) -> bool:
        """Whether calls may be made."""
        return self._transport is not None

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """The callee's answer or error; Unavailable when it is unknown whether it ran."""
        self._last += 1
        number, future = self._last, asyncio.get_running_loop().create_future()
        frame = _pickled((number, method, args))
        if not self.is_open:
            raise Unavailable("the connection was lost")
        self._calls[number] = future
        self._send(frame)
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    def connection_lost(self, _: Exception | None) -> None:
        super().connection_lost(None)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Unavailable("the connection was lost"))
        if not self._greeted.done():
            self._greeted.set_exception(OSError("the connection was lost"))

    def _take(self, frame: bytes) -> None:
        if not self._greeted.done():
            self._send(_proof(self.address.token, frame))
            self._greeted.set_result(None)
            return
        number, good, value = pickle.loads(frame)
        future = self._calls.get(number)
        if future is None or future.done():
            return  # who asked has given up
        if good:
            future.set_result(value)
        else:
            future.set_exception(value)


class Listener:
    """The called end of a process: answers calls with `serve(method, *args)`, each in a task of its own."""

    def __init__(self, serve: Serve) -> None:
        self.token = secrets.token_bytes(32)
        self.serve = serve
        self._server: asyncio.Server | None = None
        self._ends: set[_End] = set()

    async def open(self, host: str) -> Address:
        """Listens on one interface, at a port of the system's choice."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self, self._ends), host, 0)
        return Address(host, self._server.sockets[0].getsockname()[1], self.token)

    async def close(self) -> None:
        """Also ends the connections there are; calls under way go on."""
        if self._server is not None:
            self._server.close()
        for end in list(self._ends):
            end.close()


class _End(_Frames):
    """One caller's connection."""

    def __init__(self, listener: Listener, ends: set[_End]) -> None:
        super().__init__(GREETING_MAX)
        self._listener = listener
        self._ends = ends
        self._nonce = secrets.token_bytes(16)
        self._proven = False
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._ends.add(self)
        self._send(self._nonce)

    def connection_lost(self, _: Exception | None) -> None:
        super().connection_lost(None)
        self._ends.discard(self)

    def _take(self, frame: bytes) -> None:
        if self._proven:
            task = asyncio.create_task(self._answer(*pickle.loads(frame)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif hmac.compare_digest(frame, _proof(self._listener.token, self._nonce)):
            self._proven, self._max = True, FRAME_MAX
        else:
            log.warning("stranger_refused", peer=self._transport and self._transport.get_extra_info("peername"))
            self.close()

    async def _answer(self, number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            frame = _pickled((number, True, await self._listener.serve(method, *args)))
        except BreakersError as error:
            frame = _pickled((number, False, error))
        except Exception as error:
            trace = "".join(traceback.format_tb(error.__traceback__, limit=8))
            log.error("call_failed", method=method, error=type(error).__name__, trace=trace)
            frame = _pickled((number, False, Unavailable(f"{type(error).__name__} in an actor")))
        self._send(frame)


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def _proof(token: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, nonce, "sha256")


def _watch(sock: socket.socket) -> None:
    """Has the system notice an end that is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options: Mapping[str, int] = {
        "TCP_KEEPIDLE": 1,
        "TCP_KEEPINTVL": 1,
        "TCP_KEEPCNT": SILENT_S - 1,
        "TCP_USER_TIMEOUT": SILENT_S * 1000,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # they are Linux's
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Wires:
    """The wires of this process by actor name. `find` asks Ray where an actor listens: None when it does not, raises
    Unavailable when there is none or nobody knows."""

    def __init__(self, find: Callable[[str], Awaitable[Address | None]]) -> None:
        self._find = find
        self._open: dict[str, Wire] = {}
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._look_at: dict[str, float] = {}

    def get(self, actor: str) -> Wire | None:
        """An open wire; where there is none, one is looked for meanwhile."""
        wire = self._open.get(actor)
        if wire is not None and not wire.is_open:
            wire = None
            del self._open[actor]
            self._look_at.pop(actor, None)
        if asyncio.get_running_loop().time() >= self._look_at.get(actor, 0.0) and actor not in self._looking:
            self._looking[actor] = asyncio.create_task(self._look(actor))
        return wire

    async def _look(self, actor: str) -> None:
        pause = AGAIN_S
        try:
            if await self._renew(actor):
                pause = VOUCH_S
        finally:
            self._look_at[actor] = asyncio.get_running_loop().time() + pause
            del self._looking[actor]

    async def _renew(self, actor: str) -> bool:
        """Whether there is a wire now to where the actor is."""
        address = None
        with contextlib.suppress(BreakersError):
            address = await self._find(actor)
        wire = self._open.get(actor)
        if wire is not None and wire.is_open and wire.address == address:
            return True
        if wire is not None:
            wire.close()
            del self._open[actor]
        if address is None:
            return False
        try:
            self._open[actor] = await Wire.open(address)
        except OSError as error:
            log.warning("no_wire", actor=actor, host=address.host, port=address.port, error=str(error))
            return False
        return True
