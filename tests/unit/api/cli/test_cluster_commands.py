"""`breakers status`, `rebalance` and `node-env`: what they show, and how they fail."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme
from rich.console import Console
from typer.testing import CliRunner, Result

from api.cli import admin_client
from api.cli import cluster as cli_cluster
from api.cli.admin_client import Operator, trusted_at
from api.cli.main import app
from api.cli.status_table import show
from api.launch import doctor
from api.launch import ray_tls as raytls
from api.launch import ray_token as raytoken
from breaker_actors.transport.rpc import OWN_CERTIFICATE

ACTOR: dict[str, Any] = {
    "name": "breaker-0",
    "kind": "breaker",
    "state": "up",
    "since_ms": 1_000,
    "restarts": 2,
    "holds": 5,
    "incarnation": "abc",
    "node_id": "0123456789",
    "pid": 77,
    "started_ms": 1_000,
    **dict.fromkeys(("routers", "waiting", "log_bytes", "breakers", "starting", "unheard")),
    "behind": 1,
    "lag": 40,
    "overdue_ms": 1_500,
}
STATUS: dict[str, Any] = {
    "set_aside": 1,
    "ts_ms": 65_000,
    "nodes": [{"id": "0123456789", "address": "10.0.0.1", "cpus": 4.0, "head": True}],
    "replicas": 2,
    "budgets": {"router": 2, "breaker": None},
    "journal": None,
    "log_bytes": 3 << 20,
    "actors": [
        ACTOR,
        {**ACTOR, "name": "router-0", "kind": "router", "state": "away", "behind": None, "waiting": 9, "pid": None},
        {**ACTOR, "name": "router-1", "fault": "disk is full\x1b[2J", "damaged": ["r-1", "r-2"]},
    ],
    "limits": [
        *[{"project_id": "p-1", "org_id": None, "limit": "log_bytes", "used": 7, "max": 6}] * 2,
        {"project_id": None, "org_id": "o-1", "limit": "keys", "used": 9, "max": 9},
    ],
}
runner = CliRunner()


def test_restarts_that_nobody_counts_are_no_zero() -> None:
    out = io.StringIO()
    actor = STATUS["actors"][0] | {"name": "journal-0", "restarts": None}
    show(STATUS | {"actors": [actor]}, Console(file=out, width=120))
    (line,) = [line.split() for line in out.getvalue().splitlines() if line.startswith("journal-0")]
    assert line[5] == "-"


def test_the_status_fits_on_a_screen() -> None:
    out = io.StringIO()
    show(STATUS, Console(file=out, width=120))
    node, breaker, router, _ = (line.split() for line in out.getvalue().splitlines()[1:6] if "since" not in line)
    assert node == ["01234567", "10.0.0.1", "4", "head"]
    assert breaker == ["breaker-0", "up", "1min", "01234567", "77", "2", "5", "1", "40", "1s"]
    assert router[:4] == ["router-0", "away", "1min", "01234567"]
    assert "9" in router
    assert "journal does not answer" in out.getvalue()
    assert "replicas 2" in out.getvalue()
    assert "router-0 does not answer: samples of its 5 routers are refused" in out.getvalue()
    assert "router-1: samples can't be stored: disk is full" in out.getvalue()
    assert "router-1: logs are damaged, of routers r-1, r-2: breakers recover" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("project p-1 at its limit: log_bytes 7 of 6") == 1
    assert out.getvalue().count("organisation o-1 at its limit: keys 9 of 9") == 1


def test_each_of_several_journals_is_told() -> None:
    out = io.StringIO()
    told = [
        {"name": "journal-0", "epoch": 1, "sequence": 12, "position": 3},
        {"name": "journal-1", "epoch": None, "sequence": None, "position": None},
    ]
    show(STATUS | {"journals": told}, Console(file=out, width=120))
    assert "journal-0 at 12, journal-1 does not answer" in out.getvalue()
    out = io.StringIO()
    show(STATUS | {"journals": told[:1]}, Console(file=out, width=120))
    assert "journal at 12" in out.getvalue()


class FakeOperator:
    """20 things lie uneven."""

    def __init__(self) -> None:
        self.left, self.asked = 50, []  # type: tuple[int, list[int]]
        self.more: list[dict[str, Any]] = []

    def __enter__(self) -> FakeOperator:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def status(self) -> dict[str, Any]:
        return STATUS | {"nodes": [*STATUS["nodes"], *self.more]}

    def rebalance(self, most: int) -> dict[str, int]:
        self.asked.append(most)
        moved = min(most, self.left)
        self.left -= moved
        return {"moved": moved, "left": self.left}


@pytest.mark.parametrize(
    ("options", "asked", "said"),
    [
        ([], [20, 20, 20], "moved 50, all is even"),
        (["--max", "30"], [20, 10], "moved 30, left 20"),
        (["--json"], [20, 20, 20], '{"moved": 50, "left": 0}'),
    ],
)
def test_rebalance_asks_until_all_is_even(
    monkeypatch: pytest.MonkeyPatch, options: list[str], asked: list[int], said: str
) -> None:
    operator = FakeOperator()
    monkeypatch.setattr(cli_cluster, "_operator", lambda address, data_dir, insecure: operator)
    result = runner.invoke(app, ["rebalance", *options])
    assert (result.exit_code, result.stdout.strip()) == (0, said)
    assert result.stderr == ""
    assert operator.asked == asked


def test_rebalance_names_nodes_without_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = FakeOperator()
    operator.more = [{"id": "new", "address": "10.0.0.2", "cpus": 4.0, "head": False}]
    monkeypatch.setattr(cli_cluster, "_operator", lambda address, data_dir, insecure: operator)
    result = runner.invoke(app, ["rebalance", "--json"])
    assert json.loads(result.stdout) == {"moved": 50, "left": 0}
    assert "no actors run on 10.0.0.2: " in result.stderr


def test_without_credentials_it_is_one_line(tmp_path: Path) -> None:
    for command in ("status", "rebalance"):
        result = runner.invoke(app, [command, "--data-dir", str(tmp_path)])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "credentials.json" in result.stderr
        assert result.stderr.rstrip().endswith("or set BREAKERS_URL and BREAKERS_KEY")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Request]:
    """What is asked of a service that has no rights for the key "user"."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.headers["Authorization"] == "Bearer user":
            return httpx.Response(403, json={"message": "no"})
        return httpx.Response(200, json=STATUS)

    monkeypatch.setattr(httpx.Client, "request", _over(httpx.MockTransport(answer)))
    monkeypatch.setattr(Operator, "check", lambda self: None)
    return asked


def _over(transport: httpx.MockTransport) -> Any:
    def request(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
        with httpx.Client(transport=transport, base_url=client.base_url, headers=client.headers) as other:
            return other.send(other.build_request(method, path, **options))

    return request


def test_the_status_takes_the_variables_that_list_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: list[httpx.Request]
) -> None:
    """Without any credentials.json, and before it."""
    monkeypatch.setenv("BREAKERS_URL", "http://127.0.0.1:7999")
    monkeypatch.setenv("BREAKERS_KEY", "admin")
    asked = ["status", "--json", "--data-dir", str(tmp_path)]
    assert runner.invoke(app, asked).exit_code == 0
    assert str(service[0].url) == "http://127.0.0.1:7999/v1/admin/status"
    assert service[0].headers["Authorization"] == "Bearer admin"
    assert runner.invoke(app, [*asked, "--url", "http://127.0.0.1:7998"]).exit_code == 0
    assert service[1].url.port == 7998
    monkeypatch.delenv("BREAKERS_KEY")
    (tmp_path / "key").write_text("filed\n")
    monkeypatch.setenv("BREAKERS_KEY_FILE", str(tmp_path / "key"))
    assert runner.invoke(app, asked).exit_code == 0
    assert service[2].headers["Authorization"] == "Bearer filed"


def test_a_certificate_of_ones_own_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as plain, context.wrap_socket(plain, server_side=True) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                listener.accept()

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("BREAKERS_URL", f"https://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("BREAKERS_KEY", "admin")
        result = runner.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert "set SSL_CERT_FILE" in result.stderr


@pytest.mark.parametrize(("url", "believed"), [("http://127.0.0.1:1", False), ("HTTPS://127.0.0.1:1", True)])
def test_authorities_are_read_for_certificates_alone(url: str, believed: bool) -> None:
    """Where none is read nobody is believed, whatever comes."""
    context = trusted_at(url)
    assert bool(context.get_ca_certs()) == believed
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_key_that_is_no_admin_key_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: list[httpx.Request]
) -> None:
    monkeypatch.setenv("BREAKERS_URL", "http://127.0.0.1:7999")
    monkeypatch.setenv("BREAKERS_KEY", "user")
    result = runner.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
    assert "needs an admin key, and BREAKERS_KEY is another; unset BREAKERS_KEY to take that of" in result.stderr


def test_a_service_on_its_way_up_is_told_from_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BREAKERS_URL", raising=False)
    monkeypatch.delenv("BREAKERS_KEY", raising=False)
    tmp_path.chmod(0o700)
    known = {"base_url": "http://127.0.0.1:1", "admin_key": "a"}
    monkeypatch.setattr(admin_client, "read_or_ask", lambda *_, **__: SimpleNamespace(**known))
    for pid, words in ((None, "nobody listens at http://127.0.0.1:1"), (4711, "(pid 4711) does not listen yet")):
        monkeypatch.setattr(doctor, "running", lambda data_dir, pid=pid: pid)
        result = runner.invoke(app, ["status", "--data-dir", str(tmp_path)])
        assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
        assert words in result.stderr


@pytest.fixture
def no_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of Ray's is in the environment; the umask is as it was, afterwards."""
    of_tls = (raytls.USE, raytls.CERTIFICATE, raytls.KEY, raytls.AUTHORITY, OWN_CERTIFICATE)
    for name in ("RAY_TMPDIR", raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH, *of_tls):
        monkeypatch.delenv(name, raising=False)
    before = os.umask(0o022)
    yield
    os.umask(before)


def node_env(data_dir: Path, *options: str) -> Result:
    return runner.invoke(app, ["node-env", *options, "--data-dir", str(data_dir)])


def in_a_shell(printed: str, *names: str) -> list[str]:
    """The values of variables after `eval`, and the umask."""
    script = "\n".join([printed, *(f'printf "%s\\n" "${name}"' for name in names), "umask"])
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env={"PATH": os.defpath})
    return done.stdout.splitlines()


@pytest.mark.usefixtures("no_choice")
def test_node_env_is_for_a_shell(tmp_path: Path) -> None:
    """What it prints can be evaluated, twice it does not collide, and its launcher can be run."""
    folders = []
    for _ in range(2):
        output = node_env(tmp_path / "data", "--head").stdout
        assert output.splitlines()[:2] == ["umask 077", 'ulimit -n "$(ulimit -Hn)"']
        assert all(re.fullmatch(r"export (RAY|BRK|GRPC)_\w+=\S+", line) for line in output.splitlines()[2:])
        launcher, place, mode, token, umask = in_a_shell(
            output, "RAY_SERVE_HAPROXY_BINARY_PATH", "RAY_TMPDIR", raytoken.MODE, raytoken.TOKEN_PATH
        )
        assert (mode, token, umask) == ("token", str(tmp_path / "data" / "ray.token"), "0077")
        assert os.access(launcher, os.X_OK)
        version = subprocess.run([launcher, "-v"], capture_output=True, text=True, check=True)
        assert "HAProxy" in version.stdout
        folder = Path(launcher).parent
        assert place == str(folder)
        assert os.stat(folder).st_mode & 0o077 == 0
        folders.append(folder)
    assert folders[0] != folders[1]
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.usefixtures("no_choice")
def test_a_shell_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluated again it leaves no other one behind; a folder that is not ours alone is not taken."""
    (place,) = in_a_shell(node_env(tmp_path / "data", "--head").stdout, "RAY_TMPDIR")[:1]
    monkeypatch.setenv("RAY_TMPDIR", place)
    launcher = in_a_shell(node_env(tmp_path / "data").stdout, "RAY_SERVE_HAPROXY_BINARY_PATH")[0]
    assert Path(launcher).parent == Path(place)
    Path(place).chmod(0o755)
    launcher = in_a_shell(node_env(tmp_path / "data").stdout, "RAY_SERVE_HAPROXY_BINARY_PATH")[0]
    assert Path(launcher).parent != Path(place)
    shutil.rmtree(Path(launcher).parent)
    shutil.rmtree(place)


@pytest.mark.usefixtures("no_choice")
def test_the_nodes_of_a_cluster_have_one_token(tmp_path: Path) -> None:
    """The head makes it; elsewhere it has to be there, and `eval` fails when it is not: nothing is started then."""
    head, node = tmp_path / "head", tmp_path / "node"
    missing = node_env(node)
    assert (missing.exit_code, len(missing.stderr.splitlines())) == (2, 1)
    assert "copy it from the head" in missing.stderr
    assert missing.stdout == "false\n"
    assert not node.exists()
    shutil.rmtree(in_a_shell(node_env(head, "--head").stdout, "RAY_TMPDIR")[0])
    node.mkdir()  # as mkdir and scp make it
    shutil.copy(head / "ray.token", node)
    place, path = in_a_shell(node_env(node).stdout, "RAY_TMPDIR", raytoken.TOKEN_PATH)[:2]
    shutil.rmtree(place)
    assert path == str(node / "ray.token")
    assert (node / "ray.token").read_bytes() == (head / "ray.token").read_bytes()
    assert stat.S_IMODE(node.stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    unusable = node_env(tmp_path / "file" / "data", "--head")
    assert (unusable.exit_code, len(unusable.stderr.splitlines())) == (2, 1)
    (node / "ray.token").chmod(0o644)
    assert "chmod" in node_env(node).stderr


@pytest.mark.usefixtures("no_choice")
@pytest.mark.parametrize("said", [raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH])
def test_what_the_operator_says_of_tokens_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv(said, "disabled" if said == raytoken.MODE else "mine")
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setenv(raytls.USE, "0")
    output = node_env(tmp_path / "data").stdout
    exported = dict(line.removeprefix("export ").split("=", 1) for line in output.splitlines() if "export" in line)
    shutil.rmtree(Path(exported["RAY_SERVE_HAPROXY_BINARY_PATH"]).parent)
    assert exported[raytoken.MODE] == ("disabled" if said == raytoken.MODE else "token")
    assert not {raytoken.TOKEN, raytoken.TOKEN_PATH} & exported.keys()
    assert exported["RAY_TMPDIR"] == "/tmp"
    assert raytls.USE not in exported
    assert not (tmp_path / "data").exists()


def exported(printed: str) -> dict[str, str]:
    return dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines() if "export" in line)


@pytest.mark.usefixtures("no_choice")
def test_nodes_ask_for_certificates_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head and another node, each with a key of its own; evaluated again, and where the operator decides."""
    head, node = tmp_path / "head", tmp_path / "node"
    first = exported(node_env(head, "--head", "--address", "203.0.113.7").stdout)
    monkeypatch.setenv("RAY_TMPDIR", first["RAY_TMPDIR"])
    node.mkdir()
    shutil.copy(head / "ray.token", node)
    second = exported(node_env(node).stdout)
    assert first[raytls.USE] == second[raytls.USE] == "1"
    for name, folder in ((raytls.KEY, head), (raytls.CERTIFICATE, head), (raytls.AUTHORITY, head)):
        assert Path(first[name]).parent == folder / "ray-tls"
        assert Path(second[name]).parent == node / "ray-tls"
    assert Path(first[raytls.AUTHORITY]).read_bytes() == Path(second[raytls.AUTHORITY]).read_bytes()
    assert Path(first[raytls.KEY]).read_bytes() != Path(second[raytls.KEY]).read_bytes()
    context = ssl.create_default_context(cafile=first[raytls.AUTHORITY])
    context.load_cert_chain(second[raytls.CERTIFICATE])
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    again = exported(node_env(head).stdout)
    assert {name: again[name] for name in (raytls.USE, raytls.KEY)} == {
        name: first[name] for name in (raytls.USE, raytls.KEY)
    }
    monkeypatch.setenv(raytls.USE, "0")
    assert not {raytls.USE, raytls.KEY} & exported(node_env(head).stdout).keys()
    monkeypatch.setenv(raytls.USE, "1")
    wrong = node_env(head, "--address", "not an address")
    assert (wrong.exit_code, wrong.stdout, len(wrong.stderr.splitlines())) == (2, "false\n", 1)
    shutil.rmtree(first["RAY_TMPDIR"])


@pytest.mark.usefixtures("no_choice")
def test_certificates_are_made_of_a_token_that_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(raytoken.TOKEN, "ab" * 32)
    found = exported(node_env(tmp_path / "data").stdout)
    shutil.rmtree(found["RAY_TMPDIR"])
    assert found[raytls.USE] == "1"
    assert "ab" * 32 not in str(found)
    monkeypatch.setenv(raytoken.TOKEN, "short")
    short = node_env(tmp_path / "data")
    assert (short.exit_code, short.stdout, len(short.stderr.splitlines())) == (2, "false\n", 1)
    assert "RAY_USE_TLS=0" in short.stderr
