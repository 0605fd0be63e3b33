"""Whom the operator's commands show the admin key to."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli.main import app
from api.launch import bootstrap as credentials
from api.launch import listening
from api.launch.listening import check_listener, is_here
from api.launch.processes import free_port
from api.launch.readiness import wait_ready
from breaker_actors.clock import SystemClock
from breaker_actors.errors import Invalid, Unavailable

NOBODY = 65534
KEY = "eb_admin_secret"
LISTEN = """
import os, socket, sys
os.setresuid(int(sys.argv[1]), int(sys.argv[1]), int(sys.argv[1]))
listener = socket.create_server((sys.argv[2], 0), family=socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET)
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def listener_of(user: int, host: str) -> Iterator[int]:
    command = [sys.executable, "-c", LISTEN, str(user), host]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_a_listener_of_another_user_gets_nothing(host: str) -> None:
    asked = "[::1]" if host == "::1" else "127.0.0.1"
    with listener_of(NOBODY, host) as port:
        with pytest.raises(Invalid, match=f"another user listens .uid {NOBODY}.") as refusal:
            check_listener(f"http://{asked}:{port}", {0})
        assert "\n" not in str(refusal.value)
        check_listener(f"http://{asked}:{port}", {NOBODY})  # whose credentials they are
        check_listener(f"https://{asked}:{port}", {0})  # the certificate tells


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_waiting_for_a_start_shows_the_health_token_to_nobody_else() -> None:
    """Another user's program that took the port first: what it gets is not even a connection."""
    with listener_of(NOBODY, "127.0.0.1") as port, pytest.raises(Invalid, match="another user listens"):
        wait_ready(f"http://127.0.0.1:{port}", "health-token", SystemClock(), 5.0)


def test_ones_own_listener_is_fine_and_nobody_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        check_listener(f"http://localhost:{port}", {os.geteuid()})
    with pytest.raises(Unavailable, match=r"nobody listens at .*: start the service with `breakers serve`"):
        check_listener(f"http://127.0.0.1:{free_port()}", {os.geteuid()})


@pytest.mark.parametrize(
    ("url", "here"),
    [
        *((f"{scheme}://{host}:8080", True) for scheme in ("http", "https") for host in ("127.0.0.1", "localhost")),
        *(
            (f"http://{host}", True)
            for host in ("0.0.0.0:1", "[::1]:1", "[::ffff:127.0.0.1]", "127.9.9.9", "LOCALHOST")
        ),
        *((f"https://{host}", False) for host in ("192.0.2.1", "[2001:db8::1]:1", "breakers.example", "a.localhost")),
        *((f"https://{host}", False) for host in ("127.0.0.1@192.0.2.1", "127.0.0.1.example", "", "[::1", "[1]")),
    ],
)
def test_this_machine_is_known_by_its_addresses(url: str, here: bool) -> None:
    """A name is not looked up: it may mean another machine when something is sent."""
    assert is_here(url) == here


@pytest.mark.parametrize("host", ["192.0.2.1", "[2001:db8::1]", "[::ffff:192.0.2.1]"])
@pytest.mark.parametrize("binds_foreign", [False, True])
def test_another_machine_proves_itself_by_tls_or_is_trusted(
    host: str, binds_foreign: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_binds_foreign", lambda version: binds_foreign)
    with pytest.raises(Invalid, match=r"another machine .*--insecure-http") as refusal:
        check_listener(f"http://{host}:7117", {os.geteuid()})
    assert "\n" not in str(refusal.value)
    check_listener(f"https://{host}:7117", set())
    check_listener(f"http://{host}:7117", set(), insecure=True)


def test_a_name_is_refused_for_any_foreign_address_and_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="has no address"):
        check_listener("http://no.such.host.invalid:7117", set())
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 7117)) for host in ("127.0.0.1", "192.0.2.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Invalid, match=r"another machine .192\.0\.2\.1."):
        check_listener("http://both.invalid:7117", set())


@pytest.mark.parametrize("command", ["status", "rebalance"])
def test_commands_send_another_machine_nothing_unless_told_to(
    tmp_path: Path, odd: int, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other machine is played by a port of this one."""
    monkeypatch.setattr(listening, "_is_own", lambda address: False)
    monkeypatch.setattr(Odd, "keys", [])
    (line,) = ask(tmp_path, odd, command)
    assert "another machine" in line
    assert Odd.keys == []
    ask(tmp_path, odd, command, "--insecure-http")
    assert Odd.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "http://[::1", "127.0.0.1:7117", "ftp://127.0.0.1"])
def test_an_odd_address_is_one_line(tmp_path: Path, address: str) -> None:
    assert len(ask(tmp_path, 1, "status", "--address", address)) == 1


class Odd(http.server.BaseHTTPRequestHandler):
    """Another program: answers 200 with a text of the test's, and notes the keys it was shown."""

    text, keys = "{}", []  # type: tuple[str, list[str]]

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.text.encode())

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(data_dir: Path, port: int, command: str = "status", *options: str) -> list[str]:
    """What a command says on stderr."""
    names = credentials.Credentials.__struct_fields__
    known = dict.fromkeys(names, "x") | {"base_url": f"http://127.0.0.1:{port}", "admin_key": KEY}
    credentials.write(data_dir / "credentials.json", credentials.Credentials(**known))
    result = CliRunner().invoke(app, [command, "--data-dir", str(data_dir), *options])
    assert result.exit_code in (1, 2), result
    assert isinstance(result.exception, SystemExit)
    assert KEY not in result.output
    return [line for line in result.stderr.splitlines() if line]


@pytest.mark.parametrize("command", ["status", "rebalance"])
@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"nodes": [1], "moved": "1"}', "1", json.dumps({"nodes": None}), "[" * 9999]
)
def test_an_odd_answer_is_one_line(
    tmp_path: Path, odd: int, text: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "text", text)
    assert len(ask(tmp_path, odd, command)) == 1


def test_the_key_goes_through_no_proxy(tmp_path: Path, odd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{odd}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Odd, "keys", [])
    with socket.create_server(("127.0.0.1", 0)) as listener:  # answers nothing and is closed at once
        threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        assert len(ask(tmp_path, listener.getsockname()[1])) == 1
    assert Odd.keys == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_status_shows_an_impostor_no_key(tmp_path: Path) -> None:
    with listener_of(NOBODY, "127.0.0.1") as port:
        lines = ask(tmp_path, port)
    assert len(lines) == 1
    assert "another user" in lines[0]
