"""A single node behind Ray Serve's own proxy (BREAKERS_INGRESS=serve): the same service, with TLS, without HAProxy."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from tests.support.live import LiveService, is_running, serving, tree_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("serve")
    certificate, key, trusted = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    authority.cert_pem.write_to_path(str(trusted))
    environ = {"BREAKERS_TLS_CERT": str(certificate), "BREAKERS_TLS_KEY": str(key), "BREAKERS_INGRESS": "serve"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(trusted))
        with serving(folder / "data", **environ) as service:
            service.trusted = trusted  # type: ignore[attr-defined]
            yield service


def connected(live: LiveService) -> ssl.SSLSocket:
    address = urlsplit(live.base_url)
    context = ssl.create_default_context(cafile=str(live.trusted))  # type: ignore[attr-defined]
    plain = socket.create_connection((str(address.hostname), address.port), 60)
    return context.wrap_socket(plain, server_hostname="localhost")


def heard_until_the_end(client: ssl.SSLSocket) -> bytes:
    """What the other end says before it ends the connection, one way or the other. Raises TimeoutError when it does
    not."""
    heard = b""
    try:
        while piece := client.recv(65536):
            heard += piece
    except (ssl.SSLError, ConnectionError):
        pass
    return heard


def test_no_haproxy_runs(live: LiveService) -> None:
    assert live.base_url.startswith("https://")
    lines = tree_of(live.process.pid).values()
    assert [line for line in lines if line.startswith("ray::ProxyActor")]
    assert not [line for line in lines if "haproxy" in line.lower()]


def test_a_trip_is_seen_by_readers_and_on_the_stream(live: LiveService) -> None:
    made = live.breaker(name="behind-serve", cooldown_ms=3_600_000)
    with live.stream() as stream:
        live.trip(made)
        wait_for(lambda: ("open", None) in stream.of("behind-serve"))
        wait_for(lambda: stream.heartbeats, 30)
    assert live.state(made["breaker"]["id"])["state"] == "open"
    assert [event["to_state"] for event in live.events(made["breaker"]["id"])] == ["open"]


@pytest.mark.parametrize("path", ["/-/routes", "/-/healthz", "/-"])
def test_serves_own_pages_are_closed(live: LiveService, path: str) -> None:
    answer = live.user.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_a_long_head_ends_the_connection(live: LiveService) -> None:
    with connected(live) as client:
        client.sendall(b"GET /api/health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 30_000)
        with contextlib.suppress(ssl.SSLError, ConnectionError):  # it may end before all is sent
            client.sendall(b"a" * 70_000)
        assert heard_until_the_end(client) == b""


def test_a_silent_connection_ends(live: LiveService) -> None:
    with connected(live) as client:
        assert heard_until_the_end(client) == b""


def test_streams_end_with_the_service_and_nothing_is_left(live: LiveService) -> None:
    """The last test: it stops the service."""
    path = f"{live.project_path}/breakers/state:stream"
    with live.client(live.credentials["project_key"]) as client, client.stream("GET", path) as answer:
        lines = answer.iter_lines()
        next(lines)
        pids = list(tree_of(live.process.pid))
        live.process.send_signal(signal.SIGINT)
        # Cut, or ended in good order: that hangs on whose process ends first. A silent one raises ReadTimeout.
        with contextlib.suppress(httpx.NetworkError, httpx.ProtocolError):
            for _ in lines:
                pass
    assert live.process.wait(60) == 0, "".join(live.output[-40:])
    wait_for(lambda: not [pid for pid in pids if is_running(pid)])
