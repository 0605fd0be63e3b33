"""The key by which everything of a service on one machine knows its own at Ray's ports."""

from __future__ import annotations

import os
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
import trustme

from api.launch import ray_tls as raytls
from breaker_actors.errors import Invalid

NAMES = (raytls.USE, raytls.CERTIFICATE, raytls.KEY, raytls.AUTHORITY, "GRPC_VERBOSITY")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody said before; what is set here is gone afterwards."""
    for name in NAMES:
        monkeypatch.setenv(name, "before")


def test_every_service_has_its_own_for_its_user_alone(tmp_path: Path) -> None:
    pairs = set()
    for name in ("brk-1", "brk-2"):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        raytls.use_own_pair(folder)
        assert raytls.is_on()
        pem, key = folder / "ray.pem", folder / "ray-key.pem"
        assert [os.environ[name] for name in NAMES] == ["1", str(pem), str(key), str(pem), "NONE"]
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
        pairs |= {pem.read_text(), key.read_text()}
        ssl.create_default_context().load_cert_chain(pem, key)
    assert len(pairs) == 4


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    raytls.use_own_pair(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(Invalid, match="open to other users"):
        raytls.environment_of(tmp_path)


class Answering(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"done")


def obeys(port: int, *credentials: bytes | None) -> bool:
    with grpc.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(*credentials)) as channel:
        try:
            return bool(channel.unary_unary("/any/Call")(b"", timeout=5))
        except grpc.RpcError:
            return False


def test_who_has_the_key_is_served_and_nobody_else(tmp_path: Path) -> None:
    """As Ray's servers use it: the certificate is the only authority, on both sides, for 127.0.0.1."""
    raytls.use_own_pair(tmp_path)
    pem, key = (tmp_path / "ray.pem").read_bytes(), (tmp_path / "ray-key.pem").read_bytes()
    other = trustme.CA().issue_cert("127.0.0.1")
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answering()])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, pem)], pem, True))
    server.start()
    try:
        assert obeys(port, pem, key, pem)
        assert not obeys(port, pem, None, None)
        assert not obeys(port, pem, other.private_key_pem.bytes(), other.cert_chain_pems[0].bytes())
    finally:
        server.stop(None).wait()
