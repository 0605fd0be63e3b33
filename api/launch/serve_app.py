"""Serve wiring: the deployment whose replicas each build a gateway and the Quart app around it. No routes here.

The app is built inside the replica because a Quart app does not survive pickling.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from collections.abc import Callable
from typing import Any

import ray
from ray import serve
from ray.serve import Application
from ray.serve.schema import LoggingConfig

from breaker_actors.clock import SystemClock, share_finely
from breaker_actors.settings import Settings

Build = Callable[[Settings], Any]

# An open state stream counts as an ongoing request for as long as it lives.
ONGOING_MAX = 20_000
# A replica that is replaced gets this long to finish requests. Streams never finish: at the end of it the replica is
# killed and their sockets are cut, which is what makes clients reconnect (wire-contract.md
# section 7.2: never end a stream cleanly).
GRACE_S = 5.0
NODE_LABEL = "ray.io/node-id"
LOGGING = LoggingConfig(enable_access_log=False, log_level="WARNING")


def build_app(settings: Settings) -> Any:
    """The Quart app of one replica, on the actors of this cluster."""
    from api.app import create_app
    from api.context.replica import EXTENSION
    from api.launch import replica_port
    from api.launch.gc_policy import collect_rarely
    from breaker_actors.ray_runtime.rollout import connect
    from breaker_actors.telemetry import logs
    from breaker_actors.telemetry import ray_export as metrics
    from breaker_actors.telemetry.meters import Meters

    meters, clock = Meters("api", "api"), SystemClock()
    # Serve puts a logger of its own in the place of sys.stderr, and a function in that of print.
    logs.configure("api", meters=meters, stream=sys.__stderr__)
    gateway = connect(settings, meters, replica_name)
    meters.watch_asides(gateway.store.asides)
    meters.watch(lambda: replica_port.tell(meters))
    replica_port.offer_direct()
    # Serve itself puts X-Request-ID on every answer.
    app = create_app(gateway, settings, clock, names_requests=False, meters=meters)

    @app.before_serving
    async def begin() -> None:
        app.extensions["breakers-metrics"] = metrics.start(meters, settings)
        feed = app.extensions[EXTENSION].feed
        app.extensions["breakers-garbage"] = asyncio.create_task(collect_rarely(feed, clock))

    return app


def replica_name() -> str:
    """`api-` and the rank of this replica: from 0 on, given again when a replica is replaced."""
    return f"api-{serve.get_replica_context().rank.rank}"


class Api:
    """What Serve holds in a replica. `build` makes the app after the constructor, in the replica's process."""

    def __init__(self, settings: Settings, build: Build) -> None:
        self._settings = settings
        self._build = build

    def __serve_build_asgi_app__(self) -> Any:
        _close_internal_port()
        _receive_on_demand()
        share_finely()
        self._app = self._build(self._settings)
        return self._app

    async def census(self) -> dict[str, int]:
        """What lives in this replica now, garbage aside: open streams, tasks of its loop, asynchronous generators."""
        from api.context.replica import EXTENSION

        gc.collect()
        generators = sum(isinstance(o, types.AsyncGeneratorType) for o in gc.get_objects())
        streams = self._app.extensions[EXTENSION].feed.stream_count()
        return {"streams": streams, "tasks": len(asyncio.all_tasks()), "generators": generators}


def _close_internal_port() -> None:
    """Moves the replica's port for calls from other deployments to loopback; it is bound after the app is built.

    Serve opens it on every interface and unpickles what arrives there, without asking who sent it: whoever reaches the
    machine could run code in it. There are no other deployments, so nobody has to reach it from outside.
    """
    from ray.serve._private import replica

    name = "add_port_to_grpc_server"
    bind = getattr(replica, name, None)
    if bind is not None:
        setattr(replica, name, lambda server, address: bind(server, address.replace("[::]", "127.0.0.1")))


def _receive_on_demand() -> None:
    """Has Serve hand the server's own `receive` to the app, which watches for clients that leave by itself.

    Otherwise Serve takes in every body as fast as it comes, into a queue without a bound, before the app can look at
    key and size.
    """
    from ray.serve._private import replica

    name = "parse_disconnect_disabled_header"
    if hasattr(replica, name):
        setattr(replica, name, lambda headers: True)


def application(settings: Settings, build: Build = build_app, options: dict[str, Any] | None = None) -> Application:
    """The Serve application. `options`: how many replicas, where not as the settings say. num_cpus 0: on a small
    machine replicas and actors share the cores. On SQLite replicas run where the file is, like all else."""
    wanted: dict[str, Any] = {"num_replicas": settings.replicas} if options is None else dict(options)
    actor_options: dict[str, Any] = {"num_cpus": 0, **wanted.pop("ray_actor_options", {})}
    if settings.database_url is None:
        actor_options["label_selector"] = {NODE_LABEL: ray.get_runtime_context().get_node_id()}
    deployment = serve.deployment(
        name="Api",
        **wanted,
        max_ongoing_requests=ONGOING_MAX,
        graceful_shutdown_timeout_s=GRACE_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=5.0,
        health_check_timeout_s=10.0,
        ray_actor_options=actor_options,
        logging_config=LOGGING,
    )
    return deployment(serve.ingress()(Api)).bind(settings, build)
