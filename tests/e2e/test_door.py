"""A service that is open to other machines, with TLS and a health token: what listens, and what strangers get."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme

from api.launch.processes import below
from tests.support.listening import is_loopback, listeners
from tests.support.live import LiveService, serving, wait_for
from tests.support.nodes import breakers

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HEALTH = "a-health-token"
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


class Open:
    """The service and its authority."""

    def __init__(self, live: LiveService, authority: trustme.CA, certificate: Path, key: Path) -> None:
        self.live, self.authority, self.certificate, self.key = live, authority, certificate, key
        self.context = ssl.create_default_context()
        authority.configure_trust(self.context)


def write(authority: trustme.CA, certificate: Path, key: Path, *names: str) -> None:
    issued = authority.issue_cert(*names, "127.0.0.1")
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    folder, authority = tmp_path_factory.mktemp("open"), trustme.CA()
    certificate, key, trusted = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    write(authority, certificate, key, "localhost")
    authority.cert_pem.write_to_path(str(trusted))
    environ = {
        "BREAKERS_HOST": "0.0.0.0",
        "BREAKERS_TLS_CERT": str(certificate),
        "BREAKERS_TLS_KEY": str(key),
        "BREAKERS_HEALTH_TOKEN": HEALTH,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(trusted))
        with serving(folder / "data", **environ) as live:
            yield Open(live, authority, certificate, key)


def port_of(live: LiveService) -> int:
    return httpx.URL(live.base_url).port or 0


def test_nothing_but_the_services_port_listens_on_other_interfaces(service: Open) -> None:
    live = service.live
    found = listeners([live.process.pid, *below(live.process.pid)])
    assert len(found) > 5
    assert {listener for listener in found if not is_loopback(listener[0])} == {("0.0.0.0", port_of(live))}


def test_samples_trip_a_breaker_and_its_stream_says_so_over_tls(service: Open) -> None:
    live = service.live
    assert live.base_url == f"https://localhost:{port_of(live)}"
    made = live.breaker(name="over-tls", cooldown_ms=3_600_000)
    with live.stream() as stream:
        assert live.send(made["router_id"], [500.0] * 20).status_code == 202
        wait_for(lambda: "open" in [state for state, _ in stream.of("over-tls")])
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port_of(live)}/api/healthz", trust_env=False)


def test_a_new_certificate_is_taken_over_under_an_open_stream(service: Open) -> None:
    live = service.live

    def served() -> bytes | None:
        with httpx.Client(verify=service.context, trust_env=False) as client:
            with client.stream("GET", f"https://127.0.0.1:{port_of(live)}/") as answer:  # closed once it is read
                connection = answer.extensions["network_stream"]
                found: bytes | None = connection.get_extra_info("ssl_object").getpeercert(True)
                return found

    with live.stream() as stream:
        before = served()
        write(service.authority, service.certificate, service.key, "localhost")
        wait_for(lambda: served() != before, 30, 0.2)
        beats = stream.heartbeats
        wait_for(lambda: stream.heartbeats > beats, 30)


def test_commands_speak_to_it_with_the_authority_they_are_told(service: Open) -> None:
    said = breakers("status", "--json", "--data-dir", str(service.live.data_dir))
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["actors"]


def test_serves_own_pages_are_closed_without_the_token(service: Open) -> None:
    user = service.live.user
    for path in ("/-/healthz", "/-/Healthz"):
        assert (user.get(path).status_code, user.get(path).json()["code"]) == (401, "unauthorized")
        assert user.get(path, headers={"Authorization": f"Bearer {HEALTH}"}).status_code == 200
    for path in ("/-/routes", "/%2d/healthz", "/-%2froutes"):
        assert (user.get(path).status_code, user.get(path).json()["code"]) == (404, "not_found")


def test_every_refusal_is_an_error_object(service: Open) -> None:
    live = service.live
    admin = live.client(live.credentials["admin_key"])
    with admin:
        assert admin.get("/v1/admin/status").status_code == 200
        answers = [
            (admin.get("/v1/admin%2fstatus"), 404),
            (admin.request("BREW", "/v1/admin/status"), 405),
            (admin.request("TRACE", "/v1/admin/status"), 405),
            (admin.get("/v1/admin/status", headers={"X-Long": "a" * 17_000}), 431),
            (admin.get("/nowhere", headers=WEBSOCKET), 404),
        ]
    for answer, status in answers:
        assert answer.headers["Content-Type"] == "application/json", (answer.status_code, answer.text)
        body = answer.json()
        assert answer.status_code == status
        assert body["error"] == body["code"]
        assert body["request_id"] == answer.headers["X-Request-ID"]


def test_the_key_is_for_the_service_alone_and_in_no_log(service: Open) -> None:
    live = service.live
    folder = Path((live.data_dir / "lock").read_text().split("\n")[1])
    copies = list(folder.rglob("tls.pem*"))
    assert [oct(path.stat().st_mode & 0o777) for path in copies] == ["0o600"]
    secret = service.key.read_text().splitlines()[1]
    for path in (live.data_dir / "logs").rglob("*"):
        if path.is_file():
            assert secret not in path.read_text(errors="replace"), path
    assert secret not in "".join(live.output)


def test_a_stream_lives_longer_than_the_time_for_silence(service: Open) -> None:
    """70 s of heartbeats every 5 s."""
    with service.live.stream() as stream:
        begun = time.monotonic()
        wait_for(lambda: stream.heartbeats >= 14, 120, 0.5)
        assert time.monotonic() - begun > 62
