"""TLS at the service's port, with the real HAProxy: what it speaks, and how its certificate is renewed."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from api.launch import certificate_watch, tls
from api.launch import haproxy as ingress
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


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("kind", "why"), [("FIFO", "no regular file"), ("large", "larger than 65536 bytes")])
def test_what_is_no_certificate_file_is_not_read(files: Files, tmp_path: Path, kind: str, why: str) -> None:
    """Nobody waits for a writer, and nothing endless is read."""
    files.key.unlink()
    if kind == "FIFO":
        os.mkfifo(files.key)
    else:
        files.key.write_bytes(b"x" * (65536 + 1))
    watched = certificate_watch.Certificate(files.certificate, files.key, tmp_path / "tls.pem", tmp_path / "none")
    with pytest.raises(certificate_watch.Unusable, match=why):
        watched.write()
    assert not (tmp_path / "tls.pem").exists()
