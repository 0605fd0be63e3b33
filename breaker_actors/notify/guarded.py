"""Connections for HTTP whose policy is checked on the very address that is connected to.

A host is resolved once per connection and the addresses that pass are dialled as numbers: no second look-up can give
another answer. TLS above this still verifies the host's name. Look-ups run on threads of their own, one for all that
ask for the same host, so that slow name servers hold up nobody else until RESOLVERS hosts have such.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import httpcore

from breaker_actors.notify.policy import permits_address, permits_port

Resolve = Callable[[str, int], Awaitable[list[str]]]
RESOLVERS = 128
ADDRESSES_MAX = 4
"""Of a host with more addresses the first few are tried, each with its share of the time that is left."""
CONNECT_S = 10.0


class DestinationRefused(Exception):
    """The host has no address that notifications may go to."""


class Resolver:
    """Names to addresses by the system's resolver, which also reads numbers in all their spellings."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="notify-dns")
        self._asked: dict[str, asyncio.Future[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        """Raises OSError when the name is unknown. A look-up can't be stopped: who gives up leaves it to the next."""
        answer = self._asked.get(host)
        if answer is None:
            answer = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host)
            self._asked[host] = answer
            answer.add_done_callback(lambda done: self._forget(host, done))
        return await asyncio.shield(answer)

    def _forget(self, host: str, done: asyncio.Future[list[str]]) -> None:
        self._asked.pop(host, None)
        if not done.cancelled():
            done.exception()  # nobody may be left to be told

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """The network of an httpcore pool: TCP only, and only where the policy lets it go."""

    def __init__(self, resolve: Resolve, permits: Callable[[str], bool], permits_port: Callable[[int], bool]) -> None:
        self._resolve = resolve
        self._permits = permits
        self._permits_port = permits_port
        self._net = httpcore.AnyIOBackend()

    @classmethod
    def for_policy(cls, resolve: Resolve, allow_private: bool) -> GuardedBackend:
        return cls(
            resolve,
            lambda address: permits_address(address, allow_private),
            lambda port: permits_port(port, allow_private),
        )

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises DestinationRefused, httpcore.ConnectError or httpcore.ConnectTimeout."""
        if not self._permits_port(port):
            raise DestinationRefused
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError("name") from error
        open_ones = [address for address in addresses if self._permits(address)][:ADDRESSES_MAX]
        if not open_ones:
            raise DestinationRefused
        return await self._dial(open_ones, port, CONNECT_S if timeout is None else timeout)

    async def _dial(self, addresses: list[str], port: int, within_s: float) -> httpcore.AsyncNetworkStream:
        clock = asyncio.get_running_loop().time
        ends = clock() + within_s
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                return await self._net.connect_tcp(address, port, timeout=max(0.0, ends - clock()) / left)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if left == 1:
                    raise
        raise httpcore.ConnectError("address")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
