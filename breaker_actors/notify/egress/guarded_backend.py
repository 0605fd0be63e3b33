"""Connections for HTTP whose policy is checked on the very address that is connected to.

A host is resolved once per connection and the addresses that pass are dialled as numbers: no second look-up can give
another answer. TLS above this still verifies the host's name. An answer that was remembered is judged like a new one.

The time limit of an exchange is kept here, at each read and write, and not by cancelling the exchange: httpcore keeps
for ever a connection whose request was cancelled between two of its steps, and a pool full of such sends nothing more.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpcore

from breaker_actors.notify.egress.policy import is_address, permits_address, permits_port

Resolve = Callable[[str, int], Awaitable[list[str]]]
ADDRESSES_MAX = 4
"""Of a host with more addresses the first few are tried, each with its share of the time that is left."""
CONNECT_S = 10.0
REFUSAL_S = 1.0
"""Longer than nearly every look-up of a name."""
READ_MAX, LINES_AT_ONCE = 4_096, 32
"""Bytes that are read at once, and lines that are parsed in one go of the loop that serves everybody."""
HEAD_BYTES_MAX, HEAD_LINES_MAX = 16_384, 128
"""What may come before a body: the status, its headers, and any number of informational answers before them. A head is
parsed as a whole when it ends."""
ANSWER_BYTES_MAX, ANSWER_LINES_MAX, FRAMED = 65_536, 1_024, 4
"""Of one answer in all: chunks of a body and the headers behind it are lines, too. What follows a head may be that many
times what is wanted of the body."""
PORTION_BYTES = 16
"""What a portion counts at least, however little arrived: an answer may come byte by byte."""
BLANKS_MAX = 100
"""Blanks in a row. h11 takes time by their square to find a line with more of them not valid."""
_LINES = re.compile(rb"(?:[^\n]*+\n){%d}" % LINES_AT_ONCE)
_BLANKS = re.compile(rb"(?<![ \t])[ \t]{%d}" % (BLANKS_MAX + 1))


_ENDS: ContextVar[float | None] = ContextVar("ends", default=None)
"""When the exchange of this task has to be over, on the loop's clock."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """What this task asks of the network in here ends by then, with httpcore's own timeouts. A limit within another
    one can only be shorter."""
    ends, outer = asyncio.get_running_loop().time() + seconds, _ENDS.get()
    token = _ENDS.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _ENDS.reset(token)


def _left_s(timeout: float | None) -> float | None:
    ends = _ENDS.get()
    if ends is None:
        return timeout
    left_s = max(0.0, ends - asyncio.get_running_loop().time())
    return left_s if timeout is None else min(left_s, timeout)


class DestinationRefused(Exception):
    """The address or port is not one that notifications may go to."""


class NameRefused(Exception):
    """The host's name leads nowhere that notifications may go to. Whether it is unknown or leads to where only the
    service gets is not told: channels would be a way to look internal names up."""


class BoundedStream(httpcore.AsyncNetworkStream):
    """A connection of which no answer is read without end, nor what takes long to parse. What arrives is handed on in
    portions, others' turns between them, so that only what the parser asked for counts: what follows a head in the same
    piece is none of it."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._held = b""
        self._begin()

    def _begin(self) -> None:
        self._bytes = self._lines = self._blanks = 0
        self._bytes_max, self._lines_max = HEAD_BYTES_MAX, HEAD_LINES_MAX

    def end_head(self, body_max: int) -> None:
        """The status is known: the bounds of the whole answer hold from here on. `body_max`: bytes of the body that are
        wanted."""
        self._bytes_max = min(self._bytes + FRAMED * body_max, ANSWER_BYTES_MAX)
        self._lines_max = ANSWER_LINES_MAX

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore's interface
        """Raises httpcore.RemoteProtocolError beyond the bounds, which are counted since the last write."""
        if self._bytes >= self._bytes_max or self._lines >= self._lines_max:
            raise httpcore.RemoteProtocolError("the answer has no end")
        left_s = _left_s(timeout)
        if not self._held:
            self._held = await self._stream.read(min(max_bytes, READ_MAX), left_s)
        elif left_s == 0:
            raise httpcore.ReadTimeout
        else:
            await asyncio.sleep(0)
        return self._portion() if self._held else b""

    def _portion(self) -> bytes:
        """The beginning of what is held, as far as it may be handed on now."""
        lines = _LINES.match(self._held)
        portion = b" " * self._blanks + (self._held[: lines.end()] if lines else self._held)
        if too_many := _BLANKS.search(portion):
            portion = portion[: too_many.end() - 1]
        size = len(portion) - self._blanks
        if not size:
            raise httpcore.RemoteProtocolError("the answer has blanks without end")
        found, self._held = self._held[:size], self._held[size:]
        self._blanks = len(portion) - len(portion.rstrip(b" \t"))
        self._bytes += max(size, PORTION_BYTES)
        self._lines += found.count(b"\n")
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as above
        self._begin()
        await self._stream.write(buffer, _left_s(timeout))

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, _left_s(timeout)))

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._held:
            return True
        return self._stream.get_extra_info(info)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """The network of an httpcore pool: TCP only, and only where the policy lets it go. `hides_names`: an unknown name
    and one without a permitted address are refused alike."""

    def __init__(
        self,
        resolve: Resolve,
        permits: Callable[[str], bool],
        permits_port: Callable[[int], bool],
        hides_names: bool = True,
    ) -> None:
        self._resolve = resolve
        self._permits = permits
        self._permits_port = permits_port
        self._hides_names = hides_names
        self._net = httpcore.AnyIOBackend()

    @classmethod
    def for_policy(cls, resolve: Resolve, allow_private: bool) -> GuardedBackend:
        return cls(
            resolve,
            lambda address: permits_address(address, allow_private),
            lambda port: permits_port(port, allow_private),
            hides_names=not allow_private,
        )

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises DestinationRefused, NameRefused, httpcore.ConnectError or httpcore.ConnectTimeout."""
        if not self._permits_port(port):
            raise DestinationRefused
        try:
            async with asyncio.timeout(_left_s(timeout)):
                addresses = await self._addresses(host, port)
        except TimeoutError:
            raise httpcore.ConnectTimeout("name") from None
        left_s = _left_s(timeout)
        return await self._dial(addresses, port, CONNECT_S if left_s is None else left_s)

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The first addresses of a host that may be connected to. A name without any takes REFUSAL_S at least to be
        refused, so that the time does not tell what the words do not."""
        clock = asyncio.get_running_loop().time
        ready = clock() + REFUSAL_S
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            if not self._hides_names:
                raise httpcore.ConnectError("name") from error
            found = []
        permitted = [address for address in found if self._permits(address)]
        if permitted:
            return permitted[:ADDRESSES_MAX]
        if is_address(host) or not self._hides_names:
            raise DestinationRefused
        await asyncio.sleep(ready - clock())
        raise NameRefused

    async def _dial(self, addresses: list[str], port: int, within_s: float) -> httpcore.AsyncNetworkStream:
        clock = asyncio.get_running_loop().time
        ends = clock() + within_s
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                share_s = max(0.0, ends - clock()) / left
                return BoundedStream(await self._net.connect_tcp(address, port, timeout=share_s))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        raise httpcore.ConnectError("address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
