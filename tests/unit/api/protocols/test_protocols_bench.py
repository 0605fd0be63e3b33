"""The benchmark of open protocols runs at toy size; its figures are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.__main__ import main


def test_protocols_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["protocols", "--smoke", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert all(figure > 0 for figure in figures.values())
    assert "us remote-write 1.0" in capsys.readouterr().out
