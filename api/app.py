"""Stop 1 of a sample's life: `create_app` builds the Quart app of one replica, its blueprints, error table and feed."""

from __future__ import annotations

from quart import Quart
from werkzeug.routing import Map, UnicodeConverter

from api import problems
from api.console import BLUEPRINTS as CONSOLE
from api.context.replica import EXTENSION, Replica, assemble
from api.middleware import idempotency, nul, rate_limits, request_log, waste
from api.middleware.connection import Asked, Connection
from api.routes import BLUEPRINTS
from api.stream.sse import StreamTiming
from breaker_actors.clock import Clock
from breaker_actors.gateway.gateway import Gateway
from breaker_actors.notify.lazy_sender import late_sender
from breaker_actors.notify.model import ExaminingSender
from breaker_actors.settings import Settings
from breaker_actors.telemetry.meters import Meters


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
    owns_gateway: bool = True,
    names_requests: bool = True,
    meters: Meters | None = None,
    sender: ExaminingSender | None = None,
) -> Quart:
    """The app of one replica. `owns_gateway`: it opens the gateway when it starts and closes it in the end. `meters`:
    where it counts, if somebody wants to know. `sender`: what sends test notifications, if not the real one.

    `names_requests`: False where the server in front already puts X-Request-ID on every answer (Ray Serve does).
    """
    meters = meters or Meters("api", "api")
    sender = sender or late_sender(settings, clock)
    parts = assemble(gateway, settings, clock, timing or StreamTiming(), meters, sender)
    app = Quart("api", static_folder=None)
    app.asgi_http_class, app.request_class = Connection, Asked
    app.url_map.merge_slashes = False
    app.url_map.converters["default"] = Segment
    app.config.update(RESPONSE_TIMEOUT=None, PROVIDE_AUTOMATIC_OPTIONS=False)
    app.extensions[EXTENSION] = parts
    for blueprint in (*BLUEPRINTS, *CONSOLE):
        app.register_blueprint(blueprint)
    problems.install(app)
    idempotency.install(app)
    request_log.install(app, meters, clock, names_requests)
    rate_limits.install(app, settings, meters, parts.caches)
    nul.install(app)
    waste.install(app, meters, waste.Waste(settings.rate_waste_bytes_per_s // settings.replicas))
    _live(app, parts, owns_gateway)
    return app


def _live(app: Quart, parts: Replica, owns_gateway: bool) -> None:
    @app.before_serving
    async def start() -> None:
        if owns_gateway:
            await parts.gateway.open()
        parts.feed.start()
        parts.listeners.start()
        parts.uses.start()

    @app.after_serving
    async def stop() -> None:
        await parts.uses.stop()
        await parts.listeners.stop()
        await parts.feed.stop()
        await parts.sender.close()
        if owns_gateway:
            await parts.gateway.close()
