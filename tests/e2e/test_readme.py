"""README's walks, run as they stand there, in a directory whose .breakers is the running service's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live import LiveService

pytestmark = pytest.mark.e2e

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def beside(live: LiveService, tmp_path: Path) -> Path:
    (tmp_path / ".breakers").symlink_to(live.data_dir)
    return tmp_path


def test_the_curl_walk(beside: Path) -> None:
    script = "set -m\n" + "\n".join(blocks("bash"))
    done = subprocess.run(["bash", "-c", script], cwd=beside, capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == '{"accepted":10}', done.stdout + done.stderr
    assert json.loads(lines[1])["state"] == "open"
    messages = [json.loads(m) for m in re.findall(r"^data: (.*)$", done.stdout, re.MULTILINE)]
    of_checkout = [(m["state"], m["allow_rate"]) for m in messages if m["breaker"] == "checkout"]
    rates = [("half_open", rate) for rate in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert of_checkout == [("closed", None), ("open", None), *rates, ("closed", None)]
    events = json.loads(lines[-1])["events"]
    assert [(e["prev"], e["curr"]) for e in events] == [
        ("half_open", "closed"),
        ("open", "half_open"),
        ("closed", "open"),
    ]


def test_the_sdk_walk(beside: Path) -> None:
    (script,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=beside, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "payments is open: the call was not made\n", done.stderr
