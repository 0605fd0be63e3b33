"""The way to a cluster of docs/operations/clusters.md, pasted line by line after a `breakers serve`: two nodes here."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from api.launch import processes
from tests.support.live import serving, wait_for
from tests.support.nodes import BIN, LOCAL_IP, MARK, PATIENT, PROXY_PORT, breakers, free_ports
from tests.support.postgres import own_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "clusters.md"
QUICKLY_S = 40.0
# The other machine is a folder, with a home and an environment of its own.
OTHER_MACHINE = """
ssh() { shift; (cd "$NODE_DIR" && "$@"); }
scp() { cp -p "$2" "$NODE_DIR/${3#NODE:}"; }
"""


@pytest.fixture
def place() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="readme-", dir="/tmp"))
    for name in ("head", "node", "other", "home", "home-of-node"):
        (found / name).mkdir()
    yield found
    shutil.rmtree(found)


@pytest.fixture
def mark() -> Iterator[str]:
    """What all processes carry in their environment; ended at the end, with their folders."""
    mark = uuid4().hex

    def ended() -> bool:
        left = processes.started_with(MARK, mark)
        processes.send(left, signal.SIGKILL)
        return not left

    yield mark
    folders = tops(mark)
    wait_for(ended, 60, 0.1)
    for folder in folders:
        shutil.rmtree(folder)


def tops(mark: str) -> set[Path]:
    """The folders below /tmp in which the nodes keep their sockets."""
    raylets = set(processes.named(processes.started_with(MARK, mark), "raylet"))
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in raylets]
    return {Path(*Path(re.findall(r"--raylet_socket_name=([^\0]+)", line)[0]).parts[:3]) for line in lines}


def walk() -> list[str]:
    (block,) = (
        b
        for b in re.findall(r"^```\w*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        if "ray start --head" in b
    )
    return [line.partition("  #")[0].rstrip() for line in block.splitlines()]


def test_the_way_to_a_cluster(place: Path, mark: str) -> None:
    home = {"HOME": str(place / "home"), **PATIENT}
    with serving(place / "served", HOME=home["HOME"]):  # its credentials are of other data: another folder
        pass
    head, copy, node, settings, deploy, status = walk()
    names = ("port", "dashboard-port", "ray-client-server-port")
    given = zip(names, free_ports(len(names)), strict=True)
    head += "".join(f" --{name}={port}" for name, port in given) + " --num-cpus=2"
    environ = {**home, "PATH": f"{BIN}:{os.environ['PATH']}", MARK: mark, "NODE_DIR": str(place / "node")}

    def paste(lines: list[str], folder: str, more: dict[str, str]) -> str:
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(lines)],
            cwd=place / folder,
            env=environ | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    begun = paste([OTHER_MACHINE, head, copy, "export -p > exported"], "head", {})
    (ip,) = LOCAL_IP.findall(re.sub(r"\x1b\[\d+m", "", begun))
    port = re.findall(r"--port=(\d+)", head)[0]
    of_node = {"HOME": str(place / "home-of-node"), PROXY_PORT: str(processes.free_port())}
    paste([node.replace("HEAD:6379", f"{ip}:{port}") + " --num-cpus=1"], "node", of_node)
    with own_server() as server, server.database(empty=True) as url:
        given = settings.replace("postgresql://...", url).replace("KEY=...", f"KEY={secrets.token_hex(32)}")
        # other services may run on this machine beside: `auto` is told which one is meant
        more = {"BREAKERS_PORT": str(processes.free_port()), "RAY_ADDRESS": f"{ip}:{port}"}
        # the head's shell goes on
        told = paste([". ./exported", given, f"{deploy} --host 127.0.0.1", status, f"{status} --json"], "head", more)
        assert "ready http://127.0.0.1:" in told
        assert len(json.loads(told.splitlines()[-1])["nodes"]) == 2
        # another shell, which has only the data directory; then one whose token is another
        again = paste([given, f"{deploy} --host 127.0.0.1"], "head", more)
        assert "replaced" not in again
        refused_at_once(place / "other", f"{ip}:{port}", home)
        assert len(tops(mark)) == 2
        assert {stat.S_IMODE(top.stat().st_mode) for top in tops(mark)} == {0o700}
        assert [list(place.glob(f"{name}/.ray/auth_token")) for name in ("home", "home-of-node")] == [[], []]
        for pid in processes.started_with(MARK, mark):
            processes.send([pid], signal.SIGKILL)  # before their database goes


def refused_at_once(data_dir: Path, address: str, environ: dict[str, str]) -> None:
    """With a token that is not the cluster's, and with none: a line each."""
    for token, why in ((secrets.token_hex(32), "not made with this ray.token"), (None, "copy ray.token")):
        (data_dir / "ray.token").unlink(missing_ok=True)
        data_dir.chmod(0o700)
        if token is not None:
            (data_dir / "ray.token").touch(mode=0o600)
            (data_dir / "ray.token").write_text(token)
        begun = time.monotonic()
        done = breakers("deploy", "--address", address, "--data-dir", str(data_dir), "--port", "0", **environ)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert why in done.stderr
        assert time.monotonic() - begun < QUICKLY_S
