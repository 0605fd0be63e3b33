"""`breakers deploy` on a cluster whose operator has turned Ray's TLS on, with certificates of his own authority."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trustme

from api.launch import processes
from api.launch import ray_tls as raytls
from tests.support import stranger
from tests.support.nodes import Deployed, breakers, nodes

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


def test_a_cluster_with_tls_of_its_operator(tmp_path: Path) -> None:
    """The service runs, whoever has no certificate is told so in one line, and nobody without one can make a call."""
    tls, port = certificates(tmp_path), str(processes.free_port())
    with nodes(**tls) as cluster:
        node = cluster.start_head()
        options = ("--address", cluster.address, "--data-dir", str(tmp_path / "data"), "--host", "127.0.0.1")
        without = breakers("deploy", *options, "--port", port, **cluster.driver)
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
