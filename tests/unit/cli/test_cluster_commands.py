"""`breakers status`, `rebalance` and `node-env`: what they show, and how they fail."""

from __future__ import annotations

import io
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from api import cli_cluster
from api.cli import app
from api.screen_status import show

ACTOR: dict[str, Any] = {
    "name": "breaker-0",
    "kind": "breaker",
    "state": "up",
    "since_ms": 1_000,
    "restarts": 2,
    "holds": 5,
    "incarnation": "abc",
    "node_id": "0123456789",
    "pid": 77,
    "started_ms": 1_000,
    **dict.fromkeys(("routers", "waiting", "log_bytes", "breakers", "starting", "unheard")),
    "behind": 1,
    "lag": 40,
    "overdue_ms": 1_500,
}
STATUS: dict[str, Any] = {
    "ts_ms": 65_000,
    "nodes": [{"id": "0123456789", "address": "10.0.0.1", "cpus": 4.0, "head": True}],
    "replicas": 2,
    "budgets": {"router": 2, "breaker": None},
    "journal": None,
    "log_bytes": 3 << 20,
    "actors": [ACTOR, {**ACTOR, "name": "router-0", "state": "away", "behind": None, "waiting": 9, "pid": None}],
}
runner = CliRunner()


def test_the_status_fits_on_a_screen() -> None:
    out = io.StringIO()
    show(STATUS, Console(file=out, width=120))
    node, breaker, router = (line.split() for line in out.getvalue().splitlines()[1:5] if "since" not in line)
    assert node == ["01234567", "10.0.0.1", "4", "head"]
    assert breaker == ["breaker-0", "up", "1", "min", "01234567", "77", "2", "5", "1", "40", "1", "s"]
    assert router[:5] == ["router-0", "away", "1", "min", "01234567"]
    assert "9" in router
    assert "journal does not answer" in out.getvalue()
    assert "replicas 2" in out.getvalue()


class FakeOperator:
    """20 things lie uneven."""

    def __init__(self) -> None:
        self.left, self.asked = 50, []  # type: tuple[int, list[int]]

    def __enter__(self) -> FakeOperator:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def rebalance(self, most: int) -> dict[str, int]:
        self.asked.append(most)
        moved = min(most, self.left)
        self.left -= moved
        return {"moved": moved, "left": self.left}


@pytest.mark.parametrize(
    ("options", "asked", "said"),
    [
        ([], [20, 20, 20], "moved 50, all is even"),
        (["--max", "30"], [20, 10], "moved 30, left 20"),
        (["--json"], [20, 20, 20], '{"moved": 50, "left": 0}'),
    ],
)
def test_rebalance_asks_until_all_is_even(
    monkeypatch: pytest.MonkeyPatch, options: list[str], asked: list[int], said: str
) -> None:
    operator = FakeOperator()
    monkeypatch.setattr(cli_cluster, "_operator", lambda address, data_dir: operator)
    result = runner.invoke(app, ["rebalance", *options])
    assert (result.exit_code, result.stdout.strip()) == (0, said)
    assert operator.asked == asked


def test_without_credentials_it_is_one_line(tmp_path: Path) -> None:
    for command in ("status", "rebalance"):
        result = runner.invoke(app, [command, "--data-dir", str(tmp_path)])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert "credentials.json" in result.stderr


def test_node_env_is_for_a_shell(tmp_path: Path) -> None:
    """What it prints can be evaluated, twice it does not collide, and its launcher can be run."""
    outputs = [runner.invoke(app, ["node-env"]).stdout for _ in range(2)]
    places = []
    for output in outputs:
        assert output.splitlines()[0] == 'ulimit -n "$(ulimit -Hn)"'
        assert all(re.fullmatch(r"export RAY_\w+=\S+", line) for line in output.splitlines()[1:])
        script = f'{output}\nprintf %s "$RAY_SERVE_HAPROXY_BINARY_PATH"'
        places.append(subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout)
    assert places[0] != places[1]
    for place in places:
        assert os.access(place, os.X_OK)
        assert os.stat(Path(place).parent).st_mode & 0o077 == 0
        version = subprocess.run([place, "-v"], capture_output=True, text=True, check=True)
        assert "HAProxy" in version.stdout
        Path(place).unlink()
        Path(place).parent.rmdir()
