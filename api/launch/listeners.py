"""Where the HTTP servers behind HAProxy listen, and for whom: HAProxy of this cluster, and nobody else.

Serve binds a replica's port and its fallback proxy's to the host that HAProxy is to listen on, often 0.0.0.0: whoever
reaches the machine would pass HAProxy by, with its limits, its TLS, and any rules in front of it. HAProxy asks servers
of its own node at 127.0.0.1 and those of other nodes at the node's address, so these two do.

Others of the machine, or of the nodes' network, can connect there, too: what is not proven to come from HAProxy is
refused (api/launch/replica_port.py). HAProxy of some node, which is all that is left, says in X-Forwarded-For where a
request came from, whatever the caller wrote into it. uvicorn would believe loopback alone: all callers that came in by
another node would be one address. WebSockets, which nothing here uses, are not offered: uvicorn would begin them on its
own.
"""

from __future__ import annotations

import errno
import os
import socket
import types
from typing import Any

import ray.util
from ray.serve._private import http_util

from api.launch import haproxy as ingress
from api.launch import held_ports
from api.launch.replica_port import Port

LOOPBACK = "127.0.0.1"
BELIEVED = "FORWARDED_ALLOW_IPS"
"""Environment variable: whose X-Forwarded-For uvicorn takes."""

_serves: Any = http_util.start_asgi_http_server
_start: Any = types.FunctionType(_serves.__code__, _serves.__globals__)
"""What Serve's function does by itself."""


def narrow() -> list[Any]:
    """What Serve calls before it starts an HTTP server of its own (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH), for a
    list of middlewares: from here on this process's servers listen as said above, and believe HAProxy of every node.
    Repeated, it changes nothing."""
    os.environ[BELIEVED] = "*"
    # Within the function: Ray sends the fallback proxy's class by value, so its name for it is in no module.
    _serves.__code__ = _serve_narrowly.__code__
    return []


def _serve_narrowly(app: Any, http_options: Any, *, event_loop: Any, enable_so_reuseport: bool = False) -> Any:
    """What becomes of Serve's function. It runs among Serve's names, hence the import."""
    from api.launch import listeners

    return listeners.start_narrowly(app, http_options, event_loop=event_loop, enable_so_reuseport=enable_so_reuseport)


async def start_narrowly(app: Any, http_options: Any, *, event_loop: Any, enable_so_reuseport: bool = False) -> Any:
    """Serve's own function, with loopback for a host, the node's address as a second listener, and bounds on both.
    Raises OSError or ValueError when Ray asks for a token and there is none: nobody could prove anything; RuntimeError,
    as for one that is taken, for a port that is not among those that are held."""
    port = Port(ingress.proof(os.environ))
    if (held := held_ports.told(os.environ)) is not None:
        if http_options.port not in held:
            raise RuntimeError(f"port {http_options.port} is not held") from OSError(errno.EADDRINUSE, "not held")
        enable_so_reuseport = True
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    more = [_bound(address, http_options.port, enable_so_reuseport) for address in addresses(node)]
    options = http_options.model_copy(update={"host": LOOPBACK})
    try:
        task, server = await _start(app, options, event_loop=event_loop, enable_so_reuseport=enable_so_reuseport)
    except BaseException:
        for listener in more:
            listener.close()
        raise
    # The server's task has not run yet: it listens on what its startup is given, by the protocols of its configuration.
    server.config.http, server.config.ws = port.protocol, "none"
    startup = server.startup

    async def start_on_all(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets=[*(sockets or []), *more])

    server.startup = start_on_all
    return task, server


def addresses(node: str) -> list[str]:
    """Where other nodes reach this one, beside loopback; nowhere when the cluster is on loopback itself."""
    return [] if node == "::1" or node.startswith("127.") else [node]


def _bound(address: str, port: int, shared: bool) -> socket.socket:
    """A bound socket, that no other user can bind besides it: SO_REUSEADDR would let him until it listens. `shared`:
    another one of this user may have it, too, as when a new proxy follows an old one, whose connections linger.
    Raises RuntimeError from OSError, by which Serve knows to try another port."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise RuntimeError(f"can't listen on {address}:{port}") from error
    return listener
