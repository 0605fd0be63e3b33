"""Stream clients that come and go leave nothing behind in the replica."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e

CLIENTS = 500


def open_stream(live: LiveService) -> socket.socket:
    """A raw client that asks for the state stream."""
    address = urlsplit(live.base_url)
    sock = socket.create_connection((address.hostname, address.port), 10)
    head = f"GET {live.project_path}/breakers/state:stream HTTP/1.1\r\nHost: {address.netloc}\r\n"
    sock.sendall(f"{head}Authorization: Bearer {live.credentials['project_key']}\r\n\r\n".encode())
    return sock


def threads_and_tasks(live: LiveService) -> dict[str, int]:
    """What the replica counts of itself."""
    answer = live.user.get("/api/health")
    assert answer.status_code == 200
    return answer.json().get("streams", {})


def test_500_clients_that_connect_and_leave_leave_nothing_behind(live: LiveService) -> None:
    live.breaker(name="watched")
    before = threads_and_tasks(live)
    for i in range(CLIENTS):
        sock = open_stream(live)
        if i % 2:  # half of them wait for the answer, the others leave at once
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.close()
    wait_for(lambda: threads_and_tasks(live) == before, 30)


def test_a_stream_carries_heartbeats_and_no_other_fields(live: LiveService) -> None:
    live.breaker(name="heard")
    sock = open_stream(live)
    sock.settimeout(10)
    received = b""
    while b": heartbeat\n\n" not in received:
        received += sock.recv(65536)
    sock.close()
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: text/event-stream" in head.lower()
    assert b"cache-control: no-cache" in head.lower()
    assert b"event: state\ndata: {" in body
    assert b"\nid:" not in body
    assert b"retry:" not in body
