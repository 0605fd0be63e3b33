"""What the port of a replica takes in: requests that HAProxy of this cluster sends, and of all else no more than it
takes to see that they are not. Serve's fallback proxy has the same.

HAProxy proves itself by a header (api/launch/haproxy.py). It is looked at when a request's head is there, before Serve
or the app learn of it, and is not handed on. A request without it is 403 and ends its connection: nothing behind its
head is parsed, however many requests came with it. Until its first proof a connection has HEAD_S seconds,
HEAD_BYTES_MAX bytes for a head, and one of UNPROVEN_MAX places: when all are taken, the connection that waits longest
makes room, so whoever takes them has to do so anew within the millisecond in which HAProxy connects and sends.
Connections of HAProxy are bounded by HAProxy; it sends a request when it has the answer to the one before, so more than
PIPELINED_MAX that wait end a connection. Trailers, which come after the look at the head, are nobody's headers. Of a
body that goes on after its answer LINGER_BYTES_MAX bytes and LINGER_S seconds are taken in, so that a caller who sends
all of it first sees the answer; then the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import uuid
from collections import Counter
from typing import Any, Literal, cast, get_args

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.admission.addresses import source
from api.admission.outgoing import DIRECT
from api.launch import haproxy as ingress
from breaker_actors.telemetry.meters import Meters

HEAD_S = 10.0
HEAD_BYTES_MAX = 2 * ingress.HEAD_BYTES_MAX
"""HAProxy hands on half of it at most, and headers of its own."""
UNPROVEN_MAX = 256
PIPELINED_MAX = 1
"""Requests of a connection that wait for the answer to another one: an answer may be whole for HAProxy before the app
is done with it."""

LINGER_S = 10.0
LINGER_BYTES_MAX = 16 << 20
"""Twice the largest body that is taken."""

What = Literal["unproven", "late", "head", "connections", "pipelined", "body", "still"]
refused: dict[What, int] = {each: 0 for each in get_args(What)}
"""What was refused in this process: requests without a proof, and what is no request; connections that sent no whole
head in time, too long a head, made room for another one or had none, sent requests without waiting for answers, or a
body long after its answer, or took nothing of an answer."""
_NAME = ingress.PROOF.encode()
_offers_direct = False


def offer_direct() -> None:
    """From here on requests of this process have a Direct. For a replica: what a proxy takes in goes to the app by way
    of another process."""
    global _offers_direct
    _offers_direct = True


def tell(meters: Meters) -> None:
    """Brings a registry up to date."""
    for what, n in refused.items():
        meters.total("breakers_port_refused_total", n, what=what)


class Port:
    """One listening server. `proof`: what a request's header has to say; None: Ray asks for no token, and every request
    counts as proven. `head_s`, `unproven_max`: as HEAD_S and UNPROVEN_MAX. Where HAProxy is not before it:
    `connections_max`, of which one source has half; `still_s`: how long a client may take nothing of an answer."""

    def __init__(
        self,
        proof: str | None,
        head_s: float = HEAD_S,
        unproven_max: int = UNPROVEN_MAX,
        *,
        connections_max: int | None = None,
        still_s: float | None = None,
    ) -> None:
        self._proof = proof.encode() if proof else None
        self._unproven_max = unproven_max
        self._connections_max = connections_max
        self._connections = Counter[str]()
        self.still_s = still_s
        self.head_s = head_s
        self.unproven: dict[Connection, None] = {}  # those that came first are first

    def proves(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Whether a request is HAProxy's. Takes the proof out of its headers."""
        given = [value for name, value in headers if name == _NAME]
        headers[:] = [header for header in headers if header[0] != _NAME]
        return self._proof is None or (len(given) == 1 and hmac.compare_digest(given[0], self._proof))

    def has_room(self, address: str) -> bool:
        """Takes a place for a connection of a source, where there is one; it is given back by `leave`."""
        most = self._connections_max
        if most is not None and (self._connections[address] >= most // 2 or self._connections.total() >= most):
            return False
        self._connections[address] += 1
        return True

    def leave(self, address: str) -> None:
        self._connections[address] -= 1
        if not self._connections[address]:
            del self._connections[address]

    def admit(self, connection: Connection) -> None:
        """A new connection waits for its proof."""
        if len(self.unproven) >= self._unproven_max:
            next(iter(self.unproven)).cut("connections")
        self.unproven[connection] = None

    def protocol(self, **options: Any) -> Connection:
        """For uvicorn, which makes one for each connection."""
        return Connection(self, **options)


class Connection(HttpToolsProtocol):
    """uvicorn's own protocol with the bounds it lacks. Its own attributes have slots: a dict of more than 30 takes a
    kilobyte more, of each connection."""

    __slots__ = (
        *("_deadline", "_has_place", "_head_bytes", "_in_head", "_linger", "_lingered_bytes"),
        *("_port", "_source", "_still"),
    )

    def __init__(self, port: Port, **options: Any) -> None:
        super().__init__(**options)
        self._port = port
        self._in_head, self._head_bytes = True, 0
        self._deadline: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._still: asyncio.TimerHandle | None = None
        self._source, self._has_place = "", False
        self._lingered_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._source = source(self.client[0] if self.client else None)
        self._has_place = self._port.has_room(self._source)
        if not self._has_place:
            self.cut("connections")
            return
        self._port.admit(self)
        self._deadline = self.loop.call_later(self._port.head_s, self.cut, "late")

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_unproven()
        self._end_linger()
        self._end_still()
        if self._has_place:
            self._port.leave(self._source)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More waits for the client than it may; it has so long to take some."""
        super().pause_writing()
        if self._port.still_s is not None and self._still is None:
            self._still = self.loop.call_later(self._port.still_s, self.cut, "still")

    def resume_writing(self) -> None:
        self._end_still()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parses what came, of a head no more than it may have."""
        self._unset_keepalive_if_required()
        if self._linger is not None:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > LINGER_BYTES_MAX:
                self.cut("body")
        while data and not self.transport.is_closing():
            room = HEAD_BYTES_MAX + 1 - self._head_bytes if self._in_head else len(data)
            piece, data = data[:room], data[room:]
            if self._in_head:
                self._head_bytes += len(piece)
            self._parse(piece)
            if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
                self.cut("head")

    def _parse(self, piece: bytes) -> None:
        """Hands on a piece, or says what is wrong with it. What a callback raises ends the parsing at its place."""
        with contextlib.suppress(httptools.HttpParserUpgrade):  # answered as if it had asked for none
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserError:
                if self.transport.is_closing():
                    return
                if self in self._port.unproven:
                    self._refuse()
                else:
                    self.send_400_response("Invalid HTTP request received.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if not self._port.proves(self.headers):
            self._refuse()
            raise _RefusedError
        if len(self.pipeline) >= PIPELINED_MAX:
            self.cut("pipelined")
            raise _RefusedError
        self._leave_unproven()
        super().on_headers_complete()
        if _offers_direct:
            cast(dict[str, Any], self.scope)[DIRECT] = _Answer(self.cycle)

    def on_message_complete(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._end_linger()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not (self._in_head or self.pipeline or self.transport.is_closing()):
            self._lingered_bytes = 0
            self._linger = self.loop.call_later(LINGER_S, self.cut, "body")

    def _refuse(self) -> None:
        """Answers whoever passes by HAProxy, and ends the connection, with whatever else came on it."""
        refused["unproven"] += 1
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_refusal())
            self.transport.close()
        else:  # in the middle of another answer
            self.transport.abort()

    def cut(self, what: What) -> None:
        """Ends the connection at once."""
        if not self.transport.is_closing():
            refused[what] += 1
        self._leave_unproven()
        self.transport.abort()

    def _end_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _end_still(self) -> None:
        if self._still is not None:
            self._still.cancel()
            self._still = None

    def _leave_unproven(self) -> None:
        self._port.unproven.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Answer:
    """The Direct of one answer. uvicorn's `send` writes its pieces in the same form, and the same way."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    def write(self, piece: bytes) -> bool:
        cycle = self._cycle
        ready = cycle.chunked_encoding and not (cycle.response_complete or cycle.disconnected)
        if not ready or cycle.flow.write_paused or cycle.transport.is_closing():
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True


class _RefusedError(Exception):
    """Ends the parsing of a connection that is closed."""


def _refusal() -> bytes:
    """The answer to whoever passes by HAProxy."""
    number = uuid.uuid4().hex
    message = "This port is HAProxy's; ask at the port of the service."
    body = json.dumps({"error": "forbidden", "code": "forbidden", "message": message, "request_id": number})
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n" for name, value in (headers | {"x-request-id": number}).items()]
    return f"HTTP/1.1 403 Forbidden\r\n{''.join(lines)}\r\n{body}".encode()
