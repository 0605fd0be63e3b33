"""Direct connections between processes: a call over one costs a tenth of a call through Ray, in time and in CPU.

Ray stays the one who knows: it starts actors, says where each of them listens (and with which token), and takes every
call for which there is no wire. Wires are made in the background, one per pair of processes, and are given up when they
break or Ray does not vouch for the other end any more.

A frame is a length (4 bytes, little endian), the call's number (8 bytes), what it is (1 byte), and a pickle. Before the
first one both ends prove that they have the token, which only Ray gives out: who can get it could call the actor, or
answer for it, through Ray as well. Nothing is unpickled before the peer has authenticated. Several calls share a
connection and may end in any order; how many are under way is bounded by their callers (lanes have one each).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import pickle  # nosec B403 # read only after both ends have proven the token
import secrets
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import structlog

from breaker_actors.errors import BreakersError, Unavailable
from breaker_actors.messages import Address
from breaker_actors.telemetry.guard import run_supervised
from breaker_actors.telemetry.meters import Meters
from breaker_actors.transport.strangers import Strangers, What

FRAME_MAX = 256 << 20
"""Far beyond what a lane carries in one call."""
NONCE_BYTES, PROOF_BYTES = 16, 32
GREETING_MAX = NONCE_BYTES + PROOF_BYTES
CONNECT_S = 2.0
"""For a connection until both ends have proven themselves."""
AGAIN_S = 1.0
"""After an attempt that failed, calls go through Ray for so long before the next one."""
VOUCH_S = 5.0
"""A wire in use is asked about so often: whether its actor still lives at the other end. One that has not been asked
about for twice as long is not used before it has."""
OVERDUE_S = 2.0
"""A call that takes so long has it asked at once: the other machine may be gone without a word."""
IDLE_S = 4
"""An idle connection is lost when the other machine has not answered for so long (RFC 1122 section 4.2.3.6)."""
CALL, RESULT, ERROR = 0, 1, 2
OWN_CERTIFICATE = "BRK_RAY_CERTIFICATE"
"""Names the certificate that a node shows at Ray's ports where api/launch/ray_authority.py made it."""

Serve = Callable[..., Awaitable[Any]]
log = structlog.get_logger()


def encrypts(environ: Mapping[str, str]) -> bool:
    """Whether the operator has Ray encrypt its calls, so that nothing is to leave a machine in the clear. Where our own
    certificates guard Ray's ports (OWN_CERTIFICATE), it is they alone who decided, for the sake of the token."""
    own = environ.get(OWN_CERTIFICATE)
    ours = own is not None and own == environ.get("RAY_TLS_SERVER_CERT")
    return environ.get("RAY_USE_TLS", "0").lower() in ("1", "true") and not ours


def may_carry(address: str, encrypting: bool) -> bool:
    """Whether calls to a node may go over wires, which are not encrypted. `encrypting`: Ray is told to encrypt its own;
    then only those that never leave the machine."""
    return not encrypting or ipaddress.ip_address(address).is_loopback


class _Frames(asyncio.Protocol):
    """Cuts a stream of bytes into frames; `_max` bounds the next ones."""

    def __init__(self) -> None:
        self._max = GREETING_MAX
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _keep_alive(self._transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and self._transport is not None:
            size = int.from_bytes(self._received[:4], "little")
            if size > self._max:
                self._too_long()
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

    def _too_long(self) -> None:
        self.close()

    def _send(self, *parts: bytes) -> None:
        if self._transport is not None:
            self._transport.writelines((sum(map(len, parts)).to_bytes(4, "little"), *parts))

    def _take(self, frame: bytes) -> None:
        raise NotImplementedError


class Wire(_Frames):
    """The calling end."""

    def __init__(self, address: Address) -> None:
        super().__init__()
        self.address = address
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self._nonces: bytes | None = None
        self._proven: asyncio.Future[None] = self._loop.create_future()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._last = 0

    @classmethod
    async def open(cls, address: Address) -> Wire:
        """Connected, and sure of whom to. Raises OSError when there is no way to it."""
        loop, wire = asyncio.get_running_loop(), cls(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: wire, address.host, address.port)
                await wire._proven
        except TimeoutError:
            wire.close()
            raise OSError("no connection in time") from None
        except BaseException:
            wire.close()
            raise
        return wire

    @property
    def is_open(self) -> bool:
        """Whether calls may be made."""
        return self._transport is not None

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """The callee's answer or error; Unavailable when it is unknown whether it ran."""
        self._last += 1
        number, future, content = self._last, self._loop.create_future(), _pickled((method, args))
        if not self.is_open:
            raise Unavailable("the connection was lost")
        self._calls[number] = future
        self._send(_head(number, CALL), content)
        try:
            return await future
        finally:
            self._calls.pop(number, None)

    def connection_lost(self, _: Exception | None) -> None:
        super().connection_lost(None)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Unavailable("the connection was lost"))
        if not self._proven.done():
            self._proven.set_exception(OSError("the connection was lost"))

    def _take(self, frame: bytes) -> None:
        if self._max == GREETING_MAX:
            self._greet(frame)
            return
        number, kind, content = _parts(frame)
        future = self._calls.get(number)
        if future is None or future.done():
            return  # who asked has given up
        try:
            value = pickle.loads(content)  # nosec B301 # of a peer that proved it
        except Exception as error:
            kind, value = ERROR, Unavailable(f"an answer that can't be read ({type(error).__name__})")
        if kind == RESULT:
            future.set_result(value)
        else:
            future.set_exception(value)

    def _greet(self, frame: bytes) -> None:
        token = self.address.token
        if self._nonces is None:
            mine = secrets.token_bytes(NONCE_BYTES)
            self._nonces = frame + mine
            self._send(mine, _proof(token, b"caller", self._nonces))
        elif hmac.compare_digest(frame, _proof(token, b"called", self._nonces)) and not self._proven.done():
            self._max = FRAME_MAX
            self._proven.set_result(None)
        else:
            self.close()
            if not self._proven.done():
                self._proven.set_exception(OSError("somebody else listens there"))


class Listener:
    """The called end of a process: answers calls with `serve(method, *args)`, each in a task of its own. Connections
    that have not proven themselves are bounded and counted (breaker_actors/transport/strangers.py)."""

    def __init__(self, serve: Serve, meters: Meters) -> None:
        self.token = secrets.token_bytes(32)
        self.serve = serve
        self.running: set[asyncio.Task[None]] = set()
        self.ends: set[_End] = set()
        self.strangers = Strangers(meters)
        self._server: asyncio.Server | None = None

    async def open(self, host: str) -> Address:
        """Listens on one interface, at a port of the system's choice. Raises OSError when that can't be done."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self), host, 0)
        return Address(host, self._server.sockets[0].getsockname()[1], self.token)

    async def close(self) -> None:
        """Also ends the connections there are; calls under way go on."""
        if self._server is not None:
            self._server.close()
        for end in list(self.ends):
            end.close()
        self.strangers.close()


class _End(_Frames):
    """One caller's connection. Who has not proven itself in CONNECT_S is not kept."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.ends.add(self)
        self._listener.strangers.admit(self)
        self._waiting = asyncio.get_running_loop().call_later(CONNECT_S, self.refuse, "late")
        self._send(self._nonce)

    def connection_lost(self, _: Exception | None) -> None:
        super().connection_lost(None)
        self._waiting.cancel()
        self._listener.strangers.leave(self)
        self._listener.ends.discard(self)

    def refuse(self, what: What) -> None:
        """Ends a connection that has not proven itself."""
        if self._listener.strangers.leave(self):
            self._listener.strangers.count(what, self._transport and self._transport.get_extra_info("peername"))
        self.close()

    def _too_long(self) -> None:
        self.refuse("unproven")

    def _take(self, frame: bytes) -> None:
        if self._max == GREETING_MAX:
            self._greet(frame)
            return
        number, _, content = _parts(frame)
        task = asyncio.create_task(self._answer(number, content))
        self._listener.running.add(task)
        task.add_done_callback(self._listener.running.discard)

    def _greet(self, frame: bytes) -> None:
        nonces = self._nonce + frame[:NONCE_BYTES]
        if hmac.compare_digest(frame[NONCE_BYTES:], _proof(self._listener.token, b"caller", nonces)):
            self._waiting.cancel()
            self._listener.strangers.leave(self)
            self._max = FRAME_MAX
            self._send(_proof(self._listener.token, b"called", nonces))
        else:
            self.refuse("unproven")

    async def _answer(self, number: int, content: bytes) -> None:
        kind, answer, method = ERROR, b"", ""
        try:
            method, args = pickle.loads(content)  # nosec B301 # of a peer that proved it
            answer = _pickled(await self._listener.serve(method, *args))
            kind = RESULT
        except BreakersError as error:
            answer = _pickled(error)
        except Exception as error:
            trace = "".join(traceback.format_tb(error.__traceback__, limit=8))
            log.error("call_failed", method=method, error=type(error).__name__, trace=trace)
            answer = _pickled(Unavailable(f"{type(error).__name__} in an actor"))
        finally:
            # also where the task was cancelled: who asked is not to wait in vain
            self._send(_head(number, kind), answer or _pickled(Unavailable("the call was given up")))


def _pickled(value: object) -> bytes:
    """Raises Unavailable for what is too long: it would only break the connection."""
    content = pickle.dumps(value, protocol=5)
    if len(content) > FRAME_MAX - 9:
        raise Unavailable("too much for one call")
    return content


def _head(number: int, kind: int) -> bytes:
    return number.to_bytes(8, "little") + bytes((kind,))


def _parts(frame: bytes) -> tuple[int, int, bytes]:
    return int.from_bytes(frame[:8], "little"), frame[8] if len(frame) > 8 else ERROR, frame[9:]


def _proof(token: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.digest(token, who + nonces, "sha256")


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", IDLE_S - 1)):
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
        """An open wire that Ray has vouched for; where there is none, one is looked for meanwhile."""
        now, wire = asyncio.get_running_loop().time(), self._open.get(actor)
        if wire is not None and not wire.is_open:
            del self._open[actor]
            if now - wire.since > AGAIN_S:
                self._look_at.pop(actor, None)
            wire = None
        due_at = self._look_at.get(actor, 0.0)
        if now >= due_at:
            self._look(actor)
        return wire if now < due_at + VOUCH_S else None

    async def call(self, actor: str, wire: Wire, method: str, args: tuple[Any, ...]) -> Any:
        """A call over a wire of `get`. One that hangs fails when Ray knows that its actor is gone."""
        overdue = asyncio.get_running_loop().call_later(OVERDUE_S, self._look, actor)
        try:
            return await wire.call(method, args)
        finally:
            overdue.cancel()

    def _look(self, actor: str) -> None:
        if actor not in self._looking:
            task = self._looking[actor] = asyncio.create_task(run_supervised("wires", self._renew(actor)))
            task.add_done_callback(lambda _: self._looked(actor))

    def _looked(self, actor: str) -> None:
        del self._looking[actor]
        pause_s = VOUCH_S if actor in self._open else AGAIN_S
        self._look_at[actor] = asyncio.get_running_loop().time() + pause_s

    async def _renew(self, actor: str) -> None:
        """Keeps or makes a wire to where the actor is now."""
        address = None
        with contextlib.suppress(BreakersError):
            address = await self._find(actor)
        wire = self._open.get(actor)
        if wire is not None and wire.is_open and wire.address == address:
            return
        if wire is not None:
            wire.close()
            del self._open[actor]
        if address is None:
            return
        try:
            self._open[actor] = await Wire.open(address)
        except OSError as error:
            log.warning("no_wire", actor=actor, host=address.host, port=address.port, error=str(error))
