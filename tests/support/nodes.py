"""Nodes of a Ray cluster as an operator starts them (`ray start` after `breakers node-env`), and a service on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from api.launch import processes
from tests.support.live import LiveService, wait_for

START_S, DEPLOY_S = 300.0, 300.0
PATIENT = {"RAY_raylet_start_wait_time_s": "300"}
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
# Addresses of this machine are loopback's, nothing of it can be reached from outside; Ray has no second node like that.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
MARK = "NODE_TEST_MARK"
PROXY_PORT = "RAY_SERVE_WORKER_PROXY_HTTP_PORT"
TRIES, PAUSE_S = 3, 0.5
BIN = Path(sys.executable).parent
_COLOUR = re.compile(r"\x1b\[\d+m")
LOCAL_IP = re.compile(r"Local node IP: (\S+)")


def breakers(*arguments: str, timeout: float = DEPLOY_S, **environ: str) -> subprocess.CompletedProcess[str]:
    """One run of the `breakers` command."""
    env = {**os.environ, **PATIENT, **environ}
    return subprocess.run(
        [BIN / "breakers", *arguments], capture_output=True, text=True, timeout=timeout, env=env, check=False
    )


def free_ports(count: int) -> list[int]:
    """No two of them the same: Ray refuses a port that two of its parts are given."""
    found: set[int] = set()
    while len(found) < count:
        found.add(processes.free_port())
    return list(found)


def node_environment(data_dir: Path) -> dict[str, str]:
    """What `breakers node-env` prints, as a shell reads it; ports are ours alone on this machine."""
    printed = breakers("node-env", "--head", "--data-dir", str(data_dir)).stdout
    script = f'{printed}\nexec {sys.executable} -c "import json, os; print(json.dumps(dict(os.environ)))"'
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    found: dict[str, str] = json.loads(shown.stdout)
    replica_ports = processes.port_block()
    return {
        **{name: value for name, value in found.items() if name.startswith(("RAY_", "BRK_", "GRPC_"))},
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(processes.free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(processes.free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replica_ports.start),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replica_ports.stop),
    }


class RayletEnded(AssertionError):
    """While the node was starting: `ray start` goes on waiting for it, in vain."""


class Node:
    """One `ray start`; everything it starts carries a mark in its environment."""

    def __init__(self, folder: Path, environment: dict[str, str], *options: str) -> None:
        self.mark = uuid4().hex
        self.environment = {**environment, MARK: self.mark}
        self._log = folder / f"start-{self.mark[:8]}.log"
        self._had_raylet = False
        common = ["--object-store-memory=100000000", "--disable-usage-stats"]
        with self._log.open("wb") as log:
            self.starter = subprocess.Popen(
                [BIN / "ray", "start", *common, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )

    def wait_up(self) -> None:
        try:
            wait_for(self._is_up, START_S, 0.2)
        except RayletEnded:
            raise
        except AssertionError:
            raise AssertionError(f"the node did not start:\n{self.log()}") from None

    def _is_up(self) -> bool:
        assert self.starter.poll() in (None, 0), self.log()
        if "Ray runtime started" in self.log():
            return True
        raylets = processes.named(self.pids(), "raylet")
        if self._had_raylet and not raylets:
            raise RayletEnded(self.log())
        self._had_raylet = bool(raylets)
        return False

    @property
    def proxy_port(self) -> int | None:
        """Where its proxy listens, if not where the service was deployed to."""
        port = self.environment.get(PROXY_PORT)
        return None if port is None else int(port)

    def log(self) -> str:
        return _COLOUR.sub("", self._log.read_text(errors="replace"))

    def pids(self, beginning: str = "") -> list[int]:
        """Living processes of this node whose command line begins so, e.g. "ray::BreakerActor"."""
        wanted = beginning.encode()
        found = []
        for pid in processes.started_with(MARK, self.mark):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(wanted) and processes.alive(pid):
                    found.append(pid)
        return found

    def kill_raylet(self) -> None:
        """Alone: what else runs on the node ends when it notices, in its own time."""
        processes.send(processes.named(self.pids(), "raylet"), signal.SIGKILL)

    def kill(self) -> None:
        """As when the machine is lost: everything at once, until nothing is left."""

        def ended() -> bool:
            processes.send(self.pids(), signal.SIGKILL)
            return not self.pids()

        wait_for(ended, 30, 0.1)
        self.starter.wait(10)
        shutil.rmtree(Path(self.environment.get("RAY_SERVE_HAPROXY_BINARY_PATH", "/none/x")).parent, ignore_errors=True)


class Nodes:
    """A cluster on this machine. `many`: there will be more than one node. `driver`: what a process needs that joins
    it. `environ`: more for its nodes."""

    def __init__(self, prepared: bool = True, many: bool = False, **environ: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brk-nodes-", dir="/tmp"))
        token = {"RAY_AUTH_TOKEN_PATH": str(self.folder / "data" / "ray.token")} if prepared else NO_TOKEN
        self.driver = {**PATIENT, **token, **({} if many else LOOPBACK)}
        self._prepared = prepared
        self._place = () if many else ("--node-ip-address=127.0.0.1",)
        self._environ = environ
        self._port, *self._others = free_ports(3)
        self._ip = ""
        self.members: list[Node] = []

    @property
    def address(self) -> str:
        return f"{self._ip}:{self._port}"

    def start_head(self, cpus: int = 2) -> Node:
        own = {"port": self._port}
        own |= dict(zip(("ray-client-server-port", "dashboard-port"), self._others, strict=True))
        ports = [f"--{name}={port}" for name, port in own.items()]
        node = self._start(
            {}, "--head", f"--temp-dir={self.folder / 'ray'}", *ports, f"--num-cpus={cpus}", *self._place
        )
        found = LOCAL_IP.search(node.log())
        assert found is not None, node.log()
        self._ip = found.group(1)
        return node

    def add(self, cpus: int = 2) -> Node:
        # on one machine the proxies of two nodes can't listen on the same port
        own = {PROXY_PORT: str(processes.free_port())}
        return self._start(own, f"--address={self.address}", f"--num-cpus={cpus}")

    def _start(self, own: dict[str, str], *options: str) -> Node:
        node = self._begin(own, *options)
        try:
            node.wait_up()
        except RayletEnded:
            # ports that Ray chooses for it may be somebody else's by the time it listens; it is given others, and a
            # folder of its own: that of the first one goes with it
            self.remove(node)
            node = self._begin(own, *options)
            node.wait_up()
        return node

    def _begin(self, own: dict[str, str], *options: str) -> Node:
        prepared = node_environment(self.folder / "data") if self._prepared else {}
        node = Node(self.folder, {**prepared, **self.driver, **self._environ, **own}, *options)
        self.members.append(node)
        return node

    def remove(self, node: Node) -> None:
        """Kills what is left of it."""
        node.kill()
        self.members.remove(node)

    def pids(self, beginning: str = "") -> list[int]:
        return [pid for node in self.members for pid in node.pids(beginning)]

    def programs(self, name: str) -> list[int]:
        return processes.named(self.pids(), name)

    def kill(self, beginning: str) -> list[int]:
        """SIGKILL for processes whose command line begins so."""
        victims = self.pids(beginning)
        processes.send(victims, signal.SIGKILL)
        return victims

    def close(self) -> None:
        for node in self.members:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def nodes(prepared: bool = True, many: bool = False, **environ: str) -> Iterator[Nodes]:
    found = Nodes(prepared, many, **environ)
    try:
        yield found
    finally:
        found.close()


class Deployed(LiveService):
    """A service that `breakers deploy` has put onto a cluster, reached like one of `breakers serve`."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.credentials = json.loads((data_dir / "credentials.json").read_text())
        self.base_url = self.credentials["base_url"]
        self.project_id = self.credentials["project_id"]
        self.project_path = f"/v1/projects/{self.project_id}"
        self.user = self.client(self.credentials["user_key"])

    def status(self) -> dict[str, Any]:
        """The operator's answer, asked for again when a replica dies over it."""
        headers = {"Authorization": f"Bearer {self.credentials['admin_key']}"}
        said: object = None
        for _ in range(TRIES):
            try:
                answer = httpx.get(f"{self.base_url}/v1/admin/status", headers=headers, timeout=20, trust_env=False)
                if answer.status_code == 200:
                    return dict(answer.json())
                said = answer.text
            except httpx.TransportError as error:
                said = error
            time.sleep(PAUSE_S)
        raise AssertionError(said)

    def actors(self, kind: str, state: str = "up") -> list[dict[str, Any]]:
        return [actor for actor in self.status()["actors"] if actor["kind"] == kind and actor["state"] == state]

    def stop(self) -> None:
        self.user.close()

    close = stop
