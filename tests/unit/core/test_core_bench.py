"""The core benchmark runs at toy size with right outcomes; its figures are not judged here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.__main__ import main


def test_core_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every case passes its own check, and the figures land in the file."""
    assert main(["core", "--smoke", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures) == 8
    assert all(figure["value"] > 0 for figure in figures if "resident" not in figure["name"])
    assert main(["nothing_of_that_name"]) == 2
