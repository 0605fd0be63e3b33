"""Other users of the machine: nothing of a running service is theirs to read, to replace, to speak to or to command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.launch import haproxy as ingress
from api.launch import held_ports, processes
from api.launch import ray_token as raytoken
from tests.support import squatter, stranger
from tests.support.live import LiveService, serving, tree_of, wait_for
from tests.support.scraping import scrape

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
NAME, METRIC = "only-ours-breaker", "only_ours_metric"
OTHERS = 0o077
# Ray and Serve give these modes themselves; they lie in a folder that nobody else can enter.
OPENED_BY_RAY = ("ray", "metrics.sock")
GET = (
    "/",
    "/stats",
    "/metrics",
    "/-/routes",
    "/-/healthz",
    "/api/readyz",
    "/docs",
    "/openapi.json",
    "/nodes",
    "/logs/",
)
POST = ("/api/job_agent/jobs/", "/get_or_create_runtime_env", "/delete_runtime_env_if_possible", "/v1/admin/rebalance")


# Modules that processes of the service import, in the folder it is started in: each notes that it ran, and makes room
# for the real one.
PLANTED = ("breaker_actors/__init__", "api/__init__", "colorsys", "quart", "msgspec", "structlog", "sitecustomize")
PLANT = """
import importlib, os, sys
with open({ran!r}, "a") as file:
    print(__name__, open("/proc/self/cmdline").read().split(chr(0))[0], file=file)
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != {folder!r}]
del sys.modules[__name__]
importlib.invalidate_caches()
importlib.import_module(__name__)
"""


def plant(folder: Path, ran: Path) -> Path:
    for name in PLANTED:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PLANT.format(ran=str(ran), folder=str(folder)))
    return folder


class Running:
    """The service, with something in it that could be told, and a home directory of its own."""

    def __init__(self, live: LiveService, home: Path) -> None:
        self.live, self.home = live, home
        self.data_dir = live.data_dir
        self.folder = Path((live.data_dir / "lock").read_text().split("\n")[1])
        places = (live.data_dir / "ray.token", home / ".ray" / "auth_token")
        self.token = next(path.read_text().strip() for path in places if path.exists())
        made = live.breaker(name=NAME, metric=METRIC)
        live.trip(made)
        self.secrets = [value for name, value in live.credentials.items() if name != "base_url"]
        self.proof = str(ingress.proof({raytoken.MODE: "token", raytoken.TOKEN: self.token}))
        self.secrets += [NAME, METRIC, made["breaker"]["id"], made["router_id"], self.token, self.proof]
        self.at_start = self.vital

    @property
    def pids(self) -> list[int]:
        """Its processes at this moment."""
        return [self.live.process.pid, *tree_of(self.live.process.pid)]

    @property
    def vital(self) -> list[list[int]]:
        """Processes of Ray's that nothing brings back."""
        return [processes.named(self.pids, name) for name in ("gcs_server", "raylet")]

    def paths(self) -> list[Path]:
        tops = (self.data_dir, self.folder)
        return [path for top in tops for path in (top, *sorted(top.rglob("*"))) if not path.is_symlink()]

    def sockets(self) -> dict[str, int]:
        """Inodes of the sockets of its processes."""
        found = {}
        for pid in self.pids:
            for descriptor in listed(Path(f"/proc/{pid}/fd")):
                with contextlib.suppress(OSError):
                    if (target := os.readlink(descriptor)).startswith("socket:["):
                        found[target[8:-1]] = pid
        return found

    def bound(self, kind: str, state: str) -> list[int]:
        """Ports of its sockets in a state, as /proc/net writes it."""
        ours = self.sockets()
        lines = [
            line.split() for name in (kind, f"{kind}6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        return sorted({int(f[1].rsplit(":")[1], 16) for f in lines if f[3] == state and f[9] in ours})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    home = tmp_path_factory.mktemp("home")
    place = Path(tempfile.mkdtemp(prefix="local-users-", dir="/tmp"))
    place.chmod(0o755)  # everybody gets as far as the data directory
    before = os.umask(0o022)  # as a shell has it
    try:
        with serving(place / "data", cwd=plant(place / "anybodys", place / "ran"), HOME=str(home)) as live:
            yield Running(live, home)
    finally:
        os.umask(before)
        shutil.rmtree(place)


def listed(folder: Path) -> list[Path]:
    """What is in it; nothing when the process has ended."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_folders_and_sockets_are_the_users_alone(running: Running) -> None:
    assert {path.lstat().st_uid for path in running.paths()} == {os.geteuid()}
    assert [mode(top) for top in (running.data_dir, running.folder)] == [0o700, 0o700]
    found = {path: mode(path) for path in running.paths()}
    sockets = [path for path in found if stat.S_ISSOCK(path.lstat().st_mode)]
    assert {"admin.sock", "raylet", "plasma_store"} <= {path.name for path in sockets}
    opened = {path for path, bits in found.items() if bits & OTHERS}
    assert all(
        path.name in OPENED_BY_RAY or (path.is_dir() and running.folder / "ray" in path.parents) for path in opened
    )
    assert mode(next(path for path in sockets if path.name == "admin.sock")) == 0o600


def test_it_has_nothing_elsewhere(running: Running) -> None:
    """Neither files open for writing nor named or abstract sockets are anywhere but in its two folders."""
    tops = (f"{running.data_dir}/", f"{running.folder}/", "/dev/", "/proc/")
    elsewhere = set()
    for pid in running.pids[1:]:  # not where the test had the first one write to
        for descriptor in listed(Path(f"/proc/{pid}/fd")):
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                info = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text().splitlines()
                (flags,) = (line for line in info if line.startswith("flags:"))
                if target.startswith("/") and int(flags.split()[1], 8) & os.O_ACCMODE and not target.startswith(tops):
                    elsewhere.add(target)
    ours = running.sockets()
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in ours and len(fields) > 7 and not fields[7].startswith(tops):
            elsewhere.add(fields[7])
    assert elsewhere == set()
    assert list(running.home.iterdir()) == []  # no ~/.ray/auth_token
    assert running.bound("udp", "07") == []


def test_no_module_of_the_folder_it_was_started_in_runs(running: Running) -> None:
    """Which may be /tmp, where anybody can put a module with the name of one of ours."""
    ran = running.data_dir.with_name("ran")
    assert not ran.exists(), ran.read_text()


@pytest.mark.parametrize(("secret", "file"), [("token", "ray.token"), ("proof", "haproxy.cfg")])
def test_a_secret_of_processes_is_in_its_file_alone(running: Running, secret: str, file: str) -> None:
    """Processes know its path. HAProxy's proof to replicas is made of the token by each that needs it."""
    value = getattr(running, secret).encode()
    for pid in running.pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert value not in environ + Path(f"/proc/{pid}/cmdline").read_bytes()
            assert mode(Path(f"/proc/{pid}/environ")) & OTHERS == 0

    def found() -> list[tuple[str, int]]:
        return [(p.name, mode(p)) for p in running.paths() if p.is_file() and value in p.read_bytes()]

    wait_for(found, 30)  # Serve writes HAProxy's file anew when its targets change, the launcher adds the proof
    assert found() == [(file, 0o600)]


@pytest.fixture(scope="module")
def found(running: Running) -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    projects = f"/v1/projects/{running.live.project_id}"
    urls = [
        f"GET {path}"
        for path in (*GET, f"{projects}/breakers", f"{projects}/breakers/state:stream", "/v1/admin/status")
    ]
    wait_for(lambda: scrape(running.live), 60, 0.5)  # Ray's agent hands on what it was given every ten seconds
    found = stranger.ask(running.paths(), running.bound("tcp", "0A"), [*urls, *(f"POST {path}" for path in POST)])
    assert found["uid"] == stranger.NOBODY
    return found


def test_no_file_or_socket_gives_anything_to_another_user(found: dict[str, Any], running: Running) -> None:
    # that the two folders are there he may see, as everything in a folder that all may list
    assert set(found["reached"]) == {f"see {top}" for top in (running.data_dir, running.folder)}


def test_no_port_obeys_another_user(found: dict[str, Any], running: Running) -> None:
    assert len(found["secured"]) > 5  # Ray's ports were met
    # and none took a call: that of the syncer ends Ray before it asks for a token. HAProxy speaks HTTP/2, but no gRPC
    http = {int(port) for port, all_of in found["answers"].items() if all_of[0][1] != "nothing"}
    assert {*found["spoke"]} <= http
    assert found["obeyed"] == []
    posted = [(port, url, said) for port, all_of in found["answers"].items() for url, said in all_of if "POST" in url]
    assert posted
    assert [entry for entry in posted if entry[2].startswith("2")] == []
    assert running.live.user.get("/api/readyz").status_code == 200
    assert [len(pids) for pids in running.at_start] == [1, 1]
    assert running.vital == running.at_start


def test_what_is_behind_haproxy_answers_haproxy_alone(found: dict[str, Any], running: Running) -> None:
    """A replica's port and the fallback proxy's: 403 for whatever is asked, health and Serve's own pages too."""
    words = "This port is HAProxy's"
    behind = [all_of for all_of in found["answers"].values() if any(words in said for _, said in all_of)]
    assert len(behind) == 2
    assert [(url, said) for all_of in behind for url, said in all_of if not said.startswith("403 ")] == []
    docs = {int(port): said for port, all_of in found["answers"].items() for url, said in all_of if url == "GET /docs"}
    assert [port for port, said in docs.items() if "<!doctype html>" in said] == [httpx.URL(running.live.base_url).port]


def test_no_port_tells_another_user_of_tenants(found: dict[str, Any], running: Running) -> None:
    """What is open says how much, not whose: no id, name or key of the service is in any answer."""
    said = [(port, url, text) for port, all_of in found["answers"].items() for url, text in all_of]
    assert any(url == "GET /metrics" and "ray_breakers_" in text for _, url, text in said)
    assert [(port, url) for port, url, text in said for secret in running.secrets if secret in text] == []
    assert [port for port, url, text in said if url == "GET /stats" and "Statistics Report" in text] == []


def test_requests_without_a_key_that_are_cut_off_do_not_all_reach_a_replica(running: Running) -> None:
    """Each would cost HAProxy a connection to it."""
    targets = json.loads((running.data_dir / "prometheus.json").read_text())
    (metrics,) = (group["targets"][0] for group in targets if group["labels"]["job"] == "breakers-haproxy")

    def denied() -> int:
        text = httpx.get(f"http://{metrics}/metrics", trust_env=False).text
        found = re.search(r'^haproxy_frontend_requests_denied_total\{proxy="http_frontend"\} (\d+)', text, re.M)
        assert found is not None
        return int(found[1])

    before, url = denied(), httpx.URL(running.live.base_url)
    for _ in range(300):
        with socket.create_connection((url.host, url.port or 80), 5) as caller:
            caller.sendall(b"GET /v1/projects HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answers(running.live)
    wait_for(lambda: denied() > before + 100)


@pytest.mark.parametrize("name", ["ray::ServeReplica", "haproxy"])
def test_the_port_of_who_dies_is_not_another_users(running: Running, name: str) -> None:
    """He would get callers' keys, and the proof by which replicas know HAProxy. Last: what it kills comes back."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    (replica, *_) = running.live.pids("ServeReplica")
    environ = Path(f"/proc/{replica}/environ").read_text().split("\0")
    held = held_ports.told(dict(line.split("=", 1) for line in environ if line))
    assert held is not None
    own = httpx.URL(running.live.base_url).port
    assert own is not None
    with squatter.trying(own, *held) as other:
        dead = processes.named(running.pids, name) if name == "haproxy" else running.live.pids("ServeReplica")
        processes.send(dead, signal.SIGKILL)
        wait_for(lambda: not any(map(processes.alive, dead)))
        wait_for(lambda: answers(running.live), 90)
        assert other.got() == []
    if name != "haproxy":  # and its successor is where it may be
        assert running.live.pids("ServeReplica") != dead
        ports = {*running.bound("tcp", "0A")} & held
        assert len(ports) == 2


def answers(live: LiveService) -> bool:
    """A caller with a key, over a connection of his own."""
    with contextlib.suppress(httpx.TransportError), live.client(live.credentials["user_key"]) as caller:
        return caller.get(f"{live.project_path}/breakers").status_code == 200
    return False
