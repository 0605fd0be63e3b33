"""Where the servers behind HAProxy listen."""

from __future__ import annotations

import asyncio
import socket
import warnings
from typing import Any

import httpx
import pytest

from api.launch.processes import free_port
from tests.support.live import wait_for

with warnings.catch_warnings(action="ignore"):
    from ray.serve._private import proxy, replica
    from ray.serve.config import HTTPOptions

    from api.launch import listeners

SERVES = replica.start_asgi_http_server
NODE = "127.0.0.2"


@pytest.mark.parametrize(("node", "found"), [("127.0.0.1", []), ("::1", []), ("10.0.0.5", ["10.0.0.5"])])
def test_a_cluster_on_loopback_stays_there(node: str, found: list[str]) -> None:
    assert listeners.addresses(node) == found


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


async def who(scope: Any, receive: Any, send: Any) -> None:
    body = scope["client"][0].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Serve starts in this process listens there, too, until the test is over."""
    monkeypatch.setattr(replica.start_asgi_http_server, "__code__", replica.start_asgi_http_server.__code__)
    monkeypatch.setenv(listeners.BELIEVED, "127.0.0.1")
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: NODE)
    monkeypatch.setattr(listeners, "addresses", lambda node: [node])
    assert listeners.narrow() == listeners.narrow() == []


@pytest.mark.usefixtures("on_a_node")
async def test_a_caller_that_came_in_by_another_node_keeps_its_address() -> None:
    """That node's HAProxy says which it is."""
    port = free_port()
    options = HTTPOptions(host="0.0.0.0", port=port)
    task, server = await replica.start_asgi_http_server(who, options, event_loop=asyncio.get_running_loop())
    while not server.started:
        await asyncio.sleep(0.01)
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.3")
    async with httpx.AsyncClient(transport=transport) as another_node:
        answer = await another_node.get(f"http://{NODE}:{port}/", headers={"X-Forwarded-For": "192.0.2.7"})
    assert answer.text == "192.0.2.7"
    server.should_exit = True
    await task


@pytest.mark.usefixtures("on_a_node")
async def test_serves_server_listens_on_loopback_and_its_node_only() -> None:
    """Whatever host Serve has, with the function that Serve calls after its callback, until it ends. Ray may have sent
    the proxy's class by value: with names of its own for what it calls, looked up before."""
    assert SERVES is proxy.start_asgi_http_server is replica.start_asgi_http_server
    port = free_port()
    options = HTTPOptions(host="0.0.0.0", port=port)
    task, server = await SERVES(hello, options, event_loop=asyncio.get_running_loop())
    while not server.started:
        await asyncio.sleep(0.01)
    assert [await asyncio.to_thread(reachable, host, port) for host in ("127.0.0.1", NODE, "127.0.0.3")] == [
        True,
        True,
        False,
    ]
    server.should_exit = True
    await task
    wait_for(lambda: not reachable("127.0.0.1", port) and not reachable(NODE, port), 5)


async def test_a_port_that_is_taken_on_one_address_is_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve knows it by an OSError behind a RuntimeError."""
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: NODE)
    monkeypatch.setattr(listeners, "addresses", lambda node: [node])
    with socket.create_server((NODE, 0)) as taken:
        options = HTTPOptions(host="0.0.0.0", port=taken.getsockname()[1])
        with pytest.raises(RuntimeError) as raised:
            await listeners.start_narrowly(hello, options, event_loop=asyncio.get_running_loop())
    assert isinstance(raised.value.__cause__, OSError)
