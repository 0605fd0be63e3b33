"""What a service says on stdout, and `breakers logs` of all its processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.live import LiveService, wait_for

pytestmark = pytest.mark.e2e
PROGRAM = str(Path(sys.executable).with_name("breakers"))


def test_a_trip_is_a_line_on_stdout_and_in_the_logs(live: LiveService) -> None:
    made = live.breaker(name="told-on-stdout", cooldown_ms=3_600_000)
    live.trip(made)

    def told(event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in list(live.output) if line.startswith("{")]
        return [line for line in lines if line["event"] == event and line.get("name") == "told-on-stdout"]

    (trip,) = wait_for(lambda: told("transition"))
    assert (trip["prev"], trip["curr"], trip["breaker_id"]) == ("closed", "open", made["breaker"]["id"])
    assert "breaker.create" in {line["action"] for line in wait_for(lambda: told("change"))}
    command = [PROGRAM, "logs", "--data-dir", str(live.data_dir), "--role", "journal", "--lines", "10000"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert any("told-on-stdout: closed -> open" in line for line in shown.splitlines())
