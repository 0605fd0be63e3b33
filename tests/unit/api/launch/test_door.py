"""What HAProxy does with strangers, with the real program: idle connections, odd requests."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import re
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.context.current import SESSION_COOKIE
from api.launch import haproxy as ingress
from api.openapi.table import OPERATIONS
from tests.support.door import APART, SECOND_SOURCE, Answer, RunningDoor, ask, closed, get, running, until_closed
from tests.support.live import wait_for
from tests.unit.api.console.test_guard import OPEN

with warnings.catch_warnings(action="ignore"):
    from ray.serve._private import constants

HEAD_S, SILENCE_S = 2.0, 3.0
HELD = 850
FIB = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /32 link BROADCAST
           /8 host LOCAL
     +-- 10.1.2.0/24 2 0 2
        |-- 10.1.2.0
           /24 link UNICAST
        |-- 10.1.2.3
           /32 host LOCAL
        |-- 172.17.0.1
           /32 host LOCAL
        |-- 10.1.2.255
           /32 link BROADCAST
"""
PIECES = (b"", b"G", b"GET /v1/x HT", b"GET /v1/x HTTP/1.1\r\n", b"GET /v1/x HTTP/1.1\r\nHost: x\r\nX-Half")


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running(ingress.Door(asks_token=True)) as found:
        yield found


def body_of(answer: Answer) -> dict[str, str]:
    """The Error object, complete and under its request's id."""
    assert answer.headers["Content-Type"] == "application/json"
    found: dict[str, str] = json.loads(answer.body)
    assert found.keys() == {"error", "code", "message", "request_id"}
    assert found["error"] == found["code"]
    assert found["request_id"] == answer.headers["X-Request-ID"]
    assert re.fullmatch(r"[0-9a-f]{32}", found["request_id"])
    return found


# -- connections


def hold(door: RunningDoor, stack: contextlib.ExitStack) -> list[socket.socket]:
    """As many connections as the issue names, from one source, with nothing or a part of a head in them."""
    held = []
    for number in range(HELD):
        with contextlib.suppress(OSError):
            connection = stack.enter_context(door.connect())
            connection.sendall(PIECES[number % len(PIECES)])
            held.append(connection)
    return held


def test_one_source_holds_its_share_and_not_for_long() -> None:
    """Another one is served all the time, whatever the first sends or does not."""
    with (
        running(ingress.Door(head_s=HEAD_S, silence_s=SILENCE_S, here=APART), maxconn=800) as door,
        contextlib.ExitStack() as stack,
    ):
        begun = time.monotonic()
        held = hold(door, stack)
        wait_for(lambda: len([connection for connection in held if not closed(connection)]) <= 400)
        while not all(map(closed, held)):
            assert ask(door, get("/v1/x"), SECOND_SOURCE, 5).status == 200
            assert time.monotonic() - begun < 5 * (HEAD_S + SILENCE_S)
        metrics = httpx.get(f"http://127.0.0.1:{door.metrics}/metrics", trust_env=False).text
    denied = re.search(r'^haproxy_frontend_denied_connections_total\{proxy="http_frontend"\} (\d+)', metrics, re.M)
    assert denied is not None
    assert int(denied[1]) >= HELD - 400


@pytest.mark.parametrize("said", [b"GET /metrics HTTP/1.1\r\n", b"", get("/metrics").replace(b"close", b"keep-alive")])
def test_who_holds_the_metrics_port_leaves_the_service_its_own(said: bytes) -> None:
    """More than all of HAProxy's connections, with half a head, nothing, or a request each; none stays."""
    with running(maxconn=60) as door, contextlib.ExitStack() as stack:
        held = []
        for _ in range(80):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(("127.0.0.1", door.metrics))
            held.append(connection)
        for connection in held:
            with contextlib.suppress(OSError):
                connection.sendall(said)
        assert ask(door, get("/v1/x"), timeout_s=5).status == 200
        wait_for(lambda: closed(held[0]), 10)
        assert ask(door, get("/v1/x"), timeout_s=5).status == 200


def test_each_other_listener_of_serves_has_a_bound_of_its_own() -> None:
    config = ingress.rewrite(
        "defaults\n    mode http\nfrontend prometheus\n    bind :1\nfrontend new\n", ingress.Door()
    )
    assert config.count(f"    maxconn {ingress.OTHERS_MAX}\n") == 2


def test_without_shares_one_source_takes_all() -> None:
    """What the bound is there for, and how it is lifted where a balancer stands in front."""
    lifted = ingress.Door(connections=0, head_s=30, here=APART)
    with running(lifted, maxconn=60) as door, contextlib.ExitStack() as stack:
        held = [stack.enter_context(door.connect()) for _ in range(60)]
        assert held
        with pytest.raises(TimeoutError):
            ask(door, get("/v1/x"), SECOND_SOURCE, 1)


def test_a_bound_of_ones_own() -> None:
    with running(ingress.Door(connections=3, here=APART)) as door, contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(door.connect())
        with contextlib.suppress(ConnectionResetError), door.connect() as fourth:
            wait_for(lambda: closed(fourth))
        assert ask(door, get("/v1/x"), SECOND_SOURCE).status == 200


def test_all_of_this_machine_is_one_source_for_haproxy_and_replicas() -> None:
    """Whoever is on it may connect from each of its addresses."""
    sources = [("127.0.0.1", source) for source in ("127.0.0.1", "127.0.0.2", "127.255.255.254")]
    own = [ipaddress.ip_network(found) for found in ingress.own_addresses(Path("/proc/net"))]
    alone = [found[0] for found in own if found.num_addresses == 1 and not (found.is_link_local or found.is_loopback)]
    sources += [(str(address), str(address)) for address in dict.fromkeys(alone)]
    sources += [("::1", "::1")] if socket.has_ipv6 else []
    for host, source in sources:
        with running(ingress.Door(host="::" if socket.has_ipv6 else "0.0.0.0", connections=3)) as door:
            assert json.loads(ask(door, get("/v1/x"), source, host=host).body)["from"] == ["127.0.0.1"]
            with contextlib.ExitStack() as stack:
                wait_for(lambda door=door: door.open_connections() == 0)
                for _ in range(3):
                    stack.enter_context(door.connect("127.0.0.1"))
                with contextlib.suppress(ConnectionResetError), door.connect(source, host) as fourth:
                    wait_for(lambda fourth=fourth: closed(fourth))


def test_other_machines_are_sources_of_their_own() -> None:
    with running(ingress.Door(here=APART)) as door:
        for source in ("127.0.0.1", SECOND_SOURCE, "127.0.0.3"):
            assert json.loads(ask(door, get("/v1/x"), source).body)["from"] == [source]


def test_addresses_of_this_machine_are_found(tmp_path: Path) -> None:
    """Those of a container's bridge and a service's address on loopback, too; not those of its networks."""
    assert list(ingress.own_addresses(tmp_path)) == []
    (tmp_path / "fib_trie").write_text(FIB)
    (tmp_path / "if_inet6").write_text("fd000000000000000000000000000002 04 40 00 80     eth0\n")
    assert list(ingress.own_addresses(tmp_path)) == ["127.0.0.0/8", "10.1.2.3/32", "172.17.0.1/32", "fd00::2"]


def test_a_machine_with_many_addresses_is_one_source() -> None:
    """A line of HAProxy's configuration takes 64 words."""
    many = [f"127.0.{at // 200}.{at % 200 + 1}" for at in range(1000)]
    with running(ingress.Door(here=many)) as door:
        assert json.loads(ask(door, get("/v1/x"), many[-1]).body)["from"] == ["127.0.0.1"]
        assert json.loads(ask(door, get("/v1/x"), "127.0.9.9").body)["from"] == ["127.0.9.9"]


def test_a_body_that_stops_is_given_up() -> None:
    with running(ingress.Door(head_s=HEAD_S, silence_s=1)) as door:
        begun = time.monotonic()
        answer = ask(door, b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert time.monotonic() - begun < 10
        assert (answer.status, body_of(answer)["code"]) == (400, "bad_request")


def test_a_refusal_of_a_body_that_trickles_ends_its_connection() -> None:
    """However steadily the rest would come."""
    with running(ingress.Door(silence_s=30)) as door, door.connect() as connection:
        connection.sendall(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc")

        def ended() -> bool:
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return closed(connection)

        wait_for(ended, 10, 0.1)


def test_streams_and_late_answers_outlive_the_time_for_silence() -> None:
    """A client that waits is not silent: a line each half second keeps a stream, an answer may take longer."""
    with running(ingress.Door(silence_s=1)) as door:
        with door.connect() as connection:
            connection.sendall(get("/stream"))
            lines = b""
            begun = time.monotonic()
            while lines.count(b"heartbeat") < 8:
                part = connection.recv(4096)
                assert part, f"the stream was cut after {time.monotonic() - begun:.1f} s"
                lines += part
            assert time.monotonic() - begun > 3
        assert ask(door, get("/late")).body == b"late"


def asked(connection: socket.socket, path: str, method: str = "GET") -> Answer:
    """The answer on a connection that the caller would keep."""
    connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer eb_x\r\n\r\n".encode())
    return Answer(connection)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", path) for path in (*ingress.OPEN_PAGES, *ingress.CONSOLE_PAGES, "/console/static/console.css")),
        *(("GET", path) for path in ("/API/Healthz", "/v1/%2e", "/v1/../x")),
        *(("GET", path) for path in ("//docs", "/api//health", "//docs///rapidoc.js", "//console//static/console.css")),
        *(("GET", f"/says/{status}") for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 503)),
        *(("OPTIONS", "/v1/x"), ("BREW", "/v1/x")),
    ],
)
def test_an_answer_to_who_proved_nothing_ends_its_connection(door: RunningDoor, method: str, path: str) -> None:
    """The client's own, whatever it would like: none of these buys a place for later."""
    with door.connect() as connection:
        assert asked(connection, path, method).headers["Connection"] == "close"
        wait_for(lambda: closed(connection), 5)


def test_every_page_without_a_key_is_known() -> None:
    """A new one has to join."""
    found = {operation.path for operation in OPERATIONS if operation.access in ("open", "probe", "metrics")}
    assert found == set(ingress.OPEN_PAGES) - {"/-/healthz"}
    # where no key becomes known
    assert {path.split("/")[1] for path in found} == {"api", "docs", "openapi.json", "metrics"}
    assert {operation.path.split("/")[1] for operation in OPERATIONS if operation.path not in found} == {"v1"}


@pytest.mark.parametrize("status", [200, 201, 202])
def test_an_answer_to_who_proved_something_keeps_it(door: RunningDoor, status: int) -> None:
    with door.connect() as connection:
        for _ in range(3):
            answer = asked(connection, f"/says/{status}")
            assert (answer.status, answer.headers["Connection"]) == (status, None)


FLOOD = 60


def flood(door: RunningDoor, request: bytes, n: int = FLOOD) -> list[int]:
    """The statuses of so many requests of one source, more than a bound of 5 a second lets through."""
    return [ask(door, request).status for _ in range(n)]


def shown(path: str, key: str, method: str = "GET") -> bytes:
    return get(path, method, f"Authorization: Bearer {key}\r\n")


def denied(door: RunningDoor) -> int:
    metrics = httpx.get(f"http://127.0.0.1:{door.metrics}/metrics", trust_env=False).text
    found = re.search(r'^haproxy_frontend_requests_denied_total\{proxy="http_frontend"\} (\d+)', metrics, re.M)
    assert found is not None
    return int(found[1])


def test_requests_without_a_key_have_a_rate_that_costs_others_nothing() -> None:
    """Refused before a replica learns of them, and counted; keys of the same source, other sources and HAProxy's own
    page go on, and so does a part of the flood."""
    with running(ingress.Door(unknown_per_s=100, keyless_per_s=5, here=APART)) as door:
        assert ask(door, shown("/v1/x", "good")).status == 200
        begun = time.monotonic()
        found = flood(door, get("/v1/without"))
        passed = door.replica.seen["/v1/without"]
        assert 5 <= passed == found.count(200) <= 5 * (2 + time.monotonic() - begun)
        assert found.count(429) == FLOOD - passed == denied(door)
        refused = ask(door, get("/api/readyz"))
        while refused.status == 200:  # the second is over
            refused = ask(door, get("/api/readyz"))
        body = json.loads(refused.body)
        assert body.pop("details") == {"limit": "keyless_per_s", "retry_after_s": 1}
        assert (body["error"], body["code"], body["request_id"]) == (
            "rate_limited",
            "rate_limited",
            refused.headers["X-Request-ID"],
        )
        assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("1", "close")
        assert flood(door, shown("/v1/x", "good"), 20) == [200] * 20
        assert ask(door, get("/v1/x"), SECOND_SOURCE).status == 200
        assert ask(door, get("/-/healthz")).status == 200


def test_a_key_is_known_once_it_opened_something() -> None:
    """Those that opened nothing have a rate together, whatever they say; a page that is open opens nothing."""
    with running(ingress.Door(unknown_per_s=5, here=APART)) as door:
        assert ask(door, shown("/v1/x", "good")).status == 200
        assert set(flood(door, shown("/says/401", "bad"))) == {401, 429}
        made_up = [ask(door, shown("/says/401", f"bad{number}")).status for number in range(FLOOD)]
        assert made_up.count(429) > made_up.count(401)
        for page in ("/docs", "//docs", "//api/readyz"):  # two slashes are one to a replica
            assert 429 in flood(door, shown(page, "bad2"))
        assert 429 in flood(door, shown("/v1/x", "bad3", "OPTIONS"))
        assert flood(door, shown("/v1/x", "good"), 20) == [200] * 20


def with_session(path: str, token: str) -> bytes:
    return get(path, "GET", f"Cookie: other=1; {ingress.SESSION}={token}\r\n")


def test_a_session_of_the_console_is_known_like_a_key() -> None:
    """Where it opened a page that nobody sees without; elsewhere it is nothing."""
    with running(ingress.Door(unknown_per_s=5, keyless_per_s=5, here=APART)) as door:
        assert flood(door, with_session("/console/p/x", "good")) == [200] * FLOOD
        for page in ("/console/sign-in", "/console/static/console.css"):
            assert 429 in flood(door, with_session(page, "bad"))
        assert 429 in flood(door, with_session("/v1/without", "good"))


def test_every_page_of_the_console_for_who_is_not_signed_in_is_known() -> None:
    assert {rule.replace("<name>", "") for rule in OPEN} == {*ingress.CONSOLE_PAGES, ingress.CONSOLE_FILES}
    assert ingress.SESSION == SESSION_COOKIE


@pytest.mark.parametrize("path", ["/v1/projects/202/ingest", "//v1/projects/202/ingest"])
def test_ingest_is_known_by_its_project(path: str) -> None:
    """Senders of a project that takes what they send are not bounded here; who makes projects up is, with a key too."""
    with running(ingress.Door(unknown_per_s=5, keyless_per_s=5, here=APART)) as door:
        assert flood(door, get(path, "POST")) == [202] * FLOOD
        assert 429 in flood(door, shown("/v1/projects/404/ingest", "any", "POST"))
        assert flood(door, get(path, "POST"), 20) == [202] * 20


@pytest.mark.parametrize("door", [ingress.Door(keyless_per_s=1), ingress.Door(unknown_per_s=1, connections=0)])
def test_without_a_bound_on_rates_or_sources_nothing_is_counted(door: ingress.Door) -> None:
    with running(door) as found:
        assert flood(found, get("/v1/x"), 20) == [200] * 20


def test_a_health_token_is_a_key() -> None:
    with running(ingress.Door(asks_token=True, unknown_per_s=5, here=APART)) as door:
        assert flood(door, shown("/api/readyz", "t0ken")) == [200] * FLOOD
        assert 429 in flood(door, shown("/docs", "other"))


def test_health_probes_hold_no_place() -> None:
    """As many as one source may have, each with an answer, and silent since: the next caller is served."""
    with running(ingress.Door(connections=20)) as door, contextlib.ExitStack() as stack:
        for _ in range(60):
            probe = stack.enter_context(door.connect())
            assert asked(probe, "/api/healthz").status == 200
            wait_for(lambda probe=probe: closed(probe), 5)
        wait_for(lambda: door.open_connections() == 0, 5)


def test_above_half_of_its_share_no_connection_of_a_source_is_kept() -> None:
    """A stream is, and other sources' are; below it all are again."""
    with running(ingress.Door(connections=8, here=APART)) as door, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(door.connect()) for _ in range(4)]
        assert [asked(connection, "/v1/x").headers["Connection"] for connection in kept] == [None] * 4
        stream = stack.enter_context(door.connect())
        stream.sendall(get("/stream").replace(b"close", b"keep-alive"))
        assert b"HTTP/1.1 200" in stream.recv(4096)
        assert asked(kept[0], "/v1/x").headers["Connection"] == "close"
        wait_for(lambda: closed(kept[0]), 5)
        other = stack.enter_context(door.connect(SECOND_SOURCE))
        assert asked(other, "/v1/x").headers["Connection"] is None
        wait_for(lambda: door.open_connections() == 5, 5)
        assert asked(kept[1], "/v1/x").headers["Connection"] is None
        assert stream.recv(4096)


def test_a_connection_is_not_kept_for_long_between_requests() -> None:
    """A stream and a late answer are no pause between requests."""
    with running(ingress.Door(idle_s=1)) as door, contextlib.ExitStack() as stack:
        stream, late = (stack.enter_context(door.connect()) for _ in range(2))
        stream.sendall(get("/stream"))
        with door.connect() as connection:
            assert asked(connection, "/v1/x").status == 200
            begun = time.monotonic()
            wait_for(lambda: closed(connection), 10)
            assert 0.5 < time.monotonic() - begun < 5
        assert asked(late, "/late").body == b"late"
        lines = b""
        while lines.count(b"heartbeat") < 6:
            part = stream.recv(4096)
            assert part
            lines += part


def test_a_connection_is_kept_between_requests(door: RunningDoor) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{door.port}", trust_env=False) as client:
        first = client.get("/v1/x").extensions["network_stream"].get_extra_info("client_addr")
        assert client.get("/v1/y").extensions["network_stream"].get_extra_info("client_addr") == first


# -- requests


@pytest.mark.parametrize(
    "path",
    [
        "/v1/admin%2fstatus",
        "/v1/admin%2Fstatus",
        "/v1%2f",
        "/%2e%2e/v1/x",
        "/v1/./x",
        "/v1/../v1/x",
        "/v1/x/..",
        "/v1/%61dmin/status",
        "/v1/x%5cy",
        "/v1/x%00",
        "/%2d/healthz",
        "/-%2Fhealthz",
        "/%2D/routes",
        "/-/routes",
        "/-/Routes",
    ],
)
def test_a_path_has_one_spelling(door: RunningDoor, path: str) -> None:
    answer = ask(door, get(path))
    assert (answer.status, body_of(answer)["code"]) == (404, "not_found")


@pytest.mark.parametrize("path", ["/v1/x", "/v1/state%3Astream", "/v1/a..b/.c", "/v1/%C3%A9", "/v1/x?path=a%2fb/../c"])
def test_what_needs_no_other_spelling_passes(door: RunningDoor, path: str) -> None:
    answer = ask(door, get(path))
    assert (answer.status, json.loads(answer.body)["path"]) == (200, path)


@pytest.mark.parametrize("method", ["BREW", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_a_method_nobody_knows_is_an_error_object(door: RunningDoor, method: str) -> None:
    path = "x:1" if method == "CONNECT" else "/v1/x"
    answer = ask(door, f"{method} {path} HTTP/1.1\r\nHost: x:1\r\n\r\n".encode())
    assert (answer.status, body_of(answer)["code"]) == (405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


def test_a_request_for_no_path_is_an_error_object(door: RunningDoor) -> None:
    answer = ask(door, b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (answer.status, body_of(answer)["code"]) == (400, "bad_request")


def test_a_head_that_is_too_long_is_an_error_object(door: RunningDoor) -> None:
    """Whether its headers are, its line, or both together."""
    cases = [(0, 15_000, 200), (15_000, 0, 200), (0, 17_000, 431), (17_000, 0, 431), (9_000, 9_000, 431)]
    for line, headers, status in cases:
        answer = ask(door, get(f"/v1/x?{'a' * line}", more=f"X-Long: {'a' * headers}\r\n"))
        assert answer.status == status
        assert status == 200 or body_of(answer)["code"] == "bad_request"


def test_chunks_that_are_none_are_an_error_object(door: RunningDoor) -> None:
    with door.connect() as connection:
        connection.sendall(b"POST /late HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        wait_for(lambda: door.admin("show stat").split(",")[4] == "1")  # the head is with the replica
        connection.sendall(b"zz\r\n")
        answer = Answer(connection)
    assert (answer.status, body_of(answer)["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "noise",
    [b"rubbish\r\n\r\n", b"GET /v1/x HTTP/1.1\r\nno header\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n"],
)
def test_what_is_no_http_reaches_nobody(door: RunningDoor, noise: bytes) -> None:
    """HAProxy's own text, the one answer here that is no Error object: it is compiled into the program."""
    before = door.admin("show stat").split(",")[7]
    with door.connect() as connection:
        connection.sendall(noise)
        connection.shutdown(socket.SHUT_WR)
        answer = until_closed(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert b"rubbish" not in answer
    assert door.admin("show stat").split(",")[7] == before


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_that_a_replica_dies_over_is_asked_again(door: RunningDoor, method: str) -> None:
    """On a connection that HAProxy had before, too: there it would end the caller's own without a word."""
    for turn in range(4):
        path = f"/dies/{method}{turn}"
        connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path)
            assert connection.getresponse().status == 200
        assert door.replica.seen[path] == 2


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_that_a_replica_dies_over_is_not_repeated(door: RunningDoor, method: str) -> None:
    """Nobody but the caller knows whether that would do harm."""
    path = f"/dies/{method}"
    assert ask(door, get("/v1/x")).status == 200
    with door.connect() as connection:
        connection.sendall(get(path, method))
        answer = until_closed(connection)
    assert not answer or answer.startswith(b"HTTP/1.1 503 ")
    assert door.replica.seen[path] == 1


def test_upgrades_are_not_offered(door: RunningDoor) -> None:
    """Neither h2c nor WebSocket reach the replica's server, which would answer by itself."""
    for protocol in ("h2c", "websocket"):
        answer = ask(door, get("/v1/x", more=f"Upgrade: {protocol}\r\nSec-WebSocket-Key: x\r\n"))
        assert answer.status == 200
    with door.connect() as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert b"HTTP/1.1 400" in until_closed(connection)


def test_serves_own_headers_are_taken_out(door: RunningDoor) -> None:
    """However they are spelt: whoever has no key would choose times, or have Serve fail on their bytes."""
    own = [constants.SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER, constants.SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER]
    own += [constants.SERVE_MULTIPLEXED_MODEL_ID, constants.SERVE_SESSION_ID, "traceparent", "tracestate"]
    own += [constants.SERVE_INGRESS_ROUTER_HEADER_PREFIX + "a"]
    own += ["serve-multiplexed-model-id", "x_session_id", "X-Request-Timeout-SECONDS"]
    lines = b"".join(name.encode() + b": \xff\xfe\r\n" for name in own)
    request = b"GET /v1/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Kept: 1\r\n" + lines + b"\r\n"
    names = json.loads(ask(door, request).body)["names"]
    assert "x-kept" in names
    assert set(names) & {name.lower() for name in own} == set()


@pytest.mark.parametrize(
    "given",
    [
        ("good", '<script>"'),
        ('<script>"', "good"),
        ("good", "good"),
        ('good, "},{"x',),
        ('"},{"x, good',),
        ("a" * 129,),
    ],
)
def test_an_odd_id_beside_a_good_one_is_replaced(door: RunningDoor, given: tuple[str, ...]) -> None:
    more = "".join(f"X-Request-ID: {value}\r\n" for value in given)
    (seen,) = json.loads(ask(door, get("/v1/x", more=more)).body)["ids"]
    assert re.fullmatch(r"[0-9a-f]{32}", seen)
    assert body_of(ask(door, get("/v1/%2e", more=more)))["code"] == "not_found"


def test_a_good_id_is_kept(door: RunningDoor) -> None:
    assert json.loads(ask(door, get("/v1/x", more="X-Request-ID: a,b:c\r\n")).body)["ids"] == ["a,b:c"]


def test_serves_own_health_page_asks_for_the_token(door: RunningDoor) -> None:
    """It becomes the service's own, which does."""
    for path in ("/-/healthz", "/-/HealthZ"):
        answer = ask(door, get(path))
        assert json.loads(answer.body)["path"] == "/api/healthz"


def test_without_a_token_serves_own_health_page_is_what_kuberay_asks() -> None:
    with running() as door:
        assert ask(door, get("/-/healthz")).body == b"success"
        assert ask(door, get("/-/routes")).status == 404


# -- listeners


def test_nothing_is_sent_to_a_syslog(door: RunningDoor) -> None:
    assert "514" not in (door.folder / "haproxy.cfg").read_text()


def test_it_listens_on_both_families_where_the_host_says_so() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with running(ingress.Door(host="::")) as door:
        with door.connect(), socket.create_connection(("::1", door.port), 5):
            pass
