"""How a command finds the Ray cluster that serves a data directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.environment import ADDRESS_FILE, note_address, prepare_join


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set here is gone afterwards."""
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


def test_the_noted_address_and_how_it_is_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the service's own environment says about addresses and authentication is said by its drivers, too."""
    folder = tmp_path / "brk-1"
    folder.mkdir()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    note_address(folder, "127.0.0.1:4711")
    monkeypatch.delenv("RAY_AUTH_MODE")
    (tmp_path / "lock").write_text(f"1\n{folder}\n")
    assert prepare_join(tmp_path) == "127.0.0.1:4711"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


@pytest.mark.parametrize("lock", [None, "", "1\n", "1\n/nowhere/brk-2\n"])
def test_where_nothing_is_noted_this_machines_cluster_is_taken(tmp_path: Path, lock: str | None) -> None:
    """No service ever, one that has ended, or one deployed on a cluster that others started."""
    if lock is not None:
        (tmp_path / "lock").write_text(lock)
    assert prepare_join(tmp_path) == "auto"


def test_a_note_that_is_half_written(tmp_path: Path) -> None:
    (tmp_path / ADDRESS_FILE).write_text('{"address": ')
    (tmp_path / "lock").write_text(f"1\n{tmp_path}\n")
    assert prepare_join(tmp_path) == "auto"
