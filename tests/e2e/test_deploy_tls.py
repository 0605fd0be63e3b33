"""Ray's ports of a cluster ask for certificates: those that `breakers node-env` makes, or those of its operator."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trustme

from api.launch import processes
from api.launch import ray_tls as raytls
from tests.support import impostor, stranger
from tests.support.live import wait_for
from tests.support.nodes import Deployed, breakers, nodes

WITHIN_S = 10.0
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def certificates(folder: Path) -> dict[str, str]:
    """Ray's variables for a node on loopback."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    contents = {
        raytls.CERTIFICATE: own.cert_chain_pems[0].bytes(),
        raytls.KEY: own.private_key_pem.bytes(),
        raytls.AUTHORITY: authority.cert_pem.bytes(),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {raytls.USE: "1", **{name: str(folder / name) for name in contents}}


def test_who_takes_the_port_of_a_dead_head_is_shown_no_token(tmp_path: Path) -> None:
    """Without a word of the operator. A stranger's call that would end the head is none before the handshake; when the
    head ends otherwise, those who look for it again find out first who listens there."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with nodes() as cluster:
        node = cluster.start_head()
        options = ("--address", cluster.address, "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1")
        done = breakers("deploy", *options, "--port", str(processes.free_port()), **cluster.driver)
        assert done.returncode == 0, done
        live = Deployed(tmp_path / "data")
        live.trip(live.breaker())
        live.close()
        gcs = int(cluster.address.rpartition(":")[2])
        heads = processes.named(node.pids(), "gcs_server")
        found = stranger.ask([], [gcs], [])
        assert (found["secured"], found["spoke"]) == ([gcs], [])
        assert processes.named(node.pids(), "gcs_server") == heads
        with impostor.waiting(gcs, WITHIN_S) as other:
            processes.send(heads, signal.SIGKILL)
            wait_for(lambda: not any(map(processes.alive, heads)))
            saw = other.saw()
        assert saw["came"] == saw["handshakes"] > 0
        assert saw["tokens"] == 0


def test_a_cluster_in_the_clear_is_told_in_a_line(tmp_path: Path) -> None:
    """As one that an older `breakers node-env` prepared. It can be used where its operator says so."""
    with nodes(**{raytls.USE: "0"}) as cluster:
        cluster.start_head()
        options = ("--address", cluster.address, "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1")
        refused = breakers("deploy", *options, **cluster.driver)
        assert refused.returncode == 2, refused
        (line,) = refused.stderr.splitlines()
        assert "takes calls in the clear" in line
        port = str(processes.free_port())
        done = breakers("deploy", *options, "--port", port, **cluster.driver, **{raytls.USE: "0"})
        assert done.returncode == 0, done


def test_a_cluster_with_tls_of_its_operator(tmp_path: Path) -> None:
    """The service runs, whoever has no certificate is told so in one line, and nobody without one can make a call."""
    tls, port = certificates(tmp_path), str(processes.free_port())
    with nodes(**tls) as cluster:
        node = cluster.start_head()
        options = ("--address", cluster.address, "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1")
        without = breakers("deploy", *options, "--port", port, **cluster.driver)
        assert without.returncode == 2, without
        (line,) = without.stderr.splitlines()
        assert "not made with this ray.token" in line
        without = breakers("deploy", *options, "--port", port, **cluster.driver, **{raytls.USE: "0"})
        assert without.returncode == 2, without
        (line,) = without.stderr.splitlines()
        assert "takes encrypted calls only" in line
        done = breakers("deploy", *options, "--port", port, **cluster.driver, **tls)
        assert done.returncode == 0, done
        live = Deployed(tmp_path / "data")
        made = live.breaker()
        live.trip(made)
        gcs = int(cluster.address.rpartition(":")[2])
        if os.geteuid() == 0:
            assert stranger.ask([], [gcs], [])["spoke"] == []
            assert processes.named(node.pids(), "raylet")
        live.close()
