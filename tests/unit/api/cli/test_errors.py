"""What an operator got wrong is one line on stderr and exit code 2, before Ray starts."""

from __future__ import annotations

import fcntl
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from api.cli.main import app
from tests.support.full_disk import full_disk


def serve(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """The command in this process; a refused start must not have come as far as Ray."""
    result = CliRunner().invoke(app, ["serve", *arguments], env=env)
    ray = sys.modules.get("ray")
    assert ray is None or not ray.is_initialized()
    return result


def assert_refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    *phases, last = result.stderr.splitlines()
    assert all(line.startswith(("starting on ", "store: ")) for line in phases)
    assert last.startswith("breakers: ")
    assert all(word in last for word in words)
    assert result.stdout == ""


def test_data_dir_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_refused(serve("--data-dir", str(tmp_path / "file" / "data"), "--port", "0"), "no folder")


def test_data_dir_in_use(tmp_path: Path) -> None:
    """A second service on the same data would fence the first one off; it says who holds it."""
    with open(tmp_path / "lock", "w", encoding="utf-8") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_refused(
            serve("--data-dir", str(tmp_path), "--port", "0"), "is in use by a service (pid 4711); stop it first"
        )


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert_refused(serve("--data-dir", str(tmp_path), "--port", port), f"port {port}", "in use", "--port")


def test_port_out_of_range(tmp_path: Path) -> None:
    assert_refused(serve("--data-dir", str(tmp_path), "--port", "70000"), "BREAKERS_PORT")


def test_unknown_setting(tmp_path: Path) -> None:
    assert_refused(serve("--data-dir", str(tmp_path), env={"BREAKERS_POTR": "1"}), "BREAKERS_POTR")


def test_invalid_setting(tmp_path: Path) -> None:
    assert_refused(serve("--data-dir", str(tmp_path), env={"BREAKERS_REPLICAS": "none"}), "BREAKERS_REPLICAS")


def test_broken_credentials_file(tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text("{")
    assert_refused(serve("--data-dir", str(tmp_path), "--port", "0"), "credentials.json can't be read")


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, "0.1.0")


@pytest.mark.parametrize("command", [[], ["serve"], ["demo"]])
def test_help(command: list[str]) -> None:
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0


def test_a_disk_without_room(tmp_path: Path) -> None:
    """The key of the data directory is the first file with something in it; no half of it is left."""
    folder = tmp_path / "data"
    with full_disk(0):
        result = serve("--data-dir", str(folder), "--port", "0")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "breakers: File too large")
    assert [path.name for path in folder.iterdir() if path.stat().st_size] == []
    assert not [path for path in folder.iterdir() if path.name.startswith("secret")]
