"""The service on a Ray cluster that runs already: deployed, upgraded in place, taken down. `app` does the same for
whoever starts Serve applications by an import path (`serve deploy`, KubeRay).

Nodes are prepared by `breakers node-env` before `ray start`; Ray is imported only after this process is prepared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from api.launch import deployed, neighbours, processes, ray_authority, tls
from api.launch import haproxy as ingress
from api.launch import ray_tls as raytls
from api.launch.bootstrap import prepare, whereabouts
from api.launch.join import address_of, check_token
from api.launch.ray_environment import NotStarted, prepare_driver, take_data_dir
from api.launch.ray_token import MODE, use_of_cluster
from api.launch.serve_proxies import port_in_use, start_proxies
from breaker_actors.clock import Clock, SystemClock
from breaker_actors.errors import BreakersError, Invalid, Unavailable
from breaker_actors.settings import Settings, load_settings
from breaker_actors.store import holders

if TYPE_CHECKING:
    from ray.serve import Application

    from breaker_actors.messages import Node

NAMESPACE = "breakers"
PACKAGE = "breaker-actors"
READY_WITHIN_S = 120.0
PROBE_S = 60.0
REACH_S = 3.0
# Of a replica's ongoing requests. Streams are ongoing for as long as they live, and a replica bears about 2,000: at
# half of that there is room for those that come back when another replica is lost. Requests proper take a millisecond:
# a thousand of them waiting is a second of work, which is as good a time for another replica.
ONGOING_TARGET = 1_000

Proxies = Literal["EveryNode", "HeadOnly"]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Scale:
    """How many API replicas there are at least and at most, and the ongoing requests each is meant for."""

    least: int = 1
    most: int = 1
    target: int = ONGOING_TARGET

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise Invalid("replicas: at least 1, and the maximum no less than the minimum")

    def options(self) -> dict[str, Any]:
        """For a Serve deployment. Up within seconds, down after ten minutes: that cuts streams. Each asks for a core:
        when none is left for another one, Ray's autoscaler adds a machine."""
        if self.least == self.most:
            return {"num_replicas": self.least}
        return {
            "ray_actor_options": {"num_cpus": 1},
            "autoscaling_config": {
                "min_replicas": self.least,
                "max_replicas": self.most,
                "initial_replicas": self.least,
                "target_ongoing_requests": self.target,
                "metrics_interval_s": 2,
                "look_back_period_s": 10,
                "upscale_delay_s": 10,
                "downscale_delay_s": 600,
            },
        }


class Deployment:
    """One `breakers deploy`: everything is left running. `tell` gets a line for each step, `warn` what may surprise.
    `replaces`: the id of a database that what runs may leave for another one. `take_over`: a service of another cluster
    may be alive on the database."""

    def __init__(
        self,
        settings: Settings,
        scale: Scale,
        tell: Tell = lambda line: None,
        warn: Tell = lambda line: None,
        proxies: Proxies = "EveryNode",
        clock: Clock | None = None,
        replaces: str | None = None,
        take_over: bool = False,
    ) -> None:
        self._settings = settings.model_copy(update={"replicas": scale.least})
        self._scale = scale
        self._tell = tell
        self._warn = warn
        self._proxies = proxies
        self._clock = clock or SystemClock()
        self._head = ""
        self._replaces = replaces
        self._take_over = take_over
        self.survives = ""

    @property
    def credentials(self) -> str:
        """Where the keys are, for the operator."""
        return whereabouts(self._settings.data_dir)

    @property
    def base_url(self) -> str:
        """Where the head's proxy listens; every other node's listens on the same port."""
        return tls.base_url(self._settings, self._listens_on)

    @property
    def _listens_on(self) -> str:
        return self._head if self._settings.host in ("0.0.0.0", "::") else self._settings.host  # nosec B104 # compared

    def run(self, address: str) -> None:
        """Raises Invalid or SchemaMismatch for what the operator has to change, NotStarted for the rest."""
        tls.check_settings(self._settings, self._clock.now_ms(), self._warn)
        check_store(self._settings)
        data_dir = self._settings.data_dir
        with contextlib.closing(take_data_dir(data_dir, deploys=True)), connected(address, data_dir):
            holders.check(data_dir, _session())
            deployed.check(self._settings, self._replaces)
            self._check_cluster()
            neighbours.refuse(self._settings, _token(), self._take_over)
            if self._settings.port == 0:
                port = processes.free_port(self._settings.host)
                self._settings = self._settings.model_copy(update={"port": port})
            self._check_address()
            self._settings, self.survives = prepare(self._settings, self.base_url, self._clock, self._warn)
            deployed.note(self._settings)
            self._settings = _resolved(self._settings)
            with _serve_told(self._settings.port):
                self._start_proxies()
            start_actors(self._settings, self._clock, self._tell)
            with _serve_told(self._settings.port):
                self._start_replicas()
            self._wait_ready()

    def _wait_ready(self) -> None:
        from api.launch.readiness import wait_ready

        url, verify = tls.own_url(self._settings, self._listens_on), tls.own_context(tls.pair_of(self._settings))
        wait_ready(url, self._settings.health_token, self._clock, READY_WITHIN_S, verify)

    def _check_cluster(self) -> None:
        nodes = check_nodes(self._settings)
        self._head = next((node.address for node in nodes if node.head), nodes[0].address)
        self._tell(f"nodes {', '.join(node.address for node in nodes)}")

    def _check_address(self) -> None:
        from ray.serve.context import _get_global_client  # there is no public way to ask whether Serve runs

        running = _get_global_client(raise_if_no_controller_running=False)
        if running is None:
            return
        host, port = running.http_config.host, running.http_config.port
        if (host, port) != (self._settings.host, self._settings.port):
            raise Invalid(
                f"Ray Serve listens on {host}:{port} in this cluster and can't move: give that address, or take it "
                "down with `breakers deploy --remove` first"
            )

    def _start_proxies(self) -> None:
        """Nothing happens to those that run already."""
        from ray.serve.config import HTTPOptions

        from api.launch.serve_app import LOGGING

        options = HTTPOptions(host=self._settings.host, port=self._settings.port)
        start_proxies(self._warn, proxy_location=self._proxies, http_options=options, logging_config=LOGGING)
        self._tell("proxies run")
        if self._settings.database_url is None:
            self._warn("SQLite: all of it runs on this node alone; for a cluster set BREAKERS_DATABASE_URL")

    def _start_replicas(self) -> None:
        """The first time, or one after the other in place of the old ones."""
        from ray import serve

        from api.launch.serve_app import application

        serve.run(application(self._settings, options=self._scale.options()), name=NAMESPACE, route_prefix="/")
        self._tell("replicas run")


@contextlib.contextmanager
def _serve_told(port: int) -> Iterator[None]:
    """What Serve could not do, in one line: its own text is a traceback of another process."""
    try:
        yield
    except BreakersError:
        raise
    except Exception as error:
        if port_in_use(error):
            why = f"port {port} is in use on a node of the cluster; what a lost head left there ends within a minute"
            raise NotStarted(f"{why}, `ray stop` ends it at once") from None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise NotStarted(f"Ray Serve did not start: {lines[-1] if lines else type(error).__name__}") from None


def remove(address: str, data_dir: Path | None = None, tell: Tell = lambda line: None) -> None:
    """Takes replicas, proxies and actors down; data and keys stay where they are."""
    with connected(address, data_dir):
        from ray import serve

        from breaker_actors.ray_runtime import rollout as fleet

        applications = serve.status().applications
        if NAMESPACE in applications:
            serve.delete(NAMESPACE)
            tell("replicas ended")
        if not applications.keys() - {NAMESPACE}:
            serve.shutdown()  # type: ignore[no-untyped-call]
            tell("proxies ended")
        if ended := fleet.end(SystemClock()):
            tell(f"ended {', '.join(ended)}")
        deployed.forget()


def app(arguments: dict[str, str]) -> Application:
    """For `serve deploy` and KubeRay's serveConfigV2, by the import path `api.cluster:app`.

    Settings come from BREAKERS_* variables of the cluster's nodes; the data directory, here for credentials.json only,
    is ~/.breakers when not set: a Ray worker has no working directory of its own. `arguments`: replicas_min,
    replicas_max, replace_database (as --replace-database). Starts the actors, or replaces those of an earlier release,
    before it answers."""
    from api.launch.serve_app import application

    home = os.environ.get("BREAKERS_DATA_DIR") or Path.home() / ".breakers"
    settings, clock = load_settings(data_dir=home), SystemClock()
    if settings.database_url is not None and settings.secret_key is None:
        raise Invalid("set BREAKERS_SECRET_KEY: this may run on any node, and a key made here would be lost")
    unknown = sorted(arguments.keys() - {"replicas_min", "replicas_max", "replace_database"})
    if unknown:
        raise Invalid(f"unknown argument {unknown[0]}")
    scale = _scale(arguments, settings.replicas)
    warn = logging.getLogger("ray.serve").warning
    tls.check_settings(settings, clock.now_ms(), warn)
    check_store(settings)
    deployed.check(settings, arguments.get("replace_database"))
    check_nodes(settings)
    if settings.database_url is None:
        holders.check(settings.data_dir, _session())
    # Whoever starts applications by a path tries for ever: the one before may be about to end.
    if line := neighbours.found(settings, _token()):
        warn(line)
    settings, _ = prepare(settings, tls.base_url(settings, "127.0.0.1"), clock, warn)
    deployed.note(settings)
    settings = _resolved(settings).model_copy(update={"replicas": scale.least})
    start_actors(settings, clock, logging.getLogger("ray.serve").info)
    return application(settings, options=scale.options())


def _token() -> str:
    from breaker_actors.sql.presence import token_of

    return token_of(_session())


def _session() -> str:
    import ray

    return str(ray.get_runtime_context().get_session_name())


def _scale(arguments: Mapping[str, str], replicas: int) -> Scale:
    try:
        least = int(arguments.get("replicas_min", replicas))
        return Scale(least, int(arguments.get("replicas_max", least)))
    except ValueError:
        raise Invalid("replicas_min and replicas_max are numbers") from None


def check_store(settings: Settings) -> None:
    """An empty database is fine, and one of this program's schema; another is upgraded by hand, while nothing runs."""
    from breaker_actors.persistence import is_in_use, store_url
    from breaker_actors.store import migrations

    if is_in_use(settings):
        migrations.check(migrations.current(store_url(settings)))


def check_nodes(settings: Settings) -> list[Node]:
    """The nodes of the cluster, all of which have this program and were started for it."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from breaker_actors.ray_runtime.actors import site_of_cluster

    nodes = list(site_of_cluster().nodes)
    if settings.database_url is None and len(nodes) > 1:
        raise Invalid(
            f"SQLite is for one node and this cluster has {len(nodes)}: set BREAKERS_DATABASE_URL to a PostgreSQL"
        )
    ask = ray.remote(num_cpus=0, max_retries=0)(_probe)
    proofs = set[str]()
    asked = [ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n.id, soft=False)).remote() for n in nodes]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            found, prepared, received, proof = ray.get(answer, timeout=PROBE_S)
            _judge(node.address, settings, found, prepared, received)
            proofs.add(proof)
        except GetTimeoutError:
            raise Unavailable(f"node {node.address} does not answer") from None
        except RayError as error:
            raise Invalid(f"{PACKAGE} can't run on node {node.address}: {_first_cause(error)}") from None
    _judge_proofs(proofs)
    return nodes


def _probe() -> tuple[str, bool, str, str]:
    """On a node: the version of this program there, whether Ray was started as `breakers node-env` says, how HAProxy
    receives strangers, and the hash of what it proves itself with."""
    prepared = os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"
    secured = f"{ingress.proof(os.environ)} {raytls.is_on()}"
    proof = hashlib.sha256(secured.encode()).hexdigest()
    return version(PACKAGE), prepared, os.environ.get(ingress.VARIABLE, "{}"), proof


def _judge_proofs(proofs: set[str]) -> None:
    """Raises Invalid unless all nodes have one: replicas of a node refuse what HAProxy of another one sends, else."""
    if len(proofs) > 1:
        what = f"{MODE}, {raytls.USE} or Ray's token"
        raise Invalid(f"{what} is not the same on all nodes: start each as `breakers node-env` says")


def _judge(address: str, settings: Settings, found: str, prepared: bool, received: str) -> None:
    if found != version(PACKAGE):
        raise Invalid(f"node {address} has {PACKAGE} {found}, this is {version(PACKAGE)}")
    if not prepared:
        raise Invalid(f'node {address} was not started for it: `eval "$(breakers node-env)"` before `ray start`')
    with_tls = bool(json.loads(received).get("certificate"))
    if with_tls != (tls.pair_of(settings) is not None):
        said = ("was set", "is not") if with_tls else ("was not set", "is")
        raise Invalid(f"{tls.CERTIFICATE} {said[0]} at `breakers node-env` on node {address}, and {said[1]} here")


def _first_cause(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[-1]


def start_actors(settings: Settings, clock: Clock, tell: Tell) -> None:
    """Starts the named actors; replaces those of another release, kind after kind."""
    from breaker_actors.ray_runtime import rollout as fleet

    fleet.renew(settings, clock, tell)


def _resolved(settings: Settings) -> Settings:
    """On PostgreSQL the parts don't see this data directory: they are given the key that seals secrets."""
    from breaker_actors.persistence import resolved

    return resolved(settings) if settings.database_url is not None else settings


def _reachable(address: str) -> str:
    """HOST:PORT of the cluster's head, if somebody listens there: Ray itself would go on trying for minutes."""
    try:
        found = address_of(address)
        host, _, port = found.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), REACH_S):
            return found
    except (OSError, ValueError) as error:
        raise NotStarted(
            f"there is no Ray cluster at {address} ({_on_one_line(error)}); start `breakers serve`, or a cluster with"
            " `ray start --head`"
        ) from None


def _on_one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def use_proofs(data_dir: Path | None) -> None:
    """Sets what this process shows to a cluster and asks of it: the token of the data directory, if it has one, and
    certificates made with it. To be called before Ray is imported."""
    use_of_cluster(data_dir)
    ray_authority.use_of_cluster(data_dir)


@contextlib.contextmanager
def connected(address: str, data_dir: Path | None = None) -> Iterator[None]:
    """This process as a driver of the cluster at `address` ("auto": this user's on this machine), with the token of the
    data directory if it has one."""
    prepare_driver()
    use_proofs(data_dir)
    import ray
    from ray import serve  # noqa: F401  # it sets its logger up when it is imported

    from api.launch.driver import join

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    found = _reachable(address)
    check_token(found)
    try:
        join(found)
    except ConnectionError as error:
        raise NotStarted(f"the Ray cluster at {found} can't be joined from here: {_on_one_line(error)}") from None
    except RuntimeError as error:
        raise Invalid(f"the Ray cluster at {found} can't be used: {_on_one_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()
