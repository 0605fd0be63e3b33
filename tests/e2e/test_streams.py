"""Stream clients that come and go leave nothing behind in the replica."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.support.driver import Driver
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


CENSUS = """
from ray import serve
replica = serve.get_app_handle("breakers")
for _ in sys.stdin:
    answer(replica.census.remote().result(timeout_s=30))
"""


class Census(Driver):
    """Asks the replica, from a driver of its own, what lives in it."""

    def __init__(self, live: LiveService) -> None:
        super().__init__(live, CENSUS)

    def take(self) -> dict[str, int]:
        counted: dict[str, int] = self.ask()
        return counted


@pytest.fixture
def census(live: LiveService) -> Iterator[Census]:
    asked = Census(live)
    try:
        yield asked
    finally:
        asked.close()


@pytest.mark.alone
def test_500_clients_that_connect_and_leave_leave_nothing_behind(live: LiveService, census: Census) -> None:
    live.breaker(name="watched")
    wait_for(lambda: census.take()["streams"] == 0, 30)
    before = census.take()
    sockets = []
    for i in range(CLIENTS):
        sock = open_stream(live)
        if i % 2:  # half of them wait for the answer, the others leave at once
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        if i % 10 == 1:
            sockets.append(sock)  # some stay, so that the count is seen to count
        else:
            sock.close()
    assert wait_for(lambda: (now := census.take())["streams"] == len(sockets) and now, 30)["streams"] == CLIENTS // 10
    for sock in sockets:
        sock.close()

    def nothing_left() -> bool:
        after = census.take()
        # a task or two come and go with the service's own work; 500 clients would show
        return after["streams"] == 0 and all(after[k] <= before[k] + 3 for k in ("tasks", "generators"))

    wait_for(nothing_left, 30, every_s=0.2)


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
