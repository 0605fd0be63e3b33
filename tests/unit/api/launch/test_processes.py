"""Ports and the tree of processes below us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from api.launch import processes
from api.launch.ray_environment import ray_environment
from breaker_actors.errors import Invalid


def test_a_free_port_can_be_used() -> None:
    port = processes.free_port()
    processes.check_port("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Invalid, match="in use"):
        processes.check_port("127.0.0.1", port)


def test_where_others_have_all_of_its_ports_the_kernel_finds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "_PORTS", [port] * processes._TRIES)
        found = processes.free_port()
        assert found not in (0, port)
        processes.check_port("127.0.0.1", found)


def test_a_name_is_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of version 4, if it has one: callers, who holds the port, and who listens there mean the same."""
    family = {"::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET}

    def resolve(host: str, port: None, type: int) -> list[tuple[object, ...]]:
        if host == "nowhere":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = {"localhost": ("::1", "127.0.0.1"), "six": ("::1",)}.get(host, (host,))
        return [(family[address], type, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = [processes.address_of(host) for host in ("localhost", "six", "::1", "127.0.0.1")]
    assert found == ["127.0.0.1", "::1", "::1", "127.0.0.1"]
    with pytest.raises(Invalid, match=r"nowhere has no address: Name or service not known; .* --host$"):
        processes.address_of("nowhere")


def test_no_free_port_is_one_clear_line() -> None:
    with pytest.raises(Invalid, match=r"^no free port found on 192\.0\.2\.254: .*$"):
        processes.free_port("192.0.2.254")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Invalid, match="is no address of this machine"):
        processes.check_port("192.0.2.254", 7117)


def test_children_are_found_until_they_end() -> None:
    """A dead child nobody has waited for yet does not count as running."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert child.pid in processes.below(os.getpid())
        assert processes.alive(child.pid)
        processes.send([child.pid], signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid not in processes.below(os.getpid())
        assert not processes.alive(child.pid)
    finally:
        child.kill()
        child.wait()


def test_haproxy_takes_no_more_than_the_file_limit_allows(tmp_path: object) -> None:
    """HAProxy refuses to start when its connections need more files than the process may open."""
    from pathlib import Path

    few = ray_environment(Path("/tmp/x"), 20_000, metrics=True)
    many = ray_environment(Path("/tmp/x"), 1_000_000, metrics=False)
    assert few["RAY_SERVE_HAPROXY_MAXCONN"] == "7600"
    assert many["RAY_SERVE_HAPROXY_MAXCONN"] == "40000"
    assert few["RAY_SERVE_HAPROXY_STATS_PORT"] != few["RAY_SERVE_HAPROXY_METRICS_PORT"]
