"""`breakers serve` as an operator runs it: a process that prints where it is, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

START_S, STOP_S = 120.0, 5.0


def wait_for(check: Callable[[], Any], within_s: float, what: str) -> Any:
    """The first true answer of `check`."""
    deadline = time.monotonic() + within_s
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return answer


class Serve:
    """One `breakers serve` subprocess. Everything it starts inherits a mark in its environment and can be found."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.mark = f"CLI_TEST_MARK={uuid4().hex}"
        name, value = self.mark.split("=")
        command = [sys.executable, "-m", "api.cli.main", "serve", "--data-dir", str(data_dir), *arguments]
        self.process = subprocess.Popen(
            command, env={**os.environ, name: value}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [self._collect(self.process.stdout, self.out), self._collect(self.process.stderr, self.err)]

    def _collect(self, stream: TextIO | None, lines: list[str]) -> threading.Thread:
        assert stream is not None
        thread = threading.Thread(target=lambda: lines.extend(iter(stream.readline, "")), daemon=True)
        thread.start()
        return thread

    def ready(self) -> str:
        """The base URL, once the service says that it is up."""

        def line() -> str | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {''.join(self.err)}"
            return next((text.split()[1] for text in list(self.out) if text.startswith("ready ")), None)

        return str(wait_for(line, START_S, "the ready line"))

    def ended(self, within_s: float) -> int:
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join(5.0)
        return code

    def left(self) -> dict[int, str]:
        """Living processes of this service: pid and command."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def kill_all(self) -> None:
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


@pytest.fixture
def start() -> Iterator[Callable[..., Serve]]:
    started: list[Serve] = []

    def begin(data_dir: Path, *arguments: str) -> Serve:
        started.append(Serve(data_dir, *arguments))
        return started[-1]

    yield begin
    for serve in started:
        serve.kill_all()
        for stream in (serve.process.stdout, serve.process.stderr):
            if stream is not None:
                stream.close()


Start = Callable[..., Serve]


def ray_folder(serve: Serve, data_dir: Path) -> Path:
    return Path((data_dir / "lock").read_text().split("\n")[1])


def get(url: str, key: str) -> httpx.Response:
    return httpx.get(url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=10)


def test_start_use_stop_and_start_again(start: Start, tmp_path: Path) -> None:
    """Keys of the file work, Ctrl-C ends all of it in time and cuts streams, and a second start keeps everything."""
    data_dir = tmp_path / "data"
    serve = start(data_dir, "--port", "0")
    url = serve.ready()
    path = data_dir / "credentials.json"
    first = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(first) == {
        "base_url",
        "database_id",
        "admin_key",
        "user_key",
        "workspace_id",
        "project_id",
        "project_key",
        "ingest_secret",
    }
    assert first["base_url"] == url
    breakers = f"{url}/v1/projects/{first['project_id']}/breakers"
    rule = {"kind": "avg", "metric": "latency", "op": "gt", "threshold": 100, "name": "kept"}
    headers = {"Authorization": f"Bearer {first['user_key']}"}
    assert httpx.post(breakers, json=rule, headers=headers, trust_env=False, timeout=10).status_code == 201

    with httpx.stream("GET", f"{breakers}/state:stream", headers=headers, trust_env=False, timeout=10) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: state"
        folder = ray_folder(serve, data_dir)
        begun = time.monotonic()
        serve.process.send_signal(signal.SIGINT)
        # a stream is cut, never ended: a clean end would silence some clients for good
        with pytest.raises(httpx.TransportError):
            list(lines)
    assert serve.ended(STOP_S) == 0
    assert time.monotonic() - begun < STOP_S
    assert serve.left() == {}
    assert not folder.exists()
    begun, *phases = serve.err
    assert begun.startswith(f"starting on {url}, data in ")
    assert sum("takes unsigned samples" in line for line in phases) == 1
    assert "stopping: SIGINT\n" in phases

    again = start(data_dir, "--port", "0")
    url = again.ready()
    second = json.loads(path.read_text())
    assert second == {**first, "base_url": url}
    answer = get(f"{url}/v1/projects/{first['project_id']}/breakers", first["user_key"])
    assert [b["name"] for b in answer.json()["breakers"]] == ["kept"]
    again.process.send_signal(signal.SIGTERM)
    assert again.ended(STOP_S) == 0
    assert again.left() == {}


def test_two_services_side_by_side(start: Start, tmp_path: Path) -> None:
    """Started at the same time on one machine; the end of one leaves the other alone."""
    one, other = start(tmp_path / "one", "--port", "0"), start(tmp_path / "other", "--port", "0")
    urls = [one.ready(), other.ready()]
    assert urls[0] != urls[1]
    one.process.send_signal(signal.SIGINT)
    assert one.ended(STOP_S) == 0
    assert one.left() == {}
    assert httpx.get(f"{urls[1]}/api/readyz", trust_env=False, timeout=10).status_code == 200
    listening = _listeners(other)
    assert listening, "no listening socket found"
    assert all(_is_loopback(address) for address in listening), listening


@pytest.mark.parametrize("moment", ["gcs_server", "haproxy"])
def test_a_signal_during_the_start_ends_it(start: Start, tmp_path: Path, moment: str) -> None:
    """At once, with everything that was up by then."""
    serve = start(tmp_path, "--port", "0")
    wait_for(lambda: any(moment in command for command in serve.left().values()), START_S, moment)
    serve.process.send_signal(signal.SIGINT)
    serve.ended(STOP_S)
    assert serve.left() == {}
    assert not any(line.startswith("ready") for line in serve.out)


def test_nothing_outlives_a_kill(start: Start, tmp_path: Path) -> None:
    """SIGKILL leaves no time to stop. What holds data or ports ends with it; Ray's agents end with the next start, or
    by themselves after a minute."""
    serve = start(tmp_path, "--port", "0")
    serve.ready()
    folder = ray_folder(serve, tmp_path)
    serve.process.kill()
    wait_for(lambda: all("Agent" in command for command in serve.left().values()), 15.0, "the end of all processes")
    again = start(tmp_path, "--port", "0")
    again.ready()
    assert serve.left() == {}
    assert not folder.exists()


def test_a_port_in_use_is_said_at_once(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        serve = start(tmp_path, "--port", str(port))
        assert serve.ended(20) == 2
    assert len(serve.err) == 1
    assert f"port {port} on 127.0.0.1 is in use" in serve.err[0]


def test_a_newer_schema_is_refused(start: Start, tmp_path: Path) -> None:
    """Data of a later version is left alone."""
    with sqlite3.connect(tmp_path / "breakers.sqlite") as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('9999')")
    database.close()
    serve = start(tmp_path, "--port", "0")
    assert serve.ended(20) == 2
    assert "newer" in serve.err[-1]


def _listeners(serve: Serve) -> set[str]:
    """Local addresses on which processes of the service listen, as the kernel writes them (hex)."""
    inodes = set()
    for pid in serve.left():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


def _is_loopback(address: str) -> bool:
    """127.0.0.1, ::1 or ::ffff:127.0.0.1 in the kernel's notation."""
    return address in {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
