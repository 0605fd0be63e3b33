"""Ports that stay this user's when who listens there dies: HAProxy's two, each replica's, the fallback proxy's.

HAProxy believes whoever listens at a replica's port, callers whoever listens at the service's; and HAProxy starts only
where it gets the port of its metrics, too. While `breakers serve` runs it has each of these ports bound, too, without
listening: the kernel lets nobody listen beside it but sockets of the same user that ask to share (SO_REUSEPORT), and
refuses connections while nobody does. A socket that is bound only gets no connection, so nobody's is lost to it.

Replicas learn from their environment which ports are held, and listen on no others. A port that can't be held stops
no start: it is as free for others as it would be without this module, and a line says so.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Callable, Iterator, Mapping

from api.launch import processes

VARIABLE = "BRK_HELD_PORTS"
"""Environment variable: the ports, behind HAProxy, that are held; without it servers there bind what they are given,
for themselves alone."""
FALLBACK, FIRST, END = (
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT",
    "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT",
)
METRICS = "RAY_SERVE_HAPROXY_METRICS_PORT"
SHARED_BY_INGRESS = "SERVE_SOCKET_REUSE_PORT_ENABLED"
HERE = "127.0.0.1"
BLOCK = 100
"""Ports among which Serve chooses for replicas."""
HELD_MIN = BLOCK // 2
"""Of a block, those that should be free: replicas that die leave theirs for a while, and need others. Where others have
taken ports of every block, fewer will do."""
# Blocks that are looked at, in this order: where nothing else has its ports, then where the kernel takes those of
# outgoing connections from. Other users may have taken many.
_LOWER, _UPPER = range(10_000, 20_000, BLOCK), range(33_000, 60_000, BLOCK)
_TRIES = 20


class HeldPorts:
    """The ports that one service holds, until `close`. `warn` gets a line for what can't be held."""

    def __init__(self, warn: Callable[[str], None] = lambda line: None) -> None:
        self._warn = warn
        self._held: list[socket.socket] = []

    def hold_own(self, host: str, port: int) -> dict[str, str]:
        """Holds the service's own port. What the environment has to say for the ingress to share it."""
        try:
            self._held.append(bound(host, port))
        except OSError as error:
            self._warn(f"port {port} can't be held ({error.strerror}): others could take it while nobody listens there")
            return {}
        return {SHARED_BY_INGRESS: "1"}

    def hold_behind(self, replicas: int) -> dict[str, str]:
        """Holds ports for the servers behind HAProxy. What the environment has to say of them."""
        fallback = self._hold_free()
        block = self._hold_block(max(HELD_MIN, replicas + 1)) or self._hold_block(replicas + 1)
        if fallback is None or block is None:
            self._warn("ports of replicas can't be held: others could take the port of one that dies")
            return {}
        ports = [fallback.getsockname()[1], *(held.getsockname()[1] for held in block)]
        self._held += [fallback, *block]
        first = ports[1] // BLOCK * BLOCK
        own = {FALLBACK: str(ports[0]), FIRST: str(first), END: str(first + BLOCK)}
        return {**own, VARIABLE: " ".join(map(str, ports))}

    def hold_metrics(self) -> dict[str, str]:
        """Holds a port for HAProxy's metrics. What the environment has to say of it."""
        held = self._hold_free()
        if held is None:
            self._warn("the port of HAProxy's metrics can't be held: while others have it HAProxy can't start")
            return {}
        self._held.append(held)
        return {METRICS: str(held.getsockname()[1])}

    def close(self) -> None:
        """Lets go of all. Harmless when repeated."""
        while self._held:
            self._held.pop().close()

    def _hold_free(self) -> socket.socket | None:
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                return bound(HERE, processes.free_port())
        return None

    def _hold_block(self, least: int) -> list[socket.socket] | None:
        """What is free of a block of ports, at least so many."""
        for start in itertools.chain(*(random.sample(starts, len(starts)) for starts in (_LOWER, _UPPER))):  # nosec B311
            held = list(_free(range(start, start + BLOCK), least))
            if len(held) >= least:
                return held
            for socket_ in held:
                socket_.close()
        return None


def bound(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for this user and doesn't listen. Raises OSError when anybody has the port, another
    service of this user too."""
    held = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if host == "::":
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # To bind, connections of an earlier run that linger don't count. Afterwards nobody may take it for an own one
        # that lingers, and from here on those of this user that ask may share it: not before, or two services could.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        held.close()
        raise
    return held


def told(environ: Mapping[str, str]) -> frozenset[int] | None:
    """The ports a server behind HAProxy may have, all of them held; None: nothing is held."""
    ports = environ.get(VARIABLE)
    return frozenset(map(int, ports.split())) if ports else None


def _free(ports: range, least: int) -> Iterator[socket.socket]:
    """Those of them that can be held; ends where too few are left."""
    missed = 0
    for port in ports:
        try:
            yield bound(HERE, port)
        except OSError:
            missed += 1
            if missed > len(ports) - least:
                return
