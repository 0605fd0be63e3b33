"""Stop 1 of a sample's life: `create_app` builds the Quart app of one replica, its blueprints, error table and feed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import cast

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope
from quart import Quart, Response, request
from quart.asgi import ASGIHTTPConnection
from quart.utils import raise_task_exceptions
from werkzeug.routing import Map, UnicodeConverter

from api import limits, observing, problems
from api.context import EXTENSION, Replica
from api.feed import Feed
from api.reply import name_request, request_id
from api.routes import BLUEPRINTS
from api.senders import late_sender
from api.sse import StreamTiming
from api.usage import KeyUses
from breaker_actors.clock import Clock
from breaker_actors.gateway import Gateway
from breaker_actors.meters import Meters
from breaker_actors.notify.model import Sender
from breaker_actors.settings import Settings


class Connection(ASGIHTTPConnection):
    """Ends both of Quart's tasks when the server cancels the request.

    Quart waits for them in asyncio.wait, which leaves its children running: a stream whose client is gone would live
    on for ever. A double slash, which clients make of a base URL that ends in one, is read as a single one.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        path = re.sub("//+", "/", scope["path"])
        super().__init__(app, scope if path == scope["path"] else cast(HTTPScope, {**scope, "path": path}))

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        asked = self._create_request_from_scope(send)
        tasks = {
            asyncio.create_task(self.handle_messages(asked, receive)),
            asyncio.create_task(self.handle_request(asked, send)),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise_task_exceptions(done)


class Segment(UnicodeConverter):
    """One part of a path that is an id: never one of the words that stand in the same place, which are paths of their
    own, so that a wrong method on them is 405 like everywhere."""

    def __init__(self, map: Map) -> None:
        super().__init__(map)
        self.regex = r"(?!(?:metadata|state:batch|state:stream)\Z)[^/]+"


def create_app(
    gateway: Gateway,
    settings: Settings,
    clock: Clock,
    timing: StreamTiming | None = None,
    shards: Sequence[int] = (0,),
    owns_gateway: bool = True,
    names_requests: bool = True,
    meters: Meters | None = None,
    sender: Sender | None = None,
) -> Quart:
    """The app of one replica. `owns_gateway`: it opens the gateway when it starts and closes it in the end. `meters`:
    where it counts, if somebody wants to know. `sender`: what sends test notifications, if not the real one.

    `names_requests`: False where the server in front already puts X-Request-ID on every answer (Ray Serve does).
    """
    timing = timing or StreamTiming()
    meters = meters or Meters("api", "api")
    sender = sender or late_sender(settings, clock)
    feed = Feed(gateway, settings, clock, meters, timing, shards)
    uses = KeyUses(gateway.store, clock, meters)
    app = Quart("api", static_folder=None)
    app.asgi_http_class = Connection
    app.url_map.merge_slashes = False
    app.url_map.converters["default"] = Segment
    app.config.update(
        MAX_CONTENT_LENGTH=settings.max_body_bytes, RESPONSE_TIMEOUT=None, PROVIDE_AUTOMATIC_OPTIONS=False
    )
    app.extensions[EXTENSION] = Replica(gateway, settings, clock, feed, timing, uses, meters, sender)
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    problems.install(app)
    _watch_requests(app, names_requests)
    observing.install(app, meters, clock)
    limits.install(app, settings, meters)
    _live(app, app.extensions[EXTENSION], owns_gateway)
    return app


def _watch_requests(app: Quart, names_requests: bool) -> None:
    app.before_request(name_request)

    @app.after_request
    async def finish(response: Response) -> Response:
        if names_requests:
            response.headers["X-Request-ID"] = request_id()
        if request.method == "HEAD":
            headers = response.headers.copy()
            response.set_data(b"")
            response.headers = headers
        return response


def _live(app: Quart, parts: Replica, owns_gateway: bool) -> None:
    @app.before_serving
    async def start() -> None:
        if owns_gateway:
            await parts.gateway.open()
        parts.feed.start()
        parts.uses.start()

    @app.after_serving
    async def stop() -> None:
        await parts.uses.stop()
        await parts.feed.stop()
        await parts.sender.close()
        if owns_gateway:
            await parts.gateway.close()
