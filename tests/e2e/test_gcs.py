"""Ray's control service (GCS) on a Redis: killed and started again, the service goes on all the while."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.launch import processes
from tests.e2e.test_kills import Flow, of_the_log
from tests.support.live import wait_for
from tests.support.nodes import Deployed, Node, Nodes, breakers, nodes

REDIS = shutil.which("redis-server")
AWAY_S = 8.0

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(REDIS is None, reason="there is no redis-server on the PATH"),
]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    port = processes.free_port()
    command = [str(REDIS), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    yield f"127.0.0.1:{port}"
    server.terminate()
    server.wait(20)


@pytest.fixture
def cluster(redis: str) -> Iterator[Nodes]:
    with nodes(RAY_REDIS_ADDRESS=redis) as found:
        found.start_head()
        yield found


def control_service(node: Node) -> int:
    (pid,) = processes.named(node.pids(), "gcs_server")
    return pid


def restarter(pid: int) -> tuple[list[str], dict[str, str], str]:
    """How a process was started: command, environment, working directory."""
    place = Path(f"/proc/{pid}")
    command = (place / "cmdline").read_text().rstrip("\0").split("\0")
    environment = dict(line.split("=", 1) for line in (place / "environ").read_text().split("\0") if "=" in line)
    return command, environment, os.readlink(place / "cwd")


def test_the_service_goes_on_without_the_control_service(cluster: Nodes, tmp_path: Path) -> None:
    data_dir, port = tmp_path / "data", str(processes.free_port())
    options = ("--address", cluster.address, "--data-dir", str(data_dir), "--host", "127.0.0.1", "--port", port)
    deployed = breakers("deploy", *options, **cluster.driver)
    assert deployed.returncode == 0, deployed
    live = Deployed(data_dir)
    made = live.breaker(name="watched", cooldown_ms=2_000)
    breaker_id = made["breaker"]["id"]
    (head,) = cluster.members
    pid = control_service(head)
    command, environment, directory = restarter(pid)
    with Flow(live, made["router_id"]) as flow:
        wait_for(lambda: len(live.events(breaker_id)) >= 2, 60)
        wait_for(lambda: not live.state(breaker_id).get("stale"))  # whom nobody has asked yet can't be found without it
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes.alive(pid))
        before, until = len(live.events(breaker_id)), time.monotonic() + AWAY_S
        while time.monotonic() < until:
            wait_for(lambda: not live.state(breaker_id).get("stale"), 5)
            time.sleep(0.1)
        assert len(live.events(breaker_id)) > before
        # a breaker that needs no new actor is made meanwhile, too
        live.breaker(name="meanwhile")
        server = subprocess.Popen(
            command, env=environment, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        told = len(live.events(breaker_id))
        wait_for(lambda: len(live.events(breaker_id)) >= told + 4, 120)
        # new actors come up, and those that die come back
        known = set(cluster.pids("ray::BreakerActor"))
        for i in range(3):
            live.breaker(name=f"after-{i}")
        wait_for(lambda: set(cluster.pids("ray::BreakerActor")) - known, 120)
        victims = set(cluster.kill("ray::RouterActor"))
        wait_for(lambda: set(cluster.pids("ray::RouterActor")) - victims, 120)
        told = len(live.events(breaker_id))
        wait_for(lambda: len(live.events(breaker_id)) >= told + 4, 120)
    assert flow.refused == []
    events = live.events(breaker_id)
    logged, replayed = asyncio.run(of_the_log(live, made, events[-1]["ts_ms"]))
    assert logged == flow.accepted
    assert [e["transition_seq"] for e in events] == list(range(1, len(events) + 1))
    got = [(e["transition_seq"], e["prev"], e["curr"], e["ts_ms"]) for e in events]
    assert got == [(e.transition_seq, e.prev, e.curr, e.ts_ms) for e in replayed][: len(got)]
    live.stop()
    assert breakers("deploy", "--remove", "--address", cluster.address, **cluster.driver).returncode == 0
    server.kill()
    server.wait(20)
