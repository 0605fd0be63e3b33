"""The history benchmark runs at toy size with right outcomes; its figures are not judged here."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.bench.__main__ import main


def test_history_bench(tmp_path: Path) -> None:
    """Every case runs in its own process and agrees with the core on many transitions; the figures land in the file."""
    assert main(["history", "--smoke", "--json", str(tmp_path / "figures.json")]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures) == 15
    assert all(figure["value"] > 0 for figure in figures)
    compared = re.findall(r"(\d+) transitions checked", " ".join(figure["name"] for figure in figures))
    assert len(compared) == 2
    assert all(int(count) >= 10 for count in compared)
