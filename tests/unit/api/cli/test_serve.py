"""What `breakers serve` says of its start, without a service."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import main
from api.launch.cluster import Deployment, Scale
from api.launch.supervisor import Service
from breaker_actors.errors import Invalid
from breaker_actors.settings import Settings


@pytest.mark.parametrize("terminal", [True, False])
def test_a_start_is_told_on_a_terminal_and_into_a_log(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of systemd or of CI has `starting` at once, not nothing until `ready`."""

    def fail(self: Service) -> None:
        raise Invalid("as far as this test goes")

    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(Service, "_prepare_store", fail)
    ended = CliRunner().invoke(main.app, ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0"])
    assert ended.exit_code == 2
    first, *rest = ended.stderr.splitlines()
    assert first.startswith("starting on http://127.0.0.1:")
    assert rest[-1] == "breakers: as far as this test goes"


def test_a_start_tells_its_phases_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    service = Service(Settings(data_dir=tmp_path / "data", port=0), tell=told.append)

    def prepare(self: Service) -> None:
        assert told[0].startswith("starting on http://127.0.0.1:")
        assert told[0].endswith(f"data in {tmp_path / 'data'}")

    def fail(self: Service) -> None:
        assert told[1].startswith("store: ")
        raise Invalid("as far as this test goes")

    monkeypatch.setattr(Service, "_prepare_store", prepare)
    monkeypatch.setattr(Service, "_prepare_ray", fail)
    with pytest.raises(Invalid, match="as far"):
        service.start()
    service.kill()


def test_ready_comes_last_after_a_link_to_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "credentials.json").touch()
    assert _said(tmp_path, monkeypatch, capsys) == [
        f"credentials {tmp_path}/credentials.json",
        "all",
        "docs http://127.0.0.1:7117/docs",
        "console http://127.0.0.1:7117/console",
        "ready http://127.0.0.1:7117",
    ]


def test_a_file_that_is_not_there_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new data directory on a database that has an organisation: the line says what to do instead."""
    line = _said(tmp_path, monkeypatch, capsys)[0]
    assert line.startswith(f"no credentials in {tmp_path}: ")
    assert "breakers keys" in line
    assert Deployment(Settings(data_dir=tmp_path), Scale()).credentials == line
    (tmp_path / "credentials.json").touch()
    assert Deployment(Settings(data_dir=tmp_path), Scale()).credentials == f"credentials {tmp_path}/credentials.json"


def _said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(main.cli_logs, "tell_on_stdout", lambda *_: None)
    service: Any = SimpleNamespace(data_dir=folder, base_url="http://127.0.0.1:7117", survives="all")
    main._serve(service, lambda within_s: True)
    return capsys.readouterr().out.splitlines()
