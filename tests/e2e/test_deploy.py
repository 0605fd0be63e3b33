"""`breakers deploy` on a Ray cluster started as an operator starts it: used, upgraded under load, taken down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.launch import processes
from breaker_actors.persistence import store_url
from breaker_actors.settings import Settings
from breaker_actors.store import migrations
from tests.e2e.test_kills import Flow, of_the_log
from tests.support.live import wait_for
from tests.support.nodes import DEPLOY_S, Deployed, Nodes, breakers, nodes

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
SETTINGS = {"BREAKERS_REBALANCE_MOVES_PER_MINUTE": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes() as found:
        found.start_head()
        yield found


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def taken_down(cluster: Nodes) -> Iterator[None]:
    """Nothing of a test stays on the cluster."""
    yield
    assert remove(cluster).returncode == 0


def deploy(cluster: Nodes, data_dir: Path, *options: str, **environ: str) -> Any:
    return breakers(
        *("deploy", "--address", cluster.address, "--data-dir", str(data_dir), "--host", "127.0.0.1", *options),
        **{**cluster.driver, **SETTINGS, **environ},
    )


def remove(cluster: Nodes) -> Any:
    return breakers("deploy", "--remove", "--address", cluster.address, **cluster.driver)


def refused(result: Any) -> str:
    """The one line of a refusal."""
    assert result.returncode == 2, result
    (line,) = result.stderr.splitlines()
    return str(line)


def assert_nothing_lost(live: Deployed, made: dict[str, Any], accepted: int) -> None:
    events = live.events(made["breaker"]["id"])
    assert [e["transition_seq"] for e in events] == list(range(1, len(events) + 1))
    logged, replayed = asyncio.run(of_the_log(live, made, events[-1]["ts_ms"]))
    assert logged == accepted
    got = [(e["prev"], e["curr"], e["ts_ms"]) for e in events]
    assert got == [(e.prev, e.curr, e.ts_ms) for e in replayed][: len(got)]


@pytest.mark.usefixtures("taken_down")
def test_deploy_use_upgrade_and_remove(cluster: Nodes, data_dir: Path) -> None:
    """An upgrade under load is not noticed, what has not changed is left alone, and taken down the data stays."""
    port = str(processes.free_port())
    first = deploy(cluster, data_dir, "--port", port)
    assert first.returncode == 0, first
    assert first.stdout.splitlines()[-1] == f"ready http://127.0.0.1:{port}"
    assert "SQLite" in first.stderr
    live = Deployed(data_dir)
    made = live.breaker(name="deployed", cooldown_ms=2_000)
    others = [live.breaker(name=f"b{i}") for i in range(3)]
    breaker_id = made["breaker"]["id"]
    with Flow(live, made["router_id"]) as flow:
        wait_for(lambda: len(live.events(breaker_id)) >= 2, 30)
        before = {a["name"]: a["pid"] for a in live.status()["actors"]}
        second = deploy(cluster, data_dir, "--port", port, BREAKERS_DUPLICATE_WINDOW_MS="500000")
        assert second.returncode == 0, second
        told = len(live.events(breaker_id))
        wait_for(lambda: len(live.events(breaker_id)) >= told + 4, 60)
    assert flow.refused == []
    assert_nothing_lost(live, made, flow.accepted)
    wait_for(lambda: all(a["state"] == "up" for a in live.status()["actors"]), 30)
    after = {a["name"]: a["pid"] for a in live.status()["actors"]}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
    # nothing has changed: nothing is replaced
    third = deploy(cluster, data_dir, "--port", port, BREAKERS_DUPLICATE_WINDOW_MS="500000")
    assert third.returncode == 0, third
    assert "replaced" not in third.stdout
    assert {a["name"]: a["pid"] for a in live.status()["actors"]} == after
    # the commands of the operator
    shown = breakers("status", "--data-dir", str(data_dir))
    assert shown.returncode == 0, shown
    assert {"journal-0", "directory", "router-0", "breaker-0"} <= set(shown.stdout.split())
    status = json.loads(breakers("status", "--json", "--data-dir", str(data_dir)).stdout)
    assert [node["head"] for node in status["nodes"]] == [True]
    assert status["replicas"] == 1
    assert sum(a["holds"] for a in status["actors"] if a["kind"] == "breaker") == len(others) + 1
    moved = breakers("rebalance", "--json", "--data-dir", str(data_dir))
    assert json.loads(moved.stdout)["left"] == 0
    # nobody else works with its data, also after a moment in which no actor lived
    for kind in ("Directory", "Journal", "Notifier", "Router", "Breaker"):
        cluster.kill(f"ray::{kind}Actor")
    wait_for(lambda: renewed(live, after), 60, 0.5)
    stop = f"breakers deploy --remove --address {cluster.address} --data-dir {data_dir}"
    for command in (("serve", "--port", "0"), ("recover", "--all"), ("db", "upgrade"), ("channels", "disable-all")):
        beside = breakers(*command, "--data-dir", str(data_dir))
        assert (beside.returncode, stop in beside.stderr.splitlines()[-1]) == (2, True), beside
    # another address is refused while it runs
    assert "can't move" in refused(deploy(cluster, data_dir, "--port", str(processes.free_port())))
    kept = live.events(breaker_id)
    live.stop()
    gone = remove(cluster)
    assert gone.returncode == 0, gone
    assert cluster.pids("ray::BreakerActor") == cluster.pids("ray::ServeReplica") == cluster.programs("haproxy") == []
    assert breakers("recover", "--all", "--data-dir", str(data_dir)).returncode == 0
    missing = breakers("status", "--data-dir", str(data_dir))
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
    # and back again
    assert deploy(cluster, data_dir, "--port", port).returncode == 0
    live = Deployed(data_dir)
    assert live.events(breaker_id)[: len(kept)] == kept
    good = [1.0] * 5
    wait_for(lambda: live.send(made["router_id"], good).status_code == 202 and closed(live, breaker_id), 60, 0.2)
    live.stop()


def renewed(live: Deployed, before: dict[str, int]) -> bool:
    """Whether all actors run again, each in another process."""
    found = live.status()["actors"]
    return before.keys() == {a["name"] for a in found} and all(
        a["state"] == "up" and a["pid"] != before[a["name"]] for a in found
    )


def closed(live: Deployed, breaker_id: str) -> bool:
    return bool(live.state(breaker_id)["state"] == "closed")


FOR_FEW_STREAMS = """
import sys
from api.launch.cluster import Deployment, Scale
from breaker_actors.settings import load_settings
settings = load_settings(data_dir=sys.argv[2], host="127.0.0.1", port=int(sys.argv[3]))
Deployment(settings, Scale(1, 2, target=3)).run(sys.argv[1])
"""


@pytest.mark.usefixtures("taken_down")
def test_replicas_come_with_open_streams(cluster: Nodes, data_dir: Path) -> None:
    """Streams count as ongoing requests: with more of them than a replica is meant for there is another one soon."""
    arguments = [cluster.address, str(data_dir), str(processes.free_port())]
    env = {**os.environ, **cluster.driver}
    subprocess.run([sys.executable, "-c", FOR_FEW_STREAMS, *arguments], env=env, check=True, timeout=DEPLOY_S)
    live = Deployed(data_dir)
    with contextlib.ExitStack() as open_streams:
        open_streams.callback(live.stop)
        assert live.status()["replicas"] == 1
        streams = [open_streams.enter_context(live.stream()) for _ in range(6)]
        wait_for(lambda: live.status()["replicas"] == 2, 90)
        # they all go on, and more are served
        streams.append(open_streams.enter_context(live.stream()))
        made = live.breaker(name="streamed", cooldown_ms=3_600_000)
        assert live.send(made["router_id"], [500.0] * 3).status_code == 202
        for stream in streams:
            wait_for(lambda stream=stream: "open" in [state for state, _ in stream.of("streamed")])


BY_IMPORT_PATH = """
import importlib, sys
from api.launch.cluster import connected
with connected(sys.argv[1]):
    from ray import serve
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    module, name = "api.cluster:app".split(":")
    builder = getattr(importlib.import_module(module), name)
    serve.run(build(builder, {"replicas_min": "1"}), name="breakers", route_prefix="/")
"""


@pytest.mark.usefixtures("taken_down")
def test_the_application_by_its_import_path(cluster: Nodes, data_dir: Path, empty_postgres_url: str) -> None:
    """As KubeRay starts it: a builder that makes the schema and the first keys, and launches the actors."""
    port = processes.free_port()
    env = {
        **os.environ,
        **cluster.driver,
        "BREAKERS_DATABASE_URL": empty_postgres_url,
        "BREAKERS_DATA_DIR": str(data_dir),
        "BREAKERS_PORT": str(port),
    }
    command = [sys.executable, "-c", BY_IMPORT_PATH, cluster.address, str(port)]
    keyless = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEPLOY_S, check=False)
    assert keyless.returncode != 0
    assert "BREAKERS_SECRET_KEY" in keyless.stderr
    env["BREAKERS_SECRET_KEY"] = "ab" * 32
    subprocess.run(command, env=env, check=True, timeout=DEPLOY_S)
    with contextlib.closing(Deployed(data_dir)) as live:
        wait_for(lambda: is_ready(live), 60)
        made = live.breaker(name="built", cooldown_ms=3_600_000)
        live.trip(made)


@pytest.mark.usefixtures("taken_down")
def test_another_database_does_not_replace_the_running_one(
    cluster: Nodes, data_dir: Path, tmp_path: Path, empty_postgres_url: str
) -> None:
    """From a shell that does not name it, by the command and by import path: refused in words, and all goes on."""
    port = str(processes.free_port())
    on_postgres = {"BREAKERS_DATABASE_URL": empty_postgres_url, "BREAKERS_SECRET_KEY": "ab" * 32}
    first = deploy(cluster, data_dir, "--port", port, **on_postgres)
    assert first.returncode == 0, first
    database = json.loads((data_dir / "credentials.json").read_text())["database_id"]
    empty = tmp_path / "empty"
    with contextlib.closing(Deployed(data_dir)) as live:
        made = live.breaker(name="kept", cooldown_ms=3_600_000)
        before = {a["name"]: a["pid"] for a in live.status()["actors"]}
        line = refused(deploy(cluster, empty, "--port", port))
        assert all(words in line for words in ("PostgreSQL", f"SQLite in {empty}", f"--replace-database {database}"))
        env = {**os.environ, **cluster.driver, "BREAKERS_DATA_DIR": str(empty)}
        command = [sys.executable, "-c", BY_IMPORT_PATH, cluster.address, port]
        built = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEPLOY_S, check=False)
        assert built.returncode != 0
        assert "--replace-database" in built.stderr
        assert not (empty / "breakers.sqlite").exists()
        assert {a["name"]: a["pid"] for a in live.status()["actors"]} == before
        assert live.state(made["breaker"]["id"])["state"] == "closed"
        again = deploy(cluster, data_dir, "--port", port, **on_postgres)  # its own service is no other one
        assert again.returncode == 0, again
        other = breakers("serve", "--data-dir", str(tmp_path / "beside"), "--port", "0", **on_postgres)
        assert other.returncode == 2, other
        line = other.stderr.splitlines()[-1]  # its start tells its phases before
        assert "another service works with PostgreSQL" in line
        assert "--take-over" in line
        wait_for(lambda: is_ready(live), 60)
    left = deploy(cluster, empty, "--port", port, "--replace-database", database)
    assert left.returncode == 0, left
    with contextlib.closing(Deployed(empty)) as live:
        wait_for(lambda: is_ready(live), 60)
        assert live.user.get(f"{live.project_path}/breakers").json()["count"] == 0


def test_what_can_not_work_is_one_line(cluster: Nodes, data_dir: Path) -> None:
    nobody = breakers("deploy", "--address", f"127.0.0.1:{processes.free_port()}", "--data-dir", str(data_dir))
    assert (nobody.returncode, len(nobody.stderr.splitlines())) == (1, 1)
    assert "ray start --head" in nobody.stderr
    assert "minimum" in refused(deploy(cluster, data_dir, "--replicas-min", "3", "--replicas-max", "2"))
    assert "BREAKERS_DATABASE_URL" in refused(deploy(cluster, data_dir, BREAKERS_DATABASE_URL="mysql://x"))


@pytest.mark.usefixtures("taken_down")
def test_a_port_that_somebody_has_is_one_line(cluster: Nodes, data_dir: Path) -> None:
    """Serve's own words are a traceback of the process that could not listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = deploy(cluster, data_dir, "--port", str(port))
    assert told.returncode == 1
    assert f"port {port} is in use on a node of the cluster" in told.stderr.splitlines()[-1]
    assert "Traceback" not in told.stderr


def test_an_old_schema_is_refused_with_the_command_that_helps(cluster: Nodes, data_dir: Path) -> None:
    migrations.upgrade(store_url(Settings(data_dir=data_dir)))
    with closing(sqlite3.connect(data_dir / "breakers.sqlite")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
        connection.commit()
    assert "breakers db upgrade" in refused(deploy(cluster, data_dir))


def test_sqlite_is_for_one_node(data_dir: Path) -> None:
    """Deployed on one, a second node that comes later changes nothing; then it is refused."""
    with nodes(many=True) as cluster:
        cluster.start_head()
        assert deploy(cluster, data_dir, "--port", str(processes.free_port())).returncode == 0
        live = Deployed(data_dir)
        with contextlib.closing(live.user):
            cluster.add()
            wait_for(lambda: len(live.status()["nodes"]) == 2, 90)
            use_all_of_it(live, "late", 4)
            cluster.kill("ray::ServeReplica")
            cluster.kill("ray::JournalActor")
            wait_for(lambda: is_ready(live), 60)
            use_all_of_it(live, "after", 1)
        assert remove(cluster).returncode == 0
        line = refused(deploy(cluster, data_dir))
        assert "this cluster has 2" in line
        assert "BREAKERS_DATABASE_URL" in line


def is_ready(live: Deployed) -> bool:
    try:
        return live.user.get("/api/readyz").status_code == 200
    except httpx.TransportError:
        return False


def use_all_of_it(live: Deployed, name: str, count: int) -> None:
    """Makes breakers, and so actors, trips them, and looks where everything is: on the head."""
    for i in range(count):
        made = live.breaker(name=f"{name}-{i}", cooldown_ms=3_600_000)
        live.trip(made)
    (head,) = {node["id"] for node in live.status()["nodes"] if node["head"]}
    wait_for(lambda: {a["node_id"] for a in live.status()["actors"]} == {head}, 60)


def test_nodes_that_were_not_prepared_are_named(data_dir: Path) -> None:
    with nodes(prepared=False) as plain:
        plain.start_head()
        line = refused(deploy(plain, data_dir))
        assert 'eval "$(breakers node-env)"' in line
