"""`breakers statsd` between real clients and a real service: each trips a breaker and sees it recover."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import statsd
from datadog.dogstatsd.base import DogStatsd

from tests.support.live import LiveService
from tests.support.real_senders import token
from tests.support.statsd_process import Receiver

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
RULE = {"window_ms": 1_000, "eval_interval_ms": 100, "recovery_allow_rate_ramp_steps": 1, "cooldown_ms": 100}
NODE = """
const StatsD = require('hot-shots');
const [host, port, value] = process.argv.slice(1);
const client = new StatsD({host, port: Number(port), errorHandler: error => { throw error; }});
for (let i = 0; i < 5; i++) client.distribution('latency', Number(value), ['router_id:hot-shots']);
client.close();
"""


@pytest.fixture
def receiver(live: LiveService, tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(live.base_url, live.project_id, token(live, "statsd"), tmp_path)
    yield made
    made.close()


def trips_and_recovers(live: LiveService, made: dict[str, Any], send: Callable[[float], None]) -> None:
    """The breaker of this 201 answer, on an average; `send` sends values of its metric."""
    breaker = made["breaker"]["id"]
    for value, word in ((900.0, "open"), (1.0, "closed")):
        deadline = time.monotonic() + 30
        while (state := live.state(breaker)["state"]) != word:
            assert time.monotonic() < deadline, state
            send(value)
            time.sleep(0.1)


def test_datadogs_client_over_udp_and_a_unix_socket(live: LiveService, receiver: Receiver) -> None:
    clients = {
        "udp": DogStatsd(host=receiver.host, port=receiver.port),
        "unix": DogStatsd(socket_path=str(receiver.socket)),
    }
    for name, client in clients.items():

        def send(value: float, name: str = name, client: DogStatsd = client) -> None:
            client.histogram("latency", value, tags=[f"router_id:{name}"], sample_rate=0.5)
            client.distribution("latency", value, tags=[f"router_id:{name}"])
            client.flush()

        trips_and_recovers(live, live.breaker(name=name, **RULE), send)
        client.stop()
    status = receiver.stop()
    assert (status["malformed"], status["points_dropped"], status["points_rejected"]) == ({}, {}, 0)


def test_a_plain_client_by_a_mapping(live: LiveService, receiver: Receiver) -> None:
    client = statsd.StatsClient(receiver.host, receiver.port, prefix="shop")
    made = live.breaker(name="plain", metric="pay", **RULE)
    mapping = {
        "name": "plain",
        "matchers": [{"field": "name", "op": "=", "value": "shop.latency"}],
        "to": {"router": made["router_id"], "metric": "pay"},
    }

    def send(value: float) -> None:
        client.timing("latency", value)
        client.incr("hits")

    live.user.post(f"{live.project_path}/mappings", json=mapping).raise_for_status()
    trips_and_recovers(live, made, send)
    client.close()


def test_long_tags_with_many_values_cost_nobody_else_a_point(live: LiveService, receiver: Receiver) -> None:
    """However often one sends them."""
    values = b":".join(b"%d" % n for n in range(1000))
    hostile = [b"e%d:%s|ms|#a:%s,b:%s" % (n, values, b"x" * 2040, b"y" * 2040) for n in range(5)]
    client = DogStatsd(host=receiver.host, port=receiver.port, disable_telemetry=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:

        def send(value: float) -> None:
            for datagram in hostile:
                other.sendto(datagram, (receiver.host, receiver.port))
            client.distribution("latency", value, tags=["router_id:beside"])
            client.flush()

        trips_and_recovers(live, live.breaker(name="beside", **RULE), send)
    client.stop()
    status = receiver.stop()
    assert status["datagrams"] > 10
    assert (status["malformed"], status["points_dropped"], status["points_rejected"]) == ({}, {}, 0)
    assert (status["dropped"], status["datagrams_dropped_by_kernel"]) == ({}, 0)


def test_nodes_client(live: LiveService, receiver: Receiver, node: Path) -> None:
    def send(value: float) -> None:
        command = ["node", "-e", NODE, receiver.host, str(receiver.port), str(value)]
        subprocess.run(command, cwd=node, check=True, timeout=30)

    trips_and_recovers(live, live.breaker(name="hot-shots", **RULE), send)
