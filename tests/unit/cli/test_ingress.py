"""The HAProxy launcher: which listeners it moves, and that it becomes the program it was given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from api import ingress

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


def test_it_rewrites_the_file_and_goes_on_as_the_program(tmp_path: Path) -> None:
    """Same arguments, same standard output, run as the service runs it: without site-packages."""
    config = tmp_path / "haproxy.cfg"
    config.write_text(CONFIG)
    command = [sys.executable, "-I", "-S", ingress.__file__, "/bin/echo", "-db", "-f", str(config)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout == f"-db -f {config}\n"
    assert "127.0.0.1:9101" in config.read_text()
