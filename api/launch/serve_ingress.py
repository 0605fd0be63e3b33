"""The door of a single node without HAProxy (BREAKERS_INGRESS=serve): Serve's own proxy, with the bounds it lacks.

Heads, silent connections and bodies after their answer are bounded as at a replica's port
(api/launch/replica_port.py); what callers write into X-Forwarded-For, and into headers of Serve's, counts for nothing;
Serve's own pages (`/-/routes`, `/-/healthz`) are 404. One source has half of CONNECTIONS_MAX, and who takes nothing of
an answer for STILL_S is cut; what waits in the proxy is bounded by api/launch/serve_bounds.py. What HAProxy does
beyond that is missing: a certificate that is read anew, reads that are asked of another replica when one dies.
"""

from __future__ import annotations

import os
import re
import types
from typing import Any

from ray.serve._private import http_util
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from api.admission.outgoing import STILL_S
from api.launch.haproxy import REQUEST_ID, SERVES_OWN
from api.launch.listeners import BELIEVED
from api.launch.replica_port import Port
from api.launch.serve_bounds import ProxyBounds

CONNECTIONS_MAX = 8_000
_SERVES_OWN = re.compile(SERVES_OWN, re.IGNORECASE)
_serves: Any = http_util.start_asgi_http_server
_start: Any = types.FunctionType(_serves.__code__, _serves.__globals__)
"""What Serve's function does by itself."""


def bound() -> list[Any]:
    """What Serve calls before it starts an HTTP server of its own (RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH), for a
    list of middlewares: from here on this process's servers have bounds, and believe nobody. Repeated, it changes
    nothing."""
    os.environ[BELIEVED] = ""
    # Within the function, and by its code alone: see api/launch/listeners.py.
    _serves.__code__ = _serve_bounded.__code__
    return [Middleware(ProxyBounds), Middleware(ServesOwn)]


def _serve_bounded(app: Any, http_options: Any, *, event_loop: Any, enable_so_reuseport: bool = False) -> Any:
    """What becomes of Serve's function. It runs among Serve's names, hence the import."""
    from api.launch import serve_ingress

    return serve_ingress.start_bounded(
        app, http_options, event_loop=event_loop, enable_so_reuseport=enable_so_reuseport
    )


async def start_bounded(app: Any, http_options: Any, *, event_loop: Any, enable_so_reuseport: bool) -> Any:
    """Serve's own function, with the protocol of a replica's port."""
    task, server = await _start(app, http_options, event_loop=event_loop, enable_so_reuseport=enable_so_reuseport)
    # The server's task has not run yet: it listens by the protocols of its configuration.
    server.config.http = Port(None, connections_max=CONNECTIONS_MAX, still_s=STILL_S).protocol
    server.config.ws = "none"
    return task, server


class ServesOwn:
    """What is Serve's own is kept from strangers: its pages tell what runs here, its headers would steer it, and it
    fails on an X-Request-ID that is no text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == "/-" or scope["path"].startswith("/-/"):
            body = {"error": "not_found", "code": "not_found", "message": "There is no such path."}
            await JSONResponse(body, 404)(scope, receive, send)
        else:
            kept = [(name, value) for name, value in scope["headers"] if _is_callers(name.decode("latin-1"), value)]
            await self._app({**scope, "headers": kept}, receive, send)


def _is_callers(name: str, value: bytes) -> bool:
    if name.lower() == "x-request-id":
        return re.fullmatch(REQUEST_ID, value.decode("latin-1")) is not None
    return _SERVES_OWN.match(name) is None
