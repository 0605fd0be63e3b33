"""Everything on this machine, started and stopped: data directory, credentials, a private Ray cluster, the named
actors, Serve with HAProxy in front.

Nothing of Ray is imported before `Service.start` has set Ray's environment: some of its settings are read at import.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from api.launch import leftovers, processes, tls
from api.launch.held_ports import HeldPorts
from api.launch.join import note_address
from api.launch.quick_imports import absent, uncollected
from api.launch.ray_environment import (
    LOGS_LINK,
    RAY_FOLDER,
    NotStarted,
    TakenDir,
    ingress_of,
    keep_logs,
    link_logs,
    make_folder,
    prepare_ray,
    take_data_dir,
    write_targets,
)
from api.launch.ray_tls import use_own_pair
from api.launch.ray_token import use_own_token
from api.launch.serve_proxies import controller_runs, reason, start_proxies
from breaker_actors.clock import Clock, SystemClock, rfc3339
from breaker_actors.errors import Unavailable
from breaker_actors.settings import Settings
from breaker_actors.store.holders import HELD

READY_WITHIN_S = 90.0
# Seconds each part of a stop may take; with the rest they stay under five.
SHORT_REQUESTS_S, SERVE_STOP_S, RAY_STOP_S, KILL_S = 0.3, 1.6, 1.5, 1.0
LAST_CALL_S = 0.2
"""So long before a part of the stop is over it begins no call any more that the next part would meet."""
OBJECT_STORE_BYTES = 256 << 20
NAMESPACE = "breakers"
REPLICA_PROGRAM = "ray::ServeRepli"
"""The same of a replica; it knows 15 characters."""
INGRESS_PROGRAMS = {"haproxy": "haproxy", "serve": "ray::ProxyActor"}
"""How the kernel names the process that listens on the service's port."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STARTED = b"\xff"
"""A byte that is no number of a signal."""
VITAL = ("gcs_server", "raylet")
LOOK_EACH = 10
"""Of the looks for a signal while a service starts, this one also looks at its processes: every half second."""


class Service:
    """One running service. `start` blocks until it answers, `stop` until nothing of it is left.

    The thread that calls `start` has to live until `stop`: the kernel ends Ray's processes with the thread that
    started them.
    """

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] = lambda line: None,
        clock: Clock | None = None,
        launch: Callable[[Settings], Any] | None = None,
        build: Callable[[Settings], Any] | None = None,
        take_over: bool = False,
    ) -> None:
        """`take_over`: another service may be alive on the database."""
        self._settings = settings
        self._tell = tell
        self._warn = warn
        self._clock = clock or SystemClock()
        self._launch = launch
        self._build = build
        self._take_over = take_over
        self._folder: Path | None = None
        self._taken: TakenDir | None = None
        self._ports = HeldPorts(warn)
        self.survives = ""
        self._ray_up = False
        self._vital: list[int] = []

    @property
    def data_dir(self) -> Path:
        return self._settings.data_dir

    @property
    def base_url(self) -> str:
        return tls.base_url(self._settings, self._settings.host)

    # start

    def start(self) -> None:
        """Raises Invalid or SchemaMismatch for what the operator has to change, NotStarted for the rest."""
        with uncollected():
            self._start()

    def _start(self) -> None:
        begun = self._clock.monotonic()
        self._check()
        self._tell(f"starting on {self.base_url}, data in {self.data_dir}")
        with self._phase("store"):
            self._prepare_store()
        self._prepare_ray()
        with self._phase("ray"):
            threading.Thread(target=_import_serve, name="import", daemon=True).start()
            self._start_ray()
        with ThreadPoolExecutor(2) as pool:
            proxies = pool.submit(self._start_proxies)
            self._start_actors()
            self._start_replicas(proxies)
            proxies.result()
        with self._phase("ready"):
            self._wait_ready()
        self._tell(f"start: {self._clock.monotonic() - begun:.2f} s")
        self._find_vital()

    def watch(self) -> None:
        """Raises Unavailable when Ray's own processes have ended: nothing below us can come back by itself then."""
        if not all(map(processes.alive, self._vital)):
            raise Unavailable("a process of Ray's has ended; the service has to be started again")

    def watch_start(self) -> None:
        """The same while `start` is under way. Ray itself would say nothing for a minute, then end this process, with
        nothing cleaned up."""
        self.watch()
        if len(self._vital) < len(VITAL):  # to look through all processes costs 10 ms or more, twice a second
            self._find_vital()

    def _find_vital(self) -> None:
        # Our own children alone: what a raylet forks has its name until it becomes a worker, and may be gone by then.
        mine = processes.children_of(os.getpid())
        self._vital = [pid for name in VITAL for pid in processes.named(mine, name)]

    def _check(self) -> None:
        """What can be known to be wrong before anything runs."""
        settings = self._settings = self._settings.model_copy(
            update={"host": processes.address_of(self._settings.host)}
        )
        tls.check_settings(settings, self._clock.now_ms(), self._warn)
        self._taken = take_data_dir(settings.data_dir)
        os.environ[HELD] = str(settings.data_dir)
        if settings.port == 0:
            self._settings = settings.model_copy(update={"port": processes.free_port(settings.host)})
        else:
            processes.check_port(settings.host, settings.port)

    def _prepare_store(self) -> None:
        from api.launch.bootstrap import prepare

        if self._settings.database_url is not None:
            from api.launch import neighbours
            from breaker_actors.sql.presence import SERVICE

            os.environ[SERVICE] = token = neighbours.token_of_data_dir(self.data_dir)
            neighbours.refuse(self._settings, token, self._take_over)
        self._settings, self.survives = prepare(self._settings, self.base_url, self._clock, self._warn)

    def _prepare_ray(self) -> None:
        self._folder = folder = make_folder()
        assert self._taken is not None
        leftovers.note(self._taken.lock, folder)
        processes.adopt_orphans()
        prepare_ray(folder, self._settings, self._ports)
        use_own_token(self.data_dir)
        use_own_pair(folder)

    def _start_ray(self) -> None:
        import ray

        from api.launch.driver import start_alone

        assert self._folder is not None
        metrics_port = processes.free_port() if self._settings.metrics else None
        with _not_started("Ray"):
            start_alone(
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(self._folder / RAY_FOLDER),
                _metrics_export_port=metrics_port,
            )
        self._ray_up = True
        note_address(self._folder, ray.get_runtime_context().gcs_address, self._settings)
        link_logs(self.data_dir, self._folder)
        write_targets(self.data_dir, metrics_port)

    def _start_proxies(self) -> None:
        with self._phase("serve"):
            from ray.serve.config import HTTPOptions

            from api.launch.serve_app import LOGGING

            logging.getLogger("ray.serve").setLevel(logging.ERROR)
            # What is behind HAProxy listens on loopback, too; HAProxy itself where the settings say
            # (api/launch/haproxy.py).
            pair, host = None, "127.0.0.1"
            if ingress_of(self._settings) == "serve":
                pair, host = tls.pair_of(self._settings), self._settings.host
            http_options = HTTPOptions(
                host=host,
                port=self._settings.port,
                ssl_certfile=str(pair.certificate) if pair else None,
                ssl_keyfile=str(pair.key) if pair else None,
            )
            with _not_started("Ray Serve"):
                start_proxies(self._warn, http_options=http_options, logging_config=LOGGING)

    def _start_actors(self) -> None:
        with self._phase("actors"):
            if self._launch is None:
                from breaker_actors.ray_runtime.rollout import launch as named_actors

                self._launch = named_actors
            self._launch(self._settings)

    def _start_replicas(self, proxies: Future[None]) -> None:
        """Hands Serve the application as soon as its controller is there; HAProxy may still be starting."""
        with self._phase("replicas"):
            from ray import serve

            from api.launch.serve_app import application, build_app

            target = serve.RunTarget(application(self._settings, self._build or build_app), name=NAMESPACE)
            deadline = self._clock.monotonic() + READY_WITHIN_S
            while not proxies.done() and not controller_runs():
                if self._clock.monotonic() > deadline:
                    raise NotStarted("Ray Serve did not start in time")
                _pause(0.05)
            serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)

    def _wait_ready(self) -> None:
        from api.launch.readiness import wait_ready

        url, verify = tls.own_url(self._settings, self._settings.host), tls.own_context(tls.pair_of(self._settings))
        wait_ready(url, self._settings.health_token, self._clock, READY_WITHIN_S, verify)

    # stop

    def say_stopping(self, number: int) -> None:
        """Says which signal stops it, on stderr and among the lines that `breakers logs` shows."""
        name = signal.Signals(number).name
        self._warn(f"stopping: {name}")
        line = {"ts": rfc3339(self._clock.now_ms()), "level": "info", "event": "stopping", "process": "serve"}
        with contextlib.suppress(OSError), (self.data_dir / LOGS_LINK / "serve.err").open("a") as file:
            file.write(json.dumps(line | {"signal": name}) + "\n")

    def stop(self) -> None:
        """Cuts clients, lets replicas and actors close, and makes sure that nothing is left. Harmless when repeated."""
        if self._ray_up:
            self._cut_clients()
            until = self._clock.monotonic() + SERVE_STOP_S - LAST_CALL_S
            self._bounded("serve stop", lambda: stop_serve(self._clock, until), SERVE_STOP_S)
            self._bounded("ray stop", _stop_ray, RAY_STOP_S)
            self._ray_up = False
        self.kill()

    def kill(self) -> None:
        """Ends everything below this process at once. What was acknowledged is on disk: a start recovers from it."""
        if self._folder is not None:
            signal.alarm(0)  # Ray's, if its SIGTERM handler was faster than ours (see run)
            with self._phase("clean-up"):
                left = processes.end_all(self._clock, KILL_S)
                if left:
                    self._warn(f"still running after SIGKILL: {left}")
                keep_logs(self.data_dir, self._folder)
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
        self._ports.close()
        if self._taken is not None:
            self._taken.close()
            self._taken = None

    def _cut_clients(self) -> None:
        """HAProxy stops listening, requests under way get a moment to end, then all connections are cut. Serve's own
        proxy goes on listening for that moment.

        Cut, not closed: a state stream that ends cleanly would silence some clients for good
        (wire-contract.md section 7.2).
        """
        with self._phase("cut"):
            proxies = processes.named(processes.below(os.getpid()), INGRESS_PROGRAMS[ingress_of(self._settings)])
            if ingress_of(self._settings) == "haproxy":
                processes.send(proxies, signal.SIGUSR1)
            deadline = self._clock.monotonic() + SHORT_REQUESTS_S
            while self._clock.monotonic() < deadline and any(map(processes.alive, proxies)):
                _pause(0.02)
            processes.send(proxies, signal.SIGKILL)

    def _bounded(self, name: str, work: Callable[[], None], seconds: float) -> None:
        """Runs a part of the stop, but doesn't wait longer than it may take."""
        with self._phase(name):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            thread.join(seconds)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun = self._clock.monotonic()
        try:
            yield
        finally:
            self._tell(f"{name}: {self._clock.monotonic() - begun:.2f} s")


@contextlib.contextmanager
def _not_started(name: str) -> Iterator[None]:
    """Whatever is raised within, bare ones of Ray's too, becomes a NotStarted of one line."""
    try:
        yield
    except Exception as error:
        raise NotStarted(f"{name} did not start: {reason(error)}") from error


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _import_serve() -> None:
    """Imports Ray Serve, a second of CPU, while Ray starts: that is mostly a wait for its processes."""
    with contextlib.suppress(Exception), absent("pandas"):  # who needs it imports it again, and tells
        import ray.serve  # noqa: F401


def stop_serve(clock: Clock, until_s: float) -> None:
    """Lets replicas close and, meanwhile, the Notifier finish what it is sending: the next start then repeats nothing.

    Not serve.shutdown(): that one goes on to kill the controller and prints its death. From `until_s` of the monotonic
    clock on it calls nothing of Ray: with Ray stopped, some calls begin a cluster of their own, and others end this
    process at once, with nothing cleaned up. So the replicas' ends are seen from their processes.
    """
    import ray
    from ray import serve

    drained: list[Any] = []
    with contextlib.suppress(Exception):
        notifier = ray.get_actor("notifier", namespace=NAMESPACE)
        drained = [notifier.call.remote("drain", SERVE_STOP_S)]
    with contextlib.suppress(Exception):
        if clock.monotonic() < until_s:
            serve.delete(NAMESPACE, _blocking=False)
    while (left_s := until_s - clock.monotonic()) > 0:
        if not processes.named(processes.below(os.getpid()), REPLICA_PROGRAM):
            with contextlib.suppress(Exception):
                ray.wait(drained, timeout=left_s)
            return
        _pause(0.05)


def _stop_ray() -> None:
    import ray

    with contextlib.suppress(Exception):
        ray.shutdown()


Stopped = Callable[[float], bool]


def run(service: Service, work: Callable[[Service, Stopped], None]) -> None:
    """Starts a service, does `work` and stops it again; SIGINT and SIGTERM end the start or the work early.

    `work` gets a function that waits so many seconds and says whether a signal has come. The start runs in a thread of
    its own: Ray's C++ calls would hold back a signal in the main thread for seconds.
    """
    # A pipe, not an Event: setting an Event in a signal handler can deadlock with the wait it interrupted.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> dict[int, Any]:
        return {number: signal.signal(number, lambda one, _: os.write(writer, bytes([one]))) for number in STOP_SIGNALS}

    before = listen()
    started: Future[None] = Future()
    threading.Thread(target=_start, args=(service, started, writer), name="starter", daemon=True).start()
    try:
        looks = itertools.count(1)
        while not select.select([reader], [], [], 0.05)[0]:
            if next(looks) % LOOK_EACH == 0:
                service.watch_start()
            # Somewhere in its start Ray puts a SIGTERM handler of its own, which prints a stack trace and aborts the
            # process three seconds later.
            listen()
        listen()
        first = os.read(reader, 1)
        if first == STARTED:
            started.result()
            work(service, lambda within_s: bool(select.select([reader], [], [], within_s)[0]))
        if first != STARTED or select.select([reader], [], [], 0)[0]:
            service.say_stopping(ord(first if first != STARTED else os.read(reader, 1)))
        if first == STARTED:
            service.stop()
    finally:
        service.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(service: Service, started: Future[None], writer: int) -> None:
    try:
        service.start()
    except BaseException as error:
        started.set_exception(error)
        os.write(writer, STARTED)
        return
    started.set_result(None)
    os.write(writer, STARTED)
    threading.Event().wait()  # see Service: this thread may not end
