"""What a replica's port takes in, with the server that Serve starts, and the real HAProxy before it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.admission.outgoing import DIRECT
from api.launch import haproxy as ingress
from api.launch import replica_port
from breaker_actors.telemetry.meters import Meters
from tests.support.door import Answer, RunningDoor, ask, closed, get, running, until_closed
from tests.support.live import wait_for

with warnings.catch_warnings(action="ignore"):
    from ray.serve._private import replica
    from ray.serve.config import HTTPOptions

    from api.launch import listeners

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5eed" * 16}
PROOF = str(ingress.proof(TOKEN))
OTHER = str(ingress.proof(TOKEN | {"RAY_AUTH_TOKEN": "0ff5" * 16}))


def lonely_port() -> int:
    """Ray listens without SO_REUSEADDR: one of whose connections none lingers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A server as Serve starts it in a replica, and what its app met."""

    def __init__(self) -> None:
        self.port = lonely_port()
        self.met: list[Any] = []
        self.answering: Any = self.saying
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        assert self._up.wait(20)

    async def _serve(self) -> None:
        options = HTTPOptions(host="0.0.0.0", port=self.port)
        task, self._server = await replica.start_asgi_http_server(self._app, options, event_loop=self._loop)
        while not self._server.started:
            await asyncio.sleep(0.01)
        self._up.set()
        await task

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answering(scope, receive, send)

    async def reading(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers when the body is there."""
        while (await receive()).get("more_body"):
            pass
        await self.saying(scope, receive, send)

    async def saying(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        self.met.append(scope)
        body = json.dumps({"from": scope["client"][0], "headers": headers}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 10)

    def ask(self, request: bytes) -> Answer:
        with self.connect() as connection:
            connection.sendall(request)
            return Answer(connection)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._loop.close()


Serving = Callable[[], Server]


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Starts servers in a process with a token, on one node that is loopback; counts begin at nothing."""
    monkeypatch.setattr(replica.start_asgi_http_server, "__code__", replica.start_asgi_http_server.__code__)
    monkeypatch.setenv(listeners.BELIEVED, "127.0.0.1")
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)
    for what in replica_port.refused:
        monkeypatch.setitem(replica_port.refused, what, 0)
    listeners.narrow()
    with contextlib.ExitStack() as stack:

        def start() -> Server:
            server = Server()
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def server(serving: Serving) -> Server:
    return serving()


@pytest.fixture
def door(server: Server) -> Iterator[RunningDoor]:
    """HAProxy before it, which found it healthy."""
    with running(replica_port=server.port, **TOKEN) as found:
        yield found


# -- requests


@pytest.mark.parametrize("path", ["/v1/x", "/-/healthz", "/-/routes", "/v1/projects/p/ingest"])
@pytest.mark.parametrize(
    "more",
    [
        "",
        "X-Forwarded-For: 192.0.2.7\r\n",
        f"{ingress.PROOF}: {OTHER}\r\n",
        f"{ingress.PROOF}: \r\n",
        f"{ingress.PROOF}: {PROOF[:-1]}\r\n",
        f"{ingress.PROOF}: {PROOF}\r\n{ingress.PROOF}: {OTHER}\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n",
    ],
)
def test_who_passes_by_haproxy_is_refused_before_anything_else(server: Server, path: str, more: str) -> None:
    answer = server.ask(get(path, more=more))
    assert (answer.status, answer.headers["Content-Type"]) == (403, "application/json")
    body = json.loads(answer.body)
    assert (body["error"], body["code"]) == ("forbidden", "forbidden")
    assert body["request_id"] == answer.headers["X-Request-ID"]
    assert server.met == []
    assert replica_port.refused == {what: int(what == "unproven") for what in replica_port.refused}


def test_a_refusal_waits_for_no_body_and_ends_the_connection(server: Server) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"x" * 1000)
        assert until_closed(connection).startswith(b"HTTP/1.1 403 ")
    assert server.met == []


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The targets of the heads that are parsed from here on."""
    found: list[bytes] = []
    complete = replica_port.Connection.on_headers_complete

    def on_headers_complete(connection: replica_port.Connection) -> None:
        found.append(connection.url)
        complete(connection)

    monkeypatch.setattr(replica_port.Connection, "on_headers_complete", on_headers_complete)
    return found


@pytest.mark.parametrize("first", [b"GET", b"POST"])
def test_behind_a_request_that_is_refused_nothing_is_read(server: Server, heads: list[bytes], first: bytes) -> None:
    """However many requests come with it: one answer, then the end."""
    chunk = first + b" /a HTTP/1.1\r\n\r\n" + b"GET /b HTTP/1.1\r\n\r\n" * 14_000
    with server.connect() as connection:
        connection.sendall(chunk)
        answer = until_closed(connection)
    assert (answer.count(b"HTTP/1.1 "), answer[:13]) == (1, b"HTTP/1.1 403 ")
    assert heads == [b"/a"]
    assert (server.met, replica_port.refused["unproven"]) == ([], 1)


def test_a_long_head_is_not_parsed_beyond_its_bound(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whatever pieces it comes."""
    parsed: list[int] = []
    on_header = replica_port.Connection.on_header

    def counted(connection: replica_port.Connection, name: bytes, value: bytes) -> None:
        parsed.append(len(name))
        on_header(connection, name, value)

    monkeypatch.setattr(replica_port.Connection, "on_header", counted)
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 100_000)
        assert until_closed(connection) == b""
    assert 1 < len(parsed) <= replica_port.HEAD_BYTES_MAX / 5
    assert replica_port.refused["head"] == 1


class Told:
    """What an app says in pieces past `send`, and whether each was written."""

    def __init__(self) -> None:
        self.written: list[bool] = []
        self.is_given: bool | None = None
        self.read = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        direct = scope.get(DIRECT)
        self.is_given = direct is not None
        if direct is not None:
            self.written.append(direct.write(b"before its head"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one ", "more_body": True})
        if direct is not None:
            self.written += [direct.write(b"two "), direct.write(b"three ")]
        await send({"type": "http.response.body", "body": b"four", "more_body": False})
        if direct is not None:
            self.written.append(direct.write(b"after its end"))

    async def flood(self, scope: Any, receive: Any, send: Any) -> None:
        """Writes until nothing is taken any more, then waits for that in `send`, then writes again."""
        direct, piece = scope[DIRECT], b"x" * 10_000
        await send({"type": "http.response.start", "status": 200, "headers": []})
        n = 0
        while direct.write(piece):
            n += 1
        self.written.append(n < 10_000)
        await send({"type": "http.response.body", "body": b"y", "more_body": True})
        self.written.append(direct.write(b"z"))
        while (await receive())["type"] != "http.disconnect":
            pass
        self.written.append(direct.write(b"nobody"))
        self.read.set()


def asked(server: Server) -> socket.socket:
    connection = server.connect()
    connection.sendall(f"GET /v1/x HTTP/1.1\r\nHost: x\r\n{ingress.PROOF}: {PROOF}\r\n\r\n".encode())
    return connection


def test_pieces_past_send_are_part_of_the_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its head to its end, in one order with those by `send`; where a process offers it."""
    for offers in (False, True):
        monkeypatch.setattr(replica_port, "_offers_direct", offers)
        server.answering = told = Told()
        for _ in range(2):
            with asked(server) as connection:
                answer = Answer(connection)
        assert told.is_given is offers
        assert answer.body == (b"one two three four" if offers else b"one four")
        wait_for(lambda told=told, offers=offers: len(told.written) == 8 * offers)
        assert told.written == [False, True, True, False] * (2 * offers)


def test_pieces_past_send_are_bounded_by_what_the_client_takes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_port, "_offers_direct", True)
    told = Told()
    server.answering = told.flood
    with asked(server) as connection:
        wait_for(lambda: told.written)
        read = b""
        while not read.endswith(b"z\r\n"):
            read += connection.recv(1 << 20)
    assert told.read.wait(10)
    assert told.written == [True, True, False]
    assert read.count(b"y") == 1


def test_what_is_no_request_is_refused_alike(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"rubbish\r\n\r\n" * 1000)
        assert until_closed(connection).startswith(b"HTTP/1.1 403 ")
    assert replica_port.refused["unproven"] == 1


def test_requests_that_wait_for_no_answer_end_a_connection(server: Server, heads: list[bytes]) -> None:
    """With a proof, too. One may: HAProxy can have an answer that the app is not done with."""
    request = f"GET /a HTTP/1.1\r\nHost: x\r\n{ingress.PROOF}: {PROOF}\r\n\r\n".encode()
    last = get("/b", more=f"{ingress.PROOF}: {PROOF}\r\n")
    with server.connect() as two:
        two.sendall(request + last)
        assert until_closed(two).count(b"HTTP/1.1 200 ") == 2
    assert len(heads) == 2
    with server.connect() as many:
        many.sendall(request * 1000)
        until_closed(many)
    assert len(heads) == 2 + 3
    assert replica_port.refused["pipelined"] == 1


def test_trailers_are_no_headers(server: Server, door: RunningDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of their own request nor of the next one on the connection, whoever sends them."""
    monkeypatch.setattr(server, "answering", server.reading)
    trailers = ["X-Forwarded-For: 192.0.2.7", "X-Request-ID: <script>", "Authorization: Bearer x"]
    head = "POST /v1/x HTTP/1.1\r\nHost: x\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n"
    body = "\r\n".join(["", "2", "{}", "0", *trailers, f"{ingress.PROOF}: {PROOF}", "", ""])
    for connect, more in ((door.connect, ""), (server.connect, f"{ingress.PROOF}: {PROOF}\r\n")):
        with connect() as connection:
            for _ in range(2):
                connection.sendall((head + more + body).encode())
                found = json.loads(Answer(connection).body)
                names = [name for name, _ in found["headers"]]
                assert "authorization" not in names
                assert ingress.PROOF not in names
                assert len(names) == len(set(names))
                assert "192.0.2.7" not in str(found)
                assert "<script>" not in str(found)


def test_what_haproxy_sends_is_answered_and_tells_the_app_no_proof(server: Server, door: RunningDoor) -> None:
    """Whatever the caller says itself. That it is up says that the health check is proven, too."""
    for more in ("", f"{ingress.PROOF}: {OTHER}\r\n", f"{ingress.PROOF}: x\r\n{ingress.PROOF}: {PROOF}\r\n"):
        answer = ask(door, get("/v1/x", more=more + "X-Forwarded-For: 192.0.2.7\r\n"))
        assert answer.status == 200
        found = json.loads(answer.body)
        assert found["from"] == "127.0.0.1"
        assert [name for name, _ in found["headers"] if name == ingress.PROOF] == []
        assert PROOF.encode() not in answer.body + bytes(str(answer.headers), "ascii")
    assert len(server.met) >= 3
    assert replica_port.refused["unproven"] == 0


def test_a_long_head_that_haproxy_lets_pass_is_taken(door: RunningDoor) -> None:
    assert ask(door, get("/v1/x", more=f"X-Long: {'a' * 16_000}\r\n")).status == 200


def test_only_its_user_can_read_the_configuration_with_the_proof(door: RunningDoor) -> None:
    config = door.folder / "haproxy.cfg"
    assert PROOF in config.read_text()
    assert config.stat().st_mode & 0o777 == 0o600
    assert PROOF not in door.errors.read_text()
    for what in ("show stat", "show info", "show env", "show sess"):
        assert PROOF not in door.admin(what)


def test_refusals_are_counted(server: Server) -> None:
    server.ask(get("/v1/x"))
    meters = Meters("api", "api")
    replica_port.tell(meters)
    assert meters.value("breakers_port_refused_total", what="unproven") == 1


# -- connections


def test_a_head_without_an_end_is_cut(server: Server) -> None:
    """However it comes: one header after the other, or a line that goes on."""
    for filler in (b"a: b\r\n" * 100, b"a" * 600):
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nx: ")
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for _ in range(10_000):
                    connection.sendall(filler)
    assert replica_port.refused["head"] == 2


def test_whoever_proves_nothing_in_time_is_cut(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent or slow. A connection that has proven itself may be silent between its requests."""
    monkeypatch.setattr(replica_port.Port.__init__, "__defaults__", (1.0, 256))
    server = serving()
    request = f"GET /a HTTP/1.1\r\nHost: x\r\n{ingress.PROOF}: {PROOF}\r\n\r\n".encode()
    with server.connect() as proven, server.connect() as silent, server.connect() as half:
        proven.sendall(request)
        assert Answer(proven).status == 200
        half.sendall(b"GET / HT")
        assert (until_closed(silent), until_closed(half)) == (b"", b"")
        proven.sendall(request)
        assert Answer(proven).status == 200
    assert replica_port.refused["late"] == 2


def refused_bodies() -> int:
    return replica_port.refused["body"]


def test_a_body_without_an_end_ends_soon_after_its_answer(
    server: Server, door: RunningDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly or fast the rest comes, and whether the caller passes by HAProxy or not."""
    monkeypatch.setattr(replica_port, "LINGER_S", 1.0)
    head = "POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n"
    for n, (connect, more) in enumerate(((server.connect, f"{ingress.PROOF}: {PROOF}\r\n"), (door.connect, ""))):
        with connect() as slow:
            slow.sendall(f"{head}{more}\r\n".encode())
            assert Answer(slow).status == 200
            assert not ended(slow, b"x", 0.2)
            wait_for(lambda slow=slow: ended(slow, b"x", 0.0), 10, 0.2)
        assert refused_bodies() == 2 * n + 1
        with monkeypatch.context() as patched:
            patched.setattr(replica_port, "LINGER_S", 600.0)
            patched.setattr(replica_port, "LINGER_BYTES_MAX", 1 << 20)
            with connect() as fast:
                fast.sendall(f"{head}{more}\r\n".encode())
                assert Answer(fast).status == 200
                wait_for(lambda fast=fast: ended(fast, b"x" * 65536, 0.0), 10)
        assert refused_bodies() == 2 * n + 2


def ended(connection: socket.socket, more: bytes, wait_s: float) -> bool:
    """Whether the other side has ended a connection on which more is sent."""
    try:
        connection.sendall(more)
        threading.Event().wait(wait_s)
        return closed(connection)
    except OSError:
        return True
    finally:
        connection.setblocking(True)


def test_a_body_that_ends_after_its_answer_keeps_its_connection(server: Server) -> None:
    head = f"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n{ingress.PROOF}: {PROOF}\r\n\r\n".encode()
    with server.connect() as connection:
        for _ in range(2):
            connection.sendall(head)
            assert Answer(connection).status == 200
            connection.sendall(b"x" * 100_000)
    assert refused_bodies() == 0


def test_unproven_connections_do_not_keep_haproxy_out(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits longest makes room; those that are proven stay."""
    monkeypatch.setattr(replica_port.Port.__init__, "__defaults__", (30.0, 8))
    server = serving()
    with contextlib.ExitStack() as stack, running(replica_port=server.port, **TOKEN) as door:
        kept = stack.enter_context(door.connect())
        request = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
        kept.sendall(request)
        assert Answer(kept).status == 200
        held = [stack.enter_context(server.connect()) for _ in range(40)]
        wait_for(lambda: replica_port.refused["connections"] >= 32)
        assert [until_closed(connection) for connection in held[:32]] == [b""] * 32
        for connection in (kept, stack.enter_context(door.connect())):
            connection.sendall(request)
            assert Answer(connection).status == 200


def test_nobody_binds_a_port_beside_a_replica_that_does_not_listen_yet() -> None:
    port = lonely_port()
    with contextlib.closing(listeners._bound("127.0.0.1", port, False)), socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_a_proxy_takes_its_port_again_while_connections_linger() -> None:
    """And while the old one still listens."""
    port = lonely_port()
    with contextlib.closing(listeners._bound("127.0.0.1", port, True)) as old:
        old.listen()
        with socket.create_connection(("127.0.0.1", port)) as client, old.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_WR)  # who ends first lingers
            assert client.recv(1) == b""
        listeners._bound("127.0.0.1", port, True).close()
    listeners._bound("127.0.0.1", port, True).close()


# -- proofs


def test_the_proof_is_one_of_the_token_and_tells_it_not(tmp_path: Any) -> None:
    path = tmp_path / "ray.token"
    path.write_text("5eed" * 16 + "\n")
    by_path = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    assert ingress.proof(by_path) == PROOF != OTHER
    assert len(PROOF) == 64
    assert TOKEN["RAY_AUTH_TOKEN"] not in PROOF
    assert ingress.proof({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}) is None
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        ingress.proof(by_path)
    path.touch()
    with pytest.raises(ValueError, match="is empty"):
        ingress.proof(by_path)


async def test_a_replica_that_knows_no_proof_does_not_start(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    options = HTTPOptions(port=lonely_port())
    with pytest.raises(OSError, match="No such file"):
        await replica.start_asgi_http_server(None, options, event_loop=asyncio.get_running_loop())
