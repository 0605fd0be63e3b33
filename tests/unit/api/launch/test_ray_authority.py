"""Certificates at Ray's ports of a cluster: who has Ray's token makes them, and nobody else."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from api.launch import ray_authority as authority
from api.launch import ray_tls as raytls
from api.launch import ray_token as raytoken
from breaker_actors.errors import Invalid
from breaker_actors.transport.rpc import OWN_CERTIFICATE, encrypts
from tests.unit.api.launch.test_raytls import Answering, obeys

TOKEN, OTHER = "ab" * 32, "cd" * 32
FILES = (raytls.CERTIFICATE, raytls.KEY, raytls.AUTHORITY, OWN_CERTIFICATE)
PROOF = {raytoken.MODE: "token", raytoken.TOKEN: TOKEN}
# Of a release that nodes of before have to get on with: another one is another authority.
ID_OF_TOKEN = "f516c0463a523931"


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (raytls.USE, *FILES, "GRPC_VERBOSITY", raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_all_nodes_derive_one_authority_of_a_token() -> None:
    made = [authority.Authority(TOKEN).certificate.public_bytes(Encoding.PEM) for _ in range(2)]
    assert made[0] == made[1]
    assert authority.Authority(TOKEN).id == ID_OF_TOKEN
    assert authority.Authority(OTHER).id != ID_OF_TOKEN
    assert TOKEN.encode() not in made[0]


def test_a_node_has_a_key_of_its_own_for_its_addresses() -> None:
    names = authority.names_of_machine(["203.0.113.7", "2001:db8::7", "head.example"])
    assert {"127.0.0.1", "::1", "localhost"} <= {str(name.value) for name in names}
    assert {"203.0.113.7", "2001:db8::7", "head.example"} <= {str(name.value) for name in names}
    own = authority.Authority(TOKEN)
    first, second = own.issue(names), own.issue(names)
    assert first != second
    for pem in (first, second):
        assert own.issued_for(pem.encode()) == names
        assert authority.Authority(OTHER).issued_for(pem.encode()) == []
    key = first[: first.index("-----BEGIN CERTIFICATE")]
    assert own.issued_for((key + second[second.index("-----BEGIN CERTIFICATE") :]).encode()) == []
    assert own.issued_for(b"") == []
    issued = x509.load_pem_x509_certificate(first.encode())
    assert issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


@pytest.mark.parametrize("wrong", ["", "a b", "10.0.0.1:6379", "x\ny", "https://x"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(Invalid, match="neither an IP address"):
        authority.names_of_machine([wrong])


def test_files_of_a_node_are_its_users_alone_and_stay(data_dir: Path) -> None:
    found = authority.of_node(data_dir, PROOF)
    assert (found[raytls.USE], found["GRPC_VERBOSITY"]) == ("1", "NONE")
    folder = data_dir / "ray-tls"
    assert stat.S_IMODE(data_dir.stat().st_mode) == stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {Path(found[name]) for name in FILES} == {*folder.iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert TOKEN not in "".join([*found.values(), *(path.read_text() for path in folder.iterdir())])
    before = {path: path.read_text() for path in folder.iterdir()}
    assert authority.of_node(data_dir, PROOF) == found
    assert {path: path.read_text() for path in folder.iterdir()} == before
    # another address asks for another certificate, another token for others beside
    assert authority.of_node(data_dir, PROOF, ["203.0.113.7"]) == found
    pair = Path(found[raytls.CERTIFICATE])
    assert pair.read_text() != before[pair]
    added = pair.read_text()
    other = authority.of_node(data_dir, PROOF | {raytoken.TOKEN: OTHER})
    assert not {*other.values()} & {found[name] for name in FILES}
    assert pair.read_text() == added


def test_what_was_named_once_stays(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes a certificate anew, for an address that came, does not know what `node-env --address` named. Those
    of one link come and go, and are in none."""
    authority.of_node(data_dir, PROOF, ["203.0.113.7"])
    known = authority.ingress.own_addresses(Path("/proc/net"))
    came = [*known, "198.51.100.9/32", "fe80::42:acff:fe11:2/128"]
    monkeypatch.setattr(authority.ingress, "own_addresses", lambda folder: came)
    found = authority.of_node(data_dir, PROOF)
    pem = Path(found[raytls.CERTIFICATE]).read_bytes()
    names = {str(name.value) for name in authority.Authority(TOKEN).issued_for(pem)}
    assert {"203.0.113.7", "198.51.100.9", "127.0.0.1"} <= names
    assert not any(name.startswith("fe80:") for name in names)


def test_a_folder_of_others_is_refused(data_dir: Path) -> None:
    authority.of_node(data_dir, PROOF)
    (data_dir / "ray-tls").chmod(0o755)
    with pytest.raises(Invalid, match="open to other users"):
        authority.of_node(data_dir, PROOF)


def test_a_key_that_others_may_read_is_refused(data_dir: Path) -> None:
    found = authority.of_node(data_dir, PROOF)
    Path(found[raytls.KEY]).chmod(0o644)
    with pytest.raises(Invalid, match="open to other users"):
        authority.of_node(data_dir, PROOF)


@pytest.mark.parametrize("said", ["0", "1", "false", ""])
def test_what_the_operator_says_of_tls_goes_first(data_dir: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv(raytls.USE, said)
    assert authority.of_node(data_dir, PROOF) == {}
    assert not data_dir.exists()
    monkeypatch.setenv(raytoken.MODE, "token")
    monkeypatch.setenv(raytoken.TOKEN, TOKEN)
    authority.use_of_cluster(None)
    assert OWN_CERTIFICATE not in os.environ
    assert encrypts(os.environ) is (said == "1")


def test_what_an_earlier_node_env_said_is_no_word_of_the_operator(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = authority.of_node(data_dir, PROOF)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert authority.is_ours()
    assert not authority.is_said()
    assert authority.of_node(data_dir, PROOF).items() == {*found.items()} - {("GRPC_VERBOSITY", "NONE")}
    monkeypatch.setenv(raytls.CERTIFICATE, "mine.pem")
    assert authority.is_said()
    monkeypatch.setenv(raytls.CERTIFICATE, found[raytls.CERTIFICATE])
    monkeypatch.setenv(raytls.USE, "0")
    assert authority.is_said()


def test_without_a_token_nothing_is_made(data_dir: Path) -> None:
    assert authority.of_node(data_dir, {raytoken.MODE: "disabled"}) == {}
    authority.use_of_cluster(None)
    assert raytls.USE not in os.environ


def test_a_short_token_is_refused(data_dir: Path) -> None:
    """Who connects is shown a certificate, by which he could try tokens."""
    with pytest.raises(Invalid, match="less than 32 characters") as refusal:
        authority.of_node(data_dir, PROOF | {raytoken.TOKEN: "hunter2"})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("has_folder", [True, False])
def test_who_joins_makes_certificates_of_its_token(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, has_folder: bool
) -> None:
    monkeypatch.setenv(raytoken.MODE, "token")
    monkeypatch.setenv(raytoken.TOKEN, TOKEN)
    if has_folder:
        data_dir.mkdir(mode=0o700)
    authority.use_of_cluster(data_dir)
    assert authority.is_ours()
    assert (Path(os.environ[raytls.KEY]).parent == data_dir / "ray-tls") is has_folder
    assert data_dir.exists() is has_folder
    assert stat.S_IMODE(Path(os.environ[raytls.KEY]).parent.stat().st_mode) == 0o700


def test_wires_stay_where_only_our_own_certificates_guard_rays_ports(data_dir: Path) -> None:
    found = authority.of_node(data_dir, PROOF)
    assert not encrypts(found)
    assert encrypts({raytls.USE: "1", raytls.CERTIFICATE: "mine.pem"})
    assert encrypts(found | {raytls.CERTIFICATE: "mine.pem"})
    assert not encrypts({})


def test_who_has_the_token_is_served_and_nobody_else(data_dir: Path) -> None:
    """As Ray's servers use the files, and its callers; the other end's address is looked at, too."""
    found = authority.of_node(data_dir, PROOF)
    pair, trusted = Path(found[raytls.KEY]).read_bytes(), Path(found[raytls.AUTHORITY]).read_bytes()
    other = authority.of_node(data_dir, PROOF | {raytoken.TOKEN: OTHER})
    theirs, they = Path(other[raytls.KEY]).read_bytes(), Path(other[raytls.AUTHORITY]).read_bytes()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answering()])
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair, pair)], trusted, True))
    server.start()
    try:
        assert obeys(port, trusted, pair, pair)
        second = authority.Authority(TOKEN).issue(authority.names_of_machine()).encode()
        assert obeys(port, trusted, second, second)
        assert not obeys(port, trusted, None, None)
        assert not obeys(port, trusted, theirs, theirs)
        assert not obeys(port, they, theirs, theirs)
        context = ssl.create_default_context(cadata=trusted.decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_cert_chain(found[raytls.CERTIFICATE])
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port)) as raw:
            context.wrap_socket(raw, server_hostname="127.0.0.1").close()
        with socket.create_connection(("127.0.0.1", port)) as raw, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(raw, server_hostname="203.0.113.9")
    finally:
        server.stop(None).wait()
