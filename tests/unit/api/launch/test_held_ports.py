"""Ports of a service that are no other user's when who listens there dies."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.launch import held_ports, processes
from api.launch.held_ports import HERE, HeldPorts, bound
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings
from tests.support import squatter
from tests.support.door import ask, get, running

with warnings.catch_warnings(action="ignore"):
    from ray.serve.config import HTTPOptions

    from api.launch import listeners, ray_environment

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def port() -> int:
    return processes.free_port()


@pytest.fixture
def ports() -> Iterator[HeldPorts]:
    lines: list[str] = []
    found = HeldPorts(lines.append)
    yield found
    found.close()
    assert lines == []


def sharing(port: int, host: str = HERE) -> socket.socket:
    """One that listens as HAProxy, replicas and the fallback proxy do."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.listen(100)
    return listener


def served(listener: socket.socket, port: int) -> None:
    """A connection that the listener gets, and that lingers at its end."""
    listener.settimeout(5)
    with socket.create_connection((HERE, port), 5) as caller:
        listener.accept()[0].close()
        assert caller.recv(1) == b""


@as_root
def test_without_a_holder_the_port_of_who_died_is_anybodys(port: int) -> None:
    """What the module is there for."""
    sharing(port).close()
    with squatter.trying(port) as other:
        assert other.got()


@as_root
@pytest.mark.parametrize("host", [HERE, "0.0.0.0", "::"])
def test_a_held_port_is_nobody_elses_before_during_and_after_a_listener(port: int, host: str) -> None:
    with bound(host, port), squatter.trying(port) as other:
        for _ in range(3):
            with sharing(port, host) as listener:
                for _ in range(50):  # none is lost to the holder
                    served(listener, port)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HERE, port), 5)
        assert other.got() == []


@as_root
def test_what_lingers_of_an_earlier_run_keeps_nothing_from_being_held(port: int) -> None:
    with bound(HERE, port), sharing(port) as listener:
        served(listener, port)
    with bound(HERE, port), squatter.trying(port) as other:
        assert other.got() == []


def test_a_port_is_held_once(port: int) -> None:
    """Two services of one user: the second is told, and chooses another."""
    with bound(HERE, port):
        with pytest.raises(OSError, match="in use"):
            bound(HERE, port)
        with pytest.raises(Invalid, match="in use"):
            processes.check_port(HERE, port)
    with sharing(port), pytest.raises(OSError, match="in use"):
        bound(HERE, port)


@as_root
def test_haproxys_own_ports_are_held_while_it_is_away() -> None:
    """The real program, killed and started anew: without that of its metrics it would not start."""
    with running(held=True) as door, squatter.trying(door.port, door.metrics) as other:
        for again in (True, False):
            assert ask(door, get("/v1/x")).status == 200
            door.process.kill()
            door.process.wait()
            with pytest.raises(ConnectionRefusedError):
                door.connect()
            if again:
                door.start()
        assert other.got() == []


def test_serve_lets_haproxy_share_its_port_when_told_to(tmp_path: Path) -> None:
    """HAProxy shares by itself; Serve forbids it, but for a variable."""
    program = "from ray.serve._private.haproxy import HAProxyConfig; print(HAProxyConfig.enable_so_reuseport)"
    for environ, shares in (({held_ports.SHARED_BY_INGRESS: "1"}, "True"), ({}, "False")):
        command = [sys.executable, "-W", "ignore", "-c", program]
        said = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout.split()[-1] == shares


@as_root
def test_a_replica_listens_on_held_ports_alone(ports: HeldPorts, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the function that Serve starts servers by."""
    environ = ports.hold_behind(1)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: HERE)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    at = sorted(held_ports.told(environ) or ())
    assert len(at) > held_ports.HELD_MIN
    assert {int(environ[held_ports.FALLBACK])} | {port for port in at if port in among(environ)} == set(at)

    async def serve(port: int) -> None:
        options = HTTPOptions(host="0.0.0.0", port=port)
        task, server = await listeners.start_narrowly(None, options, event_loop=asyncio.get_running_loop())
        while not server.started:
            await asyncio.sleep(0.01)
        socket.create_connection((HERE, port), 5).close()
        server.should_exit = True
        await task

    with squatter.trying(*at[:2], *at[-2:]) as other:
        for port in (at[0], at[-1]):
            asyncio.run(serve(port))
        assert other.got() == []
    with pytest.raises(RuntimeError) as refused:
        asyncio.run(serve(processes.free_port()))
    assert isinstance(refused.value.__cause__, OSError)
    assert refused.value.__cause__.errno == errno.EADDRINUSE  # by which Serve tries another one


def among(environ: dict[str, str]) -> range:
    return range(int(environ[held_ports.FIRST]), int(environ[held_ports.END]))


def test_a_block_that_others_have_much_of_is_left_to_them(ports: HeldPorts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has enough only what is free."""
    blocks = [100, 200, 300]
    monkeypatch.setattr(held_ports, "_LOWER", blocks[:2])
    monkeypatch.setattr(held_ports, "_UPPER", blocks[2:])
    taken = {*range(100, 200), *range(200, 251), 300, 350}
    held: list[int] = []

    def bind(host: str, port: int) -> Any:
        if port in taken:
            raise OSError(errno.EADDRINUSE, "in use")
        held.append(port)
        return Held(port, held)

    monkeypatch.setattr(held_ports, "bound", bind)
    environ = ports.hold_behind(3)
    assert among(environ) == range(300, 400)
    assert sorted(held) == sorted(held_ports.told(environ) or ())
    assert len([port for port in held if port < 400]) == 98
    ports.close()
    assert held == []


class Held:
    """A socket that is held."""

    def __init__(self, port: int, held: list[int]) -> None:
        self._port, self._held = port, held

    def getsockname(self) -> tuple[str, int]:
        return HERE, self._port

    def close(self) -> None:
        self._held.remove(self._port)


def test_where_others_have_much_of_every_block_less_is_held(ports: HeldPorts, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as each replica has a port."""
    monkeypatch.setattr(held_ports, "_LOWER", [100])
    monkeypatch.setattr(held_ports, "_UPPER", [200])
    held: list[int] = []

    def bind(host: str, port: int) -> Any:
        if port in range(100, 200) or port in range(200, 290):
            raise OSError(errno.EADDRINUSE, "in use")
        held.append(port)
        return Held(port, held)

    monkeypatch.setattr(held_ports, "bound", bind)
    assert among(ports.hold_behind(3)) == range(200, 300)
    assert len(held) == 11


def test_what_can_not_be_held_stops_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each; replicas and HAProxy then bind for themselves alone, wherever Serve says."""
    names = (held_ports.VARIABLE, held_ports.SHARED_BY_INGRESS)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_environment.os, "environ", dict(os.environ))
    monkeypatch.setattr(held_ports, "bound", lambda host, port: (_ for _ in ()).throw(OSError(98, "in use")))
    lines: list[str] = []
    ray_environment.prepare_ray(tmp_path, Settings(port=7117), HeldPorts(lines.append))
    assert [name for name in names if name in ray_environment.os.environ] == []
    assert int(ray_environment.os.environ[held_ports.FALLBACK]) > 0
    assert [line.split(":")[0] for line in lines] == [
        "port 7117 can't be held (in use)",
        "ports of replicas can't be held",
        "the port of HAProxy's metrics can't be held",
    ]
