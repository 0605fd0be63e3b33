"""TLS at the service's port, with the real HAProxy: what it speaks, and how its certificate is renewed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from api.launch import certificate_watch, tls
from api.launch import haproxy as ingress
from breaker_actors.gateway.door import Door
from tests.support.door import RunningDoor, get, running, until_closed
from tests.support.live import wait_for


class Files:
    """A certificate and its key where an operator has them."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key, self.log = folder / "cert.pem", folder / "key.pem", folder / "log"
        self.authority = trustme.CA()
        self.issue("first.example")

    def made(self, name: str) -> trustme.LeafCert:
        return self.authority.issue_cert(name, "127.0.0.1")

    def issue(self, name: str) -> None:
        made = self.made(name)
        self.write(made, made)

    def write(self, certificate: trustme.LeafCert, key: trustme.LeafCert) -> None:
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        self.key.write_bytes(key.private_key_pem.bytes())
        self.key.chmod(0o600)

    @property
    def door(self) -> ingress.Door:
        return ingress.Door(certificate=str(self.certificate), key=str(self.key), log=str(self.log))

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def names(door: RunningDoor, files: Files) -> set[str]:
    """Of the certificate that a new connection gets, which has to be one of the authority's."""
    with door.connect() as plain, files.context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        found = connection.getpeercert()
        assert found is not None
        return {name for kind, name in found["subjectAltName"] if kind == "DNS"}


def test_requests_and_streams_go_over_tls_and_a_new_certificate_cuts_none(files: Files) -> None:
    with (
        running(files.door) as door,
        door.connect() as plain,
        files.context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        assert stream.selected_alpn_protocol() is None
        assert stream.version() in ("TLSv1.2", "TLSv1.3")
        stream.sendall(get("/stream"))
        with httpx.Client(base_url=f"https://127.0.0.1:{door.port}", verify=files.context, trust_env=False) as client:
            assert client.post("/v1/x", content=b"a" * 200_000).json()["length"] == 200_000
        assert names(door, files) == {"first.example"}
        files.issue("second.example")
        wait_for(lambda: names(door, files) == {"second.example"}, 15, 0.2)
        after = stream.recv(1)
        for _ in range(3):
            after += stream.recv(4096)
        assert after.count(b"heartbeat") >= 1
        assert (door.folder / ingress.PEM_FILE).stat().st_mode & 0o777 == 0o600


def test_a_pair_that_does_not_match_changes_nothing_and_is_told_once(files: Files) -> None:
    with running(files.door) as door:
        other = files.made("other.example")
        files.write(other, files.made("second.example"))
        wait_for(files.log.exists, 20, 0.1)
        files.key.touch()
        wait_for(lambda: len(files.log.read_text().splitlines()) == 2, 20, 0.1)
        assert names(door, files) == {"first.example"}
        files.write(other, other)
        wait_for(lambda: names(door, files) == {"other.example"}, 15, 0.2)
    text = files.log.read_text()
    told = json.loads(text.splitlines()[0])
    assert {"ts", "level", "event", "process"} <= told.keys()
    assert "the key does not belong to the certificate" in told["message"]
    assert "PRIVATE" not in text


def test_the_services_own_process_knows_its_certificate_under_any_address(files: Files) -> None:
    """And takes no other one for it, not even of the same authority."""
    with running(files.door) as door:
        url = f"https://127.0.0.1:{door.port}/v1/x"
        pair = tls.Pair(files.certificate, files.key)
        assert httpx.get(url, verify=tls.own_context(pair), trust_env=False).status_code == 200
        other = tls.Pair(files.log.with_name("other.pem"), files.key)
        other.certificate.write_bytes(files.made("first.example").cert_chain_pems[0].bytes())
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(url, verify=tls.own_context(other), trust_env=False)


def test_old_tls_and_clear_text_are_refused(files: Files) -> None:
    with running(files.door) as door:
        old = files.context
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
        with door.connect() as plain, old.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            assert connection.version() == "TLSv1.2"
        with door.connect() as plain:
            plain.sendall(get("/v1/x"))
            assert b"200" not in until_closed(plain)


def test_the_watch_ends_with_haproxy(files: Files) -> None:
    def watches(folder: Path) -> list[str]:
        lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return [line.decode() for line in lines if str(folder).encode() in line and b"certificate_watch" in line]

    with running(files.door) as door:
        folder = door.folder
        assert len(watches(folder)) == 1
    wait_for(lambda: not watches(folder), 10)


@pytest.mark.parametrize("with_tls", [False, True])
def test_replicas_can_tell_whether_callers_get_in(files: Files, with_tls: bool) -> None:
    """A door that knows of no replica lets nobody in; nor does one that is not there."""

    def is_open() -> bool:
        return asyncio.run(asked.is_open())

    with running(files.door if with_tls else None) as door:
        asked = Door("127.0.0.1", door.port, with_tls)
        assert is_open()
        door.admin("set server http-breakers/replica state maint")
        assert not is_open()
        door.admin("set server http-breakers/replica state ready")
        wait_for(is_open, 10)
        door.process.kill()
        door.process.wait()
        assert not is_open()


def self_signed(key: Any, days: tuple[int, int]) -> bytes:
    """A certificate and its key, PEM, good between two days from now."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a.example")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 5, *(now + timedelta(days=day) for day in days))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    return certificate + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("curve", "days", "why"),
    [
        (ec.SECP256R1(), (-2, -1), "clients would refuse it: certificate has expired"),
        (ec.SECP256R1(), (1, 2), "clients would refuse it: certificate is not yet valid"),
        (ec.SECP256K1(), (-1, 1), "clients could not connect with it"),
        (ec.SECP384R1(), (-1, 1), None),
    ],
)
def test_what_clients_would_refuse_is_not_taken_over(
    tmp_path: Path, curve: ec.EllipticCurve, days: tuple[int, int], why: str | None
) -> None:
    pem = tmp_path / "pem"
    pem.write_bytes(self_signed(ec.generate_private_key(curve), days))
    with pytest.raises(certificate_watch.Unusable, match=why) if why else contextlib.nullcontext():
        certificate_watch.check(pem)


def test_what_haproxy_refuses_is_not_what_its_next_start_reads(tmp_path: Path, files: Files) -> None:
    watched = certificate_watch.Certificate(files.certificate, files.key, tmp_path / "tls.pem", tmp_path / "none")
    watched.write()
    before = (tmp_path / "tls.pem").read_bytes()
    files.issue("second.example")

    def refuse(content: bytes) -> None:
        raise certificate_watch.Unusable("HAProxy refuses the certificate")

    with pytest.raises(certificate_watch.Unusable):
        watched.write(refuse)
    assert (tmp_path / "tls.pem").read_bytes() == before


def test_a_pair_fits_in_one_command() -> None:
    assert certificate_watch.PEM_BYTES_MAX + 1_024 <= 2 * ingress.HEAD_BYTES_MAX
    assert f"ssl-default-bind-ciphers {certificate_watch.CIPHERS}\n" in ingress._TLS


FLOOD = 60


def hello(context: ssl.SSLContext) -> bytes:
    """The begin of a handshake."""
    back, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(back, there, server_hostname="127.0.0.1").do_handshake()
    return there.read()


def greeted(door: RunningDoor, greeting: bytes, source: str = "127.0.0.1") -> bool:
    """Whether it is answered. In bytes: a socket of ssl's that is cut is left open."""
    with contextlib.suppress(ConnectionError), door.connect(source) as plain:
        plain.sendall(greeting)
        return bool(plain.recv(1))
    return False


def denied(door: RunningDoor) -> int:
    metrics = httpx.get(f"http://127.0.0.1:{door.metrics}/metrics", trust_env=False).text
    found = re.search(r'^haproxy_frontend_denied_connections_total\{proxy="http_frontend"\} (\d+)', metrics, re.M)
    assert found is not None
    return int(found[1])


def test_handshakes_of_one_source_have_a_rate_that_costs_connections_nothing(files: Files) -> None:
    """Beyond it a connection is closed before anything is signed, and counted; a part of a flood goes on, and so do
    connections that are there and other sources."""
    limited, greeting = dataclasses.replace(files.door, handshakes_per_s=5, here=["192.0.2.0/24"]), hello(files.context)
    with running(limited) as door, httpx.Client(verify=files.context, trust_env=False) as client:
        url = f"https://127.0.0.1:{door.port}/v1/x"

        def served() -> bool:
            with contextlib.suppress(httpx.ConnectError):
                return client.get(url).status_code == 200
            return False

        wait_for(served, 10)  # the door was asked whether it is up until it was
        before, begun = denied(door), time.monotonic()
        taken = [greeted(door, greeting) for _ in range(FLOOD)].count(True)
        assert 1 <= taken <= 5 * (2 + time.monotonic() - begun)
        assert denied(door) - before == FLOOD - taken
        assert client.get(url).status_code == 200
        assert greeted(door, greeting, "127.0.0.2")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("kind", "why"), [("FIFO", "no regular file"), ("large", "larger than 30720 bytes")])
def test_what_is_no_certificate_file_is_not_read(files: Files, tmp_path: Path, kind: str, why: str) -> None:
    """Nobody waits for a writer, and nothing endless is read."""
    files.key.unlink()
    if kind == "FIFO":
        os.mkfifo(files.key)
    else:
        files.key.write_bytes(b"x" * (certificate_watch.PEM_BYTES_MAX + 1))
    watched = certificate_watch.Certificate(files.certificate, files.key, tmp_path / "tls.pem", tmp_path / "none")
    with pytest.raises(certificate_watch.Unusable, match=why):
        watched.write()
    assert not (tmp_path / "tls.pem").exists()
