"""Which cluster a command joins, and what it says before Ray would try a token that is not the cluster's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding

from api.launch import join as joining
from api.launch import processes
from api.launch import ray_authority as authority
from api.launch import ray_tls as raytls
from api.launch import ray_token as raytoken
from breaker_actors.errors import Invalid
from breaker_actors.transport.rpc import OWN_CERTIFICATE

TOKEN = "ab" * 32


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    of_tls = (raytls.USE, raytls.CERTIFICATE, raytls.KEY, raytls.AUTHORITY, OWN_CERTIFICATE, "GRPC_VERBOSITY")
    for name in ("RAY_ADDRESS", *of_tls, raytoken.MODE, raytoken.TOKEN, raytoken.TOKEN_PATH):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


class Head(grpc.GenericRpcHandler):
    """Answers like Ray's head: those with its token, or all; keeps what it was told."""

    def __init__(self, token: str | None) -> None:
        self.told: list[str | None] = []
        self._wanted = token and f"Bearer {token}"

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.told.append(dict(details.invocation_metadata).get("authorization"))
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self._wanted not in (None, self.told[-1]):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no")
        return b""


@contextmanager
def head(token: str | None, credentials: grpc.ServerCredentials | None = None) -> Iterator[tuple[Head, str]]:
    found = Head(token)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[found])
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield found, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def use(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(raytoken.MODE, "token")
    monkeypatch.setenv(raytoken.TOKEN, token)


def refused(address: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refusal:
        joining.check_token(address)
    assert "\n" not in str(refusal.value)
    assert TOKEN not in str(refusal.value)


def test_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, TOKEN)
    with head(TOKEN) as (found, address):
        joining.check_token(address)
    assert found.told == [None, f"Bearer {TOKEN}"]


def test_none_on_both_sides() -> None:
    with head(None) as (_, address):
        joining.check_token(address)


def test_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "cd" * 32)
    with head(TOKEN) as (_, address):
        refused(address, "another token")


def test_no_token_here() -> None:
    with head(TOKEN) as (_, address):
        refused(address, r"copy ray\.token")


def test_no_token_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is not shown to who does not ask for it."""
    use(monkeypatch, TOKEN)
    with head(None) as (found, address):
        refused(address, "node-env")
    assert found.told == [None]


def test_one_that_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shown to it; when TLS is on here as well, Ray looks after the rest."""
    use(monkeypatch, TOKEN)
    mine = trustme.CA()
    own = mine.issue_cert("127.0.0.1")
    pair = [(own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())]
    with head(TOKEN, grpc.ssl_server_credentials(pair, mine.cert_pem.bytes(), True)) as (found, address):
        refused(address, "RAY_USE_TLS=1")
        monkeypatch.setenv(raytls.USE, "1")
        joining.check_token(address)
    assert found.told == []


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process has a token, and certificates of it; the folder they are in."""
    use(monkeypatch, TOKEN)
    folder = tmp_path / "ours"
    folder.mkdir(mode=0o700)
    authority.use_of_cluster(folder)
    return folder


def shown(token: str = TOKEN, *names: str) -> grpc.ServerCredentials:
    """What a head shows that was started with this token, for these names or those of this machine."""
    own = authority.Authority(token)
    of = [authority._name(name) for name in names] or authority.names_of_machine()
    pair = own.issue(of).encode()
    trusted = own.certificate.public_bytes(Encoding.PEM)
    return grpc.ssl_server_credentials([(pair, pair)], trusted, True)


@pytest.mark.usefixtures("ours")
def test_one_with_certificates_of_the_same_token() -> None:
    with head(TOKEN, shown()) as (found, address):
        joining.check_token(address)
    assert found.told == [None, f"Bearer {TOKEN}"]


@pytest.mark.usefixtures("ours")
def test_one_with_certificates_of_another_token() -> None:
    with head(TOKEN, shown("cd" * 32)) as (found, address):
        refused(address, r"not made with this ray\.token")
    assert found.told == []


@pytest.mark.usefixtures("ours")
def test_one_whose_certificate_is_for_other_addresses() -> None:
    with head(TOKEN, shown(TOKEN, "203.0.113.9")) as (found, address):
        refused(address, "node-env --address 127.0.0.1")
    assert found.told == []


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize(("token", "words"), [(TOKEN, "RAY_USE_TLS=0 there and here$"), (None, "asks for no token")])
def test_one_in_the_clear_is_shown_no_token(token: str | None, words: str) -> None:
    """Started by an older `breakers node-env`, or a stranger's where a head was before."""
    with head(token) as (found, address):
        refused(address, f"in the clear.*{words}")
    assert {*found.told} == {None}


@pytest.mark.usefixtures("ours")
def test_one_that_says_nothing_is_shown_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_HANDSHAKE_S", 0.5)
    monkeypatch.setattr(joining, "_ASK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        refused(f"127.0.0.1:{silent.getsockname()[1]}", "proves by no certificate")


@pytest.mark.usefixtures("ours")
def test_the_operator_does_without_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_USE_TLS=0 is his word, also in a shell where `breakers node-env` said something else before."""
    monkeypatch.setenv(raytls.USE, "0")
    authority.use_of_cluster(None)
    with head(TOKEN) as (_, address):
        joining.check_token(address)
    with head(TOKEN, shown()) as (found, address):
        refused(address, "takes encrypted calls only: copy ray.token")
    assert found.told == []


RAYLET = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"raylet", 0, 0, 0)
print("up", flush=True)
sys.stdin.read()
"""


@contextmanager
def raylet(address: str, user: int | None = None, effective: int | None = None) -> Iterator[None]:
    """A process with the name and the option by which the head is found."""
    effective = user if effective is None else effective
    drop = "" if user is None else f"import os; os.setresuid({user}, {effective}, {effective})\n"
    command = [sys.executable, "-c", RAYLET.replace("print", f"{drop}print", 1), f"--gcs-address={address}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield
        process.kill()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that run on this machine besides are not looked at, and Python counts as Ray's program."""
    monkeypatch.setattr(joining, "raylet_file", lambda: Path(sys.executable))

    options_of = processes.options_of
    before = set(options_of("raylet", "--gcs-address=", joining.raylet_file()))
    monkeypatch.setattr(processes, "options_of", lambda *of: [one for one in options_of(*of) if one not in before])


@pytest.mark.usefixtures("others")
def test_auto_is_this_users_cluster() -> None:
    """Another user's raylet is nobody to show a token to."""
    with pytest.raises(ConnectionError):
        joining.address_of("auto")
    with raylet("10.0.0.1:4711"):
        assert joining.address_of("auto") == "10.0.0.1:4711"
        with raylet("10.0.0.1:4712"), pytest.raises(Invalid, match=r"10\.0\.0\.1:4711 or 10\.0\.0\.1:4712"):
            joining.address_of("auto")


@pytest.mark.usefixtures("others")
def test_auto_is_not_another_users_cluster() -> None:

    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with raylet("127.0.0.1:6666", user=65534), pytest.raises(ConnectionError):
        joining.address_of("auto")


@pytest.mark.usefixtures("others")
def test_auto_is_not_what_another_user_started_with_our_rights() -> None:
    """A setuid program under the name of Ray's: its effective user is ours, its real one is not."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with raylet("127.0.0.1:6666", user=65534, effective=0), pytest.raises(ConnectionError):
        joining.address_of("auto")


def test_auto_is_not_another_program_of_that_name() -> None:
    with raylet("127.0.0.1:6666"):
        assert joining.raylet_file().is_file()
        found = processes.options_of("raylet", "--gcs-address=", joining.raylet_file())
    assert "127.0.0.1:6666" not in found


@pytest.mark.usefixtures("others")
@pytest.mark.parametrize("said", ["auto", "local", "", " auto "])
@pytest.mark.parametrize("variable", [False, True])
def test_rays_words_for_a_cluster_nearby_are_this_users(
    said: str, variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given or in RAY_ADDRESS: Ray itself would ask the processes of all users, and show the one it finds our token."""
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", said)
    given = "auto" if variable else said
    asked: list[object] = []
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", lambda: asked.append(1) or {"127.0.0.1:6666"})
    with pytest.raises(ConnectionError, match="of this user"):
        joining.address_of(given)
    with raylet("10.0.0.1:4711"):
        assert joining.address_of(given) == "10.0.0.1:4711"
    assert asked == []


@pytest.mark.parametrize("given", ["auto", "local", ""])
def test_ray_address_names_a_head(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert joining.address_of(given) == "10.0.0.2:6379"
    assert joining.address_of("[fd00::1]:6380") == "[fd00::1]:6380"
    assert joining.address_of("head.example:1") == "head.example:1"


WRONG = [
    "ray://10.0.0.1:10001",
    "10.0.0.1",
    ":6379",
    "10.0.0.1:0",
    "10.0.0.1:65536",
    "a b:1",
    "auto:",
    "h:1\nx",
    "LOCAL",
]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("variable", [False, True])
def test_no_address_of_a_head(wrong: str, variable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", wrong)
    with pytest.raises(Invalid, match="give HOST:PORT") as refusal:
        joining.address_of("auto" if variable else wrong)
    assert "\n" not in str(refusal.value)
